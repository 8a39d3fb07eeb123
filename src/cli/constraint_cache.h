// Constraints as rows state them -> the library's constraints, each created once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/api.h"

namespace batchllm::cli {

// A constraint as a row or the command line states it.
struct ConstraintText {
    int32_t kind = 0; // BATCHLLM_CONSTRAINT_; 0: none
    std::string text;
    std::vector<std::string> choices;
    std::string start_after;
    bool flexible_whitespace = false;
    bool any_member_order = false;
    bool any_numbers = false;
    bool loose = false;

    bool operator==(const ConstraintText &) const = default;
    std::string key() const; // differs for different constraints
};

using SharedConstraint = std::shared_ptr<const batchllm_constraint>;

// Used by one thread at a time.
class ConstraintCache {
  public:
    // The engine's log reports what a loose schema does not enforce.
    explicit ConstraintCache(batchllm_engine *engine) : engine_(engine) {}

    // An invalid constraint fails with the same text every time.
    Result<SharedConstraint> get(const ConstraintText &wanted);

  private:
    Result<SharedConstraint> make(const ConstraintText &wanted) const;

    static constexpr size_t most_entries = 4096; // when exceeded, all are dropped; rows keep theirs
    struct Entry {
        Status status;
        SharedConstraint constraint;
    };
    batchllm_engine *engine_;
    std::unordered_map<std::string, Entry> entries_;
};

} // namespace batchllm::cli
