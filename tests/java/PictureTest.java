import java.io.IOException;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.List;
import org.batchllm.BatchLlmException;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Journal;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Status;
import org.batchllm.TextColumn;

/** Rows with pictures. That they are computed as they should be, the library's own tests show. */
final class PictureTest {
    private static final Path GOLDEN = Path.of(System.getProperty("test.golden")).resolve("qwen3_vl_pictures");
    private static final String TEXT =
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n<|im_start|>assistant\n";
    private static final String CHAT =
            "[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, {\"type\": \"text\", \"text\": \"What is this?\"}]}]";

    private static Engine engine(Path... folders) {
        return Engine.create(
                EngineOptions.builder(GOLDEN).backend("cpu").computeType("f32").imageFolders(folders).build());
    }

    private static Rows with(Rows rows) {
        return rows.withParams(SamplingParams.builder().maxTokens(4).addSpecial(false).build());
    }

    public static void rows_have_pictures() throws IOException {
        byte[] one = Files.readAllBytes(GOLDEN.resolve("picture_0.png"));
        byte[] other = Files.readAllBytes(GOLDEN.resolve("picture_1.png"));
        List<List<byte[]>> pictures = Arrays.asList(List.of(one), List.of(other), null, List.of(one), List.of());
        try (Engine engine = engine();
                Results texts = engine.generate(
                        with(Rows.ofText(TEXT, TEXT, null, TEXT, TEXT).withPictures(pictures)));
                Results chats = engine.generate(
                        with(Rows.ofChat(CHAT, CHAT, null, CHAT, CHAT).withPictures(pictures)))) {
            Check.that(Arrays.equals(texts.get(0).tokens(), texts.get(3).tokens()), "equal pictures");
            Check.that(!Arrays.equals(texts.get(0).tokens(), texts.get(1).tokens()), "other pictures");
            Check.that(Arrays.equals(texts.get(1).tokens(), chats.get(1).tokens()), "conversations");
            Check.equal(Status.ROW_NULL, texts.get(2).status());
            Check.equal(Status.ROW_PICTURE, texts.get(4).status());
            Check.equal(Status.ROW_PICTURE, chats.get(4).status());
        }
    }

    public static void rows_with_pictures_are_scored() throws IOException {
        byte[] one = Files.readAllBytes(GOLDEN.resolve("picture_0.png"));
        TextColumn ends = TextColumn.of("yes", "no");
        LongBuffer rows = LongBuffer.wrap(new long[] {0, 2});
        List<List<byte[]>> pictures = List.of(Arrays.asList(null, one));
        try (Engine engine = engine();
                Results texts = engine.generate(with(Rows.ofScores(TextColumn.of(TEXT), ends, rows).withPictures(pictures)));
                Results chats = engine.generate(Rows.ofChatScores(TextColumn.of(CHAT), ends, rows).withPictures(pictures));
                Results none = engine.generate(Rows.ofChatScores(TextColumn.of(CHAT), ends, rows));
                Results vectors = engine.embed(Rows.ofChat(CHAT).withPictures(pictures))) {
            Check.equal(2, texts.get(0).scores().length);
            Check.that(Arrays.equals(texts.get(0).scores(), chats.get(0).scores()), "conversations");
            Check.equal(Status.ROW_PICTURE, none.get(0).status());
            Check.equal(null, vectors.get(0).error());
        }
    }

    public static void rows_name_pictures() throws IOException {
        List<List<?>> pictures = Arrays.asList(List.of("picture_0.png"),
                List.of(Files.readAllBytes(GOLDEN.resolve("picture_0.png"))), List.of("none.png"));
        Rows rows = with(Rows.ofText(TEXT, TEXT, TEXT).withPictures(pictures));
        try (Engine engine = engine(GOLDEN); Results results = engine.generate(rows)) {
            Check.that(Arrays.equals(results.get(0).tokens(), results.get(1).tokens()), "a name is as good as its file");
            Check.equal(Status.ROW_PICTURE, results.get(2).status());
        }
        try (Engine engine = engine(); Results results = engine.generate(rows)) {
            Check.equal(Status.ROW_PICTURE, results.get(0).status());
        }
    }

    public static void a_job_is_not_resumed_with_other_pictures() throws IOException {
        Path folder = Files.createTempDirectory("pictures");
        Path page = folder.resolve("a.png");
        Journal.Builder job = Journal.builder(folder.resolve("answers")).resume();
        Rows rows = with(Rows.ofText(TEXT).withPictures(List.of(List.of("a.png"))));
        try {
            Files.copy(GOLDEN.resolve("picture_0.png"), page);
            for (int run = 0; run < 2; run++) {
                try (Journal journal = job.open()) {
                    try (Engine engine = engine(folder)) {
                        journal.usePictures(engine);
                        try (Results results = engine.generate(rows)) {
                            Check.equal(null, results.get(0).error());
                        }
                    }
                    if (run == 0) journal.appendLines(new long[] {0}, List.of("done"), null);
                    journal.sync();
                }
            }
            Files.copy(GOLDEN.resolve("picture_1.png"), page, StandardCopyOption.REPLACE_EXISTING);
            try (Journal journal = job.open(); Engine engine = engine(folder); Engine other = engine()) {
                Check.throwing(BatchLlmException.JournalMismatch.class, "a.png", () -> journal.usePictures(engine));
                Check.throwing(IllegalArgumentException.class, "no imageFolders", () -> journal.usePictures(other));
            }
        } finally {
            try (var files = Files.list(folder)) {
                for (Path file : (Iterable<Path>) files::iterator) Files.delete(file);
            }
            Files.delete(folder);
        }
    }

    public static void each_row_has_a_list() {
        Check.throwing(IllegalArgumentException.class, "pictures of 1 rows", () -> Rows.ofText(TEXT, TEXT)
                .withPictures(List.of(List.of())));
        Check.throwing(IllegalArgumentException.class, "texts or conversations", () -> Rows.ofTokens(List.of(new int[] {1}))
                .withPictures(List.of(List.of())));
    }

    public static void main(String[] arguments) throws Exception {
        Check.run(PictureTest.class);
    }
}
