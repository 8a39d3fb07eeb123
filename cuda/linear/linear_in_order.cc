// Chooses the algorithms with which products of one shape of W sum in the same order for any number of rows.
//
// The order is that of the heuristic's first algorithm for kReferenceRows rows that computes each result as one
// sum. For each number of rows, the fastest algorithm that agrees with it (linear/order_probe.h) is chosen. Every
// product that runs has been tested at its own number of rows.

#include "linear/linear.h"
#include "linear/order_probe.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kReferenceRows = 4096;
constexpr int32_t kInOrder =
    128; // in TuningKey::element: the candidates differ from those of products in any order

// Whether its sums are not split into parts that are added afterwards.
bool makes_one_sum(const cublasLtMatmulAlgo_t &algorithm) {
    int32_t parts = 0;
    uint32_t reduction = 0;
    size_t written = 0;
    const cublasStatus_t of_parts = cublasLtMatmulAlgoConfigGetAttribute(
        &algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &written);
    const cublasStatus_t of_reduction = cublasLtMatmulAlgoConfigGetAttribute(
        &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction, &written);
    return (of_parts != CUBLAS_STATUS_SUCCESS || (parts >= 0 && parts <= 1)) &&
           (of_reduction != CUBLAS_STATUS_SUCCESS || reduction == CUBLASLT_REDUCTION_SCHEME_NONE);
}

} // namespace

// Whether the product gives the expected result on the probe's rows. One that does not run does not.
Result<bool> Linear::agrees(const Key &key, const Product &product,
                            const cublasLtMatmulAlgo_t &algorithm, const Matrix &w, const Input &x,
                            OrderProbe *probe, cudaStream_t stream) {
    cublasLtMatmulHeuristicResult_t fits{};
    if (cublasLtMatmulAlgoCheck(handle_, product.operation, product.w, product.x, product.y,
                                product.y, &algorithm, &fits) != CUBLAS_STATUS_SUCCESS ||
        fits.workspaceSize > static_cast<size_t>(workspace_.bytes())) {
        return false;
    }
    RETURN_IF_ERROR(probe->begin(key.m, stream));
    if (multiply(product, algorithm, w, x, probe->y(), key.accumulate, stream, probe->alpha()) !=
        CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    return probe->agrees(key.m, stream);
}

// Also stores in the probe what is expected of all others.
Status Linear::find_reference(Key key, const Matrix &w, const Input &x, OrderProbe *probe,
                              cudaStream_t stream, cublasLtMatmulAlgo_t *reference) {
    Described large, small;
    key.m = kReferenceRows;
    RETURN_IF_ERROR(describe(key, &large));
    RETURN_IF_ERROR(describe_vectors(large, w, x));
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    RETURN_IF_ERROR(find_candidates(key, large, &found));
    key.m = OrderProbe::kRows;
    RETURN_IF_ERROR(describe(key, &small));
    RETURN_IF_ERROR(describe_vectors(small, w, x));
    for (const cublasLtMatmulHeuristicResult_t &candidate : found) {
        if (candidate.state != CUBLAS_STATUS_SUCCESS || !makes_one_sum(candidate.algo)) continue;
        RETURN_IF_ERROR(probe->begin(key.m, stream));
        if (multiply(small, candidate.algo, w, x, probe->y(), key.accumulate, stream,
                     probe->alpha()) != CUBLAS_STATUS_SUCCESS) {
            continue;
        }
        *reference = candidate.algo;
        return probe->expect(stream);
    }
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "reproducible: cuBLASLt has no product with [%lld, %lld] that computes one sum",
                 static_cast<long long>(key.n), static_cast<long long>(key.k));
}

// The fastest that agrees, timed at key's rows, the least of their range; without tuning, the first that agrees.
Status Linear::choose_in_order(const Key &key, const cublasLtMatmulAlgo_t &reference,
                               const Matrix &w, const Input &x, OrderProbe *probe,
                               cudaStream_t stream, cublasLtMatmulAlgo_t *chosen) {
    Described product;
    RETURN_IF_ERROR(describe(key, &product));
    RETURN_IF_ERROR(describe_vectors(product, w, x));
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    RETURN_IF_ERROR(find_candidates(key, product, &found));
    if (found.size() == TuningCache::kOfHeuristic) found.pop_back();
    found.push_back({});
    found.back().algo = reference;
    TuningKey cached = tuning_key(key);
    cached.element |= kInOrder;
    *chosen = reference;
    if (const auto known = algorithm_of(product, found, cache_.find(cached))) {
        *chosen = *known; // prepare_in_order tries it
        return {};
    }
    for (cublasLtMatmulHeuristicResult_t &candidate : found) {
        bool same = candidate.state == CUBLAS_STATUS_SUCCESS && makes_one_sum(candidate.algo);
        if (same) {
            ASSIGN_OR_RETURN(same, agrees(key, product, candidate.algo, w, x, probe, stream));
        }
        if (!same) candidate.state = CUBLAS_STATUS_NOT_SUPPORTED;
        if (same && scratch_ == nullptr) {
            *chosen = candidate.algo;
            return {};
        }
    }
    if (scratch_ == nullptr) return {};
    void *const scratch = std::exchange(scratch_, probe->y());
    const Result<int32_t> best = fastest(key, product, found, w, x, stream);
    scratch_ = scratch;
    RETURN_IF_ERROR(best.status());
    *chosen = algorithm_of(product, found, *best).value_or(reference);
    remember(cached, *best);
    return {};
}

Status Linear::prepare_in_order(const Matrix &like, DType y_type, bool accumulate, float alpha,
                                int64_t most_rows, OrderProbe *probe, cudaStream_t stream) {
    Key key{padded_rows(most_rows), like.rows, like.columns, y_type, accumulate, like.scaling};
    if (const auto known = products_.find(key); known != products_.end()) { // another layer's
        if (!accumulate || known->second.alpha == alpha) return {};
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "reproducible: products with [%lld, %lld] are added to the residual stream "
                     "with two factors, %g and %g",
                     static_cast<long long>(key.n), static_cast<long long>(key.k),
                     static_cast<double>(known->second.alpha), static_cast<double>(alpha));
    }
    const DType element = like.scaling != Scaling::none ? DType::e4m3 : element_;
    RETURN_IF_ERROR(probe->fill({key.n, key.k, element, y_type, accumulate, key.m, alpha}, stream));
    const Matrix w{probe->w(), key.n, key.k, probe->ones(), like.scaling};
    const Input x(probe->x(), probe->ones());
    cublasLtMatmulAlgo_t reference{}, chosen{};
    RETURN_IF_ERROR(find_reference(key, w, x, probe, stream, &reference));
    int64_t chosen_for = 0; // coarse rows
    for (int64_t rows = 1; rows <= most_rows; rows = padded_rows(rows) + 1) {
        key.m = padded_rows(rows);
        if (Key coarse = key; (coarse.m = coarse_rows(key.m)) != chosen_for) {
            RETURN_IF_ERROR(choose_in_order(coarse, reference, w, x, probe, stream, &chosen));
            chosen_for = coarse.m;
        }
        Product product;
        product.alpha = alpha;
        Status status = describe(key, &product);
        if (status.ok()) status = describe_vectors(product, w, x);
        bool same = false;
        for (const cublasLtMatmulAlgo_t &algorithm : {chosen, reference}) {
            if (!status.ok() || same) break;
            product.algorithm = algorithm;
            const Result<bool> tried = agrees(key, product, algorithm, w, x, probe, stream);
            status = tried.status();
            same = tried.ok() && *tried;
        }
        if (status.ok() && !same) {
            status = error(BATCHLLM_ERROR_UNSUPPORTED,
                           "reproducible: cuBLASLt's products of %lld rows with [%lld, %lld] sum "
                           "in another order than those of other numbers of rows",
                           static_cast<long long>(key.m), static_cast<long long>(key.n),
                           static_cast<long long>(key.k));
        }
        if (!status.ok()) {
            destroy(&product);
            return status;
        }
        products_.emplace(key, product);
    }
    return {};
}

} // namespace batchllm::cuda
