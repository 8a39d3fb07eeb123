#include "model/families/families.h"

namespace batchllm {

std::span<const Family> known_families() {
#define BATCHLLM_ROW(model_type, class_name, describe) {model_type, class_name, describe},
    static constexpr Family families[] = {BATCHLLM_FAMILIES(BATCHLLM_ROW)};
#undef BATCHLLM_ROW
    return families;
}

} // namespace batchllm
