import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.batchllm.Constraint;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;

/** The job of make_job.py through the Java package. Usage: ThroughJava MODEL_DIRECTORY INPUT.jsonl OUTPUT */
final class ThroughJava {
    private static final String SCHEMA = "\"json_schema\": ";

    /** make_job.py writes nothing that JSON escapes. */
    private static String field(String line, String name, String orElse) {
        Matcher found = Pattern.compile("\"" + name + "\": (?:\"([^\"\\\\]*)\"|([^,}]*))").matcher(line);
        if (!found.find()) return orElse;
        return found.group(1) != null ? found.group(1) : found.group(2);
    }

    public static void main(String[] args) throws IOException {
        List<String> prompts = new ArrayList<>();
        List<SamplingParams> params = new ArrayList<>();
        List<Long> tags = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[1]))) {
            tags.add(Long.parseLong(field(line, "id", null)));
            prompts.add(field(line, "prompt", null));
            int schema = line.indexOf(SCHEMA); // the line's last key
            params.add(
                    SamplingParams.builder()
                            .maxTokens(Integer.parseInt(field(line, "max_tokens", null)))
                            .temperature(Double.parseDouble(field(line, "temperature", "0")))
                            .seed(Long.parseLong(field(line, "seed", "0")))
                            .constraint(schema < 0 ? null : Constraint.ofJsonSchema(
                                    line.substring(schema + SCHEMA.length(), line.length() - 1)))
                            .build());
        }
        String[] lines = new String[prompts.size()];
        try (Engine engine = Engine.create(EngineOptions.builder(Path.of(args[0])).build())) {
            long[] rowTags = tags.stream().mapToLong(Long::longValue).toArray();
            engine.add(Rows.ofText(prompts).withTags(rowTags).withParams(params));
            engine.run();
            try (Results results = engine.poll()) {
                for (Result result : results) {
                    String tokens = IntStream.of(result.tokens()).mapToObj(Integer::toString).collect(Collectors.joining(" "));
                    lines[(int) result.tag() - 1] = tokens; // ids are line numbers
                }
            }
        }
        Files.write(Path.of(args[2]), List.of(lines));
    }
}
