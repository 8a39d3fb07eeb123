/* Status numbers -> exceptions: BatchLlmException.of(status, text) makes them. */
%{
#include <stdint.h>

/* Set when the library is loaded. */
static JavaVM *batchllm_java_vm;
static jclass batchllm_java_exception_class, batchllm_java_log_class;
static jmethodID batchllm_java_exception_of, batchllm_java_log_line;

static jbyteArray batchllm_java_bytes(JNIEnv *env, const char *text) {
    const jsize size = (jsize)strlen(text);
    jbyteArray bytes = (*env)->NewByteArray(env, size);
    if (bytes) (*env)->SetByteArrayRegion(env, bytes, 0, size, (const jbyte *)text);
    return bytes;
}

/* Keeps an exception that is already pending: it is why the call failed. */
static void batchllm_java_throw(JNIEnv *env, batchllm_status status) {
    char text[4096];
    batchllm_failure_text(text, sizeof text);
    if ((*env)->ExceptionCheck(env)) return;
    jbyteArray bytes = batchllm_java_bytes(env, text);
    if (!bytes) return; /* NewByteArray has thrown OutOfMemoryError */
    jobject made = (*env)->CallStaticObjectMethod(env, batchllm_java_exception_class,
                                                  batchllm_java_exception_of, (jint)status, bytes);
    if (!(*env)->ExceptionCheck(env)) (*env)->Throw(env, (jthrowable)made);
}

static void batchllm_java_throw_memory(JNIEnv *env) {
    jclass error = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
    if (error) (*env)->ThrowNew(env, error, "no native memory for a column's copy");
}

static jclass batchllm_java_class(JNIEnv *env, const char *name) {
    jclass found = (*env)->FindClass(env, name);
    return found ? (jclass)(*env)->NewGlobalRef(env, found) : NULL;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
    (void)reserved;
    JNIEnv *env = NULL;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK) return JNI_ERR;
    batchllm_java_vm = vm;
    batchllm_java_exception_class = batchllm_java_class(env, "org/batchllm/BatchLlmException");
    if (!batchllm_java_exception_class) return JNI_ERR;
    batchllm_java_exception_of =
        (*env)->GetStaticMethodID(env, batchllm_java_exception_class, "of",
                                  "(I[B)Lorg/batchllm/BatchLlmException;");
    batchllm_java_log_class = batchllm_java_class(env, "org/batchllm/NativeLog");
    if (!batchllm_java_log_class) return JNI_ERR;
    batchllm_java_log_line =
        (*env)->GetStaticMethodID(env, batchllm_java_log_class, "line", "(JI[B)V");
    return batchllm_java_exception_of && batchllm_java_log_line ? JNI_VERSION_10 : JNI_ERR;
}
%}

%typemap(jni) batchllm_status "void"
%typemap(jtype) batchllm_status "void"
%typemap(jstype) batchllm_status "void"
%typemap(javaout) batchllm_status {
    $jnicall;
  }
%typemap(out) batchllm_status {
    if ($1 != BATCHLLM_OK) batchllm_java_throw(jenv, $1);
}

%typemap(in, numinputs=0) batchllm_status *FAILURE (batchllm_status failure = BATCHLLM_OK) {
    $1 = &failure;
}
%typemap(argout) batchllm_status *FAILURE {
    if (*$1 != BATCHLLM_OK) batchllm_java_throw(jenv, *$1);
}
