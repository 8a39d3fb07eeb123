// Version, status names, the last error, and the defaults of the options.
#include "api/boundary.h"
#include "batchllm.h"
#include "report/finish_name.h"
#include "runtime/options.h"

using namespace batchllm;

extern "C" {

uint32_t batchllm_version(void) {
    return (BATCHLLM_VERSION_MAJOR << 16) | (BATCHLLM_VERSION_MINOR << 8) | BATCHLLM_VERSION_PATCH;
}

const char *batchllm_status_name(int32_t status) {
#define NAME(status)                                                                               \
    case status:                                                                                   \
        return #status
    switch (status) {
        NAME(BATCHLLM_OK);
        NAME(BATCHLLM_ERROR_INVALID_ARGUMENT);
        NAME(BATCHLLM_ERROR_OUT_OF_MEMORY);
        NAME(BATCHLLM_ERROR_IO);
        NAME(BATCHLLM_ERROR_STOPPED);
        NAME(BATCHLLM_ERROR_INTERNAL);
        NAME(BATCHLLM_ERROR_UNSUPPORTED);
        NAME(BATCHLLM_ERROR_STATE);
        NAME(BATCHLLM_ERROR_MODEL_FORMAT);
        NAME(BATCHLLM_ERROR_TOKENIZER_FORMAT);
        NAME(BATCHLLM_ERROR_PLAN_FORMAT);
        NAME(BATCHLLM_ERROR_PLAN_MISMATCH);
        NAME(BATCHLLM_ERROR_JOURNAL_FORMAT);
        NAME(BATCHLLM_ERROR_JOURNAL_MISMATCH);
        NAME(BATCHLLM_ERROR_JOURNAL_EXISTS);
        NAME(BATCHLLM_ERROR_ADAPTER_FORMAT);
        NAME(BATCHLLM_ERROR_BACKEND_UNAVAILABLE);
        NAME(BATCHLLM_ERROR_DEVICE);
        NAME(BATCHLLM_ERROR_ROW_EMPTY);
        NAME(BATCHLLM_ERROR_ROW_TOO_LONG);
        NAME(BATCHLLM_ERROR_ROW_INVALID_UTF8);
        NAME(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN);
        NAME(BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
        NAME(BATCHLLM_ERROR_ROW_TEMPLATE);
        NAME(BATCHLLM_ERROR_ROW_TOO_LARGE);
        NAME(BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
        NAME(BATCHLLM_ERROR_ROW_CONSTRAINT);
        NAME(BATCHLLM_ERROR_ROW_NULL);
        NAME(BATCHLLM_ERROR_ROW_ADAPTER);
        NAME(BATCHLLM_ERROR_ROW_PICTURE);
    }
#undef NAME
    return "unknown status";
}

const char *batchllm_finish_name(int32_t reason) { return finish_name(reason); }

const char *batchllm_last_error(void) { return api::last_error(); }

void batchllm_engine_options_init(batchllm_engine_options *options, size_t struct_size) {
    const batchllm_engine_options defaults = default_engine_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

void batchllm_params_init(batchllm_params *params, size_t struct_size) {
    const batchllm_params defaults = default_params();
    api::init_struct(&defaults, sizeof defaults, params, struct_size);
}

void batchllm_plan_options_init(batchllm_plan_options *options, size_t struct_size) {
    batchllm_plan_options defaults{};
    defaults.enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    defaults.levels = 0;
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

} // extern "C"
