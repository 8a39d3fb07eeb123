/* The pictures of rows. */
%ignore batchllm_pictures_options;
%ignore batchllm_pictures_options_init;
%ignore batchllm_pictures_create;
%ignore batchllm_pictures_destroy;
%ignore batchllm_pictures_encode;
%ignore batchllm_picture_column;
%ignore batchllm_add_pictures;
%ignore batchllm_add_score_pictures;
%ignore batchllm_engine_options::pictures; /* batchllm_options_set_pictures */

%nodefaultctor batchllm_pictures;
struct batchllm_pictures {};
%extend batchllm_pictures {
    ~batchllm_pictures() { batchllm_pictures_destroy($self); }
}

%batchllm_blocking(batchllm_pictures_open)
%batchllm_blocking(batchllm_add_picture_columns)
%batchllm_blocking(batchllm_add_score_picture_columns)
%batchllm_blocking(batchllm_add_table_picture_rows)
%ignore batchllm_read_picture_column;
%newobject batchllm_pictures_open;
%inline %{
/* folders: their names, each ended by a zero. */
static batchllm_pictures *batchllm_pictures_open(const char *model_dir, batchllm_view_bytes folders,
                                                 batchllm_status *FAILURE) {
    int64_t count = 0;
    for (int64_t i = 0; i < folders.count; ++i) count += folders.data[i] == 0;
    const char **names = calloc((size_t)count + 1, sizeof *names);
    if (!names) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    const char *at = folders.data;
    for (int64_t i = 0; i < count; ++i) {
        names[i] = at;
        at += strlen(at) + 1;
    }
    batchllm_pictures_options options;
    batchllm_pictures_options_init(&options, sizeof options);
    options.model_dir = model_dir;
    options.folders = names;
    options.folder_count = count;
    batchllm_pictures *pictures = NULL;
    *FAILURE = batchllm_pictures_create(&options, &pictures);
    free(names);
    return pictures;
}

/* The options do not keep the pictures alive: the caller must, until the engine has been created. */
static void batchllm_options_set_pictures(batchllm_engine_options *options, const batchllm_pictures *pictures) {
    options->pictures = pictures;
}

/* Checks the pictures of n rows: those of row i are items [rows[i], rows[i + 1]) of bytes. kinds: one
 * BATCHLLM_PICTURE_ for each item. */
static batchllm_status batchllm_read_picture_column(int64_t n, batchllm_view_i64 picture_rows,
                                                    batchllm_view_bytes pictures,
                                                    batchllm_view_i64 picture_offsets,
                                                    batchllm_view_bytes kinds, batchllm_picture_column *column) {
    const int64_t items = batchllm_rows_of("pictures", picture_offsets, pictures.count);
    const int64_t rows = batchllm_rows_of("picture_rows", picture_rows, items);
    if (n < 0 || items < 0 || rows < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    if (rows != n || kinds.count != items)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "pictures of %lld rows for %lld rows, and %lld kinds for %lld",
                                   (long long)rows, (long long)n, (long long)kinds.count, (long long)items);
    const batchllm_picture_column given = {
        .struct_size = sizeof given,
        .rows = picture_rows.data,
        .bytes = (const uint8_t *)pictures.data,
        .offsets = picture_offsets.data,
        .kinds = (const uint8_t *)kinds.data,
    };
    *column = given;
    return BATCHLLM_OK;
}

/* Rows of texts (chat: conversations) with pictures. */
static batchllm_status
batchllm_add_picture_columns(batchllm_engine *engine, int32_t chat, batchllm_view_bytes text,
                             batchllm_view_i64 offsets, batchllm_view_i64 picture_rows,
                             batchllm_view_bytes pictures, batchllm_view_i64 picture_offsets,
                             batchllm_view_bytes kinds, batchllm_view_u64 tags,
                             const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("text", offsets, text.count));
    batchllm_picture_column column;
    const batchllm_status status =
        batchllm_read_picture_column(n, picture_rows, pictures, picture_offsets, kinds, &column);
    if (status != BATCHLLM_OK) return status;
    column.chat = chat;
    return batchllm_add_pictures(engine, n, text.data, offsets.data, &column, tags.data,
                                 params ? params->items : NULL, params ? params->count : 0);
}

/* The same, to be scored. continuation_rows: as many offsets as `offsets`, counting continuations. */
static batchllm_status
batchllm_add_score_picture_columns(batchllm_engine *engine, int32_t chat, batchllm_view_bytes text,
                                   batchllm_view_i64 offsets, batchllm_view_i64 picture_rows,
                                   batchllm_view_bytes pictures, batchllm_view_i64 picture_offsets,
                                   batchllm_view_bytes kinds, batchllm_view_bytes continuations,
                                   batchllm_view_i64 continuation_offsets,
                                   batchllm_view_i64 continuation_rows, batchllm_view_u64 tags,
                                   const batchllm_params_column *params) {
    const int64_t n = batchllm_check_tags(tags, batchllm_rows_of("text", offsets, text.count));
    batchllm_picture_column column;
    const batchllm_status status =
        batchllm_read_picture_column(n, picture_rows, pictures, picture_offsets, kinds, &column);
    if (status != BATCHLLM_OK) return status;
    column.chat = chat;
    if (!batchllm_continuations_match(n, continuations.count, continuation_offsets, continuation_rows))
        return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_score_pictures(engine, n, text.data, offsets.data, &column, continuations.data,
                                       continuation_offsets.data, continuation_rows.data, tags.data,
                                       params ? params->items : NULL);
}

static batchllm_status
batchllm_add_table_picture_rows(batchllm_engine *engine, const batchllm_table *table,
                                batchllm_view_i64 picture_rows, batchllm_view_bytes pictures,
                                batchllm_view_i64 picture_offsets, batchllm_view_bytes kinds,
                                batchllm_view_u64 tags, const batchllm_params_column *params) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    if (!prompts) return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "table is NULL");
    batchllm_picture_column column;
    const batchllm_status status =
        batchllm_read_picture_column(batchllm_check_tags(tags, prompts->count), picture_rows, pictures,
                                     picture_offsets, kinds, &column);
    if (status != BATCHLLM_OK) return status;
    return batchllm_add_table_pictures(engine, table, &column, tags.data, params ? params->items : NULL,
                                       params ? params->count : 0);
}
%}
