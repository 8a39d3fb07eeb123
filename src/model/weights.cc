// Files of a model directory -> the Model's tensors: which file holds which tensor, and each
// tensor's type and shape against the configuration.
//
// Tensors that no model of the configuration has are an error, since a checkpoint that carries a
// bias or a norm which is not computed would run and answer wrongly. Two are let pass: the rotary
// frequencies that old checkpoints store (they follow from the configuration), and an lm_head beside
// tied embeddings. There, as in transformers 5, equal ones are tied, different ones are not, and an
// lm_head without an embedding is both.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/json.h"
#include "model/model.h"
#include "model/safetensors.h"

namespace batchllm {
namespace {

static_assert(std::endian::native == std::endian::little,
              "weights are used as the files hold them");

constexpr int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
constexpr size_t index_limit = 256U << 20U;
constexpr size_t shard_limit = 4096;

struct Located {
    size_t file;
    StoredTensor stored;
    bool used = false;
};

// The tensors of all of a model's files, by name.
struct Checkpoint {
    std::vector<MappedFile> files;
    std::unordered_map<std::string, Located> tensors;

    Status add_file(const std::string &path) {
        ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
        ASSIGN_OR_RETURN(auto list, parse_safetensors(file.bytes(), path));
        for (StoredTensor &stored : list) {
            std::string name = stored.name;
            const auto [place, is_new] =
                tensors.try_emplace(std::move(name), Located{files.size(), std::move(stored)});
            if (!is_new) {
                return error(code, "%s: tensor %s is in %s too", path.c_str(),
                             printable(place->first).c_str(),
                             files[place->second.file].path().c_str());
            }
        }
        files.push_back(std::move(file));
        return {};
    }
};

// A shard's name is that of a file in the directory itself. (A link there may lead elsewhere, as in
// the cache of downloaded models: whoever made the directory made the link.)
Status check_shard_name(const JsonValue &value, const std::string &name) {
    const bool plain = name.find('/') == std::string::npos &&
                       name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
    constexpr std::string_view ending = ".safetensors";
    if (!plain || name.size() <= ending.size() || name.front() == '.' || name.size() > 255 ||
        !name.ends_with(ending)) {
        return value.fail("must be the name of a .safetensors file in the model's directory");
    }
    return {};
}

bool is_ignored(const std::string &name) {
    return name.ends_with(".rotary_emb.inv_freq") || name == "rotary_emb.inv_freq";
}

Status add_shards(const std::string &model_dir, const std::string &index_path,
                  Checkpoint *checkpoint) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(index_path, index_limit, code));
    if (!document.root().is_object()) return document.root().fail("must be an object");
    ASSIGN_OR_RETURN(const JsonValue map, document.root().at("weight_map"));
    ASSIGN_OR_RETURN(const auto members, map.members());
    std::map<std::string, size_t> shards; // name -> index into checkpoint->files
    std::unordered_map<std::string, std::string> listed;
    for (const auto &[tensor, value] : members) {
        ASSIGN_OR_RETURN(std::string shard, value.string());
        RETURN_IF_ERROR(check_shard_name(value, shard));
        shards.emplace(shard, 0);
        listed.emplace(tensor, std::move(shard));
    }
    if (shards.empty()) return map.fail("names no file");
    if (shards.size() > shard_limit) return map.fail("names more than 4096 files");
    for (auto &[name, file] : shards) {
        file = checkpoint->files.size();
        RETURN_IF_ERROR(checkpoint->add_file(model_dir + "/" + name));
    }
    for (const auto &[tensor, shard] : listed) {
        const auto found = checkpoint->tensors.find(tensor);
        if (found == checkpoint->tensors.end() || found->second.file != shards[shard]) {
            return error(code, "%s: tensor %s is not in %s", index_path.c_str(),
                         printable(tensor).c_str(), shard.c_str());
        }
    }
    for (const auto &[tensor, located] : checkpoint->tensors) {
        if (!listed.contains(tensor) && !is_ignored(tensor)) {
            return error(code, "%s: tensor %s is not in %s",
                         checkpoint->files[located.file].path().c_str(), printable(tensor).c_str(),
                         index_path.c_str());
        }
    }
    return {};
}

Result<Checkpoint> open_checkpoint(const std::string &model_dir) {
    Checkpoint checkpoint;
    const std::string single = model_dir + "/model.safetensors";
    const std::string index = model_dir + "/model.safetensors.index.json";
    ASSIGN_OR_RETURN(const bool has_single, file_exists(single));
    ASSIGN_OR_RETURN(const bool has_index, file_exists(index));
    if (has_single) {
        RETURN_IF_ERROR(checkpoint.add_file(single));
    } else if (has_index) {
        RETURN_IF_ERROR(add_shards(model_dir, index, &checkpoint));
    } else {
        ASSIGN_OR_RETURN(const bool has_torch, file_exists(model_dir + "/pytorch_model.bin"));
        ASSIGN_OR_RETURN(const bool has_torch_index,
                         file_exists(model_dir + "/pytorch_model.bin.index.json"));
        return error(code, "%s: neither model.safetensors nor model.safetensors.index.json%s",
                     model_dir.c_str(),
                     has_torch || has_torch_index
                         ? "; pytorch_model.bin must be converted to safetensors"
                         : "");
    }
    return checkpoint;
}

std::string shape_text(const std::vector<int64_t> &shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        if (i > 0) text += ", ";
        text += std::to_string(shape[i]);
    }
    return text + "]";
}

// Takes tensors out of a checkpoint, and tells at the end what nobody took.
class Taker {
  public:
    explicit Taker(Checkpoint *checkpoint) : checkpoint_(*checkpoint) {}

    bool has(const std::string &name) const { return checkpoint_.tensors.contains(name); }

    Status matrix(const std::string &name, int64_t rows, int64_t columns, Tensor *out) {
        return take(name, {rows, columns}, out);
    }
    Status vector(const std::string &name, int64_t length, Tensor *out) {
        return take(name, {length}, out);
    }

    Status finish() const {
        const std::string *first = nullptr; // by name: the same error every time
        for (const auto &[name, located] : checkpoint_.tensors) {
            if (located.used || is_ignored(name)) continue;
            if (first == nullptr || name < *first) first = &name;
        }
        if (first == nullptr) return {};
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: tensor %s is of no use to a model of this config.json",
                     path_of(checkpoint_.tensors.at(*first)), printable(*first).c_str());
    }

  private:
    const char *path_of(const Located &located) const {
        return checkpoint_.files[located.file].path().c_str();
    }

    Status take(const std::string &name, const std::vector<int64_t> &shape, Tensor *out) {
        const auto found = checkpoint_.tensors.find(name);
        if (found == checkpoint_.tensors.end()) {
            return error(code, "%s: tensor %s is missing",
                         checkpoint_.files.size() == 1 ? checkpoint_.files[0].path().c_str()
                                                       : "the model's shards",
                         name.c_str());
        }
        Located &located = found->second;
        const StoredTensor &stored = located.stored;
        if (stored.type == "BF16") {
            out->dtype = DType::bf16;
        } else if (stored.type == "F16") {
            out->dtype = DType::f16;
        } else if (stored.type == "F32") {
            out->dtype = DType::f32;
        } else {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s is of type %s: only BF16, F16 and F32 are supported",
                         path_of(located), name.c_str(), stored.type.c_str());
        }
        if (stored.shape != shape) {
            return error(code, "%s: tensor %s has shape %s: config.json makes it %s",
                         path_of(located), name.c_str(), shape_text(stored.shape).c_str(),
                         shape_text(shape).c_str());
        }
        out->data = checkpoint_.files[located.file].bytes().data() + stored.offset;
        out->rows = shape[0];
        out->columns = shape.size() == 2 ? shape[1] : 1;
        located.used = true;
        return {};
    }

    Checkpoint &checkpoint_;
};

Status take_layer(const ModelConfig &config, const std::string &prefix, Taker *taker,
                  LayerWeights *layer) {
    const int64_t hidden = config.hidden;
    const int64_t inner = config.intermediate;
    const int64_t q_rows = int64_t{config.heads} * config.head_dim;
    const int64_t kv_rows = int64_t{config.kv_heads} * config.head_dim;
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    RETURN_IF_ERROR(taker->vector(prefix + "input_layernorm.weight", hidden, &layer->input_norm));
    RETURN_IF_ERROR(taker->matrix(attention + "q_proj.weight", q_rows, hidden, &layer->q));
    RETURN_IF_ERROR(taker->matrix(attention + "k_proj.weight", kv_rows, hidden, &layer->k));
    RETURN_IF_ERROR(taker->matrix(attention + "v_proj.weight", kv_rows, hidden, &layer->v));
    RETURN_IF_ERROR(taker->matrix(attention + "o_proj.weight", hidden, q_rows, &layer->o));
    if (config.attention_bias) {
        RETURN_IF_ERROR(taker->vector(attention + "q_proj.bias", q_rows, &layer->q_bias));
        RETURN_IF_ERROR(taker->vector(attention + "k_proj.bias", kv_rows, &layer->k_bias));
        RETURN_IF_ERROR(taker->vector(attention + "v_proj.bias", kv_rows, &layer->v_bias));
    }
    if (config.attention_output_bias) {
        RETURN_IF_ERROR(taker->vector(attention + "o_proj.bias", hidden, &layer->o_bias));
    }
    if (config.qk_norm) {
        RETURN_IF_ERROR(
            taker->vector(attention + "q_norm.weight", config.head_dim, &layer->q_norm));
        RETURN_IF_ERROR(
            taker->vector(attention + "k_norm.weight", config.head_dim, &layer->k_norm));
    }
    RETURN_IF_ERROR(taker->vector(prefix + "post_attention_layernorm.weight", hidden,
                                  &layer->post_attention_norm));
    RETURN_IF_ERROR(taker->matrix(mlp + "gate_proj.weight", inner, hidden, &layer->gate));
    RETURN_IF_ERROR(taker->matrix(mlp + "up_proj.weight", inner, hidden, &layer->up));
    RETURN_IF_ERROR(taker->matrix(mlp + "down_proj.weight", hidden, inner, &layer->down));
    if (config.mlp_bias) {
        RETURN_IF_ERROR(taker->vector(mlp + "gate_proj.bias", inner, &layer->gate_bias));
        RETURN_IF_ERROR(taker->vector(mlp + "up_proj.bias", inner, &layer->up_bias));
        RETURN_IF_ERROR(taker->vector(mlp + "down_proj.bias", hidden, &layer->down_bias));
    }
    return {};
}

Status take_embeddings(Taker *taker, Model *model) {
    ModelConfig &config = model->config;
    const std::string embedding = "model.embed_tokens.weight";
    const std::string head = "lm_head.weight";
    const bool head_only = config.tied_embeddings && !taker->has(embedding) && taker->has(head);
    RETURN_IF_ERROR(taker->matrix(head_only ? head : embedding, config.vocabulary, config.hidden,
                                  &model->embedding));
    if (!config.tied_embeddings || taker->has(head)) {
        RETURN_IF_ERROR(taker->matrix(head, config.vocabulary, config.hidden, &model->lm_head));
    }
    if (!config.tied_embeddings) return {};
    const Tensor &a = model->embedding;
    const Tensor &b = model->lm_head;
    if (b &&
        (a.dtype != b.dtype || std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) != 0)) {
        config.tied_embeddings = false;
    } else {
        model->lm_head = model->embedding;
    }
    return {};
}

} // namespace

int64_t Model::weight_bytes() const {
    int64_t total = embedding.bytes() + final_norm.bytes();
    if (lm_head.data != embedding.data) total += lm_head.bytes();
    for (const LayerWeights &layer : this->layers) {
        for (const Tensor *tensor :
             {&layer.input_norm, &layer.q, &layer.k, &layer.v, &layer.q_bias, &layer.k_bias,
              &layer.v_bias, &layer.q_norm, &layer.k_norm, &layer.o, &layer.o_bias,
              &layer.post_attention_norm, &layer.gate, &layer.up, &layer.down, &layer.gate_bias,
              &layer.up_bias, &layer.down_bias}) {
            if (*tensor) total += tensor->bytes();
        }
    }
    return total;
}

Result<std::unique_ptr<Model>> load_model(const std::string &model_dir) {
    auto model = std::make_unique<Model>();
    model->directory = model_dir;
    ASSIGN_OR_RETURN(model->config, load_config(model_dir));
    ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(model_dir));
    Taker taker(&checkpoint);
    RETURN_IF_ERROR(take_embeddings(&taker, model.get()));
    model->layers.resize(static_cast<size_t>(model->config.layers));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        RETURN_IF_ERROR(take_layer(model->config, "model.layers." + std::to_string(i) + ".", &taker,
                                   &model->layers[i]));
    }
    RETURN_IF_ERROR(taker.vector("model.norm.weight", model->config.hidden, &model->final_norm));
    RETURN_IF_ERROR(taker.finish());
    if (!model->config.dtype_stated) model->config.dtype = model->embedding.dtype;
    model->files = std::move(checkpoint.files);
    return model;
}

} // namespace batchllm
