#include "linear/order_probe.h"

#include <algorithm>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "linear/scaling.h"

namespace batchllm::cuda {
namespace {

constexpr unsigned kBlocks = 1024, kThreads = 256;

__device__ uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Of either sign, its size from 2^least to 2^(least + 8): sums of products have more bits than f32.
__device__ float varied(uint64_t seed, int least) {
    const uint64_t bits = mix(seed);
    const float mantissa = 1.0f + static_cast<float>(bits >> 40) / 16777216.0f;
    const float x = ldexpf(mantissa, least + static_cast<int>(bits & 7));
    return (bits & 8) != 0 ? -x : x;
}

template <typename T> __device__ T narrowed(float x) { return T(x); }

// Rows that repeat every `period`; the second half of each repeats the first, times sign.
template <typename T> __global__ void fill_rows(T *to, int64_t rows, int64_t columns,
                                                int64_t period, float sign, int least) {
    const int64_t half = columns / 2, count = rows * columns;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t row = i / columns % period, column = i % columns;
        float x = 0;
        if (column < 2 * half) {
            const bool first = column < half;
            const int64_t at = row * half + (first ? column : column - half);
            x = varied(static_cast<uint64_t>(2 * at) + (sign < 0 ? 1 : 0), least);
            if (!first) x *= sign;
        }
        to[i] = narrowed<T>(x);
    }
}

template <typename T> __global__ void fill_results(T *y, int64_t rows, int64_t n) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * n; i += step) {
        const auto at = static_cast<uint64_t>(i / n % OrderProbe::kRows * n + i % n);
        y[i] = narrowed<T>(varied(~at, -8));
    }
}

template <typename Word> __global__ void compare(const Word *y, const Word *expected, int64_t rows,
                                                 int64_t n, int32_t *differs) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * n; i += step) {
        if (y[i] != expected[i / n % OrderProbe::kRows * n + i % n]) *differs = 1;
    }
}

__global__ void fill_ones(float *to, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        to[i] = 1;
    }
}

template <typename Launch> cudaError_t with_element(DType type, const Launch &launch) {
    switch (type) {
    case DType::f32:
        launch(float());
        break;
    case DType::bf16:
        launch(__nv_bfloat16());
        break;
    case DType::f16:
        launch(__half());
        break;
    case DType::e4m3:
        launch(__nv_fp8_e4m3());
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

} // namespace

void OrderProbe::reserve(const ProbedProduct &p) {
    w_bytes_ = std::max(w_bytes_, p.n * p.k * dtype_bytes(p.element));
    x_bytes_ = std::max(x_bytes_, p.most_rows * p.k * dtype_bytes(p.element));
    y_bytes_ = std::max(y_bytes_, p.most_rows * p.n * dtype_bytes(p.y_type));
    expected_bytes_ = std::max(expected_bytes_, kRows * p.n * dtype_bytes(p.y_type));
    if (p.element == DType::e4m3) {
        const int64_t of_blocks = (p.n / kScaleBlock + 1) * block_scale_stride(p.k);
        const int64_t of_rows = p.most_rows * (p.k / kScaleBlock + 1);
        scales_ = std::max({scales_, p.n, of_blocks, of_rows});
    }
}

Status OrderProbe::allocate() {
    const char *what = "what products' orders are found with";
    ASSIGN_OR_RETURN(w_, DeviceMemory::create(w_bytes_, what));
    ASSIGN_OR_RETURN(x_, DeviceMemory::create(x_bytes_, what));
    ASSIGN_OR_RETURN(y_, DeviceMemory::create(y_bytes_, what));
    ASSIGN_OR_RETURN(expected_, DeviceMemory::create(expected_bytes_, what));
    ASSIGN_OR_RETURN(differs_, DeviceMemory::create(sizeof(int32_t), what));
    if (scales_ == 0) return {};
    ASSIGN_OR_RETURN(ones_, DeviceMemory::create(scales_ * 4, what));
    fill_ones<<<kBlocks, kThreads>>>(ones_.as<float>(), scales_);
    return check_cuda(cudaDeviceSynchronize(), what);
}

Status OrderProbe::fill(const ProbedProduct &product, cudaStream_t stream) {
    product_ = product;
    const ProbedProduct &p = product_;
    return check_cuda(with_element(p.element,
                                   [&](auto type) {
                                       using T = decltype(type);
                                       fill_rows<<<kBlocks, kThreads, 0, stream>>>(
                                           w_.as<T>(), p.n, p.k, p.n, 1.0f, -3);
                                       fill_rows<<<kBlocks, kThreads, 0, stream>>>(
                                           x_.as<T>(), p.most_rows, p.k, kRows, -1.0f, 0);
                                   }),
                      "a product's order");
}

Status OrderProbe::begin(int64_t rows, cudaStream_t stream) {
    return check_cuda(with_element(product_.y_type,
                                   [&](auto type) {
                                       using T = decltype(type);
                                       fill_results<<<kBlocks, kThreads, 0, stream>>>(
                                           y_.as<T>(), rows, product_.n);
                                   }),
                      "a product's order");
}

Status OrderProbe::expect(cudaStream_t stream) {
    const int64_t bytes = kRows * product_.n * dtype_bytes(product_.y_type);
    return check_cuda(cudaMemcpyAsync(expected_.data(), y_.data(), static_cast<size_t>(bytes),
                                      cudaMemcpyDeviceToDevice, stream),
                      "a product's order");
}

Result<bool> OrderProbe::agrees(int64_t rows, cudaStream_t stream) {
    RETURN_IF_CUDA(cudaMemsetAsync(differs_.data(), 0, sizeof(int32_t), stream));
    auto *differs = differs_.as<int32_t>();
    if (dtype_bytes(product_.y_type) == 4) {
        compare<<<kBlocks, kThreads, 0, stream>>>(y_.as<uint32_t>(), expected_.as<uint32_t>(), rows,
                                                  product_.n, differs);
    } else {
        compare<<<kBlocks, kThreads, 0, stream>>>(y_.as<uint16_t>(), expected_.as<uint16_t>(), rows,
                                                  product_.n, differs);
    }
    RETURN_IF_CUDA(cudaGetLastError());
    int32_t found = 0;
    RETURN_IF_CUDA(cudaMemcpyAsync(&found, differs, sizeof found, cudaMemcpyDeviceToHost, stream));
    RETURN_IF_CUDA(cudaStreamSynchronize(stream));
    return found == 0;
}

} // namespace batchllm::cuda
