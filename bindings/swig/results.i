/* Results out: a handle, and its columns as views of the library's own memory. */
%ignore batchllm_poll;
%ignore batchllm_results_free;
%ignore batchllm_results::struct_size;
%ignore batchllm_results::reserved;
%immutable batchllm_results::count;

%nodefaultctor batchllm_results;
%extend batchllm_results {
    ~batchllm_results() { batchllm_results_free($self); }
}

/* batchllm_results_column_NAME(results): COUNT may use `r`, the results. */
%define %batchllm_results_column(TYPE, NAME, COUNT)
%ignore batchllm_results::NAME;
%inline %{
static batchllm_view_##TYPE batchllm_results_column_##NAME(const batchllm_results *results) {
    const batchllm_results *r = results;
    batchllm_view_##TYPE view = {r->NAME, COUNT};
    return view;
}
%}
%enddef
%batchllm_results_column(u64, tags, r->count)
%batchllm_results_column(i32, statuses, r->count)
%batchllm_results_column(i32, finish_reasons, r->count)
%batchllm_results_column(i32, samples, r->count)
%batchllm_results_column(i64, prompt_tokens, r->count)
%batchllm_results_column(i64, shared_tokens, r->count)
%batchllm_results_column(i64, token_offsets, r->count + 1)
%batchllm_results_column(i32, tokens, r->token_offsets[r->count])
%batchllm_results_column(i64, text_offsets, r->count + 1)
%batchllm_results_column(bytes, text, r->text_offsets[r->count])
%batchllm_results_column(i64, error_offsets, r->count + 1)
%batchllm_results_column(bytes, errors, r->error_offsets[r->count])
%batchllm_results_column(i64, logprob_offsets, r->count + 1)
%batchllm_results_column(f32, logprobs, r->logprob_offsets[r->count])
%batchllm_results_column(i64, top_offsets, r->logprob_offsets[r->count] + 1)
%batchllm_results_column(i32, top_tokens, r->top_offsets[r->logprob_offsets[r->count]])
%batchllm_results_column(f32, top_logprobs, r->top_offsets[r->logprob_offsets[r->count]])
%batchllm_results_column(i64, score_offsets, r->count + 1)
%batchllm_results_column(f64, scores, r->score_offsets[r->count])
%batchllm_results_column(i64, score_token_offsets, r->score_offsets[r->count] + 1)
%batchllm_results_column(f32, score_logprobs, r->score_token_offsets[r->score_offsets[r->count]])

%batchllm_blocking(batchllm_poll_results)
%newobject batchllm_poll_results;
%inline %{
static batchllm_results *batchllm_poll_results(batchllm_engine *engine, int64_t max_results,
                                               batchllm_status *FAILURE) {
    batchllm_results *results = NULL;
    *FAILURE = batchllm_poll(engine, max_results, &results);
    return results;
}
%}
