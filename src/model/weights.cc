// Files of a model directory -> the Model's tensors: finds the file of each tensor and checks its
// type and shape against the configuration.
//
// Tensors that the configured model does not have are an error: a checkpoint with a bias or norm
// that is not computed would run and give wrong answers. There are four exceptions:
//   - parts of a checkpoint that the description skips (heads that predict further tokens). A tower is loaded like the text
//     model, but what is wrong with it is no error: the model then reads text alone;
//   - the rotary frequencies in old checkpoints, which follow from the configuration;
//   - an lm_head beside tied embeddings. As in transformers 5, the two are tied if they are equal and not
//     if they differ, and an lm_head without an embedding serves as both;
//   - an all-zero bias beside a GPTQ matrix, which some writers add.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/printable.h"
#include "model/absent_keys.h"
#include "model/checkpoint.h"
#include "model/four_bits.h"
#include "model/heads.h"
#include "model/model.h"
#include "model/scales.h"
#include "model/stacked_experts.h"
#include "model/tower.h"

namespace batchllm {
namespace {

static_assert(std::endian::native == std::endian::little,
              "weights are used as the files hold them");

// Takes tensors out of a checkpoint and finally reports those that were not taken.
class Taker {
  public:
    Taker(Checkpoint *checkpoint, Model *model) : checkpoint_(*checkpoint), model_(*model) {}

    bool has(const std::string &name) const { return checkpoint_.tensors.contains(name); }

    // Sets type and data.
    Status take(Tensor *tensor) {
        const auto found = checkpoint_.tensors.find(tensor->name);
        const bool bytes = found != checkpoint_.tensors.end() && found->second.stored.type == "U8";
        if (found == checkpoint_.tensors.end() || bytes) {
            ASSIGN_OR_RETURN(tensor->four_bits, find_in_four_bits(*tensor));
            if (tensor->four_bits != nullptr) {
                tensor->dtype = DType::u4;
                return {};
            }
            if (bytes) return refuse_type(found->second, *tensor);
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is missing",
                         checkpoint_.files.size() == 1 ? checkpoint_.files[0].path().c_str()
                                                       : "the model's shards",
                         checkpoint_.name_in_files(tensor->name, model_).c_str());
        }
        Located &located = found->second;
        const StoredTensor &stored = located.stored;
        if (const auto type = float_type(stored)) {
            tensor->dtype = *type;
        } else if (stored.type == "F8_E4M3" && scheme_of(*tensor, stored)) {
            tensor->dtype = DType::e4m3;
        } else {
            return refuse_type(located, *tensor);
        }
        const std::vector<int64_t> shape = stored_shape(*tensor);
        if (flat_shape(*tensor, stored.shape) != shape && !is_vector_of(*tensor, stored.shape)) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT,
                         "%s: tensor %s has shape %s: config.json makes it %s%s", path_of(located),
                         printable(stored.name).c_str(), shape_text(stored.shape).c_str(),
                         shape_text(shape).c_str(), absent_shape_keys(model_.directory).c_str());
        }
        tensor->data = data_of(located) + first_element(*tensor) * dtype_bytes(tensor->dtype);
        located.used = true;
        if (tensor->dtype != DType::e4m3) return {};
        return take_scales(*scheme_of(*tensor, stored), tensor);
    }

    // The scales of the layer's own keys and values, under the names that the formats' writers use.
    Status take_kv_scales(Attention *attention) {
        if (model_.quantization == nullptr || !model_.quantization->kv_in_e4m3()) return {};
        if (!attention->k) return {};
        std::string layer = attention->k.values.name; // LAYER.k_proj.weight
        for (int i = 0; i < 2; ++i) layer.resize(layer.rfind('.'));
        const std::pair<const char *, std::vector<float> *> both[] = {{"k", &attention->k_scales},
                                                                      {"v", &attention->v_scales}};
        for (const auto &[which, scales] : both) {
            const std::string own = std::string(".") + which + "_scale";
            const float absent = model_.quantization->absent_kv_scale();
            if (absent > 0) scales->assign(static_cast<size_t>(attention->kv_heads), absent);
            for (const std::string &name : {layer + own, layer + "." + which + "_proj" + own,
                                            layer + ".qkv_proj" + own, layer + ".kv_scale"}) {
                const auto found = checkpoint_.tensors.find(name);
                if (found == checkpoint_.tensors.end()) continue;
                const Located &located = found->second;
                ASSIGN_OR_RETURN(*scales, read_kv_scales(located.stored, data_of(located),
                                                         attention->kv_heads, path_of(located)));
                break;
            }
        }
        return {};
    }

    Status finish() const {
        return finish([](const std::string &) { return true; });
    }

    // The tower's tensors are among those that the text model passes over. A checkpoint of the text part alone has none.
    Status take_tower(Tower *tower, bool *found) {
        std::swap(checkpoint_.tensors, checkpoint_.passed_over);
        const auto begins = [](const std::string &name, const std::vector<std::string> &prefixes) {
            return std::ranges::any_of(
                prefixes, [&](const std::string &prefix) { return name.starts_with(prefix); });
        };
        const auto is_part = [&](const std::string &name) {
            return begins(name, tower->prefixes) && !begins(name, tower->passed_over);
        };
        *found = std::ranges::any_of(checkpoint_.tensors,
                                     [&](const auto &entry) { return is_part(entry.first); });
        Status taken;
        for_each_tensor(tower, [&](Tensor *tensor) {
            if (taken.ok() && *found) taken = take(tensor);
        });
        if (taken.ok()) taken = finish(is_part);
        std::swap(checkpoint_.tensors, checkpoint_.passed_over);
        return taken;
    }

    // What the tensors taken refer to. Call last.
    ModelBytes bytes() { return {std::move(scales_), std::move(checkpoint_.files)}; }

  private:
    // of: whether a tensor of this name should be of use.
    Status finish(const std::function<bool(const std::string &)> &of) const {
        const std::string *first = nullptr; // by name, so that the error is always the same
        for (const auto &[name, located] : checkpoint_.tensors) {
            if (located.used || is_ignored_tensor(name) || is_other_scale(name)) continue;
            if (!of(name) || is_bias_of_zeros(name, located)) continue;
            if (first == nullptr || name < *first) first = &name;
        }
        if (first == nullptr) return {};
        const Located &located = checkpoint_.tensors.at(*first);
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: tensor %s is of no use to a model of this config.json", path_of(located),
                     printable(located.stored.name).c_str());
    }

    const char *path_of(const Located &located) const {
        return checkpoint_.files[located.file].path().c_str();
    }

    const std::byte *data_of(const Located &located) const {
        return checkpoint_.files[located.file].bytes().data() + located.stored.offset;
    }

    static std::vector<int64_t> stored_shape(const Tensor &tensor) {
        std::vector<int64_t> shape = {tensor.stored_rows > 0 ? tensor.stored_rows : tensor.rows};
        if (tensor.columns > 1) {
            shape.insert(tensor.stored_transposed ? shape.begin() : shape.end(), tensor.columns);
        }
        if (tensor.stored_stack > 0) shape.insert(shape.begin(), tensor.stored_stack);
        return shape;
    }

    // Whether such a shape is a vector's, with further dimensions of 1.
    static bool is_vector_of(const Tensor &tensor, const std::vector<int64_t> &shape) {
        const auto ones = std::count(shape.begin(), shape.end(), 1);
        return tensor.columns == 1 && tensor.stored_rows == 0 && tensor.rows > 1 &&
               ones + 1 == static_cast<int64_t>(shape.size()) &&
               std::find(shape.begin(), shape.end(), tensor.rows) != shape.end();
    }

    // What is compared with that.
    static std::vector<int64_t> flat_shape(const Tensor &tensor,
                                           const std::vector<int64_t> &stored) {
        if (!tensor.stored_flat || stored.size() < 2) return stored;
        int64_t columns = 1;
        for (size_t i = 1; i < stored.size(); ++i) columns *= stored[i];
        return {stored[0], columns};
    }

    // The index of its first element in the file's tensor.
    static int64_t first_element(const Tensor &tensor) {
        if (!tensor.stored_transposed) return tensor.first_row * tensor.columns;
        const int64_t of_stack = tensor.first_row / tensor.stored_rows * tensor.stored_rows;
        return of_stack * tensor.columns + tensor.first_row - of_stack;
    }

    // The scheme of a tensor whose name in the file is `stored` without its ending.
    std::optional<ScaleScheme> scheme_of(std::string_view module, std::string_view stored) const {
        if (model_.quantization == nullptr) return std::nullopt;
        const auto scheme = model_.quantization->scheme_of(stored);
        // Under its name in newer files, or in published ones.
        return scheme ? scheme : model_.quantization->scheme_of(module);
    }

    // The scheme of an eight-bit matrix; empty if no tensor with its name is quantised to eight
    // bits. Stacks of experts have one as ModelOpt writes them: for the whole stack, or for each expert.
    std::optional<ScaleScheme> scheme_of(const Tensor &tensor, const StoredTensor &stored) const {
        const std::string_view ending = tensor.stored_stack > 0 ? "" : ".weight";
        if (tensor.columns == 1 || !stored.name.ends_with(ending) ||
            !tensor.name.ends_with(ending)) {
            return std::nullopt;
        }
        const auto module = [&](std::string_view name) {
            return name.substr(0, name.size() - ending.size());
        };
        const auto scheme = scheme_of(module(tensor.name), module(stored.name));
        const bool eight = scheme && scheme->four_bits == FourBitForm::none;
        return eight && may_be_stacked(*scheme, tensor) ? scheme : std::nullopt;
    }

    // The scheme of a four-bit matrix, if the checkpoint has its elements under the name that this
    // scheme gives them.
    std::optional<ScaleScheme> four_bit_scheme_of(const Tensor &tensor) const {
        if (tensor.columns == 1) return std::nullopt;
        const std::string module = tensor.name.substr(0, tensor.name.rfind(".weight"));
        for (const char *ending : {".qweight", ".weight_packed", "_blocks", ".weight", ""}) {
            const std::string name = module + ending;
            const auto found = checkpoint_.tensors.find(name);
            if (found == checkpoint_.tensors.end()) continue;
            std::string stored = found->second.stored.name;
            stored.resize(stored.size() - std::string_view(ending).size());
            const auto scheme = scheme_of(module, stored);
            if (!scheme || scheme->four_bits == FourBitForm::none) continue;
            if (!may_be_stacked(*scheme, tensor)) continue;
            if (four_bits_name(tensor, *scheme) == name) return scheme;
        }
        return std::nullopt;
    }

    // Null: the checkpoint does not have it in four bits either.
    Result<std::shared_ptr<const FourBits>> find_in_four_bits(const Tensor &tensor) {
        const auto scheme = four_bit_scheme_of(tensor);
        if (!scheme) return std::shared_ptr<const FourBits>();
        const FindPart find = [this](const std::string &name) -> std::optional<StoredPart> {
            const auto found = checkpoint_.tensors.find(name);
            if (found == checkpoint_.tensors.end()) return std::nullopt;
            Located &located = found->second;
            const bool is_new = !std::exchange(located.used, true);
            return StoredPart{&located.stored, data_of(located), path_of(located), is_new};
        };
        return find_four_bits(tensor, *scheme, find);
    }

    Status refuse_type(const Located &located, const Tensor &tensor) const {
        std::string also = "only BF16, F16 and F32 are supported";
        if (located.stored.type == "F8_E4M3" && tensor.stored_stack > 0 && model_.quantization) {
            also +=
                " for stacks of experts, and F8_E4M3 as ModelOpt writes them, with one scale or "
                "one for each";
        } else if (located.stored.type == "F8_E4M3") {
            also += model_.quantization == nullptr ? " where config.json has no quantization_config"
                                                   : " for it: quantization_config leaves it out";
        }
        return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: tensor %s is of type %s: %s",
                     path_of(located), printable(located.stored.name).c_str(),
                     located.stored.type.c_str(), also.c_str());
    }

    Status take_scales(const ScaleScheme &scheme, Tensor *tensor) {
        std::string name = tensor->name + "_scale_inv";
        if (!has(name)) name = tensor->name + "_scale";
        if (tensor->stored_stack > 0) name = tensor->name + "_weight_scale";
        const auto found = checkpoint_.tensors.find(name);
        if (found == checkpoint_.tensors.end()) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is missing",
                         path_of(checkpoint_.tensors.at(tensor->name)),
                         checkpoint_.name_in_files(name, model_).c_str());
        }
        Located &located = found->second;
        const int64_t rows = tensor->stored_rows > 0 ? tensor->stored_rows : tensor->rows;
        ASSIGN_OR_RETURN(tensor->scales,
                         lay_out_scales(located.stored, scheme, tensor->stored_stack, rows,
                                        tensor->columns, path_of(located)));
        const auto [read, is_new] = scales_.try_emplace(name); // Q, K and V may share them
        if (is_new) {
            const std::byte *bytes =
                checkpoint_.files[located.file].bytes().data() + located.stored.offset;
            ASSIGN_OR_RETURN(read->second, read_scales(located.stored, bytes, path_of(located)));
            located.used = true;
        }
        tensor->scales.data = read->second.data();
        return {};
    }

    // Scales of values that backends quantise in their own way or not at all: activations, and keys
    // and values whose scales take_kv_scales has not read.
    bool is_other_scale(const std::string &name) const {
        if (model_.quantization == nullptr) return false;
        for (const char *ending :
             {".input_scale", ".activation_scale", ".input_global_scale", ".k_scale", ".v_scale",
              ".kv_scale", ".q_scale", "_proj_input_scale"}) { // of stacked experts
            if (name.ends_with(ending)) return true;
        }
        return false;
    }

    // Some GPTQ writers add one to every matrix.
    bool is_bias_of_zeros(const std::string &name, const Located &located) const {
        constexpr std::string_view ending = ".bias";
        if (model_.quantization == nullptr || !name.ends_with(ending)) return false;
        const std::string module = name.substr(0, name.size() - ending.size());
        const std::byte *bytes = data_of(located);
        return has(module + ".qweight") &&
               std::all_of(bytes, bytes + located.stored.bytes,
                           [](std::byte byte) { return byte == std::byte{0}; });
    }

    Checkpoint &checkpoint_;
    Model &model_;
    std::unordered_map<std::string, std::vector<float>> scales_; // those read so far, by name
};

// Without a usable tower the model keeps its text.
void take_tower(Taker *taker, Model *model) {
    if (model->tower == nullptr) return;
    bool found = false;
    const Status taken = taker->take_tower(model->tower.get(), &found);
    if (found && taken.ok()) return;
    model->tower = nullptr;
    model->no_tower = found ? taken.message() : "the checkpoint has no tensors of a vision tower";
}

// For a checkpoint without a head, as published for embedding models: the model cannot generate.
void drop_missing_head(const Taker &taker, bool base_names, Model *model) {
    if (base_names && !model->tied && model->head && !taker.has(model->head.values.name)) {
        model->head = {};
    }
}

// The head of a model with tied embeddings is the embedding, whichever of the two the checkpoint has. If it
// has both, they are tied only if they are equal.
Status take_head(Taker *taker, Model *model) {
    if (!model->tied) return {};
    const bool has_head = taker->has(model->head.values.name);
    if (has_head && taker->has(model->embedding.name)) {
        RETURN_IF_ERROR(taker->take(&model->embedding));
        RETURN_IF_ERROR(taker->take(&model->head.values));
        const Tensor &a = model->embedding;
        const Tensor &b = model->head.values;
        model->tied = a.dtype == b.dtype && a.as_stored() &&
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
    const bool base_names = checkpoint.tensors.contains(base_name(model->embedding.name));
    RETURN_IF_ERROR(checkpoint.rename(*model));
    Taker taker(&checkpoint, model.get());
    drop_missing_head(taker, base_names, model.get());
    const auto has = [&](const std::string &name) { return taker.has(name); };
    find_stacked_experts(has, model.get());
    find_separate_experts(has, model.get());
    RETURN_IF_ERROR(take_head(&taker, model.get()));
    Status taken;
    for_each_tensor(model.get(), [&](Tensor *tensor) {
        if (taken.ok()) taken = taker.take(tensor);
    });
    RETURN_IF_ERROR(taken);
    for (Layer &layer : model->layers) {
        if (layer.attention() != nullptr) RETURN_IF_ERROR(taker.take_kv_scales(layer.attention()));
    }
    RETURN_IF_ERROR(taker.finish());
    take_tower(&taker, model.get());
    if (model->tied) model->head.values = model->embedding;
    if (!model->dtype_stated) {
        const DType stored = model->embedding.dtype;
        model->dtype = stored == DType::e4m3 || stored == DType::u4 ? DType::bf16 : stored;
    }
    model->bytes = std::make_shared<const ModelBytes>(taker.bytes());
    return model;
}

} // namespace batchllm
