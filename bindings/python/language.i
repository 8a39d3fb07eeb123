/* What Python makes of the types of bindings/swig: see batchllm.i there. */
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

%include "text.i"
%include "column.i"
%include "errors.i"
%include "log.i"
%include "arrow.i"
