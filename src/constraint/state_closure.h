// A stack, or a place with a stack below it -> the places in terminals that can be reached without
// reading a byte, and whether the text may end there. StateGraph builds its states from these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "constraint/hash_mix.h"
#include "constraint/state_graph.h"

namespace batchllm {

class StateGraph::Closure {
  public:
    // Adds stacks to the graph; the caller must hold its lock.
    explicit Closure(StateGraph *graph) : graph_(*graph), code_(*graph->code_) {}

    // `fresh`: the top of the stack was pushed within this closure. If such a frame is popped at
    // once, it has matched the empty string, and the code that pushed it has already handled that.
    void expand(int32_t place, int32_t count, int32_t stack, bool fresh);
    void leave(int32_t stack);

    std::vector<GraphState::Config> configs; // neither sorted nor merged
    bool complete = false;

  private:
    struct Item {
        int32_t place;
        int32_t count;
        int32_t stack;
        bool fresh;
        bool operator==(const Item &) const = default;
    };
    struct ItemHash {
        size_t operator()(const Item &item) const {
            return hash_mix(hash_mix(static_cast<uint32_t>(item.place) * 2U + item.fresh,
                                     static_cast<uint32_t>(item.count)),
                            static_cast<uint32_t>(item.stack));
        }
    };
    static constexpr size_t kFew = 24;

    bool add(const Item &item);
    void enter(int32_t body, int32_t place, int32_t count, const Item &from);
    void visit(const Item &item);
    void visit_terminal(const Item &item, const GrammarCode::Operation &operation);
    void visit_repeat(const Item &item, const GrammarCode::Operation &operation);
    void visit_members(const Item &item, const GrammarCode::Operation &operation);

    StateGraph &graph_;
    const GrammarCode &code_;
    std::vector<Item> open_;
    std::vector<Item> met_list_;
    std::unordered_map<Item, bool, ItemHash> met_;
};

} // namespace batchllm
