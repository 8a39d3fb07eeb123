#include "model/adapter_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "model/adapter_config.h"
#include "model/checkpoint.h"
#include "model/scales.h"

namespace batchllm {
namespace {

// The tensors of one module in the files.
struct FactorPair {
    const StoredTensor *a = nullptr;
    const StoredTensor *b = nullptr;
};
struct FactorKind {
    std::string_view ending;
    bool of_embedding;
    const StoredTensor *FactorPair::*place;
};
constexpr FactorKind kinds[] = {{".lora_A.weight", false, &FactorPair::a},
                                {".lora_B.weight", false, &FactorPair::b},
                                {".lora_embedding_A", true, &FactorPair::a},
                                {".lora_embedding_B", true, &FactorPair::b}};
// Null: the tensor is none of LoRA's.
const FactorKind *kind_of(std::string_view tensor) {
    const auto *const found =
        std::find_if(std::begin(kinds), std::end(kinds),
                     [&](const FactorKind &kind) { return tensor.ends_with(kind.ending); });
    return found == std::end(kinds) ? nullptr : found;
}

// Tensors and configuration -> changes of the model's matrices.
class AdapterReader {
  public:
    AdapterReader(AdapterFiles files, const AdapterModules &modules)
        : files_(std::move(files)), model_(modules.model()), modules_(modules),
          path_(files_.weights_path()), adapter_(std::make_shared<Adapter>()) {}

    Result<std::shared_ptr<Adapter>> read() {
        ASSIGN_OR_RETURN(const AdapterConfig config,
                         AdapterConfig::parse(files_.config, files_.config_path()));
        config_ = &config;
        RETURN_IF_ERROR(files_.malformed);
        for (const StoredTensor &tensor : files_.tensors) RETURN_IF_ERROR(sort(tensor));
        for (const auto &[name, pair] : linear_) RETURN_IF_ERROR(take(name, pair));
        for (const Unsure &unsure : unsure_) RETURN_IF_ERROR(take_unsure(unsure));
        for (const auto &[name, pair] : embeddings_) RETURN_IF_ERROR(take_embedding(name, pair));
        if (adapter_->changes.empty() && !adapter_->embedding.a) {
            return error(BATCHLLM_ERROR_ADAPTER_FORMAT, "%s: changes nothing of the model",
                         path_.c_str());
        }
        if (files_.reading != AdapterReading::again) warn();
        adapter_->hash = files_.hash;
        adapter_->bytes.push_back(std::move(files_.weights.bytes));
        return std::move(adapter_);
    }
    int64_t copied_bytes() const { return copied_bytes_; }

  private:
    using Module = AdapterModules::Module;
    using Part = AdapterModules::Part;
    using Stacked = AdapterModules::Stacked;

    // MODULE.lora_A.weight and MODULE.lora_B.weight; of embeddings MODULE.lora_embedding_A and _B.
    Status sort(const StoredTensor &tensor) {
        constexpr std::string_view prefix = "base_model.model."; // PEFT's own modules
        std::string name = tensor.name;
        if (name.starts_with(prefix)) name.erase(0, prefix.size());
        const FactorKind *kind = kind_of(name);
        if (kind == nullptr) return take_copy(tensor, name);
        name.resize(name.size() - kind->ending.size());
        FactorPair &pair = (kind->of_embedding ? embeddings_ : linear_)[name];
        if (pair.*kind->place != nullptr) return refuse(tensor, "comes under two names");
        pair.*kind->place = &tensor;
        return {};
    }

    // PEFT may save the embedding and the head beside what changes them.
    Status take_copy(const StoredTensor &tensor, std::string name) {
        const size_t base = name.find(".base_layer.");
        if (base != std::string::npos) name.erase(base, std::string_view(".base_layer").size());
        const std::string described = described_name(name, model_);
        const Tensor *same = described == model_.embedding.name ? &model_.embedding
                             : described == "lm_head.weight"    ? &model_.head.values
                                                                : nullptr;
        if (same == nullptr || !*same) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s is no part of a LoRA that is supported", path_.c_str(),
                         printable(tensor.name).c_str());
        }
        const auto type = float_type(tensor);
        if (!type || tensor.shape != std::vector<int64_t>{same->rows, same->columns}) {
            return refuse(tensor, "is not the model's: the model's embedding or head was replaced");
        }
        // Of a model that is only described, the shape is all there is to compare.
        if (same->data == nullptr && same->four_bits == nullptr) return {};
        Tensor stored = stored_matrix(tensor, *type);
        std::vector<float> theirs(static_cast<size_t>(same->columns)), ours(theirs.size());
        for (int64_t row = 0; row < same->rows; ++row) {
            read_row(stored, row, theirs.data());
            read_row(*same, row, ours.data());
            if (theirs == ours) continue;
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s replaces the model's: only LoRA matrices are supported",
                         path_.c_str(), printable(tensor.name).c_str());
        }
        return {};
    }

    Tensor stored_matrix(const StoredTensor &tensor, DType type) const {
        Tensor matrix;
        matrix.dtype = type;
        matrix.rows = tensor.shape[0];
        matrix.columns = tensor.shape[1];
        matrix.name = tensor.name;
        matrix.data = files_.weights.bytes.get() + tensor.offset;
        return matrix;
    }

    // A and B of a module as they are stored.
    struct Stored {
        Tensor a, b;
    };
    Result<Stored> read_pair(const std::string &name, const FactorPair &pair) const {
        if (pair.a == nullptr || pair.b == nullptr) {
            return error(BATCHLLM_ERROR_ADAPTER_FORMAT,
                         "%s: module %s has only one of the two matrices", path_.c_str(),
                         printable(name).c_str());
        }
        Stored stored;
        for (const auto &[tensor, matrix] : {std::pair(pair.a, &stored.a), {pair.b, &stored.b}}) {
            const auto type = float_type(*tensor);
            if (!type) {
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "%s: tensor %s is of type %s: only BF16, F16 and F32 are supported",
                             path_.c_str(), printable(tensor->name).c_str(), tensor->type.c_str());
            }
            if (tensor->shape.size() != 2 || tensor->shape[0] < 1 || tensor->shape[1] < 1) {
                return refuse(*tensor,
                              "has shape " + shape_text(tensor->shape) + ": it must be a matrix");
            }
            *matrix = stored_matrix(*tensor, *type);
            const auto number = static_cast<size_t>(tensor - files_.tensors.data());
            if (!files_.not_finite.empty() && files_.not_finite[number]) {
                return refuse(*tensor, "has a number that is not finite");
            }
        }
        return stored;
    }

    // Of modules that the adapter changes in some layers, those of other layers that the configuration names as well.
    // PEFT has all of them in the file; where it has none in any layer, target_modules may name what no layer has.
    void warn() {
        std::set<std::pair<std::string, std::string>> around; // the layer's number
        for (const auto &[name, pair] : linear_) {
            const auto digit = [](char c) { return c >= '0' && c <= '9'; };
            for (size_t dot = name.find('.'); dot != std::string::npos;
                 dot = name.find('.', dot + 1)) {
                const auto begin = name.begin() + static_cast<std::ptrdiff_t>(dot) + 1;
                const auto end = std::find_if_not(begin, name.end(), digit);
                if (end == begin || end == name.end() || *end != '.') continue;
                around.emplace(std::string(name.begin(), begin), std::string(end, name.end()));
                break;
            }
        }
        std::vector<std::string> missing;
        for (const auto &[before, after] : around) {
            for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
                std::string name = before + std::to_string(layer) + after;
                if (!linear_.contains(name) && is_named(plain_name(name))) {
                    missing.push_back(std::move(name));
                }
            }
        }
        if (!missing.empty() && config_->names_are_read()) {
            adapter_->warnings.push_back(
                path_ + " lacks " + std::to_string(missing.size()) +
                (missing.size() == 1 ? " module" : " modules") +
                " that adapter_config.json names, and has such modules of other layers: " +
                (missing.size() == 1 ? "" : "the first is ") + printable(missing[0]));
        }
        const std::vector<std::string> unused = config_->unused_patterns(scaled_);
        if (unused.empty()) return;
        adapter_->warnings.push_back(
            files_.config_path() + ": no module that is changed matches " +
            std::to_string(unused.size()) +
            " of the keys of rank_pattern and alpha_pattern: the first is " + printable(unused[0]));
    }

    // Whether the model has the module, and the configuration names it or a parameter of it.
    bool is_named(const std::string &module) const {
        const std::string described = modules_.name_of(module);
        if (modules_.find(described) != nullptr) {
            return config_->names_module(module) || config_->names_parameter(module + ".weight");
        }
        const auto parameters = modules_.stacked(described);
        return std::any_of(parameters.begin(), parameters.end(), [&](const auto &parameter) {
            return config_->names_parameter(parameter_name(module, parameter));
        });
    }

    // Without what PEFT puts between a module that it has wrapped and what is in it.
    static std::string plain_name(std::string name) {
        for (size_t base; (base = name.find(".base_layer")) != std::string::npos;) {
            name.erase(base, std::string_view(".base_layer").size());
        }
        return name;
    }

    Status take(const std::string &name, const FactorPair &pair) {
        ASSIGN_OR_RETURN(const Stored stored, read_pair(name, pair));
        const std::string plain = plain_name(name);
        const std::string described = modules_.name_of(plain);
        if (const Module *module = modules_.find(described)) {
            if (module->of_latents) {
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "%s: tensor %s: adapters of latents' kv_b_proj are not supported",
                             path_.c_str(), printable(pair.a->name).c_str());
            }
            // A router that is no linear layer in the reference is changed by its parameter.
            const std::string parameter = plain + ".weight";
            if (config_->names_module(plain)) return take_linear(plain, *module, stored);
            if (config_->names_parameter(parameter)) return take_linear(parameter, *module, stored);
            return refuse(*pair.a, "belongs to a module that target_modules does not name");
        }
        const auto parameters = modules_.stacked(described);
        if (!parameters.empty()) return take_stacked(plain, parameters, stored);
        return error(BATCHLLM_ERROR_ADAPTER_FORMAT, "%s: tensor %s: the model has no such module",
                     path_.c_str(), printable(pair.a->name).c_str());
    }

    Status check_rank(const std::string &name, const Stored &stored, int64_t experts) {
        scaled_.push_back(name);
        const int64_t rank = config_->rank_of(name);
        if (stored.a.rows == rank * experts && stored.b.columns == rank * experts) return {};
        return error(
            BATCHLLM_ERROR_ADAPTER_FORMAT,
            "%s: tensors %s and lora_B have %lld rows and %lld columns: by "
            "adapter_config.json their rank is %lld%s",
            path_.c_str(), printable(stored.a.name).c_str(), static_cast<long long>(stored.a.rows),
            static_cast<long long>(stored.b.columns), static_cast<long long>(rank),
            experts > 1 ? (", for each of " + std::to_string(experts) + " experts").c_str() : "");
    }

    Status check_shape(const Tensor &tensor, int64_t rows, int64_t columns) const {
        if (tensor.rows == rows && tensor.columns == columns) return {};
        return error(BATCHLLM_ERROR_ADAPTER_FORMAT,
                     "%s: tensor %s has shape %s: with this model it must be %s", path_.c_str(),
                     printable(tensor.name).c_str(),
                     shape_text({tensor.rows, tensor.columns}).c_str(),
                     shape_text({rows, columns}).c_str());
    }

    Result<float> scale_of(const std::string &name) const {
        const auto scale = static_cast<float>(config_->scale_of(name));
        if (std::isfinite(scale)) return scale;
        return error(BATCHLLM_ERROR_ADAPTER_FORMAT, "%s: the scale of %s is not finite",
                     files_.config_path().c_str(), printable(name).c_str());
    }

    Status take_linear(const std::string &name, const Module &module, const Stored &stored) {
        RETURN_IF_ERROR(check_rank(name, stored, 1));
        RETURN_IF_ERROR(check_shape(stored.a, stored.a.rows, module.columns));
        RETURN_IF_ERROR(check_shape(stored.b, module.rows, stored.b.columns));
        ASSIGN_OR_RETURN(const float scale, scale_of(name));
        return change(module, stored.a, stored.b, scale);
    }

    // Sets the change of each of the module's parts.
    Status change(const Module &module, const Tensor &a, const Tensor &b, float scale) {
        for (const Part &part : module.parts) {
            LowRank low{a, b,
                        scale * part.matrix->factor}; // what multiplies W multiplies its change
            low.b.rows = part.matrix->rows;
            const int64_t row_bytes = b.columns * dtype_bytes(b.dtype);
            if (part.row_step == 1) {
                low.b.data = b.data + part.first_row * row_bytes;
            } else {
                std::byte *rows = keep(low.b.rows * row_bytes);
                for (int64_t r = 0; files_.has_bytes() && r < low.b.rows; ++r) {
                    std::memcpy(rows + r * row_bytes,
                                b.data + (part.first_row + r * part.row_step) * row_bytes,
                                static_cast<size_t>(row_bytes));
                }
                low.b.data = rows;
            }
            if (!adapter_->changes.try_emplace(part.matrix, std::move(low)).second) {
                return error(BATCHLLM_ERROR_ADAPTER_FORMAT,
                             "%s: tensor %s: its module is changed twice", path_.c_str(),
                             printable(a.name).c_str());
            }
        }
        return {};
    }

    std::byte *keep(int64_t bytes) {
        copied_bytes_ += bytes;
        adapter_->bytes.emplace_back(new std::byte[static_cast<size_t>(bytes)]);
        return adapter_->bytes.back().get();
    }

    // `target_parameters`: A is [experts * rank, columns], expert by expert; B is [rows, rank *
    // experts], with the experts' columns by turns. PEFT may also have taken what is stored as
    // [experts, rows, columns] for [experts, columns, rows]: A is then [experts * rank, rows] and
    // B [columns, rank * experts], and the change is A^T B^T.
    struct Fit {
        const Stacked *parameter;
        bool turned;
    };
    // Experts' matrices that fit several parameters, or one both ways.
    struct Unsure {
        std::string name; // of the module
        Stored stored;
        std::vector<Fit> fits;
    };

    Status take_stacked(const std::string &name, std::span<const Stacked> parameters,
                        const Stored &stored) {
        std::vector<Fit> fits;
        for (const Stacked &parameter : parameters) {
            if (!config_->names_parameter(parameter_name(name, parameter))) continue;
            const int64_t rows = parameter.experts[0].rows, columns = parameter.experts[0].columns;
            const int64_t in = stored.a.columns, out = stored.b.rows;
            if (in == columns && out == rows) fits.push_back({&parameter, false});
            if (in == rows && out == columns) fits.push_back({&parameter, true});
        }
        if (fits.size() > 1) {
            unsure_.push_back({name, stored, std::move(fits)});
            return {};
        }
        if (fits.size() == 1) {
            turned_ = fits[0].turned;
            return take_experts(name, fits[0], stored);
        }
        return error(BATCHLLM_ERROR_ADAPTER_FORMAT,
                     "%s: tensor %s has shape %s, and lora_B %s: they fit no parameter of this "
                     "module that target_parameters names",
                     path_.c_str(), printable(stored.a.name).c_str(),
                     shape_text({stored.a.rows, stored.a.columns}).c_str(),
                     shape_text({stored.b.rows, stored.b.columns}).c_str());
    }

    // All experts of a model are of one class, which one version of PEFT has changed: where one of the adapter's parameters
    // shows whether they are turned, it shows it for all.
    Status take_unsure(const Unsure &unsure) {
        const Fit *found = nullptr;
        int64_t count = 0;
        for (const Fit &fit : unsure.fits) {
            if ((turned_ ? turned_ : turned_by_version(*fit.parameter)) != fit.turned) continue;
            found = &fit;
            ++count;
        }
        if (count == 1) return take_experts(unsure.name, *found, unsure.stored);
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: tensor %s fits the experts' matrices in more than one way, and "
                     "peft_version in adapter_config.json does not tell which is meant: write the "
                     "version there that made the adapter, or merge it into the model",
                     path_.c_str(), printable(unsure.stored.a.name).c_str());
    }

    // Before 0.19.1 PEFT took all parameters for [experts, columns, rows], and since then for
    // [experts, rows, columns], but for those of classes that say is_transposed. 0.19.0 had the two
    // the wrong way round. Which classes say so depends on the version of transformers.
    std::optional<bool> turned_by_version(const Stacked &parameter) const {
        const auto &version = config_->peft_version();
        if (!version) return std::nullopt;
        if (!parameter.transposed) return *version < AdapterConfig::Version{0, 19, 1};
        if (*version < AdapterConfig::Version{0, 19, 0}) return false;
        return std::nullopt;
    }

    // As the adapter calls it: its own name of the module, and the parameter's.
    static std::string parameter_name(const std::string &module, const Stacked &parameter) {
        return module + parameter.name.substr(parameter.name.rfind('.'));
    }

    Status take_experts(const std::string &module_name, const Fit &fit, const Stored &stored) {
        const Stacked &parameter = *fit.parameter;
        const std::string name = parameter_name(module_name, parameter);
        const auto experts = static_cast<int64_t>(parameter.experts.size());
        RETURN_IF_ERROR(check_rank(name, stored, experts));
        ASSIGN_OR_RETURN(const float scale, scale_of(name));
        const int64_t rank = stored.a.rows / experts;
        for (int64_t e = 0; e < experts; ++e) {
            const Module &module = parameter.experts[static_cast<size_t>(e)];
            Tensor a = stored.a;
            a.rows = rank;
            a.data += e * rank * a.columns * dtype_bytes(a.dtype);
            Tensor b = columns_of(stored.b, e, experts, rank); // [stored rows, rank]
            if (fit.turned) {
                std::swap(a, b);
                a = transposed(a);
                b = transposed(b);
            }
            RETURN_IF_ERROR(change(module, a, b, scale));
        }
        return {};
    }

    // Every `step`-th column from `first` on.
    Tensor columns_of(const Tensor &from, int64_t first, int64_t step, int64_t count) {
        Tensor to = from;
        to.columns = count;
        return filled(
            to,
            [&](int64_t row, int64_t column) { return row * from.columns + first + column * step; },
            from);
    }

    Tensor transposed(const Tensor &from) {
        Tensor to = from;
        std::swap(to.rows, to.columns);
        return filled(
            to, [&](int64_t row, int64_t column) { return column * from.columns + row; }, from);
    }

    template <typename Index> Tensor filled(Tensor to, const Index &index, const Tensor &from) {
        const int64_t size = dtype_bytes(to.dtype);
        std::byte *data = keep(to.bytes());
        for (int64_t row = 0, i = 0; files_.has_bytes() && row < to.rows; ++row) {
            for (int64_t column = 0; column < to.columns; ++column, ++i) {
                std::memcpy(data + i * size, from.data + index(row, column) * size,
                            static_cast<size_t>(size));
            }
        }
        to.data = data;
        return to;
    }

    Status take_embedding(const std::string &name, const FactorPair &pair) {
        ASSIGN_OR_RETURN(const Stored stored, read_pair(name, pair));
        if (described_name(name + ".weight", model_) != model_.embedding.name) {
            return error(BATCHLLM_ERROR_ADAPTER_FORMAT,
                         "%s: tensor %s: the model has no such embedding", path_.c_str(),
                         printable(pair.a->name).c_str());
        }
        if (!config_->names_module(name)) {
            return refuse(*pair.a, "belongs to a module that target_modules does not name");
        }
        RETURN_IF_ERROR(check_rank(name, stored, 1));
        RETURN_IF_ERROR(check_shape(stored.a, stored.a.rows, model_.embedding.rows));
        RETURN_IF_ERROR(check_shape(stored.b, model_.hidden, stored.b.columns));
        ASSIGN_OR_RETURN(const float scale, scale_of(name));
        adapter_->embedding = {stored.a, stored.b, scale};
        return {};
    }

    Status refuse(const StoredTensor &tensor, const std::string &why) const {
        return error(BATCHLLM_ERROR_ADAPTER_FORMAT, "%s: tensor %s %s", path_.c_str(),
                     printable(tensor.name).c_str(), why.c_str());
    }

    AdapterFiles files_;
    const Model &model_;
    const AdapterModules &modules_;
    std::string path_;
    const AdapterConfig *config_ = nullptr;
    std::map<std::string, FactorPair> linear_, embeddings_; // by module
    std::vector<std::string> scaled_; // modules and parameters, as the configuration names them
    std::vector<Unsure> unsure_;
    std::optional<bool> turned_; // as far as shapes show it
    std::shared_ptr<Adapter> adapter_;
    int64_t copied_bytes_ = 0;
};

} // namespace

bool has_others(const AdapterFiles &files) {
    return std::any_of(files.tensors.begin(), files.tensors.end(),
                       [](const StoredTensor &tensor) { return kind_of(tensor.name) == nullptr; });
}

Result<std::shared_ptr<Adapter>> make_adapter(AdapterFiles files, const AdapterModules &modules,
                                              int64_t *copied_bytes) {
    AdapterReader reader(std::move(files), modules);
    auto adapter = reader.read();
    if (copied_bytes != nullptr) *copied_bytes = reader.copied_bytes();
    return adapter;
}

} // namespace batchllm
