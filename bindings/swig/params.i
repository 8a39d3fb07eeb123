/* Sampling parameters for one row, for all rows, or for each row: a column of batchllm_params that
 * is filled one field at a time, so that the parameters of n rows take one call per field. */
%ignore batchllm_params;
%ignore batchllm_params_init;

%{
#include <stddef.h>

/* The fields, from the one table of them; the kinds of parameters by how they are set here. */
enum { batchllm_set_integer, batchllm_set_seed, batchllm_set_number, batchllm_set_tokens, batchllm_set_texts,
       batchllm_set_biases };
#define batchllm_set_as_Whole batchllm_set_integer
#define batchllm_set_as_Number batchllm_set_number
#define batchllm_set_as_Flag batchllm_set_integer
#define batchllm_set_as_Choice batchllm_set_integer
#define batchllm_set_as_Seed batchllm_set_seed
#define batchllm_set_as_Likeliest batchllm_set_integer
#define batchllm_set_as_TaskName batchllm_set_integer
#define batchllm_set_as_PoolingName batchllm_set_integer
#define batchllm_set_as_Tokens batchllm_set_tokens
#define batchllm_set_as_Texts batchllm_set_texts
#define batchllm_set_as_Biases batchllm_set_biases

static const struct {
    const char *name;
    int set_as;
    size_t at, count_at; /* of a list: its items, and how many there are */
} batchllm_params_fields[] = {
#define PARAMETER(name, kind, ...) {#name, batchllm_set_as_##kind, offsetof(batchllm_params, name), 0},
#define LIST(name, kind, items, count, ...) \
    {#name, batchllm_set_as_##kind, offsetof(batchllm_params, items), offsetof(batchllm_params, count)},
#include "parameters/row_parameters.inc"
};
enum { batchllm_params_field_count = sizeof batchllm_params_fields / sizeof *batchllm_params_fields };

typedef struct batchllm_params_column {
    int64_t count;
    batchllm_params *items; /* [count] */
    void *kept[batchllm_params_field_count][2]; /* what they point to, by field */
} batchllm_params_column;

static batchllm_status batchllm_params_memory(void) {
    return batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for sampling parameters");
}

/* The field of this name that is set in this way. */
static batchllm_status batchllm_params_find(const char *name, int set_as, const char *what, int *field) {
    for (*field = 0; *field < batchllm_params_field_count; ++*field)
        if (strcmp(name, batchllm_params_fields[*field].name) == 0 && batchllm_params_fields[*field].set_as == set_as)
            return BATCHLLM_OK;
    return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is no %s of a row", name, what);
}

static void *batchllm_params_at(const batchllm_params_column *column, int64_t row, size_t at) {
    return (char *)&column->items[row] + at;
}

static batchllm_status batchllm_params_values(const batchllm_params_column *column, const char *field, int64_t values) {
    if (values == 1 || values == column->count) return BATCHLLM_OK;
    return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %lld values for %lld rows", field,
                               (long long)values, (long long)column->count);
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

/* A copy of count items; not NULL if there are none. NULL: out of memory. */
static void *batchllm_params_copy(const void *items, int64_t count, size_t size) {
    void *copy = malloc((size_t)count * size + 1);
    if (copy && count) memcpy(copy, items, (size_t)count * size);
    return copy;
}

/* Keeps both for the field, instead of what was kept for it before. Either may be NULL for want of memory, if
 * second_wanted for the second: then neither is kept. */
static batchllm_status batchllm_params_keep(batchllm_params_column *column, int field, void *first, void *second,
                                            int second_wanted) {
    if (!first || (second_wanted && !second)) {
        free(first);
        free(second);
        return batchllm_params_memory();
    }
    free(column->kept[field][0]);
    free(column->kept[field][1]);
    column->kept[field][0] = first;
    column->kept[field][1] = second;
    return BATCHLLM_OK;
}

/* Points each row at its items, of this size. */
static void batchllm_params_point(batchllm_params_column *column, int field, const void *items, size_t size,
                                  batchllm_view_i64 offsets) {
    for (int64_t i = 0; i < column->count; ++i) {
        const int64_t *range = offsets.data + batchllm_params_list_of(offsets, i);
        const char *first = (const char *)items + (size_t)range[0] * size;
        memcpy(batchllm_params_at(column, i, batchllm_params_fields[field].at), &first, sizeof first);
        *(int64_t *)batchllm_params_at(column, i, batchllm_params_fields[field].count_at) = range[1] - range[0];
    }
}
%}

%nodefaultctor batchllm_params_column;
struct batchllm_params_column {};
%extend batchllm_params_column {
    ~batchllm_params_column() {
        for (int field = 0; field < batchllm_params_field_count; ++field) {
            free($self->kept[field][0]);
            free($self->kept[field][1]);
        }
        free($self->items);
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
    const int seed = strcmp(field, "seed") == 0;
    int found;
    batchllm_status status = batchllm_params_find(field, seed ? batchllm_set_seed : batchllm_set_integer,
                                                  "whole-number parameter", &found);
    if (status == BATCHLLM_OK) status = batchllm_params_values(column, field, values.count);
    for (int64_t i = 0; status == BATCHLLM_OK && i < column->count; ++i) {
        const int64_t value = values.data[values.count == 1 ? 0 : i];
        void *at = batchllm_params_at(column, i, batchllm_params_fields[found].at);
        if (seed) {
            *(uint64_t *)at = (uint64_t)value;
        } else if (value < INT32_MIN || value > INT32_MAX) {
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%s: row %lld: %lld is out of range", field, (long long)i,
                                       (long long)value);
        } else {
            *(int32_t *)at = (int32_t)value;
        }
    }
    return status;
}

/* The same for a float field. */
static batchllm_status batchllm_params_set_numbers(batchllm_params_column *column,
                                                   const char *field, batchllm_view_f64 values) {
    int found;
    batchllm_status status = batchllm_params_find(field, batchllm_set_number, "fractional parameter", &found);
    if (status == BATCHLLM_OK) status = batchllm_params_values(column, field, values.count);
    for (int64_t i = 0; status == BATCHLLM_OK && i < column->count; ++i)
        *(float *)batchllm_params_at(column, i, batchllm_params_fields[found].at) =
            (float)values.data[values.count == 1 ? 0 : i];
    return status;
}

/* The same for a list of tokens. offsets: [2] one list for all rows, or [count + 1]. All input is copied. */
static batchllm_status batchllm_params_set_tokens(batchllm_params_column *column, const char *field,
                                                  batchllm_view_i32 tokens,
                                                  batchllm_view_i64 offsets) {
    int found;
    batchllm_status status = batchllm_params_find(field, batchllm_set_tokens, "list of tokens", &found);
    if (status == BATCHLLM_OK) status = batchllm_params_lists(column, field, offsets, tokens.count);
    if (status != BATCHLLM_OK) return status;
    int32_t *copy = batchllm_params_copy(tokens.data, tokens.count, sizeof *copy);
    status = batchllm_params_keep(column, found, copy, NULL, 0);
    if (status == BATCHLLM_OK) batchllm_params_point(column, found, copy, sizeof *copy, offsets);
    return status;
}

/* The same for a list of texts. text: each followed by a zero byte; starts: [texts], where each begins in it;
 * offsets count texts. */
static batchllm_status batchllm_params_set_texts(batchllm_params_column *column, const char *field,
                                                 batchllm_view_bytes text, batchllm_view_i64 starts,
                                                 batchllm_view_i64 offsets) {
    int found;
    batchllm_status status = batchllm_params_find(field, batchllm_set_texts, "list of texts", &found);
    if (status == BATCHLLM_OK) status = batchllm_params_lists(column, field, offsets, starts.count);
    if (status != BATCHLLM_OK) return status;
    for (int64_t i = 0; i < starts.count; ++i)
        if (starts.data[i] < 0 || starts.data[i] >= text.count)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%s: string %lld begins outside the text", field,
                                       (long long)i);
    char *copy = batchllm_params_copy(text.data, text.count, 1);
    const char **texts = malloc((size_t)starts.count * sizeof *texts + 1);
    status = batchllm_params_keep(column, found, copy, texts, 1);
    if (status != BATCHLLM_OK) return status;
    copy[text.count] = 0;
    for (int64_t i = 0; i < starts.count; ++i) texts[i] = copy + starts.data[i];
    batchllm_params_point(column, found, texts, sizeof *texts, offsets);
    return status;
}

/* The same for what is added to tokens' logits. tokens and values: the same length. */
static batchllm_status batchllm_params_set_biases(batchllm_params_column *column, const char *field,
                                                  batchllm_view_i32 tokens, batchllm_view_f32 values,
                                                  batchllm_view_i64 offsets) {
    if (tokens.count != values.count)
        return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                   "%s: %lld tokens and %lld values", field, (long long)tokens.count,
                                   (long long)values.count);
    int found;
    batchllm_status status = batchllm_params_find(field, batchllm_set_biases, "list of biases", &found);
    if (status == BATCHLLM_OK) status = batchllm_params_lists(column, field, offsets, tokens.count);
    if (status != BATCHLLM_OK) return status;
    int32_t *token_copy = batchllm_params_copy(tokens.data, tokens.count, sizeof *token_copy);
    float *value_copy = batchllm_params_copy(values.data, values.count, sizeof *value_copy);
    status = batchllm_params_keep(column, found, token_copy, value_copy, 1);
    if (status != BATCHLLM_OK) return status;
    batchllm_params_point(column, found, token_copy, sizeof *token_copy, offsets);
    for (int64_t i = 0; i < column->count; ++i)
        column->items[i].bias_values = value_copy + offsets.data[batchllm_params_list_of(offsets, i)];
    return status;
}
%}
