package org.batchllm.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.json.JsonWriteFeature;
import java.io.IOException;
import java.io.Serializable;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * JSON -> values of a type that {@link SchemaTypes} makes, by the same rules as the Python package's column (parsed.py).
 * What does not fit its type is null, and what it is in stays: from_json would drop a whole array for one of its
 * elements, and knows no integer 3.0. A number is its text until its type is known: one of any length or size does no
 * harm, and a value without a type has it as it was written.
 */
final class JsonValues implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int LONG_DIGITS = 19;
    private static final Pattern NUMBER = Pattern.compile("(-?)(\\d+)(?:\\.(\\d+))?(?:[eE]([-+]?\\d+))?");
    private static final JsonFactory JSON = json();

    private final DataType type;
    private final String startAfter;

    /** startAfter: the JSON follows the first occurrence of this text. */
    JsonValues(DataType type, String startAfter) {
        this.type = type;
        this.startAfter = startAfter;
    }

    private static JsonFactory json() {
        StreamReadConstraints any = StreamReadConstraints.builder()
                                            .maxNumberLength(Integer.MAX_VALUE)
                                            .maxStringLength(Integer.MAX_VALUE)
                                            .build();
        return JsonFactory.builder()
                .streamReadConstraints(any)
                .disable(JsonWriteFeature.WRITE_HEX_UPPER_CASE) // Python writes lower case
                .build();
    }

    /** A number as it is written. */
    private record Written(String number) {}

    DataType type() {
        return type;
    }

    /** The value in the form in which a function gives it to Spark; null if the text is no JSON. */
    Object of(String text) {
        if (text == null) return null;
        int at = text.indexOf(startAfter);
        if (at < 0) return null;
        try (JsonParser parser = JSON.createParser(text.substring(at + startAfter.length()))) {
            if (parser.nextToken() == null) return null;
            Object found = read(parser);
            return parser.nextToken() == null ? fitted(found, type) : null;
        } catch (IOException e) {
            return null; // a stop string may have cut it
        }
    }

    /** The value that begins with the parser's token: a Map, List, String, Written, Boolean or null. */
    private static Object read(JsonParser parser) throws IOException {
        switch (parser.currentToken()) {
            case START_OBJECT:
                Map<String, Object> members = new LinkedHashMap<>();
                while (parser.nextToken() != JsonToken.END_OBJECT) {
                    String name = parser.getText();
                    parser.nextToken();
                    members.put(name, read(parser));
                }
                return members;
            case START_ARRAY:
                List<Object> elements = new ArrayList<>();
                while (parser.nextToken() != JsonToken.END_ARRAY) elements.add(read(parser));
                return elements;
            case VALUE_STRING:
                return parser.getText();
            case VALUE_NUMBER_INT:
            case VALUE_NUMBER_FLOAT:
                return new Written(parser.getText());
            case VALUE_TRUE:
                return true;
            case VALUE_FALSE:
                return false;
            default:
                return null;
        }
    }

    private static Object fitted(Object value, DataType type) throws IOException {
        if (value == null) return null;
        if (type instanceof LongType) return value instanceof Written one ? integer(one.number) : null;
        if (type instanceof DoubleType) return value instanceof Written one ? (Double) Double.parseDouble(one.number) : null;
        if (type instanceof BooleanType) return value instanceof Boolean ? value : null;
        if (type instanceof ArrayType array) return value instanceof List<?> list ? list(list, array.elementType()) : null;
        if (type instanceof MapType map) return value instanceof Map<?, ?> members ? map(members, map.valueType()) : null;
        if (type instanceof StructType struct) return value instanceof Map<?, ?> members ? struct(members, struct) : null;
        if (value instanceof String) return value;
        StringWriter text = new StringWriter();
        try (JsonGenerator generator = JSON.createGenerator(text)) {
            write(generator, value);
        }
        return text.toString();
    }

    /** 3 for 3.0 too; null for what has a fraction or more than 64 bits. */
    private static Long integer(String number) {
        Matcher parts = NUMBER.matcher(number);
        if (!parts.matches()) throw new AssertionError("no number of JSON");
        String fraction = parts.group(3) == null ? "" : parts.group(3);
        String digits = parts.group(2) + fraction;
        int end = digits.length();
        while (end > 0 && digits.charAt(end - 1) == '0') end--;
        int first = 0;
        while (first < end && digits.charAt(first) == '0') first++;
        if (first == end) return 0L;
        try {
            // No text is so long that it makes up for an exponent of more than 32 bits.
            long exponent = parts.group(4) == null ? 0 : Integer.parseInt(parts.group(4));
            long zeros = exponent - fraction.length() + digits.length() - end;
            if (zeros < 0 || end - first + zeros > LONG_DIGITS) return null;
            return Long.valueOf(parts.group(1) + digits.substring(first, end) + "0".repeat((int) zeros));
        } catch (NumberFormatException e) {
            return null; // more than 64 bits
        }
    }

    private static Object[] list(List<?> elements, DataType type) throws IOException {
        Object[] values = new Object[elements.size()];
        for (int i = 0; i < values.length; i++) values[i] = fitted(elements.get(i), type);
        return values;
    }

    private static Map<String, Object> map(Map<?, ?> members, DataType type) throws IOException {
        Map<String, Object> values = new LinkedHashMap<>();
        for (Map.Entry<?, ?> member : members.entrySet()) values.put((String) member.getKey(), fitted(member.getValue(), type));
        return values;
    }

    private static Object struct(Map<?, ?> members, StructType type) throws IOException {
        StructField[] fields = type.fields();
        Object[] values = new Object[fields.length];
        for (int i = 0; i < values.length; i++) values[i] = fitted(members.get(fields[i].name()), fields[i].dataType());
        return RowFactory.create(values);
    }

    private static void write(JsonGenerator generator, Object value) throws IOException {
        if (value instanceof Map<?, ?> members) {
            generator.writeStartObject();
            for (Map.Entry<?, ?> member : members.entrySet()) {
                generator.writeFieldName((String) member.getKey());
                write(generator, member.getValue());
            }
            generator.writeEndObject();
        } else if (value instanceof List<?> elements) {
            generator.writeStartArray();
            for (Object element : elements) write(generator, element);
            generator.writeEndArray();
        } else if (value instanceof String text) {
            generator.writeString(text);
        } else if (value instanceof Written one) {
            generator.writeNumber(one.number);
        } else if (value instanceof Boolean truth) {
            generator.writeBoolean(truth);
        } else {
            generator.writeNull();
        }
    }
}
