package org.batchllm;

/** The library as a whole. */
public final class BatchLlm {
    private BatchLlm() {}

    /**
     * The version of the native library.
     *
     * @return "major.minor.patch"
     */
    public static String version() {
        return version(Native.batchllm_version());
    }

    static String version(int version) {
        return (version >> 16) + "." + (version >> 8 & 0xff) + "." + (version & 0xff);
    }

    /**
     * Calls into native code since the library was loaded. No call is made once per row; tests check this with the
     * number.
     *
     * @return calls, including getters of small structs
     */
    public static long nativeCalls() {
        return Native.batchllm_calls();
    }
}
