package org.batchllm.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.List;

/**
 * A sample of prompts -> ranges of prompts, one per partition, with about the same work.
 *
 * <p>Rows that share a prefix are adjacent in the order of prompts. A boundary between two of them costs what they have
 * in common, since that prefix is computed on both sides. So each boundary is placed where neighbours have least in
 * common, near the point that balances the work. It is stored as the shortest head that separates the two neighbours: a
 * group whose prefix is longer than what they have in common is never cut, sampled or not. A prefix with more rows than
 * fit a partition is divided among several, and computed once in each.
 *
 * <p>Prompts with equal heads are ordered by the place that their keys determine. A row's partition depends only on its
 * prompt and key.
 */
final class PrefixRanges implements Serializable {
    private static final long serialVersionUID = 1;

    /** How far a boundary may move to avoid cutting prefixes, as a share of a partition's work. */
    private static final double SLACK = 0.25;
    /** The engine shares no prefix of fewer than 16 tokens, so cutting one costs nothing. */
    private static final int LEAST_PREFIX = 16 * Prompts.TOKEN_BYTES;

    // Partition i has [boundary i - 1, boundary i); a boundary is (head, place).
    private final byte[][] heads;
    private final long[] places;
    private final int headBytes;
    private final boolean blind;

    private PrefixRanges(byte[][] heads, long[] places, int headBytes, boolean blind) {
        this.heads = heads;
        this.places = places;
        this.headBytes = headBytes;
        this.blind = blind;
    }

    int partitions() {
        return heads.length + 1;
    }

    /** Whether most sampled prompts are longer than heads and have equal heads. */
    boolean blind() {
        return blind;
    }

    /** The partition of a row, from 0. */
    int partition(byte[] prompt, long key) {
        long place = PromptSample.place(key);
        int end = Math.min(prompt.length, headBytes);
        int low = 0;
        int high = heads.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            int order = Arrays.compareUnsigned(prompt, 0, end, heads[middle], 0, heads[middle].length);
            if (order > 0 || (order == 0 && place >= places[middle])) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    /**
     * @param sample a sample of all rows
     * @param wanted the number of partitions; there are fewer if there are fewer rows
     * @param outputTokens the tokens that a row is expected to generate; they weigh as much as prompt tokens
     */
    static PrefixRanges choose(PromptSample sample, int wanted, int outputTokens) {
        List<PromptSample.Item> rows = sample.sorted();
        int n = rows.size();
        int partitions = Math.max(1, Math.min(wanted, n));
        // common[i]: the common prefix of rows i - 1 and i.
        int[] common = new int[n + 1];
        int blind = 0;
        for (int i = 1; i < n; ++i) {
            common[i] = Prompts.common(rows.get(i - 1).head, rows.get(i).head);
            if (common[i] == sample.headBytes() && rows.get(i).length > common[i]) blind++;
        }
        double[] before = work(rows, common, sample.rows(), outputTokens);

        byte[][] heads = new byte[partitions - 1][];
        long[] places = new long[partitions - 1];
        int last = 0;
        for (int part = 1; part < partitions; ++part) {
            int lowest = last + 1;
            int highest = n - (partitions - part); // leaves a row for each of the others
            double share = before[n] / partitions;
            int cut = cut(before, common, lowest, highest, part * share, SLACK * share);
            PromptSample.Item right = rows.get(cut);
            boolean equal = Arrays.equals(rows.get(cut - 1).head, right.head);
            heads[part - 1] = equal ? right.head : Arrays.copyOf(right.head, common[cut] + 1);
            places[part - 1] = equal ? right.place() : Long.MIN_VALUE;
            last = cut;
        }
        return new PrefixRanges(heads, places, sample.headBytes(), 2 * blind > n);
    }

    /**
     * Work of all rows before sampled row i, in bytes of prompt. A sampled row stands for rows / sampled rows, but what
     * it shares is computed once for all of them.
     */
    private static double[] work(List<PromptSample.Item> rows, int[] common, long total, int outputTokens) {
        int n = rows.size();
        double scale = n == 0 ? 1 : (double) total / n;
        double[] before = new double[n + 1];
        for (int i = 0; i < n; ++i) {
            int shared = Math.max(common[i], common[i + 1]);
            double own = rows.get(i).length - shared + (double) outputTokens * Prompts.TOKEN_BYTES;
            before[i + 1] = before[i] + own * scale + (shared - common[i]);
        }
        return before;
    }

    /** Of the cuts in [lowest, highest] within slack of the aim, the one where neighbours have least in common. */
    private static int cut(double[] before, int[] common, int lowest, int highest, double aim, double slack) {
        int best = -1;
        int nearest = lowest;
        for (int i = lowest; i <= highest; ++i) {
            double distance = Math.abs(before[i] - aim);
            if (distance < Math.abs(before[nearest] - aim)) nearest = i;
            if (distance > slack) {
                if (before[i] > aim) break;
                continue;
            }
            if (best < 0 || cost(common[i]) < cost(common[best])
                    || (cost(common[i]) == cost(common[best]) && distance < Math.abs(before[best] - aim))) {
                best = i;
            }
        }
        return best >= 0 ? best : nearest;
    }

    private static int cost(int common) {
        return common < LEAST_PREFIX ? 0 : common;
    }
}
