// What follows the last norm in a checkpoint, determined by the class in "architectures": a text
// head (XForCausalLM), a classification head (XForSequenceClassification), or nothing (XModel).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "model/families/families.h"
#include "model/model.h"

namespace batchllm {

enum class HeadKind : uint8_t { text, labels, none };

// Empty: the class does not belong to the family.
std::optional<HeadKind> head_of_class(const Family &family, const std::string &class_name);
// "LlamaForCausalLM, LlamaForSequenceClassification and LlamaModel go", for errors.
std::string class_names(const Family &family);

// The name that a tensor has in a model saved without a head: without its "model.".
std::string base_name(const std::string &name);

// Turns the description of the generating model into that of this kind, and lets tensors have
// their base names too.
Status set_head(const JsonValue &config, const Family &family, HeadKind kind, Model *model);

} // namespace batchllm
