package org.batchllm;

/** The library's status numbers, of calls ({@link BatchLlmException}) and of rows ({@link Result}). */
public final class Status {
    /** Nothing went wrong. */
    public static final int OK = Native.BATCHLLM_OK;
    /** The prompt is empty. */
    public static final int ROW_EMPTY = Native.BATCHLLM_ERROR_ROW_EMPTY;
    /** The prompt plus one token exceeds the longest request. */
    public static final int ROW_TOO_LONG = Native.BATCHLLM_ERROR_ROW_TOO_LONG;
    /** The text is not valid UTF-8. */
    public static final int ROW_INVALID_UTF8 = Native.BATCHLLM_ERROR_ROW_INVALID_UTF8;
    /** A token id is outside the vocabulary. */
    public static final int ROW_UNKNOWN_TOKEN = Native.BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN;
    /** A sampling parameter is out of its range. */
    public static final int ROW_INVALID_PARAMETER = Native.BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    /** The chat template failed. */
    public static final int ROW_TEMPLATE = Native.BATCHLLM_ERROR_ROW_TEMPLATE;
    /** The row needs more KV pages than the pool has. */
    public static final int ROW_TOO_LARGE = Native.BATCHLLM_ERROR_ROW_TOO_LARGE;
    /** The model's logits for the row are not finite. */
    public static final int ROW_NOT_A_NUMBER = Native.BATCHLLM_ERROR_ROW_NOT_A_NUMBER;
    /** The row's constraint allows no continuation. */
    public static final int ROW_CONSTRAINT = Native.BATCHLLM_ERROR_ROW_CONSTRAINT;
    /** A cell that the row's prompt needs is null. */
    public static final int ROW_NULL = Native.BATCHLLM_ERROR_ROW_NULL;
    /** The row's adapter cannot be read again, or has changed. */
    public static final int ROW_ADAPTER = Native.BATCHLLM_ERROR_ROW_ADAPTER;
    /** A picture of the row cannot be read, or the row cannot have it. */
    public static final int ROW_PICTURE = Native.BATCHLLM_ERROR_ROW_PICTURE;

    private static final String COMMON = "BATCHLLM_ERROR_";

    private Status() {}

    /**
     * A status number's name in the C header, without BATCHLLM_ERROR_: as errors of rows begin everywhere.
     *
     * @param status a number
     * @return "IO" for 3, and so on
     */
    public static String name(int status) {
        String name = Native.batchllm_status_name(status);
        return name.startsWith(COMMON) ? name.substring(COMMON.length()) : name;
    }
}
