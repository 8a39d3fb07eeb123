#include "text/jinja/filter_functions.h"
#include "text/jinja/filters.h"

namespace batchllm::jinja::filters {
namespace {

// A generator of the items that fill(&items) makes. jinja2 does the work when items are read; here it is
// done at once, and a failure is reported when reading gets that far.
template <typename Fill> Result<Value> generate(Evaluator *evaluator, Fill fill) {
    std::vector<Value> items;
    const Status failure = fill(&items);
    ASSIGN_OR_RETURN(const Value made,
                     evaluator->heap().sequence(SequenceType::generator, std::move(items)));
    made.sequence().failure = failure;
    return made;
}

// The filter or test that an argument names.
Result<int32_t> find_named(const Value &name, int32_t (*find)(std::string_view),
                           Status (*missing)(std::string_view)) {
    if (!name.is(Kind::string)) {
        return template_error("a filter or test is named by text, not by a %s", name.type_name());
    }
    const int32_t found = find(name.text());
    if (found < 0) return missing(name.text());
    return found;
}

// The arguments after the first `taken`.
CallArguments rest_of(const CallArguments &arguments, size_t taken) {
    CallArguments rest = arguments;
    rest.positional.erase(rest.positional.begin(),
                          rest.positional.begin() + static_cast<std::ptrdiff_t>(taken));
    return rest;
}

// The items whose test has the wanted result. If an attribute is tested, the first argument names
// it.
Result<Value> choose(Evaluator *evaluator, const Value &value, const CallArguments &arguments,
                     bool wanted, bool by_attribute, const char *name) {
    return generate(evaluator, [&](std::vector<Value> *chosen) -> Status {
        if (!value.truth()) return {};
        const size_t place = by_attribute ? 1 : 0;
        if (arguments.positional.size() < place) {
            return template_error("%s needs the name of an attribute", name);
        }
        const bool tests = arguments.positional.size() > place;
        RETURN_IF_ERROR(evaluator->charge(arguments.positional.size()));
        const CallArguments rest = tests ? rest_of(arguments, place + 1) : CallArguments();
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        int32_t test = -1;
        if (tests && !items.empty()) {
            ASSIGN_OR_RETURN(test, find_named(arguments.positional[place], find_test, no_test));
        }
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

} // namespace

Result<Value> items_of(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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

Result<Value> batch(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("batch", arguments, {"linecount", "fill_with"}));
    return generate(evaluator, [&](std::vector<Value> *rows) -> Status {
        RETURN_IF_ERROR(given.required(0).status());
        ASSIGN_OR_RETURN(const int64_t width, given.integer(0, 0));
        const Value filling = given.get(1, Value::none());
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        std::vector<Value> row;
        const auto end_row = [&]() -> Status {
            ASSIGN_OR_RETURN(const Value made,
                             evaluator->heap().sequence(SequenceType::list, std::move(row)));
            rows->push_back(made);
            row.clear();
            return {};
        };
        for (const Value &item : items) {
            RETURN_IF_ERROR(evaluator->charge(1));
            if (static_cast<int64_t>(row.size()) == width) RETURN_IF_ERROR(end_row());
            row.push_back(item);
        }
        if (row.empty()) return {};
        const auto filled = static_cast<size_t>(std::max<int64_t>(0, width));
        if (!filling.is(Kind::none) && row.size() < filled) {
            RETURN_IF_ERROR(evaluator->heap().room_for_items(filled));
            row.resize(filled, filling);
        }
        return end_row();
    });
}

Result<Value> slices(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("slice", arguments, {"slices", "fill_with"}));
    return generate(evaluator, [&](std::vector<Value> *columns) -> Status {
        RETURN_IF_ERROR(given.required(0).status());
        ASSIGN_OR_RETURN(const int64_t count, given.integer(0, 0));
        const Value filling = given.get(1, Value::none());
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        if (count == 0) return template_error("slice: no slices");
        const auto size = static_cast<int64_t>(items.size());
        auto next = items.begin();
        for (int64_t i = 0; i < count; ++i) {
            RETURN_IF_ERROR(evaluator->charge(1));
            const bool longer = i < size % count;
            const auto end = next + size / count + (longer ? 1 : 0);
            std::vector<Value> column(next, end);
            next = end;
            if (!filling.is(Kind::none) && !longer) column.push_back(filling);
            ASSIGN_OR_RETURN(const Value made,
                             evaluator->heap().sequence(SequenceType::list, std::move(column)));
            columns->push_back(made);
        }
        return {};
    });
}

Result<Value> unique(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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

Result<Value> map(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
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
        RETURN_IF_ERROR(evaluator->charge(arguments.positional.size()));
        const CallArguments rest = rest_of(arguments, 1);
        ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
        if (items.empty()) return {};
        ASSIGN_OR_RETURN(const int32_t filter,
                         find_named(arguments.positional[0], find_filter, no_filter));
        for (const Value &item : items) {
            RETURN_IF_ERROR(evaluator->charge(1));
            ASSIGN_OR_RETURN(const Value made, evaluator->filter(filter, item, rest));
            mapped->push_back(made);
        }
        return {};
    });
}

Result<Value> select(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return choose(evaluator, value, arguments, true, false, "select");
}
Result<Value> reject(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return choose(evaluator, value, arguments, false, false, "reject");
}
Result<Value> selectattr(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return choose(evaluator, value, arguments, true, true, "selectattr");
}
Result<Value> rejectattr(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    return choose(evaluator, value, arguments, false, true, "rejectattr");
}

} // namespace batchllm::jinja::filters
