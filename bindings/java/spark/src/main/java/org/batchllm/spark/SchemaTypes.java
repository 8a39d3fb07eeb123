package org.batchllm.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;

/**
 * A JSON schema -> Spark's type of its values: structs, arrays, maps of text to one type, text, long, double and
 * boolean. What has no one type, such as a value of either text or number, is the text of its JSON.
 */
final class SchemaTypes {
    private final JsonNode root;
    private final Set<String> open = new HashSet<>(); // references that are being followed

    private SchemaTypes(JsonNode root) {
        this.root = root;
    }

    /** Throws IllegalArgumentException if the schema is no JSON. */
    static DataType of(String schema) {
        try {
            JsonNode root = new ObjectMapper().readTree(schema);
            return new SchemaTypes(root).type(root);
        } catch (JsonProcessingException e) {
            throw new IllegalArgumentException("jsonSchema: " + e.getOriginalMessage(), e);
        }
    }

    private DataType type(JsonNode schema) {
        if (!schema.isObject()) return DataTypes.StringType;
        if (schema.path("$ref").isTextual()) return target(schema.get("$ref").textValue());
        if (schema.path("enum").isArray()) return ofValues(schema.get("enum"));
        if (schema.has("const")) return ofValues(new ObjectMapper().createArrayNode().add(schema.get("const")));
        for (String word : List.of("anyOf", "oneOf", "allOf")) {
            if (schema.path(word).isArray() && !schema.has("properties")) return common(schema.get(word));
        }
        List<String> kinds = new ArrayList<>();
        for (JsonNode kind : schema.path("type").isArray() ? schema.get("type") : List.of(schema.path("type"))) {
            if (kind.isTextual() && !kind.textValue().equals("null")) kinds.add(kind.textValue());
        }
        String kind = kinds.size() == 1 ? kinds.get(0) : kinds.isEmpty() && schema.has("properties") ? "object" : "";
        switch (kind) {
            case "integer":
                return DataTypes.LongType;
            case "number":
                return DataTypes.DoubleType;
            case "boolean":
                return DataTypes.BooleanType;
            case "array":
                if (!schema.path("items").isObject() || schema.has("prefixItems")) return DataTypes.StringType;
                return DataTypes.createArrayType(type(schema.get("items")), true);
            case "object":
                return object(schema);
            default:
                return DataTypes.StringType;
        }
    }

    private DataType object(JsonNode schema) {
        List<StructField> fields = new ArrayList<>();
        for (Map.Entry<String, JsonNode> member : schema.path("properties").properties()) {
            fields.add(DataTypes.createStructField(member.getKey(), type(member.getValue()), true));
        }
        if (!fields.isEmpty()) return DataTypes.createStructType(fields);
        if (!schema.path("additionalProperties").isObject()) return DataTypes.StringType;
        return DataTypes.createMapType(DataTypes.StringType, type(schema.get("additionalProperties")), true);
    }

    private DataType target(String reference) {
        boolean pointer = reference.equals("#") || reference.startsWith("#/"); // otherwise an anchor, or another document
        JsonNode found = pointer ? root.at(reference.substring(1)) : root.path("");
        if (found.isMissingNode() || !open.add(reference)) return DataTypes.StringType; // or a type that contains itself
        DataType type = type(found);
        open.remove(reference);
        return type;
    }

    private DataType common(JsonNode schemas) {
        DataType common = null;
        for (JsonNode schema : schemas) {
            if (schema.size() == 1 && schema.path("type").asText().equals("null")) continue;
            DataType type = type(schema);
            if (common != null && !common.equals(type)) return DataTypes.StringType;
            common = type;
        }
        return common == null ? DataTypes.StringType : common;
    }

    private static DataType ofValues(JsonNode values) {
        boolean booleans = true;
        boolean integers = true;
        boolean numbers = true;
        boolean any = false;
        for (JsonNode value : values) {
            if (value.isNull()) continue;
            any = true;
            booleans &= value.isBoolean();
            integers &= value.isIntegralNumber();
            numbers &= value.isNumber();
        }
        if (!any) return DataTypes.StringType;
        return booleans ? DataTypes.BooleanType
                : integers ? DataTypes.LongType : numbers ? DataTypes.DoubleType : DataTypes.StringType;
    }
}
