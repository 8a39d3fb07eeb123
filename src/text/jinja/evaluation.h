// Shared by evaluator.cc, expressions.cc and statements.cc: where an error happened, and how deep
// the evaluation is.
#pragma once

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

// Adds the line of the error, unless it already has one.
Status at_line(Status status, int32_t line);

// One level of evaluation. A limit on the levels bounds the stack.
class Evaluator::Deeper {
  public:
    explicit Deeper(Evaluator *evaluator) : evaluator_(evaluator) { ++evaluator_->depth_; }
    ~Deeper() { --evaluator_->depth_; }
    Deeper(const Deeper &) = delete;
    Deeper &operator=(const Deeper &) = delete;

    Status check() const {
        if (evaluator_->depth_ > evaluator_->limits_.depth) {
            return template_error("the template's macros and expressions nest too deeply");
        }
        return evaluator_->charge(1);
    }

  private:
    Evaluator *evaluator_;
};

} // namespace batchllm::jinja
