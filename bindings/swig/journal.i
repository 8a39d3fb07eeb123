/* Journals: what makes a job resumable. */
%ignore batchllm_journal_options;
%ignore batchllm_journal_options_init;
%ignore batchllm_journal_open;
%ignore batchllm_journal_destroy;
%ignore batchllm_journal_append_lines;
%ignore batchllm_journal_append_block;
%ignore batchllm_journal_read_block;
%ignore batchllm_journal_info::done;
%ignore batchllm_journal_info::done_bytes;

%batchllm_filled(batchllm_journal_info)
%nodefaultctor batchllm_journal;
struct batchllm_journal {};
%extend batchllm_journal {
    ~batchllm_journal() { batchllm_journal_destroy($self); }
}

%apply batchllm_status {
    int32_t batchllm_journal_get_info, int32_t batchllm_journal_sync, int32_t batchllm_journal_finish,
    int32_t batchllm_journal_use_pictures
}
%batchllm_blocking(batchllm_journal_open_from)
%batchllm_blocking(batchllm_journal_append_line_column)
%batchllm_blocking(batchllm_journal_append_block_of)
%batchllm_blocking(batchllm_journal_sync)
%batchllm_blocking(batchllm_journal_finish)
%batchllm_blocking(batchllm_journal_use_pictures)

%newobject batchllm_journal_open_from;
%inline %{
/* parts: the names and values of the job's parts in turn, each with a zero byte at its end. */
static batchllm_journal *batchllm_journal_open_from(const char *output, const char *input,
                                                    const char *model, int32_t kind,
                                                    int32_t existing, batchllm_view_bytes parts,
                                                    const char *earlier_state,
                                                    batchllm_status *FAILURE) {
    int64_t count = 0;
    for (int64_t i = 0; i < parts.count; ++i) count += parts.data[i] == 0;
    if (count % 2 || (parts.count && parts.data[parts.count - 1])) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "a zero byte in the name or the value of a part");
        return NULL;
    }
    const char **texts = calloc((size_t)count + 1, sizeof *texts); /* names, then values */
    if (!texts) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for a journal");
        return NULL;
    }
    const char *text = parts.data;
    for (int64_t i = 0; i < count; ++i) {
        texts[i % 2 * (count / 2) + i / 2] = text;
        text += strlen(text) + 1;
    }
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = output;
    options.input_path = input;
    options.model_dir = model;
    options.kind = kind;
    options.existing = existing;
    options.part_names = texts;
    options.part_values = texts + count / 2;
    options.part_count = count / 2;
    options.earlier_state = earlier_state;
    batchllm_journal *journal = NULL;
    *FAILURE = batchllm_journal_open(&options, &journal);
    free(texts);
    return journal;
}

/* failed: empty, or a byte for each row. */
static batchllm_status batchllm_journal_append_line_column(batchllm_journal *journal,
                                                           batchllm_view_i64 rows,
                                                           batchllm_view_bytes failed,
                                                           batchllm_view_bytes text,
                                                           batchllm_view_i64 offsets) {
    const int64_t n = batchllm_rows_of("text", offsets, text.count);
    if (n < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    if (rows.count != n || (failed.count && failed.count != n))
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%lld rows, %lld of them said to fail or not, for %lld lines",
                                   (long long)rows.count, (long long)failed.count, (long long)n);
    return batchllm_journal_append_lines(journal, n, rows.data,
                                         failed.count ? (const uint8_t *)failed.data : NULL,
                                         text.data, offsets.data);
}

static batchllm_status batchllm_journal_append_block_of(batchllm_journal *journal,
                                                        batchllm_view_i64 rows,
                                                        batchllm_view_bytes failed,
                                                        batchllm_view_bytes block) {
    if (rows.count < 0 || block.count < 0 || (failed.count && failed.count != rows.count))
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%lld rows, %lld of them said to fail or not",
                                   (long long)rows.count, (long long)failed.count);
    return batchllm_journal_append_block(journal, rows.count, rows.data,
                                         failed.count ? (const uint8_t *)failed.data : NULL,
                                         block.data, block.count);
}

/* Which rows earlier runs have done: a bit for each, the lowest of a byte first. */
static batchllm_view_bytes batchllm_journal_column_done(const batchllm_journal *journal) {
    batchllm_journal_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    batchllm_journal_get_info(journal, &info);
    const batchllm_view_bytes view = {(const char *)info.done, info.done_bytes};
    return view;
}

/* Of a block, the rows or the bytes: valid until the next block is read. */
static batchllm_view_i64 batchllm_journal_column_block_rows(batchllm_journal *journal,
                                                            int64_t block,
                                                            batchllm_status *FAILURE) {
    batchllm_view_i64 view = {NULL, 0};
    *FAILURE = batchllm_journal_read_block(journal, block, &view.data, &view.count, NULL, NULL);
    return view;
}
static batchllm_view_bytes batchllm_journal_column_block(batchllm_journal *journal, int64_t block,
                                                         batchllm_status *FAILURE) {
    batchllm_view_bytes view = {NULL, 0};
    *FAILURE = batchllm_journal_read_block(journal, block, NULL, NULL, (const void **)&view.data,
                                           &view.count);
    return view;
}
%}
