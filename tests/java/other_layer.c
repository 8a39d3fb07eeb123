/* libbatchllm_java.so of another version or, without OTHER_VERSION, from before it had one. */
#include <stdint.h>

#ifdef OTHER_VERSION
__attribute__((visibility("default"))) int32_t
Java_org_batchllm_NativeJNI_batchllm_1java_1version(void *environment, void *class_of_it) {
    (void)environment;
    (void)class_of_it;
    return OTHER_VERSION;
}
#endif
