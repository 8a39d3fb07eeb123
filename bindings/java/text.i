/* Strings are passed as UTF-8 in byte arrays: JNI's own strings use a modified UTF-8, which encodes
 * U+0000 and everything above U+FFFF differently. */
%{
/* A zero-terminated copy, which the caller frees. NULL for null, or with an exception if memory has
 * run out. */
static char *batchllm_java_text(JNIEnv *env, jbyteArray bytes) {
    if (!bytes) return NULL;
    const jsize size = (*env)->GetArrayLength(env, bytes);
    char *text = malloc((size_t)size + 1);
    if (!text) {
        batchllm_java_throw_memory(env);
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, bytes, 0, size, (jbyte *)text);
    text[size] = 0;
    return text;
}
%}

%typemap(jni) const char * "jbyteArray"
%typemap(jtype) const char * "byte[]"
%typemap(jstype) const char * "String"
%typemap(javain) const char * "Utf8.terminable($javainput)"
%typemap(javaout) const char * {
    return Utf8.string($jnicall);
  }
%typemap(in) const char * {
    $1 = batchllm_java_text(jenv, $input);
    if (!$1 && $input) return $null;
}
%typemap(freearg) const char * {
    free((char *)$1);
}
%typemap(out) const char * {
    $result = $1 ? batchllm_java_bytes(jenv, $1) : NULL;
}
