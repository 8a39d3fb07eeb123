package org.batchllm;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Objects;

/**
 * A constraint on the output of a row: one of a list of texts, a match of a regular expression, JSON that matches a
 * schema, or a text of a grammar. Set it with {@link SamplingParams.Builder#constraint}. A constraint is immutable and
 * does not belong to an engine: each engine compiles it once, with the first row that has an equal one.
 *
 * <p>If it is invalid, or cannot be enforced exactly, {@link Engine#prepare} and the call that adds the rows throw a
 * {@link BatchLlmException} whose message names the place, and the call adds no row. docs/structured-output.md says
 * what can be enforced.
 */
public final class Constraint implements Serializable {
    private static final long serialVersionUID = 1;

    /** BATCHLLM_CONSTRAINT_ in the C header. */
    private final int kind;
    /** The expression, schema or grammar. */
    private final String text;
    /** The texts of {@link #ofChoices}. */
    private final List<String> choices;
    /** "": applies from the start. */
    private final String startAfter;
    /** For JSON. */
    private final boolean flexibleWhitespace;
    /** For JSON. */
    private final boolean anyMemberOrder;
    /** For JSON. */
    private final boolean anyNumbers;
    /** Whether requirements that cannot be enforced are ignored. */
    private final boolean looseSchema;

    private Constraint(
            int kind,
            String text,
            List<String> choices,
            String startAfter,
            boolean flexibleWhitespace,
            boolean anyMemberOrder,
            boolean anyNumbers,
            boolean looseSchema) {
        this.kind = kind;
        this.text = text;
        this.choices = choices;
        this.startAfter = startAfter;
        this.flexibleWhitespace = flexibleWhitespace;
        this.anyMemberOrder = anyMemberOrder;
        this.anyNumbers = anyNumbers;
        this.looseSchema = looseSchema;
    }

    private static Constraint ofText(int kind, String text) {
        return new Constraint(kind, text, List.of(), "", false, false, false, false);
    }

    /**
     * The output is one of these texts.
     *
     * @param texts at least one, without zero characters
     * @return a constraint
     */
    public static Constraint ofChoices(Collection<String> texts) {
        List<String> choices = new ArrayList<>(Objects.requireNonNull(texts, "texts is null"));
        int missing = choices.indexOf(null);
        if (missing >= 0) throw new IllegalArgumentException("choice " + missing + " is null");
        return new Constraint(Native.BATCHLLM_CONSTRAINT_CHOICES, "", List.copyOf(choices), "", false, false, false, false);
    }

    /**
     * The output is one of these texts.
     *
     * @param texts at least one, without zero characters
     * @return a constraint
     */
    public static Constraint ofChoices(String... texts) {
        return ofChoices(Arrays.asList(Objects.requireNonNull(texts, "texts is null")));
    }

    /**
     * The whole output matches a regular expression. {@code \w}, {@code \d}, {@code \s} and
     * {@code \b} know ASCII alone; <code>\p{L}</code> is any letter.
     *
     * @param expression in the dialect of Python's `re`
     * @return a constraint
     */
    public static Constraint ofRegex(String expression) {
        return ofText(Native.BATCHLLM_CONSTRAINT_REGEX, Objects.requireNonNull(expression, "expression is null"));
    }

    /**
     * The output is JSON that matches a schema.
     *
     * @param schema of draft 4, 6, 7, 2019-09 or 2020-12
     * @return a constraint
     */
    public static Constraint ofJsonSchema(String schema) {
        return ofText(Native.BATCHLLM_CONSTRAINT_JSON_SCHEMA, Objects.requireNonNull(schema, "schema is null"));
    }

    /**
     * The output is a text of a grammar in GBNF.
     *
     * @param grammar in llama.cpp's GBNF notation
     * @return a constraint
     */
    public static Constraint ofGbnf(String grammar) {
        return ofText(Native.BATCHLLM_CONSTRAINT_GBNF, Objects.requireNonNull(grammar, "grammar is null"));
    }

    /**
     * The output is a text of a grammar in Lark's language.
     *
     * @param grammar in Lark's language
     * @return a constraint
     */
    public static Constraint ofLark(String grammar) {
        return ofText(Native.BATCHLLM_CONSTRAINT_LARK, Objects.requireNonNull(grammar, "grammar is null"));
    }

    /**
     * The constraint applies after the first occurrence of this text in the output. Before it, the model generates
     * freely, and its EOS ends the row.
     *
     * @param marker for example "&lt;/think&gt;"; "": from the start
     * @return a changed copy
     */
    public Constraint withStartAfter(String marker) {
        Objects.requireNonNull(marker, "marker is null");
        return new Constraint(kind, text, choices, marker, flexibleWhitespace, anyMemberOrder, anyNumbers, looseSchema);
    }

    /**
     * JSON may have a space, or a line feed and an indent, between its parts.
     *
     * @param value default false: no whitespace
     * @return a changed copy
     */
    public Constraint withFlexibleWhitespace(boolean value) {
        return new Constraint(kind, text, choices, startAfter, value, anyMemberOrder, anyNumbers, looseSchema);
    }

    /**
     * Members of JSON objects may come in any order.
     *
     * @param value default false: in the schema's order
     * @return a changed copy
     */
    public Constraint withAnyMemberOrder(boolean value) {
        return new Constraint(kind, text, choices, startAfter, flexibleWhitespace, value, anyNumbers, looseSchema);
    }

    /**
     * JSON numbers may be written as 12.0 for 12, and with exponents.
     *
     * @param value default false: in their plain form
     * @return a changed copy
     */
    public Constraint withAnyNumbers(boolean value) {
        return new Constraint(kind, text, choices, startAfter, flexibleWhitespace, anyMemberOrder, value, looseSchema);
    }

    /**
     * Requirements of a schema that cannot be enforced exactly are ignored. {@link Engine#prepare} and a warning in the
     * engine's log list them by keyword and place.
     *
     * @param value default false: they are an error
     * @return a changed copy
     */
    public Constraint withLooseSchema(boolean value) {
        return new Constraint(kind, text, choices, startAfter, flexibleWhitespace, anyMemberOrder, anyNumbers, value);
    }

    /** The native constraint for an engine. The caller must delete it. */
    batchllm_constraint make(batchllm_engine engine) {
        List<byte[]> texts = new ArrayList<>();
        for (String choice : choices) texts.add(Utf8.terminable(choice));
        // Each text is followed by a zero byte.
        long[] starts = new long[texts.size()];
        byte[] bytes = new byte[texts.stream().mapToInt(one -> one.length + 1).sum()];
        int end = 0;
        for (int i = 0; i < starts.length; i++) {
            starts[i] = end;
            System.arraycopy(texts.get(i), 0, bytes, end, texts.get(i).length);
            end += texts.get(i).length + 1;
        }
        return Native.batchllm_constraint_create_from(
                engine,
                kind,
                Utf8.bytes(text),
                bytes,
                starts,
                Utf8.terminable(startAfter),
                flexibleWhitespace ? Native.BATCHLLM_WHITESPACE_FLEXIBLE : Native.BATCHLLM_WHITESPACE_COMPACT,
                anyMemberOrder ? Native.BATCHLLM_MEMBERS_ANY : Native.BATCHLLM_MEMBERS_DECLARED,
                anyNumbers ? Native.BATCHLLM_NUMBERS_ANY : Native.BATCHLLM_NUMBERS_PLAIN,
                looseSchema ? 1 : 0);
    }

    @Override
    public boolean equals(Object object) {
        if (!(object instanceof Constraint)) return false;
        Constraint other = (Constraint) object;
        return kind == other.kind
                && flexibleWhitespace == other.flexibleWhitespace
                && anyMemberOrder == other.anyMemberOrder
                && anyNumbers == other.anyNumbers
                && looseSchema == other.looseSchema
                && startAfter.equals(other.startAfter)
                && text.equals(other.text)
                && choices.equals(other.choices);
    }

    @Override
    public int hashCode() {
        return Objects.hash(
                kind, text, choices, startAfter, flexibleWhitespace, anyMemberOrder, anyNumbers, looseSchema);
    }

    @Override
    public String toString() {
        String[] kinds = {"", "one of ", "regex ", "JSON schema ", "GBNF ", "Lark "};
        return "Constraint(" + kinds[kind] + (choices.isEmpty() ? text : choices.toString()) + ")";
    }
}
