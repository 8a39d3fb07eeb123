/* The library's log lines, from any thread: NativeLog.line(number, level, message). */
%{
static void batchllm_java_log(void *user, int32_t level, const char *message) {
    JavaVM *vm = batchllm_java_vm;
    JNIEnv *env = NULL;
    int attached = 0;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK) {
        /* A thread of the library. This fails while the JVM shuts down; the line is lost then. */
        JavaVMAttachArgs arguments = {JNI_VERSION_10, (char *)"batchllm", NULL};
        if ((*vm)->AttachCurrentThreadAsDaemon(vm, (void **)&env, &arguments) != JNI_OK) return;
        attached = 1;
    }
    if (!(*env)->ExceptionCheck(env)) {
        jbyteArray bytes = batchllm_java_bytes(env, message);
        if (bytes)
            (*env)->CallStaticVoidMethod(env, batchllm_java_log_class, batchllm_java_log_line,
                                         (jlong)(intptr_t)user, (jint)level, bytes);
        if (bytes) (*env)->DeleteLocalRef(env, bytes);
        /* NativeLog catches what a logger throws, so this can only be a lack of memory. */
        if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
    }
    if (attached) (*vm)->DetachCurrentThread(vm);
}
%}

%inline %{
/* Forwards the log lines of the engine created with these options as those of engine `number`. */
static void batchllm_set_log(batchllm_engine_options *options, int64_t number) {
    options->log = batchllm_java_log;
    options->log_user = (void *)(intptr_t)number;
}
%}
