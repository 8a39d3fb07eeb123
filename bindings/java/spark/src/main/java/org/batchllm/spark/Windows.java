package org.batchllm.spark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * Rows in the order of their prompts -> windows of bounded size. A window ends where neighbours in its last quarter
 * have least in common, so that few prefixes are computed in two windows.
 */
final class Windows<R extends Windows.HasPrompt> implements Iterator<List<R>> {
    interface HasPrompt {
        /** Null: no prompt; such rows come first in the order. */
        byte[] prompt();

        /** Bytes of everything that goes to the engine. */
        long bytes();
    }

    private final Iterator<R> rows;
    private final int maxRows;
    private final long maxBytes;
    private List<R> waiting = new ArrayList<>();

    /** Windows of at most maxRows rows and, not counting their last row, maxBytes of prompts and continuations. */
    Windows(Iterator<R> rows, int maxRows, long maxBytes) {
        this.rows = rows;
        this.maxRows = maxRows;
        this.maxBytes = maxBytes;
    }

    @Override
    public boolean hasNext() {
        return !waiting.isEmpty() || rows.hasNext();
    }

    @Override
    public List<R> next() {
        if (!hasNext()) throw new NoSuchElementException();
        List<R> window = waiting;
        waiting = new ArrayList<>();
        long bytes = 0;
        for (R row : window) bytes += row.bytes();
        while (rows.hasNext() && window.size() < maxRows && bytes < maxBytes) {
            R row = rows.next();
            window.add(row);
            bytes += row.bytes();
        }
        if (!rows.hasNext()) return window;
        int cut = cut(window);
        waiting.addAll(window.subList(cut, window.size()));
        window.subList(cut, window.size()).clear();
        return window;
    }

    /** Where to cut, with at least one row before the cut; the rows after it begin the next window. */
    private int cut(List<R> window) {
        int n = window.size();
        if (n < 2) return n;
        int best = n - 1;
        int least = Integer.MAX_VALUE;
        for (int i = n - 1; i >= Math.max(1, n - n / 4); --i) {
            int common = common(window.get(i - 1).prompt(), window.get(i).prompt());
            if (common < least) {
                least = common;
                best = i;
            }
        }
        return best;
    }

    private static int common(byte[] a, byte[] b) {
        return a == null || b == null ? 0 : Prompts.common(a, b);
    }
}
