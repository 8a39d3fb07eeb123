#include "cuda_faults.h"

#include <map>
#include <mutex>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace cuda_faults {
namespace {

struct State {
    std::mutex mutex;
    bool on = false;
    bool forever = false;
    int64_t k = -1;
    const char *failed = nullptr;
    std::vector<Call> calls;
    std::map<std::string, int64_t> taken; // by the call that allocates
    cudaError_t launch = cudaSuccess;     // the error of a failed launch, for cudaGetLastError
};

State &state() {
    static State state;
    return state;
}

bool fails(const char *name, const void *site) {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    if (!s.on) return false;
    const auto number = static_cast<int64_t>(s.calls.size());
    s.calls.push_back({name, site});
    if (s.k < 0 || number < s.k || (number > s.k && !s.forever)) return false;
    if (s.failed == nullptr) s.failed = name;
    return true;
}

void count(const char *taking, int64_t change) {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    s.taken[taking] += change;
}

// What a failed call returns.
cudaError_t fault(cudaError_t) { return cudaErrorLaunchFailure; }
cublasStatus_t fault(cublasStatus_t) { return CUBLAS_STATUS_EXECUTION_FAILED; }

} // namespace

void start(int64_t k, bool forever) {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    s.on = true;
    s.forever = forever;
    s.k = k;
    s.failed = nullptr;
    s.calls.clear();
    s.launch = cudaSuccess;
}

std::vector<Call> stop() {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    s.on = false;
    return std::move(s.calls);
}

const char *failed() { return state().failed; }

std::string taken() {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    std::string text;
    for (const auto &[name, number] : s.taken) {
        if (number == 0) continue;
        if (!text.empty()) text += ", ";
        text += std::to_string(number) + " " + name;
    }
    return text;
}

} // namespace cuda_faults

using namespace cuda_faults;

// The linker redirects calls of NAME to __wrap_NAME, and those of __real_NAME to NAME (meson.build
// lists the names).
#define HERE __builtin_return_address(0)
// A call that neither allocates nor frees anything.
#define PLAIN(type, name, parameters, arguments)                                                   \
    extern "C" type __real_##name parameters;                                                      \
    extern "C" type __wrap_##name parameters {                                                     \
        return fails(#name, HERE) ? fault(type{}) : __real_##name arguments;                       \
    }
// A call that allocates something, which its first parameter points to; it fails with
// `out_of_memory` if that is an error.
#define TAKES(type, name, out_of_memory, parameters, arguments)                                    \
    extern "C" type __real_##name parameters;                                                      \
    extern "C" type __wrap_##name parameters {                                                     \
        if (fails(#name, HERE)) return out_of_memory;                                              \
        const type status = __real_##name arguments;                                               \
        if (status == type{}) count(#name, 1);                                                     \
        return status;                                                                             \
    }
// A call that frees what `taking` allocated; it is always made.
#define GIVES(type, name, taking, parameters, arguments, is_one)                                   \
    extern "C" type __real_##name parameters;                                                      \
    extern "C" type __wrap_##name parameters {                                                     \
        const bool failing = fails(#name, HERE);                                                   \
        const type status = __real_##name arguments;                                               \
        if (is_one && status == type{}) count(#taking, -1);                                        \
        return failing ? fault(type{}) : status;                                                   \
    }

static_assert(cudaSuccess == cudaError_t{} && CUBLAS_STATUS_SUCCESS == cublasStatus_t{});

// ---- Devices, memory ----

PLAIN(cudaError_t, cudaDriverGetVersion, (int *version), (version))
PLAIN(cudaError_t, cudaGetDeviceCount, (int *count), (count))
PLAIN(cudaError_t, cudaGetDeviceProperties, (cudaDeviceProp * out, int device), (out, device))
PLAIN(cudaError_t, cudaDeviceGetAttribute, (int *value, cudaDeviceAttr attribute, int device),
      (value, attribute, device))
PLAIN(cudaError_t, cudaGetDevice, (int *device), (device))
PLAIN(cudaError_t, cudaSetDevice, (int device), (device))
PLAIN(cudaError_t, cudaDeviceSynchronize, (), ())
PLAIN(cudaError_t, cudaMemGetInfo, (size_t * left, size_t *total), (left, total))
TAKES(cudaError_t, cudaMalloc, cudaErrorMemoryAllocation, (void **out, size_t bytes), (out, bytes))
GIVES(cudaError_t, cudaFree, cudaMalloc, (void *data), (data), data != nullptr)
TAKES(cudaError_t, cudaHostAlloc, cudaErrorMemoryAllocation,
      (void **out, size_t bytes, unsigned int flags), (out, bytes, flags))
GIVES(cudaError_t, cudaFreeHost, cudaHostAlloc, (void *data), (data), data != nullptr)
PLAIN(cudaError_t, cudaMemset, (void *data, int value, size_t bytes), (data, value, bytes))
PLAIN(cudaError_t, cudaMemsetAsync, (void *data, int value, size_t bytes, cudaStream_t stream),
      (data, value, bytes, stream))
PLAIN(cudaError_t, cudaMemcpy, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind),
      (to, from, bytes, kind))
PLAIN(cudaError_t, cudaMemcpyAsync,
      (void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
      (to, from, bytes, kind, stream))

// ---- Streams and events ----

TAKES(cudaError_t, cudaStreamCreateWithFlags, cudaErrorMemoryAllocation,
      (cudaStream_t * out, unsigned int flags), (out, flags))
GIVES(cudaError_t, cudaStreamDestroy, cudaStreamCreateWithFlags, (cudaStream_t stream), (stream),
      true)
GIVES(cudaError_t, cudaStreamSynchronize, cudaStreamSynchronize, (cudaStream_t stream), (stream),
      false)
PLAIN(cudaError_t, cudaStreamWaitEvent,
      (cudaStream_t stream, cudaEvent_t event, unsigned int flags), (stream, event, flags))
TAKES(cudaError_t, cudaEventCreateWithFlags, cudaErrorMemoryAllocation,
      (cudaEvent_t * out, unsigned int flags), (out, flags))
GIVES(cudaError_t, cudaEventDestroy, cudaEventCreateWithFlags, (cudaEvent_t event), (event), true)
PLAIN(cudaError_t, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
PLAIN(cudaError_t, cudaEventQuery, (cudaEvent_t event), (event))
PLAIN(cudaError_t, cudaEventSynchronize, (cudaEvent_t event), (event))
PLAIN(cudaError_t, cudaEventElapsedTime, (float *out, cudaEvent_t begin, cudaEvent_t end),
      (out, begin, end))

// ---- Kernels and graphs ----

PLAIN(cudaError_t, cudaFuncSetAttribute,
      (const void *kernel, cudaFuncAttribute attribute, int value), (kernel, attribute, value))

extern "C" cudaError_t __real___cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t,
                                                 cudaStream_t);
extern "C" cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                 void **arguments, size_t shared,
                                                 cudaStream_t stream) {
    if (!fails("__cudaLaunchKernel", HERE))
        return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
    return state().launch = cudaErrorLaunchFailure; // <<<>>> discards it
}

// Launches with attributes, which return their error.
PLAIN(cudaError_t, cudaLaunchKernelExC,
      (const cudaLaunchConfig_t *config, const void *kernel, void **arguments),
      (config, kernel, arguments))

extern "C" cudaError_t __real_cudaGetLastError();
extern "C" cudaError_t __wrap_cudaGetLastError() {
    const cudaError_t launch = std::exchange(state().launch, cudaSuccess);
    if (fails("cudaGetLastError", HERE)) return cudaErrorLaunchFailure;
    const cudaError_t last = __real_cudaGetLastError();
    return launch != cudaSuccess ? launch : last;
}

PLAIN(cudaError_t, cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode),
      (stream, mode))
PLAIN(cudaError_t, cudaStreamGetCaptureInfo,
      (cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
       cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
       size_t *count),
      (stream, status, id, graph, nodes, edges, count))
PLAIN(cudaError_t, cudaGraphKernelNodeGetParams, (cudaGraphNode_t node, cudaKernelNodeParams *out),
      (node, out))
PLAIN(cudaError_t, cudaGraphExecKernelNodeSetParams,
      (cudaGraphExec_t graph, cudaGraphNode_t node, const cudaKernelNodeParams *parameters),
      (graph, node, parameters))
PLAIN(cudaError_t, cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
TAKES(cudaError_t, cudaGraphInstantiate, cudaErrorMemoryAllocation,
      (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags), (out, graph, flags))
GIVES(cudaError_t, cudaGraphExecDestroy, cudaGraphInstantiate, (cudaGraphExec_t graph), (graph),
      true)
GIVES(cudaError_t, cudaGraphDestroy, cudaStreamEndCapture, (cudaGraph_t graph), (graph), true)

// A capture that fails has still ended, and there is no graph.
extern "C" cudaError_t __real_cudaGraphDestroy(cudaGraph_t);
extern "C" cudaError_t __real_cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
extern "C" cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    const bool failing = fails("cudaStreamEndCapture", HERE);
    cudaGraph_t graph = nullptr;
    const cudaError_t status = __real_cudaStreamEndCapture(stream, &graph);
    if (failing && graph != nullptr) __real_cudaGraphDestroy(std::exchange(graph, nullptr));
    if (graph != nullptr) count("cudaStreamEndCapture", 1);
    *out = graph;
    return failing ? cudaErrorStreamCaptureInvalidated : status;
}

// ---- cuBLASLt ----

TAKES(cublasStatus_t, cublasLtCreate, CUBLAS_STATUS_ALLOC_FAILED, (cublasLtHandle_t * out), (out))
GIVES(cublasStatus_t, cublasLtDestroy, cublasLtCreate, (cublasLtHandle_t handle), (handle), true)
TAKES(cublasStatus_t, cublasLtMatmulDescCreate, CUBLAS_STATUS_ALLOC_FAILED,
      (cublasLtMatmulDesc_t * out, cublasComputeType_t compute, cudaDataType_t scale),
      (out, compute, scale))
GIVES(cublasStatus_t, cublasLtMatmulDescDestroy, cublasLtMatmulDescCreate,
      (cublasLtMatmulDesc_t operation), (operation), operation != nullptr)
PLAIN(cublasStatus_t, cublasLtMatmulDescSetAttribute,
      (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void *value,
       size_t bytes),
      (operation, attribute, value, bytes))
TAKES(cublasStatus_t, cublasLtMatrixLayoutCreate, CUBLAS_STATUS_ALLOC_FAILED,
      (cublasLtMatrixLayout_t * out, cudaDataType type, uint64_t rows, uint64_t columns,
       int64_t ld),
      (out, type, rows, columns, ld))
GIVES(cublasStatus_t, cublasLtMatrixLayoutDestroy, cublasLtMatrixLayoutCreate,
      (cublasLtMatrixLayout_t layout), (layout), layout != nullptr)
TAKES(cublasStatus_t, cublasLtMatmulPreferenceCreate, CUBLAS_STATUS_ALLOC_FAILED,
      (cublasLtMatmulPreference_t * out), (out))
GIVES(cublasStatus_t, cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreferenceCreate,
      (cublasLtMatmulPreference_t preference), (preference), true)
PLAIN(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
      (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
       const void *value, size_t bytes),
      (preference, attribute, value, bytes))
PLAIN(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
       cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
       int *count),
      (handle, operation, a, b, c, d, preference, wanted, results, count))
PLAIN(cublasStatus_t, cublasLtMatmulAlgoCheck,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result),
      (handle, operation, a, b, c, d, algorithm, result))
PLAIN(cublasStatus_t, cublasLtMatmul,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
       cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
       const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
       cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
       size_t workspace_bytes, cudaStream_t stream),
      (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
       algorithm, workspace, workspace_bytes, stream))
