import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
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
 * What Java costs over C: whole_job.c's job through the package, from direct buffers and from arrays, each
 * in a process of its own, in turn. Usage: JavaOverhead WHOLE_JOB [ROWS] [TOKENS_A_ROW] [ROUNDS]; ends with 1
 * when the best round costs 10 % of time or more, memory beyond C's reaches 1.5 times the columns, or a
 * native call was made a row.
 */
public final class JavaOverhead {
    /** A run's figures: seconds, KiB of columns, KiB at most, sum, native calls. */
    private static double[] run(List<String> command) throws Exception {
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        String[] words = new String(process.getInputStream().readAllBytes()).trim().split(" ");
        if (process.waitFor() != 0) throw new IllegalStateException(command + " failed");
        return Arrays.stream(words).mapToDouble(Double::parseDouble).toArray();
    }

    /** A JVM with a heap for `kib` of arrays; the collector of one thread, as the machine's cores are the engine's. */
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
            job(args[0].equals("--direct"), Long.parseLong(args[1]), Integer.parseInt(args[2]));
            return;
        }
        String rows = args.length > 1 ? args[1] : "200000";
        String tokens = args.length > 2 ? args[2] : "500";
        int rounds = args.length > 3 ? Integer.parseInt(args[3]) : 3;
        double[] best = {1e9, 1e9, 1e9};
        double[][] last = new double[3][];
        for (int round = 0; round < rounds; round++) {
            last[0] = run(List.of(args[0], rows, tokens));
            last[1] = run(java("direct", 0, rows, tokens));
            last[2] = run(java("arrays", (long) last[0][1], rows, tokens));
            for (int i = 0; i < 3; i++) best[i] = Math.min(best[i], last[i][0]);
        }
        String[] names = {"C", "Java, direct buffers", "Java, arrays"};
        boolean good = true;
        for (int i = 0; i < 3; i++) {
            double time = best[i] / best[0] - 1;
            double memory = (last[i][2] - last[0][2]) / last[0][1];
            System.out.printf(Locale.ROOT, "%-22s %7.2f s  %+5.1f %%  %6.0f MiB at most, beyond C's %.2f times the columns%s%n",
                    names[i], best[i], 100 * time, last[i][2] / 1024, memory,
                    i == 0 ? "" : String.format(", %.0f native calls", last[i][4]));
            good &= last[i][3] == last[0][3] && time < 0.1 && memory < 1.5 && (i == 0 || last[i][4] < 2000);
        }
        System.exit(good ? 0 : 1);
    }

    private static void job(boolean direct, long rows, int length) throws Exception {
        int total = Math.toIntExact(rows * length);
        IntBuffer tokens = direct
                ? ByteBuffer.allocateDirect(Math.multiplyExact(total, 4)).order(ByteOrder.nativeOrder()).asIntBuffer()
                : IntBuffer.allocate(total);
        LongBuffer offsets = direct
                ? ByteBuffer.allocateDirect((int) (rows + 1) * 8).order(ByteOrder.nativeOrder()).asLongBuffer()
                : LongBuffer.allocate((int) rows + 1);
        offsets.put(0, 0);
        int at = 0;
        for (long i = 0; i < rows; i++) {
            for (long j = 0; j < length; j++) {
                long seed = j < length * 3L / 4 ? i / 16 : ~i;
                tokens.put(at++, (int) ((seed * 0x9e3779b97f4a7c15L + j * 0xbf58476d1ce4e5b9L) >>> 40) & 0xffff);
            }
            offsets.put((int) i + 1, at);
        }
        BatchLlm.version(); // the library is loaded before the clock starts, as C's is
        EngineOptions options = EngineOptions.builder().backend("sim").stepTokens(8192).build();
        SamplingParams params = SamplingParams.builder().maxTokens(8).build();

        long start = System.nanoTime();
        long sum = 0;
        try (Engine engine = Engine.create(options)) {
            engine.add(Rows.ofTokens(TokenColumn.of(tokens, offsets)).withParams(params));
            engine.run();
            try (Results results = engine.poll()) {
                LongBuffer tags = results.tags();
                LongBuffer ends = results.tokenOffsets();
                IntBuffer found = results.tokens();
                for (int i = 0; i < results.size(); i++) {
                    for (int j = (int) ends.get(i); j < ends.get(i + 1); j++) sum += (tags.get(i) + 1) * found.get(j);
                }
            }
        }
        double took = (System.nanoTime() - start) * 1e-9;
        String peak = Files.lines(Path.of("/proc/self/status")).filter(line -> line.startsWith("VmHWM")).findFirst().get();
        System.out.printf(Locale.ROOT, "%.3f %d %s %s %d%n", took, (total * 4L + (rows + 1) * 8) / 1024,
                peak.replaceAll("\\D", ""), Long.toUnsignedString(sum), BatchLlm.nativeCalls());
    }
}
