package org.batchllm.spark;

import static org.apache.spark.sql.functions.array;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.concat;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.struct;
import static org.apache.spark.sql.functions.to_json;
import static org.apache.spark.sql.functions.when;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;

/**
 * A template's text -> an expression for a row's prompt. The language is the library's (docs/tables.md). It is also
 * parsed here because rows are partitioned by their prompts before any native code sees them.
 */
final class Template {
    /** Text, then the field that follows it; null for the last part. */
    private static final class Part {
        final String text;
        final String field;

        Part(String text, String field) {
            this.text = text;
            this.field = field;
        }
    }

    private final List<Part> parts;

    private Template(List<Part> parts) {
        this.parts = parts;
    }

    /** Throws IllegalArgumentException with the place of a mistake. */
    static Template parse(String text) {
        List<Part> parts = new ArrayList<>();
        StringBuilder literal = new StringBuilder();
        for (int at = 0; at < text.length(); ++at) {
            char c = text.charAt(at);
            if (c != '{' && c != '}') {
                literal.append(c);
            } else if (at + 1 < text.length() && text.charAt(at + 1) == c) {
                literal.append(c);
                ++at;
            } else if (c == '}') {
                throw bad("a } without its { at character " + at + " (}} writes a brace)");
            } else {
                int end = at + 1;
                while (end < text.length() && "{}\n".indexOf(text.charAt(end)) < 0) ++end;
                if (end == text.length() || text.charAt(end) != '}') {
                    throw bad("a { without its } at character " + at + " ({{ writes a brace)");
                }
                if (end == at + 1) throw bad("{} at character " + at + " names no field ({{}} writes it)");
                parts.add(new Part(literal.toString(), text.substring(at + 1, end)));
                literal.setLength(0);
                at = end;
            }
        }
        if (parts.isEmpty()) throw bad("it has no field, such as {text}: every prompt would be equal");
        parts.add(new Part(literal.toString(), null));
        return new Template(parts);
    }

    private static IllegalArgumentException bad(String what) {
        return new IllegalArgumentException("template: " + what);
    }

    /** Each field once, in the order in which they first appear. */
    List<String> fields() {
        Set<String> names = new LinkedHashSet<>();
        for (Part part : parts) {
            if (part.field != null) names.add(part.field);
        }
        return new ArrayList<>(names);
    }

    /** Throws if a field is not a column of the rows, or if the column cannot be written as text. */
    void check(StructType rows) {
        for (String field : fields()) {
            DataType type = rows.fields()[Columns.index(rows, field)].dataType();
            if (!(type instanceof StringType || type instanceof NumericType || type instanceof BooleanType)) {
                throw new IllegalArgumentException("column " + field + ": " + type.catalogString()
                        + " is neither text nor a number: cast it to a string");
            }
        }
    }

    /** A row's cell as text. */
    static Column cell(String field) {
        return col("`" + field.replace("`", "``") + "`").cast(DataTypes.StringType);
    }

    /** The prompt; null if one of the cells is null. */
    Column prompt() {
        List<Column> pieces = new ArrayList<>();
        for (Part part : parts) {
            pieces.add(lit(part.text));
            if (part.field != null) pieces.add(cell(part.field));
        }
        return concat(pieces.toArray(new Column[0]));
    }

    /** The prompt as the user's message; system: the message before it, or null. */
    Column conversation(String system) {
        List<Column> messages = new ArrayList<>();
        if (system != null && !system.isEmpty()) messages.add(message("system", lit(system)));
        messages.add(message("user", prompt()));
        return when(prompt().isNotNull(), to_json(array(messages.toArray(new Column[0]))));
    }

    private static Column message(String role, Column content) {
        return struct(lit(role).as("role"), content.as("content"));
    }

    /** The same template with its fields in this order. Whole lines move; throws if a line cannot be moved. */
    Template reordered(List<String> order) {
        Movable movable = new Movable();
        List<Part> moved = new ArrayList<>();
        StringBuilder text = new StringBuilder(movable.head);
        for (String field : order) {
            int line = movable.fields.indexOf(field);
            if (!moved.isEmpty()) text.append('\n');
            text.append(movable.before.get(line));
            moved.add(new Part(text.toString(), field));
            text.setLength(0);
            text.append(movable.after.get(line));
        }
        moved.add(new Part(text.append(movable.tail).toString(), null));
        return new Template(moved);
    }

    /** Bytes of each field's line besides its value, including one for the line end. */
    int[] lineBytes() {
        Movable movable = new Movable();
        int[] bytes = new int[movable.fields.size()];
        for (int i = 0; i < bytes.length; ++i) {
            bytes[i] = Prompts.bytes(movable.before.get(i) + movable.after.get(i)).length + 1;
        }
        return bytes;
    }

    /** The lines that have a field each, and the text before and after them. */
    private final class Movable {
        final List<String> fields = new ArrayList<>();
        final List<String> before = new ArrayList<>();
        final List<String> after = new ArrayList<>();
        final String head;
        final String tail;

        Movable() {
            String first = parts.get(0).text;
            int line = first.lastIndexOf('\n') + 1;
            head = first.substring(0, line);
            String text = first.substring(line);
            String behind = "";
            Set<String> seen = new HashSet<>();
            for (int i = 0; i + 1 < parts.size(); ++i) {
                String field = parts.get(i).field;
                if (!seen.add(field)) {
                    throw bad("\"" + field + "\" is in two lines: fields that may be moved have one");
                }
                String next = parts.get(i + 1).text;
                int end = next.indexOf('\n');
                boolean last = i + 2 == parts.size();
                if (!last && (end < 0 || next.indexOf('\n', end + 1) >= 0)) {
                    String and = "\"" + field + "\" and \"" + parts.get(i + 1).field + "\"";
                    throw bad(end < 0 ? and + " are in one line: fields that may be moved have a line each"
                                      : "a line without a field stands between " + and
                                            + ": what all rows have goes before or behind the fields that may be moved");
                }
                fields.add(field);
                // In another place, a bare value would not tell what it is.
                before.add(text.chars().allMatch(c -> c == ' ' || c == '\t') ? field + ": " : text);
                after.add(end < 0 ? next : next.substring(0, end));
                if (last) {
                    behind = end < 0 ? "" : next.substring(end);
                } else {
                    text = next.substring(end + 1);
                }
            }
            tail = behind;
        }
    }

    @Override
    public String toString() {
        return Arrays.toString(fields().toArray());
    }
}
