// How a checkpoint's quantised weights are stored: the "quantization_config" of config.json, or
// hf_quant_config.json.
//
// Supported are weights in e4m3 with scales: compressed-tensors (float-quantized and
// naive-quantized), "fp8" (per block or per tensor) and ModelOpt's FP8, FP8_PER_CHANNEL_PER_TOKEN
// and FP8_PB_WO; and four-bit weights: AWQ, GPTQ, compressed-tensors (pack-quantized,
// mxfp4-pack-quantized, nvfp4-pack-quantized), "mxfp4" and ModelOpt's NVFP4. Anything else is
// rejected, naming key and value. For activations, only the type is checked to be fp8, and with NVFP4
// nothing; how they are computed is up to the backend. The same goes for keys and values, except that
// their scales are read if they are for e4m3.
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
    channel,         // per row
    block,           // block_rows x block_columns
    block_or_tensor, // per block; but a single number applies to the whole tensor
};

// Which tensors contain a four-bit matrix: find_four_bits.cc.
enum class FourBitForm : uint8_t {
    none,
    packed,        // integers of compressed-tensors
    packed_mxfp4,  // MXFP4 of compressed-tensors
    packed_nvfp4,  // NVFP4 of compressed-tensors
    nvfp4,         // NVFP4 of ModelOpt, if such tensors exist
    awq,           // if such tensors exist
    gptq,          // likewise
    mxfp4_experts, // likewise, for experts stored together
};

struct ScaleScheme {
    ScaleKind kind = ScaleKind::tensor;
    int64_t block_rows = 0, block_columns = 0; // for ScaleKind::block

    FourBitForm four_bits = FourBitForm::none; // if not none, the fields above are unused
    int64_t group = 0;                         // how many columns share a scale; 0: all
    bool symmetric = true;                     // all zero points are the middle of the range
    bool second_version = false;               // gptq: the second version of the format
    bool any_order = false;                    // gptq: the columns of a group may be anywhere
};

// A set of modules by name ("model.layers.0.mlp.up_proj").
class ModuleNames {
  public:
    enum class Kind : uint8_t {
        compressed, // a whole name, "re:" and a regular expression for the start of a name,
                    // "Linear" for all
        parts,      // a whole name, or the part of it before or after some dot
        wildcards,  // a whole name with * and ?
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

    // Empty: the module's weight is not quantised.
    std::optional<ScaleScheme> scheme_of(std::string_view module) const;

    // Whether some weights are in e4m3.
    bool has_fp8() const {
        const auto is_fp8 = [](const ScaleScheme &s) { return s.four_bits == FourBitForm::none; };
        return (all_ && is_fp8(*all_)) ||
               std::any_of(groups_.begin(), groups_.end(),
                           [&](const Group &group) { return is_fp8(group.scheme); });
    }

    // Whether the scales of keys and values in the files, if any, are for e4m3.
    bool kv_in_e4m3() const { return kv_in_e4m3_; }
    // The scale to use if the files have none; 0: none is given.
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
    std::optional<ScaleScheme> all_; // used if there are no groups
    ModuleNames ignored_;
    bool kv_in_e4m3_ = true;
    float absent_kv_scale_ = 0;
};

} // namespace batchllm
