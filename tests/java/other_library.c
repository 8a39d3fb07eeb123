/* libbatchllm.so of another version: all that the loader asks of it. */
#include <stdint.h>

__attribute__((visibility("default"))) uint32_t batchllm_version(void) { return OTHER_VERSION; }
