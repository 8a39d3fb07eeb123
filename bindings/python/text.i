/* Texts and paths as the library takes them: str, bytes or os.PathLike; file names that are no UTF-8 keep
 * their bytes, as in os.fsencode; a zero byte, where C's text would end, is refused. None is NULL. */
%typemap(in) const char * (PyObject *encoded = NULL) {
    if ($input != Py_None && !PyUnicode_FSConverter($input, &encoded)) SWIG_fail;
    $1 = encoded ? PyBytes_AS_STRING(encoded) : NULL;
}
%typemap(freearg) const char * {
    Py_XDECREF(encoded$argnum);
}
