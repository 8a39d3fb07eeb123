/* The cells of an Arrow column: texts in any layout, dictionaries of texts, lists of integers, or
 * tables with one such column. The producer is trusted about the sizes of its buffers, but not
 * about any number in them. */
%{
typedef struct {
    char kind;                         /* 't' text, 'l' lists of integers */
    char layout;                       /* 'n' 32-bit offsets, 'w' 64-bit offsets, 'v' views, '0' only nulls */
    int is_table;                      /* a struct with the column as its only child */
    const struct ArrowSchema *column;  /* its dictionary's indices, if it has one */
    const struct ArrowSchema *values;  /* the dictionary's values; else the column */
} batchllm_arrow_type;

/* Rows of an array: row i is item first + i of `column`. */
typedef struct {
    batchllm_arrow_type type;
    const struct ArrowArray *column;
    const struct ArrowArray *values; /* the dictionary; else the column */
    const struct ArrowArray *table;  /* NULL: none. Row i is its item table->offset + i */
    int64_t first, rows;
} batchllm_arrow_cells;

static int batchllm_arrow_valid(const struct ArrowArray *array, int64_t at) {
    const uint8_t *valid = array->n_buffers > 0 && array->null_count != 0 ? array->buffers[0] : NULL;
    return !valid || (valid[at / 8] >> at % 8 & 1);
}

static int batchllm_arrow_any_null(const struct ArrowArray *array, int64_t first, int64_t count) {
    if (array->null_count == 0 || array->n_buffers < 1 || !array->buffers[0]) return 0;
    for (int64_t i = 0; i < count; ++i)
        if (!batchllm_arrow_valid(array, first + i)) return 1;
    return 0;
}

/* The name of a type, for errors about types that are not supported. */
static const char *batchllm_arrow_name(const struct ArrowSchema *schema) {
    static const char *const names[][2] = {
        {"n", "null"},   {"b", "boolean"}, {"c", "int8"},  {"C", "uint8"},      {"s", "int16"},
        {"S", "uint16"}, {"i", "int32"},   {"I", "uint32"}, {"l", "int64"},     {"L", "uint64"},
        {"e", "half"},   {"f", "float"},   {"g", "double"}, {"+s", "struct"},   {"+vl", "list_view"},
        {"+vL", "large_list_view"},        {"+m", "map"},   {"+r", "run-end encoded"},
        {"u", "utf8"},    {"U", "large_utf8"}, {"vu", "string_view"}, {"z", "binary"},
        {"Z", "large_binary"},             {"vz", "binary_view"},     {"+l", "list"},
        {"+L", "large_list"},              {"tdD", "date32[day]"},    {"tdm", "date64[ms]"},
        {"tts", "time32[s]"}, {"ttm", "time32[ms]"}, {"ttu", "time64[us]"}, {"ttn", "time64[ns]"},
        {"tDs", "duration[s]"}, {"tDm", "duration[ms]"}, {"tDu", "duration[us]"}, {"tDn", "duration[ns]"},
        {"tiM", "month_interval"}, {"tiD", "day_time_interval"}, {"tin", "month_day_nano_interval"}};
    /* What these begin with is followed by a time zone, sizes or the like. */
    static const char *const beginnings[][2] = {
        {"tss:", "timestamp[s]"}, {"tsm:", "timestamp[ms]"}, {"tsu:", "timestamp[us]"},
        {"tsn:", "timestamp[ns]"}, {"d:", "decimal"}, {"w:", "fixed_size_binary"},
        {"+w:", "fixed_size_list"}, {"+ud:", "dense_union"}, {"+us:", "sparse_union"}};
    if (!schema->format) return "no format";
    if (schema->dictionary) return "dictionary";
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(schema->format, names[i][0]) == 0) return names[i][1];
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; ++i)
        if (strncmp(schema->format, beginnings[i][0], strlen(beginnings[i][0])) == 0) return beginnings[i][1];
    return schema->format;
}

/* The layout of a text type; 0: none. */
static char batchllm_arrow_text_layout(const char *format) {
    if (strcmp(format, "u") == 0 || strcmp(format, "z") == 0) return 'n';
    if (strcmp(format, "U") == 0 || strcmp(format, "Z") == 0) return 'w';
    return strcmp(format, "vu") == 0 || strcmp(format, "vz") == 0 ? 'v' : 0;
}

/* 0 if the format is not an integer's; a uint64 is returned by its bits. */
static int batchllm_arrow_integer(const char *format, const void *items, int64_t at, int64_t *value,
                                  int *is_unsigned) {
    *is_unsigned = 0;
    if (!format[0] || format[1]) return 0;
    switch (format[0]) {
    case 'c': *value = ((const int8_t *)items)[at]; return 1;
    case 'C': *value = ((const uint8_t *)items)[at]; return 1;
    case 's': *value = ((const int16_t *)items)[at]; return 1;
    case 'S': *value = ((const uint16_t *)items)[at]; return 1;
    case 'i': *value = ((const int32_t *)items)[at]; return 1;
    case 'I': *value = ((const uint32_t *)items)[at]; return 1;
    case 'l': *value = ((const int64_t *)items)[at]; return 1;
    case 'L': *value = (int64_t)((const uint64_t *)items)[at]; *is_unsigned = 1; return 1;
    default: return 0;
    }
}
static int batchllm_arrow_is_integer(const char *format) {
    return strlen(format) == 1 && strchr("cCsSiIlL", *format) != NULL;
}

/* ---- Types ---- */

static int batchllm_arrow_refuse(const struct ArrowSchema *schema) {
    PyErr_Format(PyExc_TypeError,
                 "an Arrow column of type %s: rows are texts (utf8, large_utf8, string_view, or a dictionary of them)"
                 " or lists of int32",
                 batchllm_arrow_name(schema));
    return 0;
}

/* 0 with an exception if rows cannot have this type. */
static int batchllm_arrow_type_of(const struct ArrowSchema *schema, batchllm_arrow_type *type) {
    memset(type, 0, sizeof *type);
    if (schema->format && strcmp(schema->format, "+s") == 0 && !schema->dictionary) {
        if (schema->n_children != 1 || !schema->children || !schema->children[0]) {
            PyErr_Format(PyExc_TypeError,
                         "a table (an Arrow struct) of %lld columns: pass the one with the prompts, or use generate_table"
                         " with a template",
                         (long long)schema->n_children);
            return 0;
        }
        type->is_table = 1;
        schema = schema->children[0];
    }
    type->column = type->values = schema;
    if (!schema->format || (schema->dictionary && !schema->dictionary->format)) {
        PyErr_SetString(PyExc_ValueError, "an Arrow schema without a format");
        return 0;
    }
    if (schema->dictionary) {
        type->values = schema->dictionary;
        type->kind = 't';
        type->layout = batchllm_arrow_text_layout(type->values->format);
        if (type->layout && batchllm_arrow_is_integer(schema->format) && !type->values->dictionary) return 1;
        PyErr_Format(PyExc_TypeError, "an Arrow dictionary of %s: rows are texts or lists of int32",
                     batchllm_arrow_name(type->values));
        return 0;
    }
    type->kind = 't';
    type->layout = strcmp(schema->format, "n") == 0 ? '0' : batchllm_arrow_text_layout(schema->format);
    if (type->layout) return 1;
    type->kind = 'l';
    type->layout = strcmp(schema->format, "+l") == 0 ? 'n' : strcmp(schema->format, "+L") == 0 ? 'w' : 0;
    if (!type->layout) return batchllm_arrow_refuse(schema);
    const struct ArrowSchema *items = schema->n_children == 1 && schema->children ? schema->children[0] : NULL;
    if (!items || !items->format) {
        PyErr_SetString(PyExc_ValueError, items ? "an Arrow list's items have no format"
                                                : "an Arrow list's schema has one child");
        return 0;
    }
    if (batchllm_arrow_is_integer(items->format) && !items->dictionary) return 1;
    PyErr_Format(PyExc_TypeError, "an Arrow list of %s: rows of tokens are lists of int32", batchllm_arrow_name(items));
    return 0;
}

/* ---- Arrays ---- */

static int batchllm_arrow_bad(const struct ArrowSchema *schema, const char *problem) {
    if (problem) PyErr_Format(PyExc_ValueError, "an Arrow array of %s: wrong %s", schema->format, problem);
    return !problem;
}

/* Texts or lists: 0 with an exception if their parts do not match their layout. */
static int batchllm_arrow_check(const struct ArrowSchema *schema, const struct ArrowArray *array,
                                const batchllm_arrow_type *type) {
    const char *problem = NULL;
    if (array->length < 0 || array->length > INT64_MAX / 32) problem = "length";
    else if (array->offset < 0 || array->offset > INT64_MAX / 32) problem = "offset";
    else if (type->layout == '0') return 1;
    else if (!array->buffers || (type->layout == 'v' ? array->n_buffers < 3 : array->n_buffers != (type->kind == 't' ? 3 : 2)))
        problem = "number of buffers";
    else if (array->length > 0 && !array->buffers[1]) problem = "offsets: they are NULL";
    else if (type->layout == 'v' && array->n_buffers > 3 && !array->buffers[array->n_buffers - 1])
        problem = "sizes of its buffers: they are NULL";
    else if (type->kind == 'l' && (array->n_children != 1 || !array->children || !array->children[0]))
        problem = "children";
    else if (type->kind == 'l') {
        const struct ArrowArray *items = array->children[0];
        if (items->length < 0 || items->offset < 0 || items->offset > INT64_MAX / 32) problem = "child's length";
        else if (items->n_buffers != 2 || !items->buffers) problem = "child's buffers";
    }
    return batchllm_arrow_bad(schema, problem);
}

/* The rows of an array; 0 with an exception. The type's schemas must outlive the cells. */
static int batchllm_arrow_cells_of(const batchllm_arrow_type *type, const struct ArrowArray *array,
                                   batchllm_arrow_cells *cells) {
    memset(cells, 0, sizeof *cells);
    cells->type = *type;
    cells->column = cells->values = array;
    if (array->length < 0 || array->length > INT64_MAX / 32) return batchllm_arrow_bad(type->column, "length");
    if (array->offset < 0 || array->offset > INT64_MAX / 32) return batchllm_arrow_bad(type->column, "offset");
    cells->rows = array->length;
    if (type->is_table) {
        if (array->n_children != 1 || !array->children || !array->children[0] || array->n_buffers != 1 || !array->buffers)
            return batchllm_arrow_bad(type->column, "table around it");
        cells->table = array;
        cells->column = cells->values = array->children[0];
        cells->first = array->offset;
        if (cells->column->length < array->offset + array->length)
            return batchllm_arrow_bad(type->column, "length: it is shorter than its table");
    }
    const struct ArrowArray *column = cells->column;
    if (type->values != type->column) {
        cells->values = column->dictionary;
        const char *problem = NULL;
        if (column->length < 0 || column->offset < 0 || column->offset > INT64_MAX / 32) problem = "length";
        else if (column->n_buffers != 2 || !column->buffers || (column->length > 0 && !column->buffers[1]))
            problem = "number of buffers";
        else if (!column->dictionary) problem = "dictionary: it is NULL";
        if (problem) return batchllm_arrow_bad(type->column, problem);
    }
    if (!batchllm_arrow_check(type->values, cells->values, type)) return 0;
    cells->first += column->offset;
    return 1;
}

/* Finds a text in memory; 0 with an exception. */
static int batchllm_arrow_text(const struct ArrowArray *array, char layout, int64_t at, const char **text,
                               int64_t *bytes) {
    static const char empty[] = "";
    int64_t begin = 0, end = -1;
    const char *block = NULL;
    if (layout == 'v') {
        const char *view = (const char *)array->buffers[1] + 16 * at;
        int32_t words[4]; /* length, then the text itself or: first four bytes, buffer, offset */
        memcpy(words, view, sizeof words);
        if (words[0] >= 0 && words[0] <= 12) {
            *text = view + 4;
            *bytes = words[0];
            return 1;
        }
        if (words[0] > 12 && words[2] >= 0 && words[2] < array->n_buffers - 3 && words[3] >= 0) {
            const int64_t *sizes = array->buffers[array->n_buffers - 1];
            block = array->buffers[2 + words[2]];
            begin = words[3];
            end = begin + words[0] <= sizes[words[2]] ? begin + words[0] : -1;
        }
    } else if (layout == 'w') {
        const int64_t *offsets = (const int64_t *)array->buffers[1] + at;
        block = array->buffers[2];
        begin = offsets[0];
        end = offsets[1];
    } else {
        const int32_t *offsets = (const int32_t *)array->buffers[1] + at;
        block = array->buffers[2];
        begin = offsets[0];
        end = offsets[1];
    }
    if (begin < 0 || end < begin || (end > begin && !block)) {
        PyErr_SetString(PyExc_ValueError, "an Arrow text column with wrong offsets");
        return 0;
    }
    *text = end > begin ? block + begin : empty;
    *bytes = end - begin;
    return 1;
}

/* Row i of texts: returns 1, 0 for a null, -1 with an exception. */
static int batchllm_arrow_text_cell(const batchllm_arrow_cells *cells, int64_t i, const char **text, int64_t *bytes) {
    int64_t at = cells->first + i;
    int is_unsigned;
    if (cells->type.layout == '0') return 0;
    if (cells->table && !batchllm_arrow_valid(cells->table, cells->table->offset + i)) return 0;
    if (!batchllm_arrow_valid(cells->column, at)) return 0;
    if (cells->values != cells->column) {
        int64_t index = -1;
        batchllm_arrow_integer(cells->type.column->format, cells->column->buffers[1], at, &index, &is_unsigned);
        if (index < 0 || index >= cells->values->length) {
            PyErr_SetString(PyExc_ValueError, "an Arrow dictionary column with an index outside its dictionary");
            return -1;
        }
        at = cells->values->offset + index;
        if (!batchllm_arrow_valid(cells->values, at)) return 0;
    }
    return batchllm_arrow_text(cells->values, cells->type.layout, at, text, bytes) ? 1 : -1;
}

/* Row i of lists, as [begin, end) of the child's items: returns 1, 0 for a null or for a list that
 * contains one, -1 with an exception. */
static int batchllm_arrow_list_cell(const batchllm_arrow_cells *cells, int64_t i, int64_t *begin, int64_t *end) {
    const int64_t at = cells->first + i;
    const struct ArrowArray *items = cells->column->children[0];
    if (cells->table && !batchllm_arrow_valid(cells->table, cells->table->offset + i)) return 0;
    if (!batchllm_arrow_valid(cells->column, at)) return 0;
    const void *offsets = cells->column->buffers[1];
    *begin = cells->type.layout == 'w' ? ((const int64_t *)offsets)[at] : ((const int32_t *)offsets)[at];
    *end = cells->type.layout == 'w' ? ((const int64_t *)offsets)[at + 1] : ((const int32_t *)offsets)[at + 1];
    if (*begin < 0 || *end < *begin || *end > items->length || (*end > *begin && !items->buffers[1])) {
        PyErr_SetString(PyExc_ValueError, "an Arrow column of lists with wrong offsets");
        return -1;
    }
    return !batchllm_arrow_any_null(items, items->offset + *begin, *end - *begin);
}
%}
