/* libFuzzer: structs of the Arrow C data interface, arrays and streams of them, read as the Python package reads them
 * (bindings/python/arrow.i, arrow_cells.i): texts in every layout, dictionaries,
 * lists, tables of one column. A producer is only trusted about the sizes of its buffers: sizes in
 * a struct are correct here or impossible; pointers may be NULL; offsets and bits are arbitrary.
 * Output is read to its last byte, and everything is released exactly once.
 *
 * Input: bytes, each a choice; zeros once they are used up. */
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
    void *blocks[64];
    int count;
    int *released;
} owned;

static void *take(owned *own, size_t bytes) {
    void *block = calloc(1, bytes > 0 ? bytes : 1);
    check(block != NULL && own->count < 64);
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

/* Mostly small; now and then an impossible size. */
static int64_t number(choices *from) {
    static const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX,    INT64_MAX / 16 + 1, INT64_MAX / 8,
                                    -9, INT32_MIN, INT64_MAX - 1};
    const uint8_t choice = next(from);
    return choice < 240 ? choice % 20 : wrong[choice % 8];
}

/* A number as a size that a buffer can have. */
static size_t room(int64_t value) { return value < 0 || value > 64 ? 0 : (size_t)value; }

static const char *format(choices *from) {
    static const char *const formats[] = {"u",  "U",  "z",   "Z",  "+l", "+L",  "i",  "l",
                                          "+s", "vu", "vz",  "vu", "C",  "+vl", "+m", "",
                                          "+",  "n",  "w:7", "+r", "g",  "+s"};
    const uint8_t choice = next(from);
    return choice == 255 ? NULL : formats[choice % (sizeof formats / sizeof *formats)];
}

/* Mostly the format of an integer. */
static const char *number_format(choices *from) {
    static const char *const formats[] = {"i", "c", "C", "s", "S", "i", "I", "l", "L"};
    const uint8_t choice = next(from);
    return choice < 220 ? formats[choice % 9] : format(from);
}

/* A column, or with depth 0 anything that a struct's child may be. */
static void fill_schema(choices *from, owned *own, struct ArrowSchema *schema, int depth) {
    memset(schema, 0, sizeof *schema);
    schema->format = format(from);
    const char *is = schema->format ? schema->format : "";
    const uint8_t wrong = next(from);
    if (wrong > 200) { /* a dictionary, mostly of texts */
        struct ArrowSchema *values = take(own, sizeof *values);
        values->format = schema->format;
        schema->format = number_format(from);
        schema->dictionary = values;
        if (wrong > 250) values->dictionary = values;
    } else if (is[0] == '+') {
        struct ArrowSchema *child = take(own, sizeof *child);
        schema->n_children = 1;
        schema->children = take(own, sizeof *schema->children);
        schema->children[0] = child;
        if (strcmp(is, "+s") == 0 && depth < 2)
            fill_schema(from, own, child, depth + 1);
        else
            child->format = number_format(from);
        if (wrong == 5) child->dictionary = child;
    }
    if (wrong == 1) schema->n_children = number(from);
    if (wrong == 2) schema->children = NULL;
    if (wrong == 3 && schema->children) schema->children[0] = NULL;
}

static void make_schema(choices *from, struct ArrowSchema *schema, int *released) {
    owned *own = own_new(released);
    fill_schema(from, own, schema, 0);
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

/* Offsets of either width for [offset, offset + length], mostly increasing and within `items`. */
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

/* Bytes of an item with a number's format. */
static size_t width(const char *is) {
    return is[0] == 'c' || is[0] == 'C'   ? 1
           : is[0] == 's' || is[0] == 'S' ? 2
           : is[0] == 'l' || is[0] == 'L' ? 8
                                          : 4;
}

static size_t items_of(const struct ArrowArray *array) {
    return room(array->offset) + room(array->length);
}

static void start_array(choices *from, owned *own, struct ArrowArray *array, int buffers) {
    memset(array, 0, sizeof *array);
    array->length = number(from);
    array->offset = next(from) < 128 ? 0 : number(from);
    array->null_count = number(from);
    array->n_buffers = buffers;
    array->buffers = take(own, ((size_t)buffers + 1) * sizeof *array->buffers);
    if (buffers > 0) array->buffers[0] = bitmap(from, own, array->offset, array->length);
}

/* Integers, small or arbitrary. */
static void fill_numbers(choices *from, owned *own, const char *is, struct ArrowArray *array) {
    start_array(from, own, array, 2);
    if (array->length > 64) array->length = -1; /* else it would claim a missing buffer */
    const size_t count = items_of(array), size = width(is);
    uint8_t *items = take(own, count * size);
    for (size_t i = 0; i < count; ++i) {
        const uint8_t value = next(from);
        memset(items + i * size, value > 240 ? value : 0, size);
        if (value <= 240) items[i * size] = value % 8;
    }
    array->buffers[1] = items;
}

/* Texts have as many bytes as the last offset says. */
static void fill_text(choices *from, owned *own, int wide, struct ArrowArray *array) {
    start_array(from, own, array, 3);
    void *offsets = make_offsets(from, own, array, wide, next(from) % 64);
    array->buffers[1] = offsets;
    int64_t end = 0;
    for (size_t i = 0; i <= items_of(array); ++i) {
        const int64_t at = wide ? ((int64_t *)offsets)[i] : ((int32_t *)offsets)[i];
        if (at > 64) { /* no buffer is that large: make it invalid instead */
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

/* Views into up to two buffers, whose sizes are given. */
static void fill_views(choices *from, owned *own, struct ArrowArray *array) {
    const int blocks = next(from) % 3;
    start_array(from, own, array, 3 + blocks);
    const size_t count = items_of(array);
    int32_t *views = take(own, count * 16);
    int64_t *sizes = take(own, 2 * sizeof *sizes);
    for (int i = 0; i < blocks; ++i) {
        sizes[i] = next(from) % 64;
        array->buffers[2 + i] = take(own, (size_t)sizes[i]);
        if (next(from) > 250) array->buffers[2 + i] = NULL;
    }
    for (size_t i = 0; i < count; ++i) {
        views[4 * i] = next(from) > 240 ? (int32_t)number(from) : next(from) % 32;
        views[4 * i + 2] = next(from) > 240 ? (int32_t)number(from) : next(from) % 3;
        views[4 * i + 3] = next(from) > 240 ? (int32_t)number(from) : next(from) % 32;
    }
    array->buffers[1] = views;
    array->buffers[2 + blocks] = sizes;
    if (next(from) > 250) array->buffers[2 + blocks] = NULL;
}

static void fill_array(choices *from, owned *own, const struct ArrowSchema *schema,
                       struct ArrowArray *array, int depth) {
    const char *is = schema->format ? schema->format : "";
    const struct ArrowSchema *child =
        schema->n_children == 1 && schema->children ? schema->children[0] : NULL;
    const int wide = is[0] == 'U' || is[0] == 'Z' || strcmp(is, "+L") == 0;
    if (schema->dictionary && depth < 3) {
        fill_numbers(from, own, is, array);
        array->dictionary = take(own, sizeof *array->dictionary);
        if (schema->dictionary->dictionary != schema->dictionary)
            fill_array(from, own, schema->dictionary, array->dictionary, 3);
        if (next(from) > 250) array->dictionary = NULL;
    } else if (strcmp(is, "+s") == 0 || is[0] == '+') {
        start_array(from, own, array, strcmp(is, "+s") == 0 ? 1 : 2);
        array->n_children = 1;
        array->children = take(own, sizeof *array->children);
        array->children[0] = take(own, sizeof **array->children);
        if (strcmp(is, "+s") == 0 && child != NULL)
            fill_array(from, own, child, array->children[0], depth + 1);
        else
            fill_numbers(from, own, child && child->format ? child->format : "i",
                         array->children[0]);
        if (is[1] != 's')
            array->buffers[1] = make_offsets(from, own, array, wide, array->children[0]->length);
        const uint8_t wrong = next(from);
        if (wrong == 1) array->children[0]->n_buffers = number(from) == 2 ? 2 : 0;
        if (wrong == 2) array->children[0]->buffers = NULL;
        if (wrong == 3 && array->children[0]->n_buffers > 1 && array->children[0]->buffers)
            array->children[0]->buffers[1] = NULL;
        if (wrong == 4) array->children[0] = NULL;
        if (wrong == 5) array->children = NULL;
        if (wrong == 6) array->n_children = number(from);
    } else if (is[0] == 'v') {
        fill_views(from, own, array);
    } else if (is[0] == 'u' || is[0] == 'z' || wide) {
        fill_text(from, own, wide, array);
    } else {
        fill_numbers(from, own, is, array);
    }
}

static void make_array(choices *from, const struct ArrowSchema *schema, struct ArrowArray *array,
                       int *released) {
    owned *own = own_new(released);
    fill_array(from, own, schema, array, 0);
    const uint8_t wrong = next(from);
    /* Fewer than possible: with one buffer less, a block of text would be taken as the sizes of the
     * views' buffers. */
    if (wrong == 1)
        array->n_buffers = array->n_buffers > 3   ? 2
                           : array->n_buffers > 0 ? array->n_buffers - 1
                                                  : 0;
    if (wrong == 2) array->buffers = NULL;
    if (wrong == 3 && array->n_buffers > 1 && array->buffers) array->buffers[1] = NULL;
    if (wrong == 4 && array->n_buffers > 2 && array->buffers) array->buffers[2] = NULL;
    array->private_data = own;
    array->release = release_array;
}

static uint64_t sum; /* so that reading is not left out */

/* Reads the output; an exception is fine too. */
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
        PyObject *nulls = PyTuple_GetItem(columns, 3);
        if (nulls != Py_None) {
            const Py_buffer *places = PyMemoryView_GET_BUFFER(nulls);
            const int64_t *place = places->buf;
            const Py_ssize_t missing = places->len / 8;
            check(missing > 0);
            for (Py_ssize_t i = 0; i < missing; ++i)
                check(place[i] < count - 1 + missing &&
                      (i == 0 ? place[i] >= 0 : place[i] > place[i - 1]));
        }
    }
    Py_DECREF(columns);
}

typedef struct {
    choices *from;
    struct ArrowSchema shape; /* the schema's layout */
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
    if (self->arrays >= 4) return 0; /* the end: *out stays released */
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
    /* It has been moved. */
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
