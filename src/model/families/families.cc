#include "model/families/families.h"

namespace batchllm {

std::span<const Family> known_families() {
    static constexpr Family families[] = {
        {"llama", "LlamaForCausalLM", describe_llama},
        {"mistral", "MistralForCausalLM", describe_mistral},
        {"qwen2", "Qwen2ForCausalLM", describe_qwen2},
        {"qwen3", "Qwen3ForCausalLM", describe_qwen3},
    };
    return families;
}

} // namespace batchllm
