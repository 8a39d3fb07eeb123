// The handle of an engine: batchllm.h's batchllm_engine.
#pragma once

#include <memory>

#include "runtime/engine.h"

struct batchllm_engine {
    std::unique_ptr<batchllm::Engine> engine;
};
