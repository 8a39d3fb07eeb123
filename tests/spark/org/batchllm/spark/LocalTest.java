package org.batchllm.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.types.StructType;
import org.batchllm.Plan;
import scala.collection.immutable.ArraySeq;

/**
 * Transforms in one process. Arguments: a folder for files, a model directory with a tokenizer, the folder of the
 * golden models, and the file of values that the Python package's tests have too.
 */
public final class LocalTest {
    private static SparkSession spark;
    private static Path folder;
    private static String model;
    private static Path golden;
    private static Path valuesFile;

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        model = arguments[1];
        golden = Path.of(arguments[2], "embedding");
        valuesFile = Path.of(arguments[3]);
        spark = SparkSession.builder().getOrCreate();
        textRowsKeepTheirColumnsAndOrder();
        resultsDoNotDependOnPartitionsOrWindows();
        badRowsHaveErrorsAndHarmNoOthers();
        promptsOfEveryTypeComeBackAsTheyWere();
        conversationsGoThroughTheModelsTemplate();
        promptsAreMadeOfATemplate();
        datesAndTimesAreWrittenAsSparkShowsThem();
        fieldsAreReordered();
        aWrongTemplateSaysWhy();
        equalKeysAreAllAnswered();
        equalKeysShareLikeOthers();
        aJobThatCannotBeAddedHoldsNoOther();
        samplesAreRowsOfTheirOwn();
        functionsThatFollowReadResultsByName();
        orderedResultsAreSortedAndComputedOnce();
        rowsAreScored();
        logprobsComeWithTokens();
        oneConstraintHoldsForAllRows();
        rowsHaveConstraintsOfTheirOwn();
        aLooseSchemaIsTaken();
        answersOfASchemaAreAColumnOfTheirValues();
        aValueThatDoesNotFitIsNullAlone();
        valuesAreThoseOfThePythonPackage();
        rowsOfAShuffleWithoutAKeyAreWarnedOf();
        wrongOptionsFailOnTheDriver();
        whatNoRowCanRunWithFailsTheJob();
        vectorsAreTheReferences();
        labelsAreTheReferences();
        plansAreReused();
        aDamagedPlanFailsItsJobAlone();
        twoJobsAtOnceShareAnEngine();
        jobsThatStopEarlyLeaveTheEngineUsable();
        streamsAreTransformedBatchByBatch();
        enginesAreSharedAndClosedWhenIdle();
        aTaskHoldsOneAndAHalfWindows();
        whatCannotWorkSaysWhy();
        spark.stop();
        System.out.println("ok");
    }

    private static BatchLlmOptions sim() {
        return new BatchLlmOptions()
                .keyColumn("id")
                .backend("sim")
                .backendOptions("vocabulary=" + SkewedRows.VOCABULARY + ",eos_token=2,mean_length=10")
                .temperature(1)
                .seed(3)
                .maxTokens(32);
    }

    private static BatchLlmOptions text() {
        return new BatchLlmOptions()
                .model(model)
                .backend("cpu")
                .threads(1)
                .computeType("f32")
                .kvMemoryBytes(64 << 20)
                .maxTokens(6);
    }

    private static Dataset<Row> texts(int rows) {
        return spark.range(0, rows, 1, 3)
                .select(functions.col("id"),
                        functions
                                .expr("concat('The documents of group ', id % 7, ' are all about the same thing. Question ', id, '?')")
                                .as("prompt"),
                        functions.expr("named_struct('a', id, 'b', array(id, 2))").as("other"));
    }

    /** Row 7 lacks one of its values. */
    private static Dataset<Row> table(int rows) {
        return spark.range(0, rows, 1, 3)
                .select(functions.col("id"), functions.expr("concat('number ', id)").as("own"),
                        functions.expr("concat('one of kind ', id % 4, ' with a long name')").as("kind"),
                        functions.expr("(id % 2) * 0.5d").as("weight"),
                        functions.expr("if(id = 7, null, 'what every row says, in so many words')").as("all"));
    }

    private static final String TEMPLATE = "Tell {{this}}.\n{own}\nKind: {kind}\n{weight}\n{all}\nAnswer:";

    private static List<Row> byId(Dataset<Row> results) {
        return results.persist().orderBy("id").collectAsList();
    }

    private static void promptsAreMadeOfATemplate() {
        Dataset<Row> rows = table(60);
        // And by two devices that work as one.
        Dataset<Row> answers = BatchLlm.transform(
                rows, text().backendOptions("tensor_parallel=2").keyColumn("id").template(TEMPLATE));
        check(Arrays.equals(Arrays.copyOf(answers.columns(), 6),
                      new String[] {"id", "own", "kind", "weight", "all", "text"}),
                String.join(", ", answers.columns()));
        List<Row> made = byId(answers);
        List<Row> same = byId(BatchLlm.transform(
                rows.withColumn("prompt",
                        functions.expr("concat('Tell {this}.\\n', own, '\\nKind: ', kind, '\\n', weight, '\\n', all, '\\nAnswer:')")),
                text().keyColumn("id")));
        check(made.size() == 60, made.size() + " rows");
        for (int i = 0; i < 60; ++i) {
            if (i == 7) {
                check(made.get(i).<String>getAs("error").equals("ROW_NULL: column all is null"), made.get(i).toString());
                continue;
            }
            check(made.get(i).getAs("error") == null, made.get(i).toString());
            check(made.get(i).<Long>getAs("prompt_tokens").equals(same.get(i).getAs("prompt_tokens"))
                            && made.get(i).getAs("text").equals(same.get(i).getAs("text")),
                    made.get(i) + " is not " + same.get(i));
        }
        Row message = rows.limit(1).select(Template.parse("Say \"{own}\"").conversation("Be kind.", null)).head();
        check(message.getString(0).equals("[{\"role\":\"system\",\"content\":\"Be kind.\"},"
                              + "{\"role\":\"user\",\"content\":\"Say \\\"number 0\\\"\"}]"),
                message.toString());
        check(rows.where("id = 7").select(Template.parse("{all}").conversation(null, null)).head().isNullAt(0), "no null");
    }

    private static void datesAndTimesAreWrittenAsSparkShowsThem() {
        Dataset<Row> times = spark.sql("select 1 as id, date'2024-05-06' as day, timestamp_ntz'2024-05-06 07:08:09' as plain,"
                + " timestamp'2024-05-06 07:08:09' as moment, interval 1 day as span");
        String template = "On {day} at {plain} or {moment}";
        Row made = times.select(Template.parse(template).prompt()).head();
        check(made.getString(0).equals("On 2024-05-06 at 2024-05-06 07:08:09 or 2024-05-06 07:08:09"), made.toString());
        Row answer = BatchLlm.transform(times, text().keyColumn("id").template(template)).head();
        check(answer.getAs("error") == null, answer.toString());
        try {
            BatchLlm.transform(times, text().keyColumn("id").template("{span}"));
            check(false, "an interval was taken");
        } catch (IllegalArgumentException e) {
            check(e.getMessage().contains("neither text nor a number nor a date: cast it"), e.getMessage());
        }
    }

    private static void fieldsAreReordered() {
        double[] saved = new double[2];
        for (int i = 0; i < 2; ++i) {
            BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
            List<Row> rows = byId(BatchLlm.transform(table(200),
                    text().keyColumn("id").template(TEMPLATE).fields(i == 0 ? "given" : "reorder"), metrics));
            check(rows.size() == 200 && rows.get(7).getAs("error") != null && metrics.errors() == 1, metrics.toString());
            saved[i] = metrics.savingRatio();
        }
        check(saved[0] < 0.3 && saved[1] > 0.6, saved[0] + " and " + saved[1]);
        FieldSample sample = new FieldSample(100);
        for (int i = 0; i < 100; ++i) sample.add(i, new long[] {i, i % 60, i % 2, 0}, new int[] {8, 20, 3, 40});
        Row moved = table(3).select(Template.parse(TEMPLATE).reordered(sample).prompt()).head();
        check(moved.getString(0).equals("Tell {this}.\nall: what every row says, in so many words\nweight: 0.0\n"
                              + "Kind: one of kind 0 with a long name\nown: number 0\nAnswer:"),
                moved.toString());
    }

    private static void aWrongTemplateSaysWhy() {
        failsAtOnce("no column title", text().template("{title}"));
        failsAtOnce("{ without its } at byte 4", text().template("{id}{own"));
        failsAtOnce("} without its {", text().template("{own}}"));
        failsAtOnce("it has no field", text().template("{{own}}"));
        failsAtOnce("in one line", text().template("{own} {all}").fields("reorder"));
        failsAtOnce("a line without a field", text().template("{own}\n\n{all}").fields("reorder"));
        failsAtOnce("in two lines", text().template("{own}\n{all}\n{own}").fields("reorder"));
        failsAtOnce("fields: any is none of", text().template("{own}").fields("any"));
        failsAtOnce("fields: needs a template", text().fields("reorder"));
        failsAtOnce("system: needs chat", text().template("{own}").system("Be kind."));
        failsAtOnce("one of them", text().template("{own}").messagesColumn("own"));
        failsAtOnce("cast it to a string", text().template("{list}"));
    }

    private static void failsAtOnce(String part, BatchLlmOptions options) {
        try {
            BatchLlm.transform(table(3).withColumn("list", functions.expr("array(1, 2)")), options);
        } catch (IllegalArgumentException thrown) {
            check(thrown.getMessage().contains(part), thrown.getMessage());
            return;
        }
        throw new AssertionError("no failure: " + part);
    }

    private static void textRowsKeepTheirColumnsAndOrder() {
        Dataset<Row> rows = texts(60);
        List<Row> given = rows.collectAsList();
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        List<Row> results = BatchLlm.transform(rows, text().partitions(4), metrics)
                                    .persist()
                                    .orderBy(Columns.KEY)
                                    .collectAsList();
        check(results.size() == 60, results.size() + " results");
        for (int i = 0; i < 60; ++i) {
            Row row = results.get(i);
            for (String column : List.of("id", "prompt", "other")) {
                check(row.getAs(column).equals(given.get(i).getAs(column)),
                        column + " of row " + i + " is " + row.getAs(column));
            }
            check(row.getAs("error") == null
                            && row.<Long>getAs("completion_tokens")
                                    == row.getList(row.fieldIndex("tokens")).size(),
                    "row " + i + ": " + row);
            check(row.<String>getAs("text") != null && row.<Long>getAs("prompt_tokens") > 0,
                    "row " + i + ": " + row);
        }
        check(metrics.rows() == 60 && metrics.errors() == 0 && metrics.promptTokens() > 60 * 50,
                metrics.toString());
        check(metrics.savingRatio() > 0.3 && metrics.savingRatio() < 0.95, metrics.toString());
    }

    private static void resultsDoNotDependOnPartitionsOrWindows() {
        Dataset<Row> rows = SkewedRows.rows(spark, 1_500, 3);
        List<Row> one = answers(rows, sim().partitions(1));
        List<Row> many = answers(rows.repartition(5), sim().partitions(9).windowRows(50));
        check(one.equals(many), "answers differ with partitions and windows");
        check(!one.equals(answers(rows, sim().seed(4))), "another seed gives the same answers");
        check(!new HashSet<>(one.get(0).getList(1)).equals(new HashSet<>(one.get(1).getList(1))),
                "rows draw the same tokens");
    }

    private static void badRowsHaveErrorsAndHarmNoOthers() {
        List<Row> rows = new ArrayList<>();
        for (long i = 0; i < 40; ++i) {
            Object prompt = i == 3 ? null
                    : i == 5       ? ArraySeq.unsafeWrapArray(new int[0])
                    : i == 7       ? ArraySeq.unsafeWrapArray(new int[] {1, SkewedRows.VOCABULARY})
                    : i == 9       ? ArraySeq.unsafeWrapArray(new int[5_000])
                                   : ArraySeq.unsafeWrapArray(SkewedRows.prompt(i));
            rows.add(RowFactory.create(i, prompt, null));
        }
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        List<Row> results = BatchLlm.transform(spark.createDataFrame(rows, SkewedRows.SCHEMA),
                                            sim().maxRequestTokens(4_000), metrics)
                                    .persist()
                                    .orderBy("id")
                                    .collectAsList();
        List<Row> good = answers(SkewedRows.rows(spark, 40, 1), sim().maxRequestTokens(4_000));
        for (int i = 0; i < 40; ++i) {
            Row row = results.get(i);
            String error = row.getAs("error");
            String expected = i == 3 ? "ROW_NULL: column prompt is null"
                    : i == 5         ? "ROW_EMPTY"
                    : i == 7         ? "ROW_UNKNOWN_TOKEN"
                    : i == 9         ? "ROW_TOO_LONG"
                                     : null;
            if (expected == null) {
                check(error == null && row.getAs("tokens").equals(good.get(i).getAs("tokens")),
                        "row " + i + ": " + row);
            } else {
                check(error != null && error.startsWith(expected)
                                && row.getAs("finish_reason").equals("error"),
                        "row " + i + ": " + row);
                check(row.getAs("tokens") == null && row.<Long>getAs("completion_tokens") == 0,
                        "row " + i + ": " + row);
            }
        }
        check(metrics.errors() == 4 && metrics.rows() == 40, metrics.toString());
    }

    private static void promptsOfEveryTypeComeBackAsTheyWere() {
        for (String type : List.of("smallint", "int", "bigint")) {
            // Row 3 has a null, and row 5, if the column's type allows it, a number beyond 32 bits.
            Dataset<Row> rows = spark.range(0, 8, 1, 2).select(functions.col("id"),
                    functions.expr("cast(array(5, if(id = 3, null, 6), "
                                     + (type.equals("bigint") ? "if(id = 5, 1099511627776, 7)" : "7")
                                     + ") as array<" + type + ">)")
                            .as("prompt"));
            List<Row> given = rows.collectAsList();
            List<Row> results = BatchLlm.transform(rows, sim()).persist().orderBy("id").collectAsList();
            for (int i = 0; i < 8; ++i) {
                Row row = results.get(i);
                check(row.getAs("prompt").equals(given.get(i).getAs("prompt")), type + ": " + row);
                boolean bad = i == 3 || (i == 5 && type.equals("bigint"));
                String error = row.getAs("error");
                check(bad ? error.startsWith("ROW_UNKNOWN_TOKEN") : error == null, type + ": " + row);
            }
        }
    }

    private static void conversationsGoThroughTheModelsTemplate() throws Exception {
        Path chat = Files.createDirectory(folder.resolve("chat"));
        for (String name : List.of("config.json", "model.safetensors", "tokenizer.json"))
            Files.copy(Path.of(model, name), chat.resolve(name));
        Files.writeString(chat.resolve("tokenizer_config.json"),
                "{\"chat_template\": \"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\"}");
        Dataset<Row> rows = spark.range(0, 20, 1, 2).select(functions.col("id"),
                functions.expr("if(id = 4, '{not JSON', to_json(array(named_struct('role', 'user', 'content', "
                                + "concat('What is 😀 number ', id, '?')))))")
                        .as("messages"),
                functions.expr("concat('[user]What is 😀 number ', id, '?')").as("prompt"));
        BatchLlmOptions options =
                text().model(chat.toString()).keyColumn("id").addSpecial(false).ignoreEos(true);
        List<Row> texts = answers(rows, options);
        List<Row> chats = answers(rows, options.messagesColumn("messages").partitions(3));
        for (int i = 0; i < 20; ++i) {
            String error = chats.get(i).getAs("error");
            check(i == 4 ? error.startsWith("ROW_TEMPLATE: ") : chats.get(i).equals(texts.get(i)),
                    "conversation " + i + ": " + chats.get(i) + ", its text: " + texts.get(i));
        }
        fails(() -> BatchLlm.transform(rows, options.messagesColumn("id")), "id: bigint is no JSON of messages");
        Dataset<Row> scored = rows.where("id != 4").withColumn("ends", functions.expr("array(' yes', ' no')"));
        options.messagesColumn("messages").continuationsColumn("ends").ignoreEos(false);
        List<Row> found = BatchLlm.transform(scored, options).orderBy("id").select("scores", "error").collectAsList();
        List<Row> expected =
                BatchLlm.transform(scored, options.messagesColumn(null)).orderBy("id").select("scores", "error").collectAsList();
        boolean same = found.size() == 19 && expected.size() == 19;
        for (int i = 0; same && i < 19; ++i) {
            List<Double> a = found.get(i).getList(0), b = expected.get(i).getList(0);
            same = found.get(i).isNullAt(1) && expected.get(i).isNullAt(1) && a.size() == 2 && b.size() == 2;
            // Sums of another batch have another order.
            for (int k = 0; same && k < 2; ++k) same = Math.abs(a.get(k) - b.get(k)) < 1e-3;
        }
        check(same, "scores of conversations: " + found + ", of texts: " + expected);
    }

    private static void equalKeysAreAllAnswered() {
        Dataset<Row> rows = SkewedRows.rows(spark, 300, 2).withColumn("id", functions.expr("id % 10"));
        List<Row> results = BatchLlm.transform(rows, sim()).collectAsList();
        check(results.size() == 300, results.size() + " results");
        Set<Object> notes = new HashSet<>();
        for (Row row : results) {
            notes.add(row.getAs("note"));
            int number = Integer.parseInt(row.<String>getAs("note").substring(4));
            check(row.getAs("prompt").equals(ArraySeq.unsafeWrapArray(SkewedRows.prompt(number))),
                    "row " + number + " has another's prompt");
            check(row.<Long>getAs("prompt_tokens") == SkewedRows.prompt(number).length,
                    "row " + number + " has another's answer");
        }
        check(notes.size() == 300, "rows given twice or lost");
    }

    /** Rows with the same key share like others; if they are also equal, they have equal answers. */
    private static void equalKeysShareLikeOthers() {
        Dataset<Row> rows = SkewedRows.rows(spark, 600, 3);
        try (Plan plan = SkewedRows.plan(600)) {
            double best = plan.stats().savingRatio();
            for (String key : List.of("id % 2", "5")) {
                Dataset<Row> keyed = rows.withColumn("group", functions.expr("cast(" + key + " as bigint)"));
                BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
                List<List<Object>> one = new ArrayList<>();
                for (int partitions : new int[] {1, 4}) {
                    BatchLlmOptions options = sim().keyColumn("group").partitions(partitions).windowRows(partitions == 1 ? 1000 : 37);
                    List<Row> results = byId(BatchLlm.transform(keyed, options, metrics));
                    check(results.size() == 600, results.size() + " results of equal keys");
                    if (partitions == 1) {
                        for (Row row : results) one.add(row.getList(row.fieldIndex("tokens")));
                        check(metrics.savingRatio() > best - 0.02, key + ": saved " + metrics.savingRatio() + " of " + best);
                    } else {
                        for (int i = 0; i < 600; ++i) {
                            check(one.get(i).equals(results.get(i).getList(results.get(i).fieldIndex("tokens"))),
                                    key + ": row " + i + " differs with partitions");
                        }
                    }
                }
            }
        }
        Dataset<Row> twice = rows.withColumn("group", functions.lit(1L)).unionAll(rows.withColumn("group", functions.lit(1L)));
        List<Row> results = byId(BatchLlm.transform(twice, sim().keyColumn("group").partitions(3)));
        check(results.size() == 1200, results.size() + " results of equal rows");
        for (int i = 0; i < 1200; i += 2) {
            check(results.get(i).equals(results.get(i + 1)), "equal rows differ: " + results.get(i) + results.get(i + 1));
        }
    }

    private static void aJobThatCannotBeAddedHoldsNoOther() throws Exception {
        // Both have the same keys: rows of one wait for those of the other.
        Dataset<Row> rows = SkewedRows.rows(spark, 400, 1);
        BatchLlmOptions broken = sim().stopStrings(List.of("a\0b"));
        CompletableFuture<Boolean> failing = CompletableFuture.supplyAsync(() -> {
            try {
                return withoutChecks(rows, broken, null).isEmpty();
            } catch (Exception e) {
                return true;
            }
        });
        check(answers(rows, sim()).size() == 400, "rows of the job that can be added");
        check(failing.get(), "a stop string with a zero byte was taken");
        check(answers(rows, sim()).size() == 400, "rows after the job that could not");
    }

    /** Without transform, which finds mistakes before any task. */
    private static List<Row> withoutChecks(Dataset<Row> rows, BatchLlmOptions options, Broadcast<byte[]> plan) {
        Columns columns = new Columns(rows.schema(), options);
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        MapPartitionsFunction<Row, Row> compute = part -> new TaskRows(part, columns, options, plan, metrics);
        return rows.mapPartitions(compute, Encoders.row(columns.result())).collectAsList();
    }

    private static void samplesAreRowsOfTheirOwn() {
        List<Row> results = BatchLlm.transform(SkewedRows.rows(spark, 50, 1), sim().samples(3))
                                    .persist()
                                    .orderBy("id", "sample")
                                    .collectAsList();
        check(results.size() == 150, results.size() + " results");
        boolean differ = false;
        for (int i = 0; i < 150; ++i) {
            Row row = results.get(i);
            check(row.<Long>getAs("id") == i / 3 && row.<Integer>getAs("sample") == i % 3,
                    "result " + i + ": " + row);
            differ |= i % 3 != 0 && !row.getAs("tokens").equals(results.get(i - 1).getAs("tokens"));
        }
        check(differ, "samples are equal");
        Dataset<Row> bad = SkewedRows.rows(spark, 10, 1)
                                   .withColumn("prompt", functions.expr("if(id = 3, array(-1), prompt)"));
        List<Row> some = BatchLlm.transform(bad, sim().samples(3)).where("id = 3").collectAsList();
        check(!some.isEmpty()
                        && some.stream().allMatch(
                                row -> row.<String>getAs("error").startsWith("ROW_UNKNOWN_TOKEN")),
                some.toString());
    }

    private static void functionsThatFollowReadResultsByName() {
        Dataset<Row> results = BatchLlm.transform(SkewedRows.rows(spark, 50, 2), sim());
        MapFunction<Row, String> read = row -> row.<Long>getAs("id") + " " + row.<Integer>getList(row.fieldIndex("tokens"));
        List<String> collected = new ArrayList<>();
        for (Row row : results.collectAsList()) {
            collected.add(row.<Long>getAs("id") + " " + row.<Integer>getList(row.fieldIndex("tokens")));
        }
        List<String> mapped = new ArrayList<>(results.map(read, Encoders.STRING()).collectAsList());
        List<String> distributed = new ArrayList<>(results.toJavaRDD().map(read::call).collect());
        collected.sort(null);
        mapped.sort(null);
        distributed.sort(null);
        check(collected.size() == 50 && mapped.equals(collected), "after map: " + mapped);
        check(distributed.equals(collected), "of an RDD: " + distributed);
    }

    private static void orderedResultsAreSortedAndComputedOnce() {
        // Unordered keys, some below zero, in a column with an unusual name and type.
        Dataset<Row> rows = SkewedRows.rows(spark, 400, 2).withColumn("the key", functions.expr("int(id * 7919 % 400 - 200)"));
        BatchLlmOptions options = sim().keyColumn("the key").partitions(3);
        BatchLlmMetrics once = new BatchLlmMetrics(spark.sparkContext());
        List<Row> results = BatchLlm.transform(rows, options.ordered(true).samples(2), once).collectAsList();
        check(results.size() == 800 && once.rows() == 800, results.size() + " results, ordered: " + once);
        for (int i = 0; i < 800; ++i) {
            Row row = results.get(i);
            check(row.<Integer>getAs("the key") == i / 2 - 200 && row.<Integer>getAs("sample") == i % 2,
                    "result " + i + ": " + row);
        }
        List<Row> others = answers(rows, options.ordered(false).samples(1));
        check(others.equals(answers(rows, options.ordered(true))), "ordered results are others");
        check(BatchLlm.transform(rows.limit(0), options).collectAsList().isEmpty(), "no rows in order");
        check(answers(rows.withColumn("the key", functions.lit(5)), options).size() == 400, "equal keys in order");

        // As the guide says about orderBy: the model runs twice, but once if results are in order or persisted.
        check(rowsComputedToSort(BatchLlm.transform(rows, options.ordered(false), once), once) == 800, "twice");
        for (String adaptive : List.of("true", "false")) {
            spark.conf().set("spark.sql.adaptive.enabled", adaptive);
            check(rowsComputedToSort(BatchLlm.transform(rows, options.ordered(true), once), once) == 400, "ordered");
        }
        spark.conf().unset("spark.sql.adaptive.enabled");
        Dataset<Row> kept = BatchLlm.transform(rows, options.ordered(false), once).persist();
        check(rowsComputedToSort(kept, once) == 400, "persisted");
        kept.unpersist();
    }

    private static long rowsComputedToSort(Dataset<Row> results, BatchLlmMetrics metrics) {
        long before = metrics.rows();
        check(results.orderBy("id").collectAsList().get(7).<Long>getAs("id") == 7, "sorted");
        return metrics.rows() - before;
    }

    private static void rowsAreScored() {
        Dataset<Row> rows = texts(20).withColumn(
                "choices", functions.expr("if(id = 4, null, array(' yes', ' no', ' perhaps'))"));
        Dataset<Row> scored =
                BatchLlm.transform(rows, text().keyColumn("id").continuationsColumn("choices").partitions(2));
        check(Arrays.asList(scored.columns()).contains("scores")
                        && !Arrays.asList(scored.columns()).contains("text"),
                "columns");
        for (Row row : scored.collectAsList()) {
            if (row.<Long>getAs("id") == 4) {
                check(row.getAs("scores") == null && row.<String>getAs("error").startsWith("ROW_EMPTY"),
                        row.toString());
                continue;
            }
            List<Double> scores = row.getList(row.fieldIndex("scores"));
            check(scores.size() == 3 && scores.stream().allMatch(score -> score < 0)
                            && row.getAs("finish_reason").equals("scored"),
                    row.toString());
        }
    }

    private static void logprobsComeWithTokens() {
        for (Row row : BatchLlm.transform(texts(10), text().logprobs(true)).collectAsList()) {
            List<Float> logprobs = row.getList(row.fieldIndex("logprobs"));
            check(logprobs.size() == row.getList(row.fieldIndex("tokens")).size()
                            && logprobs.stream().allMatch(p -> p <= 0),
                    row.toString());
        }
    }

    private static final String TOY =
            "{\"type\": \"object\", \"properties\": {\"b\": {\"enum\": [\"x\", \"y\"]}, \"a\": {\"type\": \"boolean\"}},"
            + " \"required\": [\"a\", \"b\"], \"additionalProperties\": false}";

    private static void oneConstraintHoldsForAllRows() {
        List<String> written = List.of("(yes|nein)", "[0-9]{3}", "\\{\"b\":\"[xy]\",\"a\":(true|false)\\}", "\\(?x\\)?", "z[0-9]");
        List<BatchLlmOptions> given = new ArrayList<>();
        given.add(text().maxTokens(40).choices(List.of("yes", "nein")));
        given.add(text().maxTokens(40).regex("[0-9]{3}"));
        given.add(text().maxTokens(40).jsonSchema(TOY));
        given.add(text().maxTokens(40).grammar("root ::= \"x\" | \"(x)\""));
        given.add(text().maxTokens(40).larkGrammar("start: \"z\" /[0-9]/"));
        for (int i = 0; i < given.size(); ++i) {
            for (Row row : BatchLlm.transform(texts(12), given.get(i).partitions(2)).collectAsList()) {
                check(row.<String>getAs("text").matches(written.get(i)) && row.getAs("finish_reason").equals("stop"),
                        row.toString());
            }
        }
        Dataset<Row> rows = texts(3);
        fails(() -> answers(rows, text().keyColumn("id").regex("(a")), "regex: character 1");
        check(answers(rows, text().keyColumn("id")).size() == 3, "the engine after a wrong constraint");
        fails(() -> BatchLlm.transform(rows, text().regex("a").choices(List.of("a"))), "choices and regex both say");
        fails(() -> BatchLlm.transform(rows, text().regex("a").task("embed")), "only generated text");
        fails(() -> BatchLlm.transform(rows, text().regexColumn("id")), "id: bigint is no text");
        fails(() -> BatchLlm.transform(rows, text().choicesColumn("prompt")), "prompt: string is no array of texts");
        fails(() -> BatchLlm.transform(rows, text().regexColumn("prompt").grammarColumn("prompt")), "both say");
        fails(() -> BatchLlm.transform(rows, text().task("rank")), "task: rank is none of generate, embed, classify");
        fails(() -> BatchLlm.transform(rows, text().task("embed").samples(2)), "samples");
    }

    private static void rowsHaveConstraintsOfTheirOwn() {
        // Rows 4 mod 8 have the options' constraint, 5 mod 8 an invalid one, which is their own error.
        String column = "case id % 8 when 4 then null when 5 then '(a' else concat('[', id % 3, ']{3}') end";
        Dataset<Row> rows = texts(60).withColumn("must", functions.expr(column));
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        BatchLlmOptions options = text().keyColumn("id").regexColumn("must").choices(List.of("none")).partitions(2).windowRows(9);
        List<Row> results = BatchLlm.transform(rows, options, metrics).collectAsList();
        check(results.size() == 60 && metrics.errors() == 7, results.size() + " rows, " + metrics);
        for (Row row : results) {
            long id = row.getAs("id");
            if (id % 8 == 5) {
                check(row.<String>getAs("error").startsWith("ROW_CONSTRAINT: regex: character 1")
                                && row.getAs("text") == null && row.getAs("finish_reason").equals("error"),
                        row.toString());
            } else {
                String expected = id % 8 == 4 ? "none" : String.valueOf(id % 3).repeat(3);
                check(expected.equals(row.getAs("text")), row.toString());
            }
        }
        Dataset<Row> lists = texts(6).withColumn("must", functions.expr("if(id = 2, array('a', null), array('b', 'cd'))"));
        for (Row row : BatchLlm.transform(lists, text().choicesColumn("must")).collectAsList()) {
            if (row.<Long>getAs("id") == 2) {
                check(row.<String>getAs("error").equals("ROW_CONSTRAINT: column must: a choice is null"), row.toString());
            } else {
                check(List.of("b", "cd").contains(row.<String>getAs("text")), row.toString());
            }
        }
    }

    private static void answersOfASchemaAreAColumnOfTheirValues() {
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        BatchLlmOptions options = text().keyColumn("id").jsonSchema(TOY).parsed(true);
        for (Row row : BatchLlm.transform(texts(6), options.maxTokens(40), metrics).collectAsList()) {
            Row parsed = row.getAs("parsed");
            String json = row.getAs("text");
            check(json.equals("{\"b\":\"" + parsed.<String>getAs("b") + "\",\"a\":" + parsed.<Boolean>getAs("a") + "}"),
                    row.toString());
        }
        check(metrics.cutOffResults() == 0, metrics.toString());
        Dataset<Row> cut = BatchLlm.transform(texts(600), options.maxTokens(2).resultPrefix("m_"), metrics);
        check(cut.filter("m_parsed is null and m_finish_reason = 'length'").count() == 600, "what is cut off has no value");
        check(metrics.cutOffResults() == 600 && metrics.toString().contains("Cut off by maxTokens: 600"), metrics.toString());
        check(metrics.warnings().stream().anyMatch(one -> one.contains("were cut off by max_tokens")),
                metrics.warnings().toString());
        fails(() -> BatchLlm.transform(texts(1), text().parsed(true)), "parsed: needs a jsonSchema");
        check(SchemaTypes.of("{\"type\":\"object\",\"properties\":{\"n\":{\"type\":[\"integer\",\"null\"]},"
                                    + "\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/x\"}},\"r\":{\"$ref\":\"#\"},\"o\":{\"$ref\":\"#anchor\"},"
                                    + "\"m\":{\"type\":\"object\",\"additionalProperties\":{\"enum\":[1.5,2]}}},"
                                    + "\"$defs\":{\"x\":{\"const\":true}}}")
                        .catalogString()
                        .equals("struct<n:bigint,l:array<boolean>,r:struct<n:bigint,l:array<boolean>,r:string,o:string,"
                                + "m:map<string,double>>,o:string,m:map<string,double>>"),
                "types of a schema");
    }

    private static void aValueThatDoesNotFitIsNullAlone() {
        String schema = "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}, \"x\": {\"type\": \"number\"},"
                + " \"l\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}}, \"s\": {\"type\": \"string\"},"
                + " \"m\": {\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}, \"any\": {}}}";
        JsonValues values = new JsonValues(SchemaTypes.of(schema), "</think>");
        String digits = "9".repeat(2_000);
        List<String> written = List.of("{\"n\":3.0,\"x\":1e400,\"l\":[1,9223372036854775808,-9223372036854775808,2e1,1e999999999,2.5,"
                        + digits + ",null,\"4\"],\"s\":\"a\\nb\",\"m\":{\"a\":1.00,\"b\":1e30},\"any\":{\"b\":[1.50,\"é\"]}}",
                "{\"n\":9223372036854775807.0}", "{\"n\":true,\"l\":3,\"s\":5,\"any\":null}", "[1]", "{\"n\":1", "{} {}", "");
        List<Row> rows = new ArrayList<>();
        for (String one : written) rows.add(RowFactory.create("{\"n\":0}</think>" + one));
        rows.add(RowFactory.create("{\"n\":1}"));
        rows.add(RowFactory.create((Object) null));
        List<String> found =
                parsed(rows, values).selectExpr("to_json(parsed)").collectAsList().stream().map(row -> row.getString(0)).toList();
        List<String> expected = Arrays.asList("{\"n\":3,\"x\":\"Infinity\",\"l\":[1,null,-9223372036854775808,20,null,null,null,null,null],"
                        + "\"s\":\"a\\nb\",\"m\":{\"a\":1,\"b\":null},\"any\":\"{\\\"b\\\":[1.50,\\\"é\\\"]}\"}",
                "{\"n\":9223372036854775807}", "{\"s\":\"5\"}", null, null, null, null, null, null);
        check(found.equals(expected), found + " is not " + expected);
    }

    /** {number, the integer that it is or null, the double that it is}. */
    private static List<String[]> numbers(JsonNode cases) {
        List<String[]> numbers = new ArrayList<>();
        for (JsonNode one : cases.get("numbers")) {
            numbers.add(new String[] {one.get(0).textValue(), one.get(1).isNull() ? null : one.get(1).asText(), one.get(2).textValue()});
        }
        for (int length : new int[] {5_000, 1_000_000}) {
            String nines = "9".repeat(length);
            numbers.add(new String[] {nines, null, "Infinity"});
            numbers.add(new String[] {"-0." + nines, null, "-1"});
            numbers.add(new String[] {"5" + "0".repeat(length) + "e-" + length, "5", "5"});
        }
        return numbers;
    }

    private static void valuesAreThoseOfThePythonPackage() throws Exception {
        JsonNode cases = new ObjectMapper().readTree(valuesFile.toFile());
        JsonValues integers = new JsonValues(SchemaTypes.of("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}"), "");
        JsonValues doubles = new JsonValues(SchemaTypes.of("{\"type\": \"array\", \"items\": {\"type\": \"number\"}}"), "");
        JsonValues any = new JsonValues(SchemaTypes.of("{}"), "");
        for (String[] one : numbers(cases)) {
            String name = one[0].substring(0, Math.min(one[0].length(), 40));
            String json = "[7," + one[0] + "]";
            long began = System.nanoTime();
            Object[] integer = (Object[]) integers.of(json);
            Object[] number = (Object[]) doubles.of(json);
            Object text = any.of(json);
            check(System.nanoTime() - began < 5_000_000_000L, name + " took long");
            Long expected = one[1] == null ? null : Long.valueOf(one[1]);
            check(integer[0].equals(7L) && Objects.equals(integer[1], expected), name + " is the integer " + integer[1]);
            check(number[0].equals(7.0) && number[1].equals(Double.valueOf(one[2])), name + " is the number " + number[1]);
            check(json.equals(text), name + " is changed without a type");
        }
        List<Row> rows = new ArrayList<>();
        List<String> expected = new ArrayList<>();
        for (JsonNode one : cases.get("texts")) {
            rows.add(RowFactory.create(one.get(0).textValue()));
            expected.add(one.get(1).textValue());
        }
        List<String> found = parsed(rows, any).select("parsed").collectAsList().stream().map(row -> row.getString(0)).toList();
        check(found.equals(expected), found + " is not " + expected);
        Row map = parsed(List.of(RowFactory.create("{\"zebra\":1,\"apple\":2,\"mango\":3,\"banana\":4,\"zebra\":5}")),
                new JsonValues(SchemaTypes.of("{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}"), ""))
                          .selectExpr("to_json(parsed)").head();
        check(map.getString(0).equals("{\"zebra\":5,\"apple\":2,\"mango\":3,\"banana\":4}"), map.toString());
    }

    /** Rows of a text, and the column parsed. */
    private static Dataset<Row> parsed(List<Row> rows, JsonValues values) {
        UDF1<String, Object> read = values::of;
        return spark.createDataFrame(rows, new StructType().add("text", "string"))
                .withColumn("parsed", functions.udf(read, values.type()).apply(functions.col("text")));
    }

    private static void rowsOfAShuffleWithoutAKeyAreWarnedOf() {
        Dataset<Row> rows = texts(20);
        check(warnings(() -> BatchLlm.transform(rows, text())).isEmpty(), "rows without a shuffle");
        Dataset<Row> few = spark.range(0, 20).withColumnRenamed("id", "other");
        Dataset<Row> joined = rows.drop("other").join(few, functions.expr("id = other"));
        for (String adaptive : List.of("true", "false")) {
            spark.conf().set("spark.sql.adaptive.enabled", adaptive);
            check(warnings(() -> BatchLlm.transform(joined.hint("broadcast"), text())).isEmpty(), "a join without a shuffle");
            Dataset<Row> twice = joined.hint("broadcast").union(joined.hint("broadcast"));
            check(warnings(() -> BatchLlm.transform(twice, text())).isEmpty(), adaptive + ": a broadcast that is used twice");
            check(warnings(() -> fails(() -> BatchLlm.transform(rows.orderBy("prompt"), text().temperature(-1)), "temperature is -1")).isEmpty(),
                    "a warning before the options are checked");
            for (Dataset<Row> one : List.of(rows.repartition(3, functions.col("id")), rows.orderBy("prompt"), rows.dropDuplicates("prompt"),
                         rows.repartition(2).withColumn("more", functions.expr("id + 1")).where("id < 9"),
                         rows.hint("merge").drop("other").join(few.hint("merge"), functions.expr("id = other")))) {
                List<String> warned = warnings(() -> BatchLlm.transform(one, text()));
                check(warned.size() == 1 && warned.get(0).contains("Set keyColumn"), adaptive + ": " + warned);
            }
        }
        check(warnings(() -> BatchLlm.transform(rows.orderBy("prompt"), text().keyColumn("id"))).isEmpty(), "rows with a key");
        spark.conf().unset("spark.sql.adaptive.enabled");
        check(!Shuffles.inPlan("Project [a, concat(a,\nExchange b) AS p#1]\n+- BroadcastExchange x\n   +- Scan"), "words of a prompt");
        check(!Shuffles.inPlan("Union\n+- ReusedExchange [a#1], BroadcastExchange HashedRelationBroadcastMode(List(a#2), false)"), "a broadcast");
        check(Shuffles.inPlan("A\n+- *(2) B\n   :- C\n   :  +- ColumnarExchange hashpartitioning(a#1, 4)"), "another engine's");
    }

    /** What the driver's log is told. */
    private static List<String> warnings(Runnable job) {
        List<String> texts = new ArrayList<>();
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord record) {
                if (record.getLevel() == Level.WARNING) texts.add(record.getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        Logger log = Logger.getLogger(BatchLlm.class.getName());
        log.addHandler(handler);
        try {
            job.run();
        } finally {
            log.removeHandler(handler);
        }
        return texts;
    }

    private static void wrongOptionsFailOnTheDriver() {
        for (BatchLlmOptions options : List.of(text(), text().model("/nowhere/model"))) {
            failsAtOnce("temperature is -1: must be", options.promptColumn("own").temperature(-1));
            failsAtOnce("max_tokens is 0", options.temperature(0).maxTokens(0));
            failsAtOnce("min_tokens is 9: it must be at most max_tokens", options.maxTokens(4).minTokens(9));
            failsAtOnce("stop_tokens[0] is -1", options.minTokens(0).stopTokens(List.of(-1)));
            failsAtOnce("stop_strings[0] is empty", options.stopTokens(List.of()).stopStrings(List.of("")));
            failsAtOnce("backend is \"gpu\": it must be auto, cpu, cuda or sim", options.stopStrings(List.of("x")).backend("gpu"));
            failsAtOnce("compute_type is \"int8\"", options.backend("auto").computeType("int8"));
            failsAtOnce("devices is", options.computeType("f32").devices("first"));
            failsAtOnce("is not of the form key=value", options.devices(null).backendOptions("fast"));
            failsAtOnce("kv_memory_fraction is 2", options.backendOptions(null).kvMemoryFraction(2));
            failsAtOnce("regex: character 1", options.kvMemoryFraction(0).regex("(a"));
            failsAtOnce("JSON", options.regex(null).jsonSchema("{\"type\""));
            failsAtOnce("#/uniqueItems", options.jsonSchema("{\"type\": \"array\", \"uniqueItems\": true}"));
            failsAtOnce("grammar: line 1", options.jsonSchema(null).grammar("root ::= ("));
            failsAtOnce("line 1, column", options.grammar(null).larkGrammar("start: ("));
            failsAtOnce("the list is empty", options.larkGrammar(null).choices(List.of()));
            failsAtOnce("a zero character", options.choices(List.of("a\0b")));
            // What is right, or depends on the model, passes.
            BatchLlm.transform(table(3), options.choices(List.of("é", "b")).stopTokens(List.of(1 << 30)).badWords(List.of("x")));
        }
        failsAtOnce("only backend \"sim\" runs without a model", text().model(null).promptColumn("own"));
        failsAtOnce("the sim backend has no such option", sim().promptColumn("own").backendOptions("speed=2"));
    }

    private static void whatNoRowCanRunWithFailsTheJob() {
        fails(() -> answers(texts(3), text().keyColumn("id").temperature(-1)), "no row can run: temperature is -1");
        fails(() -> answers(texts(3), text().keyColumn("id").maxTokens(0)), "no row can run: max_tokens is 0");
        check(answers(texts(3), text().keyColumn("id")).size() == 3, "the engine after a wrong option");
        Dataset<Row> own = texts(3).withColumn("heat", functions.expr("if(id = 1, -1.0, 0.0)"));
        List<Row> rows = answers(own, text().keyColumn("id").temperature(-1).temperatureColumn("heat"));
        check(rows.get(1).<String>getAs("error").startsWith("ROW_INVALID_PARAMETER") && rows.get(0).getAs("error") == null,
                "a row's own parameter is its own fault");
    }

    private static void aLooseSchemaIsTaken() {
        String unique = "{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [[1], [2]]}, \"minItems\": 1, \"maxItems\": 2,"
                + " \"contains\": {\"format\": \"idn-email\"}}";
        BatchLlmOptions options = text().keyColumn("id").jsonSchema(unique).maxTokens(40);
        fails(() -> answers(texts(2), options), "#/");
        for (Row row : answers(texts(2), options.looseSchema(true))) {
            check(row.getAs("error") == null && row.getAs("finish_reason").equals("stop"), row.toString());
        }
    }

    /** Rows of a golden model: prompts of token ids, and their expected output. */
    private static Dataset<Row> expected(String name) {
        return spark.read().option("multiLine", true).json(golden.resolve(name + "/embedding.json").toString())
                .selectExpr("posexplode(rows) as (id, one)")
                .selectExpr("id", "one.*");
    }

    private static BatchLlmOptions golden(String name) {
        return new BatchLlmOptions().model(golden.resolve(name).toString()).keyColumn("id").backend("cpu").threads(1)
                .computeType("f32").kvMemoryBytes(16 << 20).partitions(2);
    }

    private static void near(List<Double> expected, List<Float> found, double tolerance) {
        check(expected.size() == found.size(), expected.size() + " numbers and " + found.size());
        for (int i = 0; i < found.size(); ++i) {
            check(Math.abs(expected.get(i) - found.get(i)) < tolerance, expected.get(i) + " is not " + found.get(i));
        }
    }

    private static void vectorsAreTheReferences() {
        Dataset<Row> rows = expected("qwen3_last_bf16");
        BatchLlmOptions options = golden("qwen3_last_bf16").task("embed").normalize(false);
        for (String pooling : List.of("last", "mean")) {
            Dataset<Row> answers = BatchLlm.transform(rows, options.pooling(pooling));
            check(answers.schema().apply("embedding").dataType().catalogString().equals("array<float>"), "type");
            check(!Arrays.asList(answers.columns()).contains("text"), "columns");
            List<Row> found = answers.collectAsList();
            check(found.size() == rows.count(), found.size() + " rows");
            for (Row row : found) {
                near(row.getList(row.fieldIndex(pooling)), row.getList(row.fieldIndex("embedding")), 1e-4);
                check(row.getAs("finish_reason").equals("embedded") && row.getAs("error") == null, row.toString());
            }
        }
        for (Row row : BatchLlm.transform(rows, golden("qwen3_last_bf16").task("embed").dimensions(16)).collectAsList()) {
            double length = 0;
            for (Float value : row.<Float>getList(row.fieldIndex("embedding"))) length += value * value;
            check(Math.abs(length - 1) < 1e-5, "length " + length);
        }
        Dataset<Row> bad = rows.withColumn("prompt", functions.expr("if(id = 1, array(-1), prompt)"));
        for (Row row : BatchLlm.transform(bad, options).collectAsList()) {
            check((row.<Integer>getAs("id") == 1) == (row.getAs("embedding") == null), row.toString());
        }
    }

    private static void labelsAreTheReferences() {
        List<String> labels = List.of("refuted", "open", "supported");
        Dataset<Row> rows = expected("qwen3_labels_bf16").withColumnRenamed("probabilities", "expected");
        List<Row> found = BatchLlm.transform(rows, golden("qwen3_labels_bf16").task("classify")).collectAsList();
        check(found.size() == rows.count(), found.size() + " rows");
        for (Row row : found) {
            List<Double> expected = row.getList(row.fieldIndex("expected"));
            near(expected, row.getList(row.fieldIndex("probabilities")), 1e-4);
            double most = expected.stream().mapToDouble(Double::doubleValue).max().getAsDouble();
            check(row.getAs("label").equals(labels.get(expected.indexOf(most))), row.toString());
            check(Math.abs(row.<Float>getAs("score") - most) < 1e-4, row.toString());
            check(row.getAs("finish_reason").equals("classified"), row.toString());
        }
    }

    private static void plansAreReused() throws Exception {
        Dataset<Row> rows = SkewedRows.rows(spark, 1_000, 2);
        Path file = folder.resolve("rows.plan");
        double whole;
        try (Plan plan = SkewedRows.plan(1_000)) {
            plan.save(file);
            whole = plan.stats().savingRatio();
        }
        BatchLlmMetrics planned = new BatchLlmMetrics(spark.sparkContext());
        List<Row> results = answers(rows, sim().partitions(1).planPath(file.toString()), planned);
        check(results.equals(answers(rows, sim().partitions(1).plan(Files.readAllBytes(file)))),
                "planPath and plan differ");
        check(results.equals(answers(rows, sim())), "answers differ with a plan");
        check(planned.warnings().stream().noneMatch(one -> one.contains("of the plan")), planned.warnings().toString());
        Dataset<Row> others = rows.withColumn("prompt", functions.expr("transform(prompt, token -> token + 1)"));
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        answers(others, sim().planPath(file.toString()), metrics);
        check(metrics.warnings().stream().anyMatch(one -> one.contains("none of these rows is in the plan")),
                metrics.warnings().toString());
        check(Math.abs(planned.savingRatio() - whole) < 0.001,
                planned.savingRatio() + " saved, planned " + whole);
    }

    private static void aDamagedPlanFailsItsJobAlone() throws Exception {
        Path file = folder.resolve("damaged.plan");
        Files.write(file, new byte[] {1, 2, 3});
        Dataset<Row> rows = SkewedRows.rows(spark, 10, 1);
        fails(() -> BatchLlm.transform(rows, sim().planPath(file.toString())), "planPath " + file + ": ");
        byte[] bytes = Files.readAllBytes(file);
        fails(() -> BatchLlm.transform(rows, sim().plan(bytes)), "plan: ");
        Broadcast<byte[]> plan = JavaSparkContext.fromSparkContext(spark.sparkContext()).broadcast(bytes);
        fails(() -> withoutChecks(rows, sim(), plan), "plan");
        check(answers(SkewedRows.rows(spark, 10, 1), sim()).size() == 10, "the engine after a bad plan");
    }

    private static void twoJobsAtOnceShareAnEngine() {
        Dataset<Row> rows = SkewedRows.rows(spark, 2_000, 2);
        List<Row> alone = answers(rows, sim());
        CompletableFuture<List<Row>> first = CompletableFuture.supplyAsync(() -> answers(rows, sim()));
        CompletableFuture<List<Row>> second =
                CompletableFuture.supplyAsync(() -> answers(rows, sim().partitions(3)));
        check(first.join().equals(alone) && second.join().equals(alone),
                "two jobs with the same keys disturb each other");
    }

    private static void jobsThatStopEarlyLeaveTheEngineUsable() {
        Dataset<Row> rows = SkewedRows.rows(spark, 3_000, 2);
        check(BatchLlm.transform(rows, sim().partitions(2).windowRows(200)).limit(5).collectAsList().size()
                        == 5,
                "limit");
        check(answers(rows, sim()).size() == 3_000, "after limit");
    }

    private static void streamsAreTransformedBatchByBatch() throws Exception {
        String in = folder.resolve("stream").toString(), out = folder.resolve("stream-answers").toString();
        texts(30).select("id", "prompt").repartition(3).write().json(in);
        Dataset<Row> stream = spark.readStream().schema("id bigint, prompt string").option("maxFilesPerTrigger", 1).json(in);
        fails(() -> BatchLlm.transform(stream, text()), "the rows are a stream");
        long loaded = SharedEngine.loaded();
        VoidFunction2<Dataset<Row>, Long> answer = (batch, number) ->
                BatchLlm.transform(batch, text().keyColumn("id")).write().mode("append").json(out);
        stream.writeStream().trigger(Trigger.AvailableNow()).foreachBatch(answer)
                .option("checkpointLocation", folder.resolve("stream-state").toString()).start().awaitTermination();
        check(SharedEngine.loaded() <= loaded + 1, "an engine for each batch");
        Dataset<Row> found = spark.read().json(out);
        check(found.count() == 30 && found.select("id").distinct().count() == 30 && !Arrays.asList(found.columns()).contains("error"),
                found.count() + " answers of a stream");
    }

    private static void enginesAreSharedAndClosedWhenIdle() throws Exception {
        long loaded = SharedEngine.loaded();
        BatchLlmOptions options = sim().kvMemoryBytes(512 << 20).partitions(6);
        answers(SkewedRows.rows(spark, 500, 2), options);
        answers(SkewedRows.rows(spark, 500, 2), options);
        check(SharedEngine.loaded() == loaded + 1,
                SharedEngine.loaded() - loaded + " engines for twelve tasks of two jobs");
        // Engines of the other tests were on the same device, and had to be closed.
        check(Engines.open() == 1, Engines.open() + " engines are open");
        answers(SkewedRows.rows(spark, 100, 2), options.idleSeconds(0.1));
        for (int i = 0; i < 100 && Engines.open() > 0; ++i) Thread.sleep(100);
        check(Engines.open() == 0, "an idle engine stays open");
    }

    private static void aTaskHoldsOneAndAHalfWindows() {
        int windowRows = 100;
        BatchLlmOptions options = sim().windowRows(windowRows);
        StructType schema = SkewedRows.SCHEMA;
        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        Columns columns = new Columns(schema, options);
        MapPartitionsFunction<Row, Long> most = rows -> {
            AtomicLong in = new AtomicLong();
            Iterator<Row> counted = new Iterator<>() {
                @Override
                public boolean hasNext() {
                    return rows.hasNext();
                }

                @Override
                public Row next() {
                    in.incrementAndGet();
                    return rows.next();
                }
            };
            TaskRows results = new TaskRows(counted, columns, options, null, metrics);
            long held = 0;
            for (long out = 0; results.hasNext(); ++out) {
                held = Math.max(held, in.get() - out);
                results.next();
            }
            return List.of(held).iterator();
        };
        Dataset<Row> rows = SkewedRows.rows(spark, 5_000, 1);
        for (Dataset<Row> some : List.of(rows, rows.withColumn("prompt", functions.expr("nullif(prompt, prompt)")))) {
            long held = some.mapPartitions(most, Encoders.LONG()).collectAsList().get(0);
            // One and a half in the engine, plus what was read of the next one to find its end.
            check(held >= windowRows && held <= 2 * windowRows,
                    held + " rows were held at once, windows have " + windowRows);
        }
        // Rows without a prompt do not accumulate in one partition.
        Dataset<Row> none = rows.withColumn("prompt", functions.expr("if(id < 10, prompt, null)"));
        check(BatchLlm.transform(none, sim().partitions(4)).where("prompt is null")
                                .select(functions.spark_partition_id())
                                .distinct()
                                .count()
                        == 4,
                "rows without a prompt are in one partition");
    }

    private static void whatCannotWorkSaysWhy() {
        Dataset<Row> rows = texts(5);
        fails(()
                        -> BatchLlm.transform(rows, text().promptColumn("question")),
                "no column question; there are id, prompt, other");
        fails(()
                        -> BatchLlm.transform(rows, text().promptColumn("id")),
                "id: bigint is neither text nor an array of token ids");
        fails(() -> BatchLlm.transform(rows, text().keyColumn("prompt")), "prompt: string is no integer");
        fails(()
                        -> BatchLlm.transform(rows.withColumn("Text", functions.lit(1)), text()),
                "Text is among the rows' own");
        fails(()
                        -> BatchLlm.transform(rows, text().continuationsColumn("prompt")),
                "prompt: string is no array of texts");
        fails(() -> BatchLlm.transform(rows, text().windowRows(0)), "windowRows: 0 is not positive");
        fails(() -> BatchLlm.transform(rows, text().windowBytes(2L << 30)), "more than 1 GiB");
        fails(() -> BatchLlm.transform(rows, text().enlarge("best")), "best is none of none, optimal, paper");
        fails(()
                        -> BatchLlm.transform(rows.withColumn("Batchllm_Key", functions.lit(1)), text()),
                "Batchllm_Key is among the rows' own");
        fails(() -> BatchLlm.transform(rows, text().keyColumn("maybe")), "no column maybe");
        fails(()
                        -> BatchLlm.transform(rows.withColumn("maybe", functions.expr("nullif(id, 3)")),
                                text().keyColumn("maybe")),
                "column maybe: a row has no key");
        fails(() -> answers(rows, text().keyColumn("id").model("/nowhere/model")), "/nowhere/model");
        fails(() -> answers(rows, text().keyColumn("id").model("no/model")),
                "there is no directory " + Path.of("no/model").toAbsolutePath() + " (no/model is relative to");
        check(BatchLlm.transform(rows.withColumn("text", functions.lit(1)), text().resultPrefix("m_"))
                                .columns()
                                .length
                        == 12,
                "prefix");
        check(BatchLlm.transform(rows.limit(0), text()).collectAsList().isEmpty(), "no rows");
        // A key of any integer type; a null in a list of pictures, whatever the picture is.
        Dataset<Row> small = rows.withColumn("id", functions.expr("cast(id as tinyint)"))
                                     .withColumn("pages", functions.expr("array('a.png', nullif('x', 'x'))"));
        Row first = BatchLlm.transform(small, text().keyColumn("id").imageColumn("pages").ordered(true)).head();
        check(first.<Byte>getAs("id") == 0 && "ROW_PICTURE: column pages: a picture is null".equals(first.getAs("error")),
                first.toString());
        fails(() -> BatchLlm.transform(rows.selectExpr("id", "array(1Y) prompt"), text()), "is neither text nor an array of token ids");

        fails(() -> text().stopStrings(Arrays.asList("a", null)), "stopStrings: text 1 is null");
        fails(() -> text().badWords(Arrays.asList((String) null)), "badWords: text 0 is null");
        fails(() -> text().stopTokens(Arrays.asList(1, 2, null)), "stopTokens: token 2 is null");
        fails(() -> text().choices(Arrays.asList("a", null)), "choices: text 1 is null");
        fails(() -> text().imageFolders(Arrays.asList((String) null)), "imageFolders: text 0 is null");
        fails(() -> text().adapter("a", null), "adapters: the directory of a is null");
        fails(() -> text().adapters(null), "adapters is null");
        fails(() -> text().promptColumn(null), "promptColumn is null");
        fails(() -> text().task(null), "task is null");
        fails(() -> BatchLlm.transform(null, text()), "rows is null");
        fails(() -> BatchLlm.transform(rows, null), "options is null");
        fails(() -> BatchLlm.transform(rows, text(), null), "metrics is null");
    }

    private static List<Row> answers(Dataset<Row> rows, BatchLlmOptions options) {
        return answers(rows, options, new BatchLlmMetrics(spark.sparkContext()));
    }

    private static List<Row> answers(Dataset<Row> rows, BatchLlmOptions options, BatchLlmMetrics metrics) {
        List<Row> results =
                new ArrayList<>(BatchLlm.transform(rows, options, metrics)
                                        .select("id", "tokens", "finish_reason", "prompt_tokens", "error")
                                        .collectAsList());
        results.sort((a, b) -> Long.compare(a.getLong(0), b.getLong(0)));
        return results;
    }

    private static void fails(Runnable job, String text) {
        try {
            job.run();
        } catch (Exception e) {
            StringBuilder all = new StringBuilder();
            for (Throwable cause = e; cause != null; cause = cause.getCause()) all.append(cause).append('\n');
            check(all.toString().contains(text), "\"" + text + "\" is not in: " + all);
            return;
        }
        throw new AssertionError("no failure: " + text);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }
}
