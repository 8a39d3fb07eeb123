/* Tables: columns are collected into a frame, a frame and a template make a table, and its rows are
 * added to an engine. */
%ignore batchllm_table_column;
%ignore batchllm_table_options;
%ignore batchllm_table_options_init;
%ignore batchllm_table_create;
%ignore batchllm_table_destroy;
%ignore batchllm_table_prompts;
%ignore batchllm_table_info;
%ignore batchllm_table_get_info;
%ignore batchllm_add_table;
%ignore batchllm_add_table_pictures;
%ignore batchllm_template_split;
%ignore batchllm_template_order;

%nodefaultctor batchllm_frame;
struct batchllm_frame {};
%extend batchllm_frame {
    ~batchllm_frame() { batchllm_frame_free($self); }
}
%nodefaultctor batchllm_table;
struct batchllm_table {};
%extend batchllm_table {
    ~batchllm_table() { batchllm_table_destroy($self); }
}

%batchllm_blocking(batchllm_table_create_from)
%batchllm_blocking(batchllm_add_table_rows)
%batchllm_blocking(batchllm_add_null_rows)
%newobject batchllm_frame_create;
%newobject batchllm_table_create_from;
%newobject batchllm_template_parts;
%newobject batchllm_template_parts_in_order;
%inline %{
/* The parts of a template: a text, the name of a column, a text and so on. order: empty, or numbers of
 * its columns. */
static batchllm_column *batchllm_template_parts(batchllm_view_bytes prompt, batchllm_view_i32 order,
                                                batchllm_status *FAILURE) {
    batchllm_column *column = NULL;
    *FAILURE = batchllm_template_split(prompt.data ? prompt.data : "", prompt.count,
                                       order.count ? order.data : NULL, order.count, &column);
    return column;
}

/* The same in the order in which a sample of rows shares most: a number and a length for each cell. */
static batchllm_column *batchllm_template_parts_in_order(batchllm_view_bytes prompt, int64_t columns,
                                                         batchllm_view_u64 cells,
                                                         batchllm_view_i32 lengths,
                                                         batchllm_status *FAILURE) {
    if (columns < 1 || cells.count != lengths.count || cells.count % columns) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%lld cells and %lld lengths for %lld columns",
                                       (long long)cells.count, (long long)lengths.count,
                                       (long long)columns);
        return NULL;
    }
    int32_t *order = calloc((size_t)columns, sizeof *order);
    batchllm_column *column = NULL;
    *FAILURE = order ? batchllm_template_order(prompt.data ? prompt.data : "", prompt.count,
                                               cells.count / columns, cells.data, lengths.data, order,
                                               columns)
                     : batchllm_params_memory();
    if (*FAILURE == BATCHLLM_OK)
        *FAILURE = batchllm_template_split(prompt.data ? prompt.data : "", prompt.count, order,
                                           columns, &column);
    free(order);
    return column;
}

/* A frame with this many columns, without names or rows. */
static batchllm_frame *batchllm_frame_create(int64_t columns, batchllm_status *FAILURE) {
    batchllm_frame *frame = calloc(1, sizeof *frame);
    if (frame) frame->columns = calloc((size_t)(columns > 0 ? columns : 0) + 1, sizeof *frame->columns);
    if (!frame || !frame->columns) {
        free(frame);
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for a table");
        return NULL;
    }
    frame->count = columns > 0 ? columns : 0;
    *FAILURE = BATCHLLM_OK;
    return frame;
}

static batchllm_status batchllm_frame_name(batchllm_frame *frame, int64_t column,
                                           batchllm_view_bytes name) {
    if (column < 0 || column >= frame->count)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "no column %lld",
                                   (long long)column);
    if (name.count && memchr(name.data, 0, (size_t)name.count))
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "column %lld: a zero byte in its name", (long long)column);
    char *copy = batchllm_params_copy(name.data, name.count, 1);
    if (!copy) return batchllm_params_memory();
    copy[name.count] = 0;
    free(frame->columns[column].name);
    frame->columns[column].name = copy;
    return BATCHLLM_OK;
}

/* Appends cells to a column. valid: one byte per cell, 0 for a null. */
static batchllm_status batchllm_frame_extend(batchllm_frame *frame, int64_t column,
                                             batchllm_view_bytes text, batchllm_view_i64 offsets,
                                             batchllm_view_bytes valid) {
    const int64_t n = batchllm_rows_of("text", offsets, text.count);
    if (n < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    if (column < 0 || column >= frame->count || valid.count != n)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "column %lld: %lld validities for %lld rows",
                                   (long long)column, (long long)valid.count, (long long)n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t bytes = offsets.data[i + 1] - offsets.data[i];
        if (bytes < 0 || offsets.data[i] < 0 || offsets.data[i + 1] > text.count)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "offsets of row %lld fall, or end behind the text", (long long)i);
        const char *cell = bytes ? text.data + offsets.data[i] : "";
        if (!batchllm_frame_append(&frame->columns[column], valid.data[i] ? cell : NULL,
                                   valid.data[i] ? bytes : 0))
            return batchllm_params_memory();
    }
    return BATCHLLM_OK;
}

/* How many pictures each row has. */
static batchllm_status batchllm_frame_pictures(batchllm_frame *frame, batchllm_view_i32 counts) {
    int32_t *copy = malloc((size_t)counts.count * sizeof *copy + 1);
    if (!copy) return batchllm_params_memory();
    if (counts.count) memcpy(copy, counts.data, (size_t)counts.count * sizeof *copy);
    free(frame->pictures);
    frame->pictures = copy;
    frame->picture_rows = counts.count;
    return BATCHLLM_OK;
}

/* system: empty for none. */
static batchllm_table *batchllm_table_create_from(const batchllm_frame *frame,
                                                  batchllm_view_bytes prompt, int32_t fields,
                                                  int32_t chat, batchllm_view_bytes system,
                                                  batchllm_status *FAILURE) {
    batchllm_table *table = NULL;
    if (system.count && memchr(system.data, 0, (size_t)system.count)) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "system: a zero byte in it");
        return NULL;
    }
    batchllm_table_options options;
    batchllm_table_options_init(&options, sizeof options);
    options.template_text = prompt.data ? prompt.data : "";
    options.template_bytes = prompt.count;
    options.fields = fields;
    options.chat = chat;
    static const int64_t zero = 0;
    char *message = batchllm_params_copy(system.data, system.count, 1);
    batchllm_table_column *columns = calloc((size_t)frame->count + 1, sizeof *columns);
    *FAILURE = message && columns ? BATCHLLM_OK : batchllm_params_memory();
    if (*FAILURE == BATCHLLM_OK) {
        message[system.count] = 0;
        options.system = message;
    }
    const int64_t rows = frame->count ? frame->columns[0].rows : 0;
    options.pictures = frame->pictures;
    if (*FAILURE == BATCHLLM_OK && frame->pictures && frame->count && frame->picture_rows != rows)
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "pictures of %lld rows for a table of %lld rows",
                                       (long long)frame->picture_rows, (long long)rows);
    for (int64_t i = 0; *FAILURE == BATCHLLM_OK && i < frame->count; ++i) {
        const batchllm_frame_column *from = &frame->columns[i];
        if (from->rows != rows)
            *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                           "column %lld has %lld rows and the first one %lld",
                                           (long long)i, (long long)from->rows, (long long)rows);
        columns[i].struct_size = sizeof columns[i];
        columns[i].name = from->name ? from->name : "";
        columns[i].text = from->text;
        columns[i].offsets = from->offsets ? from->offsets : &zero;
        columns[i].validity = from->validity;
    }
    if (*FAILURE == BATCHLLM_OK)
        *FAILURE = batchllm_table_create(rows, columns, frame->count, &options, &table);
    free(message);
    free(columns);
    return table;
}

static batchllm_status batchllm_add_table_rows(batchllm_engine *engine, const batchllm_table *table,
                                               batchllm_view_u64 tags,
                                               const batchllm_params_column *params) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    if (!prompts) return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "table is NULL");
    if (batchllm_check_tags(tags, prompts->count) < 0) return BATCHLLM_ERROR_INVALID_ARGUMENT;
    return batchllm_add_table(engine, table, tags.data, params ? params->items : NULL,
                              params ? params->count : 0);
}

/* Rows without a prompt, one for each tag: each gets ROW_NULL. */
static batchllm_status batchllm_add_null_rows(batchllm_engine *engine, batchllm_view_u64 tags,
                                              const batchllm_params_column *params) {
    int64_t *offsets = calloc((size_t)tags.count + 1, sizeof *offsets);
    uint8_t *validity = calloc((size_t)tags.count / 8 + 1, 1);
    batchllm_table *table = NULL;
    batchllm_status status = BATCHLLM_OK;
    if (offsets && validity) {
        const batchllm_table_column column = {
            .struct_size = sizeof column, .name = "prompt", .text = "", .offsets = offsets, .validity = validity};
        batchllm_table_options options;
        batchllm_table_options_init(&options, sizeof options);
        options.template_text = "{prompt}";
        options.template_bytes = -1;
        status = batchllm_table_create(tags.count, &column, 1, &options, &table);
        if (status == BATCHLLM_OK)
            status = batchllm_add_table(engine, table, tags.data, params ? params->items : NULL,
                                        params ? params->count : 0);
    } else {
        status = batchllm_params_memory();
    }
    batchllm_table_destroy(table);
    free(offsets);
    free(validity);
    return status;
}

static int64_t batchllm_table_rows(const batchllm_table *table) {
    return table ? batchllm_table_prompts(table)->count : 0;
}
static batchllm_view_bytes batchllm_table_column_text(const batchllm_table *table) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    const batchllm_view_bytes view = {prompts->text, prompts->offsets[prompts->count]};
    return view;
}
static batchllm_view_i64 batchllm_table_column_offsets(const batchllm_table *table) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    const batchllm_view_i64 view = {prompts->offsets, prompts->count + 1};
    return view;
}
static batchllm_view_i32 batchllm_table_column_statuses(const batchllm_table *table) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    const batchllm_view_i32 view = {prompts->statuses, prompts->count};
    return view;
}
%}
%{
static batchllm_table_info batchllm_table_info_of(const batchllm_table *table) {
    batchllm_table_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    batchllm_table_get_info(table, &info);
    return info;
}
%}
%inline %{
static batchllm_view_i64 batchllm_table_column_row_order(const batchllm_table *table) {
    const batchllm_table_info info = batchllm_table_info_of(table);
    const batchllm_view_i64 view = {info.row_order, info.rows};
    return view;
}
/* [rows x fields] */
static batchllm_view_i32 batchllm_table_column_field_orders(const batchllm_table *table) {
    const batchllm_table_info info = batchllm_table_info_of(table);
    const batchllm_view_i32 view = {info.field_orders, info.rows * info.fields};
    return view;
}
/* which: 0: as given, 1: rows sorted, 2: as planned. */
static double batchllm_table_hit_rate(const batchllm_table *table, int32_t which) {
    const batchllm_table_info info = batchllm_table_info_of(table);
    return which == 0 ? info.given_hit_rate : which == 1 ? info.sorted_hit_rate : info.hit_rate;
}
%}
