/* The library's log lines, from whichever of its threads: NativeLog.line(number, level, message). */
%{
static void batchllm_java_log(void *user, int32_t level, const char *message) {
    JavaVM *vm = batchllm_java_vm;
    JNIEnv *env = NULL;
    int attached = 0;
    if ((*vm)->GetEnv(vm, (void **)&env, JNI_VERSION_10) != JNI_OK) {
        /* A thread of the library's. Fails when the JVM ends: there is nobody to tell then. */
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
        /* NativeLog catches what a logger throws; what is left is memory running out. */
        if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
    }
    if (attached) (*vm)->DetachCurrentThread(vm);
}
%}

%inline %{
/* Passes the lines of the engine made with these options on, as those of engine `number`. */
static void batchllm_set_log(batchllm_engine_options *options, int64_t number) {
    options->log = batchllm_java_log;
    options->log_user = (void *)(intptr_t)number;
}
%}
