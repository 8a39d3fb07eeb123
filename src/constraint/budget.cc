#include "constraint/budget.h"

namespace batchllm {

Status Budget::exhausted() const {
    if (spent_ != nullptr) *spent_ = true;
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "the constraint is too large: making it takes more than %lld automaton states, or "
                 "too long",
                 static_cast<long long>(states_));
}

} // namespace batchllm
