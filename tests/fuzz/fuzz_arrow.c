/* libFuzzer: structs of the Arrow C data interface, arrays and streams of them, read as the Python package reads them
 * (bindings/python/arrow.i). A producer is trusted with the sizes of its buffers and with nothing else: what a struct
 * says of sizes is true here or is what no buffer can be; pointers may be NULL, offsets and bits are any. What is
 * given out is read to its last byte, and everything is released exactly once.
 *
 * Input: bytes, each a choice; when they are used up, zeros. */
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "batchllm.h"

#include "arrow_code.inc"

static void check(int holds) {
    if (!holds) abort();
}

typedef struct {
    const uint8_t *data;
    size_t left;
} choices;

static uint8_t next(choices *from) {
    if (from->left == 0) return 0;
    --from->left;
    return *from->data++;
}

/* Memory of a producer, all freed when the array or schema is released. */
typedef struct {
    void *blocks[16];
    int count;
    int *released;
} owned;

static void *take(owned *own, size_t bytes) {
    void *block = calloc(1, bytes > 0 ? bytes : 1);
    check(block != NULL && own->count < 16);
    return own->blocks[own->count++] = block;
}

static void give(owned *own) {
    ++*own->released;
    for (int i = 0; i < own->count; ++i) free(own->blocks[i]);
    free(own);
}

static void release_array(struct ArrowArray *array) {
    array->release = NULL;
    give(array->private_data);
}

static void release_schema(struct ArrowSchema *schema) {
    schema->release = NULL;
    give(schema->private_data);
}

static owned *own_new(int *released) {
    owned *own = calloc(1, sizeof *own);
    check(own != NULL);
    own->released = released;
    return own;
}

/* Mostly small; now and then what no buffer can be. */
static int64_t number(choices *from) {
    static const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX,    INT64_MAX / 16 + 1, INT64_MAX / 8,
                                    -9, INT32_MIN, INT64_MAX - 1};
    const uint8_t choice = next(from);
    return choice < 240 ? choice % 20 : wrong[choice % 8];
}

/* A number as a size that a buffer can have. */
static size_t room(int64_t value) { return value < 0 || value > 64 ? 0 : (size_t)value; }

static const char *format(choices *from) {
    static const char *const formats[] = {"u",  "U",   "z",  "Z", "+l", "+L",  "i", "l",  "+s",
                                          "vu", "+vl", "+m", "",  "+",  "w:7", "n", "+r", "g"};
    const uint8_t choice = next(from);
    return choice == 255 ? NULL : formats[choice % (sizeof formats / sizeof *formats)];
}

static void make_schema(choices *from, struct ArrowSchema *schema, int *released) {
    owned *own = own_new(released);
    memset(schema, 0, sizeof *schema);
    schema->format = format(from);
    schema->n_children = 1;
    schema->children = take(own, sizeof *schema->children);
    struct ArrowSchema *child = take(own, sizeof *child);
    schema->children[0] = child;
    child->format = next(from) < 200 ? "i" : format(from);
    const uint8_t wrong = next(from);
    if (wrong == 1) schema->n_children = number(from);
    if (wrong == 2) schema->children = NULL;
    if (wrong == 3) schema->children[0] = NULL;
    if (wrong == 4) schema->dictionary = child;
    if (wrong == 5) child->dictionary = child;
    schema->private_data = own;
    schema->release = release_schema;
}

/* A bitmap for items [0, offset + length). */
static const void *bitmap(choices *from, owned *own, int64_t offset, int64_t length) {
    const size_t bytes = (room(offset) + room(length) + 7) / 8;
    uint8_t *bits = take(own, bytes);
    memset(bits, 0xff, bytes);
    if (next(from) > 200 && bytes > 0) bits[next(from) % bytes] = next(from);
    return next(from) < 128 ? bits : NULL;
}

/* Offsets of either width for [offset, offset + length], mostly rising and within `items`. */
static void *make_offsets(choices *from, owned *own, const struct ArrowArray *array, int wide,
                          int64_t items) {
    const size_t count = room(array->offset) + room(array->length) + 1;
    void *offsets = take(own, count * (wide ? 8 : 4));
    int64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
        const uint8_t step = next(from);
        if (step > 250)
            at = number(from);
        else if (at >= 0 && at <= items)
            at += step % 4 <= items - at ? step % 4 : 0;
        if (wide)
            ((int64_t *)offsets)[i] = at;
        else
            ((int32_t *)offsets)[i] = (int32_t)at;
    }
    return offsets;
}

static void make_array(choices *from, const struct ArrowSchema *schema, struct ArrowArray *array,
                       int *released) {
    owned *own = own_new(released);
    memset(array, 0, sizeof *array);
    const char *is = schema->format ? schema->format : "";
    const int list = is[0] == '+', wide = is[0] == 'U' || is[0] == 'Z' || strcmp(is, "+L") == 0;
    array->length = number(from);
    array->offset = next(from) < 128 ? 0 : number(from);
    array->null_count = number(from);
    array->n_buffers = list ? 2 : 3;
    array->buffers = take(own, 3 * sizeof *array->buffers);
    array->buffers[0] = bitmap(from, own, array->offset, array->length);
    const int64_t items = next(from) % 64;
    void *offsets = make_offsets(from, own, array, wide, items);
    array->buffers[1] = offsets;
    if (list) {
        struct ArrowArray *child = take(own, sizeof *child);
        array->n_children = 1;
        array->children = take(own, sizeof *array->children);
        array->children[0] = child;
        child->length = next(from) < 240 ? items : number(from);
        if (child->length > 64)
            child->length = -1; /* else it tells of a buffer that is not there */
        child->offset = next(from) < 128 ? 0 : number(from);
        child->null_count = number(from);
        child->n_buffers = 2;
        child->buffers = take(own, 2 * sizeof *child->buffers);
        child->buffers[0] = bitmap(from, own, child->offset, child->length);
        child->buffers[1] = take(own, (room(child->offset) + room(child->length)) * 4);
        const uint8_t wrong = next(from);
        if (wrong == 1) child->n_buffers = number(from);
        if (wrong == 2) child->buffers = NULL;
        if (wrong == 3) child->buffers[1] = NULL;
        if (wrong == 4) array->children[0] = NULL;
        if (wrong == 5) array->children = NULL;
        if (wrong == 6) array->n_children = number(from);
    } else {
        /* The bytes of a text are as many as its last offset says. */
        int64_t end = 0;
        const size_t last = room(array->offset) + room(array->length);
        for (size_t i = 0; i <= last; ++i) {
            const int64_t at = wide ? ((int64_t *)offsets)[i] : ((int32_t *)offsets)[i];
            if (at > 64 && i < room(array->offset)) continue; /* of rows before the array's own */
            if (at > 64) { /* no buffer is so large: make it wrong instead */
                if (wide)
                    ((int64_t *)offsets)[i] = -1;
                else
                    ((int32_t *)offsets)[i] = -1;
            } else if (at > end) {
                end = at;
            }
        }
        array->buffers[2] = take(own, room(end));
    }
    const uint8_t wrong = next(from);
    if (wrong == 1) array->n_buffers = number(from) == 3 && list ? 2 : 1;
    if (wrong == 2) array->buffers = NULL;
    if (wrong == 3) array->buffers[1] = NULL;
    if (wrong == 4 && !list) array->buffers[2] = NULL;
    array->private_data = own;
    array->release = release_array;
}

static uint64_t sum; /* so that reading is not left out */

/* Reads what was given out; an exception is as good. */
static void look(PyObject *columns) {
    if (columns == NULL) {
        check(PyErr_Occurred() != NULL);
        PyErr_Clear();
        return;
    }
    check(!PyErr_Occurred());
    if (columns != Py_None) {
        const char *kind = PyUnicode_AsUTF8(PyTuple_GetItem(columns, 0));
        const Py_buffer *data = PyMemoryView_GET_BUFFER(PyTuple_GetItem(columns, 1));
        const Py_buffer *offsets = PyMemoryView_GET_BUFFER(PyTuple_GetItem(columns, 2));
        const int64_t *ends = offsets->buf;
        const Py_ssize_t count = offsets->len / 8;
        check(count >= 1 && offsets->itemsize == 8);
        for (Py_ssize_t i = 1; i < count; ++i) check(ends[i] >= ends[i - 1]);
        check(ends[0] >= 0 && ends[count - 1] * data->itemsize <= data->len);
        check(data->itemsize == (strcmp(kind, "text") == 0 ? 1 : 4));
        for (Py_ssize_t i = 0; i < data->len; ++i) sum += ((const uint8_t *)data->buf)[i];
    }
    Py_DECREF(columns);
}

typedef struct {
    choices *from;
    struct ArrowSchema shape; /* what the schema said */
    int arrays, *released;
} producer;

static int stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
    producer *self = stream->private_data;
    if (next(self->from) > 250) return 5;
    make_schema(self->from, out, self->released);
    self->shape = *out;
    return 0;
}

static int stream_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
    producer *self = stream->private_data;
    if (next(self->from) > 250) return 5;
    if (self->arrays >= 4) return 0; /* the end: as it came, released */
    ++self->arrays;
    make_array(self->from, &self->shape, out, self->released);
    return 0;
}

static const char *stream_error(struct ArrowArrayStream *stream) {
    producer *self = stream->private_data;
    return next(self->from) > 128 ? NULL : "no more";
}

static void stream_release(struct ArrowArrayStream *stream) { stream->release = NULL; }

static void read_array(choices *from) {
    int schemas = 0, arrays = 0;
    struct ArrowSchema schema;
    struct ArrowArray array;
    make_schema(from, &schema, &schemas);
    make_array(from, &schema, &array, &arrays);
    PyObject *schema_capsule = PyCapsule_New(&schema, "arrow_schema", NULL);
    PyObject *array_capsule = PyCapsule_New(&array, "arrow_array", NULL);
    check(schema_capsule != NULL && array_capsule != NULL);
    look(batchllm_arrow_read(schema_capsule, array_capsule));
    /* It was moved. */
    look(batchllm_arrow_read(schema_capsule, array_capsule));
    Py_DECREF(schema_capsule);
    Py_DECREF(array_capsule);
    check(array.release == NULL && arrays == 1 && schemas == 0);
    schema.release(&schema);
}

static void read_stream(choices *from) {
    int released = 0;
    producer made = {from, {0}, 0, &released};
    struct ArrowArrayStream stream = {stream_schema, stream_next, stream_error, stream_release,
                                      &made};
    PyObject *capsule = PyCapsule_New(&stream, "arrow_array_stream", NULL);
    check(capsule != NULL);
    PyObject *opened = batchllm_arrow_open(capsule);
    if (opened == NULL) {
        check(PyErr_Occurred() != NULL);
        PyErr_Clear();
    }
    for (int i = 0; opened != NULL && i < 6; ++i) look(batchllm_arrow_next(opened));
    Py_XDECREF(opened);
    Py_DECREF(capsule);
    check(stream.release == NULL);
    check(released == made.arrays + (made.shape.release != NULL));
}

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    setenv("PYTHONMALLOC", "malloc", 1); /* so that ASan sees Python's blocks */
    Py_InitializeEx(0);
    check(PyType_Ready(&batchllm_python_column_type) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choices from = {data, size};
    if (next(&from) % 2)
        read_stream(&from);
    else
        read_array(&from);
    return 0;
}
