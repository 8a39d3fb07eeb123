package org.batchllm.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import org.batchllm.Pooling;
import org.batchllm.Sharing;
import org.batchllm.Task;

/**
 * Options of {@link BatchLlm#transform}: columns, model, task, constraint, partitions, and the parameters of rows.
 * Setters change this object and return it. Options that are not set have the library's defaults.
 */
public final class BatchLlmOptions extends ParameterOptions implements Cloneable {
    private static final long serialVersionUID = 1;
    private static final long MOST_WINDOW_BYTES = 1L << 30;

    // Columns.
    String promptColumn = "prompt";
    String messagesColumn;
    String template;
    String fields = "given";
    boolean chat;
    String system;
    String keyColumn;
    String continuationsColumn;
    String maxTokensColumn;
    String temperatureColumn;
    String seedColumn;
    String choicesColumn;
    String regexColumn;
    String jsonSchemaColumn;
    String grammarColumn;
    String larkGrammarColumn;
    String adapterColumn;
    String imageColumn;
    String resultPrefix = "";
    boolean parsed;
    // Engine.
    String model;
    String backend;
    String devices;
    String computeType;
    String backendOptions;
    String planPath;
    byte[] plan;
    String enlarge;
    int threads;
    int levels;
    int minPrefixTokens;
    long kvMemoryBytes;
    double kvMemoryFraction;
    long stepTokens;
    long maxRequestTokens;
    long maxRequests;
    long adapterMemoryBytes;
    Map<String, String> adapters = Map.of(); // directories, by name
    String useAdapter;
    List<String> imageFolders = List.of();
    boolean reproducible;
    double idleSeconds = 60;
    // Task.
    String task = "generate";
    String pooling;
    Boolean normalize;
    int dimensions;
    // Constraint.
    String[] choices;
    String regex;
    String jsonSchema;
    String grammar;
    String larkGrammar;
    String startAfter = "";
    boolean flexibleWhitespace;
    boolean anyMemberOrder;
    boolean anyNumbers;
    boolean looseSchema;
    // Distribution.
    int partitions;
    boolean ordered;
    int expectedTokens;
    int sampleRows;
    int startBytes;
    int windowRows = 16_384;
    long windowBytes = 64L << 20;

    // ---- Columns ----

    /** The prompts: a string column, or an array of token ids. Default "prompt". */
    public BatchLlmOptions promptColumn(String name) {
        promptColumn = Objects.requireNonNull(name, "promptColumn is null");
        return this;
    }

    /**
     * Instead of prompts: a string column of conversations, as JSON in the form of {@code Rows.ofChat}, which are
     * rendered with the model's chat template.
     */
    public BatchLlmOptions messagesColumn(String name) {
        messagesColumn = name;
        return this;
    }

    /**
     * Instead of prompts: a text with fields, such as "Title: {title}\nReview: {text}\nAnswer:". {name} is the row's
     * value, text or a number, in the column of that name; {{ and }} write a brace. If one of these values is null, the
     * row gets an error (ROW_NULL).
     */
    public BatchLlmOptions template(String text) {
        template = text;
        return this;
    }

    /**
     * With {@link #template}: "given" (default) keeps the template's order of fields; "reorder" puts them in the order
     * that lets rows share most, which is found from a sample of the rows and is the same for all rows. Whole lines
     * move: each line of the template from that of its first field to that of its last field must have exactly one
     * field. Answers may change with the order.
     */
    public BatchLlmOptions fields(String order) {
        fields = Objects.requireNonNull(order, "fields is null");
        return this;
    }

    /** With {@link #template}: the text becomes the user's message in the model's chat template. */
    public BatchLlmOptions chat(boolean value) {
        chat = value;
        return this;
    }

    /** With {@link #chat}: the system message before it. */
    public BatchLlmOptions system(String text) {
        system = text;
        return this;
    }

    /**
     * A column of distinct integers: a key identifies its row, determines the row's random numbers, and puts results
     * back in order ({@link #ordered}). Default: none; a column "batchllm_key" is added, which increases in the order
     * of the input. Set one if the rows come from a shuffle, whose order may be another when it is computed again.
     */
    public BatchLlmOptions keyColumn(String name) {
        keyColumn = name;
        return this;
    }

    /**
     * Rows are scored, not continued: the column holds arrays of strings (or of arrays of token ids, if prompts are
     * token ids). Their log-probabilities after the prompt are in the column "scores".
     */
    public BatchLlmOptions continuationsColumn(String name) {
        continuationsColumn = name;
        return this;
    }

    /** A column of integers: maxTokens for each row; {@code maxTokens} where it is null. */
    public BatchLlmOptions maxTokensColumn(String name) {
        maxTokensColumn = name;
        return this;
    }

    /** A column of numbers: temperature for each row; {@code temperature} where it is null. */
    public BatchLlmOptions temperatureColumn(String name) {
        temperatureColumn = name;
        return this;
    }

    /** A column of integers: seed for each row; {@code seed} where it is null. */
    public BatchLlmOptions seedColumn(String name) {
        seedColumn = name;
        return this;
    }

    /**
     * A column of arrays of strings: {@link #choices} for each row. If it is null in a row, here and for the next four
     * columns, the options for all rows apply. At most one of the five columns may be set.
     */
    public BatchLlmOptions choicesColumn(String name) {
        choicesColumn = name;
        return this;
    }

    /** A string column: {@link #regex} for each row. */
    public BatchLlmOptions regexColumn(String name) {
        regexColumn = name;
        return this;
    }

    /** A string column: {@link #jsonSchema} for each row. */
    public BatchLlmOptions jsonSchemaColumn(String name) {
        jsonSchemaColumn = name;
        return this;
    }

    /** A string column: {@link #grammar} for each row. */
    public BatchLlmOptions grammarColumn(String name) {
        grammarColumn = name;
        return this;
    }

    /** A string column: {@link #larkGrammar} for each row. */
    public BatchLlmOptions larkGrammarColumn(String name) {
        larkGrammarColumn = name;
        return this;
    }

    /** A string column: the name of each row's adapter; {@link #useAdapter} where it is null, and none where it is "". */
    public BatchLlmOptions adapterColumn(String name) {
        adapterColumn = name;
        return this;
    }

    /**
     * The column of each row's picture, binary (JPEG, PNG, WebP), such as "content" of the source "binaryFile", or text
     * (a path below {@link #imageFolders}); or an array of these. With a template and chat the pictures come before the
     * template's text; otherwise the prompt has the model's placeholder, or the messages a part {"type": "image"}, for
     * each.
     */
    public BatchLlmOptions imageColumn(String name) {
        imageColumn = name;
        return this;
    }

    /** Rows may name pictures in these folders and below them, which every executor can read. Default: none. */
    public BatchLlmOptions imageFolders(List<String> folders) {
        imageFolders = List.of(texts("imageFolders", folders));
        return this;
    }

    /**
     * Rows may name this adapter, a directory as PEFT writes it, which every executor can read. May be called several
     * times. A row that names another gets an error (ROW_ADAPTER).
     */
    public BatchLlmOptions adapter(String name, String directory) {
        return adapters(Collections.singletonMap(name, directory));
    }

    /** The same for several adapters, by name. */
    public BatchLlmOptions adapters(Map<String, String> directories) {
        Objects.requireNonNull(directories, "adapters is null").forEach((name, directory) -> {
            Objects.requireNonNull(name, "adapters: a name is null");
            Objects.requireNonNull(directory, () -> "adapters: the directory of " + name + " is null");
        });
        Map<String, String> all = new TreeMap<>(adapters);
        all.putAll(directories);
        adapters = all;
        return this;
    }

    /** The adapter of rows that name none. Default: none. */
    public BatchLlmOptions useAdapter(String name) {
        useAdapter = name;
        return this;
    }

    /** Maximum memory for the adapters of running rows, on each device. Default 0: at most 2 GiB. */
    public BatchLlmOptions adapterMemoryBytes(long bytes) {
        adapterMemoryBytes = bytes;
        return this;
    }

    /** Put before the names of the result columns. Default "". */
    public BatchLlmOptions resultPrefix(String prefix) {
        resultPrefix = Objects.requireNonNull(prefix, "resultPrefix is null");
        return this;
    }

    /**
     * Adds a column {@code parsed}: the answer as a value of the type that {@link #jsonSchema} gives, a struct for an
     * object with properties. Null for rows that failed or were cut off; within it, an integer beyond 64 bits is null.
     * Default false.
     */
    public BatchLlmOptions parsed(boolean value) {
        parsed = value;
        return this;
    }

    // ---- Engine ----

    /** The model's directory, at the same path on every executor. */
    public BatchLlmOptions model(String directory) {
        model = directory;
        return this;
    }

    /** "auto" (default), "cuda", "cpu" or "sim". */
    public BatchLlmOptions backend(String name) {
        backend = name;
        return this;
    }

    /** CUDA device numbers ("0", "0,1"). Default: the addresses of the task's "gpu" resource, except with "cpu". */
    public BatchLlmOptions devices(String numbers) {
        devices = numbers;
        return this;
    }

    /** "auto" (default), "bf16", "f16" or "f32". */
    public BatchLlmOptions computeType(String name) {
        computeType = name;
        return this;
    }

    /** Options of the backend, as "key=value,key=value". */
    public BatchLlmOptions backendOptions(String pairs) {
        backendOptions = pairs;
        return this;
    }

    /**
     * A plan file (`batchllm plan`, or the Plan class) of these rows, made with the same tokenizer:
     * rows in the plan keep its groups. The file is read once, on the driver, and sent to the executors.
     */
    public BatchLlmOptions planPath(String path) {
        planPath = path;
        return this;
    }

    /** The same, as the bytes of such a file. */
    public BatchLlmOptions plan(byte[] file) {
        plan = file;
        return this;
    }

    /** Which prefixes are shared: "optimal" (default), "paper" or "none". */
    public BatchLlmOptions enlarge(String name) {
        enlarge = name;
        return this;
    }

    /** CPU threads of an engine; 0 (default): every core that the executor's process may use. */
    public BatchLlmOptions threads(int count) {
        threads = count;
        return this;
    }

    /** 0 (default): prefixes share common prefixes that save more than they cost; 1: one shared prefix per row; 2: all common prefixes. */
    public BatchLlmOptions levels(int count) {
        levels = count;
        return this;
    }

    /** Prefixes shorter than this are not shared. */
    public BatchLlmOptions minPrefixTokens(int count) {
        minPrefixTokens = count;
        return this;
    }

    /**
     * A row's results are the same bits whatever rows run with it, and therefore also if a task runs again.
     */
    public BatchLlmOptions reproducible(boolean value) {
        reproducible = value;
        return this;
    }

    /** Bytes for the KV pages of an engine. */
    public BatchLlmOptions kvMemoryBytes(long bytes) {
        kvMemoryBytes = bytes;
        return this;
    }

    /** The same, as a fraction of the memory that is free after the model is loaded. */
    public BatchLlmOptions kvMemoryFraction(double fraction) {
        kvMemoryFraction = fraction;
        return this;
    }

    /** Maximum tokens computed in a step. */
    public BatchLlmOptions stepTokens(long tokens) {
        stepTokens = tokens;
        return this;
    }

    /** Longest prompt plus output. */
    public BatchLlmOptions maxRequestTokens(long tokens) {
        maxRequestTokens = tokens;
        return this;
    }

    /** Maximum rows running at once. */
    public BatchLlmOptions maxRequests(long count) {
        maxRequests = count;
        return this;
    }

    /** How long an engine that no task uses stays loaded, for the next task. Default 60. */
    public BatchLlmOptions idleSeconds(double seconds) {
        idleSeconds = seconds;
        return this;
    }

    // ---- What is computed for the rows ----

    /**
     * "generate" (default): text and tokens. "embed": a vector, in the column "embedding". "classify": the columns
     * "label" (the likeliest label), "score" (its probability) and "probabilities" (of all labels, in the model's
     * order).
     */
    public BatchLlmOptions task(String name) {
        task = Objects.requireNonNull(name, "task is null");
        return this;
    }

    /** How a vector is made: "last", "mean" or "first". Default: as the model's files say. */
    public BatchLlmOptions pooling(String name) {
        pooling = name;
        return this;
    }

    /** Whether a vector is scaled to length 1. Default: as the model's files say. */
    public BatchLlmOptions normalize(boolean value) {
        normalize = value;
        return this;
    }

    /** Keeps this many numbers of each vector, the first ones. 0 (default): all. */
    public BatchLlmOptions dimensions(int count) {
        dimensions = count;
        return this;
    }

    // ---- Constraints on the generated text: at most one of the five ----

    /** The output is one of these texts. */
    public BatchLlmOptions choices(List<String> texts) {
        choices = texts == null ? null : texts("choices", texts);
        return this;
    }

    /** The whole output matches this regular expression. */
    public BatchLlmOptions regex(String expression) {
        regex = expression;
        return this;
    }

    /** The output is JSON that matches this schema. */
    public BatchLlmOptions jsonSchema(String schema) {
        jsonSchema = schema;
        return this;
    }

    /** The output is a text of this grammar, in GBNF. */
    public BatchLlmOptions grammar(String text) {
        grammar = text;
        return this;
    }

    /** The output is a text of this grammar, in Lark's language. */
    public BatchLlmOptions larkGrammar(String text) {
        larkGrammar = text;
        return this;
    }

    /**
     * The constraint applies after the first occurrence of this text in the output, such as "&lt;/think&gt;". Default
     * "": from the start.
     */
    public BatchLlmOptions startAfter(String text) {
        startAfter = Objects.requireNonNull(text, "startAfter is null");
        return this;
    }

    /** JSON may have spaces and line ends. Default false. */
    public BatchLlmOptions flexibleWhitespace(boolean value) {
        flexibleWhitespace = value;
        return this;
    }

    /** Members of JSON objects may come in any order. Default false: in the schema's order. */
    public BatchLlmOptions anyMemberOrder(boolean value) {
        anyMemberOrder = value;
        return this;
    }

    /** JSON numbers may be 12.0 for 12, and have exponents. Default false. */
    public BatchLlmOptions anyNumbers(boolean value) {
        anyNumbers = value;
        return this;
    }

    /**
     * Requirements of a schema that cannot be enforced exactly are ignored, and a warning in the executor's log lists
     * them. Default false: they are an error of the row with the schema, or of the job.
     */
    public BatchLlmOptions looseSchema(boolean value) {
        looseSchema = value;
        return this;
    }

    // ---- Distribution ----

    /** Partitions of the result. 0 (default): four per task slot, but none with fewer than 1,000 rows. */
    public BatchLlmOptions partitions(int count) {
        partitions = count;
        return this;
    }

    /**
     * Whether results come in the order of their keys, over all partitions. This takes one more shuffle, of the
     * results, but does not compute them twice, as an orderBy after the transform would (Spark samples what it sorts).
     * Default false: they come as they are computed, in no particular order.
     */
    public BatchLlmOptions ordered(boolean value) {
        ordered = value;
        return this;
    }

    /** Tokens that a row generates on average, to balance partitions. 0 (default): maxTokens. */
    public BatchLlmOptions expectedTokens(int count) {
        expectedTokens = count;
        return this;
    }

    /** Rows sampled to find the partitions. 0 (default): 200 per partition, from 2,000 to 100,000. */
    public BatchLlmOptions sampleRows(int count) {
        sampleRows = count;
        return this;
    }

    /**
     * How many bytes of each sampled prompt are used (about four per token). Prompts that are equal up to there are
     * treated as equal when partitions are chosen. 0 (default): 64 MiB divided by the sampled rows, from 1,024 to
     * 16,384.
     */
    public BatchLlmOptions startBytes(int count) {
        startBytes = count;
        return this;
    }

    /**
     * Maximum rows of a task that wait in memory to be added to the engine. Default 16,384.
     */
    public BatchLlmOptions windowRows(int count) {
        windowRows = count;
        return this;
    }

    /** Maximum bytes of prompts and continuations in such a window. Default 64 MiB. */
    public BatchLlmOptions windowBytes(long count) {
        windowBytes = count;
        return this;
    }

    /** The names of those of the five constraint options that are set. */
    List<String> constraintNames() {
        List<String> names = new ArrayList<>();
        if (choices != null) names.add("choices");
        if (regex != null) names.add("regex");
        if (jsonSchema != null) names.add("jsonSchema");
        if (grammar != null) names.add("grammar");
        if (larkGrammar != null) names.add("larkGrammar");
        return names;
    }

    Task task() {
        return Task.valueOf(task.toUpperCase(Locale.ROOT));
    }

    boolean generates() {
        return task() == Task.GENERATE && continuationsColumn == null;
    }

    /** A copy for the tasks, which receive the plan by broadcast. */
    BatchLlmOptions withoutPlan() {
        BatchLlmOptions copy = copy();
        copy.plan = null;
        copy.planPath = null;
        return copy;
    }

    /** A copy for an engine without pictures, of a model in this directory. */
    BatchLlmOptions withModel(String directory) {
        BatchLlmOptions copy = copy();
        copy.model = directory;
        copy.imageFolders = List.of();
        return copy;
    }

    /** A copy for rows whose prompts were made from the template and are in this column. */
    BatchLlmOptions withPrompts(String column) {
        BatchLlmOptions copy = copy();
        if (chat) copy.messagesColumn = column;
        copy.promptColumn = column;
        return copy;
    }

    private BatchLlmOptions copy() {
        try {
            return (BatchLlmOptions) clone();
        } catch (CloneNotSupportedException e) {
            throw new AssertionError(e);
        }
    }

    /** Throws for mistakes that an engine would not detect. */
    void check() {
        positive("windowRows", windowRows);
        positive("windowBytes", windowBytes);
        if (windowBytes > MOST_WINDOW_BYTES) {
            throw new IllegalArgumentException("windowBytes: " + windowBytes
                    + " is more than 1 GiB: the library takes a window as arrays");
        }
        positive("samples", samples);
        notNegative("partitions", partitions);
        notNegative("expectedTokens", expectedTokens);
        notNegative("sampleRows", sampleRows);
        notNegative("startBytes", startBytes);
        if (enlarge != null) oneOf("enlarge", enlarge, Sharing.values());
        oneOf("task", task, Task.values());
        if (pooling != null) oneOf("pooling", pooling, Pooling.values());
        notNegative("dimensions", dimensions);
        if (continuationsColumn != null && task() != Task.GENERATE) {
            throw new IllegalArgumentException("continuationsColumn: rows with the task " + task + " are not scored");
        }
        if (!generates() && samples != 1) {
            throw new IllegalArgumentException("samples: rows that generate nothing have one result");
        }
        checkTemplate();
        if (parsed && (jsonSchema == null || jsonSchemaColumn != null || !generates())) {
            throw new IllegalArgumentException("parsed: needs a jsonSchema, the same for all rows");
        }
        if (useAdapter != null && !adapters.containsKey(useAdapter)) {
            throw new IllegalArgumentException("useAdapter: there is no adapter " + useAdapter);
        }
        if (!adapters.isEmpty() && adapterColumn == null && useAdapter == null) {
            throw new IllegalArgumentException("adapters: no row can name one: set adapterColumn or useAdapter");
        }
        notNegative("adapterMemoryBytes", adapterMemoryBytes);
        if (plan != null && planPath != null) {
            throw new IllegalArgumentException("plan and planPath: one of them");
        }
    }

    private void checkTemplate() {
        boolean reorder = fields.equals("reorder");
        if (!reorder && !fields.equals("given")) {
            throw new IllegalArgumentException("fields: " + fields + " is none of given, reorder");
        }
        if (template == null && (reorder || chat || system != null)) {
            throw new IllegalArgumentException((reorder ? "fields" : chat ? "chat" : "system") + ": needs a template");
        }
        if (system != null && !chat) throw new IllegalArgumentException("system: needs chat");
        if (template != null && messagesColumn != null) {
            throw new IllegalArgumentException("template and messagesColumn: one of them");
        }
    }

    private static void oneOf(String option, String given, Enum<?>[] values) {
        List<String> names = Arrays.stream(values).map(value -> value.name().toLowerCase(Locale.ROOT)).toList();
        if (!names.contains(given.toLowerCase(Locale.ROOT))) {
            throw new IllegalArgumentException(option + ": " + given + " is none of " + String.join(", ", names));
        }
    }

    private static void positive(String name, long value) {
        if (value < 1) throw new IllegalArgumentException(name + ": " + value + " is not positive");
    }

    private static void notNegative(String name, long value) {
        if (value < 0) throw new IllegalArgumentException(name + ": " + value + " is negative");
    }
}
