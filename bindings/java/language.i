/* How the types of bindings/swig map to Java: see batchllm.i there. Generated classes are visible
 * only to package org.batchllm, whose own classes are the interface. A native call does not hold up
 * the JVM's safepoints, so long calls need not release anything. */
%define %batchllm_blocking(FUNCTION)
%enddef

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    NativeLibrary.load();
  }
%}
%javaconst(1);

/* Handles: freed by Handle and its cleaner, not by finalizers. */
%typemap(javaclassmodifiers) SWIGTYPE, SWIGTYPE *, SWIGTYPE [] "final class"
%typemap(javafinalize) SWIGTYPE ""
%typemap(javainterfaces) SWIGTYPE "NativeObject"

/* Java has no unsigned integers, so these keep their bits. */
%apply long long { int64_t, uint64_t };
%apply int { int32_t, uint32_t };

%include "errors.i"
%include "text.i"
%include "column.i"
%include "log.i"

/* The version of this layer. Classes and layer are built together and must not be mixed. */
%inline %{
static uint32_t batchllm_java_version(void) {
    return BATCHLLM_VERSION_MAJOR << 16 | BATCHLLM_VERSION_MINOR << 8 | BATCHLLM_VERSION_PATCH;
}
%}
