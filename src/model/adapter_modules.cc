#include "model/adapter_modules.h"

#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <variant>

#include "model/checkpoint.h"

namespace batchllm {
namespace {

// Versions of the reference have called the same modules by different names, and some are in modules that the files do not
// name (Kimi Linear's f_a_proj and f_b_proj).
std::string usual_name(std::string name) {
    constexpr std::pair<std::string_view, std::string_view> others[] = {
        {".block_sparse_moe.", ".mlp."}, {".self_attn.forget_gate.", ".self_attn."}};
    for (const auto &[other, usual] : others) {
        const size_t at = name.find(other);
        if (at != std::string::npos) name.replace(at, other.size(), usual);
    }
    return name;
}

std::string without(std::string_view name, std::string_view ending) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
    return std::string(name);
}

} // namespace

AdapterModules::AdapterModules(const Model &model) : model_(model) {
    std::unordered_set<const Tensor *> others = {&model_.embedding, &model_.layer_inputs.embedding};
    for (const Layer &layer : model_.layers) {
        if (const Attention *a = layer.attention(); a != nullptr && a->latent) {
            module_of(a->latent.up.values.name).of_latents = true;
        }
        if (const LinearAttention *linear = layer.linear_attention()) {
            for (const Weight &part : linear->convolution) others.insert(&part.values);
        }
        if (const auto *short_one = std::get_if<ShortConvolution>(&layer.mixer)) {
            others.insert(&short_one->filter.values);
        }
        if (const Experts *experts = layer.experts()) {
            add_experts(*experts);
            for (const FeedForward &expert : experts->each) {
                for (const Weight *w : {&expert.gate, &expert.up, &expert.down}) {
                    others.insert(&w->values);
                }
            }
        }
    }
    others.insert(&model_.head.values);
    for_each_tensor(model_, [&](const Tensor &tensor) {
        if (tensor.columns > 1 && !others.contains(&tensor)) add(tensor.name, tensor);
    });
    // Whatever its tensor is called: it may be the embedding's.
    if (model_.head) add("lm_head.weight", model_.head.values);
}

std::string AdapterModules::name_of(const std::string &module) const {
    const std::string described = described_name(module + ".", model_);
    return usual_name(described.substr(0, described.size() - 1));
}

const AdapterModules::Module *AdapterModules::find(const std::string &name) const {
    const auto found = modules_.find(name);
    return found == modules_.end() ? nullptr : &found->second;
}

std::span<const AdapterModules::Stacked> AdapterModules::stacked(const std::string &name) const {
    const auto found = stacked_.find(name);
    if (found == stacked_.end()) return {};
    return found->second;
}

AdapterModules::Module &AdapterModules::module_of(const std::string &tensor) {
    return modules_[usual_name(without(tensor, ".weight"))];
}

void AdapterModules::add(const std::string &name, const Tensor &tensor) {
    Module &module = module_of(name);
    module.rows = tensor.stored_rows > 0 ? tensor.stored_rows : tensor.rows;
    module.columns = tensor.columns;
    module.parts.push_back({&tensor, tensor.first_row, tensor.row_step});
}

// Experts may be changed one by one, or all in one parameter, however the files have them.
void AdapterModules::add_experts(const Experts &experts) {
    const FeedForward &first = experts.each[0];
    const bool stacked = first.up.values.stored_stack > 0;
    std::string prefix = first.up.values.name;
    std::string up = "gate_up_proj", down = "down_proj";
    if (stacked) {
        // P.gate_up_proj, or P.input_linear.weight
        const auto name_of = [](const Tensor &tensor) {
            const size_t dot = tensor.name.rfind('.');
            return std::pair(tensor.name.substr(0, dot), tensor.name.substr(dot + 1));
        };
        std::string module;
        std::tie(prefix, up) = name_of(first.up.values);
        std::tie(module, down) = name_of(first.down.values);
        add_stacked(experts, prefix, up, module, down);
        for (size_t e = 0; e < experts.each.size(); ++e) add_single(prefix, e, experts.each[e]);
        return;
    }
    for (const FeedForward &expert : experts.each) {
        for (const Weight *w : {&expert.gate, &expert.up, &expert.down}) {
            if (*w) add(w->values.name, w->values);
        }
    }
    for (int i = 0; i < 3; ++i) prefix.resize(prefix.rfind('.')); // of P.0.NAME.weight
    if (!first.gate) up = "up_proj";
    add_stacked(experts, prefix, up, prefix, down);
}

// Under the names of each expert's modules, those that most families use and Mixtral's.
void AdapterModules::add_single(const std::string &prefix, size_t index,
                                const FeedForward &expert) {
    const std::string own = prefix + "." + std::to_string(index) + ".";
    const std::pair<const Weight *, std::pair<const char *, const char *>> all[] = {
        {&expert.gate, {"gate_proj", "w1"}},
        {&expert.up, {"up_proj", "w3"}},
        {&expert.down, {"down_proj", "w2"}}};
    for (const auto &[weight, names] : all) {
        if (!*weight) continue;
        for (const char *name : {names.first, names.second}) {
            const Tensor &tensor = weight->values;
            modules_[usual_name(own + name)] = {tensor.rows, tensor.columns, {{&tensor, 0, 1}}};
        }
    }
}

void AdapterModules::add_stacked(const Experts &experts, const std::string &up_module,
                                 const std::string &up, const std::string &down_module,
                                 const std::string &down) {
    const FeedForward &first = experts.each[0];
    Stacked both{usual_name(up_module + "." + up), first.up.values.stored_transposed, {}};
    Stacked last{usual_name(down_module + "." + down), first.down.values.stored_transposed, {}};
    for (const FeedForward &expert : experts.each) {
        const int64_t parts = expert.gate ? 2 : 1;
        Module in{parts * expert.width, expert.up.columns(), {}};
        int64_t next = 0;
        for (const Weight *w : {&expert.gate, &expert.up}) {
            if (!*w) continue;
            const Tensor &tensor = w->values;
            const bool in_stack = tensor.stored_stack > 0;
            in.parts.push_back({&tensor, in_stack ? tensor.first_row % tensor.stored_rows : next,
                                in_stack ? tensor.row_step : 1});
            next += expert.width;
        }
        both.experts.push_back(std::move(in));
        last.experts.push_back(
            {expert.down.rows(), expert.down.columns(), {{&expert.down.values, 0, 1}}});
    }
    stacked_[usual_name(up_module)].push_back(std::move(both));
    stacked_[usual_name(down_module)].push_back(std::move(last));
}

} // namespace batchllm
