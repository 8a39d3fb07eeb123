/* Sampling parameters for one row, for all rows, or for each row: a column of batchllm_params that
 * is filled one field at a time, so that the parameters of n rows take one call per field. */
%ignore batchllm_params;
%ignore batchllm_params_init;

%{
typedef struct batchllm_params_column {
    int64_t count;
    batchllm_params *items; /* [count] */
    /* What the items point to. */
    int32_t *stop_tokens;
    char *stop_text, *bad_text;
    const char **stop_strings, **bad_words;
    int32_t *bias_tokens;
    float *bias_values;
} batchllm_params_column;

static batchllm_status batchllm_params_memory(void) {
    return batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for sampling parameters");
}

/* A copy of count items; not NULL if there are none. NULL: out of memory. */
static void *batchllm_params_copy(const void *items, int64_t count, size_t size) {
    void *copy = malloc((size_t)count * size + 1);
    if (copy && count) memcpy(copy, items, (size_t)count * size);
    return copy;
}

/* Checks offsets into `items` items, of one list for all rows or of one for each. */
static batchllm_status batchllm_params_lists(const batchllm_params_column *column, const char *name,
                                             batchllm_view_i64 offsets, int64_t items) {
    if (offsets.count != 2 && offsets.count != column->count + 1)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%s: %lld offsets for %lld rows", name,
                                   (long long)offsets.count, (long long)column->count);
    for (int64_t i = 0; i < offsets.count; ++i)
        if (offsets.data[i] < (i ? offsets.data[i - 1] : 0) || offsets.data[i] > items)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%s: offset %lld is out of order or beyond the items", name,
                                       (long long)i);
    return BATCHLLM_OK;
}

static int64_t batchllm_params_list_of(batchllm_view_i64 offsets, int64_t row) {
    return offsets.count == 2 ? 0 : row;
}
%}

%nodefaultctor batchllm_params_column;
struct batchllm_params_column {};
%extend batchllm_params_column {
    ~batchllm_params_column() {
        free($self->items);
        free($self->stop_tokens);
        free($self->stop_text);
        free($self->stop_strings);
        free($self->bad_text);
        free($self->bad_words);
        free($self->bias_tokens);
        free($self->bias_values);
        free($self);
    }
}

%newobject batchllm_params_column_create;
%inline %{
/* `count` rows with the library's defaults; 1: the same parameters for all rows. */
static batchllm_params_column *batchllm_params_column_create(int64_t count,
                                                             batchllm_status *FAILURE) {
    *FAILURE = BATCHLLM_OK;
    batchllm_params_column *column = count > 0 ? calloc(1, sizeof *column) : NULL;
    if (column) column->items = calloc((size_t)count, sizeof *column->items);
    if (!column || !column->items) {
        free(column);
        *FAILURE = batchllm_params_memory();
        return NULL;
    }
    column->count = count;
    for (int64_t i = 0; i < count; ++i)
        batchllm_params_init(&column->items[i], sizeof column->items[i]);
    return column;
}

/* Sets an integer field of batchllm_params by name; values: one for all rows or one for each.
 * "seed" takes the bits of a uint64. */
static batchllm_status batchllm_params_set_integers(batchllm_params_column *column,
                                                    const char *field, batchllm_view_i64 values) {
    static const struct { const char *name; size_t at; } fields[] = {
        {"max_tokens", offsetof(batchllm_params, max_tokens)},
        {"top_k", offsetof(batchllm_params, top_k)},
        {"samples", offsetof(batchllm_params, samples)},
        {"ignore_eos", offsetof(batchllm_params, ignore_eos)},
        {"logprobs", offsetof(batchllm_params, logprobs)},
        {"min_tokens", offsetof(batchllm_params, min_tokens)},
        {"prompt_logprobs", offsetof(batchllm_params, prompt_logprobs)},
        {"parse_special", offsetof(batchllm_params, parse_special)},
        {"add_special", offsetof(batchllm_params, add_special)},
        {"task", offsetof(batchllm_params, task)},
        {"pooling", offsetof(batchllm_params, pooling)},
        {"normalize", offsetof(batchllm_params, normalize)},
        {"dimensions", offsetof(batchllm_params, dimensions)}};
    size_t at = 0;
    const int seed = strcmp(field, "seed") == 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i)
        if (strcmp(field, fields[i].name) == 0) at = fields[i].at;
    if (!seed && at == 0)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%s is no whole-number sampling parameter", field);
    if (values.count != 1 && values.count != column->count)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %lld values for %lld rows",
                                   field, (long long)values.count, (long long)column->count);
    for (int64_t i = 0; i < column->count; ++i) {
        const int64_t value = values.data[values.count == 1 ? 0 : i];
        if (seed) {
            column->items[i].seed = (uint64_t)value;
        } else if (value < INT32_MIN || value > INT32_MAX) {
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%s: row %lld: %lld is out of range", field, (long long)i,
                                       (long long)value);
        } else {
            *(int32_t *)((char *)&column->items[i] + at) = (int32_t)value;
        }
    }
    return BATCHLLM_OK;
}

/* The same for a float field. */
static batchllm_status batchllm_params_set_numbers(batchllm_params_column *column,
                                                   const char *field, batchllm_view_f64 values) {
    static const struct { const char *name; size_t at; } fields[] = {
        {"temperature", offsetof(batchllm_params, temperature)},
        {"top_p", offsetof(batchllm_params, top_p)},
        {"min_p", offsetof(batchllm_params, min_p)},
        {"repetition_penalty", offsetof(batchllm_params, repetition_penalty)},
        {"presence_penalty", offsetof(batchllm_params, presence_penalty)},
        {"frequency_penalty", offsetof(batchllm_params, frequency_penalty)}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i)
        if (strcmp(field, fields[i].name) == 0) at = fields[i].at;
    if (at == 0)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%s is no fractional sampling parameter", field);
    if (values.count != 1 && values.count != column->count)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %lld values for %lld rows",
                                   field, (long long)values.count, (long long)column->count);
    for (int64_t i = 0; i < column->count; ++i)
        *(float *)((char *)&column->items[i] + at) =
            (float)values.data[values.count == 1 ? 0 : i];
    return BATCHLLM_OK;
}

/* offsets: [2] one list for all rows, or [count + 1]. All input is copied. */
static batchllm_status batchllm_params_set_stop_tokens(batchllm_params_column *column,
                                                       batchllm_view_i32 tokens,
                                                       batchllm_view_i64 offsets) {
    const batchllm_status status =
        batchllm_params_lists(column, "stop_tokens", offsets, tokens.count);
    if (status != BATCHLLM_OK) return status;
    int32_t *copy = batchllm_params_copy(tokens.data, tokens.count, sizeof *copy);
    if (!copy) return batchllm_params_memory();
    free(column->stop_tokens);
    column->stop_tokens = copy;
    for (int64_t i = 0; i < column->count; ++i) {
        const int64_t *range = offsets.data + batchllm_params_list_of(offsets, i);
        column->items[i].stop_tokens = copy + range[0];
        column->items[i].stop_token_count = range[1] - range[0];
    }
    return BATCHLLM_OK;
}

%}
%{
/* Texts, each followed by a zero byte, with a pointer to each. Frees what was there before. */
static batchllm_status batchllm_params_texts(const char *name, batchllm_view_bytes text,
                                             batchllm_view_i64 starts, char **kept_text,
                                             const char ***kept) {
    for (int64_t i = 0; i < starts.count; ++i)
        if (starts.data[i] < 0 || starts.data[i] >= text.count)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%s: string %lld begins outside the text", name,
                                       (long long)i);
    char *copy = batchllm_params_copy(text.data, text.count, 1);
    const char **strings = malloc((size_t)starts.count * sizeof *strings + 1);
    if (!copy || !strings) {
        free(copy);
        free(strings);
        return batchllm_params_memory();
    }
    copy[text.count] = 0;
    for (int64_t i = 0; i < starts.count; ++i) strings[i] = copy + starts.data[i];
    free(*kept_text);
    free(*kept);
    *kept_text = copy;
    *kept = strings;
    return BATCHLLM_OK;
}
%}
%inline %{
/* text: every stop string followed by a zero byte; starts: [strings], where each begins in text;
 * offsets count strings. */
static batchllm_status batchllm_params_set_stop_strings(batchllm_params_column *column,
                                                        batchllm_view_bytes text,
                                                        batchllm_view_i64 starts,
                                                        batchllm_view_i64 offsets) {
    batchllm_status status = batchllm_params_lists(column, "stop_strings", offsets, starts.count);
    if (status == BATCHLLM_OK)
        status = batchllm_params_texts("stop_strings", text, starts, &column->stop_text,
                                       &column->stop_strings);
    for (int64_t i = 0; status == BATCHLLM_OK && i < column->count; ++i) {
        const int64_t *range = offsets.data + batchllm_params_list_of(offsets, i);
        column->items[i].stop_strings = column->stop_strings + range[0];
        column->items[i].stop_string_count = range[1] - range[0];
    }
    return status;
}

/* The same for bad words. */
static batchllm_status batchllm_params_set_bad_words(batchllm_params_column *column,
                                                     batchllm_view_bytes text,
                                                     batchllm_view_i64 starts,
                                                     batchllm_view_i64 offsets) {
    batchllm_status status = batchllm_params_lists(column, "bad_words", offsets, starts.count);
    if (status == BATCHLLM_OK)
        status = batchllm_params_texts("bad_words", text, starts, &column->bad_text,
                                       &column->bad_words);
    for (int64_t i = 0; status == BATCHLLM_OK && i < column->count; ++i) {
        const int64_t *range = offsets.data + batchllm_params_list_of(offsets, i);
        column->items[i].bad_words = column->bad_words + range[0];
        column->items[i].bad_word_count = range[1] - range[0];
    }
    return status;
}

/* tokens and values: the same length; offsets as for stop tokens. */
static batchllm_status batchllm_params_set_biases(batchllm_params_column *column,
                                                  batchllm_view_i32 tokens, batchllm_view_f32 values,
                                                  batchllm_view_i64 offsets) {
    if (tokens.count != values.count)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "biases: %lld tokens and %lld values", (long long)tokens.count,
                                   (long long)values.count);
    const batchllm_status status = batchllm_params_lists(column, "biases", offsets, tokens.count);
    if (status != BATCHLLM_OK) return status;
    int32_t *token_copy = batchllm_params_copy(tokens.data, tokens.count, sizeof *token_copy);
    float *value_copy = batchllm_params_copy(values.data, values.count, sizeof *value_copy);
    if (!token_copy || !value_copy) {
        free(token_copy);
        free(value_copy);
        return batchllm_params_memory();
    }
    free(column->bias_tokens);
    free(column->bias_values);
    column->bias_tokens = token_copy;
    column->bias_values = value_copy;
    for (int64_t i = 0; i < column->count; ++i) {
        const int64_t *range = offsets.data + batchllm_params_list_of(offsets, i);
        column->items[i].bias_tokens = token_copy + range[0];
        column->items[i].bias_values = value_copy + range[0];
        column->items[i].bias_count = range[1] - range[0];
    }
    return BATCHLLM_OK;
}
%}
