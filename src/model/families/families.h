// The supported families. Each has a file of its own that maps its config.json to a description.
#pragma once

#include <span>
#include <string>

#include "base/json.h"
#include "model/families/table.h"
#include "model/model.h"

namespace batchllm {

struct Family {
    const char *model_type;
    const char *class_name; // in "architectures", for the model that generates (heads.h has the
                            // others)
    // Fills an empty model with everything but kv_groups.
    Status (*describe)(const JsonValue &config, Model *model);
};

std::span<const Family> known_families();

// Status describe_llama(const JsonValue &config, Model *model); and so on.
#define BATCHLLM_DECLARE(model_type, class_name, describe)                                         \
    Status describe(const JsonValue &config, Model *model);
BATCHLLM_FAMILIES(BATCHLLM_DECLARE)
#undef BATCHLLM_DECLARE

} // namespace batchllm
