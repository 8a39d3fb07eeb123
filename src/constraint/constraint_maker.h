// Specifications -> constraints, for all rows of an engine.
//
// Refusing a constraint as too large takes up to half a second, so a megabyte of expressions could
// cost an hour. The refusals of an engine therefore share an allowance; once it is spent, each
// constraint may take only a thirty-second part of its budget. The same sequence of constraints has
// the same outcomes on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "constraint/specification.h"

namespace batchllm {

// Thread-safe. Constraints are made outside of the lock.
class ConstraintMaker {
  public:
    // As batchllm::make_constraint. A specification that was refused as too large is refused again
    // at once.
    Result<SpecifiedConstraint> make(const ConstraintSpecification &specification,
                                     std::shared_ptr<const TokenVocabulary> vocabulary);

  private:
    static constexpr int64_t kAllowed = 32;   // refusals at full cost,
    static constexpr int64_t kAsked = 64;     // and one more for each of so many constraints
    static constexpr int64_t kPart = 32;      // then each has this part of its budget
    static constexpr size_t kMostKept = 4096; // refused specifications, of at most
    static constexpr size_t kMostKeptBytes = size_t{1} << 16;

    std::mutex mutex_;
    int64_t asked_ = 0;
    int64_t refused_ = 0;
    std::unordered_map<std::string, Status> verdicts_; // by everything that was specified
};

} // namespace batchllm
