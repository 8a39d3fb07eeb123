#include "backend/state_memory.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "batchllm.h"

namespace batchllm {
namespace {

// The pages reserved for each slot: for a request's own tokens and its share of its group's prefix.
constexpr int64_t tokens_of_slot = 512;
// Slots may take 1/16 of the memory in any case: short requests, and those that share most of their
// tokens, have fewer tokens of their own.
constexpr int64_t least_share = 16;

} // namespace

Result<MemoryShares> share_memory(int64_t bytes, const MemoryNeeds &needs, int64_t slots) {
    if (needs.slot_bytes == 0) return MemoryShares{0, bytes};
    const int64_t most =
        std::min<int64_t>(bytes / needs.slot_bytes, std::numeric_limits<int32_t>::max());
    if (slots == 0) {
        slots = std::max(bytes / (needs.slot_bytes + tokens_of_slot * needs.token_bytes),
                         bytes / least_share / needs.slot_bytes);
        slots = std::clamp<int64_t>(slots, 1, std::max<int64_t>(1, 2 * needs.step_tokens));
    }
    if (slots > most) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory: %lld bytes are too few for %lld state slots of %lld bytes",
                     static_cast<long long>(bytes), static_cast<long long>(slots),
                     static_cast<long long>(needs.slot_bytes));
    }
    return MemoryShares{slots, bytes - slots * needs.slot_bytes};
}

Result<bool> read_state_option(const std::string &key, const std::string &value, const Model *model,
                               StateOptions *out) {
    const auto wrong = [&](const char *why) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend option %s=%s: %s", key.c_str(),
                     value.c_str(), why);
    };
    if (key == "state_slots") {
        const char *end = value.data() + value.size();
        const auto [stop, failure] = std::from_chars(value.data(), end, out->slots);
        if (failure != std::errc() || stop != end || out->slots < 1) {
            return wrong("not a number of at least 1");
        }
    } else if (key == "state_type") {
        if (value != "f32" && value != "bf16") return wrong("f32 or bf16");
        out->type = value == "f32" ? DType::f32 : DType::bf16;
    } else {
        return false;
    }
    if (model == nullptr || model->state_size() == 0) {
        return wrong("the model has no layer with a state");
    }
    const bool matrices =
        std::any_of(model->layers.begin(), model->layers.end(),
                    [](const Layer &layer) { return layer.linear_attention() != nullptr; });
    if (out->type != DType::f32 && !matrices) {
        return wrong("the states of short convolutions are kept in f32");
    }
    return true;
}

std::string name_of_states(const StateOptions &options) {
    return options.type == DType::f32 ? "" : std::string(", states in ") + dtype_name(options.type);
}

Status check_reproducible(const StateOptions &options) {
    if (options.type == DType::f32) return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "backend option state_type=%s: reproducible needs states in f32",
                 dtype_name(options.type));
}

} // namespace batchllm
