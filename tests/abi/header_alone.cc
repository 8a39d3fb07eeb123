// The header needs nothing before it in C++ either.
#include <batchllm.h>

#include <batchllm.h>

int batchllm_header_alone();
int batchllm_header_alone() { return BATCHLLM_OK; }
