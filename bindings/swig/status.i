/* Versions, status numbers (constants, from the header) and their names. */
%ignore batchllm_last_error; /* part of the exception */

/* Calls from the language into this layer since it was loaded. */
%inline %{
static int64_t batchllm_calls(void) {
    return __atomic_load_n(&batchllm_calls_made, __ATOMIC_RELAXED);
}
%}
