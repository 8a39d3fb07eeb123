#include <charconv>
#include <cmath>

#include "text/jinja/filter_functions.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja::filters {
namespace {

// A number in text as Python's int() and float() accept it: white space around it, underscores between digits.
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

} // namespace

Result<Value> to_int(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("int", arguments, {"default", "base"}));
    const Value otherwise = given.get(0, Value::integer(0));
    ASSIGN_OR_RETURN(const int64_t base, given.integer(1, 10));
    if (base != 10) return template_error("int: a base other than 10 is not supported");
    if (value.is_integral()) return Value::integer(value.integer());
    if (value.is(Kind::large_integer)) return value;
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

Result<Value> to_float(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("float", arguments, {"default"}));
    if (value.is_number()) return Value::real(value.real());
    if (value.is(Kind::large_integer)) {
        const std::optional<double> real = parse_real(value.text());
        // Python refuses to round a number beyond the range of doubles.
        return real.has_value() && !std::isinf(*real) ? Value::real(*real)
                                                      : given.get(0, Value::real(0));
    }
    if (value.is(Kind::undefined)) {
        return template_error("'%s' is undefined", std::string(value.text()).c_str());
    }
    if (value.is(Kind::string)) {
        if (const std::optional<double> real = parse_real(value.text())) return Value::real(*real);
    }
    return given.get(0, Value::real(0));
}

Result<Value> absolute(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("abs", arguments));
    if (value.is(Kind::real)) return Value::real(std::fabs(value.real()));
    if (!value.is_integral()) return template_error("a %s has no abs", value.type_name());
    if (value.integer() >= 0) return Value::integer(value.integer());
    return evaluator->binary(Operation::subtract, Value::integer(0), value);
}

Result<Value> rounded(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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
    return Value::real(std::nearbyint(value.real())); // rounds half to even
}

Result<Value> sum(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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

} // namespace batchllm::jinja::filters
