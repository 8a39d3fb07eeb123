package org.batchllm.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.cfg.JsonNodeFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.Serializable;
import java.math.BigDecimal;
import java.util.HashMap;
import java.util.Map;
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
 * JSON -> values of a type that {@link SchemaTypes} makes, the same as the Python package's. What does not fit its type
 * is null, and what it is in stays: from_json would drop a whole array for one of its elements, and knows no integer 3.0.
 */
final class JsonValues implements Serializable {
    private static final long serialVersionUID = 1;
    private static final BigDecimal LEAST = BigDecimal.valueOf(Long.MIN_VALUE);
    private static final BigDecimal MOST = BigDecimal.valueOf(Long.MAX_VALUE);
    private static final ObjectReader READER = reader();

    private final DataType type;
    private final String startAfter;

    /** startAfter: the JSON follows the first occurrence of this text. */
    JsonValues(DataType type, String startAfter) {
        this.type = type;
        this.startAfter = startAfter;
    }

    private static ObjectReader reader() {
        StreamReadConstraints any = StreamReadConstraints.builder()
                                            .maxNumberLength(Integer.MAX_VALUE)
                                            .maxStringLength(Integer.MAX_VALUE)
                                            .build();
        return new JsonMapper(JsonFactory.builder().streamReadConstraints(any).build())
                .reader()
                .with(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS, DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
                .without(JsonNodeFeature.STRIP_TRAILING_BIGDECIMAL_ZEROES)
                .forType(JsonNode.class);
    }

    DataType type() {
        return type;
    }

    /** The value in the form in which a function gives it to Spark; null if the text is no JSON. */
    Object of(String text) {
        if (text == null) return null;
        int at = text.indexOf(startAfter);
        if (at < 0) return null;
        try {
            return value(READER.readValue(text.substring(at + startAfter.length())), type);
        } catch (JsonProcessingException e) {
            return null; // a stop string may have cut it
        }
    }

    private static Object value(JsonNode node, DataType type) {
        if (node == null || node.isNull() || node.isMissingNode()) return null;
        if (type instanceof LongType) return integer(node);
        if (type instanceof DoubleType) return node.isNumber() ? (Double) node.doubleValue() : null;
        if (type instanceof BooleanType) return node.isBoolean() ? (Boolean) node.booleanValue() : null;
        if (type instanceof ArrayType) return node.isArray() ? list(node, ((ArrayType) type).elementType()) : null;
        if (type instanceof MapType) return node.isObject() ? map(node, ((MapType) type).valueType()) : null;
        if (type instanceof StructType) return node.isObject() ? struct(node, (StructType) type) : null;
        return node.isTextual() ? node.textValue() : node.toString();
    }

    /** 3 for 3.0 too; null for what has a fraction or more than 64 bits. */
    private static Long integer(JsonNode node) {
        // Jackson 2.15, which Spark 3.5 has, makes 1e400 an infinite double, which is no decimal number.
        if (!node.isNumber() || Double.isInfinite(node.doubleValue())) return null;
        BigDecimal value = node.decimalValue();
        // First the size: the digits of 1e999999999 would fill the memory.
        if (value.compareTo(LEAST) < 0 || value.compareTo(MOST) > 0) return null;
        long whole = value.longValue();
        return value.compareTo(BigDecimal.valueOf(whole)) == 0 ? (Long) whole : null;
    }

    private static Object[] list(JsonNode node, DataType type) {
        Object[] values = new Object[node.size()];
        for (int i = 0; i < values.length; i++) values[i] = value(node.get(i), type);
        return values;
    }

    private static Map<String, Object> map(JsonNode node, DataType type) {
        Map<String, Object> values = new HashMap<>();
        for (Map.Entry<String, JsonNode> member : node.properties()) {
            values.put(member.getKey(), value(member.getValue(), type));
        }
        return values;
    }

    private static Object struct(JsonNode node, StructType type) {
        StructField[] fields = type.fields();
        Object[] values = new Object[fields.length];
        for (int i = 0; i < values.length; i++) values[i] = value(node.get(fields[i].name()), fields[i].dataType());
        return RowFactory.create(values);
    }
}
