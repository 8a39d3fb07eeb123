/* Columns and Python's buffer protocol. In: any contiguous buffer whose items have the type, borrowed
 * for the call. Out: a read-only memoryview that keeps the memory's owner alive.
 *
 * All of the package's code keeps to Python's limited API, so that a wheel's one extension serves every
 * version. The buffer protocol joined that API in 3.11, but is the same in 3.10. */
%{
/* Exports memory that `owner` keeps alive. */
typedef struct {
    PyObject_HEAD
    PyObject *owner;
    const void *data;
    Py_ssize_t count, item_size;
    const char *format;
} batchllm_python_column;

static void batchllm_python_column_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((batchllm_python_column *)self)->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int batchllm_python_column_buffer(PyObject *self, Py_buffer *view, int flags) {
    batchllm_python_column *column = (batchllm_python_column *)self;
    if (flags & PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "a column of the library is read-only");
        view->obj = NULL;
        return -1;
    }
    Py_INCREF(self);
    view->obj = self;
    view->buf = (void *)column->data;
    view->len = column->count * column->item_size;
    view->itemsize = column->item_size;
    view->readonly = 1;
    view->ndim = 1;
    view->format = flags & PyBUF_FORMAT ? (char *)column->format : NULL;
    view->shape = flags & PyBUF_ND ? &column->count : NULL;
    view->strides =
        (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &column->item_size : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

static PyType_Slot batchllm_python_column_slots[] = {
    {Py_tp_dealloc, batchllm_python_column_free}, {Py_bf_getbuffer, batchllm_python_column_buffer}, {0, NULL}};
static PyType_Spec batchllm_python_column_spec = {
    .name = "batchllm._native.Column",
    .basicsize = sizeof(batchllm_python_column),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = batchllm_python_column_slots,
};

static PyObject *batchllm_python_lend(PyObject *owner, const void *data, int64_t count,
                                      size_t item_size, const char *format) {
    static const int64_t nothing = 0;
    static PyTypeObject *type; /* for the life of the process */
    if (!type) type = (PyTypeObject *)PyType_FromSpec(&batchllm_python_column_spec);
    batchllm_python_column *column = type ? PyObject_New(batchllm_python_column, type) : NULL;
    if (!column) return NULL;
    Py_INCREF(owner);
    column->owner = owner;
    column->data = data ? data : &nothing;
    column->count = count;
    column->item_size = (Py_ssize_t)item_size;
    column->format = format;
    PyObject *view = PyMemoryView_FromObject((PyObject *)column);
    Py_DECREF(column);
    return view;
}

/* 0, with an exception, unless `object` is None or a buffer of `codes` (struct's letters). */
static int batchllm_python_borrow(PyObject *object, const char *type, const char *codes,
                                  size_t item_size, Py_buffer *buffer) {
    if (object == Py_None) return 1;
    if (PyObject_GetBuffer(object, buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        buffer->obj = NULL;
        return 0;
    }
    const char *format = buffer->format ? buffer->format : "B";
    if (*format == '@' || *format == '=' || (*format == '<' && PY_LITTLE_ENDIAN)) ++format;
    if (strlen(format) == 1 && strchr(codes, *format) && buffer->itemsize == (Py_ssize_t)item_size)
        return 1;
    PyErr_Format(PyExc_TypeError, "a buffer of %s is expected, not one of format '%s'", type,
                 buffer->format ? buffer->format : "B");
    PyBuffer_Release(buffer);
    return 0;
}
%}

%define %batchllm_python_view(NAME, CTYPE, TYPE, CODES, FORMAT)
%typemap(in) batchllm_view_##NAME (Py_buffer buffer = {0}) {
    if (!batchllm_python_borrow($input, TYPE, CODES, sizeof(CTYPE), &buffer)) SWIG_fail;
    $1.data = (const CTYPE *)buffer.buf;
    $1.count = buffer.len / (int64_t)sizeof(CTYPE);
}
%typemap(freearg) batchllm_view_##NAME {
    PyBuffer_Release(&buffer$argnum);
}
%typemap(out) batchllm_view_##NAME {
    $result = batchllm_python_lend(swig_obj[0], $1.data, $1.count, sizeof(CTYPE), FORMAT);
}
%enddef
%batchllm_python_view(bytes, char, "bytes", "Bbc?", "B")
%batchllm_python_view(i32, int32_t, "int32", "il", "i")
%batchllm_python_view(i64, int64_t, "int64", "qln", "q")
%batchllm_python_view(u64, uint64_t, "uint64", "QLN", "Q")
%batchllm_python_view(f32, float, "float32", "f", "f")
%batchllm_python_view(f64, double, "float64", "d", "d")
