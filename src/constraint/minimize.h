// The table of a deterministic automaton -> the minimal Automaton of its language.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint/automaton.h"

namespace batchllm {

// State 0 is the start; next is kDead if there is no transition. There may be unreachable states,
// and states from which no string can be completed.
struct DfaTable {
    int32_t classes = 1;
    uint8_t class_of[256] = {};
    std::vector<int32_t> next;      // [states, classes]
    std::vector<uint8_t> accepting; // [states]

    int32_t states() const { return static_cast<int32_t>(accepting.size()); }
    int32_t add_state(bool accepts) {
        next.resize(next.size() + static_cast<size_t>(classes), Automaton::kDead);
        accepting.push_back(accepts ? 1 : 0);
        return states() - 1;
    }
    int32_t &at(int32_t state, int32_t byte_class) {
        return next[static_cast<size_t>(state) * static_cast<size_t>(classes) +
                    static_cast<size_t>(byte_class)];
    }
    int32_t at(int32_t state, int32_t byte_class) const {
        return next[static_cast<size_t>(state) * static_cast<size_t>(classes) +
                    static_cast<size_t>(byte_class)];
    }
};

class AutomatonMaker {
  public:
    static Automaton minimal(const DfaTable &table);

  private:
    static Automaton canonical(const DfaTable &table);
};

// Numbers the classes of bytes by their first byte. splits[b]: a run of equivalent bytes begins at
// b. Sets table->classes and class_of.
void set_byte_runs(const bool (&splits)[256], DfaTable *table);

} // namespace batchllm
