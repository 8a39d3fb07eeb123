#include "backend/cpu/processor.h"

#include <cstdio>
#include <cstring>
#include <fstream>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/cpu/kernels.h"

namespace batchllm::cpu {
namespace {

// The number in a file with one number, or -1 (cgroups write "max" for no limit).
int64_t number_in(const char *path) {
    std::ifstream file(path);
    int64_t value = -1;
    if (file >> value) return value;
    return -1;
}

// Linux lets a process use tile registers only if it asks.
bool tiles_allowed() {
#if defined(__x86_64__) && defined(__linux__)
    static const bool allowed = [] {
        constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
        constexpr long request_permission = 0x1023, tile_data = 18; // asm/prctl.h
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & amx_bf16) != 0 &&
               (d & amx_tile) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return allowed;
#else
    return false;
#endif
}

} // namespace

bool isa_runs_here(Isa isa) {
    if (isa == Isa::portable) return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq");
    switch (isa) {
    case Isa::portable:
        return true;
    case Isa::avx2:
        return avx2;
    case Isa::avx512:
        return avx512;
    case Isa::avx512_bf16:
        return avx512 && __builtin_cpu_supports("avx512bf16");
    case Isa::amx:
        return avx512 && __builtin_cpu_supports("avx512bf16") && tiles_allowed();
    }
#endif
    return false;
}

const char *isa_name(Isa isa) {
    switch (isa) {
    case Isa::portable:
        return "portable";
    case Isa::avx2:
        return "avx2";
    case Isa::avx512:
        return "avx512";
    case Isa::avx512_bf16:
        return "avx512_bf16";
    case Isa::amx:
        return "amx";
    }
    return "";
}

Result<Isa> isa_from_name(const char *name) {
    for (const Isa isa : kAllIsas) {
        if (std::strcmp(name, isa_name(isa)) == 0) return isa;
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "backend option kernels=%s: not one of portable, avx2, avx512, avx512_bf16, amx",
                 name);
}

const Kernels *kernels_for(Isa isa, DType element) {
    switch (isa) {
    case Isa::portable:
        return portable_kernels(element);
    case Isa::avx2:
        return element == DType::f32 ? avx2_kernels() : nullptr;
    case Isa::avx512:
        return element == DType::f32 ? avx512_kernels() : nullptr;
    case Isa::avx512_bf16:
        return element == DType::bf16 ? avx512_bf16_kernels() : nullptr;
    case Isa::amx:
        return element == DType::bf16 ? amx_kernels() : nullptr;
    }
    return nullptr;
}

Isa best_isa(DType element) {
    for (const Isa isa : {Isa::amx, Isa::avx512_bf16, Isa::avx512, Isa::avx2}) {
        if (kernels_for(isa, element) != nullptr && isa_runs_here(isa)) return isa;
    }
    return Isa::portable;
}

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
        if (line.rfind("model name", 0) != 0) continue;
        const size_t colon = line.find(':');
        if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
    }
    return "processor";
}

int64_t available_memory() {
    int64_t available = 0;
    std::ifstream file("/proc/meminfo");
    std::string line;
    while (std::getline(file, line)) {
        long long kib = 0;
        if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) {
            available = int64_t{kib} * 1024;
        }
    }
    // A container's limit, if it is lower (control groups version 2, then version 1).
    const char *limits[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    for (const auto &[limit_path, usage_path] : limits) {
        const int64_t limit = number_in(limit_path);
        const int64_t usage = number_in(usage_path);
        if (limit < 0 || usage < 0) continue;
        const int64_t left = limit > usage ? limit - usage : 0;
        if (available == 0 || left < available) available = left;
    }
    return available;
}

} // namespace batchllm::cpu
