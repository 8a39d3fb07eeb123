package org.batchllm.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.PriorityQueue;

/**
 * Rows' cells -> a sample of them: the hashes and lengths of the cells of the {@code capacity} rows whose keys have the
 * smallest hashes. So it depends on the rows alone, like {@link PromptSample}.
 */
final class FieldSample implements Serializable {
    private static final long serialVersionUID = 1;

    /** A row without nulls. The natural order is by decreasing hash of its key. */
    private static final class Item implements Comparable<Item>, Serializable {
        private static final long serialVersionUID = 1;
        final long place;
        final long[] cells;
        final int[] bytes;

        Item(long place, long[] cells, int[] bytes) {
            this.place = place;
            this.cells = cells;
            this.bytes = bytes;
        }

        @Override
        public int compareTo(Item other) {
            return Long.compare(other.place, place);
        }
    }

    private final int capacity;
    private final PriorityQueue<Item> items = new PriorityQueue<>();

    FieldSample(int capacity) {
        this.capacity = capacity;
    }

    /** Adds a row's cells: a number that identifies each value, and lengths in bytes. */
    void add(long key, long[] cells, int[] bytes) {
        keep(new Item(Prompts.hash(key), cells, bytes));
    }

    FieldSample merge(FieldSample other) {
        other.items.forEach(this::keep);
        return this;
    }

    private void keep(Item item) {
        items.add(item);
        if (items.size() > capacity) items.poll();
    }

    int rows() {
        return items.size();
    }

    /** [rows * fields] */
    long[] cells() {
        return items.stream().flatMapToLong(item -> Arrays.stream(item.cells)).toArray();
    }

    /** [rows * fields] */
    int[] lengths() {
        return items.stream().flatMapToInt(item -> Arrays.stream(item.bytes)).toArray();
    }
}
