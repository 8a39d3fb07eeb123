// What batchllm.h's batchllm_engine is.
#pragma once

#include <memory>

#include "runtime/engine.h"

struct batchllm_engine {
    std::unique_ptr<batchllm::Engine> engine;
};
