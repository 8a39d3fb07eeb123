// Intersections of sets.
#include <algorithm>

#include "constraint/json_schema/meaning.h"

namespace batchllm {

namespace {

constexpr size_t kMostSetPairs = 20000;        // of simple sets in one intersection
constexpr int64_t kMostSetPairsInAll = 300000; // in one constraint

template <typename T> void add_missing(std::vector<T> *to, const std::vector<T> &from) {
    for (const T &item : from) {
        if (std::find(to->begin(), to->end(), item) == to->end()) to->push_back(item);
    }
}

Status too_many() {
    return error(BATCHLLM_ERROR_UNSUPPORTED, "too many alternatives to tell apart");
}

template <typename Set, typename Same> void add_new(std::vector<Set> *sets, Set set, Same same) {
    const size_t compared = std::min<size_t>(sets->size(), 64);
    for (size_t i = 0; i < compared; ++i) {
        if (same((*sets)[i], set)) return;
    }
    sets->push_back(std::move(set));
}

} // namespace

Result<ValueSet> SchemaMeaning::intersect(const ValueSet &a, const ValueSet &b) {
    ValueSet out;
    out.null = a.null && b.null;
    out.yes = a.yes && b.yes;
    out.no = a.no && b.no;
    if (a.numbers.size() * b.numbers.size() > kMostSetPairs ||
        a.strings.size() * b.strings.size() > kMostSetPairs ||
        a.arrays.size() * b.arrays.size() > kMostSetPairs ||
        a.objects.size() * b.objects.size() > kMostSetPairs) {
        return too_many();
    }
    pairs_ += static_cast<int64_t>(a.arrays.size() * b.arrays.size() +
                                   a.objects.size() * b.objects.size());
    too_large_ |= pairs_ > kMostSetPairsInAll;
    if (too_large_) return too_many();
    for (const NumberSet &x : a.numbers) {
        for (const NumberSet &y : b.numbers) {
            auto both = batchllm::intersect(x, y);
            if (!both) {
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "a common multiple of multipleOf is too large");
            }
            if (!both->seen_empty()) {
                add_new(&out.numbers, std::move(*both), std::equal_to<NumberSet>());
            }
        }
    }
    for (const StringSet &x : a.strings) {
        for (const StringSet &y : b.strings) {
            ASSIGN_OR_RETURN(StringSet both, batchllm::intersect(x, y, budget_));
            if (!both.empty()) add_new(&out.strings, std::move(both), std::equal_to<StringSet>());
        }
    }
    for (const ArraySet &x : a.arrays) {
        for (const ArraySet &y : b.arrays) {
            ASSIGN_OR_RETURN(auto both, intersect(x, y));
            if (both) {
                add_new(&out.arrays, std::move(*both),
                        [](const ArraySet &p, const ArraySet &q) { return same(p, q); });
            }
        }
    }
    for (const ObjectSet &x : a.objects) {
        for (const ObjectSet &y : b.objects) {
            ASSIGN_OR_RETURN(auto both, intersect(x, y));
            if (both) add_uncovered(&out.objects, std::move(*both));
        }
    }
    return out;
}

// Whether everything that meets `narrow` is known to meet `wide`, judging by their schemas.
bool SchemaMeaning::implies(RequirementId narrow, RequirementId wide) const {
    if (narrow == kNothing || wide == kAnything || narrow == wide) return true;
    if (wide == kNothing) return false;
    const auto &more = numbers_.literals(narrow);
    const auto &fewer = numbers_.literals(wide);
    return std::includes(more.begin(), more.end(), fewer.begin(), fewer.end());
}

// Whether `wide` is certain to contain all of `narrow`.
bool SchemaMeaning::covers(const ObjectSet &wide, const ObjectSet &narrow) const {
    const auto has_wish = [&](const ObjectSet::Exists &wish) {
        return std::any_of(narrow.exists.begin(), narrow.exists.end(), [&](const auto &other) {
            return other.names == wish.names && implies(other.what, wish.what);
        });
    };
    if (wide.least > narrow.least ||
        !std::all_of(wide.exists.begin(), wide.exists.end(), has_wish) ||
        (wide.greatest != kUnbounded &&
         (narrow.greatest == kUnbounded || narrow.greatest > wide.greatest)) ||
        wide.all_evaluated != narrow.all_evaluated ||
        wide.evaluated_names != narrow.evaluated_names ||
        wide.evaluated_languages != narrow.evaluated_languages) {
        return false;
    }
    const bool free = wide.regions.size() == 1 && wide.regions[0].what == kAnything;
    if (!free) {
        if (wide.regions.size() != narrow.regions.size()) return false;
        for (size_t i = 0; i < wide.regions.size(); ++i) {
            if (wide.regions[i].names != narrow.regions[i].names ||
                !implies(narrow.regions[i].what, wide.regions[i].what)) {
                return false;
            }
        }
    }
    size_t i = 0, j = 0;
    while (i < wide.named.size() || j < narrow.named.size()) {
        const bool in_wide = j == narrow.named.size() ||
                             (i < wide.named.size() && wide.named[i].name <= narrow.named[j].name);
        const bool in_narrow =
            i == wide.named.size() ||
            (j < narrow.named.size() && narrow.named[j].name <= wide.named[i].name);
        const NameId name = in_wide ? wide.named[i].name : narrow.named[j].name;
        const RequirementId of_narrow = in_narrow ? narrow.named[j].what : region_of(narrow, name);
        if (!implies(of_narrow, in_wide ? wide.named[i].what : region_of(wide, name))) return false;
        if (in_wide && wide.named[i].required && !(in_narrow && narrow.named[j].required)) {
            return false;
        }
        if (in_wide) ++i;
        if (in_narrow) ++j;
    }
    return true;
}

// Leaves out sets that others cover: otherwise every keyword that repeats a requirement in another form would
// double their number.
void SchemaMeaning::add_uncovered(std::vector<ObjectSet> *sets, ObjectSet set) const {
    constexpr size_t most_compared = 100;
    const size_t compared = std::min(sets->size(), most_compared);
    for (size_t i = 0; i < compared; ++i) {
        if (covers((*sets)[i], set)) return;
    }
    if (sets->size() <= most_compared) {
        sets->erase(std::remove_if(sets->begin(), sets->end(),
                                   [&](const ObjectSet &other) { return covers(set, other); }),
                    sets->end());
    }
    sets->push_back(std::move(set));
}

Result<std::optional<ArraySet>> SchemaMeaning::intersect(const ArraySet &a, const ArraySet &b) {
    if (unconstrained(a)) return std::optional<ArraySet>(b);
    if (unconstrained(b)) return std::optional<ArraySet>(a);
    ArraySet out;
    const size_t prefix = std::max(a.prefix.size(), b.prefix.size());
    for (size_t i = 0; i < prefix; ++i) {
        const auto index = static_cast<int64_t>(i);
        out.prefix.push_back(numbers_.both(a.item(index), b.item(index)));
    }
    out.rest = numbers_.both(a.rest, b.rest);
    out.least = std::max(a.least, b.least);
    out.greatest = Automaton::smaller_bound(a.greatest, b.greatest);
    out.contains = a.contains;
    for (const ArraySet::Contains &entry : b.contains) {
        const bool known = std::any_of(
            out.contains.begin(), out.contains.end(), [&](const ArraySet::Contains &other) {
                return other.from == entry.from && other.what == entry.what &&
                       other.least == entry.least && other.greatest == entry.greatest;
            });
        if (!known) out.contains.push_back(entry);
    }
    out.unique = a.unique ? a.unique : b.unique;
    out.repeats = a.repeats ? a.repeats : b.repeats;
    out.all_evaluated = a.all_evaluated || b.all_evaluated;
    out.evaluated = std::max(a.evaluated, b.evaluated);
    out.evaluated_matches = a.evaluated_matches;
    add_missing(&out.evaluated_matches, b.evaluated_matches);
    if (!tidy(&out)) return std::optional<ArraySet>();
    return std::optional<ArraySet>(std::move(out));
}

bool SchemaMeaning::tidy(ArraySet *set) {
    for (size_t i = 0; i <= set->prefix.size(); ++i) {
        const auto index = static_cast<int64_t>(i);
        if (set->greatest != kUnbounded && set->greatest <= index) break;
        if (!seen_empty(set->item(index))) continue;
        set->greatest = index; // there is no such item
        break;
    }
    if (set->greatest != kUnbounded) {
        if (set->least > set->greatest) return false;
        if (static_cast<int64_t>(set->prefix.size()) > set->greatest) {
            set->prefix.resize(static_cast<size_t>(set->greatest));
        }
        if (static_cast<int64_t>(set->prefix.size()) == set->greatest) set->rest = kNothing;
        if (set->greatest <= 1) {
            if (set->repeats) return false;
            set->unique.reset();
        }
    }
    // Removes requirements that no item can meet; false if some item must meet one.
    for (size_t i = 0; i < set->contains.size();) {
        ArraySet::Contains &entry = set->contains[i];
        const bool out_of_reach = set->greatest != kUnbounded && entry.from >= set->greatest;
        if (out_of_reach || seen_empty(entry.what)) {
            if (entry.least > 0) return false;
            set->contains.erase(set->contains.begin() + static_cast<std::ptrdiff_t>(i));
            continue;
        }
        set->least = std::max(set->least, entry.from + entry.least);
        ++i;
    }
    if (set->repeats && set->unique) return false;
    return set->greatest == kUnbounded || set->least <= set->greatest;
}

RequirementId SchemaMeaning::region_of(const ObjectSet &set, NameId name) const {
    for (const ObjectSet::Region &region : set.regions) {
        if (numbers_.has_name(region.names, name)) return region.what;
    }
    return kNothing;
}

Result<std::optional<ObjectSet>> SchemaMeaning::intersect(const ObjectSet &a, const ObjectSet &b) {
    if (unconstrained(a)) return std::optional<ObjectSet>(b);
    if (unconstrained(b)) return std::optional<ObjectSet>(a);
    ObjectSet out;
    // Names that only b has come after all of a's names.
    int32_t after = 0;
    for (const ObjectSet::Named &named : a.named) after = std::max(after, named.place + 1);
    // Both are sorted by name.
    size_t i = 0, j = 0;
    while (i < a.named.size() || j < b.named.size()) {
        const bool from_a =
            j == b.named.size() || (i < a.named.size() && a.named[i].name <= b.named[j].name);
        const bool from_b =
            i == a.named.size() || (j < b.named.size() && b.named[j].name <= a.named[i].name);
        const NameId name = from_a ? a.named[i].name : b.named[j].name;
        const RequirementId what = numbers_.both(from_a ? a.named[i].what : region_of(a, name),
                                                 from_b ? b.named[j].what : region_of(b, name));
        const bool required = (from_a && a.named[i].required) || (from_b && b.named[j].required);
        const int32_t place = from_a ? a.named[i].place : after + b.named[j].place;
        out.named.push_back({name, what, required, place});
        if (from_a) ++i;
        if (from_b) ++j;
    }
    out.regions.clear();
    for (const ObjectSet::Region &x : a.regions) {
        for (const ObjectSet::Region &y : b.regions) {
            ASSIGN_OR_RETURN(const LanguageId names, numbers_.both(x.names, y.names, budget_));
            if (names != kNoNames) out.regions.push_back({names, numbers_.both(x.what, y.what)});
        }
    }
    out.least = std::max(a.least, b.least);
    out.greatest = Automaton::smaller_bound(a.greatest, b.greatest);
    out.count_origin = a.count_origin ? a.count_origin : b.count_origin;
    out.exists = a.exists;
    for (const ObjectSet::Exists &entry : b.exists) {
        const bool known =
            std::any_of(out.exists.begin(), out.exists.end(), [&](const ObjectSet::Exists &other) {
                return other.names == entry.names && other.what == entry.what;
            });
        if (!known) out.exists.push_back(entry);
    }
    out.all_evaluated = a.all_evaluated || b.all_evaluated;
    out.evaluated_names = a.evaluated_names;
    add_missing(&out.evaluated_names, b.evaluated_names);
    std::sort(out.evaluated_names.begin(), out.evaluated_names.end());
    out.evaluated_languages = a.evaluated_languages;
    add_missing(&out.evaluated_languages, b.evaluated_languages);
    if (!tidy(&out)) return std::optional<ObjectSet>();
    return std::optional<ObjectSet>(std::move(out));
}

bool SchemaMeaning::tidy(ObjectSet *set) {
    int64_t required = 0;
    int64_t possible = 0;
    for (ObjectSet::Named &named : set->named) {
        if (named.required) ++required;
        if (named.what == kNothing) {
            if (named.required) return false;
            continue;
        }
        if (named.required && seen_empty(named.what)) return false;
        ++possible;
    }
    const bool others = std::any_of(set->regions.begin(), set->regions.end(),
                                    [](const auto &region) { return region.what != kNothing; });
    if (set->greatest != kUnbounded && std::max(required, set->least) > set->greatest) return false;
    if (!others && possible < set->least) return false;
    for (const ObjectSet::Exists &entry : set->exists) {
        if (entry.what == kNothing || entry.names == kNoNames) return false;
    }
    return true;
}

} // namespace batchllm
