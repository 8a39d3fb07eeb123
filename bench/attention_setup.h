// An attention case -> everything on the device that its launch takes: pools and queries of noise, the
// output, the page table, and a worklist.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime_api.h>

#include "attention/family.h"
#include "attention_case.h"

// Ends the program if the CUDA call fails.
#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                              \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                     \
                         cudaGetErrorString(status_));                                             \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

namespace batchllm::cuda {

// Device memory that is freed with its owner.
class DeviceArrays {
  public:
    DeviceArrays() = default;
    DeviceArrays(const DeviceArrays &) = delete;
    DeviceArrays &operator=(const DeviceArrays &) = delete;
    ~DeviceArrays();
    template <typename T> T *make(int64_t count) {
        return static_cast<T *>(allocate(count * static_cast<int64_t>(sizeof(T))));
    }
    template <typename T> T *upload(const std::vector<T> &values) {
        T *p = make<T>(static_cast<int64_t>(values.size()));
        if (!values.empty()) {
            CHECK(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
        }
        return p;
    }

  private:
    void *allocate(int64_t bytes);
    std::vector<void *> owned_;
};

// Shared prefixes are read together if the worklist expects that to be faster, always, or never; or
// the worklist is the one with which a row's bits depend on nothing else.
enum class Sharing { chosen, together, apart, by_position };
inline constexpr const char *kSharingNames[] = {"chosen", "together", "apart", "by position"};

// For e4m3: how many pages there is room to widen, and whether they are widened whatever it costs.
struct Widening {
    int32_t room = 4096;
    bool always = false;
};

class AttentionSetup {
  public:
    // copies: how many copies of the pool there are, used in turn. seed: for the noise. SMS in the
    // environment: use this many SMs instead of all.
    AttentionSetup(const AttentionFamily &family, const AttentionCase &source, int copies,
                   uint64_t seed, Widening widening = {});

    // Builds the worklist. The environment may set its costs (WIDE_US=1.9).
    void use(Sharing sharing);
    // The same by position, as if these nodes were the step's. Per-token addresses are still those
    // of the whole step.
    void use_by_position(const std::vector<AttentionNode> &nodes, int32_t tokens);
    // Enqueues one launch on `sms` SMs, and whatever must run before it.
    void launch(const AttentionArguments &arguments, int sms, cudaStream_t stream) const {
        CHECK(launch_widen(arguments, sms, stream));
        CHECK(family_.launch(arguments, sms, stream));
    }

    const AttentionCase &source() const { return case_; }
    const AttentionArguments &arguments() const { return arguments_; } // for the first copy
    const Worklist &worklist() const { return worklist_; }
    // [2][kv_heads] for e4m3: of keys, of values.
    const std::vector<float> &kv_scales() const { return kv_scales_; }
    int copies() const { return copies_; }
    int sms() const { return sms_; }
    int64_t q_elements() const { // elements of the queries, and of the output
        return int64_t{case_.tokens()} * case_.shape.heads * case_.shape.head_dim;
    }

  private:
    WorklistOptions options(Sharing sharing) const;
    void upload();

    const AttentionFamily &family_;
    AttentionCase case_;
    int copies_;
    int sms_ = 0;
    Widening widening_;
    std::vector<float> kv_scales_;
    DeviceArrays device_;
    AttentionArguments arguments_{};
    Worklist worklist_;
};

// Converts 2-byte elements to floats.
std::vector<float> to_floats(const std::vector<uint16_t> &elements, bool f16);
// Keys and values of a pool as floats, without their scales.
std::vector<float> kv_to_floats(const std::vector<uint8_t> &pool, const AttentionShape &shape);

} // namespace batchllm::cuda
