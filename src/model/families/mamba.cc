#include "model/families/mamba.h"

#include <limits>

namespace batchllm {
namespace {

// A number, or infinity as transformers writes it.
Result<float> read_limit(const JsonValue &value) {
    if (value.is_object()) {
        ASSIGN_OR_RETURN(const std::string name, value.string("__float__"));
        if (name == "Infinity") return std::numeric_limits<float>::infinity();
        return value.at("__float__")->fail("must be Infinity");
    }
    ASSIGN_OR_RETURN(const double limit, value.number(0, 3e38));
    return static_cast<float>(limit);
}

} // namespace

LinearAttention mamba_layer() {
    LinearAttention mamba;
    mamba.rule = StateRule::state_space;
    mamba.unit_length = false;
    mamba.gate_first = true;
    return mamba;
}

Status read_step_limits(const JsonValue &config, std::string_view key, LinearAttention *mamba) {
    const auto limits = config.given(key);
    if (!limits) return {};
    ASSIGN_OR_RETURN(const auto both, limits->elements());
    if (both.size() != 2) return limits->fail("must be two numbers");
    ASSIGN_OR_RETURN(mamba->least_step, read_limit(both[0]));
    ASSIGN_OR_RETURN(mamba->most_step, read_limit(both[1]));
    if (mamba->least_step <= mamba->most_step) return {};
    return limits->fail("the first must be at most the second");
}

// In the files a row of the input's product is z, x, B, C, dt, and the convolution is over x, B, C.
void name_mamba_tensors(const std::string &prefix, int64_t hidden, float epsilon, bool bias,
                        LinearAttention *mamba) {
    const int64_t values = mamba->values_size(), keys = mamba->keys_size();
    const int64_t channels = mamba->channels(), heads = mamba->value_heads;
    struct Slice {
        int64_t first, rows;
    };
    const Slice q{values + keys, keys}, k{values, keys}, v{0, values}; // of the convolution
    for (const Slice &slice : {q, k, v}) {
        Weight part =
            named_convolution(prefix + "conv1d", channels, slice.first, slice.rows, mamba->width);
        if (bias) {
            part.bias = named_vector(prefix + "conv1d.bias", slice.rows);
            part.bias.stored_rows = channels;
            part.bias.first_row = slice.first;
        }
        mamba->convolution.push_back(std::move(part));
    }
    const int64_t rows = mamba->input_rows();
    const auto shifted = [&](const Slice &slice) {
        return Slice{values + slice.first, slice.rows};
    };
    for (const Slice &slice :
         {shifted(q), shifted(k), shifted(v), Slice{0, values}, Slice{values + channels, heads}}) {
        mamba->input.push_back(
            fused_weight(prefix + "in_proj", rows, slice.first, slice.rows, hidden).values);
    }
    mamba->decay = named_vector(prefix + "A_log", heads);
    mamba->step_bias = named_vector(prefix + "dt_bias", heads);
    mamba->skip = named_vector(prefix + "D", heads);
    mamba->norm = named_norm(NormKind::rms, prefix + "norm", values, epsilon);
    mamba->o = named_weight(prefix + "out_proj", hidden, values);
}

} // namespace batchllm
