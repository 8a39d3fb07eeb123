// Reads type, enum, const, and keywords for numbers and strings.
#include <algorithm>

#include "base/printable.h"
#include "constraint/json_schema/format.h"
#include "constraint/json_schema/meaning.h"
#include "constraint/regex.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr size_t kMostValues = 100000; // of an enum

} // namespace

Result<ValueSet> SchemaMeaning::type(SchemaId id, bool negated, bool) {
    const JsonTree &json = *document_.at(id).find(Keyword::type);
    ValueSet in;
    ValueSet out = ValueSet::all();
    bool number = false, integer = false;
    const std::vector<JsonTree> one = {json};
    for (const JsonTree &name : json.is_array() ? json.items : one) {
        if (name.text == "null" && name.is_string()) {
            in.null = true;
            out.null = false;
        } else if (name.text == "boolean" && name.is_string()) {
            in.yes = in.no = true;
            out.yes = out.no = false;
        } else if (name.text == "string" && name.is_string()) {
            in.strings = {StringSet()};
            out.strings.clear();
        } else if (name.text == "array" && name.is_string()) {
            in.arrays = {ArraySet()};
            out.arrays.clear();
        } else if (name.text == "object" && name.is_string()) {
            in.objects = {ObjectSet()};
            out.objects.clear();
        } else if (name.text == "number" && name.is_string()) {
            number = true;
        } else if (name.text == "integer" && name.is_string()) {
            integer = true;
        } else {
            return invalid(id, Keyword::type,
                           name.is_string() ? printable(name.text) + " is no type" : "not a type");
        }
    }
    if (number || integer) {
        NumberSet set;
        if (!number) set.multiple_of = Divisor{1, 0};
        in.numbers = {set};
        out.numbers.clear();
        if (!number) {
            set = NumberSet();
            set.not_multiple_of = {Divisor{1, 0}};
            out.numbers = {set};
        }
    }
    return negated ? out : in;
}

Result<ValueSet> SchemaMeaning::numbers_only(std::vector<NumberSet> numbers, bool negated) {
    ValueSet set = negated ? ValueSet() : ValueSet::all();
    set.numbers = std::move(numbers);
    set.numbers.erase(std::remove_if(set.numbers.begin(), set.numbers.end(),
                                     [](const NumberSet &x) { return x.seen_empty(); }),
                      set.numbers.end());
    return set;
}

Result<ValueSet> SchemaMeaning::strings_only(StringSet strings, bool negated, SchemaId id,
                                             Keyword keyword) {
    if (!negated) {
        ValueSet set = ValueSet::all();
        set.strings.clear();
        if (!strings.empty()) set.strings.push_back(std::move(strings));
        return set;
    }
    auto others = complement(strings, budget_);
    if (!others.ok()) return placed(std::move(others).status(), id, keyword);
    ValueSet set;
    for (StringSet &other : *others) {
        if (!other.empty()) set.strings.push_back(std::move(other));
    }
    return set;
}

Result<ValueSet> SchemaMeaning::number_bounds(SchemaId id, bool negated, bool) {
    NumberSet set;
    std::vector<NumberSet> outside;
    for (const bool least : {true, false}) {
        const Keyword plain = least ? Keyword::minimum : Keyword::maximum;
        const Keyword strict = least ? Keyword::exclusiveMinimum : Keyword::exclusiveMaximum;
        const JsonTree *strict_json = document_.at(id).find(strict);
        const SchemaDialect dialect = document_.at(id).dialect;
        // Up to draft 4 it is a boolean that modifies the bound beside it.
        const bool old = strict_json != nullptr && strict_json->is_boolean() &&
                         (dialect == SchemaDialect::draft4 || dialect == SchemaDialect::unnamed);
        std::vector<NumberSet::Bound> bounds;
        ASSIGN_OR_RETURN(const auto value, number(id, plain));
        if (value) bounds.push_back({*value, !(old && strict_json->boolean)});
        if (!old) {
            ASSIGN_OR_RETURN(const auto strict_value, number(id, strict));
            if (strict_value) bounds.push_back({*strict_value, false});
        }
        for (const NumberSet::Bound &bound : bounds) {
            NumberSet inside, beyond;
            (least ? inside.least : inside.greatest) = bound;
            (least ? beyond.greatest : beyond.least) = {bound.value, !bound.inclusive};
            set = *batchllm::intersect(set, inside); // no divisors, so never nothing
            outside.push_back(std::move(beyond));
        }
    }
    return numbers_only(negated ? std::move(outside) : std::vector<NumberSet>{set}, negated);
}

Result<ValueSet> SchemaMeaning::multiple_of(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const auto value, number(id, Keyword::multipleOf));
    if (value->zero() || value->negative) return invalid(id, Keyword::multipleOf, "not above zero");
    const auto by = divisor(*value);
    if (!by) {
        RETURN_IF_ERROR(refuse({id, Keyword::multipleOf}, "too many digits"));
        return ValueSet::all();
    }
    NumberSet set;
    if (negated) {
        set.not_multiple_of.push_back(*by);
    } else {
        set.multiple_of = *by;
    }
    return numbers_only({set}, negated);
}

Result<ValueSet> SchemaMeaning::lengths(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const auto least, count(id, Keyword::minLength));
    ASSIGN_OR_RETURN(const auto greatest, count(id, Keyword::maxLength));
    const StringSet set{std::nullopt, least.value_or(0), greatest.value_or(Automaton::kUnbounded)};
    return strings_only(set, negated, id, least ? Keyword::minLength : Keyword::maxLength);
}

Result<Automaton> SchemaMeaning::pattern_language(SchemaId id, Keyword keyword,
                                                  const std::string &text) {
    const auto known = patterns_.find(text);
    if (known != patterns_.end()) return known->second;
    const RegexOptions options{.dialect = RegexDialect::ecma};
    auto language = compile_regex(text, options, budget_);
    if (!language.ok()) {
        return document_.fail(language.status().code(), id, keyword,
                              printable(text) + ": " + language.status().message());
    }
    patterns_.emplace(text, *language);
    return language;
}

Result<ValueSet> SchemaMeaning::pattern(SchemaId id, bool negated, bool) {
    const JsonTree &json = *document_.at(id).find(Keyword::pattern);
    if (!json.is_string()) return invalid(id, Keyword::pattern, "not a string");
    auto language = pattern_language(id, Keyword::pattern, json.text);
    if (!language.ok()) {
        RETURN_IF_ERROR(pass_over(std::move(language).status()));
        return ValueSet::all();
    }
    return strings_only({*language, 0, Automaton::kUnbounded}, negated, id, Keyword::pattern);
}

Result<ValueSet> SchemaMeaning::format(SchemaId id, bool negated, bool) {
    const JsonTree &json = *document_.at(id).find(Keyword::format);
    const FormatKind kind = json.is_string() ? format_kind(json.text) : FormatKind::unknown;
    if (!options_.formats || kind == FormatKind::unknown) {
        return negated ? ValueSet() : ValueSet::all();
    }
    if (kind == FormatKind::undecided) {
        RETURN_IF_ERROR(refuse({id, Keyword::format}, printable(json.text) + " is not decided"));
        return ValueSet::all();
    }
    if (negated && !format_is_whole(json.text)) {
        RETURN_IF_ERROR(refuse({id, Keyword::format},
                               printable(json.text) + " is not decided in what must not hold"));
        return ValueSet::all();
    }
    formats_.insert(json.text);
    return strings_only({format_automata(json.text).language, 0, Automaton::kUnbounded}, negated,
                        id, Keyword::format);
}

Result<ValueSet> SchemaMeaning::enumeration(SchemaId id, bool negated, bool) {
    const JsonTree &json = *document_.at(id).find(Keyword::enum_);
    if (!json.is_array()) return invalid(id, Keyword::enum_, "not a list");
    std::vector<const JsonTree *> values;
    for (const JsonTree &value : json.items) values.push_back(&value);
    return of_values(values, id, Keyword::enum_, negated);
}

Result<ValueSet> SchemaMeaning::constant(SchemaId id, bool negated, bool) {
    return of_values({document_.at(id).find(Keyword::const_)}, id, Keyword::const_, negated);
}

Result<ValueSet> SchemaMeaning::of_value(const JsonTree &value, SchemaId origin, bool negated) {
    return of_values({&value}, origin, Keyword::const_, negated);
}

Result<ValueSet> SchemaMeaning::of_values(const std::vector<const JsonTree *> &values,
                                          SchemaId origin, Keyword keyword, bool negated) {
    if (values.size() > kMostValues) {
        return document_.fail(BATCHLLM_ERROR_UNSUPPORTED, origin, keyword, "too many values");
    }
    ASSIGN_OR_RETURN(ValueSet set, of_scalars(values, origin, keyword, negated));
    if (negated) {
        set.arrays = {ArraySet()};
        set.objects = {ObjectSet()};
    }
    for (const JsonTree *value : values) {
        if (!value->is_array() && !value->is_object()) continue;
        ValueSet part;
        if (value->is_array()) {
            part = of_array_value(*value, origin, negated);
        } else {
            ASSIGN_OR_RETURN(part, of_object_value(*value, origin, negated));
        }
        if (negated) {
            ASSIGN_OR_RETURN(set, intersect(set, part));
        } else {
            unite(&set, std::move(part));
        }
    }
    return set;
}

Result<ValueSet> SchemaMeaning::of_scalars(const std::vector<const JsonTree *> &values,
                                           SchemaId origin, Keyword keyword, bool negated) {
    ValueSet set;
    std::vector<std::string> strings;
    std::vector<Decimal> numbers;
    for (const JsonTree *value : values) {
        switch (value->kind) {
        case JsonTree::Kind::null:
            set.null = true;
            break;
        case JsonTree::Kind::boolean:
            (value->boolean ? set.yes : set.no) = true;
            break;
        case JsonTree::Kind::string:
            strings.push_back(value->text);
            break;
        case JsonTree::Kind::number: {
            auto number = decimal(value->text);
            if (!number) {
                return document_.fail(BATCHLLM_ERROR_UNSUPPORTED, origin, keyword,
                                      printable(value->text) +
                                          " is too large or too small a number");
            }
            numbers.push_back(std::move(*number));
            break;
        }
        default:
            break;
        }
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    auto language = strings.size() == 1 ? Result<Automaton>(Automaton::literal(strings[0]))
                                        : Automaton::strings(std::move(strings), budget_);
    if (!language.ok()) return placed(std::move(language).status(), origin, keyword);
    if (negated) {
        set.null = !set.null;
        set.yes = !set.yes;
        set.no = !set.no;
        // The gap between one number and the next.
        NumberSet gap;
        for (const Decimal &number : numbers) {
            gap.greatest = NumberSet::Bound{number, false};
            set.numbers.push_back(gap);
            gap.least = gap.greatest;
        }
        gap.greatest.reset();
        set.numbers.push_back(gap);
        if (language->empty()) {
            set.strings = {StringSet()};
            return set;
        }
        ASSIGN_OR_RETURN(ValueSet others, strings_only({*language, 0, Automaton::kUnbounded}, true,
                                                       origin, keyword));
        set.strings = std::move(others.strings);
        return set;
    }
    for (const Decimal &number : numbers) {
        NumberSet one;
        one.least = one.greatest = NumberSet::Bound{number, true};
        set.numbers.push_back(std::move(one));
    }
    if (!language->empty()) set.strings.push_back({*language, 0, Automaton::kUnbounded});
    return set;
}

// Members and items of a value become separate schemas that allow exactly that value.
ValueSet SchemaMeaning::of_array_value(const JsonTree &value, SchemaId origin, bool negated) {
    const auto literal = [&](const JsonTree &item) {
        const auto [place, fresh] = value_schemas_.try_emplace(&item, -1);
        if (fresh) place->second = document_.make_value(&item, origin);
        return numbers_.requirement({2 * place->second + (negated ? 1 : 0)});
    };
    const auto length = static_cast<int64_t>(value.items.size());
    ValueSet out = negated ? ValueSet::all() : ValueSet();
    out.arrays.clear();
    if (!negated) {
        ArraySet set;
        for (const JsonTree &item : value.items) set.prefix.push_back(literal(item));
        set.rest = kNothing;
        set.least = set.greatest = length;
        out.arrays.push_back(std::move(set));
        return out;
    }
    ArraySet longer;
    longer.least = length + 1;
    out.arrays.push_back(longer);
    if (length > 0) {
        ArraySet shorter;
        shorter.greatest = length - 1;
        if (shorter.greatest == 0) shorter.rest = kNothing;
        out.arrays.push_back(shorter);
    }
    for (int64_t i = 0; i < length; ++i) {
        ArraySet other;
        other.prefix.assign(static_cast<size_t>(i), kAnything);
        other.prefix.push_back(literal(value.items[static_cast<size_t>(i)]));
        other.least = i + 1;
        out.arrays.push_back(std::move(other));
    }
    return out;
}

Result<ValueSet> SchemaMeaning::of_object_value(const JsonTree &value, SchemaId origin,
                                                bool negated) {
    ValueSet out = negated ? ValueSet::all() : ValueSet();
    out.objects.clear();
    ObjectSet whole;
    for (const auto &[key, member] : value.members) {
        const auto [place, fresh] = value_schemas_.try_emplace(&member, -1);
        if (fresh) place->second = document_.make_value(&member, origin);
        const RequirementId what = numbers_.requirement({2 * place->second + (negated ? 1 : 0)});
        const NameId name = numbers_.name(key);
        whole.named.push_back({name, what, true, static_cast<int32_t>(whole.named.size())});
        if (negated) {
            ObjectSet absent, other;
            absent.named.push_back({name, kNothing, false});
            other.named.push_back({name, what, true});
            out.objects.push_back(std::move(absent));
            out.objects.push_back(std::move(other));
        }
    }
    if (negated) {
        std::vector<std::string> names;
        for (const auto &member : value.members) names.push_back(member.name);
        ASSIGN_OR_RETURN(const Automaton known, Automaton::strings(std::move(names), budget_));
        ASSIGN_OR_RETURN(const Automaton others, complement(known, budget_));
        ObjectSet larger;
        larger.exists.push_back({numbers_.language(others), kAnything, {origin, Keyword::const_}});
        out.objects.push_back(std::move(larger));
        return out;
    }
    std::sort(whole.named.begin(), whole.named.end(),
              [](const auto &a, const auto &b) { return a.name < b.name; });
    whole.regions = {{kAllNames, kNothing}};
    out.objects.push_back(std::move(whole));
    return out;
}

} // namespace batchllm
