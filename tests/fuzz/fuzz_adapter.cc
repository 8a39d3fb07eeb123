// libFuzzer: the files of an adapter. Each is refused by name, or changes matrices of the model, with A and B that fit
// them and can be read to their ends.
//
// Input: a digit that chooses the model, adapter_config.json, a zero byte, adapter_model.safetensors.
#include <array>
#include <cmath>
#include <string>

#include "fuzz_folder.h"
#include "model/adapter_reader.h"
#include "model/model.h"

using namespace batchllm;
using fuzz::check;

static constexpr std::array<const char *, 2> kModels = {
    R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 12, "vocab_size": 10, "rms_norm_eps": 1e-5,
        "torch_dtype": "float32", "max_position_embeddings": 64})",
    R"({"model_type": "qwen3_moe", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12, "moe_intermediate_size": 6,
        "num_experts": 3, "num_experts_per_tok": 2, "vocab_size": 10, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "max_position_embeddings": 64})"};

static Model described(const fuzz::Folder &folder, const char *config) {
    folder.write("config.json", config);
    Result<Model> model = describe_model(folder.path());
    check(model.ok());
    return std::move(model).value();
}

static float sum(const Tensor &tensor) {
    float total = 0;
    std::string bytes(static_cast<size_t>(tensor.bytes()), 0);
    check(tensor.data != nullptr);
    std::copy_n(reinterpret_cast<const char *>(tensor.data), bytes.size(), bytes.data());
    for (const char byte : bytes) total += byte;
    return total;
}

static void check_change(const LowRank &change, int64_t rows, int64_t columns) {
    check(change.rank() > 0 && change.b.columns == change.rank());
    check(change.a.columns == columns && change.b.rows == rows);
    check(std::isfinite(change.scale));
    check(std::isfinite(sum(change.a) + sum(change.b)));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fuzz::Folder folder;
    static const std::array<Model, 2> models = {described(folder, kModels[0]),
                                                described(folder, kModels[1])};
    if (size == 0) return 0;
    std::string_view input(reinterpret_cast<const char *>(data + 1), size - 1);
    bool found = false;
    folder.write("adapter_config.json", fuzz::next_part(&input, &found));
    folder.write("adapter_model.safetensors", input);
    WeightMemory memory;
    auto files = read_adapter_files(folder.path(), AdapterReading::weights, &memory);
    Status status = files.status();
    WeightMemory few; // a reading that only checks says the same
    const auto checked = read_adapter_files(folder.path(), AdapterReading::check, &few);
    check(checked.ok() == files.ok());
    if (files.ok()) {
        check(checked->malformed.message() == files->malformed.message());
        check(checked->not_finite == files->not_finite);
    }
    check(files.ok() ? checked->hash == files->hash
                     : checked.status().message() == status.message());
    if (files.ok()) {
        const Model &model = models[data[0] % models.size()];
        const AdapterHash hash = files->hash;
        const auto adapter = make_adapter(std::move(files).value(), AdapterModules(model));
        status = adapter.status();
        if (adapter.ok()) {
            check((*adapter)->hash == hash);
            check(!(*adapter)->changes.empty() || (*adapter)->embedding.a);
            for (const auto &[tensor, change] : (*adapter)->changes) {
                check_change(change, tensor->rows, tensor->columns);
            }
            const LowRank &embedding = (*adapter)->embedding;
            if (embedding.a) check_change(embedding, model.hidden, model.vocabulary);
            return 0;
        }
    }
    check(status.code() == BATCHLLM_ERROR_ADAPTER_FORMAT ||
          status.code() == BATCHLLM_ERROR_UNSUPPORTED || status.code() == BATCHLLM_ERROR_IO);
    check(status.message().find(folder.path()) != std::string::npos);
    return 0;
}
