/* The C interface for other languages, with one file per concept. It uses only include/batchllm.h.
 *
 * Nothing here depends on a language. The folder of a language (bindings/python, bindings/java) is
 * on SWIG's include path and contains language.i, which defines
 *
 *     %batchllm_blocking(function)    a long call: release the language's lock around it
 *     typemaps, out:  batchllm_status           0: no result, else an exception
 *     typemaps, in:   batchllm_status *FAILURE  (numinputs=0) with argout: the same, for functions
 *                                               that return a handle
 *     typemaps, in:   batchllm_view_*           the caller's column, borrowed for the call; null is
 *                                               the empty column with data NULL
 *     typemaps, out:  batchllm_view_*           a column of the first argument, which it keeps alive
 *
 * and whatever only that language needs (a log function, Arrow's capsules). Always: no function is
 * called once per row; columns are never copied; every length is checked here before the library
 * reads through a pointer; every handle has a destructor.
 */
%module(package="batchllm") native

%include <stdint.i>

%{
#include <batchllm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
%}

/* Types that language.i has typemaps for. */
%{
typedef int32_t batchllm_status;
typedef struct { const char *data; int64_t count; } batchllm_view_bytes;
typedef struct { const int32_t *data; int64_t count; } batchllm_view_i32;
typedef struct { const int64_t *data; int64_t count; } batchllm_view_i64;
typedef struct { const uint64_t *data; int64_t count; } batchllm_view_u64;
typedef struct { const float *data; int64_t count; } batchllm_view_f32;
typedef struct { const double *data; int64_t count; } batchllm_view_f64;
%}

%include "failure.i"
%include "frame.i"
%include "language.i"
%include "status.i"
%include "options.i"
%include "params.i"
%include "engine.i"
%include "adapter.i"
%include "constraint.i"
%include "rows.i"
%include "pictures.i"
%include "results.i"
%include "plan.i"
%include "tokenizer.i"
%include "table.i"
%include "report.i"
%include "ranges.i"
%include "journal.i"

%include <batchllm.h>
