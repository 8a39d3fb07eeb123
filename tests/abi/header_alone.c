/* The header needs nothing before it, and may be included twice. */
#include <batchllm.h>

int batchllm_header_alone(void);
int batchllm_header_alone(void) { return BATCHLLM_OK; }
