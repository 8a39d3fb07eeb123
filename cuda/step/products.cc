#include "step/products.h"

#include <algorithm>
#include <utility>

#include "base/cache_path.h"
#include "elementwise/norm.h"
#include "elementwise/quantize.h"
#include "four_bits/convert.h"
#include "four_bits/product.h"
#include "latent/latent.h"
#include "linear/order_probe.h"

namespace batchllm::cuda {
namespace {

// Choices of a packed matrix, beside numbers of splits. One that may be rounded has a number of splits less. Files of
// choices have these numbers too.
constexpr int32_t kExpanded = 0, kRounded = 7;
static_assert(kRounded < TuningCache::kCandidates);
int32_t most_splits(const Matrix &w) { return w.packing->rounds ? kRounded - 1 : kRounded; }
constexpr int32_t kRepeats = 3; // of a way that is timed
// In order splits are as for so many rows, whatever their number is.
constexpr int32_t kRowsInOrder = 64;

PackedShape shape_of(const Matrix &w) {
    return {w.packing->form, static_cast<int32_t>(w.rows), static_cast<int32_t>(w.columns)};
}

TuningKey key_of(const StepProduct &p, int64_t rows, DType element) {
    const Packing &packing = *p.w.packing;
    const int32_t kind = (packing.rounds ? 128 : 0) | 64 | static_cast<int32_t>(packing.form) << 3 |
                         (packing.split ? 4 : 0) | (packing.turns ? 2 : 0) |
                         (element == DType::f16 ? 1 : 0);
    return {coarse_rows(padded_rows(rows)),
            p.w.rows,
            p.w.columns,
            kind,
            static_cast<int32_t>(p.y_type),
            p.accumulate ? 1 : 0};
}

} // namespace

TuningCache tuning_cache_of(const ForwardOptions &options, std::string *warning) {
    if (!options.tune || options.tuning_cache == "none") return {};
    const std::string stamp = Linear::stamp(options.device);
    const std::string path =
        options.tuning_cache.empty() ? cache_path(stamp + ".txt") : options.tuning_cache;
    return {path, stamp, warning, shipped_choices()};
}

Result<Products> Products::create(const ForwardOptions &options, int64_t rows,
                                  std::string *warning) {
    ASSIGN_OR_RETURN(Linear linear, Linear::create(options.element, nullptr, 0,
                                                   tuning_cache_of(options, warning)));
    linear.set_fast_accumulation(options.fast_accumulation);
    if (options.reproducible) linear.set_in_order();
    return Products(options, rows, std::move(linear));
}

// In f32 nothing is rounded that need not be.
bool Products::may_take(DType element, int64_t rows, int64_t columns, Scaling scaling) {
    return element != DType::f32 && columns <= kMostNormed && takes_e4m3(rows, columns, scaling);
}

bool Products::takes(int64_t rows, int64_t columns, Scaling scaling, bool ends) {
    if (!may_take(element_, rows, columns, scaling)) return false;
    const DType result = ends ? residual_ : element_;
    return linear_.has(rows, columns, scaling, result, false, most_asked_);
}

bool Products::adds(const Matrix &w) {
    return w.scaling == Scaling::none ||
           linear_.has(w.rows, w.columns, w.scaling, residual_, true, most_asked_);
}

Status Products::run_packed(const StepProduct &p, int64_t rows, int32_t splits,
                            cudaStream_t stream) const {
    ASSIGN_OR_RETURN(const Input x, in_order_of(p.w, p.x, rows, stream));
    FourBitArguments a{};
    a.element = element_;
    a.w_shape = shape_of(p.w);
    a.split = p.w.packing->split;
    a.w = static_cast<const std::byte *>(p.w.data);
    a.x = x.data;
    a.factors = p.w.packing->factors;
    a.scale = p.alpha;
    a.gated = p.w.packing->turns;
    a.activation = p.activation;
    a.add = p.accumulate;
    a.y = p.y;
    a.y_type = p.y_type;
    a.tokens = static_cast<int32_t>(rows);
    a.splits = splits;
    return check_cuda(kernel_ == GroupedKernel::sm90 ? launch_four_bits_sm90(a, sms_, stream)
                                                     : launch_four_bits_sm80(a, sms_, stream),
                      "a product in four bits");
}

Products::Operands Products::operands_of(const Matrix &w, const Input &x, int64_t rows,
                                         Way way) const {
    if (way == Way::expanded) return {{expanded_, w.rows, w.columns}, x};
    return {{expanded_, w.rows, w.columns, w.packing->rounded, Scaling::rows},
            {x_rounded(w), x_scales(w, rows)}};
}

bool Products::can_round(const StepProduct &p) {
    const Matrix &w = p.w;
    const int64_t most = padded_rows(most_asked_);
    return w.packing->rounds && w.rows * w.columns + most * (w.columns + 4) <= expanded_bytes_ &&
           linear_.has(w.rows, w.columns, Scaling::rows, p.y_type, p.accumulate, most_asked_);
}

Result<Products::Operands> Products::unpack(const Matrix &w, const Input &x, int64_t rows, Way way,
                                            cudaStream_t stream) const {
    ASSIGN_OR_RETURN(const Input in_order, in_order_of(w, x, rows, stream));
    const Operands made = operands_of(w, in_order, rows, way);
    const bool rounds = way == Way::rounded;
    const ExpandArguments arguments{shape_of(w),
                                    element_,
                                    static_cast<const std::byte *>(w.data),
                                    1,
                                    w.packing->factors,
                                    rounds ? DType::e4m3 : element_,
                                    false,
                                    w.packing->turns,
                                    expanded_,
                                    w.packing->rounded};
    RETURN_IF_CUDA(launch_expand(arguments, stream));
    if (!rounds) return made;
    const auto count = static_cast<int32_t>(rows), columns = static_cast<int32_t>(w.columns);
    std::byte *to = x_rounded(w);
    RETURN_IF_CUDA(launch_quantize_rows(
        {element_, in_order.data, to, {x_scales(w, rows)}, count, columns}, stream));
    return made;
}

Result<Input> Products::in_order_of(const Matrix &w, const Input &x, int64_t rows,
                                    cudaStream_t stream) const {
    if (!w.packing || w.packing->order == nullptr) return x;
    const TakeColumnsArguments arguments{x.data, w.packing->order, static_cast<int32_t>(rows),
                                         static_cast<int32_t>(w.columns), taken_};
    RETURN_IF_CUDA(launch_take_columns(arguments, stream));
    return Input(taken_);
}

Status Products::run_unpacked(const StepProduct &p, int64_t rows, Way way, cudaStream_t stream) {
    ASSIGN_OR_RETURN(const Operands own, unpack(p.w, p.x, rows, way, stream));
    return linear_.run(own.w, own.x, rows, p.y, p.y_type, p.accumulate, stream, p.alpha);
}

// Timed at the least number of rows of a range, into Linear's scratch.
Result<int32_t> Products::fastest(const StepProduct &p, int64_t rows, cudaStream_t stream) {
    ASSIGN_OR_RETURN(const Event begin, Event::create(true));
    ASSIGN_OR_RETURN(const Event end, Event::create(true));
    StepProduct own = p;
    own.y = linear_.scratch();
    const PackedShape shape = shape_of(p.w);
    const int64_t tiles =
        (p.w.rows + kFourBitTile - 1) / kFourBitTile * ((rows + kTileRows - 1) / kTileRows);
    float shortest = 0;
    int32_t best = 1;
    for (int32_t choice = 1; choice <= kRounded + 1; ++choice) {
        const int32_t way = choice > kRounded ? kExpanded : choice; // the last one
        if (!is_possible(p, way)) continue;
        const bool packed = way != kExpanded && way <= most_splits(p.w);
        if (packed && way > 1 && (way > shape.cell_columns() || tiles * way > 2 * sms_)) continue;
        const auto run = [&]() { return run_chosen(own, rows, way, stream); };
        RETURN_IF_ERROR(run()); // loads the kernel
        RETURN_IF_CUDA(cudaEventRecord(begin, stream));
        for (int32_t i = 0; i < kRepeats; ++i) RETURN_IF_ERROR(run());
        RETURN_IF_CUDA(cudaEventRecord(end, stream));
        RETURN_IF_CUDA(cudaEventSynchronize(end));
        float milliseconds = 0;
        RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
        if (choice > 1 && milliseconds >= 0.97f * shortest) continue; // as Linear's
        shortest = milliseconds;
        best = way;
    }
    return best;
}

bool Products::is_possible(const StepProduct &p, int32_t choice) {
    if (choice == kExpanded) return can_expand(p.w);
    if (choice > most_splits(p.w)) return can_round(p);
    return choice == 1 || (choice > 1 && kernel_ == GroupedKernel::sm90);
}

// Without timing.
int32_t Products::guess(const StepProduct &p, int64_t rows) {
    if (!in_order_ && rows >= rounded_rows_ && can_round(p)) return kRounded;
    if (!in_order_ && rows >= expanded_rows_ && can_expand(p.w)) return kExpanded;
    if (kernel_ != GroupedKernel::sm90) return 1;
    const auto tokens = static_cast<int32_t>(in_order_ ? kRowsInOrder : rows);
    return std::min(most_splits(p.w), four_bit_splits(shape_of(p.w), tokens, sms_));
}

Result<int32_t> Products::choose(const StepProduct &p, int64_t rows, cudaStream_t stream) {
    if (in_order_) return guess(p, rows);
    const TuningKey key = key_of(p, rows, element_);
    if (const auto known = chosen_.find(key); known != chosen_.end()) return known->second;
    const bool tunes = linear_.scratch() != nullptr &&
                       key.m * p.w.rows * dtype_bytes(p.y_type) <= linear_.scratch_bytes();
    int32_t choice = tunes ? linear_.known_choice(key) : guess(p, rows);
    if (tunes) {
        if (!is_possible(p, choice)) {
            ASSIGN_OR_RETURN(choice, fastest(p, key.m, stream));
            linear_.remember(key, choice);
        }
    }
    chosen_[key] = choice;
    return choice;
}

Products::Way Products::way_of(const Matrix &w, int32_t choice) {
    return choice == kExpanded       ? Way::expanded
           : choice > most_splits(w) ? Way::rounded
                                     : Way::packed;
}

Result<Products::Way> Products::way_of(const StepProduct &p, int64_t rows, cudaStream_t stream) {
    ASSIGN_OR_RETURN(const int32_t choice, choose(p, rows, stream));
    return way_of(p.w, choice);
}

Status Products::run_chosen(const StepProduct &p, int64_t rows, int32_t choice,
                            cudaStream_t stream) {
    const Way way = way_of(p.w, choice);
    return way == Way::packed ? run_packed(p, rows, choice, stream)
                              : run_unpacked(p, rows, way, stream);
}

Status Products::run(const StepProduct &p, int64_t rows, cudaStream_t stream) {
    if (!p.w.packing) {
        return linear_.run(p.w, p.x, rows, p.y, p.y_type, p.accumulate, stream, p.alpha);
    }
    if (rows == 0) return {};
    ASSIGN_OR_RETURN(const int32_t choice, choose(p, rows, stream));
    return run_chosen(p, rows, choice, stream);
}

Status Products::prepare(const StepProduct &p, int64_t rows, cudaStream_t stream) {
    if (!p.w.packing) return linear_.prepare(p.w, p.x, rows, p.y_type, p.accumulate, stream);
    ASSIGN_OR_RETURN(const Way way, way_of(p, rows, stream));
    if (way == Way::packed) return {};
    const Operands own = operands_of(p.w, p.x, rows, way);
    return linear_.prepare(own.w, own.x, rows, p.y_type, p.accumulate, stream);
}

Status Products::prepare_in_order(const std::vector<InOrder> &wanted) {
    OrderProbe probe;
    for (const InOrder &p : wanted) {
        if (p.w.packing) continue; // in order as they are
        const DType type = p.w.scaling == Scaling::none ? element_ : DType::e4m3;
        probe.reserve({p.w.rows, p.w.columns, type, p.y_type, p.accumulate, p.most_rows});
    }
    RETURN_IF_ERROR(probe.allocate());
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    for (const InOrder &p : wanted) {
        if (p.w.packing) continue;
        RETURN_IF_ERROR(linear_.prepare_in_order(p.w, p.y_type, p.accumulate, p.alpha, p.most_rows,
                                                 &probe, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

Status Products::run_heads(const HeadProductArguments &arguments, cudaStream_t stream) {
    if (element_ != DType::f32) return linear_.run_heads(arguments, stream);
    return check_cuda(launch_head_products(arguments, stream), "a product of heads");
}

} // namespace batchllm::cuda
