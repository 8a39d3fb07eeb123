package org.batchllm.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ResourceBundle;
import org.batchllm.BatchLlmException;
import org.batchllm.Constraint;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.SamplingParams;

/**
 * Mistakes in options that are mistakes whatever the model is, found on the driver before any task runs. The driver may
 * not have the model, so engines of the backend "sim" read what the executors' engines will read, and say the same.
 * Mistakes that depend on the model (a token beyond its vocabulary, an option of its backend) fail the tasks.
 */
final class OptionCheck {
    private static final int BYTES = 256;
    private static final String CONFIG = "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 8, "
            + "\"intermediate_size\": 8, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"num_hidden_layers\": 1, "
            + "\"vocab_size\": " + (BYTES + 1) + ", \"eos_token_id\": " + BYTES + ", \"max_position_embeddings\": 8, "
            + "\"rms_norm_eps\": 1e-6}";

    private OptionCheck() {}

    /** Throws IllegalArgumentException. constraint: of all rows; null: none. */
    static void check(BatchLlmOptions options, Constraint constraint) {
        try {
            Path folder = Files.createTempDirectory("batchllm");
            try {
                check(options, constraint, folder);
            } finally {
                Files.deleteIfExists(folder.resolve("config.json"));
                Files.deleteIfExists(folder.resolve("tokenizer.json"));
                Files.deleteIfExists(folder);
            }
        } catch (BatchLlmException.InvalidArgument | BatchLlmException.Unsupported | BatchLlmException.InvalidState e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        } catch (IOException e) {
            throw new UncheckedIOException("a temporary folder on the driver", e);
        }
    }

    private static void check(BatchLlmOptions options, Constraint constraint, Path folder) throws IOException {
        SamplingParams params = NativeEngine.paramsOfAll(options);
        if (options.model == null) {
            try (Engine engine = Engine.create(NativeEngine.engineOptions(options, devices(options), new Silence()))) {
                engine.check(params);
                if (constraint != null) engine.prepare(constraint);
            }
            return;
        }
        checkEngine(options, folder);
        if (!options.generates()) return;
        try (Engine engine = Engine.create(sim("vocabulary=" + Integer.MAX_VALUE, null))) { // the model's is not known
            engine.check(params.toBuilder().stopStrings().badWords().build());
        }
        if (constraint == null && options.stopStrings.length == 0) return;
        writeModel(folder);
        try (Engine engine = Engine.create(sim(null, folder))) {
            engine.check(SamplingParams.builder().stopStrings(options.stopStrings).build());
            if (constraint != null) engine.prepare(constraint);
        }
    }

    /** The engine's options are read before its model, which is not in the folder. */
    private static void checkEngine(BatchLlmOptions options, Path folder) {
        try {
            Engine.create(NativeEngine.engineOptions(options.withModel(folder.toString()), devices(options), new Silence())).close();
        } catch (BatchLlmException.InvalidArgument e) {
            throw e;
        } catch (BatchLlmException e) {
            // No model: expected.
        }
    }

    /** Those that the tasks will have are not known here. */
    private static String devices(BatchLlmOptions options) {
        return options.devices == null ? "" : options.devices;
    }

    private static EngineOptions sim(String backendOptions, Path model) {
        EngineOptions.Builder builder = model == null ? EngineOptions.builder() : EngineOptions.builder(model);
        return builder.backend("sim").backendOptions(backendOptions).logger(new Silence()).build();
    }

    /** A model whose tokens are the bytes. Every text is a text of it. */
    private static void writeModel(Path folder) throws IOException {
        StringBuilder words = new StringBuilder();
        for (int b = 0; b < BYTES; b++) words.append(String.format("\"\\u%04x\": %d, ", letterOf(b), b));
        Files.writeString(folder.resolve("config.json"), CONFIG);
        Files.writeString(folder.resolve("tokenizer.json"), "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": " + BYTES
                + ", \"content\": \"<eos>\", \"special\": true, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                + "\"normalized\": false}], \"normalizer\": null, \"post_processor\": null, "
                + "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}, "
                + "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {" + words
                + "\"<eos>\": " + BYTES + "}, \"merges\": []}}");
    }

    /** The letter for a byte in a byte-level vocabulary: itself if it can be seen, else the next one from 256 on. */
    private static int letterOf(int b) {
        int hidden = 0;
        for (int other = 0; other <= b; other++) {
            boolean seen = other > ' ' && other < 0x7f || other > 0xa0 && other != 0xad;
            if (other == b) return seen ? b : BYTES + hidden;
            if (!seen) hidden++;
        }
        throw new AssertionError();
    }

    /** What these engines would log is logged by those of the tasks. */
    private static final class Silence implements System.Logger {
        @Override
        public String getName() {
            return "silence";
        }

        @Override
        public boolean isLoggable(Level level) {
            return false;
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String text, Throwable thrown) {}

        @Override
        public void log(Level level, ResourceBundle bundle, String text, Object... parameters) {}
    }
}
