/* Passes the library's log lines, from any thread, to one Python function:
 * on_log(engine number, level, message). */
%{
static PyObject *batchllm_python_log_function; /* for the life of the process */

/* While an interpreter shuts down, it ends any thread that requests its lock. That must not happen
 * inside the library, so no thread requests it after batchllm_end_log. */
static int32_t batchllm_python_log_ended;
static int32_t batchllm_python_logging; /* threads within batchllm_python_log_line */

static void batchllm_python_log_line(void *user, int32_t level, const char *message) {
    const PyGILState_STATE state = PyGILState_Ensure();
    if (batchllm_python_log_function) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *done = PyObject_CallFunction(
            batchllm_python_log_function, "LiN", (long long)(intptr_t)user, (int)level,
            PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace"));
        /* The function keeps its own errors for the engine's next call. This is the last resort. */
        if (!done) PyErr_WriteUnraisable(batchllm_python_log_function);
        Py_XDECREF(done);
        PyErr_Restore(type, value, trace);
    }
    PyGILState_Release(state);
}

static void batchllm_python_log(void *user, int32_t level, const char *message) {
    __atomic_fetch_add(&batchllm_python_logging, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&batchllm_python_log_ended, __ATOMIC_SEQ_CST))
        batchllm_python_log_line(user, level, message);
    __atomic_fetch_sub(&batchllm_python_logging, 1, __ATOMIC_SEQ_CST);
}

static void batchllm_python_log_restart(void) {
    __atomic_store_n(&batchllm_python_logging, 0, __ATOMIC_SEQ_CST);
}
%}

%init %{
    /* In the child of a fork() those threads no longer exist, so none would ever leave. */
    pthread_atfork(NULL, NULL, batchllm_python_log_restart);
%}

%batchllm_blocking(batchllm_end_log)
%inline %{
/* Called before the interpreter ends: no further lines are forwarded, and on return no call is in
 * progress. */
static void batchllm_end_log(void) {
    const struct timespec moment = {0, 1000000};
    __atomic_store_n(&batchllm_python_log_ended, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&batchllm_python_logging, __ATOMIC_SEQ_CST) > 0) nanosleep(&moment, NULL);
}

/* PyGILState_Ensure only supports the main interpreter, so functions of other interpreters cannot
 * be called. */
static PyObject *batchllm_on_log(PyObject *function) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) { /* 0: the main one */
        PyErr_SetString(PyExc_ImportError, "batchllm cannot be used in a subinterpreter");
        return NULL;
    }
    PyObject *before = batchllm_python_log_function;
    Py_XINCREF(function);
    batchllm_python_log_function = function;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* Forwards the log lines of the engine created with these options as those of engine `number`. */
static void batchllm_set_log(batchllm_engine_options *options, int64_t number) {
    options->log = batchllm_python_log;
    options->log_user = (void *)(intptr_t)number;
}
%}
