// Qwen3-Next: gated delta nets in three of four layers, whose queries, keys, values and gates are
// in one tensor, key head by key head. All layers have experts including a shared one, unless the
// configuration says otherwise.
#include "model/families/families.h"
#include "model/families/qwen_hybrid.h"
#include "model/families/qwen_moe.h"

namespace batchllm {
namespace {

// For each key head: its query, its key, the values of its value heads, their gates z; in the other
// tensor, their b and a.
void set_qwen3_next_input(const std::string &prefix, int64_t hidden, DeltaNet *delta) {
    const int64_t ratio = delta->value_heads / delta->key_heads;
    const int64_t key = delta->key_dim, value = ratio * delta->value_dim;
    const auto add = [&](const char *name, int64_t of_head, int64_t first, int64_t rows) {
        for (int64_t h = 0; h < delta->key_heads; ++h) {
            delta->input.push_back(fused_weight(prefix + name, delta->key_heads * of_head,
                                                h * of_head + first, rows, hidden)
                                       .values);
        }
    };
    const int64_t of_head = 2 * key + 2 * value;
    add("in_proj_qkvz", of_head, 0, key);
    add("in_proj_qkvz", of_head, key, key);
    add("in_proj_qkvz", of_head, 2 * key, value);
    add("in_proj_qkvz", of_head, 2 * key + value, value);
    add("in_proj_ba", 2 * ratio, 0, ratio);
    add("in_proj_ba", 2 * ratio, ratio, ratio);
}

bool is_dense(const JsonValue &config) {
    const auto experts = config.given("num_experts");
    if (!experts) return false;
    const auto none = experts->integer(0, 0);
    return none.ok();
}

} // namespace

Status describe_qwen3_next(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151936;
    defaults.hidden = 2048;
    defaults.intermediate = 5632;
    defaults.layers = 48;
    defaults.heads = 16;
    defaults.kv_heads = 2;
    defaults.head_dim = 256;
    defaults.max_positions = 32768;
    RETURN_IF_ERROR(describe_gated_attention(config, defaults, model));
    if (!is_dense(config)) {
        RETURN_IF_ERROR(set_sparse_layers(config, {512, 512, 10, true}, model));
        RETURN_IF_ERROR(set_shared_experts(config, 512, model));
    }
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    model->passed_over.push_back("mtp."); // heads that predict further tokens
    return set_delta_nets(config, set_qwen3_next_input, model);
}

} // namespace batchllm
