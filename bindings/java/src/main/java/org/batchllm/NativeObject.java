package org.batchllm;

/** The methods that SWIG generates for a native object. */
interface NativeObject {
    /** Frees it; a second call does nothing. */
    void delete();
}
