package org.batchllm;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * A sample of prompts -> ranges of prompts with about the same work, so that rows that share a prefix meet: for programs
 * that spread rows over several engines.
 *
 * <p>In sorted order, rows that share a prefix are neighbours. A boundary between two of them costs what they have in
 * common, since that is computed on both sides. So each boundary is where neighbours have least in common, near the
 * point that balances the work. A prefix with more rows than fit a range is divided among several.
 *
 * <p>Prompts are bytes whose unsigned order is the order of the prompts: UTF-8, or four big-endian bytes for each
 * token. The start of a prompt is its first startBytes bytes. Rows with equal starts are ordered by their places, numbers
 * that the caller derives from their keys. A row's range depends only on its prompt and place.
 */
public final class PrefixRanges implements Serializable {
    private static final long serialVersionUID = 1;

    /** The boundaries' starts of prompts, ascending. */
    private final byte[][] starts;
    /** The boundaries' places among rows with equal starts. */
    private final long[] places;
    /** How many bytes of a prompt are compared. */
    private final int startBytes;
    /** Whether most sampled prompts are equal in these bytes. */
    private final boolean blind;

    private PrefixRanges(byte[][] starts, long[] places, int startBytes, boolean blind) {
        this.starts = starts;
        this.places = places;
        this.startBytes = startBytes;
        this.blind = blind;
    }

    /**
     * Chooses ranges from a uniform sample of rows, in any order.
     *
     * @param starts of the sampled rows
     * @param lengths bytes of their whole prompts
     * @param places orders rows with equal starts
     * @param startBytes how long a start is at most
     * @param rows of which the sample was drawn
     * @param partitions how many ranges there should be; there are fewer if there are fewer rows
     * @param expectedTokens the tokens that a row is expected to generate; each weighs as much as four bytes of a prompt
     * @return ranges, which need not be closed
     */
    public static PrefixRanges choose(byte[][] starts, long[] lengths, long[] places, int startBytes, long rows,
            int partitions, int expectedTokens) {
        long[] offsets = new long[starts.length + 1];
        for (int i = 0; i < starts.length; i++) offsets[i + 1] = offsets[i] + starts[i].length;
        byte[] text = new byte[Math.toIntExact(offsets[starts.length])];
        for (int i = 0; i < starts.length; i++) System.arraycopy(starts[i], 0, text, (int) offsets[i], starts[i].length);
        batchllm_ranges chosen = Native.batchllm_ranges_choose_from(
                text, offsets, lengths, places, partitions, rows, startBytes, expectedTokens);
        try {
            ByteBuffer found = (ByteBuffer) Native.batchllm_ranges_column_starts(chosen);
            long[] ends = Buffers.longs((ByteBuffer) Native.batchllm_ranges_column_offsets(chosen));
            byte[][] boundaries = new byte[ends.length - 1][];
            for (int i = 0; i < boundaries.length; i++) {
                boundaries[i] = new byte[(int) (ends[i + 1] - ends[i])];
                found.get(boundaries[i]);
            }
            long[] between = Buffers.longs((ByteBuffer) Native.batchllm_ranges_column_places(chosen));
            return new PrefixRanges(boundaries, between, startBytes, chosen.getBlind() != 0);
        } finally {
            chosen.delete();
        }
    }

    /**
     * How many ranges there are.
     *
     * @return at least 1
     */
    public int partitions() {
        return starts.length + 1;
    }

    /**
     * Whether most sampled prompts are longer than starts and have equal starts: a higher startBytes is needed to put rows
     * together.
     *
     * @return true if rows are spread by their places alone
     */
    public boolean blind() {
        return blind;
    }

    /**
     * The range of a row.
     *
     * @param prompt at least its start
     * @param place as in the sample
     * @return from 0
     */
    public int partition(byte[] prompt, long place) {
        int end = Math.min(prompt.length, startBytes);
        int low = 0;
        int high = starts.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            int order = Arrays.compareUnsigned(prompt, 0, end, starts[middle], 0, starts[middle].length);
            if (order > 0 || (order == 0 && place >= places[middle])) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
}
