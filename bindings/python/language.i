/* How the types of bindings/swig map to Python: see batchllm.i there. */
%nothread;
%define %batchllm_blocking(FUNCTION)
%thread FUNCTION;
%enddef

%begin %{
#define PY_SSIZE_T_CLEAN
%}

%{
#include <pthread.h>
#include <time.h>
%}

/* Rejects None, which would be dereferenced. (The library checks an engine, a plan and a tokenizer,
 * and parameters may be None.) */
%typemap(check) const batchllm_results *, const batchllm_journal *, const batchllm_ranges *,
                batchllm_progress *, const batchllm_column *,
                const batchllm_plan_groups *, const batchllm_frame *, batchllm_frame *,
                const batchllm_table *, batchllm_params_column *column, const char *field,
                batchllm_engine_options *options {
    if (!$1) SWIG_exception_fail(SWIG_TypeError, "in method '$symname': argument $argnum is None");
}

%include "text.i"
%include "column.i"
%include "errors.i"
%include "log.i"
%include "arrow.i"
%include "arrow_out.i"
%include "arrow_table.i"
