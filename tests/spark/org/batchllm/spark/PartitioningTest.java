package org.batchllm.spark;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.batchllm.PrefixRanges;
import org.batchllm.Table;

/** Ranges and windows of prompts, without Spark. Arguments: none. Prints the seed of its rows. */
public final class PartitioningTest {
    private static final class Row implements Windows.HasPrompt {
        final byte[] prompt;
        final long key;

        Row(byte[] prompt, long key) {
            this.prompt = prompt;
            this.key = key;
        }

        @Override
        public byte[] prompt() {
            return prompt;
        }

        @Override
        public long bytes() {
            return prompt.length;
        }
    }

    public static void main(String[] arguments) {
        long seed = arguments.length > 0 ? Long.parseLong(arguments[0]) : System.nanoTime();
        System.out.println("seed " + seed);
        rangesKeepGroupsTogetherAndSplitTheLargeOne(new Random(seed));
        rangesLookBeyondWhatAllRowsShare(new Random(seed));
        equalPromptsAreSplitByTheirKeys(new Random(seed));
        aGroupIsNotCutWhenThereIsAnotherPlace(new Random(seed));
        sampleDoesNotDependOnPartitions(new Random(seed));
        keysAreCutIntoEqualRanges(new Random(seed));
        fieldsAreOrderedByWhatRowsShare(new Random(seed));
        fewRowsGiveFewPartitions(new Random(seed));
        windowsAreBoundedAndCutBetweenPrefixes(new Random(seed));
        continuationsCountInWindows();
        tokensKeepTheirOrder(new Random(seed));
        identitiesDependOnPictures();
        System.out.println("ok");
    }

    private static void identitiesDependOnPictures() {
        byte[] prompt = bytes("What is this?");
        Object[][] pictures = {null, {}, {bytes("a")}, {"a"}, {bytes("a"), bytes("b")}, {bytes("ab")}, {"b", "a"}};
        long[] found = Arrays.stream(pictures).mapToLong(own -> Prompts.hash(7, prompt, own)).distinct().toArray();
        check(found.length == pictures.length - 1, "some rows with different pictures have the same identity");
        check(Prompts.hash(7, prompt, null) == Prompts.hash(7, prompt), "a row without pictures has another identity");
    }

    /** 20,000 rows, 500 prefixes, one of them with 30 % of the rows. */
    private static List<Row> skewed(Random random, String head) {
        String[] prefixes = new String[500];
        for (int i = 0; i < prefixes.length; ++i)
            prefixes[i] = head + words(random, 600 + random.nextInt(600));
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < 20_000; ++i) {
            int prefix = random.nextInt(10) < 3 ? 0 : 1 + random.nextInt(prefixes.length - 1);
            rows.add(new Row(bytes(prefixes[prefix] + words(random, 100 + random.nextInt(200))), i));
        }
        return rows;
    }

    private static void rangesKeepGroupsTogetherAndSplitTheLargeOne(Random random) {
        List<Row> rows = skewed(random, "");
        for (int partitions : new int[] {2, 8, 32, 64}) {
            PrefixRanges ranges = sample(rows, 6_400, 4_096).ranges(partitions, 16);
            List<List<Row>> parts = split(rows, ranges, partitions);
            check(saving(parts) > saving(List.of(rows)) - 0.02,
                    "saving with " + partitions + " partitions: " + saving(parts) + " of "
                            + saving(List.of(rows)));
            // A cut may move by a quarter at either end, and each of 64 shares is estimated from 100 sampled rows:
            // three standard deviations are 0.3.
            double share = work(List.of(rows)) / partitions;
            for (List<Row> part : parts) {
                check(work(List.of(part)) < 1.8 * share,
                        "a partition has " + work(List.of(part)) / share + " shares");
            }
        }
    }

    private static void rangesLookBeyondWhatAllRowsShare(Random random) {
        List<Row> rows = skewed(random, words(random, 2_000));
        PrefixRanges ranges = sample(rows, 3_200, 4_096).ranges(32, 16);
        List<List<Row>> parts = split(rows, ranges, 32);
        check(saving(parts) > saving(List.of(rows)) - 0.02,
                "saving: " + saving(parts) + " of " + saving(List.of(rows)));
    }

    private static void equalPromptsAreSplitByTheirKeys(Random random) {
        byte[] prompt = bytes(words(random, 5_000));
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < 10_000; ++i) rows.add(new Row(prompt, i));
        for (int head : new int[] {256, 8_192}) {
            PrefixRanges ranges = sample(rows, 1_000, head).ranges(8, 16);
            for (List<Row> part : split(rows, ranges, 8)) {
                check(part.size() > 800 && part.size() < 1_800,
                        "a partition has " + part.size() + " of 10,000 equal rows");
            }
        }
    }

    private static void aGroupIsNotCutWhenThereIsAnotherPlace(Random random) {
        List<Row> rows = new ArrayList<>();
        for (int group = 0; group < 100; ++group) {
            String prefix = words(random, 800);
            for (int i = 0; i < 40; ++i) rows.add(new Row(bytes(prefix + words(random, 100)), rows.size()));
        }
        PrefixRanges ranges = sample(rows, 1_000, 4_096).ranges(10, 0);
        for (int group = 0; group < 100; ++group) {
            Set<Integer> parts = new HashSet<>();
            for (int i = 0; i < 40; ++i) {
                Row row = rows.get(group * 40 + i);
                parts.add(ranges.partition(row.prompt, PromptSample.place(row.key)));
            }
            check(parts.size() == 1, "group " + group + " lies in partitions " + parts);
        }
    }

    private static void sampleDoesNotDependOnPartitions(Random random) {
        List<Row> rows = skewed(random, "");
        PromptSample whole = sample(rows, 500, 1_000);
        PromptSample merged = new PromptSample(500, 1_000);
        for (int from = rows.size(); from > 0; from -= 4_321) {
            merged = sample(rows.subList(Math.max(0, from - 4_321), from), 500, 1_000).merge(merged);
        }
        check(merged.rows() == whole.rows(), "rows of a merged sample");
        long[] a = Arrays.stream(whole.places()).sorted().toArray();
        check(a.length == 500, "size of the sample");
        check(Arrays.equals(a, Arrays.stream(merged.places()).sorted().toArray()), "rows of a merged sample");
    }

    private static void keysAreCutIntoEqualRanges(Random random) {
        PromptSample sample = new PromptSample(2_000, 100);
        List<Long> keys = new ArrayList<>(List.of(Long.MIN_VALUE, Long.MAX_VALUE, 0L));
        for (int i = 0; i < 10_000; ++i) keys.add(random.nextLong());
        for (long key : keys) sample.add(bytes("x"), 1, key);
        long[] cuts = sample.keyCuts(8);
        int[] counts = new int[cuts.length + 1];
        for (long key : keys) {
            int range = PromptSample.rangeOf(cuts, key);
            counts[range]++;
            check((range == 0 || cuts[range - 1] <= key) && (range == cuts.length || key < cuts[range]), "key " + key);
        }
        check(counts.length == 8, counts.length + " ranges");
        for (int count : counts) check(count > 900 && count < 1_600, Arrays.toString(counts));
        check(new PromptSample(10, 100).keyCuts(8).length == 0, "no keys");
        PromptSample equal = new PromptSample(10, 100);
        for (int i = 0; i < 10; ++i) equal.add(bytes("x"), 1, 7);
        check(Arrays.equals(equal.keyCuts(4), new long[] {7}), "equal keys");
    }

    /**
     * Fields: a text of each row's own, a key of 50 values, a long text that the key determines, one with two values,
     * one with many.
     */
    private static void fieldsAreOrderedByWhatRowsShare(Random random) {
        int[] lengths = {40, 5, 200, 3, 30};
        List<long[]> rows = new ArrayList<>();
        for (int i = 0; i < 4000; ++i) {
            int key = random.nextInt(50);
            rows.add(new long[] {i, key, key + 1000, random.nextInt(2), random.nextInt(3000)});
        }
        String template = "Head\n{own}\n{key}\n{text}\n{two}\n{many}\nAnswer:";
        List<String> first = null;
        for (int part = 0; part < 3; ++part) {
            FieldSample all = new FieldSample(1000);
            for (int cut = 0; cut <= part; ++cut) {
                FieldSample some = new FieldSample(1000);
                for (int i = cut; i < rows.size(); i += part + 1) some.add(i, rows.get(i), lengths);
                all = all.merge(some);
            }
            check(all.rows() == 1000, all.rows() + " rows sampled");
            List<String> parts = Table.partsInOrder(template, 5, all.cells(), all.lengths());
            if (first == null) first = parts;
            check(first.equals(parts), "the order depends on partitions");
        }
        // The key and what it determines come before everything except the field with two values; the row's own text is
        // last.
        check(first.equals(List.of("Head\ntext: ", "text", "\nkey: ", "key", "\ntwo: ", "two", "\nmany: ", "many", "\nown: ", "own",
                      "\nAnswer:")),
                first.toString());
        FieldSample none = new FieldSample(10);
        check(Table.partsInOrder("{a}\n{b}", 2, none.cells(), none.lengths()).equals(List.of("a: ", "a", "\nb: ", "b", "")),
                "no rows, no order");
    }

    private static void fewRowsGiveFewPartitions(Random random) {
        check(sample(List.of(), 10, 100).ranges(8, 1).partitions() == 1, "no rows");
        List<Row> rows = List.of(new Row(bytes("b"), 0), new Row(bytes("a"), 1), new Row(bytes(""), 2));
        PrefixRanges ranges = sample(rows, 10, 100).ranges(8, 1);
        Set<Integer> parts = new HashSet<>();
        for (Row row : rows) parts.add(ranges.partition(row.prompt, PromptSample.place(row.key)));
        check(ranges.partitions() == 3 && parts.size() == 3, "three rows in " + parts);
    }

    private static void windowsAreBoundedAndCutBetweenPrefixes(Random random) {
        List<Row> rows = new ArrayList<>();
        for (int group = 0; group < 200; ++group) {
            String prefix = words(random, 500);
            for (int i = 0; i < 50; ++i) rows.add(new Row(bytes(prefix + words(random, 100)), rows.size()));
        }
        rows.sort((a, b) -> Arrays.compareUnsigned(a.prompt, b.prompt));
        Windows<Row> windows = new Windows<>(rows.iterator(), 1_000, Long.MAX_VALUE);
        int at = 0;
        while (windows.hasNext()) {
            List<Row> window = windows.next();
            check(window.size() > 0 && window.size() <= 1_000, "a window of " + window.size());
            for (Row row : window) check(row == rows.get(at++), "row " + at + " out of order");
            if (at < rows.size()) {
                check(window.size() >= 750, "a window of " + window.size());
                check(Prompts.common(rows.get(at - 1).prompt, rows.get(at).prompt) < 64,
                        "a cut within a prefix");
            }
        }
        check(at == rows.size(), "rows lost");

        long most = 0;
        windows = new Windows<>(rows.iterator(), 1_000_000, 60_000);
        int count = 0;
        while (windows.hasNext()) {
            List<Row> window = windows.next();
            long bytes = 0;
            for (Row row : window) bytes += row.prompt.length;
            most = Math.max(most, bytes - window.get(window.size() - 1).prompt.length);
            count += window.size();
        }
        check(most <= 60_000 && count == rows.size(),
                "windows by bytes: " + most + " in one, " + count + " rows");
    }

    private static void continuationsCountInWindows() {
        List<Request> rows = new ArrayList<>();
        byte[][] continuations = {new byte[600], new byte[390]};
        for (int i = 0; i < 100; ++i) rows.add(new Request(null, new byte[10], i, continuations, null, null));
        Windows<Request> windows = new Windows<>(rows.iterator(), 1_000, 10_000);
        int seen = 0;
        while (windows.hasNext()) {
            int size = windows.next().size();
            check(size <= 10, size + " rows of 1,000 bytes are in a window of 10,000");
            seen += size;
        }
        check(seen == 100, seen + " rows");
    }

    private static void tokensKeepTheirOrder(Random random) {
        for (int i = 0; i < 10_000; ++i) {
            int[] a = random.ints(random.nextInt(5), 0, 3).map(x -> x * 100_000).toArray();
            int[] b = random.ints(random.nextInt(5), 0, 3).map(x -> x * 100_000).toArray();
            int order = Arrays.compareUnsigned(Prompts.bytes(a), Prompts.bytes(b));
            check(Integer.signum(order) == Integer.signum(Arrays.compare(a, b)), "order of tokens");
            check(Arrays.equals(a, Prompts.tokens(Prompts.bytes(a))), "tokens from bytes");
        }
    }

    // The work of a job's parts, as if everything that neighbours share were computed once.
    private static double work(List<List<Row>> parts) {
        long work = 0;
        for (List<Row> part : parts) {
            List<Row> sorted = new ArrayList<>(part);
            sorted.sort((a, b) -> Arrays.compareUnsigned(a.prompt, b.prompt));
            byte[] previous = new byte[0];
            for (Row row : sorted) {
                work += row.prompt.length - Prompts.common(previous, row.prompt);
                previous = row.prompt;
            }
        }
        return work;
    }

    private static double saving(List<List<Row>> parts) {
        long whole = 0;
        for (List<Row> part : parts)
            for (Row row : part) whole += row.prompt.length;
        return 1 - work(parts) / whole;
    }

    private static List<List<Row>> split(List<Row> rows, PrefixRanges ranges, int partitions) {
        List<List<Row>> parts = new ArrayList<>();
        for (int i = 0; i < partitions; ++i) parts.add(new ArrayList<>());
        for (Row row : rows) parts.get(ranges.partition(row.prompt, PromptSample.place(row.key))).add(row);
        return parts;
    }

    private static PromptSample sample(List<Row> rows, int capacity, int startBytes) {
        PromptSample sample = new PromptSample(capacity, startBytes);
        for (Row row : rows) sample.add(row.prompt, row.prompt.length, row.key);
        return sample;
    }

    private static String words(Random random, int letters) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < letters; ++i)
            text.append((char) (random.nextInt(6) == 0 ? ' ' : 'a' + random.nextInt(26)));
        return text.toString();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }
}
