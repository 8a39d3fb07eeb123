#include "text/jinja/json_text.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

class Writer {
  public:
    Writer(Evaluator *evaluator, const JsonStyle &style, std::string *out)
        : evaluator_(evaluator), style_(style), out_(out) {}

    Status write(const Value &value, int32_t level) {
        RETURN_IF_ERROR(evaluator_->charge(1));
        RETURN_IF_ERROR(evaluator_->heap().room_for(out_->size()));
        switch (value.kind()) {
        case Kind::string:
            return write_string(value.text());
        case Kind::dict:
            return write_dict(value.dict(), level);
        case Kind::sequence:
            if (value.is_sequence(SequenceType::list) || value.is_sequence(SequenceType::tuple)) {
                return write_list(value.sequence().items, level);
            }
            break;
        case Kind::none:
        case Kind::boolean:
        case Kind::integer:
        case Kind::large_integer:
        case Kind::real:
            append_scalar(value);
            return {};
        default:
            break;
        }
        return template_error("a %s cannot be written as JSON", value.type_name());
    }

  private:
    Status write_string(std::string_view text) {
        RETURN_IF_ERROR(evaluator_->charge(text.size() / 16));
        RETURN_IF_ERROR(evaluator_->heap().room_for(out_->size() + 6 * text.size())); // all escaped
        append_json_string(text, style_.ensure_ascii, out_);
        return {};
    }

    void append_scalar(const Value &value) {
        if (value.is(Kind::none)) {
            *out_ += "null";
        } else if (value.is(Kind::boolean)) {
            *out_ += value.truth() ? "true" : "false";
        } else if (value.is(Kind::integer)) {
            *out_ += std::to_string(value.integer());
        } else if (value.is(Kind::large_integer)) {
            *out_ += value.text();
        } else if (std::isnan(value.real())) {
            *out_ += "NaN";
        } else if (std::isinf(value.real())) {
            *out_ += value.real() > 0 ? "Infinity" : "-Infinity";
        } else {
            append_float(value.real(), out_);
        }
    }

    void new_line(int32_t level) {
        if (!style_.indented) return;
        *out_ += '\n';
        for (int32_t i = 0; i < level; ++i) *out_ += style_.indent;
    }

    Status write_list(const std::vector<Value> &items, int32_t level) {
        if (items.empty()) {
            *out_ += "[]";
            return {};
        }
        *out_ += '[';
        for (size_t i = 0; i < items.size(); ++i) {
            if (i > 0) *out_ += style_.item_separator;
            new_line(level + 1);
            RETURN_IF_ERROR(write(items[i], level + 1));
        }
        new_line(level);
        *out_ += ']';
        return {};
    }

    // Keys that are not strings are written as strings.
    Status write_key(const Value &key) {
        if (key.is(Kind::string)) return write_string(key.text());
        if (!key.is(Kind::none) && !key.is_number() && !key.is(Kind::large_integer)) {
            return template_error("a %s cannot be a key in JSON", key.type_name());
        }
        *out_ += '"';
        append_scalar(key);
        *out_ += '"';
        return {};
    }

    Status write_dict(const Dict &dict, int32_t level) {
        if (dict.items.empty()) {
            *out_ += "{}";
            return {};
        }
        std::vector<const std::pair<Value, Value> *> items;
        for (const auto &item : dict.items) items.push_back(&item);
        if (style_.sort_keys) {
            for (const auto &item : dict.items) {
                if (item.first.is(Kind::string)) continue;
                return template_error("sort_keys is supported only for keys that are strings");
            }
            std::sort(items.begin(), items.end(), [](const auto *a, const auto *b) {
                return a->first.text() < b->first.text();
            });
        }
        *out_ += '{';
        bool first = true;
        for (const auto *item : items) {
            if (!first) *out_ += style_.item_separator;
            first = false;
            new_line(level + 1);
            RETURN_IF_ERROR(write_key(item->first));
            *out_ += style_.key_separator;
            RETURN_IF_ERROR(write(item->second, level + 1));
        }
        new_line(level);
        *out_ += '}';
        return {};
    }

    Evaluator *evaluator_;
    const JsonStyle &style_;
    std::string *out_;
};

} // namespace

Status append_json(Evaluator *evaluator, const JsonStyle &style, const Value &value,
                   std::string *out) {
    return Writer(evaluator, style, out).write(value, 0);
}

} // namespace batchllm::jinja
