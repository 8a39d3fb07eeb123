package org.batchllm;

import java.lang.System.Logger;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.Arrays;

/** Options of an engine. Immutable; options that are not set have the library's defaults. */
public final class EngineOptions {
    private final Builder values;

    private EngineOptions(Builder values) {
        this.values = values;
    }

    /**
     * Options for a model.
     *
     * @param modelDirectory a Hugging Face directory
     * @return a builder
     */
    public static Builder builder(Path modelDirectory) {
        return new Builder(Objects.requireNonNull(modelDirectory, "modelDirectory is null").toString());
    }

    /**
     * Options without a model, which backend "sim" does not need.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder(null);
    }

    Logger logger() {
        return values.logger != null ? values.logger : System.getLogger("org.batchllm");
    }

    /** What reads pictures below the folders, which the caller must delete; null: none. */
    batchllm_pictures makePictures() {
        if (values.imageFolders.isEmpty() || values.modelDirectory == null) return null;
        return Native.batchllm_pictures_open(
                values.modelDirectory, Utf8.bytes(String.join("\0", values.imageFolders) + "\0"));
    }

    /** The native options. The caller must delete them. */
    batchllm_engine_options make(long logNumber) {
        batchllm_engine_options options = new batchllm_engine_options();
        try {
            options.setModel_dir(values.modelDirectory);
            options.setBackend(values.backend);
            options.setDevices(values.devices);
            options.setCompute_type(values.computeType);
            options.setBackend_options(values.backendOptions);
            options.setTimeline_path(values.timeline);
            if (values.threads != null) options.setThreads(values.threads);
            if (values.kvMemoryBytes != null) options.setKv_memory_bytes(values.kvMemoryBytes);
            if (values.kvMemoryFraction != null) options.setKv_memory_fraction(values.kvMemoryFraction);
            if (values.stepTokens != null) options.setStep_tokens(values.stepTokens);
            if (values.maxRequestTokens != null) options.setMax_request_tokens(values.maxRequestTokens);
            if (values.maxRequests != null) options.setMax_requests(values.maxRequests);
            if (values.adapterMemoryBytes != null) options.setAdapter_memory_bytes(values.adapterMemoryBytes);
            if (values.sharing != null) options.setEnlarge(values.sharing.number);
            if (values.levels != null) options.setLevels(values.levels);
            if (values.minPrefixTokens != null) options.setMin_prefix_tokens(values.minPrefixTokens);
            if (values.reproducible) options.setReproducible(1);
            if (values.seed != null) options.setSeed(values.seed);
            options.setLog_level(NativeLog.level(logger()));
            Native.batchllm_set_log(options, logNumber);
            return options;
        } catch (Throwable thrown) {
            options.delete();
            throw thrown;
        }
    }

    /** Sets options. */
    public static final class Builder extends PlanningBuilder<Builder> {
        private final String modelDirectory;
        private String backend;
        private String devices;
        private String computeType;
        private String backendOptions;
        private String timeline;
        private Integer threads;
        private Long kvMemoryBytes;
        private Double kvMemoryFraction;
        private Long stepTokens;
        private Long maxRequestTokens;
        private Long maxRequests;
        private Long adapterMemoryBytes;
        private List<String> imageFolders = List.of();
        private boolean reproducible;
        private Long seed;
        private Logger logger;

        private Builder(String modelDirectory) {
            this.modelDirectory = modelDirectory;
        }

        /**
         * The backend.
         *
         * @param value "auto" (the default), "cpu", "cuda" or "sim"
         * @return this
         */
        public Builder backend(String value) {
            backend = value;
            return this;
        }

        /**
         * The CUDA devices.
         *
         * @param value numbers, "0" or "0,1"; default "0"
         * @return this
         */
        public Builder devices(String value) {
            devices = value;
            return this;
        }

        /**
         * The type of the arithmetic.
         *
         * @param value "auto" (the default), "bf16", "f16" or "f32"
         * @return this
         */
        public Builder computeType(String value) {
            computeType = value;
            return this;
        }

        /**
         * Options of the backend.
         *
         * @param value "key=value,key=value"
         * @return this
         */
        public Builder backendOptions(String value) {
            backendOptions = value;
            return this;
        }

        /**
         * CPU threads.
         *
         * @param value default 0: every core that this process may use
         * @return this
         */
        public Builder threads(int value) {
            threads = value;
            return this;
        }

        /**
         * Memory for KV pages.
         *
         * @param value bytes; default 0: set by {@link #kvMemoryFraction}
         * @return this
         */
        public Builder kvMemoryBytes(long value) {
            kvMemoryBytes = value;
            return this;
        }

        /**
         * Memory for KV pages, as a share of the memory that is free after the model is loaded.
         *
         * @param value default 0: 0.9 on a GPU, 0.4 on a CPU
         * @return this
         */
        public Builder kvMemoryFraction(double value) {
            kvMemoryFraction = value;
            return this;
        }

        /**
         * Maximum tokens computed in a step.
         *
         * @param value default 0: chosen by the backend
         * @return this
         */
        public Builder stepTokens(long value) {
            stepTokens = value;
            return this;
        }

        /**
         * Longest prompt plus output.
         *
         * @param value tokens; default 0: what the model states
         * @return this
         */
        public Builder maxRequestTokens(long value) {
            maxRequestTokens = value;
            return this;
        }

        /**
         * Maximum requests running at once.
         *
         * @param value default 0: limited only by memory
         * @return this
         */
        public Builder maxRequests(long value) {
            maxRequests = value;
            return this;
        }

        /**
         * Maximum memory for the adapters of running rows, on each device.
         *
         * @param value bytes; default 0: at most 2 GiB
         * @return this
         */
        public Builder adapterMemoryBytes(long value) {
            adapterMemoryBytes = value;
            return this;
        }

        /**
         * Rows may name pictures in these folders and below them.
         *
         * @param folders default none: rows name no files
         * @return this
         */
        public Builder imageFolders(Path... folders) {
            imageFolders = Arrays.stream(folders).map(Path::toString).collect(Collectors.toList());
            return this;
        }

        /**
         * A row's results are the same bits whatever rows are computed with it, shared or not, for any step size,
         * memory and number of threads. On "cuda" in 16 bits this holds if the row shares the same prefixes.
         *
         * @param value default false: last bits may differ
         * @return this
         */
        public Builder reproducible(boolean value) {
            reproducible = value;
            return this;
        }

        /**
         * Mixed into each row's own seed.
         *
         * @param value 64 bits
         * @return this
         */
        public Builder seed(long value) {
            seed = value;
            return this;
        }

        /**
         * A CSV file with a line for each step.
         *
         * @param value the file; an existing one is overwritten
         * @return this
         */
        public Builder timeline(Path value) {
            timeline = value == null ? null : value.toString();
            return this;
        }

        /**
         * Where the engine's log lines go. The logger is called on any thread and must not call the engine. Which
         * levels it accepts is determined once, when the engine is created.
         *
         * @param value default: System.getLogger("org.batchllm")
         * @return this
         */
        public Builder logger(Logger value) {
            logger = value;
            return this;
        }

        /**
         * The options so far.
         *
         * @return options that later calls here do not change
         */
        public EngineOptions build() {
            return new EngineOptions(copy());
        }
    }
}
