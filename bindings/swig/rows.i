/* Adding rows, whole columns at a time. */
%ignore batchllm_add_prompt;
%ignore batchllm_add_tokens;
%ignore batchllm_add_text;
%ignore batchllm_add_chat;
%ignore batchllm_add_scores;
%ignore batchllm_add_score_tokens;
%ignore batchllm_add_score_text;

%batchllm_blocking(batchllm_add_token_column)
%batchllm_blocking(batchllm_add_text_column)
%batchllm_blocking(batchllm_add_chat_column)
%ignore batchllm_continuations_match;
%batchllm_blocking(batchllm_add_score_columns)
%batchllm_blocking(batchllm_add_score_text_columns)

%{
/* The number of rows of a column whose buffer has `items` items; -1, with the failure recorded, if
 * its last offset points beyond the buffer. The library checks that offsets never decrease. */
static int64_t batchllm_rows_of(const char *name, batchllm_view_i64 offsets, int64_t items) {
    if (offsets.count < 1) {
        batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                            "%s: no offsets: n rows have n + 1 of them", name);
        return -1;
    }
    const int64_t end = offsets.data[offsets.count - 1];
    if (end > items) {
        batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                            "%s: the last offset is %lld and the buffer holds %lld", name,
                            (long long)end, (long long)items);
        return -1;
    }
    return offsets.count - 1;
}

/* -1 unless there is no tag column, or one tag per row. */
static int64_t batchllm_check_tags(batchllm_view_u64 tags, int64_t rows) {
    if (rows < 0 || tags.data == NULL || tags.count == rows) return rows;
    batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%lld tags for %lld rows",
                        (long long)tags.count, (long long)rows);
    return -1;
}
%}

%inline %{
/* Fails if no row can run with these parameters, which all rows of a call have. */
static batchllm_status batchllm_check_params(batchllm_engine *engine,
                                             const batchllm_params_column *params) {
    if (!params) return BATCHLLM_OK;
    const batchllm_status status = batchllm_engine_check_params(engine, params->items);
    if (status != BATCHLLM_ERROR_ROW_INVALID_PARAMETER) return status;
    return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "no row can run: %s",
                               batchllm_last_error());
}

/* tags: empty, or one per row. params: NULL, one for all rows, or one per row. */
static batchllm_status batchllm_add_token_column(batchllm_engine *engine, batchllm_view_i32 tokens,
                                                 batchllm_view_i64 offsets, batchllm_view_u64 tags,
                                                 const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("tokens", offsets, tokens.count));
    if (n < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_tokens(engine, n, tokens.data, offsets.data, tags.data,
                               params ? params->items : NULL, params ? params->count : 0);
}

static batchllm_status batchllm_add_text_column(batchllm_engine *engine, batchllm_view_bytes text,
                                                batchllm_view_i64 offsets, batchllm_view_u64 tags,
                                                const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("text", offsets, text.count));
    if (n < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_text(engine, n, text.data, offsets.data, tags.data,
                             params ? params->items : NULL, params ? params->count : 0);
}

/* Rows are conversations as JSON. */
static batchllm_status batchllm_add_chat_column(batchllm_engine *engine,
                                                batchllm_view_bytes conversations,
                                                batchllm_view_i64 offsets, batchllm_view_u64 tags,
                                                const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(
        tags, batchllm_rows_of("conversations", offsets, conversations.count));
    if (n < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_chat(engine, n, conversations.data, offsets.data, tags.data,
                             params ? params->items : NULL, params ? params->count : 0);
}

/* Whether n rows have the continuations that these offsets count; if not, the error is set. */
static int batchllm_continuations_match(int64_t n, int64_t size, batchllm_view_i64 continuation_offsets,
                                        batchllm_view_i64 continuation_rows) {
    const int64_t scored = batchllm_rows_of("continuations", continuation_offsets, size);
    const int64_t rows = batchllm_rows_of("continuation_rows", continuation_rows, scored);
    if (n < 0 || scored < 0 || rows < 0) return 0;
    if (rows != n)
        batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "continuations of %lld rows for %lld rows",
                            (long long)rows, (long long)n);
    return rows == n;
}

/* continuation_rows: as many offsets as `offsets`, counting continuations. */
static batchllm_status batchllm_add_score_columns(batchllm_engine *engine, batchllm_view_i32 tokens,
                                                  batchllm_view_i64 offsets,
                                                  batchllm_view_i32 continuations,
                                                  batchllm_view_i64 continuation_offsets,
                                                  batchllm_view_i64 continuation_rows,
                                                  batchllm_view_u64 tags,
                                                  const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("tokens", offsets, tokens.count));
    if (!batchllm_continuations_match(n, continuations.count, continuation_offsets, continuation_rows))
        return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_score_tokens(engine, n, tokens.data, offsets.data, continuations.data,
                                     continuation_offsets.data, continuation_rows.data, tags.data,
                                     params ? params->items : NULL);
}

static batchllm_status
batchllm_add_score_text_columns(batchllm_engine *engine, batchllm_view_bytes text,
                                batchllm_view_i64 offsets, batchllm_view_bytes continuations,
                                batchllm_view_i64 continuation_offsets,
                                batchllm_view_i64 continuation_rows, batchllm_view_u64 tags,
                                const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("text", offsets, text.count));
    if (!batchllm_continuations_match(n, continuations.count, continuation_offsets, continuation_rows))
        return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_score_text(engine, n, text.data, offsets.data, continuations.data,
                                   continuation_offsets.data, continuation_rows.data, tags.data,
                                   params ? params->items : NULL);
}
%}
