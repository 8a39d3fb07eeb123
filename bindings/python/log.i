/* The library's log lines, from whichever of its threads, to one Python function:
 * on_log(engine number, level, message). */
%{
static PyObject *batchllm_python_log_function; /* for the life of the process */

static void batchllm_python_log(void *user, int32_t level, const char *message) {
    /* After the interpreter's end there is nobody to tell, and nothing to hold on to. */
    if (!Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    if (batchllm_python_log_function) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *done = PyObject_CallFunction(
            batchllm_python_log_function, "LiN", (long long)(intptr_t)user, (int)level,
            PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace"));
        /* The function keeps its own errors for the engine's next call; this is the last resort. */
        if (!done) PyErr_WriteUnraisable(batchllm_python_log_function);
        Py_XDECREF(done);
        PyErr_Restore(type, value, trace);
    }
    PyGILState_Release(state);
}
%}

%inline %{
static void batchllm_on_log(PyObject *function) {
    Py_XINCREF(function);
    Py_XSETREF(batchllm_python_log_function, function);
}

/* Passes the lines of the engine made with these options on, as those of engine `number`. */
static void batchllm_set_log(batchllm_engine_options *options, int64_t number) {
    options->log = batchllm_python_log;
    options->log_user = (void *)(intptr_t)number;
}
%}
