// An attention case -> microseconds per launch, beside the ideal: a line of the bench's
// table.
#pragma once

#include <string>
#include <utility>

#include "attention/family.h"
#include "attention_case.h"

namespace batchllm::cuda {

class AttentionTimer {
  public:
    // only: runs the cases whose name contains it. of_type, e4m3: with keys and values of the
    // model's type, and in e4m3, one line each.
    AttentionTimer(const AttentionFamily &family, std::string only, bool of_type, bool e4m3)
        : family_(family), only_(std::move(only)), of_type_(of_type), e4m3_(e4m3) {}

    void print_header() const;
    // peer, cascade: microseconds of unshared FlashAttention-3 and of FlashInfer's cascade; 0: not
    // known.
    void time(const std::string &group, AttentionCase c, double peer = 0, double cascade = 0);
    void print_summary() const;

  private:
    void time_stored(const std::string &group, const AttentionCase &c, double peer, double cascade);

    const AttentionFamily &family_;
    std::string only_;
    bool of_type_, e4m3_;
    int cases_ = 0;
    int slower_ = 0; // cases slower than with all prefixes read together, or none
    double worst_ = 0;
    std::string worst_name_;
    int peers_ = 0, beaten_ = 0;
};

} // namespace batchllm::cuda
