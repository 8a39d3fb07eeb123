#include "model/config_file.h"

#include "base/file.h"
#include "batchllm.h"

namespace batchllm {
namespace {

constexpr size_t file_limit = 64U << 20U;
constexpr std::string_view infinity = "Infinity";

std::string without_infinity(const std::string &text) {
    std::string out;
    bool in_string = false;
    for (size_t i = 0; i < text.size(); ++i) {
        if (!in_string && text.compare(i, infinity.size(), infinity) == 0) {
            out += R"({"__float__": "Infinity"})";
            i += infinity.size() - 1;
            continue;
        }
        out += text[i];
        if (text[i] == '"') in_string = !in_string;
        if (in_string && text[i] == '\\' && i + 1 < text.size()) out += text[++i];
    }
    return out;
}

} // namespace

Result<JsonDocument> parse_config(const std::string &text, const std::string &file) {
    const bool some = text.find(infinity) != std::string::npos;
    return JsonDocument::parse(some ? without_infinity(text) : text, file,
                               BATCHLLM_ERROR_MODEL_FORMAT);
}

Result<JsonDocument> load_config(const std::string &path) {
    ASSIGN_OR_RETURN(const std::string text, read_file(path, file_limit));
    return parse_config(text, path);
}

} // namespace batchllm
