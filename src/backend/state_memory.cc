#include "backend/state_memory.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "batchllm.h"

namespace batchllm {
namespace {

// Own tokens of a request, and its part of its group's prefix.
constexpr int64_t tokens_of_slot = 512;

} // namespace

Result<MemoryShares> share_memory(int64_t bytes, const MemoryNeeds &needs, int64_t slots) {
    if (needs.slot_bytes == 0) return MemoryShares{0, bytes};
    const int64_t most =
        std::min<int64_t>(bytes / needs.slot_bytes, std::numeric_limits<int32_t>::max());
    if (slots == 0) {
        slots = bytes / (needs.slot_bytes + tokens_of_slot * needs.token_bytes);
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

Result<int64_t> read_state_slots(const std::string &value, const Model &model) {
    int64_t slots = 0;
    const char *end = value.data() + value.size();
    const auto [stop, failure] = std::from_chars(value.data(), end, slots);
    if (failure != std::errc() || stop != end || slots < 1) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option state_slots=%s: not a number of at least 1", value.c_str());
    }
    if (model.state_size() > 0) return slots;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "backend option state_slots=%s: the model has no layer with a state",
                 value.c_str());
}

} // namespace batchllm
