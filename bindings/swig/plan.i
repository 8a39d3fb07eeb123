/* Plans, and their groups as columns. */
%ignore batchllm_plan_create;
%ignore batchllm_plan_destroy;
%ignore batchllm_plan_load;
%ignore batchllm_plan_group;
%ignore batchllm_plan_advice;
%ignore batchllm_plan_get_advice;
%ignore batchllm_plan_group_info;
%ignore batchllm_engine_get_plan;
%ignore batchllm_predict_options;
%ignore batchllm_predict_options_init;
%ignore batchllm_plan_predict;
%ignore batchllm_prediction_add;

%nodefaultctor batchllm_plan;
struct batchllm_plan {};
%extend batchllm_plan {
    ~batchllm_plan() { batchllm_plan_destroy($self); }
}

%apply batchllm_status { int32_t batchllm_plan_save, int32_t batchllm_plan_get_stats }
%batchllm_blocking(batchllm_plan_create_from)
%batchllm_blocking(batchllm_plan_load_from)
%batchllm_blocking(batchllm_plan_save)
%batchllm_blocking(batchllm_engine_take_plan)
%batchllm_blocking(batchllm_plan_groups_of)
%batchllm_blocking(batchllm_plan_predict_rows)

%newobject batchllm_plan_create_from;
%newobject batchllm_plan_load_from;
%newobject batchllm_engine_take_plan;
%inline %{
/* The salts of the rows' adapters, to be freed; NULL for no column, or if memory is out. */
static uint64_t *batchllm_salts_of(const batchllm_params_column *adapters, int64_t rows, batchllm_status *FAILURE) {
    if (!adapters) return NULL;
    if (adapters->count != rows) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%lld adapters for %lld rows",
                                       (long long)adapters->count, (long long)rows);
        return NULL;
    }
    uint64_t *salts = calloc((size_t)rows + 1, sizeof *salts);
    if (!salts) *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int64_t i = 0; salts && *FAILURE == BATCHLLM_OK && i < rows; ++i) {
        batchllm_adapter_info info = {0};
        info.struct_size = sizeof info;
        if (adapters->items[i].adapter) *FAILURE = batchllm_adapter_get_info(adapters->items[i].adapter, &info);
        salts[i] = info.salt;
    }
    return salts;
}

/* decode_lengths: empty, or one per row. adapters: NULL, or parameters of which only the adapters count.
 * options and previous may be NULL. */
static batchllm_plan *batchllm_plan_create_from(batchllm_view_i32 tokens, batchllm_view_i64 offsets,
                                                batchllm_view_i32 decode_lengths,
                                                const batchllm_params_column *adapters,
                                                const batchllm_plan_options *options,
                                                const batchllm_plan *previous,
                                                batchllm_status *FAILURE) {
    batchllm_plan *plan = NULL;
    batchllm_plan_options own;
    batchllm_plan_options_init(&own, sizeof own);
    if (options) own = *options;
    const int64_t n = batchllm_rows_of("tokens", offsets, tokens.count);
    if (n < 0) {
        *FAILURE = BATCHLLM_ERROR_INVALID_ARGUMENT;
    } else if (decode_lengths.data != NULL && decode_lengths.count != n) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%lld decode_lengths for %lld rows",
                                       (long long)decode_lengths.count, (long long)n);
    } else {
        *FAILURE = BATCHLLM_OK;
        uint64_t *salts = batchllm_salts_of(adapters, n, FAILURE);
        own.salts = salts;
        if (*FAILURE == BATCHLLM_OK)
            *FAILURE = batchllm_plan_create(n, tokens.data, offsets.data, decode_lengths.data, &own, previous, &plan);
        free(salts);
    }
    return plan;
}

static batchllm_plan *batchllm_plan_load_from(const char *path, batchllm_status *FAILURE) {
    batchllm_plan *plan = NULL;
    *FAILURE = batchllm_plan_load(path, &plan);
    return plan;
}

/* "" if the plan shares all that it can. */
static const char *batchllm_plan_advice_text(const batchllm_plan *plan, batchllm_status *FAILURE) {
    batchllm_plan_advice advice;
    memset(&advice, 0, sizeof advice);
    advice.struct_size = sizeof advice;
    *FAILURE = batchllm_plan_get_advice(plan, &advice);
    return advice.text;
}

/* tokens and offsets: the plan's rows; both None for a plan that contains them. adapters: as the plan was
 * made with. device: "" means NULL. */
static batchllm_status batchllm_plan_predict_rows(const batchllm_plan *plan, batchllm_view_i32 tokens,
                                                  batchllm_view_i64 offsets,
                                                  int32_t max_tokens, int32_t samples,
                                                  const batchllm_params_column *adapters,
                                                  const batchllm_engine_options *engine_options,
                                                  const char *device, int64_t expected_tokens,
                                                  batchllm_prediction *out) {
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    const batchllm_status status = batchllm_plan_get_stats(plan, &stats);
    if (status != BATCHLLM_OK) return status;
    if (offsets.data != NULL && batchllm_rows_of("tokens", offsets, tokens.count) != stats.rows)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "the plan has %lld rows: give those",
                                   (long long)stats.rows);
    batchllm_predict_options options;
    batchllm_predict_options_init(&options, sizeof options);
    options.device = device;
    options.expected_tokens = expected_tokens;
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = max_tokens;
    params.samples = samples;
    if (!adapters || adapters->count == 0)
        return batchllm_plan_predict(plan, tokens.data, offsets.data, &params, 1, engine_options, &options, out);
    batchllm_params *each = malloc((size_t)adapters->count * sizeof *each);
    if (!each) return batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    for (int64_t i = 0; i < adapters->count; ++i) {
        each[i] = params;
        each[i].adapter = adapters->items[i].adapter;
    }
    const batchllm_status done =
        batchllm_plan_predict(plan, tokens.data, offsets.data, each, adapters->count, engine_options, &options, out);
    free(each);
    return done;
}

static batchllm_plan *batchllm_engine_take_plan(const batchllm_engine *engine,
                                                batchllm_status *FAILURE) {
    batchllm_plan *plan = NULL;
    *FAILURE = batchllm_engine_get_plan(engine, &plan);
    return plan;
}
%}

/* All groups of a plan, in scheduling order: lengths, and rows with offsets. */
%{
typedef struct batchllm_plan_groups {
    int64_t count;
    int64_t *prefix_tokens; /* [count] */
    int64_t *common_prefix_tokens;   /* [count] */
    int64_t *row_offsets;   /* [count + 1] */
    int64_t *rows;          /* [row_offsets[count]] */
} batchllm_plan_groups;

static void batchllm_plan_groups_free(batchllm_plan_groups *groups) {
    if (!groups) return;
    free(groups->prefix_tokens);
    free(groups->common_prefix_tokens);
    free(groups->row_offsets);
    free(groups->rows);
    free(groups);
}

static batchllm_status batchllm_plan_groups_fill(const batchllm_plan *plan,
                                                 batchllm_plan_groups *groups) {
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    batchllm_status status = batchllm_plan_get_stats(plan, &stats);
    if (status != BATCHLLM_OK) return status;
    const size_t size = sizeof(int64_t);
    const int64_t count = batchllm_plan_group_count(plan);
    groups->count = count;
    groups->prefix_tokens = malloc((size_t)count * size + 1);
    groups->common_prefix_tokens = malloc((size_t)count * size + 1);
    groups->row_offsets = calloc((size_t)count + 1, size);
    groups->rows = malloc((size_t)stats.rows * size + 1);
    if (!groups->prefix_tokens || !groups->common_prefix_tokens || !groups->row_offsets || !groups->rows)
        return batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for the plan's groups");
    for (int64_t i = 0; i < count; ++i) {
        batchllm_plan_group_info group;
        group.struct_size = sizeof group;
        status = batchllm_plan_group(plan, i, &group);
        if (status != BATCHLLM_OK) return status;
        const int64_t at = groups->row_offsets[i];
        if (at + group.row_count > stats.rows)
            return batchllm_layer_fail(BATCHLLM_ERROR_INTERNAL, "groups hold more rows than the plan");
        groups->prefix_tokens[i] = group.prefix_tokens;
        groups->common_prefix_tokens[i] = group.common_prefix_tokens;
        memcpy(groups->rows + at, group.rows, (size_t)group.row_count * size);
        groups->row_offsets[i + 1] = at + group.row_count;
    }
    return BATCHLLM_OK;
}
%}
%nodefaultctor batchllm_plan_groups;
struct batchllm_plan_groups {};
%extend batchllm_plan_groups {
    ~batchllm_plan_groups() { batchllm_plan_groups_free($self); }
}

%newobject batchllm_plan_groups_of;
%inline %{
static batchllm_plan_groups *batchllm_plan_groups_of(const batchllm_plan *plan,
                                                     batchllm_status *FAILURE) {
    batchllm_plan_groups *groups = calloc(1, sizeof *groups);
    *FAILURE = groups ? batchllm_plan_groups_fill(plan, groups)
                      : batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory");
    if (*FAILURE == BATCHLLM_OK) return groups;
    batchllm_plan_groups_free(groups);
    return NULL;
}
static batchllm_view_i64 batchllm_plan_groups_column_prefix_tokens(const batchllm_plan_groups *groups) {
    const batchllm_view_i64 view = {groups->prefix_tokens, groups->count};
    return view;
}
static batchllm_view_i64 batchllm_plan_groups_column_common_prefix_tokens(const batchllm_plan_groups *groups) {
    const batchllm_view_i64 view = {groups->common_prefix_tokens, groups->count};
    return view;
}
static batchllm_view_i64 batchllm_plan_groups_column_row_offsets(const batchllm_plan_groups *groups) {
    const batchllm_view_i64 view = {groups->row_offsets, groups->count + 1};
    return view;
}
static batchllm_view_i64 batchllm_plan_groups_column_rows(const batchllm_plan_groups *groups) {
    const batchllm_view_i64 view = {groups->rows, groups->row_offsets[groups->count]};
    return view;
}
%}
