import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.batchllm.BatchLlmException;
import org.batchllm.Engine;
import org.batchllm.Plan;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.Status;
import org.batchllm.Table;
import org.batchllm.TextColumn;
import org.batchllm.TokenColumn;

/** Columns and a template make prompts, and rows without a cell fail by themselves. */
final class TableTest {
    private static final int ROWS = 40;
    private static final String TEMPLATE = "Tell.\n{own}\nKind: {kind}\n{all}\nAnswer:";

    /** Row 7 has no own text. */
    private static Table.Builder builder(String template) {
        List<String> own = new ArrayList<>();
        List<String> kind = new ArrayList<>();
        String[] all = new String[ROWS];
        for (int i = 0; i < ROWS; i++) {
            own.add(i == 7 ? null : "number " + i);
            kind.add("one of kind " + i % 4 + " with a long name");
            all[i] = "what évery row says";
        }
        return Table.builder(template).column("own", own).column("kind", kind).column("all", TextColumn.of(all));
    }

    public static void fields_stand_as_given_or_where_rows_share_most() {
        try (Table given = builder(TEMPLATE).build(); Table moved = builder(TEMPLATE).reorder(true).build()) {
            Check.equal((long) ROWS, given.size());
            Check.equal("Tell.\nnumber 3\nKind: one of kind 3 with a long name\nwhat évery row says\nAnswer:",
                    given.prompt(3));
            Check.equal("Tell.\nall: what évery row says\nKind: one of kind 3 with a long name\nown: number 3\nAnswer:",
                    moved.prompt(3));
            Check.equal(null, given.prompt(7));
            Check.equal(0.0, given.hitRate());
            Check.that(moved.hitRate() > 0.6, "hit rate " + moved.hitRate());
            Check.that(moved.hitRate() > moved.sortedHitRate() && moved.sortedHitRate() >= moved.givenHitRate(), "rates");
            Check.throwing(IndexOutOfBoundsException.class, "40", () -> given.prompt(ROWS));
        }
    }

    public static void rows_of_a_table_get_the_results_of_their_prompts() {
        try (Table table = builder(TEMPLATE).reorder(true).build(); Engine engine = Jobs.modelEngine()) {
            List<String> prompts = new ArrayList<>();
            for (int i = 0; i < ROWS; i++) prompts.add(i == 7 ? "x" : table.prompt(i));
            try (Results found = engine.generate(Rows.ofTable(table).withParams(Jobs.tokens(3)));
                    Results same = engine.generate(Rows.ofText(prompts).withParams(Jobs.tokens(3)))) {
                Check.equal(ROWS, found.size());
                for (int i = 0; i < ROWS; i++) {
                    Result result = found.get(i);
                    Check.equal(i == 7 ? Status.ROW_NULL : Status.OK, result.status());
                    if (i != 7) Check.equal(same.get(i).text(), result.text());
                }
                Check.that(found.get(7).error().contains("\"own\" is null"), found.get(7).error());
            }
            long[] tags = new long[ROWS];
            Arrays.fill(tags, 9);
            engine.add(Rows.ofTable(table).withTags(tags).withParams(Jobs.tokens(1)));
            engine.run();
            try (Results tagged = engine.poll()) {
                Check.equal(ROWS, tagged.size());
                for (int i = 0; i < ROWS; i++) Check.equal(9L, tagged.get(i).tag());
            }
        }
    }

    public static void a_table_may_be_of_conversations() {
        try (Table table = Table.builder("{q}").column("q", Arrays.asList("say \"hi\"")).chat(true).system("Be kind.")
                .build()) {
            Check.equal("[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"say \\\"hi\\\"\"}]",
                    table.prompt(0));
        }
    }

    public static void what_is_wrong_is_said() {
        Check.throwing(BatchLlmException.class, "no column \"title\"", () -> builder("{title}").build());
        Check.throwing(BatchLlmException.class, "{ without its }", () -> builder("{own").build());
        Check.throwing(BatchLlmException.class, "in one line", () -> builder("{own} {all}").reorder(true).build());
        Check.throwing(BatchLlmException.class, "two columns \"own\"",
                () -> builder("{own}").column("own", Arrays.asList(new String[ROWS])).build());
        Check.throwing(BatchLlmException.class, "3 rows",
                () -> builder("{own}").column("short", Arrays.asList("a", "b", "c")).build());
        Check.throwing(BatchLlmException.class, "without chat", () -> builder("{own}").system("Be kind.").build());
        Check.throwing(BatchLlmException.class, "zero byte",
                () -> builder("{own}").column("a\0b", Arrays.asList(new String[ROWS])).build());
        Table closed = builder("{own}").build();
        closed.close();
        Check.throwing(IllegalStateException.class, "table is closed", () -> closed.prompt(0));
        try (Engine engine = Jobs.modelEngine()) {
            Check.throwing(IllegalStateException.class, "table is closed", () -> engine.add(Rows.ofTable(closed)));
        }
    }

    public static void an_empty_table_has_no_rows() {
        try (Table table = Table.builder("{a}").column("a", List.of()).reorder(true).build()) {
            Check.equal(0L, table.size());
        }
    }

    public static void a_plan_says_what_to_put_first() {
        int[][] rows = new int[100][120];
        for (int i = 0; i < rows.length; i++) {
            for (int j = 0; j < 120; j++) rows[i][j] = j < 20 ? i * 31 + j * (i + 7) : j;
        }
        try (Plan plan = Plan.create(TokenColumn.of(Arrays.asList(rows)))) {
            Check.that(plan.advice().contains("Put what"), plan.advice());
        }
        try (Plan plan = Plan.create(Jobs.column(Jobs.rows(100)))) {
            Check.equal("", plan.advice());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Check.run(TableTest.class);
    }
}
