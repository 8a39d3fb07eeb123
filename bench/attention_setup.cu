#include "attention_setup.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "attention/worklist_by_position.h"

namespace batchllm::cuda {
namespace {

__device__ uint32_t hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return static_cast<uint32_t>(x);
}

// Approximately normal: a sum of 4 uniforms, variance 1.
__device__ float noise(uint64_t index) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
        sum += static_cast<float>(hash(index * 4 + i) >> 8) / 16777216.f - 0.5f;
    }
    return sum * 1.7320508f;
}

// Numbers in e4m3 are this much larger, so that they are well within its range.
constexpr float kStoredUnit = 32;

template <typename T> __global__ void fill(T *data, int64_t count, uint64_t seed) {
    const float unit = sizeof(T) == 1 ? kStoredUnit : 1;
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * blockDim.x) {
        data[i] = T(unit * noise(seed + i));
    }
}

void fill_with_noise(void *data, int64_t count, uint64_t seed, bool f16) {
    if (f16) {
        fill<<<1024, 256>>>(static_cast<__half *>(data), count, seed);
    } else {
        fill<<<1024, 256>>>(static_cast<__nv_bfloat16 *>(data), count, seed);
    }
    CHECK(cudaGetLastError());
}

// Sets *value if the environment has the name.
void read_setting(const char *name, double *value) {
    if (const char *text = std::getenv(name)) *value = std::atof(text);
}

} // namespace

DeviceArrays::~DeviceArrays() {
    for (void *p : owned_) cudaFree(p);
}

void *DeviceArrays::allocate(int64_t bytes) {
    void *p = nullptr;
    CHECK(cudaMalloc(&p, std::max<int64_t>(16, bytes)));
    owned_.push_back(p);
    return p;
}

AttentionSetup::AttentionSetup(const AttentionFamily &family, const AttentionCase &source,
                               int copies, uint64_t seed, Widening widening)
    : family_(family), case_(source), copies_(copies), widening_(widening) {
    CHECK(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, 0));
    if (const char *text = std::getenv("SMS")) sms_ = std::atoi(text);
    const AttentionShape &s = case_.shape;
    const int64_t kv_elements = case_.pool_elements() * copies;
    auto *kv = device_.make<uint8_t>(case_.pool_bytes() * copies);
    auto *q = device_.make<uint16_t>(q_elements());
    if (s.e4m3) {
        fill<<<1024, 256>>>(reinterpret_cast<__nv_fp8_e4m3 *>(kv), kv_elements, seed);
        CHECK(cudaGetLastError());
    } else {
        fill_with_noise(kv, kv_elements, seed, s.f16);
    }
    fill_with_noise(q, q_elements(), seed + (1ull << 40), s.f16);
    AttentionArguments &a = arguments_;
    a.type = s.f16 ? AttentionType::f16 : AttentionType::bf16;
    a.heads = s.heads;
    a.kv_heads = s.kv_heads;
    a.head_dim = s.head_dim;
    a.scale = s.sharpness / std::sqrt(static_cast<float>(s.head_dim));
    a.window = s.window;
    a.softcap = s.softcap;
    if (!case_.sinks.empty()) a.sinks = device_.upload(case_.sinks);
    a.q = q;
    a.q_stride = a.out_stride = int64_t{s.heads} * s.head_dim;
    a.out = device_.make<uint16_t>(q_elements());
    a.kv = kv;
    a.pages = device_.upload(case_.pages);
    a.kv_e4m3 = s.e4m3;
    if (s.e4m3) {
        std::mt19937 random(static_cast<unsigned>(seed));
        for (int i = 0; i < 2 * s.kv_heads; ++i) {
            kv_scales_.push_back((0.5f + static_cast<float>(random() % 1001) / 1000) / kStoredUnit);
        }
        const float *scales = device_.upload(kv_scales_);
        a.k_scale = scales;
        a.v_scale = scales + s.kv_heads;
    }
    const int64_t counters = int64_t{case_.tokens()} * s.kv_heads;
    a.arrivals = device_.make<int32_t>(counters);
    a.queues = device_.make<int32_t>(4);
    CHECK(cudaMemset(a.arrivals, 0, counters * sizeof(int32_t)));
    CHECK(cudaMemset(a.queues, 0, 4 * sizeof(int32_t)));
    CHECK(cudaMemset(a.out, 0xff, q_elements() * 2)); // NaN, so that missing writes are detected
}

WorklistOptions AttentionSetup::options(Sharing sharing) const {
    const AttentionShape &s = case_.shape;
    WorklistOptions options;
    options.heads = s.heads;
    options.kv_heads = s.kv_heads;
    options.head_dim = s.head_dim;
    options.window = s.window;
    options.chunked = s.chunked;
    options.sms = sms_;
    options.kv_bytes = s.kv_bytes();
    options.widened_room = widening_.room;
    family_.set_costs(&options);
    if (widening_.always) options.widen_us = options.widen_launch_us = 0;
    options.share = sharing != Sharing::apart;
    options.always_share = sharing == Sharing::together;
    read_setting("WIDE_US", &options.wide_us);
    read_setting("NARROW_US", &options.narrow_us);
    read_setting("SHARE_US", &options.share_us);
    read_setting("STREAM_US", &options.stream_us);
    read_setting("DECODE_SHARE", &options.decode_share);
    read_setting("BYTES_US", &options.bytes_us);
    read_setting("ITEM_US", &options.item_us);
    read_setting("MERGE_US", &options.merge_us);
    read_setting("MATRIX_SPLIT", &options.matrix_split);
    read_setting("STREAM_SPLIT", &options.stream_split);
    read_setting("WIDEN_US", &options.widen_us);
    read_setting("WIDEN_LAUNCH_US", &options.widen_launch_us);
    return options;
}

void AttentionSetup::use(Sharing sharing) {
    if (sharing == Sharing::by_position) return use_by_position(case_.nodes, case_.tokens());
    build_worklist(case_.nodes, case_.tokens(), options(sharing), &worklist_);
    arguments_.by_row = 0;
    upload();
}

void AttentionSetup::use_by_position(const std::vector<AttentionNode> &nodes, int32_t tokens) {
    build_worklist_by_position(nodes, tokens, options(Sharing::by_position), &worklist_);
    arguments_.by_row = 1;
    upload();
}

void AttentionSetup::upload() {
    const AttentionShape &s = case_.shape;
    AttentionArguments &a = arguments_;
    a.items = device_.upload(worklist_.items);
    a.matrix_items = worklist_.matrix_items;
    a.stream_items = worklist_.stream_items;
    a.matrix_ctas = worklist_.matrix_ctas;
    a.matrix_by_head = worklist_.matrix_by_head;
    if (const char *text = std::getenv("MATRIX_CTAS")) a.matrix_ctas = std::atoi(text);
    a.rows = device_.upload(worklist_.rows);
    a.partials = device_.upload(worklist_.partials);
    a.merged = device_.upload(worklist_.merged);
    a.widened = device_.upload(worklist_.widened);
    a.widened_count = static_cast<int32_t>(worklist_.widened.size());
    a.wide = device_.make<uint8_t>(a.widened_count * kv_page_bytes(s.kv_heads, s.head_dim, 2));
    a.merged_count = static_cast<int32_t>(worklist_.merged.size());
    a.partial_out = device_.make<float>(int64_t{worklist_.slots} * s.heads * s.head_dim);
    a.partial_lse = device_.make<float>(int64_t{worklist_.slots} * s.heads);
    CHECK(cudaDeviceSynchronize());
}

std::vector<float> to_floats(const std::vector<uint16_t> &elements, bool f16) {
    std::vector<float> values(elements.size());
    for (size_t i = 0; i < values.size(); ++i) {
        if (f16) {
            values[i] = __half2float(__half(__half_raw{elements[i]}));
        } else {
            const uint32_t wide = uint32_t{elements[i]} << 16;
            std::memcpy(&values[i], &wide, sizeof wide);
        }
    }
    return values;
}

std::vector<float> kv_to_floats(const std::vector<uint8_t> &pool, const AttentionShape &shape) {
    if (!shape.e4m3) {
        std::vector<uint16_t> elements(pool.size() / 2);
        std::memcpy(elements.data(), pool.data(), pool.size());
        return to_floats(elements, shape.f16);
    }
    std::vector<float> values(pool.size());
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(pool[i], __NV_E4M3)));
    }
    return values;
}

} // namespace batchllm::cuda
