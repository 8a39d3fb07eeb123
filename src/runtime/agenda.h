// Rows that wait -> a plan of them -> what is started next, in the plan's order.
//
// Owns the plan and how far it has been carried out: which group is next, which of its rows still
// wait, and which common prefixes groups to come continue. A prefix is known by its number in the
// plan from here on, until another plan replaces it (schedule/prefix_forest.h).
//
// Always: the groups before the next one have been placed, so none of their rows waits, except rows
// that a device lost since then (Intake::unplan_all). Every waiting row that the intake does not
// list as unplanned is in one group from the next one on. waiting_tokens() counts those rows'.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "runtime/cancels.h"
#include "runtime/intake.h"
#include "runtime/row_run.h"
#include "runtime/row_store.h"

namespace batchllm {

class Agenda {
  public:
    // rows: the intake's.
    Agenda(const PlanOptions &options, const RunLimits &limits, RowStore *rows)
        : options_(options), limits_(limits), rows_(*rows) {}

    // The plan for the rows that are planned next, if it fits them; else they take its groups.
    Status use(const Plan &plan);
    // Plans the intake's rows and those left of the plan so far. Strong guarantee. use_given: with
    // the plan passed to use(), which is then used up.
    Status plan(Intake *intake, bool use_given);
    // Nothing is left of the plan: its rows are unplanned again.
    void clear();
    Result<Plan> get() const;
    // The plan's advice, for people; "": none.
    std::string advice_text(const Tokenizer *tokenizer) const;
    double advised_gain() const; // in tokens
    // Whether use() was given a plan with groups.
    bool has_groups_given() const;
    // Whether any row of the plan is one of the plan passed to use().
    bool knows_rows() const { return plan_.reused_rows > 0 || plan_.known_rows > 0; }

    bool at_end() const { return next_group_ == static_cast<int64_t>(plan_.groups.size()); }
    const PlanGroup &next_group() const { return plan_.groups[static_cast<size_t>(next_group_)]; }
    // All rows of the next group have been placed. Calls passed(prefix) for each common prefix that
    // no group to come continues.
    template <typename Passed> void move_on(Passed passed);

    std::span<const PlanPrefix> prefixes() const { return plan_.prefixes; }
    int32_t length_of(int32_t prefix) const; // 0 for -1
    int32_t parent_of(int32_t prefix) const;
    // Whether some prefix continues another; if not, no two groups share anything.
    bool prefixes_nested() const { return !last_group_of_.empty(); }
    // Whether a group after the next one continues the prefix.
    bool needed_later(int32_t prefix) const;

    // A place is an index into the plan's rows. The row to be computed there, which waits; null if
    // it has been answered, or an equal row is computed instead.
    const Row *row_at(int64_t place) const;
    // Starts the row at a place: its id, and those of the equal rows that it is computed for. Empty
    // if nothing is to be computed there. Rows that were answered while they waited are released.
    std::vector<int64_t> start(int64_t place);
    // Marks the waiting rows that are named as answered, after answer(row).
    template <typename Answer> void cancel(const Cancels &cancels, Answer answer);

    // At most; a prefix counts until the first group that continues it has been placed.
    const RowTokens &waiting_tokens() const { return tokens_; }
    int64_t groups_started() const { return groups_started_; } // with a prefix, in all plans
    double plan_seconds() const { return plan_seconds_; }
    const PlanOptions &options() const { return options_; }

  private:
    struct PlannedRows {
        Plan plan;
        std::vector<int64_t> ids; // row of the plan -> id, or -1
    };
    int64_t id_at(int64_t place) const;
    std::vector<int64_t> rows_left(std::vector<int64_t> *answered) const;
    TokenRow token_row(int64_t *id) const;
    std::optional<PlannedRows> take_over(const Plan &given, const std::vector<int64_t> &unplanned,
                                         const std::vector<int64_t> &left) const;
    Result<PlannedRows> plan_rows(const std::vector<int64_t> &unplanned,
                                  const std::vector<int64_t> &left, const Plan *given) const;
    static std::vector<int64_t> last_groups_of(const Plan &plan);
    void link_equal_rows(const std::vector<std::pair<uint64_t, int64_t>> &candidates);
    int64_t prompt_tokens_of(const PlanGroup &group);

    PlanOptions options_;
    RunLimits limits_;
    RowStore &rows_;
    std::optional<Plan> given_; // from use()

    Plan plan_;
    bool planned_ = false;
    std::vector<int64_t> ids_; // row of the plan -> id, or -1
    // prefix -> the last group that continues it; empty if no prefix has a parent
    std::vector<int64_t> last_group_of_;
    int64_t next_group_ = 0;
    std::vector<char> prefix_counted_; // prefix -> its tokens are no longer in tokens_
    RowTokens tokens_;
    int64_t groups_started_ = 0;
    double plan_seconds_ = 0;
};

template <typename Passed> void Agenda::move_on(Passed passed) {
    const PlanGroup &group = next_group();
    groups_started_ += group.prefix >= 0;
    tokens_.prompt -= prompt_tokens_of(group);
    for (int32_t prefix = group.prefix; prefix >= 0 && prefixes_nested();
         prefix = parent_of(prefix)) {
        if (!needed_later(prefix)) passed(prefix);
    }
    ++next_group_;
}

template <typename Answer> void Agenda::cancel(const Cancels &cancels, Answer answer) {
    rows_.for_each([&](int64_t id, Row &row) {
        if (row.state != RowState::waiting || !cancels.name(row.tag, id)) return;
        answer(row);
        // Its memory is released when the plan reaches it.
        row.state = RowState::answered;
        tokens_.generated -= most_generated(row, limits_);
    });
}

} // namespace batchllm
