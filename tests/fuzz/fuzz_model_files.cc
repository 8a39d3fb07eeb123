// libFuzzer: the JSON files of a model directory. Each is rejected by name, or yields numbers that
// a backend can rely on; errors in a chat template's files only affect conversations.
//
// Input, separated by zero bytes: config.json, generation_config.json, tokenizer_config.json,
// special_tokens_map.json, model.safetensors.index.json, chat_template.json, hf_quant_config.json.
// An empty part: no such file.
#include <array>
#include <string>

#include "base/visit.h"
#include "fuzz_folder.h"
#include "model/model.h"
#include "model/quantization.h"
#include "text/chat_template.h"

using namespace batchllm;
using fuzz::check;

static constexpr const char *kNames[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "model.safetensors.index.json",
                                         "chat_template.json",
                                         "hf_quant_config.json"};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fuzz::Folder folder;
    static std::array<std::string, std::size(kNames)> written;
    std::string_view input(reinterpret_cast<const char *>(data), size);
    for (size_t i = 0; i < std::size(kNames); ++i) {
        bool found = false;
        const std::string_view part = fuzz::next_part(&input, &found);
        if (part == written[i]) continue; // consecutive inputs mostly differ in one file
        if (part.empty())
            folder.remove(kNames[i]);
        else
            folder.write(kNames[i], part);
        written[i] = part;
    }
    const auto config = describe_model(folder.path());
    if (config.ok()) {
        check(!config->layers.empty() && config->vocabulary > 0 && config->hidden > 0);
        for (const Layer &layer : config->layers) {
            check(layer.mixes() || layer.feeds());
            if (const Experts *experts = layer.experts()) {
                for (const FeedForward &expert : experts->each) check(expert.width > 0);
            }
            std::visit(
                Visitor{
                    [](const NoMixer &) {},
                    [&](const Attention &attention) {
                        check(attention.heads > 0 && attention.kv_heads > 0);
                        check(attention.head_dim > 0);
                        check(attention.heads % attention.kv_heads == 0);
                        check(attention.rope < static_cast<int32_t>(config->ropes.size()));
                        check(attention.kv_group >= 0 &&
                              attention.kv_group < static_cast<int32_t>(config->kv_groups.size()));
                    },
                    [](const LinearAttention &linear) {
                        check(linear.key_heads > 0 && linear.value_heads % linear.key_heads == 0);
                        check(linear.key_dim > 0 && linear.value_dim > 0 && linear.width > 1);
                        int64_t rows = 0;
                        for (const Tensor &part : linear.input) rows += part.rows;
                        check(rows == linear.input_rows());
                    },
                    [](const ShortConvolution &convolution) {
                        check(convolution.width > 1 && convolution.channels() > 0);
                        check(convolution.b.rows() == convolution.channels() &&
                              convolution.c.rows() == convolution.channels());
                    }},
                layer.mixer);
        }
        if (config->quantization != nullptr) {
            const auto scheme = config->quantization->scheme_of("model.layers.0.mlp.up_proj");
            check(!scheme || scheme->kind == ScaleKind::tensor ||
                  scheme->kind == ScaleKind::channel ||
                  (scheme->block_rows > 0 && scheme->block_columns > 0));
            check(!scheme || scheme->group >= 0);
        }
        for (const int32_t token : config->eos_tokens)
            check(token >= 0 && token < config->vocabulary);
    } else {
        check(config.status().code() == BATCHLLM_ERROR_MODEL_FORMAT ||
              config.status().code() == BATCHLLM_ERROR_UNSUPPORTED ||
              config.status().code() == BATCHLLM_ERROR_IO);
        check(config.status().message().find(folder.path()) != std::string::npos);
    }
    // There are no weights, so it is an error in any case.
    check(!load_model(folder.path()).ok());
    const auto chat = ChatTemplate::load(folder.path());
    check(chat.ok());
    std::string text;
    const Status rendered = (*chat)->render(R"([{"role":"user","content":"x"}])", {}, &text);
    check(rendered.ok() || text.empty());
    return 0;
}
