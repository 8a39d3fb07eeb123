/* Status numbers -> exceptions: batchllm.errors.error_for(status, text) makes them. */
%{
static void batchllm_python_raise(batchllm_status status) {
    char text[4096];
    batchllm_failure_text(text, sizeof text);
    PyObject *module = PyImport_ImportModule("batchllm.errors");
    PyObject *made =
        module ? PyObject_CallMethod(module, "error_for", "iN", (int)status,
                                     PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"))
               : NULL;
    if (made) PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    Py_XDECREF(made);
    Py_XDECREF(module);
}
%}

%typemap(out) batchllm_status {
    if ($1 != BATCHLLM_OK) {
        batchllm_python_raise($1);
        SWIG_fail;
    }
    $result = SWIG_Py_Void();
}
%typemap(in, numinputs=0) batchllm_status *FAILURE (batchllm_status failure = BATCHLLM_OK) {
    $1 = &failure;
}
%typemap(argout) batchllm_status *FAILURE {
    if (*$1 != BATCHLLM_OK) {
        Py_CLEAR($result);
        batchllm_python_raise(*$1);
        SWIG_fail;
    }
}
