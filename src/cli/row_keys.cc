#include "cli/row_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace batchllm::cli {
namespace {

using Entry = std::pair<std::string_view, ConstraintKey>;
constexpr std::array constraint_keys = {
    Entry("choices", ConstraintKey::choices),
    Entry("regex", ConstraintKey::regex),
    Entry("json_schema", ConstraintKey::json_schema),
    Entry("grammar", ConstraintKey::grammar),
    Entry("response_format", ConstraintKey::response_format),
    Entry("start_after", ConstraintKey::start_after),
    Entry("flexible_whitespace", ConstraintKey::flexible_whitespace),
    Entry("any_member_order", ConstraintKey::any_member_order),
    Entry("any_numbers", ConstraintKey::any_numbers),
    Entry("loose_schema", ConstraintKey::loose_schema),
};

// Names that are accepted too.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> second_names = {
    {{"stop_token_ids", "stop_tokens"}}};

constexpr std::array<std::string_view, 16> other_keys = {"id",
                                                         "images",
                                                         "adapter",
                                                         "prompt",
                                                         "tokens",
                                                         "messages",
                                                         "score",
                                                         "metadata",
                                                         "custom_id",
                                                         "method",
                                                         "url",
                                                         "tools",
                                                         "documents",
                                                         "add_generation_prompt",
                                                         "continue_final_message",
                                                         "chat_template_kwargs"};

// What other programs call them: only suggested.
constexpr std::array<std::pair<std::string_view, std::string_view>, 25> synonyms = {{
    {"image", "images"},
    {"image_paths", "images"},
    {"pictures", "images"},
    {"lora", "adapter"},
    {"lora_name", "adapter"},
    {"max_new_tokens", "max_tokens"},
    {"max_completion_tokens", "max_tokens"},
    {"max_length", "max_tokens"},
    {"num_predict", "max_tokens"},
    {"stop_sequences", "stop"},
    {"stop_strings", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"num_return_sequences", "n"},
    {"best_of", "n"},
    {"samples", "n"},
    {"text", "prompt"},
    {"input", "prompt"},
    {"input_ids", "tokens"},
    {"prompt_token_ids", "tokens"},
    {"top_logprobs", "logprobs"},
    {"guided_choice", "choices"},
    {"guided_regex", "regex"},
    {"guided_json", "json_schema"},
    {"guided_grammar", "grammar"},
    {"schema", "json_schema"},
}};

constexpr std::array<std::string_view, 6> harmless_body_keys = {
    "user", "metadata", "store", "service_tier", "stream_options", "safety_identifier"};

// Only the letters and digits, in lower case: "Top-P" and "top_p" are the same name.
std::string plain_letters(std::string_view key) {
    std::string plain;
    for (const char c : key) {
        if (c >= 'A' && c <= 'Z') plain += static_cast<char>(c - 'A' + 'a');
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) plain += c;
    }
    return plain;
}

} // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
        }
    }
    return row[b.size()];
}

std::string_view usual_key(std::string_view key) {
    for (const auto &[name, usual] : second_names) {
        if (name == key) return usual;
    }
    return key;
}

std::optional<ConstraintKey> find_constraint_key(std::string_view key) {
    for (const auto &[name, constraint] : constraint_keys) {
        if (name == key) return constraint;
    }
    return std::nullopt;
}

bool is_own_key(std::string_view key) { return key == "metadata" || key.starts_with('_'); }

bool is_harmless_body_key(std::string_view key) {
    return std::find(harmless_body_keys.begin(), harmless_body_keys.end(), key) !=
           harmless_body_keys.end();
}

std::string_view nearest_row_key(std::string_view key) {
    for (const auto &[synonym, name] : synonyms) {
        if (synonym == key) return name;
    }
    if (key.size() > 64) return {};
    const std::string plain = plain_letters(key);
    std::string_view best;
    size_t best_distance = 3;
    const auto consider = [&](std::string_view name) {
        const std::string other = plain_letters(name);
        const size_t distance = edit_distance(plain, other);
        if (distance < best_distance && distance * 3 <= other.size()) {
            best_distance = distance;
            best = name;
        }
    };
    each_parameter([&](const auto &parameter) {
        consider(parameter.key);
        return true;
    });
    for (const auto &[name, usual] : second_names) consider(name);
    for (const auto &[name, constraint] : constraint_keys) consider(name);
    for (const std::string_view name : other_keys) consider(name);
    return best;
}

std::optional<int32_t> parse_token_id(std::string_view text) {
    int32_t token = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (code != std::errc() || end != text.data() + text.size() || token < 0) return std::nullopt;
    return token;
}

} // namespace batchllm::cli
