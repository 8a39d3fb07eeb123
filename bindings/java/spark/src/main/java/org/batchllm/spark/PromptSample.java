package org.batchllm.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.PriorityQueue;
import java.util.stream.IntStream;
import org.batchllm.PrefixRanges;

/**
 * Prompts -> a uniform sample of their starts: the {@code capacity} rows whose keys have the smallest hashes. So the
 * sample depends on the rows alone, not on their partitions or on the order in which these are merged, and its size is
 * exact.
 */
final class PromptSample implements Serializable {
    private static final long serialVersionUID = 1;

    /** One row: its start, its whole length, and its key. The natural order is by decreasing hash. */
    static final class Item implements Comparable<Item>, Serializable {
        private static final long serialVersionUID = 1;
        final byte[] start;
        final long length;
        private final long key;
        private final long hash;

        Item(byte[] start, long length, long key, long hash) {
            this.start = start;
            this.length = length;
            this.key = key;
            this.hash = hash;
        }

        @Override
        public int compareTo(Item other) {
            return Long.compare(other.hash, hash);
        }

        /** Its place among rows with equal starts: see {@link PromptSample#place}. */
        long place() {
            return Prompts.hash(hash);
        }
    }

    /**
     * The place of a row among those with the same start. This is not the hash that rows are sampled by, since the
     * sample only has the smallest of those.
     */
    static long place(long key) {
        return Prompts.hash(Prompts.hash(key));
    }

    private final int capacity;
    private final int startBytes;
    private long rows;
    // The largest hash is on top: it is the next to be replaced.
    private final PriorityQueue<Item> items = new PriorityQueue<>();

    PromptSample(int capacity, int startBytes) {
        this.capacity = capacity;
        this.startBytes = startBytes;
    }

    /** Adds a row: its prompt, or at least startBytes of it, and the whole prompt's length. */
    void add(byte[] prompt, long length, long key) {
        rows++;
        long hash = Prompts.hash(key);
        if (wanted(hash)) {
            byte[] start = prompt.length > startBytes ? Arrays.copyOf(prompt, startBytes) : prompt;
            keep(new Item(start, length, key, hash));
        }
    }

    PromptSample merge(PromptSample other) {
        rows += other.rows;
        for (Item item : other.items) {
            if (wanted(item.hash)) keep(item);
        }
        return this;
    }

    /** Rows seen, sampled or not. */
    long rows() {
        return rows;
    }

    int startBytes() {
        return startBytes;
    }

    /** Ranges of all rows' prompts: see {@link PrefixRanges#choose}. */
    PrefixRanges ranges(int partitions, int outputTokens) {
        return PrefixRanges.choose(items.stream().map(item -> item.start).toArray(byte[][]::new),
                items.stream().mapToLong(item -> item.length).toArray(), places(), startBytes, rows, partitions, outputTokens);
    }

    /** The places of the sampled rows, in no particular order. */
    long[] places() {
        return items.stream().mapToLong(Item::place).toArray();
    }

    /**
     * Whether keys repeat. The sample has every row of the keys with the smallest hashes, so it detects any significant
     * share of repeated keys, and all of them if every row is sampled.
     */
    boolean keysRepeat() {
        return items.stream().mapToLong(item -> item.key).distinct().count() < items.size();
    }

    /**
     * Keys that divide all rows into this many ranges of about equal size, or into fewer if keys are equal: range i is
     * [cut i - 1, cut i).
     */
    long[] keyCuts(int ranges) {
        long[] keys = items.stream().mapToLong(item -> item.key).sorted().toArray();
        return IntStream.range(1, keys.length == 0 ? 1 : ranges)
                .mapToLong(i -> keys[(int) ((long) i * keys.length / ranges)])
                .distinct()
                .toArray();
    }

    /** The range of a key, from 0. */
    static int rangeOf(long[] cuts, long key) {
        int at = Arrays.binarySearch(cuts, key);
        return at >= 0 ? at + 1 : -at - 1;
    }

    private boolean wanted(long hash) {
        return items.size() < capacity || hash < items.peek().hash;
    }

    private void keep(Item item) {
        items.add(item);
        if (items.size() > capacity) items.poll();
    }
}
