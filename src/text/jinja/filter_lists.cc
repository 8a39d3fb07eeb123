#include <algorithm>

#include "text/jinja/case.h"
#include "text/jinja/filter_functions.h"
#include "text/jinja/methods.h"

namespace batchllm::jinja::filters {
namespace {

// Sorts values by keys, in place; stable. Fails for keys without an order. as_lists: keys are compared like
// lists of one key, so equal ones need no order.
Status sort_by(Evaluator *evaluator, std::vector<std::pair<Value, Value>> *keyed, bool reverse,
               bool as_lists) {
    Status failure; // the first one, since the sort itself cannot be interrupted
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

Result<Value> extreme(Evaluator *evaluator, const Value &value, const CallArguments &arguments,
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

} // namespace

// An attribute in Python's sense, never an item of a dictionary.
Result<Value> attribute_of(Evaluator *evaluator, const Value &value,
                           const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("attr", arguments, {"name"}));
    ASSIGN_OR_RETURN(const Value named, given.required(0));
    ASSIGN_OR_RETURN(const std::string_view name, evaluator->to_text(named));
    if (value.is(Kind::dict) && !has_method(value, name) && !lacks_attribute(value, name)) {
        return Value::undefined(name);
    }
    return evaluator->attribute(value, name);
}

Result<Value> length_of(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("length", arguments));
    ASSIGN_OR_RETURN(const int64_t length, evaluator->length(value));
    return Value::integer(length);
}

Result<Value> list(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("list", arguments));
    ASSIGN_OR_RETURN(std::vector<Value> items, evaluator->iterate(value));
    return evaluator->heap().sequence(SequenceType::list, std::move(items));
}

Result<Value> first(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("first", arguments));
    if (value.is(Kind::sequence) && value.sequence().read_once()) {
        SequenceObject &sequence = value.sequence();
        if (sequence.taken == sequence.items.size()) {
            RETURN_IF_ERROR(sequence.failure);
            return Value::undefined("the first item");
        }
        return sequence.items[sequence.taken++];
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    return items.empty() ? Value::undefined("the first item") : items.front();
}

Result<Value> last(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("last", arguments));
    if (value.is(Kind::sequence) && value.sequence().read_once()) {
        return template_error("a %s has no last item", value.type_name());
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    return items.empty() ? Value::undefined("the last item") : items.back();
}

Result<Value> reverse(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("reverse", arguments));
    ASSIGN_OR_RETURN(std::vector<Value> items, evaluator->iterate(value));
    std::reverse(items.begin(), items.end());
    if (!value.is(Kind::string)) {
        // If a value has no reversed(), jinja2 makes a list first and returns that.
        const bool once = value.is(Kind::sequence) && value.sequence().read_once();
        return evaluator->heap().sequence(once ? SequenceType::list : SequenceType::reversed,
                                          std::move(items));
    }
    std::string text;
    for (const Value &item : items) text += item.text();
    ASSIGN_OR_RETURN(const Value made, evaluator->heap().string(std::move(text)));
    return value.typed(made);
}

Result<Value> sort_key(Evaluator *evaluator, const Value &value, bool case_sensitive) {
    if (case_sensitive || !value.is(Kind::string)) return value;
    return evaluator->heap().string(to_lower(value.text()));
}

Result<Value> sort(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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

Result<Value> dictsort(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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

Result<Value> least(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return extreme(evaluator, value, arguments, "min", Comparison::less);
}

Result<Value> most(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return extreme(evaluator, value, arguments, "max", Comparison::greater);
}

} // namespace batchllm::jinja::filters
