package org.batchllm.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;

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
        private final long hash;

        Item(byte[] head, long length, long hash) {
            this.head = head;
            this.length = length;
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
            keep(new Item(head, length, hash));
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

    private boolean wanted(long hash) {
        return items.size() < capacity || hash < items.peek().hash;
    }

    private void keep(Item item) {
        items.add(item);
        if (items.size() > capacity) items.poll();
    }
}
