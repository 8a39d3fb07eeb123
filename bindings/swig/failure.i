/* The text of a failure, whether from the library or from this layer's own checks, and the count of
 * calls from the language. */
%{
static __thread char batchllm_layer_error[256];

/* A failure of this layer's own checks: `return batchllm_layer_fail(status, text, ...)`. */
static batchllm_status batchllm_layer_fail(batchllm_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(batchllm_layer_error, sizeof batchllm_layer_error, format, arguments);
    va_end(arguments);
    return status;
}

/* Call this once per failure, on the thread where it occurred. */
static const char *batchllm_failure_text(char *copy, size_t size) {
    snprintf(copy, size, "%s",
             batchllm_layer_error[0] ? batchllm_layer_error : batchllm_last_error());
    batchllm_layer_error[0] = 0;
    return copy;
}

static int64_t batchllm_calls_made;
%}

/* Counts calls of every wrapped function, including getters and destructors. Tests check that the
 * count does not grow with the number of rows. */
%exception {
    __atomic_fetch_add(&batchllm_calls_made, 1, __ATOMIC_RELAXED);
    $action
}
