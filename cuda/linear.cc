#include "linear.h"

#include <algorithm>

namespace batchllm::cuda {
namespace {

constexpr int64_t kWorkspace = int64_t{64} << 20;
constexpr int kCandidates = 8;
constexpr int kRepeats = 3;

cudaDataType data_type(DType type) {
    return type == DType::f32 ? CUDA_R_32F : type == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

Status check(cublasStatus_t code, const char *what) {
    if (code == CUBLAS_STATUS_SUCCESS) return {};
    return error(BATCHLLM_ERROR_DEVICE, "cuda: cuBLASLt: %s in %s", cublasLtGetStatusString(code),
                 what);
}
#define RETURN_IF_CUBLAS(expression) RETURN_IF_ERROR(check((expression), #expression))

// Numbers of rows that share a tuned algorithm.
int64_t coarse_rows(int64_t rows) {
    int64_t step = 32;
    while (step * 8 <= rows) step *= 2; // four to eight steps an octave
    return (rows + step - 1) / step * step;
}

} // namespace

int64_t padded_rows(int64_t rows) {
    const int64_t step = rows <= 128 ? 16 : rows <= 512 ? 32 : 64;
    return (rows + step - 1) / step * step;
}

Result<Linear> Linear::create(DType element, void *scratch, int64_t scratch_bytes) {
    Linear linear;
    linear.element_ = element;
    linear.scratch_ = scratch;
    linear.scratch_bytes_ = scratch_bytes;
    RETURN_IF_CUBLAS(cublasLtCreate(&linear.handle_));
    ASSIGN_OR_RETURN(linear.workspace_, DeviceMemory::create(kWorkspace, "cuBLASLt's workspace"));
    return linear;
}

Linear::Linear(Linear &&other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), element_(other.element_),
      workspace_(std::move(other.workspace_)), scratch_(other.scratch_),
      scratch_bytes_(other.scratch_bytes_), plans_(std::move(other.plans_)),
      tuned_(std::move(other.tuned_)) {
    other.plans_.clear();
}

Linear::~Linear() {
    for (auto &[key, plan] : plans_) {
        cublasLtMatmulDescDestroy(plan.operation);
        cublasLtMatrixLayoutDestroy(plan.w);
        cublasLtMatrixLayoutDestroy(plan.x);
        cublasLtMatrixLayoutDestroy(plan.y);
    }
    if (handle_ != nullptr) cublasLtDestroy(handle_);
}

cublasStatus_t Linear::multiply(const Plan &plan, const cublasLtMatmulAlgo_t &algorithm,
                                const Matrix &w, const void *x, void *y, bool accumulate,
                                cudaStream_t stream) {
    const float one = 1, beta = accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, plan.operation, &one, w.data, plan.w, x, plan.x, &beta, y,
                          plan.y, y, plan.y, &algorithm, workspace_.data(), kWorkspace, stream);
}

// cuBLASLt counts columns first: y^T [n, m] = W^T^T x^T.
Status Linear::make_plan(const Key &key, const Matrix &w, const void *x, cudaStream_t stream,
                         Plan *plan) {
    const auto m = static_cast<uint64_t>(key.m), n = static_cast<uint64_t>(key.n),
               k = static_cast<uint64_t>(key.k);
    RETURN_IF_CUBLAS(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof transposed));
    RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutCreate(&plan->w, data_type(element_), k, n, static_cast<int64_t>(k)));
    RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutCreate(&plan->x, data_type(element_), k, m, static_cast<int64_t>(k)));
    RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutCreate(&plan->y, data_type(key.y_type), n, m, static_cast<int64_t>(n)));

    Key coarse = key;
    coarse.m = coarse_rows(key.m);
    if (scratch_ != nullptr) {
        const auto known = tuned_.find(coarse);
        if (known != tuned_.end()) {
            cublasLtMatmulHeuristicResult_t fits{};
            if (cublasLtMatmulAlgoCheck(handle_, plan->operation, plan->w, plan->x, plan->y,
                                        plan->y, &known->second, &fits) == CUBLAS_STATUS_SUCCESS &&
                fits.workspaceSize <= static_cast<size_t>(kWorkspace)) {
                plan->algorithm = known->second;
                return {};
            }
        }
    }
    cublasLtMatmulPreference_t preference = nullptr;
    RETURN_IF_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const size_t bytes = static_cast<size_t>(kWorkspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    cublasLtMatmulHeuristicResult_t found[kCandidates];
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation, plan->w, plan->x, plan->y, plan->y,
                                       preference, kCandidates, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
        return error(BATCHLLM_ERROR_DEVICE,
                     "cuda: cuBLASLt has no algorithm for [%lld, %lld] x [%lld, %lld]: %s",
                     static_cast<long long>(key.m), static_cast<long long>(key.k),
                     static_cast<long long>(key.n), static_cast<long long>(key.k),
                     cublasLtGetStatusString(status));
    }
    plan->algorithm = found[0].algo;
    const int64_t result_bytes = key.m * key.n * dtype_bytes(key.y_type);
    if (scratch_ != nullptr && result_bytes <= scratch_bytes_) {
        RETURN_IF_ERROR(tune(*plan, key, w, x, found, count, stream, &plan->algorithm));
        tuned_[coarse] = plan->algorithm;
    }
    return {};
}

Status Linear::tune(const Plan &plan, const Key &key, const Matrix &w, const void *x,
                    const cublasLtMatmulHeuristicResult_t *found, int count, cudaStream_t stream,
                    cublasLtMatmulAlgo_t *best) {
    ASSIGN_OR_RETURN(const Event begin, Event::create(true));
    ASSIGN_OR_RETURN(const Event end, Event::create(true));
    float shortest = 0;
    for (int i = 0; i < count; ++i) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        // The first run loads the kernel.
        if (multiply(plan, found[i].algo, w, x, scratch_, key.accumulate, stream) !=
            CUBLAS_STATUS_SUCCESS) {
            continue;
        }
        RETURN_IF_CUDA(cudaEventRecord(begin, stream));
        for (int r = 0; r < kRepeats; ++r) {
            RETURN_IF_CUBLAS(multiply(plan, found[i].algo, w, x, scratch_, key.accumulate, stream));
        }
        RETURN_IF_CUDA(cudaEventRecord(end, stream));
        RETURN_IF_CUDA(cudaEventSynchronize(end));
        float milliseconds = 0;
        RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
        // An earlier one is left only for what is clearly faster: two runs choose alike more often.
        if (i == 0 || milliseconds < 0.97f * shortest) {
            shortest = milliseconds;
            *best = found[i].algo;
        }
    }
    return {};
}

Status Linear::run(const Matrix &w, const void *x, int64_t rows, void *y, DType y_type,
                   bool accumulate, cudaStream_t stream) {
    if (rows == 0) return {};
    const Key key{padded_rows(rows), w.rows, w.columns, y_type, accumulate};
    auto found = plans_.find(key);
    if (found == plans_.end()) {
        Plan plan;
        const Status status = make_plan(key, w, x, stream, &plan);
        if (!status.ok()) {
            cublasLtMatmulDescDestroy(plan.operation);
            cublasLtMatrixLayoutDestroy(plan.w);
            cublasLtMatrixLayoutDestroy(plan.x);
            cublasLtMatrixLayoutDestroy(plan.y);
            return status;
        }
        found = plans_.emplace(key, plan).first;
    }
    return check(multiply(found->second, found->second.algorithm, w, x, y, accumulate, stream),
                 "cublasLtMatmul");
}

} // namespace batchllm::cuda
