package org.batchllm.spark;

import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.monotonically_increasing_id;
import static org.apache.spark.sql.functions.octet_length;
import static org.apache.spark.sql.functions.udf;
import static org.apache.spark.sql.functions.when;
import static org.apache.spark.sql.functions.xxhash64;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.logging.Logger;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.batchllm.BatchLlmException;
import org.batchllm.Plan;
import org.batchllm.PrefixRanges;

/**
 * A language model over a Dataset:
 *
 * <pre>{@code
 * Dataset<Row> answers = BatchLlm.transform(rows, new BatchLlmOptions().model("/models/m").maxTokens(64));
 * }</pre>
 *
 * <p>The result has the rows' own columns, the key, and the columns text, tokens, finish_reason, error (null if
 * there is none), prompt_tokens, shared_tokens and completion_tokens; if requested, also sample, logprobs, scores,
 * embedding or label. Rows come in no particular order, or with {@link BatchLlmOptions#ordered} in the order of their
 * keys.
 *
 * <p>The rows are read twice: by this call, to find where their prompts share prefixes (a sample of prompts goes
 * to the driver), and when the result is computed. They must be the same both times, as Spark requires of anything
 * that it may compute again. Rows that share a prefix go to the same partition. Each executor has one engine for
 * each of its GPUs (or one for its CPU), which its tasks share.
 */
public final class BatchLlm {
    private static final Logger LOG = Logger.getLogger(BatchLlm.class.getName());

    private static final int PARTITIONS_A_SLOT = 4;
    private static final int LEAST_ROWS = 1_000;
    private static final int FIELD_SAMPLE_ROWS = 50_000;
    private static final long SAMPLE_BYTES = 64L << 20;
    private static final String PLACE = "batchllm_place";

    static final String UNSTABLE_KEYS = "the rows come from a shuffle (a join, an aggregation, a sort, repartition) and "
            + "have no keyColumn: they are numbered in the order in which they come, which may be another one when Spark "
            + "computes them again. If an executor dies, the job may fail. Set keyColumn, or write the rows first and read "
            + "them again";

    private BatchLlm() {}

    public static Dataset<Row> transform(Dataset<Row> rows, BatchLlmOptions options) {
        Objects.requireNonNull(rows, "rows is null");
        return transform(rows, options, new BatchLlmMetrics(rows.sparkSession().sparkContext()));
    }

    /** The same, and adds the counts to the metrics. */
    public static Dataset<Row> transform(
            Dataset<Row> rows, BatchLlmOptions given, BatchLlmMetrics metrics) {
        Objects.requireNonNull(rows, "rows is null");
        Objects.requireNonNull(given, "options is null");
        Objects.requireNonNull(metrics, "metrics is null");
        if (rows.isStreaming()) {
            throw new IllegalArgumentException("the rows are a stream: transform each of its batches, in foreachBatch");
        }
        given.check();
        BatchLlmOptions options = given.template == null ? given : given.withPrompts(Columns.PROMPT);
        JavaSparkContext context = JavaSparkContext.fromSparkContext(rows.sparkSession().sparkContext());
        Dataset<Row> keyed = rows;
        if (options.keyColumn == null) {
            Columns.requireNone(rows.schema(), Columns.KEY, "name it as keyColumn, or rename it");
            keyed = rows.withColumn(Columns.KEY, monotonically_increasing_id());
        }
        if (options.template != null) keyed = withPrompts(keyed, options);
        Columns columns = new Columns(keyed.schema(), options);
        OptionCheck.check(options, columns.constraint());
        if (options.keyColumn == null && Shuffles.in(rows)) LOG.warning(UNSTABLE_KEYS);
        byte[] file = planFile(options);

        PromptSample sample = sample(keyed, columns, options, context);
        PromptSample keys = sample;
        if (sample.keysRepeat()) {
            LOG.info("column " + columns.keyName() + " has equal keys: rows are told apart by their prompts too");
            columns.setKeysRepeat();
            sample = sample(keyed, columns, options, context);
        }
        int partitions = partitions(sample.rows(), options, context);
        PrefixRanges ranges = sample.ranges(partitions, outputTokens(options));
        if (ranges.blind()) {
            LOG.warning("most sampled prompts are equal in their first " + sample.startBytes()
                    + " bytes, so rows are not put together by what follows: set startBytes higher");
        }

        UDF2<Object, Long, Integer> place = place(context.broadcast(ranges), columns);
        UserDefinedFunction placing = udf(place, DataTypes.IntegerType);
        Dataset<Row> placed =
                keyed.withColumn(PLACE, placing.apply(columns.head(sample.startBytes()), columns.identity()))
                        .repartition(ranges.partitions(), col(PLACE))
                        .drop(PLACE)
                        .sortWithinPartitions(columns.sorted(), columns.key());

        Broadcast<byte[]> plan = file == null ? null : context.broadcast(file);
        BatchLlmOptions sent = options.withoutPlan();
        MapPartitionsFunction<Row, Row> compute = part -> new TaskRows(part, columns, sent, plan, metrics);
        // A condition that always holds. Without it, Spark would pass the rows made here unchanged, without a schema
        // and with Java's arrays, to a function that follows (map, toJavaRDD).
        Dataset<Row> answers =
                placed.mapPartitions(compute, Encoders.row(columns.result())).filter(columns.promptTokens().geq(0));
        if (options.template != null) answers = answers.drop(Columns.PROMPT);
        if (options.parsed) answers = withParsed(answers, options);
        return options.ordered ? inOrder(answers, columns, keys.keyCuts(ranges.partitions())) : answers;
    }

    /** The answers with a column of their values, by the JSON schema. */
    private static Dataset<Row> withParsed(Dataset<Row> answers, BatchLlmOptions options) {
        JsonValues values = new JsonValues(SchemaTypes.of(options.jsonSchema), options.startAfter);
        UDF1<String, Object> read = values::of;
        Column text = col(Columns.quoted(options.resultPrefix + "text"));
        Column ended = col(Columns.quoted(options.resultPrefix + "finish_reason")).equalTo("stop");
        return answers.withColumn(options.resultPrefix + "parsed", when(ended, udf(read, values.type()).apply(text)));
    }

    /** The rows with a column of prompts made from the template. */
    private static Dataset<Row> withPrompts(Dataset<Row> keyed, BatchLlmOptions options) {
        Columns.requireNone(keyed.schema(), Columns.PROMPT, "rename it");
        Template template = Template.parse(options.template);
        template.check(keyed.schema());
        if (options.fields.equals("reorder")) {
            template = template.reordered(fieldSample(keyed, template.fields(), options));
            LOG.info("fields in the order " + template);
        }
        return keyed.withColumn(Columns.PROMPT,
                options.chat ? template.conversation(options.system, Columns.pictureCount(keyed.schema(), options.imageColumn))
                             : template.prompt());
    }

    /** A sample of the rows' cells, from one pass over the rows: a hash and the length of each. */
    private static FieldSample fieldSample(Dataset<Row> keyed, List<String> fields, BatchLlmOptions options) {
        List<Column> wanted = new ArrayList<>();
        List<Column> identity = new ArrayList<>(); // what identifies a row for sampling, since keys may be equal
        identity.add(Template.cell(options.keyColumn != null ? options.keyColumn : Columns.KEY));
        for (String field : fields) identity.add(Template.cell(field));
        wanted.add(xxhash64(identity.toArray(new Column[0])));
        for (String field : fields) {
            wanted.add(xxhash64(Template.cell(field)));
            wanted.add(octet_length(Template.cell(field)));
        }
        int capacity = options.sampleRows == 0 ? FIELD_SAMPLE_ROWS : options.sampleRows;
        int count = fields.size();
        return keyed.select(wanted.toArray(new Column[0]))
                .toJavaRDD()
                .treeAggregate(new FieldSample(capacity), (sample, row) -> {
                    if (row.anyNull()) return sample; // its error, or that for a missing key, comes later
                    long[] cells = new long[count];
                    int[] bytes = new int[count];
                    for (int i = 0; i < bytes.length; ++i) {
                        cells[i] = row.getLong(2 * i + 1);
                        bytes[i] = row.getInt(2 * i + 2);
                    }
                    sample.add(row.getLong(0), cells, bytes);
                    return sample;
                }, FieldSample::merge);
    }

    /**
     * The answers sorted by key over all partitions. orderBy would sample the answers first, and so compute them twice;
     * here the keys are already known. A query that reads the result twice, such as an orderBy by another column,
     * reuses the files of this shuffle.
     */
    private static Dataset<Row> inOrder(Dataset<Row> answers, Columns columns, long[] cuts) {
        int[] names = partitionNames(cuts.length + 1);
        UDF1<Long, Integer> range = key -> names[PromptSample.rangeOf(cuts, key)];
        return answers.withColumn(PLACE, udf(range, DataTypes.IntegerType).apply(columns.key()))
                .repartition(names.length, col(PLACE))
                .drop(PLACE)
                .sortWithinPartitions(columns.order());
    }

    /** A sample of the beginnings of prompts, from one pass over the rows. */
    private static PromptSample sample(
            Dataset<Row> keyed, Columns columns, BatchLlmOptions options, JavaSparkContext context) {
        int partitions = Math.max(options.partitions, PARTITIONS_A_SLOT * context.defaultParallelism());
        int capacity = options.sampleRows;
        if (capacity == 0) capacity = clamp(200L * partitions, 2_000, 100_000);
        int startBytes = options.startBytes;
        if (startBytes == 0) startBytes = clamp(SAMPLE_BYTES / capacity, 1_024, 16_384);
        return keyed.select(columns.head(startBytes), columns.promptBytes(), columns.identity())
                .toJavaRDD()
                .treeAggregate(new PromptSample(capacity, startBytes), (sample, row) -> {
                    columns.requireKey(row.isNullAt(2) ? null : row.getLong(2));
                    if (!row.isNullAt(0))
                        sample.add(columns.bytes(row.get(0)), row.getInt(1), row.getLong(2));
                    return sample;
                }, PromptSample::merge);
    }

    private static int outputTokens(BatchLlmOptions options) {
        if (options.expectedTokens != 0) return options.expectedTokens;
        return options.generates() ? options.maxTokens : 1;
    }

    private static int partitions(long rows, BatchLlmOptions options, JavaSparkContext context) {
        if (options.partitions != 0) return options.partitions;
        return clamp(rows / LEAST_ROWS, 1, PARTITIONS_A_SLOT * context.defaultParallelism());
    }

    private static int clamp(long value, int least, int most) {
        return (int) Math.max(least, Math.min(most, value));
    }

    private static UDF2<Object, Long, Integer> place(Broadcast<PrefixRanges> ranges, Columns columns) {
        int[] names = partitionNames(ranges.value().partitions());
        return (head, key) -> names[head == null
                ? (int) Math.floorMod(PromptSample.place(key), (long) names.length)
                : ranges.value().partition(columns.bytes(head), PromptSample.place(key))];
    }

    /**
     * For each partition, a number that Spark's hash partitioning maps to it, so that a column of such numbers
     * determines where rows go. (Spark 4.1 has repartitionById for this; older versions do not.)
     */
    static int[] partitionNames(int partitions) {
        int[] names = new int[partitions];
        boolean[] found = new boolean[partitions];
        for (int name = 0, left = partitions; left > 0; ++name) {
            int partition = Math.floorMod(Murmur3_x86_32.hashInt(name, 42), partitions);
            if (found[partition]) continue;
            found[partition] = true;
            names[partition] = name;
            left--;
        }
        return names;
    }

    /** Null: there is none. Throws if it is damaged. */
    private static byte[] planFile(BatchLlmOptions options) {
        if (options.planPath == null && options.plan == null) return null;
        String given = options.planPath == null ? "plan" : "planPath " + options.planPath;
        try {
            Path path = options.planPath == null ? null : Path.of(options.planPath);
            byte[] file = path == null ? options.plan : Files.readAllBytes(path);
            (path == null ? NativeEngine.planOf(file) : Plan.load(path)).close();
            return file;
        } catch (IOException e) {
            throw new UncheckedIOException(given, e);
        } catch (BatchLlmException.PlanFormat e) {
            throw new IllegalArgumentException(given + ": " + e.getMessage(), e);
        }
    }
}
