// Checks the fused attention against a float64 reference on random shapes, and times it.
//   attention --check [seed [rounds]]  random shapes, page tables, windows, node forests
//   attention [--only TEXT] [group...]  microseconds a launch (CUDA graph of launches over enough pools to
//                             leave L2) of the cases whose name holds TEXT;
//                             groups: table (without arguments), all, B8a B8b B8c C T7 R CH P PS S D L J G
// Before these, --family sm80, sm80_small or sm90: not the device's best kernels. Then --kv e4m3: keys and values are
// stored so; --kv both: each check or case with both.
// SMS=66 in the environment: on so many of the device's SMs. HEAD_DIM=512: checks shapes of such heads alone.
// Of each case: as the worklist chooses; with every shared prefix read together, and with none; the
// same items launched one queue after the other; TB/s of the bytes that must move and TFLOP/s.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "attention_check.h"
#include "attention_groups.h"
#include "attention_setup.h"

using namespace batchllm::cuda;

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77; // Meson's number for a skipped test
    }
    cudaDeviceProp properties{};
    CHECK(cudaGetDeviceProperties(&properties, 0));
    int first = 1; // of what is left of the arguments
    std::string name = "auto";
    if (argc > first + 1 && std::string(argv[first]) == "--family") {
        name = argv[first + 1];
        first += 2;
    }
    const AttentionFamily *family = find_attention(name, properties.major, properties.minor);
    if (family == nullptr) {
        std::printf("skipped: no attention %s for compute capability %d.%d\n", name.c_str(),
                    properties.major, properties.minor);
        return 77;
    }
    std::string kv = "model";
    if (argc > first + 1 && std::string(argv[first]) == "--kv") {
        kv = argv[first + 1];
        first += 2;
        if (kv != "model" && kv != "e4m3" && kv != "both") {
            std::printf("--kv is model, e4m3 or both\n");
            return 2;
        }
    }
    std::printf("attention %s on %s\n", family->name, properties.name);
    if (argc > first && std::string(argv[first]) == "--check") {
        const unsigned seed = argc > first + 1 ? static_cast<unsigned>(std::atoi(argv[first + 1]))
                                               : std::random_device()();
        const int rounds = argc > first + 2 ? std::atoi(argv[first + 2]) : 60;
        bool right = true;
        for (const bool e4m3 : {false, true}) {
            if (kv == (e4m3 ? "model" : "e4m3")) continue;
            if (e4m3) std::printf("keys and values in e4m3\n");
            right = check_attention(*family, seed, rounds, e4m3) && right;
            right = check_by_row(*family, seed, rounds, e4m3) && right;
        }
        return right ? 0 : 1;
    }
    std::string only;
    if (argc > first + 1 && std::string(argv[first]) == "--only") {
        only = argv[first + 1];
        first += 2;
    }
    AttentionTimer timer(*family, only, kv != "e4m3", kv != "model");
    timer.print_header();
    if (argc == first) time_group("table", &timer);
    for (int i = first; i < argc; ++i) time_group(argv[i], &timer);
    timer.print_summary();
    return 0;
}
