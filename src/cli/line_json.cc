#include "cli/line_id.h"

#include <new>
#include <utility>

#include <simdjson.h>

#include "cli/json_text.h"

namespace batchllm::cli {
namespace {

namespace ondemand = simdjson::ondemand;

// -?(0|[1-9][0-9]*): what may be given back as it stands.
bool is_integer(std::string_view text) {
    if (!text.empty() && text.front() == '-') text.remove_prefix(1);
    if (text.empty() || (text.front() == '0' && text.size() > 1)) return false;
    return text.find_first_not_of("0123456789") == std::string_view::npos;
}

// False when the value is no id. Null leaves the id empty, as in a line without one.
bool read_id(ondemand::value value, std::string *id) {
    id->clear();
    ondemand::json_type type;
    if (value.type().get(type) != simdjson::SUCCESS) return false;
    if (type == ondemand::json_type::null) return value.is_null();
    if (type == ondemand::json_type::string) {
        std::string_view text;
        if (value.get_string().get(text) != simdjson::SUCCESS) return false;
        append_json(id, text);
        return true;
    }
    if (type != ondemand::json_type::number) return false;
    std::string_view digits = value.raw_json_token();
    while (!digits.empty() && digits.back() <= ' ') digits.remove_suffix(1);
    ondemand::number number;
    if (value.get_number().get(number) != simdjson::SUCCESS) {
        *id = digits;
        return is_integer(digits);
    }
    if (number.is_int64()) append_json(id, number.get_int64());
    if (number.is_uint64()) append_json(id, number.get_uint64());
    if (number.is_double()) append_json(id, number.get_double());
    return true;
}

} // namespace

std::optional<LineId> find_line_id(std::string_view text) {
    const simdjson::padded_string padded(text);
    ondemand::parser parser;
    ondemand::document document;
    ondemand::object members;
    if (padded.data() == nullptr) throw std::bad_alloc();
    const auto problem = parser.iterate(padded).get(document);
    if (problem == simdjson::MEMALLOC) throw std::bad_alloc();
    if (problem != simdjson::SUCCESS || document.get_object().get(members) != simdjson::SUCCESS) {
        return std::nullopt;
    }
    LineId line;
    bool has_id = false, has_custom_id = false; // of a key given twice the first counts
    for (auto member : members) {
        ondemand::field field;
        std::string_view key;
        if (std::move(member).get(field) != simdjson::SUCCESS ||
            field.unescaped_key().get(key) != simdjson::SUCCESS) {
            return std::nullopt;
        }
        line.batch |= key == "custom_id" || key == "body";
        std::string *id = nullptr;
        if (key == "id" && !std::exchange(has_id, true)) id = &line.id;
        if (key == "custom_id" && !std::exchange(has_custom_id, true)) id = &line.custom_id;
        if (id != nullptr && !read_id(field.value(), id)) *id = "null";
    }
    return line;
}

} // namespace batchllm::cli
