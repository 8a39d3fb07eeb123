package org.batchllm.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.stream.IntStream;

/**
 * Prompts -> a uniform sample of their heads: the {@code capacity} rows whose keys have the least
 * hashes. So the sample is a function of the rows alone, whatever partitions they come in and in
 * whatever order these are merged, and its size is exact.
 */
final class PromptSample implements Serializable {
    private static final long serialVersionUID = 1;

    /** One row: its head, its whole length, and its key. Naturally ordered by falling hash. */
    static final class Item implements Comparable<Item>, Serializable {
        private static final long serialVersionUID = 1;
        final byte[] head;
        final long length;
        private final long key;
        private final long hash;

        Item(byte[] head, long length, long key, long hash) {
            this.head = head;
            this.length = length;
            this.key = key;
            this.hash = hash;
        }

        @Override
        public int compareTo(Item other) {
            return Long.compare(other.hash, hash);
        }

        /** Of rows with equal heads: see {@link PromptSample#place}. */
        long place() {
            return Prompts.hash(hash);
        }
    }

    /**
     * The place of a row among those with the same head. Not the hash by which rows are sampled: the
     * sample has the least of those only.
     */
    static long place(long key) {
        return Prompts.hash(Prompts.hash(key));
    }

    /** Heads in unsigned order, equal heads by place. */
    static final Comparator<Item> BY_HEAD = (a, b) -> {
        int order = Arrays.compareUnsigned(a.head, b.head);
        return order != 0 ? order : Long.compare(a.place(), b.place());
    };

    private final int capacity;
    private final int headBytes;
    private long rows;
    // The greatest hash on top: the next to be displaced.
    private final PriorityQueue<Item> items = new PriorityQueue<>();

    PromptSample(int capacity, int headBytes) {
        this.capacity = capacity;
        this.headBytes = headBytes;
    }

    /** A row: its prompt, or at least headBytes of it, and the whole prompt's length. */
    void add(byte[] prompt, long length, long key) {
        rows++;
        long hash = Prompts.hash(key);
        if (wanted(hash)) {
            byte[] head = prompt.length > headBytes ? Arrays.copyOf(prompt, headBytes) : prompt;
            keep(new Item(head, length, key, hash));
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

    int headBytes() {
        return headBytes;
    }

    List<Item> sorted() {
        List<Item> sorted = new ArrayList<>(items);
        sorted.sort(BY_HEAD);
        return sorted;
    }

    /**
     * Whether some rows have one key. The sample has every row of the keys with the least hashes, so that it sees any share
     * of rows that is worth a look, and each one where all rows are sampled.
     */
    boolean keysRepeat() {
        return items.stream().mapToLong(item -> item.key).distinct().count() < items.size();
    }

    /**
     * Keys that cut all rows into so many ranges of about equal size, or into fewer where keys are equal: range i is
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
