package org.batchllm.spark;

import java.io.Serializable;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.batchllm.Constraint;

/** The constraint on each row's output: from a column if the row has a value there, else from the options. */
final class RowConstraints implements Serializable {
    private static final long serialVersionUID = 1;

    private enum Kind { CHOICES, REGEX, JSON_SCHEMA, GRAMMAR, LARK_GRAMMAR }

    private final String name; // the column's name; null: none
    private final int at;
    private final Kind kind;
    private final Constraint common; // null: none
    private final String startAfter;
    private final boolean flexibleWhitespace;
    private final boolean anyMemberOrder;
    private final boolean anyNumbers;
    private final boolean looseSchema;

    /** Throws IllegalArgumentException with the name of an option or column that cannot be used. */
    RowConstraints(StructType input, BatchLlmOptions options) {
        startAfter = options.startAfter;
        flexibleWhitespace = options.flexibleWhitespace;
        anyMemberOrder = options.anyMemberOrder;
        anyNumbers = options.anyNumbers;
        looseSchema = options.looseSchema;
        common = common(options);
        Map<String, String> columns = new LinkedHashMap<>();
        String[] names = {options.choicesColumn, options.regexColumn, options.jsonSchemaColumn,
                options.grammarColumn, options.larkGrammarColumn};
        for (Kind one : Kind.values()) columns.put(one.name(), names[one.ordinal()]);
        columns.values().removeIf(column -> column == null);
        if (columns.size() > 1) {
            throw new IllegalArgumentException("columns " + String.join(" and ", columns.values())
                    + " both say what the output must look like");
        }
        if ((common != null || !columns.isEmpty()) && !options.generates()) {
            throw new IllegalArgumentException(
                    "constraints: only generated text has them, and not what is embedded, classified or scored");
        }
        name = columns.isEmpty() ? null : columns.values().iterator().next();
        kind = columns.isEmpty() ? null : Kind.valueOf(columns.keySet().iterator().next());
        at = name == null ? -1 : Columns.index(input, name);
        if (name != null) checkType(input.fields()[at].dataType());
    }

    private void checkType(DataType type) {
        boolean list = type instanceof ArrayType && ((ArrayType) type).elementType() instanceof StringType;
        if (kind == Kind.CHOICES ? list : type instanceof StringType) return;
        throw new IllegalArgumentException("column " + name + ": " + type.catalogString()
                + (kind == Kind.CHOICES ? " is no array of texts" : " is no text"));
    }

    private Constraint common(BatchLlmOptions options) {
        List<String> given = options.constraintNames();
        if (given.size() > 1) {
            throw new IllegalArgumentException(
                    String.join(" and ", given) + " both say what the output must look like");
        }
        if (given.isEmpty()) return null;
        if (options.choices != null) return written(Constraint.ofChoices(options.choices));
        if (options.regex != null) return make(Kind.REGEX, options.regex);
        if (options.jsonSchema != null) return make(Kind.JSON_SCHEMA, options.jsonSchema);
        if (options.grammar != null) return make(Kind.GRAMMAR, options.grammar);
        return make(Kind.LARK_GRAMMAR, options.larkGrammar);
    }

    private Constraint make(Kind of, String text) {
        switch (of) {
            case REGEX:
                return written(Constraint.ofRegex(text));
            case JSON_SCHEMA:
                return written(Constraint.ofJsonSchema(text));
            case GRAMMAR:
                return written(Constraint.ofGbnf(text));
            default:
                return written(Constraint.ofLark(text));
        }
    }

    private Constraint written(Constraint made) {
        return made.withStartAfter(startAfter)
                .withFlexibleWhitespace(flexibleWhitespace)
                .withAnyMemberOrder(anyMemberOrder)
                .withAnyNumbers(anyNumbers)
                .withLooseSchema(looseSchema);
    }

    /** The constraint of rows without their own; null: none. */
    Constraint common() {
        return common;
    }

    boolean differ() {
        return at >= 0;
    }

    /** The constraint of a row with these columns; null: none. */
    Constraint of(Object[] values) {
        if (at < 0 || values[at] == null || error(values) != null) return common;
        if (kind != Kind.CHOICES) return make(kind, (String) values[at]);
        return written(Constraint.ofChoices(list(values).toArray(new String[0])));
    }

    private List<?> list(Object[] values) {
        return Columns.list(values[at]);
    }

    /** Why the row's own constraint is invalid; null if it is valid as far as can be told without the model. */
    String error(Object[] values) {
        if (at < 0 || values[at] == null || kind != Kind.CHOICES) return null;
        return list(values).contains(null) ? "ROW_CONSTRAINT: column " + name + ": a choice is null" : null;
    }
}
