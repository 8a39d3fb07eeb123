import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.stream.LongStream;
import org.batchllm.BatchLlmException;
import org.batchllm.Engine;
import org.batchllm.Journal;
import org.batchllm.PrefixRanges;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Table;

/** Jobs that are cut short and resumed; and the parts of templates and ranges that programs on many machines need. */
final class JournalTest {
    private static final int[][] ROWS = Jobs.rows(40);

    private static Journal.Builder job(Path output) {
        return Journal.builder(output).part("max_tokens", 5).part("words", "\u00e4 \"b\"").resume();
    }

    /** Runs the rows that are left, and stops after so many results. */
    private static int run(Path output, int most) {
        try (Journal journal = job(output).open(); Engine engine = Jobs.simEngine()) {
            BitSet done = journal.done();
            Check.equal((long) done.cardinality(), journal.rows());
            List<int[]> left = new ArrayList<>();
            for (int row = done.nextClearBit(0); row < ROWS.length; row = done.nextClearBit(row + 1)) {
                left.add(ROWS[row]);
            }
            if (left.isEmpty()) return 0;
            long[] numbers = LongStream.range(0, ROWS.length).filter(row -> !done.get((int) row)).toArray();
            SamplingParams params = SamplingParams.builder().maxTokens(5).build();
            int written = 0;
            try (Results results = engine.generate(Rows.ofTokens(Jobs.column(left.toArray(new int[0][]))).withParams(params))) {
                for (int i = 0; i < results.size() && written < most; i++, written++) {
                    Result result = results.get(i);
                    long row = numbers[(int) result.tag()];
                    journal.appendLines(new long[] {row}, List.of(row + ": " + result.tokens().length), new boolean[] {false});
                }
            }
            journal.sync();
            return written;
        }
    }

    public static void a_job_is_resumed_until_every_row_has_one_line() throws Exception {
        Path folder = Files.createTempDirectory("journal");
        Path output = folder.resolve("answers.txt");
        try {
            Check.equal(15, run(output, 15));
            Files.writeString(output, Files.readString(output) + "torn"); // as a killed process leaves it
            Check.equal(15, run(output, 15));
            Check.equal(10, run(output, 15));
            Check.equal(0, run(output, 15));
            List<String> lines = Files.readAllLines(output);
            Check.equal(ROWS.length, lines.size());
            Check.equal((long) ROWS.length, lines.stream().distinct().count());
        } finally {
            clear(folder);
        }
    }

    public static void rows_that_failed_are_tried_again() throws Exception {
        Path folder = Files.createTempDirectory("journal");
        Path output = folder.resolve("answers.txt");
        try {
            try (Journal journal = job(output).open()) {
                journal.appendLines(new long[] {0, 1, 2}, List.of("a", "B", "c"), new boolean[] {false, true, false});
            }
            try (Journal journal = job(output).resumeAndRetryFailed().open()) {
                Check.equal(2L, journal.rows());
                Check.equal(1, journal.done().nextClearBit(0));
                journal.appendLines(new long[] {1}, List.of("b"), null);
            }
            Check.equal("a\nc\nb\n", Files.readString(output));
        } finally {
            clear(folder);
        }
    }

    public static void blocks_are_kept_until_the_output_is_finished() throws Exception {
        Path folder = Files.createTempDirectory("journal");
        Path output = folder.resolve("answers.bin");
        try {
            try (Journal journal = job(output).blocks().open()) {
                journal.appendBlock(new long[] {7, 1}, new byte[] {0, 1, 2}, new boolean[] {false, true});
            }
            try (Journal journal = job(output).blocks().open()) {
                Check.equal(1, journal.blocks());
                Check.equal(2L, journal.rows());
                Check.equal(1L, journal.failed());
                journal.appendBlock(new long[] {0}, new byte[0], null);
                Check.equal(List.of(7L, 1L), List.of(journal.blockRows(0)[0], journal.blockRows(0)[1]));
                Check.equal(2, (int) journal.readBlock(0)[2]);
                Check.equal(0, journal.readBlock(1).length);
                Check.throwing(BatchLlmException.InvalidArgument.class, "block 2", () -> journal.readBlock(2));
                Check.throwing(BatchLlmException.InvalidArgument.class, "row 7 has a result already",
                        () -> journal.appendBlock(new long[] {7}, new byte[0], null));
                Path made = folder.resolve("made");
                Files.writeString(made, "whole");
                journal.finish(made);
                Check.that(journal.complete(), "complete");
            }
            Check.equal("whole", Files.readString(output));
            try (Journal journal = job(output).blocks().open()) {
                Check.that(journal.complete() && journal.rows() == 3, "an earlier run has finished it");
            }
        } finally {
            clear(folder);
        }
    }

    public static void what_cannot_be_resumed_is_refused() throws Exception {
        Path folder = Files.createTempDirectory("journal");
        Path output = folder.resolve("answers.txt");
        try {
            try (Journal journal = job(output).open()) {
                Check.throwing(BatchLlmException.InvalidState.class, "another run is writing", () -> job(output).open());
                journal.appendLines(new long[] {3, 4}, List.of("x", "z"), null);
            }
            Check.throwing(BatchLlmException.JournalExists.class, "exists", () -> Journal.builder(output).open());
            Check.throwing(BatchLlmException.JournalMismatch.class, "seed (was unset, now 7)", () -> job(output).part("seed", 7).open());
            Files.writeString(output, "y\nz\n");
            Check.throwing(BatchLlmException.JournalFormat.class, "line 1 is not what", () -> job(output).open());
            try (Journal journal = Journal.builder(output).overwrite().open()) {
                Check.equal(0L, journal.rows());
            }
            Check.equal("y\nz\n", Files.readString(output)); // nothing was written
        } finally {
            clear(folder);
        }
    }

    public static void templates_and_ranges_serve_programs_on_many_machines() {
        Check.equal(List.of("Title: ", "title", "\n{", "text", "}"), Table.parts("Title: {title}\n{{{text}}}"));
        Check.throwing(BatchLlmException.InvalidArgument.class, "at byte 1", () -> Table.parts("\u0061{"));
        long[] cells = {0, 9, 1, 9, 2, 9};
        Check.equal(List.of("all: ", "all", "\nown: ", "own", ""),
                Table.partsInOrder("{own}\n{all}", 2, cells, new int[] {5, 5, 5, 5, 5, 5}));
        byte[][] heads = {{'b'}, {'a', 'x'}, {(byte) 0xff}, {'a', 'y'}};
        PrefixRanges ranges = PrefixRanges.choose(heads, new long[] {900, 900, 900, 900}, new long[] {1, 2, 3, 4}, 2, 4, 4, 1);
        Check.equal(4, ranges.partitions());
        Check.that(!ranges.blind(), "heads differ");
        Check.equal(List.of(2, 0, 3, 1), List.of(ranges.partition(heads[0], 0), ranges.partition(heads[1], 0),
                ranges.partition(heads[2], 0), ranges.partition(heads[3], 0)));
    }

    private static void clear(Path folder) throws Exception {
        try (var files = Files.list(folder)) {
            for (Path file : (Iterable<Path>) files::iterator) Files.delete(file);
        }
        Files.delete(folder);
    }

    public static void main(String[] arguments) throws Exception {
        Check.run(JournalTest.class);
    }
}
