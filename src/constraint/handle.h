// What batchllm.h's batchllm_constraint is.
#pragma once

#include <memory>
#include <string>

#include "batchllm.h"
#include "constraint/constraint.h"

struct batchllm_constraint {
    std::shared_ptr<const batchllm::Constraint> constraint;
    std::string warnings; // a line each
};
