package org.batchllm.spark;

import static org.apache.spark.sql.functions.coalesce;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.concat;
import static org.apache.spark.sql.functions.expr;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.octet_length;
import static org.apache.spark.sql.functions.size;
import static org.apache.spark.sql.functions.slice;
import static org.apache.spark.sql.functions.substring;
import static org.apache.spark.sql.functions.when;
import static org.apache.spark.sql.functions.xxhash64;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.batchllm.Constraint;
import org.batchllm.Task;

/** Where a row's prompt and key are, and how a result row is made from a row and its answer. */
final class Columns implements Serializable {
    private static final long serialVersionUID = 1;

    /** The name of the column of keys that is added if there is none. */
    static final String KEY = "batchllm_key";
    /** The name of the column of prompts made from a template; it is not in the result. */
    static final String PROMPT = "batchllm_prompt";

    private final String promptName;
    private final String keyName;
    private final int prompt;
    private final int key;
    private final int continuations; // -1: none
    private final int maxTokens; // -1: none, as for the next two
    private final int temperature;
    private final int seed;
    private final int adapter;
    private final int images;
    private final String imagesName;
    private final String[] templateFields; // that prompts were made of
    private final boolean imageArrays;
    private final RowParams common;
    private final boolean tokens;
    private final DataType tokenType; // null: text
    private final boolean parsed;
    private final boolean sampled;
    private final String sampleName;
    private final String promptTokensName;
    private final boolean logprobs;
    private final boolean promptLogprobs;
    private final Task task;
    private final RowConstraints constraints;
    private final StructType result;
    private boolean keysRepeat;

    /** Throws IllegalArgumentException with the name of a column that cannot be used. */
    Columns(StructType input, BatchLlmOptions options) {
        promptName = options.messagesColumn != null ? options.messagesColumn : options.promptColumn;
        keyName = options.keyColumn != null ? options.keyColumn : KEY;
        prompt = index(input, promptName);
        key = index(input, keyName);
        continuations = optional(input, options.continuationsColumn);
        maxTokens = optional(input, options.maxTokensColumn);
        temperature = optional(input, options.temperatureColumn);
        seed = optional(input, options.seedColumn);
        task = options.task();
        constraints = new RowConstraints(input, options);
        adapter = optional(input, options.adapterColumn);
        if (adapter >= 0 && !(input.fields()[adapter].dataType() instanceof StringType)) {
            throw new IllegalArgumentException("column " + options.adapterColumn + ": "
                    + input.fields()[adapter].dataType().catalogString() + " is no text");
        }
        images = optional(input, options.imageColumn);
        imagesName = options.imageColumn;
        templateFields = options.template == null ? new String[0]
                                                  : Template.parse(options.template).fields().toArray(new String[0]);
        imageArrays = images >= 0 && input.fields()[images].dataType() instanceof ArrayType;
        if (images >= 0 && !holdsPictures(input.fields()[images].dataType())) {
            throw new IllegalArgumentException("column " + imagesName + ": "
                    + input.fields()[images].dataType().catalogString()
                    + " has no pictures: they are binary or paths, or arrays of these");
        }
        common = new RowParams(
                options.maxTokens, options.temperature, options.seed, constraints.common(), options.useAdapter);
        parsed = options.parsed;
        sampled = options.samples > 1;
        sampleName = options.resultPrefix + "sample";
        promptTokensName = options.resultPrefix + "prompt_tokens";
        logprobs = options.logprobs;
        promptLogprobs = options.promptLogprobs;

        DataType type = input.fields()[prompt].dataType();
        if (options.messagesColumn != null && !(type instanceof StringType)) {
            throw new IllegalArgumentException("column " + promptName + ": " + type.catalogString()
                    + " is no JSON of messages: to_json makes it of an array of structs");
        }
        tokens = isTokens(type);
        if (!tokens && !(type instanceof StringType)) {
            throw new IllegalArgumentException("column " + promptName + ": " + type.catalogString()
                    + " is neither text nor an array of token ids");
        }
        if (tokens && images >= 0) {
            throw new IllegalArgumentException("imageColumn: rows with pictures are texts or conversations");
        }
        tokenType = tokens ? ((ArrayType) type).elementType() : null;
        integers(input, key);
        integers(input, maxTokens);
        integers(input, seed);
        if (temperature >= 0 && !(input.fields()[temperature].dataType() instanceof NumericType)) {
            throw new IllegalArgumentException("column " + options.temperatureColumn + ": "
                    + input.fields()[temperature].dataType().catalogString() + " is no number");
        }
        if (scored()) {
            DataType given = input.fields()[continuations].dataType();
            DataType one = given instanceof ArrayType ? ((ArrayType) given).elementType() : given;
            if (!(given instanceof ArrayType) || (tokens ? !isTokens(one) : !(one instanceof StringType))) {
                throw new IllegalArgumentException("column " + options.continuationsColumn + ": "
                        + given.catalogString()
                        + (tokens ? " is no array of arrays of token ids" : " is no array of texts"));
            }
        }
        result = result(input, options.resultPrefix);
    }

    static int index(StructType input, String name) {
        int at = Arrays.asList(input.fieldNames()).indexOf(name);
        if (at < 0)
            throw new IllegalArgumentException(
                    "no column " + name + "; there are " + String.join(", ", input.fieldNames()));
        return at;
    }

    private static int optional(StructType input, String name) {
        return name == null ? -1 : index(input, name);
    }

    private static void integers(StructType input, int at) {
        if (at < 0) return;
        StructField field = input.fields()[at];
        if (!isInteger(field.dataType())) {
            throw new IllegalArgumentException(
                    "column " + field.name() + ": " + field.dataType().catalogString() + " is no integer");
        }
    }

    private static boolean holdsPictures(DataType type) {
        DataType one = type instanceof ArrayType ? ((ArrayType) type).elementType() : type;
        return one instanceof BinaryType || one instanceof StringType;
    }

    /** How many pictures a row has; null without a column of pictures. */
    static Column pictureCount(StructType input, String name) {
        if (name == null) return null;
        boolean list = input.fields()[index(input, name)].dataType() instanceof ArrayType;
        Column column = col(quoted(name));
        return when(column.isNull(), 0).otherwise(list ? expr("size(filter(" + quoted(name) + ", x -> x is not null))") : lit(1));
    }

    private static boolean isInteger(DataType type) {
        return type instanceof ByteType || type instanceof IntegerType || type instanceof LongType
                || type instanceof ShortType;
    }

    private static boolean isTokens(DataType type) {
        DataType one = type instanceof ArrayType ? ((ArrayType) type).elementType() : type;
        return one != type && isInteger(one) && !(one instanceof ByteType); // 127 tokens are no vocabulary
    }

    private StructType result(StructType input, String prefix) {
        List<StructField> fields = new ArrayList<>(Arrays.asList(input.fields()));
        List<StructField> added = new ArrayList<>();
        if (sampled) added.add(field("sample", DataTypes.IntegerType, false));
        if (scored()) {
            added.add(field("scores", DataTypes.createArrayType(DataTypes.DoubleType, false), true));
        } else if (task == Task.EMBED) {
            added.add(field("embedding", DataTypes.createArrayType(DataTypes.FloatType, false), true));
        } else if (task == Task.CLASSIFY) {
            added.add(field("label", DataTypes.StringType, true));
            added.add(field("score", DataTypes.FloatType, true));
            added.add(field("probabilities", DataTypes.createArrayType(DataTypes.FloatType, false), true));
        } else {
            added.add(field("text", DataTypes.StringType, true));
            added.add(field("tokens", DataTypes.createArrayType(DataTypes.IntegerType, false), true));
            if (logprobs)
                added.add(field("logprobs", DataTypes.createArrayType(DataTypes.FloatType, false), true));
            if (promptLogprobs)
                added.add(field("prompt_logprobs", DataTypes.createArrayType(DataTypes.FloatType, false), true));
        }
        added.add(field("finish_reason", DataTypes.StringType, false));
        added.add(field("error", DataTypes.StringType, true));
        added.add(field("prompt_tokens", DataTypes.LongType, false));
        added.add(field("shared_tokens", DataTypes.LongType, false));
        added.add(field("completion_tokens", DataTypes.LongType, false));
        for (StructField field : added) {
            String name = prefix + field.name();
            requireNone(input, name, "rename it, or set resultPrefix");
            fields.add(field(name, field.dataType(), field.nullable()));
        }
        if (parsed) requireNone(input, prefix + "parsed", "rename it, or set resultPrefix");
        return new StructType(fields.toArray(new StructField[0]));
    }

    /** Throws if a column that is to be added already exists. */
    static void requireNone(StructType input, String name, String otherwise) {
        for (String other : input.fieldNames()) {
            if (other.equalsIgnoreCase(name)) {
                throw new IllegalArgumentException("column " + other
                        + " is among the rows' own columns and among the results: " + otherwise);
            }
        }
    }

    private static StructField field(String name, DataType type, boolean nullable) {
        return DataTypes.createStructField(name, type, nullable);
    }

    StructType result() {
        return result;
    }

    boolean tokens() {
        return tokens;
    }

    /** The constraint of rows without their own; null: none. */
    Constraint constraint() {
        return constraints.common();
    }

    boolean scored() {
        return continuations >= 0;
    }

    // ---- On the driver: expressions ----

    Column prompt() {
        return col(quoted(promptName));
    }

    /**
     * What rows are put together and sorted by: the prompt, behind hashes of the row's pictures, so that rows with the same
     * picture meet.
     */
    Column sorted() {
        if (images < 0) return prompt();
        String name = quoted(imagesName);
        String hash = imageArrays ? "array_join(transform(" + name + ", x -> md5(x)), '')" : "md5(" + name + ")";
        return concat(coalesce(expr(hash), lit("")), prompt());
    }

    Column key() {
        return col(quoted(keyName)).cast(DataTypes.LongType);
    }

    /** The column of prompt tokens in the results. */
    Column promptTokens() {
        return col(quoted(promptTokensName));
    }

    /** Keys repeat, so rows are identified by key, prompt and pictures. */
    void setKeysRepeat() {
        keysRepeat = true;
    }

    String keyName() {
        return keyName;
    }

    /** What rows are sampled by, and distinguished by if the heads of their prompts are equal. */
    Column identity() {
        return keysRepeat ? xxhash64(key(), sorted()) : key();
    }

    /** The order of results: by key, and by sample within a row. */
    Column[] order() {
        return sampled ? new Column[] {key(), col(quoted(sampleName))} : new Column[] {key()};
    }

    /** At least this many bytes of a prompt; see {@link #bytes}. */
    Column head(int bytes) {
        return tokens ? slice(prompt(), 1, bytes / Prompts.TOKEN_BYTES + 1) : substring(sorted(), 1, bytes);
    }

    /** The length of a whole prompt in bytes. */
    Column promptBytes() {
        return tokens ? size(prompt()).multiply(Prompts.TOKEN_BYTES) : octet_length(sorted());
    }

    static String quoted(String name) {
        return "`" + name.replace("`", "``") + "`";
    }

    // ---- On the executors: values ----

    /**
     * An array's items. Spark keeps them in collections of its own version of Scala. Nothing here may refer to those,
     * so that one JAR works with several versions; a Row converts them.
     */
    static List<?> list(Object value) {
        return RowFactory.create(new Object[] {value}).getList(0);
    }

    /** A value of {@link #head}, or of a prompt, as bytes. */
    byte[] bytes(Object value) {
        return tokens ? Prompts.bytes(tokens(value)) : Prompts.bytes((String) value);
    }

    private static int[] tokens(Object value) {
        List<?> list = list(value);
        int[] tokens = new int[list.size()];
        int i = 0;
        // A value that cannot be a token id (null, beyond 32 bits) becomes -1, so that the row gets an error.
        for (Object token : list) {
            long id = token == null ? -1 : ((Number) token).longValue();
            tokens[i++] = id == (int) id ? (int) id : -1;
        }
        return tokens;
    }

    /** The request's prompt is null if the row's is. */
    Request request(Row row) {
        Object[] values = new Object[row.size()];
        for (int i = 0; i < values.length; ++i) values[i] = row.get(i);
        requireKey(values[key]);
        byte[] bytes = null;
        if (values[prompt] != null) {
            int[] ids = tokens ? tokens(values[prompt]) : null;
            bytes = tokens ? Prompts.bytes(ids) : Prompts.bytes((String) values[prompt]);
            if (!tokens || Arrays.stream(ids).noneMatch(id -> id < 0)) values[prompt] = null;
        }
        byte[][] scored = null;
        if (scored() && values[continuations] != null) {
            List<?> list = list(values[continuations]);
            scored = new byte[list.size()][];
            for (int i = 0; i < scored.length; ++i)
                scored[i] = list.get(i) == null ? new byte[0] : bytes(list.get(i));
        }
        long name = ((Number) values[key]).longValue();
        Object[] pictures = images < 0 || values[images] == null ? null : pictures(values[images]);
        return new Request(
                values, bytes, keysRepeat ? Prompts.hash(name, bytes, pictures) : name, scored, pictures, params(values));
    }

    /** The pictures of a row, each a byte[] or a String. */
    private Object[] pictures(Object value) {
        if (!imageArrays) return new Object[] {value};
        return list(value).stream().filter(Objects::nonNull).toArray();
    }

    void requireKey(Object value) {
        if (value == null) throw new IllegalArgumentException("column " + keyName + ": a row has no key");
    }

    private RowParams params(Object[] values) {
        if (maxTokens < 0 && temperature < 0 && seed < 0 && adapter < 0 && !constraints.differ()) return common;
        String named = adapter < 0 || values[adapter] == null ? common.adapter() : (String) values[adapter];
        Number most = value(values, maxTokens, common.maxTokens());
        // No output is longer than 32 bits can count, so larger values are clamped.
        int length = (int) Math.max(Integer.MIN_VALUE, Math.min(Integer.MAX_VALUE, most.longValue()));
        return new RowParams(length, value(values, temperature, common.temperature()).doubleValue(),
                value(values, seed, common.seed()).longValue(), constraints.of(values),
                named == null || named.isEmpty() ? null : named);
    }

    private static Number value(Object[] values, int at, Number otherwise) {
        return at < 0 || values[at] == null ? otherwise : (Number) values[at];
    }

    /** Why no engine can run the row; null if one can. */
    String error(Request row) {
        if (row.prompt == null) return "ROW_NULL: column " + nullColumn(row) + " is null";
        if (imageArrays && row.columns[images] != null && list(row.columns[images]).contains(null)) {
            return "ROW_PICTURE: column " + imagesName + ": a picture is null";
        }
        if (scored() && (row.continuations == null || row.continuations.length == 0))
            return "ROW_EMPTY: no continuations";
        return constraints.error(row.columns);
    }

    private String nullColumn(Request row) {
        for (String field : templateFields) {
            if (row.columns[result.fieldIndex(field)] == null) return field;
        }
        return promptName;
    }

    Row row(Answer answer) {
        Request request = answer.request;
        Object[] values = Arrays.copyOf(request.columns, result.size());
        if (values[prompt] == null) values[prompt] = promptValue(request.prompt);
        int at = request.columns.length;
        if (sampled) values[at++] = answer.sample;
        if (scored()) {
            values[at++] = answer.scores;
        } else if (task == Task.EMBED) {
            values[at++] = answer.embedding;
        } else if (task == Task.CLASSIFY) {
            values[at++] = answer.label;
            values[at++] = answer.label == null ? null : answer.score;
            values[at++] = answer.probabilities;
        } else {
            values[at++] = answer.text;
            values[at++] = answer.tokens;
            if (logprobs)
                values[at++] = answer.logprobs;
            if (promptLogprobs)
                values[at++] = answer.promptLogprobs;
        }
        values[at++] = answer.finishReason;
        values[at++] = answer.error;
        values[at++] = answer.promptTokens;
        values[at++] = answer.sharedTokens;
        values[at] = answer.tokens == null ? 0L : (long) answer.tokens.length;
        return RowFactory.create(values);
    }

    private Object promptValue(byte[] bytes) {
        if (bytes == null) return null;
        if (!tokens) return new String(bytes, StandardCharsets.UTF_8);
        int[] ids = Prompts.tokens(bytes);
        if (tokenType instanceof LongType)
            return Arrays.stream(ids).asLongStream().toArray();
        if (tokenType instanceof IntegerType) return ids;
        short[] shorts = new short[ids.length];
        for (int i = 0; i < ids.length; ++i) shorts[i] = (short) ids[i];
        return shorts;
    }
}
