/* Texts and paths: str, bytes or os.PathLike. File names that are not UTF-8 keep their bytes, as in
 * os.fsencode. A zero byte is rejected, because it would end the text in C. None is NULL. */
%typemap(in) const char * (PyObject *encoded = NULL) {
    if ($input != Py_None && !PyUnicode_FSConverter($input, &encoded)) SWIG_fail;
    $1 = encoded ? PyBytes_AsString(encoded) : NULL;
}
%typemap(freearg) const char * {
    Py_XDECREF(encoded$argnum);
}
