// JSON schemas of records like those of extraction jobs, for bench/structured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace batchllm {

// An array of `items` objects; their names, choices and bounds depend on the schema's `number`.
inline std::string record_schema(int64_t number, int64_t items) {
    static const char *const members[] = {"name",  "title",  "product", "customer", "author",
                                          "place", "vendor", "street",  "event",    "subject"};
    static const std::vector<std::string> choices = {
        "positive", "negative",  "neutral",    "mixed",   "urgent",        "billing", "technical",
        "other",    "furniture", "electronic", "grocery", "uncategorised", "pending", "delivered"};
    const auto pick = [number](int64_t salt, size_t n) {
        uint64_t x =
            static_cast<uint64_t>(number) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(salt);
        x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
        return static_cast<size_t>((x ^ (x >> 29)) % n);
    };
    const auto some_of = [&](int64_t salt) {
        std::string list;
        const size_t first = pick(salt, choices.size());
        for (size_t i = 0; i < 4; ++i)
            list += (i > 0 ? ",\"" : "\"") + choices[(first + 3 * i) % choices.size()] + '"';
        return R"({"enum":[)" + list + "]}";
    };
    const std::string own = number > 0 ? "_" + std::to_string(number) : "";
    const std::string name = members[pick(1, 10)] + own;
    const std::string longest = std::to_string(24 + pick(2, 24));
    const std::string most = std::to_string(500 + 7 * number);
    const std::vector<std::pair<std::string, std::string>> of = {
        {name, R"({"type":"string","minLength":4,"maxLength":)" + longest + "}"},
        {"sentiment", some_of(3)},
        {"price" + own, R"({"type":"number","minimum":0,"maximum":)" + most + "}"},
        {"postcode", R"({"type":"string","pattern":"^[A-Z]{1,2}-[0-9]{5}$"})"},
        {"in_stock", R"({"type":"boolean"})"},
        {"tags", R"({"type":"array","minItems":1,"maxItems":3,"items":)" + some_of(4) + "}"},
        {"summary", R"({"type":"string","minLength":16,"maxLength":96})"},
        {"measurements", R"({"type":"array","minItems":2,"maxItems":4,"items":{"type":"integer",)"
                         R"("minimum":0,"maximum":)" +
                             most + "}}"}};
    std::string properties, required;
    for (const auto &[key, value] : of) {
        properties += (properties.empty() ? "\"" : ",\"") + key + "\":" + value;
        required += (required.empty() ? "\"" : ",\"") + key + '"';
    }
    const std::string count = std::to_string(items);
    return R"({"type":"array","minItems":)" + count + R"(,"maxItems":)" + count +
           R"(,"items":{"type":"object","additionalProperties":false,"properties":{)" + properties +
           R"(},"required":[)" + required + "]}}";
}

} // namespace batchllm
