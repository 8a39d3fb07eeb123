// The supported families: each maps its config.json to a description, in a file of its own.
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "model/families/table.h"
#include "model/model.h"

namespace batchllm {

struct Family {
    const char *model_type;
    const char *class_name; // in "architectures", of the model that generates (heads.h: the others)
    // From an empty model to all but kv_groups.
    Status (*describe)(const JsonValue &config, Model *model);
};

std::span<const Family> known_families();

// Status describe_llama(const JsonValue &config, Model *model); and so on.
#define BATCHLLM_DECLARE(model_type, class_name, describe)                                         \
    Status describe(const JsonValue &config, Model *model);
BATCHLLM_FAMILIES(BATCHLLM_DECLARE)
#undef BATCHLLM_DECLARE

} // namespace batchllm
