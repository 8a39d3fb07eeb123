import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.batchllm.BatchLlm;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.TokenColumn;

/**
 * What Java costs beyond C: the same columns of tokens through bench/columns.c and through the package, from direct
 * buffers and from arrays, on the sim backend. Each run is a separate process, and the runs alternate. Usage:
 * JavaOverhead COLUMNS [ROWS] [TOKENS_A_ROW] [ROUNDS] [TIME_LIMIT]
 *
 * <p>Exits with 1 if the least time of the rounds from direct buffers exceeds TIME_LIMIT (1.1) times C's, if memory
 * beyond C's exceeds 1.5 times the columns, or if there are more than a few native calls for each slice of a tenth of a
 * second. Arrays also pay for their copy.
 */
public final class JavaOverhead {
    private static final double MEMORY_LIMIT = 1.5;
    private static final int CALLS_LIMIT = 500;

    /** A run's figures: seconds, peak KiB, results, tokens generated and, in Java, native calls. */
    private static double[] run(List<String> command) throws Exception {
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (process.waitFor() != 0) throw new IllegalStateException(command + " failed");
        return Arrays.stream(printed.trim().split(" ")).mapToDouble(Double::parseDouble).toArray();
    }

    /** A JVM with a heap for `kib` of arrays and a single-threaded collector, to leave the cores to the engine. */
    private static List<String> java(String columns, long kib, String... size) {
        List<String> command = new ArrayList<>(List.of(
                System.getProperty("java.home") + "/bin/java",
                "-XX:+UseSerialGC",
                "-Xmx" + (kib / 1024 * 3 / 2 + 64) + "m",
                "-XX:MaxDirectMemorySize=8g",
                "-cp",
                System.getProperty("java.class.path"),
                "JavaOverhead",
                "--" + columns));
        command.addAll(List.of(size));
        return command;
    }

    public static void main(String[] args) throws Exception {
        if (args[0].startsWith("--")) {
            job(Path.of(args[1]), Integer.parseInt(args[2]), args[0].equals("--direct"));
            return;
        }
        String rows = args.length > 1 ? args[1] : "200000";
        String length = args.length > 2 ? args[2] : "500";
        int rounds = args.length > 3 ? Integer.parseInt(args[3]) : 3;
        double timeLimit = args.length > 4 ? Double.parseDouble(args[4]) : 1.1;
        Path file = Files.createTempFile("batchllm", ".tokens");
        double columns = Long.parseLong(rows) * (4 * Long.parseLong(length) + 8) / 1024.0;
        double[] seconds = {1e9, 1e9, 1e9};
        double[][] last = new double[3][];
        try {
            if (new ProcessBuilder(args[0], "write", file.toString(), rows, length).start().waitFor() != 0) {
                throw new IllegalStateException(args[0] + " write failed");
            }
            for (int round = 0; round < rounds; round++) {
                last[0] = run(List.of(args[0], "run", file.toString(), length));
                last[1] = run(java("direct", 0, file.toString(), length));
                last[2] = run(java("arrays", (long) columns, file.toString(), length));
                for (int i = 0; i < 3; i++) seconds[i] = Math.min(seconds[i], last[i][0]);
            }
        } finally {
            Files.delete(file);
        }
        System.out.printf(Locale.ROOT, "%s rows of %s tokens, columns of %.0f MiB%n", rows, length, columns / 1024);
        String[] names = {"C", "Java, direct buffers", "Java, arrays"};
        boolean good = true;
        for (int i = 0; i < 3; i++) {
            double time = seconds[i] / seconds[0];
            double memory = (last[i][1] - last[0][1]) / columns;
            System.out.printf(Locale.ROOT, "%-22s %7.3f s  %6.0f MiB", names[i], seconds[i], last[i][1] / 1024);
            if (i > 0) {
                System.out.printf(Locale.ROOT, "  time %.3f times C's; memory beyond C's: %.2f times the columns; %.0f native calls",
                        time, memory, last[i][4]);
                good &= (time < timeLimit || i == 2) && memory < MEMORY_LIMIT && last[i][4] < CALLS_LIMIT + 100 * seconds[i];
            }
            System.out.println();
            good &= last[i][2] == last[0][2] && last[i][3] == last[0][3];
        }
        if (!good) System.out.println("a limit is passed, or the results differ");
        System.exit(good ? 0 : 1);
    }

    private static void job(Path file, int length, boolean direct) throws Exception {
        int total = Math.toIntExact(Files.size(file) / Integer.BYTES);
        int rows = total / length;
        IntBuffer tokens = direct
                ? ByteBuffer.allocateDirect(Math.multiplyExact(total, Integer.BYTES)).order(ByteOrder.nativeOrder()).asIntBuffer()
                : IntBuffer.allocate(total);
        LongBuffer offsets = direct
                ? ByteBuffer.allocateDirect((rows + 1) * Long.BYTES).order(ByteOrder.nativeOrder()).asLongBuffer()
                : LongBuffer.allocate(rows + 1);
        ByteBuffer block = ByteBuffer.allocateDirect(1 << 20).order(ByteOrder.nativeOrder());
        try (FileChannel in = FileChannel.open(file)) {
            while (in.read(block) >= 0) {
                IntBuffer read = block.flip().asIntBuffer();
                tokens.put(read);
                block.position(read.position() * Integer.BYTES).compact();
            }
        }
        tokens.flip();
        for (int i = 0; i <= rows; i++) offsets.put(i, (long) i * length);

        EngineOptions options = EngineOptions.builder().backend("sim").stepTokens(8192).build();
        SamplingParams params = SamplingParams.builder().maxTokens(8).build();
        try (Engine engine = Engine.create(options)) {
            long calls = BatchLlm.nativeCalls();
            long start = System.nanoTime();
            engine.add(Rows.ofTokens(TokenColumn.of(tokens, offsets)).withParams(params));
            engine.run();
            try (Results results = engine.poll()) {
                double took = (System.nanoTime() - start) * 1e-9;
                calls = BatchLlm.nativeCalls() - calls;
                String peak = Files.lines(Path.of("/proc/self/status")).filter(line -> line.startsWith("VmHWM")).findFirst().get();
                System.out.printf(Locale.ROOT, "%.4f %s %d %d %d%n", took, peak.replaceAll("\\D", ""), results.size(),
                        results.tokens().remaining(), calls);
            }
        }
    }
}
