// IQuest-Coder: Llama with other defaults.
#include "model/config.h"
#include "model/families/families.h"
#include "model/families/llama.h"

namespace batchllm {

Status describe_iquestcoder(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 76800;
    defaults.hidden = 5120;
    defaults.intermediate = 27648;
    defaults.layers = 80;
    defaults.heads = 40;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    RETURN_IF_ERROR(
        refuse_key(config, "clip_qkv", "clipped queries, keys and values are not supported"));
    RETURN_IF_ERROR(refuse_flag(config, "use_sliding_window", "windows are not supported"));
    return describe_llama_with(config, defaults, model);
}

} // namespace batchllm
