/* The tokenizer, and the columns that it returns. */
%ignore batchllm_tokenizer_create;
%ignore batchllm_tokenizer_destroy;
%ignore batchllm_tokenizer_encode;
%ignore batchllm_tokenizer_decode;
%ignore batchllm_tokenizer_apply_chat_template;
%ignore batchllm_column_free;
%ignore batchllm_column::struct_size;
%ignore batchllm_column::reserved;
%ignore batchllm_column::offsets;
%ignore batchllm_column::tokens;
%ignore batchllm_column::text;
%ignore batchllm_column::statuses;
%ignore batchllm_column::error_offsets;
%ignore batchllm_column::errors;
%immutable batchllm_column::count;

%nodefaultctor batchllm_tokenizer;
struct batchllm_tokenizer {};
%extend batchllm_tokenizer {
    ~batchllm_tokenizer() { batchllm_tokenizer_destroy($self); }
}
%nodefaultctor batchllm_column;
%extend batchllm_column {
    ~batchllm_column() { batchllm_column_free($self); }
}

%batchllm_blocking(batchllm_tokenizer_create_from)
%batchllm_blocking(batchllm_encode_column)
%batchllm_blocking(batchllm_decode_column)
%batchllm_blocking(batchllm_chat_column)
%newobject batchllm_chat_column;
%newobject batchllm_tokenizer_create_from;
%newobject batchllm_encode_column;
%newobject batchllm_decode_column;
%inline %{
static batchllm_tokenizer *batchllm_tokenizer_create_from(const char *path,
                                                          batchllm_status *FAILURE) {
    batchllm_tokenizer *tokenizer = NULL;
    *FAILURE = batchllm_tokenizer_create(path, &tokenizer);
    return tokenizer;
}

static batchllm_column *batchllm_encode_column(const batchllm_tokenizer *tokenizer,
                                               batchllm_view_bytes text, batchllm_view_i64 offsets,
                                               uint32_t flags, int32_t threads,
                                               batchllm_status *FAILURE) {
    batchllm_column *column = NULL;
    const int64_t n = batchllm_rows_of("text", offsets, text.count);
    *FAILURE = n < 0 ? BATCHLLM_ERROR_INVALID_ARGUMENT
                     : batchllm_tokenizer_encode(tokenizer, n, text.data, offsets.data, flags,
                                                 threads, &column);
    return column;
}

static batchllm_column *batchllm_decode_column(const batchllm_tokenizer *tokenizer,
                                               batchllm_view_i32 tokens, batchllm_view_i64 offsets,
                                               uint32_t flags, int32_t threads,
                                               batchllm_status *FAILURE) {
    batchllm_column *column = NULL;
    const int64_t n = batchllm_rows_of("tokens", offsets, tokens.count);
    *FAILURE = n < 0 ? BATCHLLM_ERROR_INVALID_ARGUMENT
                     : batchllm_tokenizer_decode(tokenizer, n, tokens.data, offsets.data, flags,
                                                 threads, &column);
    return column;
}

/* Conversations, as in batchllm_add_chat_column, to text. */
static batchllm_column *batchllm_chat_column(const batchllm_tokenizer *tokenizer,
                                             batchllm_view_bytes conversations,
                                             batchllm_view_i64 offsets, uint32_t flags,
                                             int32_t threads, batchllm_status *FAILURE) {
    batchllm_column *column = NULL;
    const int64_t n = batchllm_rows_of("conversations", offsets, conversations.count);
    *FAILURE = n < 0 ? BATCHLLM_ERROR_INVALID_ARGUMENT
                     : batchllm_tokenizer_apply_chat_template(tokenizer, n, conversations.data,
                                                              offsets.data, flags, threads,
                                                              &column);
    return column;
}

static batchllm_view_i64 batchllm_column_column_offsets(const batchllm_column *column) {
    const batchllm_view_i64 view = {column->offsets, column->count + 1};
    return view;
}
static batchllm_view_i32 batchllm_column_column_tokens(const batchllm_column *column) {
    const batchllm_view_i32 view = {column->tokens,
                                    column->tokens ? column->offsets[column->count] : 0};
    return view;
}
static batchllm_view_bytes batchllm_column_column_text(const batchllm_column *column) {
    const batchllm_view_bytes view = {column->text,
                                      column->text ? column->offsets[column->count] : 0};
    return view;
}
static batchllm_view_i32 batchllm_column_column_statuses(const batchllm_column *column) {
    const batchllm_view_i32 view = {column->statuses, column->count};
    return view;
}
static batchllm_view_i64 batchllm_column_column_error_offsets(const batchllm_column *column) {
    const batchllm_view_i64 view = {column->error_offsets, column->count + 1};
    return view;
}
static batchllm_view_bytes batchllm_column_column_errors(const batchllm_column *column) {
    const batchllm_view_bytes view = {column->errors, column->error_offsets[column->count]};
    return view;
}
%}
