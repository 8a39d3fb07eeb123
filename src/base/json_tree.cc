#include "base/json_tree.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "base/json_view.h"
#include "base/printable.h"

namespace batchllm {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr int kMostDepth = 200;

// Returns from the enclosing function if a call of the parser has failed.
#define RETURN_IF_BROKEN(call)                                                                     \
    do {                                                                                           \
        if (const simdjson::error_code problem_ = (call); problem_ != simdjson::SUCCESS)           \
            return broken(problem_);                                                               \
    } while (0)

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
bool is_number(std::string_view text) {
    const auto take = [&](std::string_view any) {
        if (text.empty() || any.find(text.front()) == std::string_view::npos) return false;
        text.remove_prefix(1);
        return true;
    };
    const auto digits = [&] {
        const size_t before = text.size();
        while (take("0123456789")) {}
        return text.size() < before;
    };
    take("-");
    if (!take("0") && !digits()) return false;
    if (take(".") && !digits()) return false;
    if (take("eE")) {
        take("+-");
        if (!digits()) return false;
    }
    return text.empty();
}

class TreeReader {
  public:
    TreeReader(std::string_view text, const std::string &name, JsonNumbers numbers)
        : text_(text), name_(name), numbers_(numbers) {}

    Result<JsonTree> read() {
        // Wrapped in a list, because the parser treats a value inside a document differently from a
        // whole document.
        std::string listed;
        listed.reserve(text_.size() + 2 + json_padding);
        listed.append("[").append(text_).append("]");
        const size_t length = listed.size();
        listed.append(json_padding, ' ');
        begin_ = listed.data();
        strings_.resize(length + simdjson::SIMDJSON_PADDING);
        RETURN_IF_BROKEN(parser_.iterate(listed.data(), length, listed.size()).get(document_));
        iterating_ = true;
        ondemand::array list;
        RETURN_IF_BROKEN(document_.get_array().get(list));
        JsonTree tree;
        size_t values = 0;
        for (auto item : list) {
            ondemand::value one;
            RETURN_IF_BROKEN(std::move(item).get(one));
            if (++values > 1) return broken("something after the value");
            RETURN_IF_ERROR(value(one, 0, &tree));
        }
        if (values == 0) return broken("no value");
        if (document_.current_location().error() != simdjson::OUT_OF_BOUNDS)
            return broken("something after the value");
        return tree;
    }

  private:
    Status broken(const std::string &problem) {
        const char *at = nullptr;
        if (!iterating_ || document_.current_location().get(at) != simdjson::SUCCESS) at = nullptr;
        std::string where;
        if (at != nullptr && at > begin_)
            where = " at byte " +
                    std::to_string(std::min(static_cast<size_t>(at - begin_) - 1, text_.size()));
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: not JSON: %s%s", name_.c_str(),
                     problem.c_str(), where.c_str());
    }
    Status broken(simdjson::error_code problem) {
        if (problem == simdjson::MEMALLOC)
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: out of memory", name_.c_str());
        return broken(simdjson::error_message(problem));
    }

    Status value(ondemand::value from, int depth, JsonTree *tree) {
        if (depth > kMostDepth) return broken("nested too deeply");
        ondemand::json_type type;
        RETURN_IF_BROKEN(from.type().get(type));
        switch (type) {
        case ondemand::json_type::object:
            return object(from, depth, tree);
        case ondemand::json_type::array:
            return array(from, depth, tree);
        case ondemand::json_type::string:
            tree->kind = JsonTree::Kind::string;
            return string(from.get_raw_json_string(), &tree->text);
        case ondemand::json_type::number:
            return number(from, tree);
        case ondemand::json_type::boolean:
            tree->kind = JsonTree::Kind::boolean;
            RETURN_IF_BROKEN(from.get_bool().get(tree->boolean));
            return {};
        case ondemand::json_type::null:
            break;
        }
        bool null = false;
        if (from.is_null().get(null) != simdjson::SUCCESS || !null) return broken("no value");
        return {};
    }

    Status string(simdjson::simdjson_result<ondemand::raw_json_string> from, std::string *to) {
        ondemand::raw_json_string raw;
        RETURN_IF_BROKEN(std::move(from).get(raw));
        std::string_view text;
        uint8_t *to_here = strings_.data();
        RETURN_IF_BROKEN(parser_.unescape(raw, to_here).get(text));
        // The parser accepts escapes of unpaired surrogates.
        if (!is_utf8(text)) return broken("half of a surrogate pair");
        *to = text;
        return {};
    }

    Status number(ondemand::value from, JsonTree *tree) {
        std::string_view token = from.raw_json_token();
        const size_t end = token.find_last_not_of(" \t\r\n");
        token = token.substr(0, end + 1);
        if (numbers_ == JsonNumbers::strict && !is_number(token))
            return broken("a malformed number");
        tree->kind = JsonTree::Kind::number;
        tree->text = token;
        return {};
    }

    Status array(ondemand::value from, int depth, JsonTree *tree) {
        tree->kind = JsonTree::Kind::array;
        ondemand::array list;
        RETURN_IF_BROKEN(from.get_array().get(list));
        for (auto item : list) {
            ondemand::value one;
            RETURN_IF_BROKEN(std::move(item).get(one));
            RETURN_IF_ERROR(value(one, depth + 1, &tree->items.emplace_back()));
        }
        return {};
    }

    Status object(ondemand::value from, int depth, JsonTree *tree) {
        tree->kind = JsonTree::Kind::object;
        ondemand::object list;
        RETURN_IF_BROKEN(from.get_object().get(list));
        for (auto item : list) {
            ondemand::field field;
            RETURN_IF_BROKEN(std::move(item).get(field));
            auto &[key, member] = tree->members.emplace_back();
            RETURN_IF_ERROR(string(field.key(), &key));
            RETURN_IF_ERROR(value(field.value(), depth + 1, &member));
        }
        std::unordered_set<std::string_view> keys;
        for (const auto &[key, member] : tree->members) {
            if (!keys.insert(key).second) {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: the key %s is given twice",
                             name_.c_str(), in_quotes(key).c_str());
            }
        }
        return {};
    }

    std::string_view text_;
    const std::string &name_;
    JsonNumbers numbers_;
    const char *begin_ = nullptr;
    // For one string at a time: the parser does not check whether a buffer of its own could be
    // allocated.
    std::vector<uint8_t> strings_;
    ondemand::parser parser_;
    ondemand::document document_;
    bool iterating_ = false; // the document can be asked for its position
};

} // namespace

const JsonTree *JsonTree::find(std::string_view key) const {
    for (const auto &member : members) {
        if (member.name == key) return &member.value;
    }
    return nullptr;
}

Result<JsonTree> parse_json_tree(std::string_view text, const std::string &name, size_t limit,
                                 JsonNumbers numbers) {
    if (text.size() > limit) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: longer than %zu bytes", name.c_str(),
                     limit);
    }
    return TreeReader(text, name, numbers).read();
}

} // namespace batchllm
