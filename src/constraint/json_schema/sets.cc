#include "constraint/json_schema/sets.h"

#include <algorithm>

namespace batchllm {

namespace {

constexpr size_t kMostCompared = 64; // simple sets that a new one is compared with

uint64_t pair_key(LanguageId a, LanguageId b) {
    return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

template <typename Set, typename Same>
void add_all(std::vector<Set> *to, std::vector<Set> from, Same same) {
    for (Set &set : from) {
        const bool known =
            to->size() <= kMostCompared &&
            std::any_of(to->begin(), to->end(), [&](const Set &other) { return same(set, other); });
        if (!known) to->push_back(std::move(set));
    }
}

} // namespace

ValueSet ValueSet::all() {
    ValueSet out;
    out.null = out.yes = out.no = true;
    out.numbers.emplace_back();
    out.strings.emplace_back();
    out.arrays.emplace_back();
    out.objects.emplace_back();
    return out;
}

bool same(const ArraySet &a, const ArraySet &b) {
    const auto same_contains = [](const ArraySet::Contains &x, const ArraySet::Contains &y) {
        return x.from == y.from && x.what == y.what && x.least == y.least &&
               x.greatest == y.greatest;
    };
    return a.prefix == b.prefix && a.rest == b.rest && a.least == b.least &&
           a.greatest == b.greatest &&
           std::equal(a.contains.begin(), a.contains.end(), b.contains.begin(), b.contains.end(),
                      same_contains) &&
           a.unique.has_value() == b.unique.has_value() &&
           a.repeats.has_value() == b.repeats.has_value() && a.all_evaluated == b.all_evaluated &&
           a.evaluated == b.evaluated && a.evaluated_matches == b.evaluated_matches;
}

bool same(const ObjectSet &a, const ObjectSet &b) {
    const auto same_exists = [](const ObjectSet::Exists &x, const ObjectSet::Exists &y) {
        return x.names == y.names && x.what == y.what;
    };
    return a.named == b.named && a.regions == b.regions && a.least == b.least &&
           a.greatest == b.greatest &&
           std::equal(a.exists.begin(), a.exists.end(), b.exists.begin(), b.exists.end(),
                      same_exists) &&
           a.all_evaluated == b.all_evaluated && a.evaluated_names == b.evaluated_names &&
           a.evaluated_languages == b.evaluated_languages;
}

bool unconstrained(const ArraySet &set) { return same(set, ArraySet()); }
bool unconstrained(const ObjectSet &set) { return same(set, ObjectSet()); }

void unite(ValueSet *a, ValueSet b) {
    a->null = a->null || b.null;
    a->yes = a->yes || b.yes;
    a->no = a->no || b.no;
    add_all(&a->numbers, std::move(b.numbers), std::equal_to<NumberSet>());
    add_all(&a->strings, std::move(b.strings), std::equal_to<StringSet>());
    add_all(&a->arrays, std::move(b.arrays),
            [](const ArraySet &x, const ArraySet &y) { return same(x, y); });
    add_all(&a->objects, std::move(b.objects),
            [](const ObjectSet &x, const ObjectSet &y) { return same(x, y); });
    // A set of all values of a kind makes the kind's other sets redundant.
    for (const NumberSet &set : a->numbers) {
        if (set.all()) {
            a->numbers = {NumberSet()};
            break;
        }
    }
    for (const StringSet &set : a->strings) {
        if (set.all()) {
            a->strings = {StringSet()};
            break;
        }
    }
    const auto plain_array = [](const ArraySet &set) {
        return set.evaluated == 0 && !set.all_evaluated && set.evaluated_matches.empty();
    };
    if (std::any_of(a->arrays.begin(), a->arrays.end(),
                    [](const auto &x) { return unconstrained(x); }) &&
        std::all_of(a->arrays.begin(), a->arrays.end(), plain_array)) {
        a->arrays = {ArraySet()};
    }
    const auto plain_object = [](const ObjectSet &set) {
        return !set.all_evaluated && set.evaluated_names.empty() && set.evaluated_languages.empty();
    };
    if (std::any_of(a->objects.begin(), a->objects.end(),
                    [](const auto &x) { return unconstrained(x); }) &&
        std::all_of(a->objects.begin(), a->objects.end(), plain_object)) {
        a->objects = {ObjectSet()};
    }
}

size_t SchemaNumbers::LiteralsHash::operator()(const std::vector<Literal> &literals) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (const Literal literal : literals) {
        hash = (hash ^ static_cast<uint32_t>(literal)) * 0xff51afd7ed558ccd;
        hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
}

SchemaNumbers::SchemaNumbers() {
    requirements_.resize(2); // kAnything; kNothing, whose literals are never read
    requirement_ids_[{}] = kAnything;
    languages_.push_back(Automaton::any_text());
    language_ids_.emplace(languages_[0].hash(), kAllNames);
}

RequirementId SchemaNumbers::requirement(std::vector<Literal> literals) {
    std::sort(literals.begin(), literals.end());
    literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
    for (size_t i = 1; i < literals.size(); ++i) {
        // A schema must both hold and not hold.
        if ((literals[i] ^ literals[i - 1]) == 1 && literals[i - 1] % 2 == 0) return kNothing;
    }
    const auto [place, fresh] =
        requirement_ids_.try_emplace(literals, static_cast<RequirementId>(requirements_.size()));
    if (fresh) requirements_.push_back(std::move(literals));
    return place->second;
}

RequirementId SchemaNumbers::both(RequirementId a, RequirementId b) {
    if (a == kNothing || b == kNothing) return kNothing;
    if (a == kAnything || a == b) return b;
    if (b == kAnything) return a;
    std::vector<Literal> all = literals(a);
    all.insert(all.end(), literals(b).begin(), literals(b).end());
    return requirement(std::move(all));
}

NameId SchemaNumbers::name(const std::string &name) {
    const auto [place, fresh] = name_ids_.try_emplace(name, static_cast<NameId>(names_.size()));
    if (fresh) names_.push_back(name);
    return place->second;
}

LanguageId SchemaNumbers::language(const Automaton &language) {
    if (language.empty()) return kNoNames;
    const auto [first, last] = language_ids_.equal_range(language.hash());
    for (auto known = first; known != last; ++known) {
        if (languages_[static_cast<size_t>(known->second)] == language) return known->second;
    }
    languages_.push_back(language);
    const LanguageId id = static_cast<LanguageId>(languages_.size() - 1);
    language_ids_.emplace(language.hash(), id);
    return id;
}

bool SchemaNumbers::has_name(LanguageId id, NameId member) const {
    if (id == kAllNames) return true;
    return id != kNoNames && language(id).matches(name(member));
}

Result<LanguageId> SchemaNumbers::both(LanguageId a, LanguageId b, Budget *budget) {
    if (a == b || b == kAllNames || a == kNoNames) return a;
    if (a == kAllNames || b == kNoNames) return b;
    if (a > b) std::swap(a, b);
    const auto known = both_languages_.find(pair_key(a, b));
    if (known != both_languages_.end()) return known->second;
    ASSIGN_OR_RETURN(const Automaton made, intersect(language(a), language(b), budget));
    const LanguageId id = language(made);
    both_languages_[pair_key(a, b)] = id;
    return id;
}

Result<LanguageId> SchemaNumbers::without(LanguageId a, LanguageId b, Budget *budget) {
    if (a == b || b == kAllNames || a == kNoNames) return kNoNames;
    if (b == kNoNames) return a;
    const auto known = without_languages_.find(pair_key(a, b));
    if (known != without_languages_.end()) return known->second;
    ASSIGN_OR_RETURN(const Automaton made, subtract(language(a), language(b), budget));
    const LanguageId id = language(made);
    without_languages_[pair_key(a, b)] = id;
    return id;
}

} // namespace batchllm
