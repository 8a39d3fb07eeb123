/* What Java makes of the types of bindings/swig: see batchllm.i there. Everything generated is seen by
 * package org.batchllm alone; its classes are the interface. A native call is no safepoint of the
 * JVM's, so nothing has to be released around long ones. */
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

/* Java has no unsigned numbers: the same bits. */
%apply long long { int64_t, uint64_t };
%apply int { int32_t, uint32_t };

%include "errors.i"
%include "text.i"
%include "column.i"
%include "log.i"

/* Of which version this layer is: classes and layer are made together and must not be mixed. */
%inline %{
static uint32_t batchllm_java_version(void) {
    return BATCHLLM_VERSION_MAJOR << 16 | BATCHLLM_VERSION_MINOR << 8 | BATCHLLM_VERSION_PATCH;
}
%}
