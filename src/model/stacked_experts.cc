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

} // namespace batchllm
