#include "model/absent_keys.h"

#include <vector>

#include "base/json.h"
#include "batchllm.h"

namespace batchllm {

std::string absent_shape_keys(const std::string &model_dir) {
    struct Key {
        const char *name, *other = ""; // and what some families have in its place
    };
    constexpr Key keys[] = {{"hidden_size"},
                            {"intermediate_size", "block_ff_dim"},
                            {"num_hidden_layers", "hybrid_override_pattern"},
                            {"num_attention_heads"},
                            {"num_key_value_heads"},
                            {"head_dim", "attention_head_dim"},
                            {"vocab_size"}};
    const auto document =
        JsonDocument::load(model_dir + "/config.json", BATCHLLM_ERROR_MODEL_FORMAT);
    if (!document.ok() || !document->root().is_object()) return "";
    const JsonValue root = document->root();
    const auto part = root.given("text_config");
    const JsonValue &text = part && part->is_object() ? *part : root;
    std::vector<std::string> absent;
    for (const Key &key : keys) {
        if (!text.given(key.name) && !text.given(key.other)) absent.emplace_back(key.name);
    }
    if (absent.empty()) return "";
    std::string list;
    for (size_t i = 0; i < absent.size(); ++i) {
        list += (i == 0 ? "" : i + 1 == absent.size() ? " and " : ", ") + absent[i];
    }
    return "; config.json has no " + list + ": the shape may follow from a default";
}

} // namespace batchllm
