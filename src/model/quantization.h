// How a checkpoint's quantised weights are stored: the "quantization_config" of config.json, or
// hf_quant_config.json.
//
// Supported are weights in e4m3 with scales: compressed-tensors (float-quantized and
// naive-quantized), "fp8" (by blocks, or of a tensor) and ModelOpt's FP8, FP8_PER_CHANNEL_PER_TOKEN
// and FP8_PB_WO; and those of four bits: AWQ, GPTQ, compressed-tensors (pack-quantized,
// mxfp4-pack-quantized) and "mxfp4". Everything else is refused by key and value. The quantisation of
// activations is only checked to be in fp8; what happens to them is up to the backend. So it is with
// keys and values, whose scales are read if they are for e4m3.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "constraint/automaton.h"

namespace batchllm {

// What one scale applies to.
enum class ScaleKind : uint8_t {
    tensor,
    channel,         // a row
    block,           // block_rows x block_columns
    block_or_tensor, // blocks; but a single number applies to its whole tensor
};

// Which tensors hold a matrix of four bits: find_four_bits.cc.
enum class FourBitForm : uint8_t {
    none,
    packed,        // compressed-tensors' integers
    packed_mxfp4,  // its MXFP4
    awq,           // where there are such tensors
    gptq,          // the same
    mxfp4_experts, // the same, of experts stored together
};

struct ScaleScheme {
    ScaleKind kind = ScaleKind::tensor;
    int64_t block_rows = 0, block_columns = 0; // of blocks

    FourBitForm four_bits = FourBitForm::none; // else the above means nothing
    int64_t group = 0;                         // columns that share a scale; 0: all
    bool symmetric = true;                     // all zero points are the middle
    bool second_version = false;               // of gptq
    bool any_order = false;                    // of gptq: columns of a group stand anywhere
};

// Modules by name ("model.layers.0.mlp.up_proj").
class ModuleNames {
  public:
    enum class Kind : uint8_t {
        compressed, // a whole name, "re:" and an expression that a name begins with, "Linear" for all
        parts,      // a whole name, or the part of it before or after some point
        wildcards, // a whole name with * and ?
    };

    static Result<ModuleNames> read(const JsonValue &list, Kind kind, Budget *budget);

    bool has_name(std::string_view module) const;
    bool has_expression(std::string_view module) const;
    bool all_linear() const { return all_linear_; }
    bool has(std::string_view module) const { return has_name(module) || has_expression(module); }

  private:
    bool parts_ = false;
    bool all_linear_ = false;
    std::unordered_set<std::string> names_;
    std::vector<Automaton> expressions_;
};

class Quantization {
  public:
    // The value of "quantization_config".
    static Result<std::shared_ptr<const Quantization>> read(const JsonValue &config);
    // The whole of hf_quant_config.json.
    static Result<std::shared_ptr<const Quantization>> read_modelopt(const JsonValue &file);

    // Nothing: the module's weight is not quantised.
    std::optional<ScaleScheme> scheme_of(std::string_view module) const;

    // Whether some weights are in e4m3.
    bool has_fp8() const {
        const auto is_fp8 = [](const ScaleScheme &s) { return s.four_bits == FourBitForm::none; };
        return (all_ && is_fp8(*all_)) ||
               std::any_of(groups_.begin(), groups_.end(),
                           [&](const Group &group) { return is_fp8(group.scheme); });
    }

    // Whether the files' scales of keys and values, if any, are for e4m3.
    bool kv_in_e4m3() const { return kv_in_e4m3_; }
    // The scale to use if they have none; 0: no such scale is given.
    float absent_kv_scale() const { return absent_kv_scale_; }

  private:
    struct Group {
        ModuleNames targets;
        ScaleScheme scheme;
    };
    static Result<Group> read_group(std::string_view name, const JsonValue &value, Budget *budget);
    Status read_compressed(const JsonValue &config, Budget *budget);
    Status read_fp8(const JsonValue &config, Budget *budget);
    Status read_modelopt_keys(const JsonValue &config, const char *excluded, Budget *budget);

    std::vector<Group> groups_;
    std::optional<ScaleScheme> all_; // if there are no groups
    ModuleNames ignored_;
    bool kv_in_e4m3_ = true;
    float absent_kv_scale_ = 0;
};

} // namespace batchllm
