// Minimisation by refining a partition of the states and one of the transitions in turn (Valmari and
// Lehtinen, "Efficient minimization of DFAs with partial transition functions", STACS 2008): takes
// O(m log n) for m transitions, not counting dead ones.
#include "constraint/minimize.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "constraint/index.h"

namespace batchllm {
namespace {

constexpr int32_t kDead = Automaton::kDead;

// Sets of 0 .. n-1, split by marking elements.
class Partition {
  public:
    explicit Partition(int32_t n)
        : elements_(at(n)), place_(at(n)), set_of_(at(n), 0), first_(1, 0), end_(1, n),
          marked_(1, 0) {
        std::iota(elements_.begin(), elements_.end(), 0);
        std::iota(place_.begin(), place_.end(), 0);
    }
    // One set for each label.
    Partition(const std::vector<int32_t> &labels, int32_t label_count)
        : Partition(static_cast<int32_t>(labels.size())) {
        std::vector<int32_t> starts(at(label_count) + 1, 0);
        for (const int32_t label : labels) ++starts[at(label) + 1];
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        first_.clear();
        end_.clear();
        std::vector<int32_t> set_of_label(at(label_count), -1);
        for (int32_t label = 0; label < label_count; ++label) {
            if (starts[at(label)] == starts[at(label) + 1]) continue;
            set_of_label[at(label)] = static_cast<int32_t>(first_.size());
            first_.push_back(starts[at(label)]);
            end_.push_back(starts[at(label) + 1]);
        }
        marked_.assign(first_.size(), 0);
        for (size_t i = 0; i < labels.size(); ++i) {
            const int32_t place = starts[at(labels[i])]++;
            elements_[at(place)] = static_cast<int32_t>(i);
            place_[i] = place;
            set_of_[i] = set_of_label[at(labels[i])];
        }
    }

    int32_t sets() const { return static_cast<int32_t>(first_.size()); }
    int32_t set_of(int32_t element) const { return set_of_[at(element)]; }
    int32_t first(int32_t set) const { return first_[at(set)]; }
    int32_t end(int32_t set) const { return end_[at(set)]; }
    int32_t element(int32_t place) const { return elements_[at(place)]; }

    void mark(int32_t element) {
        const int32_t set = set_of_[at(element)];
        const int32_t place = place_[at(element)];
        const int32_t target = first_[at(set)] + marked_[at(set)];
        if (place < target) return;
        const int32_t other = elements_[at(target)];
        std::swap(elements_[at(place)], elements_[at(target)]);
        place_[at(other)] = place;
        place_[at(element)] = target;
        if (marked_[at(set)]++ == 0) touched_.push_back(set);
    }
    // Splits every set with marked elements; the smaller part becomes a new set.
    void split() {
        for (const int32_t set : touched_) {
            const int32_t middle = first_[at(set)] + marked_[at(set)];
            marked_[at(set)] = 0;
            if (middle == end_[at(set)]) continue;
            const int32_t fresh = sets();
            if (middle - first_[at(set)] <= end_[at(set)] - middle) {
                first_.push_back(first_[at(set)]);
                end_.push_back(middle);
                first_[at(set)] = middle;
            } else {
                first_.push_back(middle);
                end_.push_back(end_[at(set)]);
                end_[at(set)] = middle;
            }
            marked_.push_back(0);
            for (int32_t place = first_.back(); place < end_.back(); ++place)
                set_of_[at(elements_[at(place)])] = fresh;
        }
        touched_.clear();
    }

  private:
    std::vector<int32_t> elements_; // those of one set are adjacent, marked ones first
    std::vector<int32_t> place_;    // the index of an element in elements_
    std::vector<int32_t> set_of_;
    std::vector<int32_t> first_; // [sets]
    std::vector<int32_t> end_;   // [sets]
    std::vector<int32_t> marked_;
    std::vector<int32_t> touched_;
};

// Transitions as columns.
struct Transitions {
    std::vector<int32_t> from, label, to;
    std::vector<int32_t> into_first; // [states + 1] into `into`
    std::vector<int32_t> into;       // transitions by target

    void index_targets(int32_t states) {
        into_first.assign(at(states) + 1, 0);
        for (const int32_t target : to) ++into_first[at(target) + 1];
        std::partial_sum(into_first.begin(), into_first.end(), into_first.begin());
        into.resize(to.size());
        std::vector<int32_t> place(into_first.begin(), into_first.end() - 1);
        for (size_t i = 0; i < to.size(); ++i)
            into[at(place[at(to[i])]++)] = static_cast<int32_t>(i);
    }
};

Transitions transitions_of(const DfaTable &table) {
    Transitions found;
    for (int32_t state = 0; state < table.states(); ++state) {
        for (int32_t c = 0; c < table.classes; ++c) {
            const int32_t to = table.at(state, c);
            if (to == kDead) continue;
            found.from.push_back(state);
            found.label.push_back(c);
            found.to.push_back(to);
        }
    }
    found.index_targets(table.states());
    return found;
}

// The table reduced to states that can be reached and that lead to an accepting state, renumbered
// with the start first. It is empty if the start leads to none.
DfaTable trimmed(const DfaTable &table) {
    const int32_t n = table.states();
    std::vector<uint8_t> live(at(n), 0);
    std::vector<int32_t> queue;
    const Transitions transitions = transitions_of(table);
    for (int32_t state = 0; state < n; ++state) {
        if (!table.accepting[at(state)]) continue;
        live[at(state)] = 1;
        queue.push_back(state);
    }
    for (size_t i = 0; i < queue.size(); ++i) {
        const int32_t state = queue[i];
        for (int32_t t = transitions.into_first[at(state)];
             t < transitions.into_first[at(state) + 1]; ++t) {
            const int32_t from = transitions.from[at(transitions.into[at(t)])];
            if (live[at(from)]) continue;
            live[at(from)] = 1;
            queue.push_back(from);
        }
    }
    DfaTable kept;
    kept.classes = table.classes;
    std::copy(std::begin(table.class_of), std::end(table.class_of), std::begin(kept.class_of));
    if (n == 0 || !live[0]) return kept;
    std::vector<int32_t> number(at(n), kDead);
    queue.assign(1, 0);
    number[0] = 0;
    for (size_t i = 0; i < queue.size(); ++i) {
        const int32_t state = queue[i];
        const int32_t here = kept.add_state(table.accepting[at(state)] != 0);
        for (int32_t c = 0; c < table.classes; ++c) {
            const int32_t to = table.at(state, c);
            if (to == kDead || !live[at(to)]) continue;
            if (number[at(to)] == kDead) {
                number[at(to)] = static_cast<int32_t>(queue.size());
                queue.push_back(to);
            }
            kept.at(here, c) = number[at(to)];
        }
    }
    return kept;
}

// Merges states that no string distinguishes.
DfaTable merged(const DfaTable &table) {
    const Transitions transitions = transitions_of(table);
    Partition blocks(table.states());
    for (int32_t state = 0; state < table.states(); ++state)
        if (table.accepting[at(state)]) blocks.mark(state);
    blocks.split();
    Partition cords(transitions.label, table.classes);
    int32_t block = 1;
    for (int32_t cord = 0; cord < cords.sets(); ++cord) {
        for (int32_t i = cords.first(cord); i < cords.end(cord); ++i)
            blocks.mark(transitions.from[at(cords.element(i))]);
        blocks.split();
        for (; block < blocks.sets(); ++block) {
            for (int32_t i = blocks.first(block); i < blocks.end(block); ++i) {
                const int32_t state = blocks.element(i);
                for (int32_t t = transitions.into_first[at(state)];
                     t < transitions.into_first[at(state) + 1]; ++t)
                    cords.mark(transitions.into[at(t)]);
            }
            cords.split();
        }
    }
    if (blocks.sets() == table.states()) return table;
    // The start's block becomes state 0.
    const int32_t start = blocks.set_of(0);
    const auto number = [&](int32_t set) { return set == start ? 0 : set == 0 ? start : set; };
    DfaTable result;
    result.classes = table.classes;
    std::copy(std::begin(table.class_of), std::end(table.class_of), std::begin(result.class_of));
    result.next.assign(at(blocks.sets()) * at(table.classes), kDead);
    result.accepting.assign(at(blocks.sets()), 0);
    for (int32_t set = 0; set < blocks.sets(); ++set) {
        const int32_t state = blocks.element(blocks.first(set));
        result.accepting[at(number(set))] = table.accepting[at(state)];
        for (int32_t c = 0; c < table.classes; ++c) {
            const int32_t to = table.at(state, c);
            if (to != kDead) result.at(number(set), c) = number(blocks.set_of(to));
        }
    }
    return result;
}

uint64_t mixed(uint64_t hash, uint64_t value) {
    hash ^= value + 0x9E3779B97F4A7C15U + (hash << 6) + (hash >> 2);
    return hash * 0xFF51AFD7ED558CCDU;
}

// Maps each class to the first of those that every state treats alike.
std::vector<int32_t> equal_classes(const DfaTable &table) {
    std::vector<uint64_t> hashes(at(table.classes), 0);
    for (int32_t state = 0; state < table.states(); ++state)
        for (int32_t c = 0; c < table.classes; ++c)
            hashes[at(c)] = mixed(hashes[at(c)], static_cast<uint64_t>(table.at(state, c)));
    const auto equal = [&](int32_t a, int32_t b) {
        for (int32_t state = 0; state < table.states(); ++state)
            if (table.at(state, a) != table.at(state, b)) return false;
        return true;
    };
    std::vector<int32_t> same(at(table.classes));
    for (int32_t c = 0; c < table.classes; ++c) {
        same[at(c)] = c;
        for (int32_t earlier = 0; earlier < c; ++earlier) {
            if (same[at(earlier)] != earlier || hashes[at(earlier)] != hashes[at(c)]) continue;
            if (!equal(earlier, c)) continue;
            same[at(c)] = earlier;
            break;
        }
    }
    return same;
}

} // namespace

void set_byte_runs(const bool (&splits)[256], DfaTable *table) {
    int32_t c = 0;
    for (int32_t byte = 0; byte < 256; ++byte) {
        if (byte > 0 && splits[byte]) ++c;
        table->class_of[byte] = static_cast<uint8_t>(c);
    }
    table->classes = c + 1;
}

// Numbers classes by their first byte and states breadth first: one table for one language.
Automaton AutomatonMaker::canonical(const DfaTable &table) {
    auto tables = std::make_shared<Automaton::Tables>();
    const std::vector<int32_t> same = equal_classes(table);
    std::vector<int32_t> class_number(at(table.classes), -1);
    std::vector<int32_t> old_class;
    for (int32_t byte = 0; byte < 256; ++byte) {
        const int32_t c = same[table.class_of[byte]];
        if (class_number[at(c)] < 0) {
            class_number[at(c)] = static_cast<int32_t>(old_class.size());
            old_class.push_back(c);
        }
        tables->class_of[byte] = static_cast<uint8_t>(class_number[at(c)]);
    }
    tables->classes = static_cast<int32_t>(old_class.size());
    std::vector<int32_t> number(at(table.states()), kDead);
    std::vector<int32_t> queue(1, 0);
    number[0] = 0;
    tables->next.reserve(at(table.states()) * old_class.size());
    tables->accepting.reserve(at(table.states()));
    for (size_t i = 0; i < queue.size(); ++i) {
        const int32_t state = queue[i];
        tables->accepting.push_back(table.accepting[at(state)]);
        for (const int32_t c : old_class) {
            const int32_t to = table.at(state, c);
            if (to != kDead && number[at(to)] == kDead) {
                number[at(to)] = static_cast<int32_t>(queue.size());
                queue.push_back(to);
            }
            tables->next.push_back(to == kDead ? kDead : number[at(to)]);
        }
    }
    uint64_t hash = 0;
    for (const uint8_t c : tables->class_of) hash = mixed(hash, c);
    for (const int32_t to : tables->next) hash = mixed(hash, static_cast<uint64_t>(to));
    for (const uint8_t accepts : tables->accepting) hash = mixed(hash, accepts);
    tables->hash = hash;
    Automaton automaton;
    automaton.tables_ = std::move(tables);
    return automaton;
}

Automaton AutomatonMaker::minimal(const DfaTable &table) {
    const DfaTable kept = trimmed(table);
    if (kept.states() == 0) return {};
    return canonical(merged(kept));
}

} // namespace batchllm
