package org.batchllm.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Rows' cells -> the order of fields in which sorted rows share most. Keeps the hashes and lengths of the cells of the
 * {@code capacity} rows whose keys have the smallest hashes, so the result depends on the rows alone, like {@link
 * PromptSample}.
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

    /** Adds a row's cells: two numbers that identify each value, and lengths in bytes. */
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

    /**
     * The best order, as field numbers. lineBytes: bytes of each field's line besides the value. Tries three orders: as
     * given; by what the repeated values of each field share by themselves; and greedily, choosing the field that
     * shares most among the rows that have all previous fields in common. The last detects fields that determine one
     * another.
     */
    int[] order(int[] lineBytes) {
        List<Item> rows = new ArrayList<>(items);
        rows.sort(Comparator.comparingLong(item -> item.place));
        int fields = lineBytes.length;
        int[] given = IntStream.range(0, fields).toArray();
        long[] alone = new long[fields];
        for (int field = 0; field < fields; ++field) alone[field] = split(rows, new int[rows.size()], field, lineBytes, null);
        int[] byRepetition = IntStream.range(0, fields)
                .boxed()
                .sorted(Comparator.comparingLong((Integer field) -> -alone[field]))
                .mapToInt(Integer::intValue)
                .toArray();
        int[] best = given;
        long most = shared(rows, given, lineBytes);
        for (int[] order : new int[][] {byRepetition, oneByOne(rows, lineBytes)}) {
            long shared = shared(rows, order, lineBytes);
            if (shared <= most) continue;
            most = shared;
            best = order;
        }
        return best;
    }

    private static int[] oneByOne(List<Item> rows, int[] lineBytes) {
        List<Integer> left = IntStream.range(0, lineBytes.length).boxed().collect(Collectors.toList());
        int[] order = new int[left.size()];
        int[] groups = new int[rows.size()];
        for (int place = 0; place < order.length; ++place) {
            long most = -1;
            for (int field : left) {
                long shared = split(rows, groups, field, lineBytes, null);
                if (shared <= most) continue;
                most = shared;
                order[place] = field;
            }
            int[] finer = new int[groups.length];
            split(rows, groups, order[place], lineBytes, finer);
            groups = finer;
            left.remove((Integer) order[place]);
        }
        return order;
    }

    private static long shared(List<Item> rows, int[] order, int[] lineBytes) {
        long shared = 0;
        int[] groups = new int[rows.size()];
        for (int field : order) {
            int[] finer = new int[groups.length];
            shared += split(rows, groups, field, lineBytes, finer);
            groups = finer;
        }
        return shared;
    }

    /**
     * Bytes shared if the field comes next in groups of rows. finer, if not null, receives the groups that it divides
     * them into.
     */
    private static long split(List<Item> rows, int[] groups, int field, int[] lineBytes, int[] finer) {
        Map<List<Long>, Integer> numbers = new HashMap<>();
        long shared = 0;
        for (int i = 0; i < groups.length; ++i) {
            Item row = rows.get(i);
            List<Long> name = Arrays.asList((long) groups[i], row.cells[2 * field], row.cells[2 * field + 1]);
            Integer known = numbers.putIfAbsent(name, numbers.size());
            if (known != null) shared += row.bytes[field] + lineBytes[field];
            if (finer != null) finer[i] = known != null ? known : numbers.size() - 1;
        }
        return shared;
    }
}
