#include "constraint/json_schema/plan.h"

#include <algorithm>

namespace batchllm {

namespace {

constexpr size_t kMostRequirements = 50000;
constexpr int64_t kMostSpread = 64; // names of a language that are written out

} // namespace

void SchemaPlanner::need(RequirementId id) {
    if (id == kAnything || id == kNothing || plans_.count(id) > 0) return;
    plans_[id];
    order_.push_back(id);
}

Status SchemaPlanner::plan(RequirementId root) {
    need(root);
    for (size_t i = 0; i < order_.size(); ++i) {
        if (order_.size() > kMostRequirements) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "schema: too many requirements");
        }
        RETURN_IF_ERROR(add(order_[i]));
    }
    // Finds what can be met, from the leaves up; endless recursion cannot be met.
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = order_.size(); i > 0; --i) {
            ValuePlan &plan = plans_[order_[i - 1]];
            if (!plan.possible && find_possible(&plan)) {
                plan.possible = true;
                changed = true;
            }
        }
    }
    for (const RequirementId id : order_) {
        ValuePlan &plan = plans_[id];
        const auto no_object = [&](const ObjectPlan &x) { return !possible_object(x); };
        const auto no_array = [&](const ArrayPlan &x) { return !possible_array(x); };
        plan.objects.erase(std::remove_if(plan.objects.begin(), plan.objects.end(), no_object),
                           plan.objects.end());
        plan.arrays.erase(std::remove_if(plan.arrays.begin(), plan.arrays.end(), no_array),
                          plan.arrays.end());
        for (ObjectPlan &object : plan.objects) keep_possible(&object);
        for (ArrayPlan &array : plan.arrays) keep_possible(&array);
    }
    return Status();
}

Status SchemaPlanner::add(RequirementId id) {
    ASSIGN_OR_RETURN(const ValueSet *set, meaning_.set_of(id));
    std::vector<ObjectPlan> objects;
    std::vector<ArrayPlan> arrays;
    for (const ObjectSet &object : set->objects) RETURN_IF_ERROR(add_object(object, &objects));
    for (const ArraySet &array : set->arrays) RETURN_IF_ERROR(add_array(array, &arrays));
    ValuePlan &plan = plans_[id];
    plan.set = set;
    plan.objects = std::move(objects);
    plan.arrays = std::move(arrays);
    return Status();
}

// Each requirement of "some member that .." is met by one of the named members or by a free one.
// There is one set for each way.
Result<std::vector<SchemaPlanner::Way>> SchemaPlanner::without_exists(ObjectSet set) {
    SchemaNumbers &numbers = meaning_.numbers();
    std::vector<Way> sets = {{std::move(set), false}};
    while (!sets.empty() && !sets[0].set.exists.empty()) {
        const SchemaOrigin origin = sets[0].set.exists.back().origin;
        std::vector<Way> next;
        for (auto &[whole, one_free] : sets) {
            const ObjectSet::Exists wish = whole.exists.back();
            RETURN_IF_ERROR(spread_all_but(wish.names, &whole));
            for (size_t i = 0; i < whole.named.size(); ++i) {
                if (!numbers.has_name(wish.names, whole.named[i].name)) continue;
                ObjectSet way = whole;
                way.exists.pop_back();
                way.named[i].required = true;
                way.named[i].what = numbers.both(way.named[i].what, wish.what);
                if (meaning_.tidy(&way)) next.push_back({std::move(way), one_free});
            }
            bool may_be_free = false;
            bool only_these = true; // every free member meets the requirement
            for (const ObjectSet::Region &region : whole.regions) {
                if (region.what == kNothing) continue;
                ASSIGN_OR_RETURN(const LanguageId in,
                                 numbers.both(region.names, wish.names, meaning_.budget()));
                const RequirementId both = numbers.both(region.what, wish.what);
                const bool can = in != kNoNames && !meaning_.seen_empty(both);
                may_be_free = may_be_free || can;
                ASSIGN_OR_RETURN(const bool others, has_free(region.names, wish.names, whole));
                only_these = only_these && can && !others &&
                             (both == region.what ||
                              meaning_.seen_empty(numbers.both(region.what, negated(wish.what))));
            }
            if (!may_be_free) continue;
            if (!only_these) {
                RETURN_IF_ERROR(meaning_.refuse(
                    wish.origin, "that some member breaks it can not be asked of free names"));
                ObjectSet wider = whole;
                wider.exists.pop_back();
                next.push_back({std::move(wider), one_free});
                continue;
            }
            ObjectSet way = whole;
            way.exists.pop_back();
            next.push_back({std::move(way), true});
        }
        sets = std::move(next);
        if (sets.size() > 1000) {
            return meaning_.document().fail(BATCHLLM_ERROR_UNSUPPORTED, origin.schema,
                                            origin.keyword, "too many members that may break it");
        }
    }
    return sets;
}

// If a language has few names, they become named members. False if it has many.
bool SchemaPlanner::spread(LanguageId names, RequirementId what, ObjectSet *set) {
    SchemaNumbers &numbers = meaning_.numbers();
    const Automaton &language = numbers.language(names);
    if (!language.finite()) return false;
    const auto all = language.enumerate(kMostSpread);
    if (!all.ok()) return false;
    int32_t place = 0;
    for (const ObjectSet::Named &named : set->named) place = std::max(place, named.place + 1);
    for (const std::string &name : *all) {
        const NameId id = numbers.name(name);
        const auto at = std::lower_bound(
            set->named.begin(), set->named.end(), id,
            [](const ObjectSet::Named &named, NameId other) { return named.name < other; });
        if (at != set->named.end() && at->name == id) continue;
        set->named.insert(at, {id, what, false, place++});
    }
    return true;
}

// Turns them into named members, so that they can be counted.
void SchemaPlanner::spread_finite_regions(ObjectSet *set) {
    for (ObjectSet::Region &region : set->regions) {
        if (region.what == kNothing || region.names == kAllNames) continue;
        if (spread(region.names, region.what, set)) region.what = kNothing;
    }
}

// Names the few free names that are not in the language, so that all other free names are in it.
Status SchemaPlanner::spread_all_but(LanguageId names, ObjectSet *set) {
    for (const ObjectSet::Region &region : set->regions) {
        if (region.what == kNothing) continue;
        ASSIGN_OR_RETURN(const LanguageId others,
                         meaning_.numbers().without(region.names, names, meaning_.budget()));
        if (others != kNoNames && others != region.names) spread(others, region.what, set);
    }
    return Status();
}

// The free names are those of each region that are not named.
void SchemaPlanner::add_free(const ObjectSet &set, ObjectPlan *plan) {
    SchemaNumbers &numbers = meaning_.numbers();
    for (const ObjectSet::Region &region : set.regions) {
        if (region.what == kNothing || meaning_.seen_empty(region.what)) continue;
        const Automaton &language = numbers.language(region.names);
        if (language.finite()) {
            const auto names = language.enumerate(static_cast<int64_t>(plan->taken.size()));
            const bool none_left =
                names.ok() &&
                std::all_of(names->begin(), names->end(), [&](const std::string &name) {
                    return std::find(plan->taken.begin(), plan->taken.end(), name) !=
                           plan->taken.end();
                });
            if (none_left) continue;
        }
        need(region.what);
        plan->regions.push_back(region);
    }
}

// Whether the first language has a name that is neither in the second nor named.
Result<bool> SchemaPlanner::has_free(LanguageId names, LanguageId others, const ObjectSet &set) {
    SchemaNumbers &numbers = meaning_.numbers();
    ASSIGN_OR_RETURN(const LanguageId left, numbers.without(names, others, meaning_.budget()));
    if (left == kNoNames) return false;
    const Automaton &language = numbers.language(left);
    if (!language.finite()) return true;
    const auto all = language.enumerate(kMostSpread);
    if (!all.ok()) return true;
    return !std::all_of(all->begin(), all->end(), [&](const std::string &name) {
        const NameId id = numbers.name(name);
        return std::any_of(set.named.begin(), set.named.end(),
                           [&](const ObjectSet::Named &named) { return named.name == id; });
    });
}

Status SchemaPlanner::add_object(const ObjectSet &whole, std::vector<ObjectPlan> *out) {
    const bool wishes = !whole.exists.empty();
    ObjectSet set_of_names = whole;
    const auto required_of = [](const ObjectSet &set) {
        return std::count_if(set.named.begin(), set.named.end(),
                             [](const auto &named) { return named.required; });
    };
    if (wishes || whole.least > required_of(whole) + 1) {
        spread_finite_regions(&set_of_names);
    }
    ASSIGN_OR_RETURN(const std::vector<Way> ways, without_exists(std::move(set_of_names)));
    for (const auto &[set, one_free] : ways) {
        ObjectPlan plan;
        plan.one_free = one_free;
        plan.least = set.least;
        plan.greatest = set.greatest;
        for (const ObjectSet::Named &named : set.named) {
            plan.taken.push_back(meaning_.numbers().name(named.name));
            if (named.what == kNothing) continue;
            need(named.what);
            plan.named.push_back(named);
        }
        add_free(set, &plan);
        const int64_t required = required_of(set);
        if (plan.least <= required) plan.least = 0;
        if (plan.least > required + 1 && !plan.regions.empty()) {
            // The same free name might occur twice, and be counted twice.
            const SchemaOrigin origin =
                set.count_origin.value_or(SchemaOrigin{0, SchemaKeyword::minProperties});
            RETURN_IF_ERROR(meaning_.refuse(
                origin, "more members than are required, with names that are free"));
        }
        out->push_back(std::move(plan));
    }
    return Status();
}

RequirementId SchemaPlanner::negated(RequirementId id) {
    if (id == kAnything) return kNothing;
    if (id == kNothing) return kAnything;
    // Each of these requirements consists of one schema.
    const auto &literals = meaning_.numbers().literals(id);
    return literals.size() == 1 ? meaning_.numbers().requirement({literals[0] ^ 1}) : kAnything;
}

bool SchemaPlanner::find_possible(ValuePlan *plan) {
    const ValueSet &set = *plan->set;
    if (set.null || set.yes || set.no || !set.numbers.empty() || !set.strings.empty()) return true;
    return std::any_of(plan->objects.begin(), plan->objects.end(),
                       [&](const ObjectPlan &x) { return possible_object(x); }) ||
           std::any_of(plan->arrays.begin(), plan->arrays.end(),
                       [&](const ArrayPlan &x) { return possible_array(x); });
}

bool SchemaPlanner::possible_object(const ObjectPlan &plan) const {
    int64_t count = 0;
    for (const ObjectSet::Named &named : plan.named) {
        if (possible(named.what)) {
            ++count;
        } else if (named.required) {
            return false;
        }
    }
    const bool free = std::any_of(plan.regions.begin(), plan.regions.end(),
                                  [&](const auto &region) { return possible(region.what); });
    if (plan.one_free && !free) return false;
    return free || count >= plan.least;
}

void SchemaPlanner::keep_possible(ObjectPlan *plan) const {
    const auto not_possible = [&](const auto &part) { return !possible(part.what); };
    plan->named.erase(std::remove_if(plan->named.begin(), plan->named.end(), not_possible),
                      plan->named.end());
    plan->regions.erase(std::remove_if(plan->regions.begin(), plan->regions.end(), not_possible),
                        plan->regions.end());
}

} // namespace batchllm
