/* Reads Arrow tables into frames: from a stream of struct arrays (pyarrow, Polars, pandas, DuckDB),
 * it reads the named columns as text. */
%{
/* The child's item that belongs to an item of the struct. */
static int64_t batchllm_arrow_place(const struct ArrowArray *parent, const struct ArrowArray *child,
                                    int64_t i) {
    return parent->offset + child->offset + i;
}

/* Whether cells are dates, or timestamps without a time zone or in UTC. */
static int batchllm_arrow_is_date(const char *format) {
    if (strcmp(format, "tdD") == 0 || strcmp(format, "tdm") == 0) return 1;
    if (strncmp(format, "ts", 2) != 0 || !format[2] || !strchr("smun", format[2]) || format[3] != ':') return 0;
    return !format[4] || strcmp(format + 4, "UTC") == 0 || strcmp(format + 4, "+00:00") == 0;
}

/* A date or time as pandas writes it: 2024-05-06, 2024-05-06 07:08:09.123456+00:00. */
static void batchllm_arrow_date(const char *format, const void *items, int64_t at, char *text, size_t room) {
    int64_t value, fraction = 0, seconds = 0;
    if (format[1] == 'd') {
        value = format[2] == 'D' ? ((const int32_t *)items)[at] : ((const int64_t *)items)[at];
        if (format[2] == 'm') value = value / 86400000 - (value % 86400000 < 0);
    } else {
        const int64_t unit = format[2] == 's' ? 1 : format[2] == 'm' ? 1000 : format[2] == 'u' ? 1000000 : 1000000000;
        value = ((const int64_t *)items)[at];
        fraction = value % unit + (value % unit < 0 ? unit : 0);
        value = (value - fraction) / unit;
        fraction *= 1000000000 / unit;
        seconds = value % 86400 + (value % 86400 < 0 ? 86400 : 0);
        value = (value - seconds) / 86400;
    }
    /* Days since 1970 -> the calendar (Hinnant, "chrono-Compatible Low-Level Date Algorithms"). */
    const int64_t days = value + 719468, era = (days >= 0 ? days : days - 146096) / 146097, of_era = days - era * 146097;
    const int64_t year_of = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t day_of = of_era - (365 * year_of + year_of / 4 - year_of / 100), shifted = (5 * day_of + 2) / 153;
    const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9, year = year_of + era * 400 + (month <= 2);
    int used = snprintf(text, room, "%04lld-%02d-%02d", (long long)year, (int)month, (int)(day_of - (153 * shifted + 2) / 5 + 1));
    if (format[1] == 'd') return;
    used += snprintf(text + used, room - (size_t)used, " %02d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60 % 60),
                     (int)(seconds % 60));
    if (fraction % 1000) used += snprintf(text + used, room - (size_t)used, ".%09d", (int)fraction);
    else if (fraction) used += snprintf(text + used, room - (size_t)used, ".%06d", (int)(fraction / 1000));
    if (format[4]) snprintf(text + used, room - (size_t)used, "+00:00");
}

/* Appends the column's item to `column` as text; 0 with an exception. */
static int batchllm_arrow_append(batchllm_frame_column *column, const struct ArrowSchema *schema,
                                 const struct ArrowArray *array, int64_t at) {
    const char *format = schema->format;
    if (strcmp(format, "n") == 0 || !batchllm_arrow_valid(array, at)) {
        if (batchllm_frame_append(column, NULL, 0)) return 1;
        PyErr_NoMemory();
        return 0;
    }
    char number[64];
    const char *text = number;
    int64_t bytes = -1, value;
    int is_unsigned, done;
    if (schema->dictionary) {
        if (!batchllm_arrow_integer(format, array->buffers[1], at, &value, &is_unsigned) ||
            value < 0 || value >= array->dictionary->length) {
            PyErr_SetString(PyExc_ValueError, "an Arrow dictionary column with a wrong index");
            return 0;
        }
        return batchllm_arrow_append(column, schema->dictionary, array->dictionary,
                                     array->dictionary->offset + value);
    }
    const char layout = batchllm_arrow_text_layout(format);
    if (layout) {
        if (!batchllm_arrow_text(array, layout, at, &text, &bytes)) return 0;
    } else if (strcmp(format, "b") == 0) {
        text = ((const uint8_t *)array->buffers[1])[at / 8] >> at % 8 & 1 ? "true" : "false";
    } else if (strcmp(format, "f") == 0 || strcmp(format, "g") == 0) {
        double real = format[0] == 'g' ? ((const double *)array->buffers[1])[at] : 0;
        if (format[0] == 'f') { /* by the fewest digits that read back the same */
            const float single = ((const float *)array->buffers[1])[at];
            for (int digits = 1; digits <= 9; ++digits) {
                snprintf(number, sizeof number, "%.*g", digits, (double)single);
                real = strtod(number, NULL);
                if (strtof(number, NULL) == single) break;
            }
        }
        char *shortest = PyOS_double_to_string(real, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
        if (!shortest) return 0;
        snprintf(number, sizeof number, "%s", shortest);
        PyMem_Free(shortest);
    } else if (batchllm_arrow_is_date(format)) {
        batchllm_arrow_date(format, array->buffers[1], at, number, sizeof number);
    } else {
        batchllm_arrow_integer(format, array->buffers[1], at, &value, &is_unsigned);
        snprintf(number, sizeof number, is_unsigned ? "%llu" : "%lld", (long long)value);
    }
    done = batchllm_frame_append(column, text, bytes < 0 ? (int64_t)strlen(text) : bytes);
    if (!done) PyErr_NoMemory();
    return done;
}

/* Checks by its type and buffers whether a column can be read as text; 0 with an exception. */
static int batchllm_arrow_check_cells(const char *name, const struct ArrowSchema *schema,
                                      const struct ArrowArray *array) {
    const char *format = schema->format;
    const char text = batchllm_arrow_text_layout(format);
    const int integer = batchllm_arrow_is_integer(format);
    const int number = integer || (strlen(format) == 1 && strchr("fgb", format[0])) || batchllm_arrow_is_date(format);
    if (strncmp(format, "ts", 2) == 0 && !number && format[2] && strchr("smun", format[2]) && format[3] == ':') {
        PyErr_Format(PyExc_TypeError, "column '%s' has times of the zone '%s': convert them to 'UTC', or cast it to text first",
                     name, format + 4);
        return 0;
    }
    if (!(strcmp(format, "n") == 0 || text || number) || (schema->dictionary && !integer)) {
        PyErr_Format(PyExc_TypeError, "column '%s' is of Arrow type %s: cast it to text first", name,
                     schema->dictionary ? "dictionary" : batchllm_arrow_name(schema));
        return 0;
    }
    const int64_t least = format[0] == 'n' ? 0 : text ? 3 : 2;
    if (array->length < 0 || array->offset < 0 || array->n_buffers < least ||
        (least > 0 && array->length > 0 && (!array->buffers || !array->buffers[1])) ||
        (text == 'v' && array->n_buffers > 3 && !array->buffers[array->n_buffers - 1]) ||
        (schema->dictionary && !array->dictionary)) {
        PyErr_Format(PyExc_ValueError, "column '%s': an Arrow array of %s with wrong buffers", name, format);
        return 0;
    }
    if (!schema->dictionary) return 1;
    return batchllm_arrow_check_cells(name, schema->dictionary, array->dictionary);
}

static int batchllm_arrow_append_chunk(batchllm_frame *frame, const struct ArrowSchema *schema,
                                       const struct ArrowArray *array, const int64_t *children) {
    if (array->n_children != schema->n_children || array->length < 0 || array->offset < 0 ||
        (array->n_buffers > 0 && !array->buffers)) {
        PyErr_SetString(PyExc_ValueError, "an Arrow struct array with wrong children");
        return 0;
    }
    for (int64_t k = 0; k < frame->count; ++k) {
        const struct ArrowSchema *type = schema->children[children[k]];
        const struct ArrowArray *cells = array->children[children[k]];
        if (!batchllm_arrow_check_cells(type->name ? type->name : "", type, cells)) return 0;
        if (cells->length < array->offset + array->length) {
            PyErr_Format(PyExc_ValueError, "column '%s' is shorter than its table", type->name);
            return 0;
        }
        for (int64_t i = 0; i < array->length; ++i) {
            if (!batchllm_arrow_valid(array, array->offset + i)) { /* a null row has null cells */
                if (batchllm_frame_append(&frame->columns[k], NULL, 0)) continue;
                PyErr_NoMemory();
                return 0;
            }
            if (!batchllm_arrow_append(&frame->columns[k], type, cells,
                                       batchllm_arrow_place(array, cells, i)))
                return 0;
        }
    }
    return 1;
}

static void batchllm_arrow_no_column(const char *name, const struct ArrowSchema *schema) {
    PyObject *names = PyList_New(0), *module = PyImport_ImportModule("batchllm.errors");
    for (int64_t i = 0; names && i < schema->n_children; ++i) {
        PyObject *one = PyUnicode_DecodeUTF8(schema->children[i]->name ? schema->children[i]->name : "",
                                             (Py_ssize_t)strlen(schema->children[i]->name ? schema->children[i]->name : ""), "replace");
        if (!one || PyList_Append(names, one) != 0) Py_CLEAR(names);
        Py_XDECREF(one);
    }
    PyObject *error = names && module ? PyObject_CallMethod(module, "no_column", "sO", name, names) : NULL;
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(names);
    Py_XDECREF(module);
}

/* Finds the struct's children that have the frame's column names; 0 with an exception. */
static int batchllm_arrow_find(const batchllm_frame *frame, const struct ArrowSchema *schema,
                               int64_t *children) {
    if (!schema->format || strcmp(schema->format, "+s") != 0 || schema->dictionary) {
        PyErr_SetString(PyExc_TypeError, "a table is expected, not a single column");
        return 0;
    }
    for (int64_t k = 0; k < frame->count; ++k) {
        const char *name = frame->columns[k].name ? frame->columns[k].name : "";
        children[k] = -1;
        for (int64_t i = 0; i < schema->n_children; ++i) {
            if (!schema->children[i]->name || strcmp(schema->children[i]->name, name) != 0) continue;
            if (children[k] >= 0) {
                PyErr_Format(PyExc_ValueError, "template: the table has two columns '%s'", name);
                return 0;
            }
            children[k] = i;
        }
        if (children[k] < 0) {
            batchllm_arrow_no_column(name, schema);
            return 0;
        }
    }
    return 1;
}

static int batchllm_arrow_read_frame(batchllm_frame *frame, struct ArrowArrayStream *stream,
                                     struct ArrowSchema *schema, int64_t *children) {
    for (;;) {
        struct ArrowArray array;
        memset(&array, 0, sizeof array);
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = stream->get_next(stream, &array);
        Py_END_ALLOW_THREADS
        if (code != 0) {
            const char *text = stream->get_last_error(stream);
            PyErr_Format(PyExc_OSError, "the Arrow stream failed: %s", text ? text : strerror(code));
            return 0;
        }
        if (!array.release) return 1;
        PyObject *owner = batchllm_arrow_own(&array);
        if (!owner) {
            array.release(&array);
            return 0;
        }
        const int done = batchllm_arrow_append_chunk(frame, schema, PyCapsule_GetPointer(owner, ARROW_OWNED), children);
        Py_DECREF(owner); /* keeps a pending exception */
        if (!done) return 0;
    }
}
%}

%inline %{
/* Fills a frame, whose columns have names but no rows, from the result of __arrow_c_stream__(). */
static PyObject *batchllm_arrow_fill_frame(batchllm_frame *frame, PyObject *stream_capsule) {
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(stream_capsule, "arrow_array_stream");
    if (!stream) return NULL;
    if (!stream->release) {
        PyErr_SetString(PyExc_ValueError, "an Arrow stream that was read before");
        return NULL;
    }
    struct ArrowSchema schema;
    memset(&schema, 0, sizeof schema);
    int64_t *children = calloc((size_t)frame->count + 1, sizeof *children);
    if (!children) return PyErr_NoMemory();
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = stream->get_schema(stream, &schema);
    Py_END_ALLOW_THREADS
    int done = 0;
    if (code != 0) {
        const char *text = stream->get_last_error(stream);
        PyErr_Format(PyExc_OSError, "the Arrow stream failed: %s", text ? text : strerror(code));
    } else {
        done = batchllm_arrow_find(frame, &schema, children) &&
               batchllm_arrow_read_frame(frame, stream, &schema, children);
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (schema.release) schema.release(&schema);
    PyErr_Restore(type, value, trace);
    free(children);
    if (!done) return NULL;
    Py_RETURN_NONE;
}
%}
