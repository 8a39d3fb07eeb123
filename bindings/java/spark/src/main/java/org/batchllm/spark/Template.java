package org.batchllm.spark;

import static org.apache.spark.sql.functions.array;
import static org.apache.spark.sql.functions.array_join;
import static org.apache.spark.sql.functions.array_repeat;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.concat;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.struct;
import static org.apache.spark.sql.functions.to_json;
import static org.apache.spark.sql.functions.when;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.batchllm.BatchLlmException;
import org.batchllm.Table;

/** A template's text -> an expression for a row's prompt. */
final class Template {
    private final String text;
    private final List<String> parts; // a text, the field that follows it, a text, and so on

    private Template(String text, List<String> parts) {
        this.text = text;
        this.parts = parts;
    }

    /** Throws IllegalArgumentException with the place of a mistake. */
    static Template parse(String text) {
        try {
            return new Template(text, Table.parts(text));
        } catch (BatchLlmException.InvalidArgument e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
    }

    /** The same template with its fields in the order in which a sample of rows shares most. */
    Template reordered(FieldSample sample) {
        try {
            int count = fields().size();
            return new Template(text, Table.partsInOrder(text, count, sample.cells(), sample.lengths()));
        } catch (BatchLlmException.InvalidArgument e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
    }

    /** Each field once, in the order in which they first appear. */
    List<String> fields() {
        Set<String> names = new LinkedHashSet<>();
        for (int i = 1; i < parts.size(); i += 2) names.add(parts.get(i));
        return new ArrayList<>(names);
    }

    /** Throws if a field is not a column of the rows, or if the column cannot be written as text. */
    void check(StructType rows) {
        for (String field : fields()) {
            DataType type = rows.fields()[Columns.index(rows, field)].dataType();
            boolean time = type instanceof DateType || type instanceof TimestampType || type instanceof TimestampNTZType;
            if (!(time || type instanceof StringType || type instanceof NumericType || type instanceof BooleanType)) {
                throw new IllegalArgumentException("column " + field + ": " + type.catalogString()
                        + " is neither text nor a number nor a date: cast it to a string");
            }
        }
    }

    /** A row's cell as text. */
    static Column cell(String field) {
        return col("`" + field.replace("`", "``") + "`").cast(DataTypes.StringType);
    }

    /** The prompt; null if one of the cells is null. */
    Column prompt() {
        Column[] pieces = new Column[parts.size()];
        for (int i = 0; i < pieces.length; i++) pieces[i] = i % 2 == 0 ? lit(parts.get(i)) : cell(parts.get(i));
        return concat(pieces);
    }

    /**
     * The prompt as the user's message, behind so many pictures; null: there are none. system: the message before it, or
     * null.
     */
    Column conversation(String system, Column pictures) {
        if (pictures != null) {
            Column before = system == null || system.isEmpty()
                    ? lit("[")
                    : concat(lit("["), to_json(message("system", lit(system))), lit(","));
            Column parts = concat(repeated("{\"type\":\"image\"},", pictures),
                    to_json(struct(lit("text").as("type"), prompt().as("text"))));
            return when(prompt().isNotNull(),
                    concat(before, lit("{\"role\":\"user\",\"content\":["), parts, lit("]}]")));
        }
        List<Column> messages = new ArrayList<>();
        if (system != null && !system.isEmpty()) messages.add(message("system", lit(system)));
        messages.add(message("user", prompt()));
        return when(prompt().isNotNull(), to_json(array(messages.toArray(new Column[0]))));
    }

    private static Column repeated(String text, Column times) {
        return array_join(array_repeat(lit(text), times), "");
    }

    private static Column message(String role, Column content) {
        return struct(lit(role).as("role"), content.as("content"));
    }

    @Override
    public String toString() {
        return fields().toString();
    }
}
