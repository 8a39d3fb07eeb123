// Files of a model directory -> the Model's tensors: which file holds which tensor, and each
// tensor's type and shape against the configuration.
//
// Tensors that no model of the configuration has are an error, since a checkpoint that carries a
// bias or a norm which is not computed would run and answer wrongly. Three are let pass: the parts of
// a checkpoint that the description passes over (a vision tower), the rotary frequencies that old
// checkpoints store (they follow from the configuration), and an lm_head beside tied embeddings. There, as in transformers 5, equal ones are tied, different ones are not, and an
// lm_head without an embedding is both.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/json.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/scales.h"
#include "model/stacked_experts.h"

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
class Checkpoint {
  public:
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

    // Gives the tensors the names of the description, and drops those that it passes over.
    Status rename(const Model &model) {
        std::unordered_map<std::string, Located> named;
        for (auto &[name, located] : tensors) {
            std::string described = name;
            for (const Model::Renamed &renamed : model.renamed) {
                if (!name.starts_with(renamed.from)) continue;
                described.replace(0, renamed.from.size(), renamed.to);
                break;
            }
            if (is_passed_over(name, model) || is_passed_over(described, model)) continue;
            const auto [place, is_new] = named.try_emplace(described, std::move(located));
            if (!is_new) {
                return error(code, "%s: tensor %s stands there under two names",
                             files[place->second.file].path().c_str(),
                             printable(described).c_str());
            }
        }
        tensors = std::move(named);
        return {};
    }

  private:
    static bool is_passed_over(const std::string &name, const Model &model) {
        return std::any_of(model.passed_over.begin(), model.passed_over.end(),
                           [&](const std::string &prefix) { return name.starts_with(prefix); });
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

// Takes tensors out of a checkpoint, and tells at the end what nobody took.
class Taker {
  public:
    Taker(Checkpoint *checkpoint, Model *model) : checkpoint_(*checkpoint), model_(*model) {}

    bool has(const std::string &name) const { return checkpoint_.tensors.contains(name); }

    // Sets type and data.
    Status take(Tensor *tensor) {
        const auto found = checkpoint_.tensors.find(tensor->name);
        if (found == checkpoint_.tensors.end()) {
            return error(code, "%s: tensor %s is missing",
                         checkpoint_.files.size() == 1 ? checkpoint_.files[0].path().c_str()
                                                       : "the model's shards",
                         tensor->name.c_str());
        }
        Located &located = found->second;
        const StoredTensor &stored = located.stored;
        if (stored.type == "BF16") {
            tensor->dtype = DType::bf16;
        } else if (stored.type == "F16") {
            tensor->dtype = DType::f16;
        } else if (stored.type == "F32") {
            tensor->dtype = DType::f32;
        } else if (stored.type == "F8_E4M3" && scheme_of(*tensor, stored)) {
            tensor->dtype = DType::e4m3;
        } else {
            return refuse_type(*tensor, located);
        }
        std::vector<int64_t> shape = {tensor->stored_rows > 0 ? tensor->stored_rows : tensor->rows};
        if (tensor->stored_stack > 0) shape.insert(shape.begin(), tensor->stored_stack);
        if (tensor->columns > 1) shape.push_back(tensor->columns);
        if (stored.shape != shape) {
            return error(code, "%s: tensor %s has shape %s: config.json makes it %s",
                         path_of(located), tensor->name.c_str(), shape_text(stored.shape).c_str(),
                         shape_text(shape).c_str());
        }
        tensor->data = checkpoint_.files[located.file].bytes().data() + stored.offset +
                       tensor->first_row * tensor->columns * dtype_bytes(tensor->dtype);
        located.used = true;
        if (tensor->dtype != DType::e4m3) return {};
        return take_scales(*scheme_of(*tensor, stored), tensor);
    }

    Status finish() const {
        const std::string *first = nullptr; // by name: the same error every time
        for (const auto &[name, located] : checkpoint_.tensors) {
            if (located.used || is_ignored(name) || is_other_scale(name)) continue;
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

    // Of a matrix; nothing where no tensor of its name is quantised.
    std::optional<ScaleScheme> scheme_of(const Tensor &tensor, const StoredTensor &stored) const {
        constexpr std::string_view ending = ".weight";
        if (model_.quantization == nullptr || tensor.columns == 1 || tensor.stored_stack > 0 ||
            !stored.name.ends_with(ending) || !tensor.name.ends_with(ending)) {
            return std::nullopt;
        }
        const auto module = [&](std::string_view name) {
            return name.substr(0, name.size() - ending.size());
        };
        const auto scheme = model_.quantization->scheme_of(module(stored.name));
        // Under the name that newer files have, or under that of published ones.
        return scheme ? scheme : model_.quantization->scheme_of(module(tensor.name));
    }

    Status refuse_type(const Tensor &tensor, const Located &located) const {
        std::string also = "only BF16, F16 and F32 are supported";
        if (located.stored.type == "F8_E4M3") {
            also += model_.quantization == nullptr ? " where config.json has no quantization_config"
                                                   : " for it: quantization_config leaves it out";
        }
        return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: tensor %s is of type %s: %s",
                     path_of(located), tensor.name.c_str(), located.stored.type.c_str(),
                     also.c_str());
    }

    Status take_scales(const ScaleScheme &scheme, Tensor *tensor) {
        std::string name = tensor->name + "_scale_inv";
        if (!has(name)) name = tensor->name + "_scale";
        const auto found = checkpoint_.tensors.find(name);
        if (found == checkpoint_.tensors.end()) {
            return error(code, "%s: tensor %s is missing",
                         path_of(checkpoint_.tensors.at(tensor->name)), name.c_str());
        }
        Located &located = found->second;
        const int64_t rows = tensor->stored_rows > 0 ? tensor->stored_rows : tensor->rows;
        ASSIGN_OR_RETURN(tensor->scales, lay_out_scales(located.stored, scheme, rows,
                                                        tensor->columns, path_of(located)));
        const auto [read, is_new] = scales_.try_emplace(name, nullptr); // Q, K and V may share them
        if (is_new) {
            const std::byte *bytes =
                checkpoint_.files[located.file].bytes().data() + located.stored.offset;
            ASSIGN_OR_RETURN(auto scales, read_scales(located.stored, bytes, path_of(located)));
            read->second = model_.scales.emplace_back(std::move(scales)).data();
            located.used = true;
        }
        tensor->scales.data = read->second;
        return {};
    }

    // Scales of what backends quantise in their own way, or not at all: activations, keys and values.
    bool is_other_scale(const std::string &name) const {
        if (model_.quantization == nullptr) return false;
        for (const char *ending : {".input_scale", ".activation_scale", ".k_scale", ".v_scale",
                                   ".kv_scale", ".q_scale"}) {
            if (name.ends_with(ending)) return true;
        }
        return false;
    }

    Checkpoint &checkpoint_;
    Model &model_;
    std::unordered_map<std::string, const float *> scales_; // by name, those that are read
};

// A checkpoint of the model without its head, as embedding models are published: there is nothing to
// generate with.
void drop_missing_head(const Taker &taker, bool base_names, Model *model) {
    if (base_names && !model->tied && model->head && !taker.has(model->head.values.name)) {
        model->head = {};
    }
}

// The head of a model with tied embeddings is the embedding, whichever of the two the checkpoint has.
// With both, they are tied only if they are equal.
Status take_head(Taker *taker, Model *model) {
    if (!model->tied) return {};
    const bool has_head = taker->has(model->head.values.name);
    if (has_head && taker->has(model->embedding.name)) {
        RETURN_IF_ERROR(taker->take(&model->embedding));
        RETURN_IF_ERROR(taker->take(&model->head.values));
        const Tensor &a = model->embedding;
        const Tensor &b = model->head.values;
        model->tied = a.dtype == b.dtype && !a.scales &&
                      std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
    } else if (has_head) {
        model->embedding.name = model->head.values.name;
    }
    return {};
}

} // namespace

Result<std::unique_ptr<Model>> load_model(const std::string &model_dir) {
    ASSIGN_OR_RETURN(Model described, describe_model(model_dir));
    auto model = std::make_unique<Model>(std::move(described));
    ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(model_dir));
    const bool base_names = checkpoint.tensors.contains("embed_tokens.weight");
    RETURN_IF_ERROR(checkpoint.rename(*model));
    Taker taker(&checkpoint, model.get());
    drop_missing_head(taker, base_names, model.get());
    find_stacked_experts([&](const std::string &name) { return taker.has(name); }, model.get());
    RETURN_IF_ERROR(take_head(&taker, model.get()));
    Status taken;
    for_each_tensor(model.get(), [&](Tensor *tensor) {
        if (taken.ok()) taken = taker.take(tensor);
    });
    RETURN_IF_ERROR(taken);
    RETURN_IF_ERROR(taker.finish());
    if (model->tied) model->head.values = model->embedding;
    if (!model->dtype_stated) {
        const DType stored = model->embedding.dtype;
        model->dtype = stored == DType::e4m3 ? DType::bf16 : stored;
    }
    model->files = std::move(checkpoint.files);
    return model;
}

} // namespace batchllm
