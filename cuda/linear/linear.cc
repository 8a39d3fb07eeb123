#include "linear/linear.h"

#include <algorithm>
#include <iterator>

#include "backend/gpu/step_buffers.h"
#include "linear/few_rows.h"

namespace batchllm::cuda {
namespace {

constexpr int kOfHeuristic = TuningCache::kOfHeuristic;
constexpr int64_t kLeastRepeats = 2, kMostRepeats = 5; // of a candidate that is timed
constexpr double kRepeatedFlops = 5e12;                // of all its repeats: some 7 ms on an H200
constexpr float kHopeless = 1.3f; // one that takes so much longer than the fastest is not repeated
// Where the heuristic has fewer candidates than it was asked for, the fastest is tried in other forms: other clusters of
// CTAs, and for few rows other tiles too. For e4m3 with scales of rows it has one, with tiles of 128 x 128, which so takes up
// to a third less time, and up to 40 % less with 160 rows (docs/lab/engine.md, docs/lab/tensor-parallel.md).
struct Form {
    cublasLtClusterShape_t cluster;
    cublasLtMatmulTile_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED; // the heuristic's
    int32_t option = 0;
};
constexpr Form kForms[] = {{CUBLASLT_CLUSTER_SHAPE_1x1x1},
                           {CUBLASLT_CLUSTER_SHAPE_2x1x1},
                           {CUBLASLT_CLUSTER_SHAPE_4x1x1},
                           {CUBLASLT_CLUSTER_SHAPE_1x2x1},
                           {CUBLASLT_CLUSTER_SHAPE_2x2x1},
                           {CUBLASLT_CLUSTER_SHAPE_4x2x1},
                           {CUBLASLT_CLUSTER_SHAPE_1x4x1},
                           {CUBLASLT_CLUSTER_SHAPE_1x2x1, CUBLASLT_MATMUL_TILE_64x80, 1},
                           {CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_MATMUL_TILE_64x80, 1},
                           {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_MATMUL_TILE_64x112, 1},
                           {CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_MATMUL_TILE_64x128},
                           {CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_MATMUL_TILE_72x128},
                           {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_MATMUL_TILE_128x56, 1},
                           {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_MATMUL_TILE_128x64, 1},
                           {CUBLASLT_CLUSTER_SHAPE_1x4x1, CUBLASLT_MATMUL_TILE_192x40, 1}};
static_assert(TuningCache::kChanges == std::size(kForms));
constexpr int32_t kClusters = 7;           // of them the first, which have the heuristic's tile
constexpr int64_t kMostOfSmallTiles = 512; // rows
// The form that is fast for nearly all shapes with so many rows: it is used until others have been timed. -1: the heuristic's.
int32_t likely_form(int64_t rows) {
    const auto padded = [&](int64_t tile) { return (rows + tile - 1) / tile * tile; };
    if (rows >= 2048) return 3;
    // Where tiles of 128 rows compute a sixth more than those of 80.
    return rows > 128 && rows <= kMostOfSmallTiles && 7 * padded(80) <= 6 * padded(128) ? 7 : -1;
}
// Numbers of rows of which the product of few rows is a candidate, and those for which it is used until others have been timed,
// where W has so many rows: cuBLASLt's tiles of 128 or 256 rows fit these least.
constexpr int64_t kLeastOfFew = 129, kMostOfFew = kMostFewRows;
constexpr bool likely_few_rows(int64_t rows, int64_t rows_of_w) {
    return rows > 256 && rows <= 320 && rows_of_w >= 8192;
}
static_assert(kFewRowsPartials <= linear_workspace);
// Up to so many rows each padded number has an algorithm of its own: what is fastest for 256 rows may
// have tiles of 256, and take twice as long for 288 (docs/lab/engine.md).
constexpr int64_t kMostAlone = 2048;

cudaDataType data_type(DType type) {
    return type == DType::f32    ? CUDA_R_32F
           : type == DType::bf16 ? CUDA_R_16BF
           : type == DType::f16  ? CUDA_R_16F
                                 : CUDA_R_8F_E4M3;
}

Status check(cublasStatus_t code, const char *what) {
    if (code == CUBLAS_STATUS_SUCCESS) return {};
    return error(BATCHLLM_ERROR_DEVICE, "cuda: cuBLASLt: %s in %s", cublasLtGetStatusString(code),
                 what);
}
#define RETURN_IF_CUBLAS(expression) RETURN_IF_ERROR(check((expression), #expression))

} // namespace

int64_t coarse_rows(int64_t rows) {
    int64_t step = 32;
    while (step * 8 <= rows) step *= 2; // four to eight steps an octave
    return rows < step ? rows : rows / step * step;
}

int64_t tuned_rows(int64_t rows) {
    const int64_t padded = padded_rows(rows);
    return padded <= kMostAlone ? padded : coarse_rows(padded);
}

int64_t padded_rows(int64_t rows) {
    const int64_t step = rows <= 128 ? 16 : rows <= 512 ? 32 : most_row_step;
    return (rows + step - 1) / step * step;
}

std::string Linear::stamp(const std::string &device) {
    return "cuBLASLt " + std::to_string(cublasLtGetVersion()) + ", " +
           std::to_string(linear_workspace >> 20) + " MiB, " + device;
}

Result<Linear> Linear::create(DType element, void *scratch, int64_t scratch_bytes,
                              TuningCache cache) {
    Linear linear;
    linear.element_ = element;
    linear.scratch_ = scratch;
    linear.scratch_bytes_ = scratch_bytes;
    linear.cache_ = std::move(cache);
    RETURN_IF_CUBLAS(cublasLtCreate(&linear.handle_));
    ASSIGN_OR_RETURN(linear.workspace_,
                     DeviceMemory::create(linear_workspace, "cuBLASLt's workspace"));
    int device = 0, major = 0;
    RETURN_IF_CUDA(cudaGetDevice(&device));
    RETURN_IF_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major == 9 && few_rows_run_sm90(linear.workspace_.data())) {
        ASSIGN_OR_RETURN(linear.flags_, zeroed_memory(kFewRowsFlags * 4, "flags of products"));
        // Products run on streams that do not wait for this one.
        RETURN_IF_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    }
    return linear;
}

Linear::Linear(Linear &&other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), element_(other.element_),
      fast_accumulation_(other.fast_accumulation_), in_order_(other.in_order_),
      workspace_(std::move(other.workspace_)), flags_(std::move(other.flags_)),
      scratch_(other.scratch_), scratch_bytes_(other.scratch_bytes_),
      products_(std::move(other.products_)), times_(other.times_), guessed_(other.guessed_),
      of_heads_(std::move(other.of_heads_)), tuned_(std::move(other.tuned_)),
      has_(std::move(other.has_)), refusal_(std::move(other.refusal_)),
      cache_(std::move(other.cache_)), saved_(other.saved_) {
    other.products_.clear();
    other.of_heads_.clear();
    other.cache_ = TuningCache();
}

Linear::~Linear() {
    cache_.save();
    for (auto &[key, product] : products_) destroy(&product);
    for (OfHeads &of : of_heads_) destroy(&of.product);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void Linear::destroy(Product *product) {
    cublasLtMatmulDescDestroy(product->operation);
    cublasLtMatrixLayoutDestroy(product->w);
    cublasLtMatrixLayoutDestroy(product->x);
    cublasLtMatrixLayoutDestroy(product->y);
}

cublasStatus_t Linear::multiply(const Product &product, const cublasLtMatmulAlgo_t &algorithm,
                                const Matrix &w, const Input &x, void *y, bool accumulate,
                                cudaStream_t stream, float alpha) {
    const float beta = accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, product.operation, &alpha, w.data, product.w, x.data, product.x,
                          &beta, y, product.y, y, product.y, &algorithm, workspace_.data(),
                          linear_workspace, stream);
}

// cuBLASLt counts columns first: y^T [n, m] = W^T^T x^T.
Status Linear::describe(const Key &key, Product *product) const {
    const auto m = static_cast<uint64_t>(key.m), n = static_cast<uint64_t>(key.n),
               k = static_cast<uint64_t>(key.k);
    RETURN_IF_CUBLAS(cublasLtMatmulDescCreate(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof transposed));
    const DType element = key.scaling != Scaling::none ? DType::e4m3 : element_;
    if (key.scaling != Scaling::none) {
        const bool blocks = key.scaling == Scaling::blocks;
        const int32_t of_w = blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                    : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        const int32_t of_x = blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : of_w;
        RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
            product->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w, sizeof of_w));
        RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
            product->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x, sizeof of_x));
        // With scales of blocks sums are always in f32.
        const int8_t fast = fast_accumulation_ && !blocks ? 1 : 0;
        RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
            product->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    }
    if (key.bias) { // GELU: its approximation with tanh
        const cublasLtEpilogue_t epilogue =
            key.gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
        RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
            product->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    }
    RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutCreate(&product->w, data_type(element), k, n, static_cast<int64_t>(k)));
    RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutCreate(&product->x, data_type(element), k, m, static_cast<int64_t>(k)));
    RETURN_IF_CUBLAS(cublasLtMatrixLayoutCreate(&product->y, data_type(key.y_type), n, m,
                                                static_cast<int64_t>(n)));
    return {};
}

// Where the scales of e4m3 and the bias are. They are part of a product's description.
Status Linear::describe_vectors(const Product &product, const Matrix &w, const Input &x) {
    if (w.bias != nullptr) {
        RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
            product.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &w.bias, sizeof w.bias));
    }
    if (w.scaling == Scaling::none) return {};
    RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(
        product.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w.scales, sizeof w.scales));
    return check(cublasLtMatmulDescSetAttribute(product.operation,
                                                CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x.scales,
                                                sizeof x.scales),
                 "the scales of a product");
}

Status Linear::find_candidates(const Key &key, const Product &product,
                               std::vector<cublasLtMatmulHeuristicResult_t> *found) const {
    cublasLtMatmulPreference_t preference = nullptr;
    RETURN_IF_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const size_t bytes = static_cast<size_t>(linear_workspace);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    const uint32_t one_sum = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (in_order_) {
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &one_sum, sizeof one_sum);
    }
    found->resize(kOfHeuristic);
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product.operation, product.w, product.x, product.y,
                                       product.y, preference, kOfHeuristic, found->data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
        return error(BATCHLLM_ERROR_DEVICE,
                     "cuda: cuBLASLt has no algorithm for [%lld, %lld] x [%lld, %lld]: %s",
                     static_cast<long long>(key.m), static_cast<long long>(key.k),
                     static_cast<long long>(key.n), static_cast<long long>(key.k),
                     cublasLtGetStatusString(status));
    }
    found->resize(static_cast<size_t>(count));
    return {};
}

bool Linear::has(int64_t rows, int64_t columns, Scaling scaling, DType y_type, bool accumulate,
                 int64_t most_rows) {
    if (scaling != Scaling::none && !takes_e4m3(rows, columns, scaling)) return false;
    Key key{0, rows, columns, y_type, accumulate, scaling};
    if (const auto known = has_.find(key); known != has_.end()) return known->second;
    // The heuristic looks at addresses for nothing but their alignment.
    static constexpr std::uintptr_t kSomewhere = 4096;
    const auto *scales = reinterpret_cast<const float *>(kSomewhere);
    const Matrix w{scales, rows, columns, scales, scaling};
    const auto ask = [&](int64_t m) -> Status {
        Key of_rows = key;
        of_rows.m = padded_rows(m);
        Described product;
        RETURN_IF_ERROR(describe(of_rows, &product));
        RETURN_IF_ERROR(describe_vectors(product, w, {scales, scales}));
        std::vector<cublasLtMatmulHeuristicResult_t> found;
        return find_candidates(of_rows, product, &found);
    };
    bool all = true;
    for (int64_t m = 16; all; m = std::min(2 * m, most_rows)) {
        const Status status = ask(m);
        if (!status.ok()) refusal_ = status.message();
        all = status.ok();
        if (m >= most_rows) break;
    }
    return has_[key] = all;
}

Status Linear::make_product(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                            Product *product) {
    RETURN_IF_ERROR(describe(key, product));
    RETURN_IF_ERROR(describe_vectors(*product, w, x));
    Key coarse = key;
    coarse.m = tuned_rows(key.m);
    if (!key.alike && scratch_ != nullptr &&
        coarse.m * key.n * dtype_bytes(key.y_type) <= scratch_bytes_) {
        auto known = tuned_.find(coarse);
        if (known == tuned_.end()) {
            Choice chosen;
            RETURN_IF_ERROR(choose(coarse, w, x, stream, &chosen));
            known = tuned_.emplace(coarse, chosen).first;
            guessed_ += chosen.guessed ? 1 : 0;
        }
        product->few_rows = known->second.few_rows;
        if (product->few_rows) return {};
        cublasLtMatmulHeuristicResult_t fits{};
        if (cublasLtMatmulAlgoCheck(handle_, product->operation, product->w, product->x, product->y,
                                    product->y, &known->second.algorithm,
                                    &fits) == CUBLAS_STATUS_SUCCESS &&
            fits.workspaceSize <= static_cast<size_t>(linear_workspace)) {
            product->algorithm = known->second.algorithm;
            return {};
        }
    }
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    RETURN_IF_ERROR(find_candidates(key, *product, &found));
    product->algorithm = found[0].algo;
    return {};
}

TuningKey Linear::tuning_key(const Key &key) const {
    // Kinds of e4m3 products that have other candidates are other elements.
    const int32_t scaled = static_cast<int32_t>(DType::e4m3) +
                           8 * static_cast<int32_t>(key.scaling) + (fast_accumulation_ ? 4 : 0);
    return {key.m,
            key.n,
            key.k,
            key.scaling == Scaling::none ? static_cast<int32_t>(element_) : scaled,
            static_cast<int32_t>(key.y_type),
            (key.gelu         ? 2
             : key.accumulate ? 1
                              : 0) +
                (key.bias && !key.gelu ? 3 : 0)};
}

void Linear::remember(const TuningKey &key, int32_t candidate) {
    cache_.add(key, candidate);
    const auto now = std::chrono::steady_clock::now();
    if (now - saved_ <= std::chrono::seconds(1)) return;
    cache_.save();
    saved_ = now;
}

// A candidate's algorithm; none: cuBLASLt does not have it, or not for this product.
std::optional<cublasLtMatmulAlgo_t>
Linear::algorithm_of(const Product &product,
                     const std::vector<cublasLtMatmulHeuristicResult_t> &found,
                     int32_t candidate) const {
    const auto of_heuristic = static_cast<size_t>(candidate % kOfHeuristic);
    if (candidate < 0 || candidate == TuningCache::kFewRows || of_heuristic >= found.size() ||
        found[of_heuristic].state != CUBLAS_STATUS_SUCCESS) {
        return {};
    }
    cublasLtMatmulAlgo_t algorithm = found[of_heuristic].algo;
    const int32_t change = candidate / kOfHeuristic - 1;
    if (change < 0) return algorithm;
    const Form &form = kForms[change];
    const auto cluster = static_cast<uint16_t>(form.cluster);
    const auto tile = static_cast<uint32_t>(form.tile);
    const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t what, const auto &value) {
        return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, what, &value, sizeof value) ==
               CUBLAS_STATUS_SUCCESS;
    };
    cublasLtMatmulHeuristicResult_t fits{};
    const bool there =
        set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster) &&
        (tile == CUBLASLT_MATMUL_TILE_UNDEFINED ||
         (set(CUBLASLT_ALGO_CONFIG_TILE_ID, tile) &&
          set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, form.option))) &&
        cublasLtMatmulAlgoCheck(handle_, product.operation, product.w, product.x, product.y,
                                product.y, &algorithm, &fits) == CUBLAS_STATUS_SUCCESS &&
        fits.workspaceSize <= static_cast<size_t>(linear_workspace);
    if (!there) return {};
    return algorithm;
}

// The algorithm of a number of rows, or of a range, of which key has the least.
Status Linear::choose(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                      Choice *chosen) {
    Described product;
    RETURN_IF_ERROR(describe(key, &product));
    RETURN_IF_ERROR(describe_vectors(product, w, x));
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    RETURN_IF_ERROR(find_candidates(key, product, &found));
    const TuningKey cached = tuning_key(key);
    int32_t candidate = cache_.find(cached);
    const bool few_rows = has_few_rows(key);
    auto algorithm = algorithm_of(product, found, candidate);
    const bool known = algorithm || (few_rows && candidate == TuningCache::kFewRows);
    if (!known && !times_) {
        if (few_rows && likely_few_rows(key.m, key.n)) {
            *chosen = {found[0].algo, true, true};
            return {};
        }
        const int32_t likely = likely_form(key.m);
        if (found.size() < kOfHeuristic && likely >= 0)
            algorithm = algorithm_of(product, found, kOfHeuristic * (1 + likely));
        *chosen = {algorithm ? *algorithm : found[0].algo, true};
        return {};
    }
    if (!known) {
        ASSIGN_OR_RETURN(candidate, fastest(key, product, found, w, x, stream));
        remember(cached, candidate);
        algorithm = algorithm_of(product, found, candidate);
    }
    *chosen = {algorithm ? *algorithm : found[0].algo, false, candidate == TuningCache::kFewRows};
    return {};
}

bool Linear::set_timing(bool on, std::span<const int64_t> rows) {
    times_ = on;
    if (!on || guessed_ == 0) return false;
    const auto again = [&](const auto &choice) {
        const auto same = [&](int64_t m) { return tuned_rows(m) == choice.first.m; };
        return choice.second.guessed &&
               (rows.empty() || std::any_of(rows.begin(), rows.end(), same));
    };
    for (auto at = products_.begin(); at != products_.end();) {
        Key coarse = at->first;
        coarse.m = tuned_rows(coarse.m);
        const auto choice = tuned_.find(coarse);
        if (choice == tuned_.end() || !again(*choice)) {
            ++at;
            continue;
        }
        destroy(&at->second);
        at = products_.erase(at);
    }
    const auto erased = static_cast<int64_t>(std::erase_if(tuned_, again));
    guessed_ -= erased;
    return erased > 0;
}

Result<int32_t> Linear::fastest(const Key &key, const Product &product,
                                const std::vector<cublasLtMatmulHeuristicResult_t> &found,
                                const Matrix &w, const Input &x, cudaStream_t stream) {
    ASSIGN_OR_RETURN(const Event begin, Event::create(true));
    ASSIGN_OR_RETURN(const Event end, Event::create(true));
    const double flops =
        2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k);
    const auto repeats =
        std::clamp(static_cast<int64_t>(kRepeatedFlops / flops), kLeastRepeats, kMostRepeats);
    float shortest = 0;
    int32_t best = -1;
    const auto attempt = [&](int32_t candidate) -> Status {
        const bool few_rows = candidate == TuningCache::kFewRows;
        const auto algorithm = algorithm_of(product, found, candidate);
        if (!algorithm && !few_rows) return {};
        const auto run = [&] {
            return few_rows ? run_few_rows(w, x, key.m, scratch_, key.y_type, key.accumulate, 1,
                                           stream) == cudaSuccess
                            : multiply(product, *algorithm, w, x, scratch_, key.accumulate,
                                       stream) == CUBLAS_STATUS_SUCCESS;
        };
        if (!run()) { // this loads the kernel
            cudaGetLastError();
            return {};
        }
        float milliseconds = 0;
        const auto take_time = [&](int64_t times) -> Status {
            RETURN_IF_CUDA(cudaEventRecord(begin, stream));
            for (int64_t r = 0; r < times; ++r) {
                if (!run()) return error(BATCHLLM_ERROR_DEVICE, "cuda: a product that is timed");
            }
            RETURN_IF_CUDA(cudaEventRecord(end, stream));
            RETURN_IF_CUDA(cudaEventSynchronize(end));
            RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
            milliseconds /= static_cast<float>(times);
            return {};
        };
        RETURN_IF_ERROR(take_time(1));
        if (best >= 0 && milliseconds > kHopeless * shortest) return {};
        RETURN_IF_ERROR(take_time(repeats));
        // An earlier one is left only for what is clearly faster: two runs choose alike more often.
        if (best < 0 || milliseconds < 0.97f * shortest) {
            shortest = milliseconds;
            best = candidate;
        }
        return {};
    };
    for (int32_t i = 0; i < static_cast<int32_t>(found.size()); ++i) RETURN_IF_ERROR(attempt(i));
    const int32_t unchanged = std::max(best, 0);
    const int32_t possible = key.m <= kMostOfSmallTiles ? TuningCache::kChanges : kClusters;
    // In order, only what has been seen to agree.
    const int32_t changes = found.size() < kOfHeuristic && !in_order_ ? possible : 0;
    for (int32_t change = 1; change <= changes; ++change)
        RETURN_IF_ERROR(attempt(unchanged + change * kOfHeuristic));
    if (has_few_rows(key)) RETURN_IF_ERROR(attempt(TuningCache::kFewRows));
    return std::max(best, 0);
}

Result<const Linear::Product *> Linear::product_of(const Matrix &w, const Input &x, int64_t rows,
                                                   DType y_type, bool accumulate,
                                                   cudaStream_t stream) {
    const bool e4m3 = w.scaling != Scaling::none;
    if (e4m3 &&
        (w.scales == nullptr || x.scales == nullptr || !takes_e4m3(w.rows, w.columns, w.scaling))) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda: a product in e4m3 with [%lld, %lld]: of a shape that it has not, or "
                     "without scales",
                     static_cast<long long>(w.rows), static_cast<long long>(w.columns));
    }
    // In order, any choice gives the same bits.
    const bool alike = w.alike && !in_order_;
    const Key key{padded_rows(rows), w.rows, w.columns,         y_type, accumulate,
                  w.scaling,         alike,  w.bias != nullptr, w.gelu};
    auto found = products_.find(key);
    if (found == products_.end() && in_order_) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda: no product in order of %lld rows with [%lld, %lld]",
                     static_cast<long long>(key.m), static_cast<long long>(key.n),
                     static_cast<long long>(key.k));
    }
    if (found == products_.end()) {
        Product product;
        const Status status = make_product(key, w, x, stream, &product);
        if (!status.ok()) {
            destroy(&product);
            return status;
        }
        found = products_.emplace(key, product).first;
    }
    return &found->second;
}

// It has accurate sums alone, no bias, and another order of sums for other numbers of rows.
bool Linear::has_few_rows(const Key &key) const {
    return flags_.data() != nullptr && !in_order_ && key.scaling == Scaling::rows && !key.bias &&
           !fast_accumulation_ && key.m >= kLeastOfFew && key.m <= kMostOfFew &&
           takes_few_rows(key.m, key.k, key.n, key.y_type);
}

cudaError_t Linear::run_few_rows(const Matrix &w, const Input &x, int64_t rows, void *y,
                                 DType y_type, bool accumulate, float alpha, cudaStream_t stream) {
    const FewRowsArguments arguments{x.data,
                                     x.scales,
                                     w.data,
                                     w.scales,
                                     y,
                                     y_type,
                                     accumulate,
                                     alpha,
                                     static_cast<int32_t>(rows),
                                     static_cast<int32_t>(w.columns),
                                     static_cast<int32_t>(w.rows),
                                     workspace_.data(),
                                     flags_.as<uint32_t>()};
    return launch_few_rows_sm90(arguments, stream);
}

Status Linear::prepare(const Matrix &w, const Input &x, int64_t rows, DType y_type, bool accumulate,
                       cudaStream_t stream) {
    return product_of(w, x, rows, y_type, accumulate, stream).status();
}

Status Linear::run(const Matrix &w, const Input &x, int64_t rows, void *y, DType y_type,
                   bool accumulate, cudaStream_t stream, float alpha) {
    if (rows == 0) return {};
    ASSIGN_OR_RETURN(const Product *product, product_of(w, x, rows, y_type, accumulate, stream));
    if (in_order_ && accumulate && alpha != product->alpha) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda: a product in order with [%lld, %lld] was tested with alpha %g, not %g",
                     static_cast<long long>(w.rows), static_cast<long long>(w.columns),
                     static_cast<double>(product->alpha), static_cast<double>(alpha));
    }
    if (product->few_rows) {
        return check_cuda(run_few_rows(w, x, rows, y, y_type, accumulate, alpha, stream),
                          "a product of few rows");
    }
    RETURN_IF_ERROR(describe_vectors(*product, w, x));
    return check(multiply(*product, product->algorithm, w, x, y, accumulate, stream, alpha),
                 "cublasLtMatmul");
}

// As describe(), with a matrix of each for every head.
Status Linear::describe_heads(const HeadProductArguments &a, DType element, Product *product) {
    RETURN_IF_CUBLAS(cublasLtMatmulDescCreate(&product->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RETURN_IF_CUBLAS(cublasLtMatmulDescSetAttribute(product->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                    &transposed, sizeof transposed));
    const auto layout = [&](cublasLtMatrixLayout_t *of, int32_t rows, int32_t columns,
                            int64_t stride, int64_t head) -> Status {
        RETURN_IF_CUBLAS(cublasLtMatrixLayoutCreate(of, data_type(element),
                                                    static_cast<uint64_t>(rows),
                                                    static_cast<uint64_t>(columns), stride));
        RETURN_IF_CUBLAS(cublasLtMatrixLayoutSetAttribute(*of, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                          &a.heads, sizeof a.heads));
        return check(cublasLtMatrixLayoutSetAttribute(
                         *of, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &head, sizeof head),
                     "a product of heads");
    };
    RETURN_IF_ERROR(layout(&product->w, a.columns, a.rows, a.columns, int64_t{a.rows} * a.columns));
    RETURN_IF_ERROR(layout(&product->x, a.columns, a.tokens, a.x_stride, a.x_head));
    return layout(&product->y, a.rows, a.tokens, a.y_stride, a.y_head);
}

Status Linear::run_heads(const HeadProductArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return {};
    HeadProductArguments shape = a;
    shape.x = shape.w = shape.y = nullptr;
    auto found = std::find_if(of_heads_.begin(), of_heads_.end(),
                              [&](const OfHeads &of) { return of.shape == shape; });
    if (found == of_heads_.end()) {
        Described made;
        RETURN_IF_ERROR(describe_heads(a, element_, &made));
        const Key key{a.tokens, a.rows, a.columns, element_, false, Scaling::none};
        std::vector<cublasLtMatmulHeuristicResult_t> candidates;
        RETURN_IF_ERROR(find_candidates(key, made, &candidates));
        made.algorithm = candidates[0].algo;
        of_heads_.push_back({shape, std::exchange(static_cast<Product &>(made), Product())});
        found = of_heads_.end() - 1;
    }
    const Matrix w{a.w, int64_t{a.heads} * a.rows, a.columns};
    return check(multiply(found->product, found->product.algorithm, w, a.x, a.y, false, stream),
                 "a product of heads");
}

} // namespace batchllm::cuda
