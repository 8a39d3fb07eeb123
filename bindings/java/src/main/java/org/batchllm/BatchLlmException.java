package org.batchllm;

/**
 * A call, or an engine as a whole, has failed. Each kind of failure is a class, so that it can be caught. An error of a
 * single row is never thrown, but is part of the row's {@link Result}.
 *
 * <p>In addition, use after close, close while in use, and use by two threads at once throw {@link
 * IllegalStateException}.
 */
public class BatchLlmException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** BATCHLLM_ERROR_ in the C header. */
    private final int status;

    BatchLlmException(int status, String message) {
        super(message);
        this.status = status;
    }

    /**
     * The library's number of this failure.
     *
     * @return BATCHLLM_ERROR_ in the C header
     */
    public int status() {
        return status;
    }

    /**
     * The name of {@link #status}, which stays the same if messages change.
     *
     * @return for example "BATCHLLM_ERROR_IO"
     */
    public String code() {
        return Status.name(status);
    }

    /** An argument or a column is not valid. */
    public static final class InvalidArgument extends BatchLlmException {
        private static final long serialVersionUID = 1;

        InvalidArgument(int status, String message) {
            super(status, message);
        }
    }

    /** Host or device memory ran out. */
    public static final class OutOfMemory extends BatchLlmException {
        private static final long serialVersionUID = 1;

        OutOfMemory(int status, String message) {
            super(status, message);
        }
    }

    /** A file could not be read or written. */
    public static final class Io extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Io(int status, String message) {
            super(status, message);
        }
    }

    /** A job was stopped by {@link Engine#interrupt} or by a progress listener. */
    public static final class Stopped extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Stopped(int status, String message) {
            super(status, message);
        }
    }

    /** A bug in the library: please report it. */
    public static final class Internal extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Internal(int status, String message) {
            super(status, message);
        }
    }

    /** Well-formed, but not supported; the message says what. */
    public static final class Unsupported extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Unsupported(int status, String message) {
            super(status, message);
        }
    }

    /** The call is not valid in the object's current state. */
    public static final class InvalidState extends BatchLlmException {
        private static final long serialVersionUID = 1;

        InvalidState(int status, String message) {
            super(status, message);
        }
    }

    /** A file of a model, a tokenizer or a plan is damaged or has the wrong format. */
    public static class Format extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Format(int status, String message) {
            super(status, message);
        }
    }

    /** config.json, generation_config.json or a safetensors file is invalid. */
    public static final class ModelFormat extends Format {
        private static final long serialVersionUID = 1;

        ModelFormat(int status, String message) {
            super(status, message);
        }
    }

    /** tokenizer.json or tokenizer_config.json is invalid. */
    public static final class TokenizerFormat extends Format {
        private static final long serialVersionUID = 1;

        TokenizerFormat(int status, String message) {
            super(status, message);
        }
    }

    /** The file is not a plan, is damaged, or has a newer format. */
    public static final class PlanFormat extends Format {
        private static final long serialVersionUID = 1;

        PlanFormat(int status, String message) {
            super(status, message);
        }
    }

    /** The plan was made with another tokenizer. */
    public static final class PlanMismatch extends BatchLlmException {
        private static final long serialVersionUID = 1;

        PlanMismatch(int status, String message) {
            super(status, message);
        }
    }

    /** What resuming needs is damaged, was edited, or is missing. */
    public static final class JournalFormat extends Format {
        private static final long serialVersionUID = 1;

        JournalFormat(int status, String message) {
            super(status, message);
        }
    }

    /** The journal is another job's; the message names the difference. */
    public static final class JournalMismatch extends BatchLlmException {
        private static final long serialVersionUID = 1;

        JournalMismatch(int status, String message) {
            super(status, message);
        }
    }

    /** An adapter's files are damaged, or do not fit the model. */
    public static final class AdapterFormat extends BatchLlmException {
        private static final long serialVersionUID = 1;

        AdapterFormat(int status, String message) {
            super(status, message);
        }
    }

    /** There is an output already, which is to be neither resumed nor overwritten. */
    public static final class JournalExists extends BatchLlmException {
        private static final long serialVersionUID = 1;

        JournalExists(int status, String message) {
            super(status, message);
        }
    }

    /** The backend is not available on this machine: no driver, or no device. */
    public static final class BackendUnavailable extends BatchLlmException {
        private static final long serialVersionUID = 1;

        BackendUnavailable(int status, String message) {
            super(status, message);
        }
    }

    /** The device failed. The engine stays failed; finished rows can still be polled. */
    public static final class Device extends BatchLlmException {
        private static final long serialVersionUID = 1;

        Device(int status, String message) {
            super(status, message);
        }
    }

    /** Called by native code. */
    static BatchLlmException of(int status, byte[] utf8) {
        String message = Utf8.string(utf8);
        switch (status) {
            case Native.BATCHLLM_ERROR_INVALID_ARGUMENT:
                return new InvalidArgument(status, message);
            case Native.BATCHLLM_ERROR_OUT_OF_MEMORY:
                return new OutOfMemory(status, message);
            case Native.BATCHLLM_ERROR_IO:
                return new Io(status, message);
            case Native.BATCHLLM_ERROR_STOPPED:
                return new Stopped(status, message);
            case Native.BATCHLLM_ERROR_INTERNAL:
                return new Internal(status, message);
            case Native.BATCHLLM_ERROR_UNSUPPORTED:
                return new Unsupported(status, message);
            case Native.BATCHLLM_ERROR_STATE:
                return new InvalidState(status, message);
            case Native.BATCHLLM_ERROR_MODEL_FORMAT:
                return new ModelFormat(status, message);
            case Native.BATCHLLM_ERROR_TOKENIZER_FORMAT:
                return new TokenizerFormat(status, message);
            case Native.BATCHLLM_ERROR_PLAN_FORMAT:
                return new PlanFormat(status, message);
            case Native.BATCHLLM_ERROR_PLAN_MISMATCH:
                return new PlanMismatch(status, message);
            case Native.BATCHLLM_ERROR_JOURNAL_FORMAT:
                return new JournalFormat(status, message);
            case Native.BATCHLLM_ERROR_JOURNAL_MISMATCH:
                return new JournalMismatch(status, message);
            case Native.BATCHLLM_ERROR_JOURNAL_EXISTS:
                return new JournalExists(status, message);
            case Native.BATCHLLM_ERROR_ADAPTER_FORMAT:
                return new AdapterFormat(status, message);
            case Native.BATCHLLM_ERROR_BACKEND_UNAVAILABLE:
                return new BackendUnavailable(status, message);
            case Native.BATCHLLM_ERROR_DEVICE:
                return new Device(status, message);
            default:
                return new BatchLlmException(status, message);
        }
    }
}
