/* Arrow columns in, through the C data interface and its PyCapsules
 * (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), without an Arrow library.
 * Texts and lists of int32 are borrowed as they are, except that 32-bit offsets become 64-bit ones.
 * Views, dictionaries, other integers and columns with nulls are copied. */
%{
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};
%}

%include "arrow_cells.i"

%{
/* A capsule that owns a moved array or stream. */
#define ARROW_OWNED "batchllm_arrow"
/* A producer's release may run Python code, which must not run while an exception of ours is
 * pending. */
static void batchllm_arrow_drop_array(PyObject *capsule) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, ARROW_OWNED);
    if (array->release) array->release(array);
    free(array);
    PyErr_Restore(type, value, trace);
}
typedef struct {
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    int64_t rows; /* read so far */
} batchllm_arrow_stream;
static void batchllm_arrow_drop_stream(PyObject *capsule) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    batchllm_arrow_stream *self = PyCapsule_GetPointer(capsule, ARROW_OWNED);
    if (self->schema.release) self->schema.release(&self->schema);
    if (self->stream.release) self->stream.release(&self->stream);
    free(self);
    PyErr_Restore(type, value, trace);
}

/* Whether a column can be borrowed as it is: it has no nulls, and its items have the right type. */
static int batchllm_arrow_lendable(const batchllm_arrow_cells *cells) {
    if (cells->type.layout == 'v' || cells->type.layout == '0' || cells->values != cells->column) return 0;
    if (cells->table && batchllm_arrow_any_null(cells->table, cells->table->offset, cells->rows)) return 0;
    if (batchllm_arrow_any_null(cells->column, cells->first, cells->rows)) return 0;
    return cells->type.kind == 't' || strcmp(cells->type.column->children[0]->format, "i") == 0;
}

/* Checks offsets [0, rows]; 0 with an exception if they are not valid. */
static int batchllm_arrow_check_ends(const batchllm_arrow_cells *cells, const int64_t *ends) {
    const struct ArrowArray *array = cells->column;
    const struct ArrowArray *items = cells->type.kind == 'l' ? array->children[0] : NULL;
    for (int64_t i = 0; i <= cells->rows; ++i) {
        if (ends[i] >= (i > 0 ? ends[i - 1] : 0)) continue;
        PyErr_Format(PyExc_ValueError, "an Arrow array: offset %lld is %lld, less than the one before it, or than 0",
                     (long long)i, (long long)ends[i]);
        return 0;
    }
    const int64_t end = ends[cells->rows];
    const char *problem = NULL;
    if (items && end > items->length) problem = "more items than its child has";
    else if (end > 0 && !(items ? items->buffers[1] : array->buffers[2])) problem = "items, and its data are NULL";
    if (problem) PyErr_Format(PyExc_ValueError, "an Arrow array: its offsets tell of %s", problem);
    return !problem;
}

/* Offsets as int64, [rows + 1]: the array's own, or widened ones. ends: where they are while the result lives. */
static PyObject *batchllm_arrow_ends(PyObject *owner, const batchllm_arrow_cells *cells, const int64_t **ends) {
    static const int64_t zero = 0;
    const void *offsets = cells->column->buffers[1];
    if (cells->rows == 0 || cells->type.layout == 'w') {
        *ends = cells->rows == 0 ? &zero : (const int64_t *)offsets + cells->first;
        return batchllm_python_lend(owner, *ends, cells->rows + 1, sizeof(int64_t), "q");
    }
    PyObject *block = PyBytes_FromStringAndSize(NULL, (cells->rows + 1) * (Py_ssize_t)sizeof(int64_t));
    if (!block) return NULL;
    int64_t *widened = (int64_t *)PyBytes_AsString(block);
    for (int64_t i = 0; i <= cells->rows; ++i) widened[i] = ((const int32_t *)offsets)[cells->first + i];
    *ends = widened;
    PyObject *view = batchllm_python_lend(block, widened, cells->rows + 1, sizeof(int64_t), "q");
    Py_DECREF(block);
    return view;
}

/* (kind, data, offsets, None) of memory that `owner` keeps alive. *lent is 0 if an item of a list
 * is null; such a list needs a copy without the item. */
static PyObject *batchllm_arrow_lend(PyObject *owner, const batchllm_arrow_cells *cells, int *lent) {
    const struct ArrowArray *items = cells->type.kind == 'l' ? cells->column->children[0] : NULL;
    const int64_t *ends;
    PyObject *offsets = batchllm_arrow_ends(owner, cells, &ends);
    *lent = 1;
    if (!offsets) return NULL;
    if (!batchllm_arrow_check_ends(cells, ends)) {
        Py_DECREF(offsets);
        return NULL;
    }
    const int64_t begin = ends[0], end = ends[cells->rows];
    if (items && batchllm_arrow_any_null(items, items->offset + begin, end - begin)) {
        *lent = 0;
        Py_DECREF(offsets);
        return NULL;
    }
    PyObject *data;
    if (items) {
        const int32_t *tokens = items->buffers[1];
        data = batchllm_python_lend(owner, tokens ? tokens + items->offset : NULL, end, sizeof *tokens, "i");
    } else {
        data = batchllm_python_lend(owner, cells->column->buffers[2], end, 1, "B");
    }
    if (data) return Py_BuildValue("(sNNO)", items ? "tokens" : "text", data, offsets, Py_None);
    Py_DECREF(offsets);
    return NULL;
}

/* Room for copies of `rows` rows, some of which are null. */
typedef struct {
    PyObject *data, *offsets, *nulls; /* bytes */
    int64_t *ends, *places;
    int64_t kept, dropped;
} batchllm_arrow_copy;

static int batchllm_arrow_copy_make(batchllm_arrow_copy *copy, int64_t bytes, int64_t rows, int64_t nulls) {
    memset(copy, 0, sizeof *copy);
    copy->data = PyBytes_FromStringAndSize(NULL, bytes);
    copy->offsets = PyBytes_FromStringAndSize(NULL, (rows - nulls + 1) * (Py_ssize_t)sizeof(int64_t));
    copy->nulls = PyBytes_FromStringAndSize(NULL, nulls * (Py_ssize_t)sizeof(int64_t));
    if (copy->data && copy->offsets && copy->nulls) {
        copy->ends = (int64_t *)PyBytes_AsString(copy->offsets);
        copy->places = (int64_t *)PyBytes_AsString(copy->nulls);
        copy->ends[0] = 0;
        return 1;
    }
    Py_XDECREF(copy->data);
    Py_XDECREF(copy->offsets);
    Py_XDECREF(copy->nulls);
    return 0;
}

/* (kind, data, offsets, numbers of null rows or None); consumes the copy. */
static PyObject *batchllm_arrow_copy_end(batchllm_arrow_copy *copy, char kind) {
    PyObject *data = kind == 't' ? batchllm_python_lend(copy->data, PyBytes_AsString(copy->data),
                                                        PyBytes_Size(copy->data), 1, "B")
                                 : batchllm_python_lend(copy->data, PyBytes_AsString(copy->data),
                                                        PyBytes_Size(copy->data) / 4, sizeof(int32_t), "i");
    PyObject *offsets = batchllm_python_lend(copy->offsets, copy->ends, copy->kept + 1, sizeof(int64_t), "q");
    PyObject *nulls = copy->dropped
                          ? batchllm_python_lend(copy->nulls, copy->places, copy->dropped, sizeof(int64_t), "q")
                          : Py_NewRef(Py_None);
    Py_DECREF(copy->data);
    Py_DECREF(copy->offsets);
    Py_DECREF(copy->nulls);
    if (data && offsets && nulls)
        return Py_BuildValue("(sNNN)", kind == 't' ? "text" : "tokens", data, offsets, nulls);
    Py_XDECREF(data);
    Py_XDECREF(offsets);
    Py_XDECREF(nulls);
    return NULL;
}

static PyObject *batchllm_arrow_copy_texts(const batchllm_arrow_cells *cells) {
    const char *text;
    int64_t bytes, total = 0, nulls = 0;
    for (int64_t i = 0; i < cells->rows; ++i) {
        const int found = batchllm_arrow_text_cell(cells, i, &text, &bytes);
        if (found < 0) return NULL;
        if (found && bytes > INT64_MAX / 2 - total) return PyErr_NoMemory();
        if (found) total += bytes;
        else ++nulls;
    }
    batchllm_arrow_copy copy;
    if (!batchllm_arrow_copy_make(&copy, total, cells->rows, nulls)) return NULL;
    char *to = PyBytes_AsString(copy.data);
    for (int64_t i = 0; i < cells->rows; ++i) {
        if (batchllm_arrow_text_cell(cells, i, &text, &bytes)) {
            memcpy(to + copy.ends[copy.kept], text, (size_t)bytes);
            copy.ends[copy.kept + 1] = copy.ends[copy.kept] + bytes;
            ++copy.kept;
        } else {
            copy.places[copy.dropped++] = i;
        }
    }
    return batchllm_arrow_copy_end(&copy, 't');
}

/* `before`: how many rows come before these, for row numbers in errors. */
static PyObject *batchllm_arrow_copy_lists(const batchllm_arrow_cells *cells, int64_t before) {
    const struct ArrowArray *items = cells->column->children[0];
    const char *format = cells->type.column->children[0]->format;
    int64_t begin, end, total = 0, nulls = 0;
    for (int64_t i = 0; i < cells->rows; ++i) {
        const int found = batchllm_arrow_list_cell(cells, i, &begin, &end);
        if (found < 0) return NULL;
        if (found && end - begin > INT64_MAX / 8 - total) return PyErr_NoMemory();
        if (found) total += end - begin;
        else ++nulls;
    }
    batchllm_arrow_copy copy;
    if (!batchllm_arrow_copy_make(&copy, total * (int64_t)sizeof(int32_t), cells->rows, nulls)) return NULL;
    int32_t *to = (int32_t *)PyBytes_AsString(copy.data);
    for (int64_t i = 0; i < cells->rows; ++i) {
        if (!batchllm_arrow_list_cell(cells, i, &begin, &end)) {
            copy.places[copy.dropped++] = i;
            continue;
        }
        int64_t at = copy.ends[copy.kept], value = 0;
        int is_unsigned;
        for (int64_t j = begin; j < end; ++j) {
            batchllm_arrow_integer(format, items->buffers[1], items->offset + j, &value, &is_unsigned);
            if (value < INT32_MIN || value > INT32_MAX || (is_unsigned && value < 0)) {
                PyErr_Format(PyExc_ValueError, "row %lld: a token id is beyond 32 bits", (long long)(before + i));
                Py_DECREF(copy.data);
                Py_DECREF(copy.offsets);
                Py_DECREF(copy.nulls);
                return NULL;
            }
            to[at++] = (int32_t)value;
        }
        copy.ends[++copy.kept] = at;
    }
    return batchllm_arrow_copy_end(&copy, 'l');
}

/* (kind, data, offsets, nulls) of an array that `owner` keeps alive: the rows that have a value,
 * and the numbers of those that have none (None if all have one). `before`: how many rows come
 * before it. */
static PyObject *batchllm_arrow_columns(PyObject *owner, const struct ArrowSchema *schema,
                                        const struct ArrowArray *array, int64_t before) {
    batchllm_arrow_type type;
    batchllm_arrow_cells cells;
    if (!batchllm_arrow_type_of(schema, &type) || !batchllm_arrow_cells_of(&type, array, &cells)) return NULL;
    if (batchllm_arrow_lendable(&cells)) {
        int lent;
        PyObject *columns = batchllm_arrow_lend(owner, &cells, &lent);
        if (lent) return columns;
    }
    return type.kind == 't' ? batchllm_arrow_copy_texts(&cells) : batchllm_arrow_copy_lists(&cells, before);
}

/* Moves an array into a capsule of ours. */
static PyObject *batchllm_arrow_own(struct ArrowArray *array) {
    struct ArrowArray *moved = malloc(sizeof *moved);
    if (!moved) return PyErr_NoMemory();
    *moved = *array;
    PyObject *owner = PyCapsule_New(moved, ARROW_OWNED, batchllm_arrow_drop_array);
    if (owner) array->release = NULL;
    else free(moved);
    return owner;
}
%}

%inline %{
/* The result of an object's __arrow_c_array__() -> ("text" or "tokens", data, offsets, nulls). */
static PyObject *batchllm_arrow_read(PyObject *schema_capsule, PyObject *array_capsule) {
    struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
    struct ArrowArray *array = schema ? PyCapsule_GetPointer(array_capsule, "arrow_array") : NULL;
    if (!array) return NULL;
    if (!schema->release || !array->release) {
        PyErr_SetString(PyExc_ValueError, "an Arrow array that was read before");
        return NULL;
    }
    PyObject *owner = batchllm_arrow_own(array);
    if (!owner) return NULL;
    PyObject *columns =
        batchllm_arrow_columns(owner, schema, PyCapsule_GetPointer(owner, ARROW_OWNED), 0);
    Py_DECREF(owner);
    return columns;
}

/* The result of __arrow_c_stream__() -> a stream for batchllm_arrow_next. */
static PyObject *batchllm_arrow_open(PyObject *stream_capsule) {
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(stream_capsule, "arrow_array_stream");
    if (!stream) return NULL;
    if (!stream->release) {
        PyErr_SetString(PyExc_ValueError, "an Arrow stream that was read before");
        return NULL;
    }
    batchllm_arrow_stream *self = calloc(1, sizeof *self);
    if (!self) return PyErr_NoMemory();
    self->stream = *stream;
    stream->release = NULL;
    PyObject *owner = PyCapsule_New(self, ARROW_OWNED, batchllm_arrow_drop_stream);
    if (!owner) {
        self->stream.release(&self->stream);
        free(self);
        return NULL;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = self->stream.get_schema(&self->stream, &self->schema);
    Py_END_ALLOW_THREADS
    batchllm_arrow_type type;
    if (code == 0 && batchllm_arrow_type_of(&self->schema, &type)) return owner;
    if (code != 0) {
        const char *text = self->stream.get_last_error(&self->stream);
        PyErr_Format(PyExc_OSError, "the Arrow stream failed: %s", text ? text : strerror(code));
    }
    Py_DECREF(owner);
    return NULL;
}

/* The next chunk, as batchllm_arrow_read returns it, or None. */
static PyObject *batchllm_arrow_next(PyObject *stream) {
    batchllm_arrow_stream *self = PyCapsule_GetPointer(stream, ARROW_OWNED);
    if (!self) return NULL;
    struct ArrowArray array;
    memset(&array, 0, sizeof array);
    int code;
    /* The producer of the chunks may have threads that need Python's lock. */
    Py_BEGIN_ALLOW_THREADS
    code = self->stream.get_next(&self->stream, &array);
    Py_END_ALLOW_THREADS
    if (code != 0) {
        const char *text = self->stream.get_last_error(&self->stream);
        PyErr_Format(PyExc_OSError, "the Arrow stream failed: %s", text ? text : strerror(code));
        return NULL;
    }
    if (!array.release) Py_RETURN_NONE;
    PyObject *owner = batchllm_arrow_own(&array);
    if (!owner) {
        array.release(&array);
        return NULL;
    }
    const struct ArrowArray *chunk = PyCapsule_GetPointer(owner, ARROW_OWNED);
    PyObject *columns = batchllm_arrow_columns(owner, &self->schema, chunk, self->rows);
    if (columns) self->rows += chunk->length; /* otherwise the length may be any number */
    Py_DECREF(owner);
    return columns;
}
%}
