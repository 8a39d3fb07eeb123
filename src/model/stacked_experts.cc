#include "model/stacked_experts.h"

namespace batchllm {
namespace {

// Matrix `index` of a stack, namely the rows from `first` on of its `stored` rows.
void stack(const std::string &name, size_t count, size_t index, int64_t stored, int64_t first,
           Tensor *tensor) {
    tensor->name = name;
    tensor->stored_stack = static_cast<int64_t>(count);
    tensor->stored_rows = stored;
    tensor->first_row = static_cast<int64_t>(index) * stored + first;
}

// The tensor `name`.weight, whole and as it is.
void take_apart(const std::string &name, Tensor *tensor) {
    tensor->name = name + ".weight";
    tensor->stored_stack = tensor->stored_rows = tensor->first_row = 0;
    tensor->stored_transposed = false;
}

} // namespace

void find_stacked_experts(const std::function<bool(const std::string &name)> &has, Model *model) {
    for (Layer &layer : model->layers) {
        if (layer.experts() == nullptr) continue;
        std::vector<FeedForward> &experts = layer.experts()->each;
        const bool gated = bool(experts[0].gate);
        std::string prefix = experts[0].up.values.name; // P.0.NAME.weight
        if (has(prefix)) continue;
        for (int i = 0; i < 3; ++i) prefix.resize(prefix.rfind('.'));
        prefix += '.';
        const std::string up = prefix + (gated ? "gate_up_proj" : "up_proj");
        if (!has(up)) continue;
        for (size_t e = 0; e < experts.size(); ++e) {
            FeedForward &expert = experts[e];
            const int64_t width = expert.width;
            const int64_t stored = gated ? 2 * width : width;
            if (gated) stack(up, experts.size(), e, stored, 0, &expert.gate.values);
            stack(up, experts.size(), e, stored, stored - width, &expert.up.values);
            stack(prefix + "down_proj", experts.size(), e, expert.down.rows(), 0,
                  &expert.down.values);
        }
    }
}

void find_separate_experts(const std::function<bool(const std::string &name)> &has, Model *model) {
    for (Layer &layer : model->layers) {
        if (layer.experts() == nullptr) continue;
        std::vector<FeedForward> &experts = layer.experts()->each;
        const Weight &up = experts[0].up;
        const bool stacked = up.values.stored_stack > 0 && up.values.stored_transposed;
        if (!stacked || up.values.row_step != 1 || up.bias || has(up.values.name)) continue;
        const std::string prefix = up.values.name.substr(0, up.values.name.rfind('.') + 1);
        const auto there = [&](const char *part) { return has(prefix + "0.up_proj." + part); };
        if (!there("weight") && !there("weight_packed") && !there("qweight")) continue;
        for (size_t e = 0; e < experts.size(); ++e) {
            const std::string name = prefix + std::to_string(e) + ".";
            if (experts[e].gate) take_apart(name + "gate_proj", &experts[e].gate.values);
            take_apart(name + "up_proj", &experts[e].up.values);
            take_apart(name + "down_proj", &experts[e].down.values);
        }
    }
}

} // namespace batchllm
