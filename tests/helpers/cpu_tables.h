// The kernel tables that this processor runs, and the AMX table with emulated tiles if the
// processor has none.
#pragma once

#include <vector>

#include "backend/cpu/kernels.h"

// Null if not even AVX-512's bfloat16 is compiled in.
const batchllm::cpu::Kernels *emulated_tile_kernels();

inline std::vector<const batchllm::cpu::Kernels *> native_tables(batchllm::DType element) {
    using namespace batchllm::cpu;
    std::vector<const Kernels *> tables;
    for (const Isa isa : kAllIsas) {
        const Kernels *kernels = kernels_for(isa, element);
        if (kernels != nullptr && isa_runs_here(isa)) tables.push_back(kernels);
    }
    return tables;
}

// Tables of both types, without the emulated one.
inline std::vector<const batchllm::cpu::Kernels *> all_native_tables() {
    auto tables = native_tables(batchllm::DType::f32);
    for (const auto *kernels : native_tables(batchllm::DType::bf16)) tables.push_back(kernels);
    return tables;
}

inline std::vector<const batchllm::cpu::Kernels *> cpu_tables(batchllm::DType element) {
    using namespace batchllm::cpu;
    std::vector<const Kernels *> tables = native_tables(element);
    if (element == batchllm::DType::bf16 && isa_runs_here(Isa::avx512_bf16) &&
        !isa_runs_here(Isa::amx)) {
        tables.push_back(emulated_tile_kernels());
    }
    return tables;
}
