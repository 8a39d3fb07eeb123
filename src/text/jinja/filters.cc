#include "text/jinja/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

#include "text/jinja/case.h"
#include "text/jinja/json_text.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

using Arguments = CallArguments;

// An attribute by its path, "function.name" or "0" or 1, as the filters' `attribute` has it.
Result<Value> attribute_path(Evaluator *evaluator, Value value, const Value &path) {
    if (path.is_integral()) return evaluator->item(value, path);
    if (!path.is(Kind::string)) {
        return template_error("an attribute's name must be text, not a %s", path.type_name());
    }
    size_t end = 0;
    for (size_t begin = 0; end != std::string_view::npos; begin = end + 1) {
        end = path.text().find('.', begin);
        const std::string_view name = path.text().substr(begin, end - begin);
        RETURN_IF_ERROR(evaluator->charge(1 + name.size() / 64));
        int64_t index = 0;
        const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
        const bool number = read.ec == std::errc() && read.ptr == name.data() + name.size() &&
                            !name.starts_with('-');
        ASSIGN_OR_RETURN(
            value, evaluator->item(value, number ? Value::integer(index) : Value::string(name)));
    }
    return value;
}

Result<Value> with_text(Evaluator *evaluator, const Value &value,
                        const std::function<std::string(std::string_view)> &change) {
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    return evaluator->heap().string(change(text));
}

Status no_arguments(std::string_view filter, const Arguments &arguments) {
    return Parameters::bind(filter, arguments, {}).status();
}

// ---- text ----

Result<Value> trim(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("trim", arguments, {"chars"}));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge_text(text));
    if (!given.has(0) || given.get(0, {}).is(Kind::none)) return Value::string(strip(text));
    ASSIGN_OR_RETURN(const std::string_view characters, given.text(0, ""));
    RETURN_IF_ERROR(evaluator->charge_product(text, characters));
    return Value::string(left_strip(right_strip(text, characters), characters));
}

Result<Value> string(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("string", arguments));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    return Value::string(text);
}

Result<Value> upper(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("upper", arguments));
    return with_text(evaluator, value, to_upper);
}

Result<Value> lower(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("lower", arguments));
    return with_text(evaluator, value, to_lower);
}

Result<Value> capitalized(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("capitalize", arguments));
    return with_text(evaluator, value, capitalize);
}

Result<Value> title(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("title", arguments));
    return with_text(evaluator, value, title_words);
}

Result<Value> replace_text(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("replace", arguments, {"old", "new", "count"}));
    ASSIGN_OR_RETURN(const Value old_value, given.required(0));
    ASSIGN_OR_RETURN(const Value new_value, given.required(1));
    ASSIGN_OR_RETURN(const std::string_view part, evaluator->to_text(old_value));
    ASSIGN_OR_RETURN(const std::string_view by, evaluator->to_text(new_value));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    int64_t most = -1;
    if (given.has(2) && !given.get(2, {}).is(Kind::none)) {
        ASSIGN_OR_RETURN(most, given.integer(2, -1));
    }
    return evaluator->replace(text, part, by, most);
}

Result<Value> indent(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("indent", arguments, {"width", "first", "blank"}));
    std::string by;
    if (given.has(0) && given.get(0, {}).is(Kind::string)) {
        by = given.get(0, {}).text();
    } else {
        ASSIGN_OR_RETURN(const int64_t width, given.integer(0, 4));
        RETURN_IF_ERROR(
            evaluator->heap().room_for(static_cast<size_t>(std::max<int64_t>(0, width))));
        by.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
    if (!value.is(Kind::string)) {
        return template_error("indent needs text, not a %s", value.type_name());
    }
    RETURN_IF_ERROR(evaluator->charge(value.text().size() / 8));
    RETURN_IF_ERROR(evaluator->heap().room_for_parts(value.text().size() + 1));
    // jinja2 appends a line end, so that a text's own last one starts one more line.
    std::string text(value.text());
    text += '\n';
    const std::vector<std::string_view> lines = split_lines(text);
    size_t bytes = 0;
    if (__builtin_mul_overflow(lines.size(), by.size(), &bytes)) bytes = SIZE_MAX / 2;
    RETURN_IF_ERROR(evaluator->heap().room_for(bytes + text.size()));
    std::string out;
    for (size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) out += '\n';
        const bool indented =
            i == 0 ? given.flag(1, false) : given.flag(2, false) || !lines[i].empty();
        if (indented) out += by;
        out += lines[i];
    }
    return evaluator->heap().string(std::move(out));
}

Result<Value> tojson(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("tojson", arguments,
                                      {"ensure_ascii", "indent", "separators", "sort_keys"}));
    JsonStyle style;
    style.ensure_ascii = given.flag(0, false);
    style.sort_keys = given.flag(3, false);
    if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
        style.indented = true;
        style.item_separator = ",";
        if (given.get(1, {}).is(Kind::string)) {
            style.indent = given.get(1, {}).text();
        } else {
            ASSIGN_OR_RETURN(const int64_t width, given.integer(1, 0));
            RETURN_IF_ERROR(
                evaluator->heap().room_for(static_cast<size_t>(std::max<int64_t>(0, width))));
            style.indent.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
        }
        RETURN_IF_ERROR(evaluator->charge(style.indent.size() / 8));
        if (style.indent.size() > 1024) {
            return template_error("tojson: an indent of more than 1024 bytes is not supported");
        }
    }
    const Value separators = given.get(2, Value::none());
    if (!separators.is(Kind::none)) {
        ASSIGN_OR_RETURN(const std::vector<Value> pair, evaluator->iterate(separators));
        if (pair.size() != 2 || !pair[0].is(Kind::string) || !pair[1].is(Kind::string)) {
            return template_error("tojson: separators must be two texts");
        }
        style.item_separator = pair[0].text();
        style.key_separator = pair[1].text();
    }
    std::string out;
    RETURN_IF_ERROR(append_json(evaluator, style, value, &out));
    return evaluator->heap().string(std::move(out));
}

Result<Value> join(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("join", arguments, {"d", "attribute"}));
    std::string_view separator;
    if (given.has(0)) {
        ASSIGN_OR_RETURN(separator, evaluator->to_text(given.get(0, {})));
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += separator;
        Value item = items[i];
        if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
            ASSIGN_OR_RETURN(item, attribute_path(evaluator, item, given.get(1, {})));
        }
        RETURN_IF_ERROR(evaluator->append_string(item, &out));
        RETURN_IF_ERROR(evaluator->heap().room_for(out.size()));
    }
    return evaluator->heap().string(std::move(out));
}

// ---- numbers ----

// A number as Python's int() and float() read text: white space around it, underscores between digits.
std::optional<std::string> number_text(std::string_view text) {
    text = strip(text);
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '_') {
            out += text[i];
            continue;
        }
        const auto digit = [&](size_t at) {
            return at < text.size() && text[at] >= '0' && text[at] <= '9';
        };
        if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
    }
    if (out.starts_with('+') && out.size() > 1 && out[1] != '-' && out[1] != '+') out.erase(0, 1);
    return out;
}

std::optional<double> parse_real(std::string_view raw) {
    const std::optional<std::string> text = number_text(raw);
    if (!text.has_value() || text->empty()) return std::nullopt;
    const char *begin = text->data(), *end = begin + text->size();
    double value = 0;
    const auto read = std::from_chars(begin, end, value);
    if (read.ptr != end || read.ec == std::errc::invalid_argument) return std::nullopt;
    if (read.ec == std::errc::result_out_of_range) value = std::strtod(begin, nullptr);
    return value;
}

Result<Value> to_int(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("int", arguments, {"default", "base"}));
    const Value otherwise = given.get(0, Value::integer(0));
    ASSIGN_OR_RETURN(const int64_t base, given.integer(1, 10));
    if (base != 10) return template_error("int: a base other than 10 is not supported");
    if (value.is_integral()) return Value::integer(value.integer());
    std::optional<double> real;
    if (value.is(Kind::real)) {
        real = value.real();
    } else if (value.is(Kind::string)) {
        const std::optional<std::string> text = number_text(value.text());
        int64_t whole = 0;
        if (text.has_value()) {
            const char *begin = text->data(), *end = begin + text->size();
            const auto read = std::from_chars(begin, end, whole);
            if (read.ptr == end && read.ec == std::errc()) return Value::integer(whole);
            if (read.ptr == end && read.ec == std::errc::result_out_of_range) {
                return template_error("a number is beyond 64 bits");
            }
        }
        real = parse_real(value.text());
    } else if (value.is(Kind::undefined)) {
        return template_error("'%s' is undefined", std::string(value.text()).c_str());
    }
    if (!real.has_value() || std::isnan(*real) || std::isinf(*real)) return otherwise;
    if (!(std::fabs(*real) < 0x1p63)) return template_error("a number is beyond 64 bits");
    return Value::integer(static_cast<int64_t>(*real));
}

Result<Value> to_float(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("float", arguments, {"default"}));
    if (value.is_number()) return Value::real(value.real());
    if (value.is(Kind::undefined)) {
        return template_error("'%s' is undefined", std::string(value.text()).c_str());
    }
    if (value.is(Kind::string)) {
        if (const std::optional<double> real = parse_real(value.text())) return Value::real(*real);
    }
    return given.get(0, Value::real(0));
}

Result<Value> absolute(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("abs", arguments));
    if (value.is(Kind::real)) return Value::real(std::fabs(value.real()));
    if (!value.is_integral()) return template_error("a %s has no abs", value.type_name());
    if (value.integer() >= 0) return Value::integer(value.integer());
    return evaluator->binary(Operation::subtract, Value::integer(0), value);
}

Result<Value> rounded(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("round", arguments, {"precision", "method"}));
    ASSIGN_OR_RETURN(const int64_t precision, given.integer(0, 0));
    ASSIGN_OR_RETURN(const std::string_view method, given.text(1, "common"));
    if (!value.is_number()) return template_error("a %s cannot be rounded", value.type_name());
    if (precision != 0 || method != "common") {
        return template_error("round: only whole numbers by method 'common' are supported");
    }
    if (value.is_integral()) return Value::integer(value.integer());
    return Value::real(std::nearbyint(value.real())); // halves to even
}

Result<Value> sum(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("sum", arguments, {"attribute", "start"}));
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    Value total = given.get(1, Value::integer(0));
    if (total.is(Kind::string)) return template_error("sum: text cannot be summed");
    for (Value item : items) {
        if (given.has(0) && !given.get(0, {}).is(Kind::none)) {
            ASSIGN_OR_RETURN(item, attribute_path(evaluator, item, given.get(0, {})));
        }
        RETURN_IF_ERROR(evaluator->charge(1));
        ASSIGN_OR_RETURN(total, evaluator->binary(Operation::add, total, item));
    }
    return total;
}

// ---- lists ----

Result<Value> length_of(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("length", arguments));
    ASSIGN_OR_RETURN(const int64_t length, evaluator->length(value));
    return Value::integer(length);
}

Result<Value> list(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("list", arguments));
    ASSIGN_OR_RETURN(std::vector<Value> items, evaluator->iterate(value));
    return evaluator->heap().sequence(SequenceType::list, std::move(items));
}

Result<Value> first(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("first", arguments));
    if (value.is(Kind::sequence) && value.sequence().read_once()) {
        Sequence &sequence = value.sequence();
        if (sequence.taken == sequence.items.size()) {
            RETURN_IF_ERROR(sequence.failure);
            return Value::undefined("the first item");
        }
        return sequence.items[sequence.taken++];
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    return items.empty() ? Value::undefined("the first item") : items.front();
}

Result<Value> last(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("last", arguments));
    if (value.is(Kind::sequence) && value.sequence().read_once()) {
        return template_error("a %s has no last item", value.type_name());
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    return items.empty() ? Value::undefined("the last item") : items.back();
}

Result<Value> reverse(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("reverse", arguments));
    ASSIGN_OR_RETURN(std::vector<Value> items, evaluator->iterate(value));
    std::reverse(items.begin(), items.end());
    if (!value.is(Kind::string)) {
        // What has no reversed() jinja2 makes a list of first, and gives that.
        const bool once = value.is(Kind::sequence) && value.sequence().read_once();
        return evaluator->heap().sequence(once ? SequenceType::list : SequenceType::reversed,
                                          std::move(items));
    }
    std::string text;
    for (const Value &item : items) text += item.text();
    return evaluator->heap().string(std::move(text));
}

// What a value is sorted by: text in lower case unless case counts.
Result<Value> sort_key(Evaluator *evaluator, const Value &value, bool case_sensitive) {
    if (case_sensitive || !value.is(Kind::string)) return value;
    return evaluator->heap().string(to_lower(value.text()));
}

// Sorts values by keys, in place; stable. Fails for keys without an order. as_lists: keys are compared
// as lists of one key are: equal ones need no order.
Status sort_by(Evaluator *evaluator, std::vector<std::pair<Value, Value>> *keyed, bool reverse,
               bool as_lists) {
    Status failure; // the first: the sort itself cannot be left
    const auto less = [&](const Value &a, const Value &b) {
        if (!failure.ok()) return false;
        failure = evaluator->charge(1);
        if (!failure.ok()) return false;
        const Result<bool> same = evaluator->compare(Comparison::equal, a, b);
        if (as_lists && same.ok() && *same) return false;
        const Result<bool> below = evaluator->compare(Comparison::less, a, b);
        if (!below.ok()) failure = below.status();
        return below.ok() && *below;
    };
    RETURN_IF_ERROR(evaluator->charge(keyed->size()));
    std::stable_sort(keyed->begin(), keyed->end(), [&](const auto &a, const auto &b) {
        return reverse ? less(b.first, a.first) : less(a.first, b.first);
    });
    return failure;
}

Result<Value> sort(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(
        const Parameters given,
        Parameters::bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value &item : items) {
        Value key = item;
        if (given.has(2) && !given.get(2, {}).is(Kind::none)) {
            if (given.get(2, {}).is(Kind::string) &&
                given.get(2, {}).text().find(',') != std::string_view::npos) {
                return template_error("sort by several attributes is not supported");
            }
            ASSIGN_OR_RETURN(key, attribute_path(evaluator, item, given.get(2, {})));
        }
        ASSIGN_OR_RETURN(key, sort_key(evaluator, key, given.flag(1, false)));
        keyed.emplace_back(key, item);
    }
    RETURN_IF_ERROR(sort_by(evaluator, &keyed, given.flag(0, false), true));
    std::vector<Value> sorted;
    for (const auto &item : keyed) sorted.push_back(item.second);
    return evaluator->heap().sequence(SequenceType::list, std::move(sorted));
}

Result<Value> dictsort(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
    ASSIGN_OR_RETURN(const std::string_view by, given.text(1, "key"));
    if (by != "key" && by != "value") return template_error("dictsort: by is 'key' or 'value'");
    if (!value.is(Kind::dict)) {
        return template_error("dictsort needs a mapping, not a %s", value.type_name());
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (const auto &[key, item] : value.dict().items) {
        ASSIGN_OR_RETURN(const Value pair,
                         evaluator->heap().sequence(SequenceType::tuple, {key, item}));
        ASSIGN_OR_RETURN(const Value sorted_by,
                         sort_key(evaluator, by == "key" ? key : item, given.flag(0, false)));
        keyed.emplace_back(sorted_by, pair);
    }
    RETURN_IF_ERROR(sort_by(evaluator, &keyed, given.flag(2, false), false));
    std::vector<Value> sorted;
    for (const auto &item : keyed) sorted.push_back(item.second);
    return evaluator->heap().sequence(SequenceType::list, std::move(sorted));
}

Result<Value> extreme(Evaluator *evaluator, const Value &value, const Arguments &arguments,
                      const char *name, Comparison better) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind(name, arguments, {"case_sensitive", "attribute"}));
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    if (items.empty()) return Value::undefined("the extreme of an empty list");
    Value best, best_key;
    for (size_t i = 0; i < items.size(); ++i) {
        Value key = items[i];
        if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
            ASSIGN_OR_RETURN(key, attribute_path(evaluator, key, given.get(1, {})));
        }
        ASSIGN_OR_RETURN(key, sort_key(evaluator, key, given.flag(0, false)));
        bool takes = i == 0;
        if (!takes) {
            ASSIGN_OR_RETURN(takes, evaluator->compare(better, key, best_key));
        }
        if (!takes) continue;
        best = items[i];
        best_key = key;
    }
    return best;
}

Result<Value> least(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return extreme(evaluator, value, arguments, "min", Comparison::less);
}

Result<Value> most(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return extreme(evaluator, value, arguments, "max", Comparison::greater);
}

// A generator of what fill(&items) makes. jinja2 does the work when items are asked for; here it is
// done at once, and a failure comes when somebody reads so far.
template <typename Fill> Result<Value> generate(Evaluator *evaluator, Fill fill) {
    std::vector<Value> items;
    const Status failure = fill(&items);
    ASSIGN_OR_RETURN(const Value made,
                     evaluator->heap().sequence(SequenceType::generator, std::move(items)));
    made.sequence().failure = failure;
    return made;
}

Result<Value> items_of(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    RETURN_IF_ERROR(no_arguments("items", arguments));
    return generate(evaluator, [&](std::vector<Value> *items) -> Status {
        if (value.is(Kind::undefined)) return {};
        if (!value.is(Kind::dict)) {
            return template_error("items needs a mapping, not a %s", value.type_name());
        }
        for (const auto &[key, item] : value.dict().items) {
            ASSIGN_OR_RETURN(const Value pair,
                             evaluator->heap().sequence(SequenceType::tuple, {key, item}));
            items->push_back(pair);
        }
        return {};
    });
}

Result<Value> unique(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("unique", arguments, {"case_sensitive", "attribute"}));
    return generate(evaluator, [&](std::vector<Value> *kept) -> Status {
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        Dict seen;
        for (const Value &item : items) {
            Value key = item;
            if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
                ASSIGN_OR_RETURN(key, attribute_path(evaluator, key, given.get(1, {})));
            }
            ASSIGN_OR_RETURN(key, sort_key(evaluator, key, given.flag(0, false)));
            if (!hashable(key)) return template_error("unique: a %s has no hash", key.type_name());
            RETURN_IF_ERROR(evaluator->charge(1));
            RETURN_IF_ERROR(evaluator->charge_lookup(seen, key));
            if (seen.find(key) != nullptr) continue;
            seen.set(key, key);
            kept->push_back(item);
        }
        return {};
    });
}

Result<Value> default_value(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("default", arguments, {"default_value", "boolean"}));
    const bool replaces = value.is(Kind::undefined) || (given.flag(1, false) && !value.truth());
    return replaces ? given.get(0, Value::string("")) : value;
}

// ---- filters over the items of a list ----

// The filter or test that an argument names. The parser looks at names that are written out; those
// that map hands on come here unseen.
Result<int32_t> find_named(const Value &name, int32_t (*find)(std::string_view), const char *what) {
    const int32_t found = name.is(Kind::string) ? find(name.text()) : -1;
    if (found >= 0) return found;
    return template_error("a %s that is not supported, or not named by text", what);
}

// The arguments behind the first `taken`.
Arguments rest_of(const Arguments &arguments, size_t taken) {
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin(),
                          rest.positional.begin() + static_cast<std::ptrdiff_t>(taken));
    return rest;
}

Result<Value> map(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    if (arguments.positional.empty()) {
        return generate(evaluator, [&](std::vector<Value> *mapped) -> Status {
            if (!value.truth()) return {};
            ASSIGN_OR_RETURN(const Parameters given,
                             Parameters::bind("map", arguments, {"attribute", "default"}));
            ASSIGN_OR_RETURN(const Value path, given.required(0));
            ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
            for (const Value &item : items) {
                RETURN_IF_ERROR(evaluator->charge(1));
                ASSIGN_OR_RETURN(Value found, attribute_path(evaluator, item, path));
                if (found.is(Kind::undefined)) found = given.get(1, found);
                mapped->push_back(found);
            }
            return {};
        });
    }
    return generate(evaluator, [&](std::vector<Value> *mapped) -> Status {
        if (!value.truth()) return {};
        ASSIGN_OR_RETURN(const int32_t filter,
                         find_named(arguments.positional[0], find_filter, "filter"));
        RETURN_IF_ERROR(evaluator->charge(arguments.positional.size()));
        const Arguments rest = rest_of(arguments, 1);
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        for (const Value &item : items) {
            RETURN_IF_ERROR(evaluator->charge(1));
            ASSIGN_OR_RETURN(const Value made, evaluator->filter(filter, item, rest));
            mapped->push_back(made);
        }
        return {};
    });
}

// Items whose test comes out as wanted; by an attribute: the first argument names it.
Result<Value> choose(Evaluator *evaluator, const Value &value, const Arguments &arguments,
                     bool wanted, bool by_attribute, const char *name) {
    return generate(evaluator, [&](std::vector<Value> *chosen) -> Status {
        if (!value.truth()) return {};
        const size_t place = by_attribute ? 1 : 0;
        if (arguments.positional.size() < place) {
            return template_error("%s needs the name of an attribute", name);
        }
        const bool tests = arguments.positional.size() > place;
        int32_t test = -1;
        if (tests) {
            ASSIGN_OR_RETURN(test, find_named(arguments.positional[place], find_test, "test"));
        }
        RETURN_IF_ERROR(evaluator->charge(arguments.positional.size()));
        const Arguments rest = tests ? rest_of(arguments, place + 1) : Arguments();
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        for (const Value &item : items) {
            RETURN_IF_ERROR(evaluator->charge(1));
            Value looked_at = item;
            if (by_attribute) {
                ASSIGN_OR_RETURN(looked_at,
                                 attribute_path(evaluator, item, arguments.positional[0]));
            }
            bool holds = looked_at.truth();
            if (tests) {
                ASSIGN_OR_RETURN(holds, apply_test(evaluator, test, looked_at, rest));
            }
            if (holds == wanted) chosen->push_back(item);
        }
        return {};
    });
}

Result<Value> select(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return choose(evaluator, value, arguments, true, false, "select");
}
Result<Value> reject(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return choose(evaluator, value, arguments, false, false, "reject");
}
Result<Value> selectattr(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return choose(evaluator, value, arguments, true, true, "selectattr");
}
Result<Value> rejectattr(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return choose(evaluator, value, arguments, false, true, "rejectattr");
}

Result<Value> safe(Evaluator *evaluator, const Value &value, const Arguments &arguments) {
    return string(evaluator, value, arguments);
}

struct Filter {
    std::string_view name;
    Result<Value> (*apply)(Evaluator *, const Value &, const Arguments &);
};

constexpr Filter filters[] = {
    {"abs", absolute},
    {"capitalize", capitalized},
    {"count", length_of},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dictsort},
    {"first", first},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"items", items_of},
    {"join", join},
    {"last", last},
    {"length", length_of},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"max", most},
    {"min", least},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace_text},
    {"reverse", reverse},
    {"round", rounded},
    {"safe", safe},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

} // namespace

int32_t find_filter(std::string_view name) {
    const auto found = std::find_if(std::begin(filters), std::end(filters),
                                    [&](const Filter &filter) { return filter.name == name; });
    return found == std::end(filters) ? -1 : static_cast<int32_t>(found - std::begin(filters));
}

Result<Value> apply_filter(Evaluator *evaluator, int32_t filter, const Value &value,
                           const CallArguments &arguments) {
    return filters[filter].apply(evaluator, value, arguments);
}

} // namespace batchllm::jinja
