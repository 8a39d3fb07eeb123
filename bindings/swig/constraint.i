/* Constraints on the output of rows. */
%ignore batchllm_constraint_options;
%ignore batchllm_constraint_options_init;
%ignore batchllm_constraint_create;
%ignore batchllm_constraint_destroy;

%nodefaultctor batchllm_constraint;
struct batchllm_constraint {};
%extend batchllm_constraint {
    ~batchllm_constraint() { batchllm_constraint_destroy($self); }
}

%batchllm_blocking(batchllm_constraint_create_from)
%newobject batchllm_constraint_create_from;
%inline %{
/* text: for the kinds that have one. choices: every choice followed by a zero byte; starts:
 * [choices], where each one begins. */
static batchllm_constraint *
batchllm_constraint_create_from(batchllm_engine *engine, int32_t kind, batchllm_view_bytes text,
                                batchllm_view_bytes choices, batchllm_view_i64 starts,
                                batchllm_view_bytes start_after, int32_t whitespace,
                                int32_t member_order, int32_t numbers, int32_t loose,
                                batchllm_status *FAILURE) {
    batchllm_constraint *constraint = NULL;
    batchllm_constraint_options options;
    batchllm_constraint_options_init(&options, sizeof options);
    options.kind = kind;
    options.text = text.data ? text.data : "";
    options.text_bytes = text.count;
    options.whitespace = whitespace;
    options.member_order = member_order;
    options.numbers = numbers;
    options.loose = loose;
    char *marker = batchllm_params_copy(start_after.data, start_after.count, 1);
    char *copy = batchllm_params_copy(choices.data, choices.count, 1);
    const char **list = malloc((size_t)starts.count * sizeof *list + 1);
    *FAILURE = marker && copy && list ? BATCHLLM_OK : batchllm_params_memory();
    if (*FAILURE == BATCHLLM_OK) {
        marker[start_after.count] = 0;
        copy[choices.count] = 0;
        options.start_after = marker;
    }
    for (int64_t i = 0; *FAILURE == BATCHLLM_OK && i < starts.count; ++i) {
        if (starts.data[i] < 0 || starts.data[i] >= choices.count)
            *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                           "choices: text %lld begins outside the text",
                                           (long long)i);
        else
            list[i] = copy + starts.data[i];
    }
    options.choices = list;
    options.choice_count = starts.count;
    if (*FAILURE == BATCHLLM_OK)
        *FAILURE = batchllm_constraint_create(engine, &options, &constraint);
    free(marker);
    free(copy);
    free(list);
    return constraint;
}

/* Sets the constraint of these rows, or of all rows if none are given. The column does not keep the
 * constraint alive: the caller must, until the rows have been added. */
static batchllm_status batchllm_params_set_constraint(batchllm_params_column *column,
                                                      batchllm_view_i64 rows,
                                                      const batchllm_constraint *constraint) {
    for (int64_t i = 0; i < rows.count; ++i) {
        if (rows.data[i] < 0 || rows.data[i] >= column->count)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "constraint: no row %lld",
                                       (long long)rows.data[i]);
        column->items[rows.data[i]].constraint = constraint;
    }
    for (int64_t i = 0; rows.count == 0 && i < column->count; ++i)
        column->items[i].constraint = constraint;
    return BATCHLLM_OK;
}
%}
