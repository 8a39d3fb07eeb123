#include "constraint/json_schema_value.h"

#include <unordered_set>

#include <simdjson.h>

#include "base/printable.h"

namespace batchllm {

namespace {

constexpr size_t kMostBytes = size_t{16} << 20;
constexpr int kMostDepth = 200;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

void append_utf8(uint32_t point, std::string *out) {
    const auto add = [&](uint32_t byte) { *out += static_cast<char>(byte); };
    if (point < 0x80) {
        add(point);
    } else if (point < 0x800) {
        add(0xc0 | point >> 6);
        add(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        add(0xe0 | point >> 12);
        add(0x80 | (point >> 6 & 0x3f));
        add(0x80 | (point & 0x3f));
    } else {
        add(0xf0 | point >> 18);
        add(0x80 | (point >> 12 & 0x3f));
        add(0x80 | (point >> 6 & 0x3f));
        add(0x80 | (point & 0x3f));
    }
}

class TreeReader {
  public:
    TreeReader(std::string_view text, const std::string &name) : text_(text), name_(name) {}

    Result<JsonTree> read() {
        if (text_.size() > kMostBytes) return broken("too long");
        if (!simdjson::validate_utf8(text_.data(), text_.size())) return broken("not UTF-8");
        JsonTree tree;
        RETURN_IF_ERROR(value(&tree, 0));
        skip_space();
        if (at_ != text_.size()) return broken("something after the value");
        return tree;
    }

  private:
    Status broken(const std::string &problem) const {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: not JSON: %s at byte %zu", name_.c_str(),
                     problem.c_str(), at_);
    }
    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool take(char byte) {
        if (peek() != byte || at_ == text_.size()) return false;
        ++at_;
        return true;
    }
    void skip_space() {
        while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
    }

    Status value(JsonTree *tree, int depth) {
        if (depth > kMostDepth) return broken("nested too deeply");
        skip_space();
        switch (peek()) {
        case '{':
            return object(tree, depth);
        case '[':
            return array(tree, depth);
        case '"':
            tree->kind = JsonTree::Kind::string;
            return string(&tree->text);
        case 't':
            return word("true", tree, JsonTree::Kind::boolean, true);
        case 'f':
            return word("false", tree, JsonTree::Kind::boolean, false);
        case 'n':
            return word("null", tree, JsonTree::Kind::null, false);
        default:
            return number(tree);
        }
    }

    Status word(std::string_view text, JsonTree *tree, JsonTree::Kind kind, bool boolean) {
        if (text_.substr(at_, text.size()) != text) return broken("no value");
        at_ += text.size();
        tree->kind = kind;
        tree->boolean = boolean;
        return Status();
    }

    bool digits() {
        const size_t first = at_;
        while (is_digit(peek())) ++at_;
        return at_ > first;
    }

    Status number(JsonTree *tree) {
        const size_t first = at_;
        take('-');
        if (!take('0') && !digits()) return broken("no value");
        if (take('.') && !digits()) return broken("a number without digits after its point");
        if (take('e') || take('E')) {
            if (!take('+')) take('-');
            if (!digits()) return broken("a number without digits in its exponent");
        }
        tree->kind = JsonTree::Kind::number;
        tree->text = text_.substr(first, at_ - first);
        return Status();
    }

    Status hex(uint32_t *out) {
        *out = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char byte = peek();
            const int letter = (byte | 0x20) - 'a';
            if (is_digit(byte)) {
                *out = *out * 16 + static_cast<uint32_t>(byte - '0');
            } else if (letter >= 0 && letter < 6) {
                *out = *out * 16 + static_cast<uint32_t>(letter + 10);
            } else {
                return broken("\\u without four digits");
            }
        }
        return Status();
    }

    Status escape(std::string *out) {
        const char letter = peek();
        ++at_;
        static constexpr std::string_view letters = "\"\\/bfnrt";
        static constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
        const size_t known = letters.find(letter);
        if (known != std::string_view::npos) {
            *out += meanings[known];
            return Status();
        }
        if (letter != 'u') return broken("an escape that JSON has not");
        uint32_t point = 0;
        RETURN_IF_ERROR(hex(&point));
        if (point >= 0xd800 && point < 0xdc00) {
            uint32_t low = 0;
            if (!take('\\') || !take('u')) return broken("half of a surrogate pair");
            RETURN_IF_ERROR(hex(&low));
            if (low < 0xdc00 || low > 0xdfff) return broken("half of a surrogate pair");
            point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        } else if (point >= 0xdc00 && point < 0xe000) {
            return broken("half of a surrogate pair");
        }
        append_utf8(point, out);
        return Status();
    }

    Status string(std::string *out) {
        ++at_;
        while (!take('"')) {
            if (at_ == text_.size()) return broken("a string that does not end");
            if (take('\\')) {
                RETURN_IF_ERROR(escape(out));
            } else if (static_cast<unsigned char>(peek()) < 0x20) {
                return broken("a control character");
            } else {
                *out += text_[at_++];
            }
        }
        return Status();
    }

    Status array(JsonTree *tree, int depth) {
        tree->kind = JsonTree::Kind::array;
        ++at_;
        skip_space();
        if (take(']')) return Status();
        do {
            RETURN_IF_ERROR(value(&tree->items.emplace_back(), depth + 1));
            skip_space();
        } while (take(','));
        return take(']') ? Status() : broken("an array that does not end");
    }

    Status object(JsonTree *tree, int depth) {
        tree->kind = JsonTree::Kind::object;
        ++at_;
        skip_space();
        if (take('}')) return Status();
        do {
            skip_space();
            if (peek() != '"') return broken("a member without a name");
            auto &member = tree->members.emplace_back();
            RETURN_IF_ERROR(string(&member.first));
            skip_space();
            if (!take(':')) return broken("a member without a value");
            RETURN_IF_ERROR(value(&member.second, depth + 1));
            skip_space();
        } while (take(','));
        if (!take('}')) return broken("an object that does not end");
        std::unordered_set<std::string_view> names;
        for (const auto &member : tree->members) {
            if (!names.insert(member.first).second) {
                return broken("two members named " + in_quotes(member.first));
            }
        }
        return Status();
    }

    std::string_view text_;
    const std::string &name_;
    size_t at_ = 0;
};

} // namespace

const JsonTree *JsonTree::find(std::string_view key) const {
    for (const auto &member : members) {
        if (member.first == key) return &member.second;
    }
    return nullptr;
}

Result<JsonTree> parse_json_tree(std::string_view text, const std::string &name) {
    return TreeReader(text, name).read();
}

} // namespace batchllm
