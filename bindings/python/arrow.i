/* Arrow columns through the C data interface and its PyCapsules
 * (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html): text and lists of
 * int32 in, results out. Neither needs an Arrow library, and neither copies what it passes on, but
 * for 32-bit offsets, which become 64-bit ones. */
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

/* ---- In ---- */

/* A capsule that owns a moved array or stream. */
#define ARROW_OWNED "batchllm_arrow"
/* A producer's release may be Python, which must not run while an exception of ours is on its way. */
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

/* The first null of an array's items from `begin` to before `end`, or -1. */
static int64_t batchllm_arrow_first_null(const struct ArrowArray *array, int64_t begin, int64_t end) {
    const uint8_t *valid = array->n_buffers > 0 ? array->buffers[0] : NULL;
    if (array->null_count == 0 || !valid) return -1;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t bit = array->offset + i;
        if (!(valid[bit / 8] >> bit % 8 & 1)) return i;
    }
    return -1;
}

/* What a format letter is called, for what is refused. */
static const char *batchllm_arrow_name(const struct ArrowSchema *schema) {
    static const char *const names[][2] = {
        {"vu", "string_view"}, {"vz", "binary_view"}, {"n", "null"},      {"b", "boolean"},
        {"c", "int8"},         {"C", "uint8"},        {"s", "int16"},     {"S", "uint16"},
        {"i", "int32"},        {"I", "uint32"},       {"l", "int64"},     {"L", "uint64"},
        {"f", "float"},        {"g", "double"},       {"+s", "struct (a table: pass one column)"},
        {"+vl", "list_view"},  {"+vL", "large_list_view"}, {"+m", "map"}, {"+r", "run-end encoded"}};
    if (schema->dictionary) return "dictionary";
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(schema->format, names[i][0]) == 0) return names[i][1];
    return schema->format;
}

/* 't' text, 'l' lists of int32, 0 with an exception; *wide: 64-bit offsets. */
static char batchllm_arrow_kind(const struct ArrowSchema *schema, int *wide) {
    const char *format = schema->format;
    *wide = 0;
    if (!format) {
        PyErr_SetString(PyExc_ValueError, "an Arrow schema without a format");
        return 0;
    }
    *wide = strcmp(format, "U") == 0 || strcmp(format, "Z") == 0 || strcmp(format, "+L") == 0;
    if (!schema->dictionary) {
        if (strcmp(format, "u") == 0 || strcmp(format, "U") == 0 || strcmp(format, "z") == 0 ||
            strcmp(format, "Z") == 0)
            return 't';
        if (strcmp(format, "+l") == 0 || strcmp(format, "+L") == 0) {
            if (schema->n_children != 1 || !schema->children || !schema->children[0]) {
                PyErr_SetString(PyExc_ValueError, "an Arrow list's schema has one child");
                return 0;
            }
            if (!schema->children[0]->format) {
                PyErr_SetString(PyExc_ValueError, "an Arrow list's items have no format");
                return 0;
            }
            if (strcmp(schema->children[0]->format, "i") == 0 && !schema->children[0]->dictionary)
                return 'l';
            PyErr_Format(PyExc_TypeError,
                         "an Arrow list of %s: rows of tokens are lists of int32",
                         batchllm_arrow_name(schema->children[0]));
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError,
                 "an Arrow column of type %s: rows are utf8, large_utf8, list<int32> or "
                 "large_list<int32>",
                 batchllm_arrow_name(schema));
    return 0;
}

/* What a producer in C may get wrong, and what would be read past: 0 with an exception. */
static int batchllm_arrow_check(const struct ArrowSchema *schema, const struct ArrowArray *array, char kind) {
    const char *problem = NULL;
    const struct ArrowArray *items = NULL;
    if (array->length < 0 || array->length > INT64_MAX / 16) problem = "length";
    else if (array->offset < 0 || array->offset > INT64_MAX / 16) problem = "offset";
    else if (array->n_buffers != (kind == 't' ? 3 : 2) || !array->buffers) problem = "number of buffers";
    else if (array->length > 0 && !array->buffers[1]) problem = "offsets: they are NULL";
    else if (kind == 'l' && (array->n_children != 1 || !array->children || !array->children[0]))
        problem = "children";
    else if (kind == 'l') {
        items = array->children[0];
        if (items->length < 0 || items->offset < 0 || items->offset > INT64_MAX / 16) problem = "child's length";
        else if (items->n_buffers != 2 || !items->buffers) problem = "child's buffers";
    }
    if (problem) PyErr_Format(PyExc_ValueError, "an Arrow array of %s: wrong %s", schema->format, problem);
    return !problem;
}

/* The same of what the offsets say, [0, length]. */
static int batchllm_arrow_check_ends(const struct ArrowArray *array, const struct ArrowArray *items,
                                     const int64_t *ends) {
    for (int64_t i = 0; i <= array->length; ++i) {
        if (ends[i] >= (i > 0 ? ends[i - 1] : 0)) continue;
        PyErr_Format(PyExc_ValueError, "an Arrow array: offset %lld is %lld, less than the one before it, or than 0",
                     (long long)i, (long long)ends[i]);
        return 0;
    }
    const int64_t end = ends[array->length];
    const char *problem = NULL;
    if (items && end > items->length) problem = "more items than its child has";
    else if (end > 0 && !(items ? items->buffers[1] : array->buffers[2])) problem = "items, and its data are NULL";
    if (problem) PyErr_Format(PyExc_ValueError, "an Arrow array: its offsets tell of %s", problem);
    return !problem;
}

/* (kind, data, offsets) of an array that `owner` keeps alive. `before`: rows before it. */
static PyObject *batchllm_arrow_columns(PyObject *owner, const struct ArrowSchema *schema,
                                        const struct ArrowArray *array, int64_t before) {
    int wide = 0;
    const char kind = batchllm_arrow_kind(schema, &wide);
    if (!kind || !batchllm_arrow_check(schema, array, kind)) return NULL;
    const int64_t null = batchllm_arrow_first_null(array, 0, array->length);
    if (null >= 0) {
        PyErr_Format(PyExc_ValueError, "row %lld is null", (long long)(before + null));
        return NULL;
    }
    const struct ArrowArray *items = kind == 'l' ? array->children[0] : NULL;
    const void *offsets = array->buffers[1];
    static const int64_t zero = 0;
    PyObject *offsets_out;
    if (array->length == 0) {
        offsets_out = batchllm_python_lend(owner, &zero, 1, sizeof zero, "q");
    } else if (wide) {
        offsets_out = batchllm_python_lend(owner, (const int64_t *)offsets + array->offset,
                                           array->length + 1, sizeof(int64_t), "q");
    } else {
        PyObject *block =
            PyBytes_FromStringAndSize(NULL, (array->length + 1) * (Py_ssize_t)sizeof(int64_t));
        if (!block) return NULL;
        int64_t *widened = (int64_t *)PyBytes_AS_STRING(block);
        for (int64_t i = 0; i <= array->length; ++i)
            widened[i] = ((const int32_t *)offsets)[array->offset + i];
        offsets_out =
            batchllm_python_lend(block, widened, array->length + 1, sizeof(int64_t), "q");
        Py_DECREF(block);
    }
    if (!offsets_out) return NULL;
    const int64_t *ends = PyMemoryView_GET_BUFFER(offsets_out)->buf;
    if (!batchllm_arrow_check_ends(array, items, ends)) {
        Py_DECREF(offsets_out);
        return NULL;
    }
    const int64_t begin = ends[0], end = ends[array->length];
    PyObject *data = NULL;
    if (items && batchllm_arrow_first_null(items, begin, end) >= 0)
        PyErr_SetString(PyExc_ValueError, "a list of token ids holds a null");
    else data =
        kind == 't'
            ? batchllm_python_lend(owner, array->buffers[2], end, 1, "B")
            : batchllm_python_lend(owner,
                                   items->buffers[1] ? (const int32_t *)items->buffers[1] +
                                                           items->offset
                                                     : NULL,
                                   end, sizeof(int32_t), "i");
    if (!data) {
        Py_DECREF(offsets_out);
        return NULL;
    }
    return Py_BuildValue("(sNN)", kind == 't' ? "text" : "tokens", data, offsets_out);
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

/* ---- Out ---- */

/* A node of an exported array owns its struct's parts and holds a reference to the results. */
typedef struct {
    PyObject *owner;
    const void *buffers[3];
    struct ArrowArray **children;
} batchllm_arrow_node;

static void batchllm_arrow_release_array(struct ArrowArray *array) {
    batchllm_arrow_node *node = array->private_data;
    for (int64_t i = 0; i < array->n_children; ++i) {
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
        free(array->children[i]);
    }
    free(node->children);
    if (Py_IsInitialized()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(node->owner);
        PyGILState_Release(state);
    }
    free(node);
    array->release = NULL;
}

static void batchllm_arrow_release_schema(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; ++i) {
        if (schema->children[i]->release) schema->children[i]->release(schema->children[i]);
        free(schema->children[i]);
    }
    free(schema->children);
    schema->release = NULL;
}

/* Fills in a node with room for `children`, all released. 0: no memory. */
static int batchllm_arrow_node_make(struct ArrowArray *array, struct ArrowSchema *schema,
                                    PyObject *owner, const char *format, const char *name,
                                    int64_t length, int64_t children) {
    memset(array, 0, sizeof *array);
    memset(schema, 0, sizeof *schema);
    batchllm_arrow_node *node = calloc(1, sizeof *node);
    if (!node) return 0;
    node->owner = owner;
    Py_INCREF(owner);
    array->length = length;
    array->n_buffers = 1;
    array->buffers = node->buffers;
    array->private_data = node;
    array->release = batchllm_arrow_release_array;
    schema->format = format;
    schema->name = name;
    schema->release = batchllm_arrow_release_schema;
    if (children == 0) return 1;
    node->children = calloc((size_t)children, sizeof *node->children);
    schema->children = calloc((size_t)children, sizeof *schema->children);
    array->children = node->children;
    for (int64_t i = 0; node->children && schema->children && i < children; ++i) {
        node->children[i] = calloc(1, sizeof **node->children);
        schema->children[i] = calloc(1, sizeof **schema->children);
        if (!node->children[i] || !schema->children[i]) {
            free(node->children[i]);
            free(schema->children[i]);
            break;
        }
        array->n_children = schema->n_children = i + 1;
    }
    return array->n_children == children;
}

typedef struct {
    const char *name, *format; /* of the items, for lists */
    const int64_t *offsets;    /* NULL: one item a result */
    const void *items;
} batchllm_arrow_field;

static int batchllm_arrow_fill_field(struct ArrowArray *array, struct ArrowSchema *schema,
                                     PyObject *owner, const batchllm_arrow_field *field,
                                     int64_t count) {
    static const int64_t nothing = 0;
    const void *items = field->items ? field->items : &nothing;
    const int text = field->offsets && strcmp(field->format, "U") == 0;
    const int list = field->offsets && !text;
    if (!batchllm_arrow_node_make(array, schema, owner, list ? "+L" : field->format, field->name,
                                  count, list))
        return 0;
    array->n_buffers = text ? 3 : 2;
    array->buffers[1] = field->offsets ? (const void *)field->offsets : items;
    if (text) array->buffers[2] = items;
    if (!list) return 1;
    if (!batchllm_arrow_node_make(array->children[0], schema->children[0], owner, field->format,
                                  "item", field->offsets[count], 0))
        return 0;
    array->children[0]->n_buffers = 2;
    array->children[0]->buffers[1] = items;
    return 1;
}

static void batchllm_arrow_drop_exported_array(PyObject *capsule) {
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release) array->release(array);
    free(array);
}
static void batchllm_arrow_drop_exported_schema(PyObject *capsule) {
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release) schema->release(schema);
    free(schema);
}
%}

/* These hold the results for as long as the array lives. */
%typemap(in) (const batchllm_results *OWNED, PyObject *owner) {
    void *pointer = NULL;
    if (!SWIG_IsOK(SWIG_ConvertPtr($input, &pointer, $descriptor(batchllm_results *), 0)) ||
        !pointer)
        SWIG_exception_fail(SWIG_TypeError, "results are expected");
    $1 = pointer;
    $2 = $input;
}

%inline %{
/* What an object's __arrow_c_array__() gives -> ("text" or "tokens", data, offsets). */
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

/* What __arrow_c_stream__() gives -> a stream for batchllm_arrow_next. */
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
    int wide;
    if (code == 0 && batchllm_arrow_kind(&self->schema, &wide)) return owner;
    if (code != 0) {
        const char *text = self->stream.get_last_error(&self->stream);
        PyErr_Format(PyExc_OSError, "the Arrow stream failed: %s", text ? text : strerror(code));
    }
    Py_DECREF(owner);
    return NULL;
}

/* The next chunk as batchllm_arrow_read gives it, or None. */
static PyObject *batchllm_arrow_next(PyObject *stream) {
    batchllm_arrow_stream *self = PyCapsule_GetPointer(stream, ARROW_OWNED);
    if (!self) return NULL;
    struct ArrowArray array;
    memset(&array, 0, sizeof array);
    int code;
    /* What makes the chunks may have threads that want Python's lock. */
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
    if (columns) self->rows += chunk->length; /* else it may be any number */
    Py_DECREF(owner);
    return columns;
}

/* Results as a pair of capsules: a struct array with a field for each column. */
static PyObject *batchllm_arrow_write(const batchllm_results *OWNED, PyObject *owner) {
    const batchllm_results *r = OWNED;
    const batchllm_arrow_field fields[] = {
        {"tag", "L", NULL, r->tags},
        {"status", "i", NULL, r->statuses},
        {"finish_reason", "i", NULL, r->finish_reasons},
        {"sample", "i", NULL, r->samples},
        {"prompt_tokens", "l", NULL, r->prompt_tokens},
        {"shared_tokens", "l", NULL, r->shared_tokens},
        {"tokens", "i", r->token_offsets, r->tokens},
        {"text", "U", r->text_offsets, r->text},
        {"error", "U", r->error_offsets, r->errors},
        {"logprobs", "f", r->logprob_offsets, r->logprobs},
        {"scores", "g", r->score_offsets, r->scores}};
    enum { field_count = sizeof fields / sizeof *fields };
    struct ArrowArray *array = calloc(1, sizeof *array);
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    PyObject *array_capsule =
        array ? PyCapsule_New(array, "arrow_array", batchllm_arrow_drop_exported_array) : NULL;
    PyObject *schema_capsule =
        schema ? PyCapsule_New(schema, "arrow_schema", batchllm_arrow_drop_exported_schema) : NULL;
    if (!array_capsule) free(array);
    if (!schema_capsule) free(schema);
    int ok = array_capsule && schema_capsule &&
             batchllm_arrow_node_make(array, schema, owner, "+s", "", r->count, field_count);
    for (int i = 0; ok && i < field_count; ++i)
        ok = batchllm_arrow_fill_field(array->children[i], schema->children[i], owner, &fields[i],
                                       r->count);
    if (ok) return Py_BuildValue("(NN)", schema_capsule, array_capsule);
    Py_XDECREF(array_capsule);
    Py_XDECREF(schema_capsule);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}
%}
