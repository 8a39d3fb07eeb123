// The handle of a constraint: batchllm.h's batchllm_constraint.
#pragma once

#include <memory>
#include <string>

#include "batchllm.h"
#include "constraint/constraint.h"

struct batchllm_constraint {
    std::shared_ptr<const batchllm::Constraint> constraint;
    std::string warnings; // one line each
};
