#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "text/jinja/literals.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

constexpr size_t most_tokens = 1 << 20;

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Line ends become LF; the last one is dropped if it ends the text.
std::string normalize(std::string_view source) {
    std::string text;
    text.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            text.push_back(source[i]);
            continue;
        }
        text.push_back('\n');
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : text_(normalize(source)) {}

    Result<std::vector<Token>> run() {
        while (at_ < text_.size()) {
            if (tokens_.size() > most_tokens) return fail("the template is too long");
            RETURN_IF_ERROR(read_data());
        }
        add(TokenType::end, "");
        return std::move(tokens_);
    }

  private:
    Status fail(const std::string &what) const { return error_at(line_, what); }

    void add(TokenType type, std::string text) {
        Token token;
        token.type = type;
        token.line = line_;
        token.text = std::move(text);
        tokens_.push_back(std::move(token));
    }

    bool looking_at(std::string_view wanted) const {
        return std::string_view(text_).substr(at_).starts_with(wanted);
    }

    // The text from this many bytes ahead.
    std::string_view rest(size_t bytes) const {
        return std::string_view(text_).substr(at_).substr(bytes);
    }

    void advance(size_t bytes) {
        line_ += static_cast<int32_t>(
            std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                       text_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
        at_ += bytes;
    }

    void skip_space() { advance(rest(0).size() - left_strip(rest(0)).size()); }

    // Skips the end of a tag, the sign before it, and what whitespace control removes after it.
    void end_tag(char sign, size_t bytes, bool trims_line) {
        advance(bytes);
        if (sign == '-') {
            skip_space();
        } else if (sign == 0 && trims_line && looking_at("\n")) {
            advance(1);
        }
        line_starts_ = at_ > 0 && text_[at_ - 1] == '\n';
    }

    // The length of the tag's end `close` at this position, including its sign; 0: none here.
    size_t tag_end(std::string_view close, char *sign) const {
        *sign = 0;
        if (looking_at(close)) return close.size();
        if (looking_at("-") && rest(1).starts_with(close)) {
            *sign = '-';
        } else if (close != "}}" && looking_at("+") && rest(1).starts_with(close)) {
            *sign = '+';
        } else {
            return 0;
        }
        return close.size() + 1;
    }

    // Adds the text before a tag that begins with this sign.
    void add_data(std::string_view data, char sign, bool variable) {
        if (sign == '-') {
            data = right_strip(data);
        } else if (sign != '+' && !variable) {
            const size_t line = data.rfind('\n') + 1;
            if ((line > 0 || line_starts_) && strip(data.substr(line)).empty()) {
                data = data.substr(0, line);
            }
        }
        if (!data.empty()) add(TokenType::data, std::string(data));
    }

    // Reads the text up to the next tag, and the tag.
    Status read_data() {
        const size_t begin = at_;
        size_t tag = begin;
        for (;; ++tag) {
            tag = text_.find('{', tag);
            if (tag == std::string::npos || tag + 1 == text_.size()) {
                add(TokenType::data, text_.substr(begin));
                advance(text_.size() - begin);
                return {};
            }
            if (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#') break;
        }
        const char kind = text_[tag + 1];
        size_t bytes = 2;
        char sign = 0;
        if (tag + 2 < text_.size() && (text_[tag + 2] == '-' || text_[tag + 2] == '+')) {
            sign = text_[tag + 2];
            ++bytes;
        }
        add_data(std::string_view(text_).substr(begin, tag - begin), sign, kind == '{');
        advance(tag - begin + bytes);
        if (kind == '#') return skip_comment();
        if (kind == '%') {
            bool raw = false;
            RETURN_IF_ERROR(read_raw(&raw));
            if (raw) return {};
        }
        return read_tag(kind == '{');
    }

    Status skip_comment() {
        const size_t end = text_.find("#}", at_);
        if (end == std::string::npos) return fail("a comment has no end");
        char sign =
            end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+') ? text_[end - 1] : '\0';
        advance(end - at_);
        end_tag(sign, 2, true);
        return {};
    }

    // Reads {% raw %} to {% endraw %}, if the block that has just begun is one.
    Status read_raw(bool *raw) {
        const size_t begin = at_;
        const int32_t line = line_;
        skip_space();
        const bool named = looking_at("raw");
        if (named) advance(3);
        skip_space();
        char sign = 0;
        const size_t bytes = named ? tag_end("%}", &sign) : 0;
        if (bytes == 0 || sign == '+') {
            at_ = begin;
            line_ = line;
            return {};
        }
        *raw = true;
        end_tag(sign, bytes, false);
        const size_t from = at_;
        for (size_t end = text_.find("{%", from); end != std::string::npos;
             end = text_.find("{%", end + 2)) {
            size_t inner = end + 2;
            char begin_sign = 0;
            if (inner < text_.size() && (text_[inner] == '-' || text_[inner] == '+')) {
                begin_sign = text_[inner++];
            }
            const std::string_view word = left_strip(std::string_view(text_).substr(inner));
            if (!word.starts_with("endraw")) continue;
            const std::string_view close = left_strip(word.substr(6));
            const auto close_at = static_cast<size_t>(close.data() - text_.data());
            const size_t before = at_;
            at_ = close_at;
            char end_sign = 0;
            const size_t end_bytes = tag_end("%}", &end_sign);
            at_ = before;
            if (end_bytes == 0) continue;
            add_data(std::string_view(text_).substr(from, end - from), begin_sign, false);
            advance(close_at - from);
            end_tag(end_sign, end_bytes, true);
            return {};
        }
        return fail("{% raw %} has no {% endraw %}");
    }

    Status read_tag(bool variable) {
        const std::string_view close = variable ? "}}" : "%}";
        add(variable ? TokenType::variable_begin : TokenType::block_begin, "");
        std::vector<char> open;
        for (;;) {
            if (tokens_.size() > most_tokens) return fail("the template is too long");
            char sign = 0;
            const size_t bytes = open.empty() ? tag_end(close, &sign) : 0;
            if (bytes > 0) {
                add(variable ? TokenType::variable_end : TokenType::block_end, "");
                end_tag(sign, bytes, !variable);
                return {};
            }
            const size_t before = at_;
            skip_space();
            if (at_ != before) continue;
            if (at_ == text_.size()) return fail("a tag has no end");
            RETURN_IF_ERROR(read_token(&open));
        }
    }

    Status read_token(std::vector<char> *open) {
        const char c = text_[at_];
        if (is_digit(c)) return read_number();
        if (is_name_start(c)) {
            size_t end = at_;
            while (end < text_.size() && is_name_part(text_[end])) ++end;
            add(TokenType::name, text_.substr(at_, end - at_));
            advance(end - at_);
            return {};
        }
        if (c == '"' || c == '\'') return read_string();
        static constexpr std::array<std::string_view, 26> operators = {
            "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
        for (const std::string_view spelling : operators) {
            if (!looking_at(spelling)) continue;
            if (c == '(' || c == '[' || c == '{') {
                open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
            } else if (c == ')' || c == ']' || c == '}') {
                if (open->empty() || open->back() != c) {
                    return fail(quoted("unexpected ", std::string(1, c)));
                }
                open->pop_back();
            }
            add(TokenType::operator_, std::string(spelling));
            advance(spelling.size());
            return {};
        }
        const auto bytes = std::min(static_cast<size_t>(utf8_length(c)), text_.size() - at_);
        return fail(quoted("unexpected character ", text_.substr(at_, bytes)));
    }

    Status read_number() {
        ASSIGN_OR_RETURN(Token number, number_at(text_, at_, line_));
        advance(number.text.size());
        tokens_.push_back(std::move(number));
        return {};
    }

    Status read_string() {
        const char quote = text_[at_];
        size_t end = at_ + 1;
        while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
        if (end >= text_.size()) return fail("a string has no end");
        ASSIGN_OR_RETURN(std::string value,
                         unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1), line_));
        add(TokenType::string, std::move(value));
        advance(end + 1 - at_);
        return {};
    }

    const std::string text_;
    size_t at_ = 0;
    int32_t line_ = 1;
    bool line_starts_ = true; // whether the next character is at the start of a line
    std::vector<Token> tokens_;
};

} // namespace

std::string quoted(std::string what, std::string_view text) {
    what += '\'';
    what += text;
    what += '\'';
    return what;
}

Status error_at(int32_t line, const std::string &what) {
    return Status(BATCHLLM_ERROR_ROW_TEMPLATE, "line " + std::to_string(line) + ": " + what);
}

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

} // namespace batchllm::jinja
