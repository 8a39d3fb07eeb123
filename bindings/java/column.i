/* Columns. In: a direct buffer, borrowed for the call (the whole buffer: callers pass a slice), or
 * a primitive array, copied for the call, because a JVM may stop collecting garbage while native
 * code has access to an array, and these calls are long and may log. Out: a direct ByteBuffer over
 * the library's memory; the Java side (NativeMemory) manages its lifetime. */
%{
#include <sys/mman.h>

static const int64_t batchllm_java_nothing[1];

/* A column that makes the call fail: every function rejects a count of -1. */
static const void *batchllm_java_refuse(int64_t *count) {
    *count = -1;
    return batchllm_java_nothing;
}

/* Memory for a copy. Large copies use huge pages where available, since most of a copy's cost is
 * touching its pages for the first time. */
static void *batchllm_java_room(size_t size) {
    enum { huge = 1 << 21 };
    void *room = NULL;
    if (size < 4 * huge) return malloc(size + 1);
    if (posix_memalign(&room, huge, size) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(room, size, MADV_HUGEPAGE);
#endif
    return room;
}

/* type: the array's class. The caller frees *copy. On return an exception may be pending; then the
 * count is -1, so that the call fails and frees the copies of its other columns. */
static const void *batchllm_java_borrow(JNIEnv *env, jobject object, const char *type,
                                        int64_t *count, void **copy) {
    *count = 0;
    if ((*env)->ExceptionCheck(env)) return batchllm_java_refuse(count);
    if (!object) return NULL;
    const void *address = (*env)->GetDirectBufferAddress(env, object);
    if (address) {
        *count = (*env)->GetDirectBufferCapacity(env, object);
        return address;
    }
    jclass expected = (*env)->FindClass(env, type);
    if (!expected) return batchllm_java_refuse(count);
    if (!(*env)->IsInstanceOf(env, object, expected)) {
        jclass error = (*env)->FindClass(env, "java/lang/ClassCastException");
        if (error) (*env)->ThrowNew(env, error, "neither a direct buffer nor the column's array");
        return batchllm_java_refuse(count);
    }
    const jsize length = (*env)->GetArrayLength(env, object);
    const char kind = type[1];
    const size_t item = kind == 'B' ? 1 : kind == 'I' || kind == 'F' ? 4 : 8;
    *copy = batchllm_java_room((size_t)length * item);
    if (!*copy) {
        batchllm_java_throw_memory(env);
        return batchllm_java_refuse(count);
    }
    switch (kind) {
    case 'B': (*env)->GetByteArrayRegion(env, object, 0, length, *copy); break;
    case 'I': (*env)->GetIntArrayRegion(env, object, 0, length, *copy); break;
    case 'J': (*env)->GetLongArrayRegion(env, object, 0, length, *copy); break;
    case 'F': (*env)->GetFloatArrayRegion(env, object, 0, length, *copy); break;
    default: (*env)->GetDoubleArrayRegion(env, object, 0, length, *copy); break;
    }
    *count = length;
    return *copy;
}

static jobject batchllm_java_lend(JNIEnv *env, const void *data, int64_t count, size_t item) {
    if (count > INT32_MAX / (int64_t)item) {
        batchllm_java_throw(env, batchllm_layer_fail(BATCHLLM_ERROR_UNSUPPORTED,
                                 "a column of %lld items of %zu bytes does not fit a Java buffer of "
                                 "2 GiB: take fewer results at once",
                                 (long long)count, item));
        return NULL;
    }
    return (*env)->NewDirectByteBuffer(env, (void *)(data ? data : batchllm_java_nothing),
                                       data ? count * (jlong)item : 0);
}
%}

%define %batchllm_java_view(NAME, CTYPE, ARRAY)
%typemap(jni) batchllm_view_##NAME "jobject"
%typemap(jtype) batchllm_view_##NAME "Object"
%typemap(jstype) batchllm_view_##NAME "Object"
%typemap(jtype, out="java.nio.ByteBuffer") batchllm_view_##NAME "Object"
%typemap(jstype, out="java.nio.ByteBuffer") batchllm_view_##NAME "Object"
%typemap(javain) batchllm_view_##NAME "$javainput"
%typemap(javaout) batchllm_view_##NAME {
    return $jnicall;
  }
%typemap(in) batchllm_view_##NAME (void *copy = NULL) {
    $1.data = (const CTYPE *)batchllm_java_borrow(jenv, $input, ARRAY, &$1.count, &copy);
}
%typemap(freearg) batchllm_view_##NAME {
    free(copy$argnum);
}
%typemap(out) batchllm_view_##NAME {
    $result = batchllm_java_lend(jenv, $1.data, $1.count, sizeof(CTYPE));
}
%enddef
%batchllm_java_view(bytes, char, "[B")
%batchllm_java_view(i32, int32_t, "[I")
%batchllm_java_view(i64, int64_t, "[J")
%batchllm_java_view(u64, uint64_t, "[J")
%batchllm_java_view(f32, float, "[F")
%batchllm_java_view(f64, double, "[D")
