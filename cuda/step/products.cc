#include "step/products.h"

#include <algorithm>
#include <utility>

#include "base/cache_path.h"
#include "elementwise/norm.h"
#include "linear/order_probe.h"

namespace batchllm::cuda {

Result<Products> Products::create(const ForwardOptions &options, int64_t rows,
                                  std::string *warning) {
    std::string path = options.tuning_cache;
    const std::string stamp = Linear::stamp(options.device);
    if (path.empty()) path = cache_path(stamp + ".txt");
    if (path == "none" || !options.tune) path.clear();
    TuningCache cache(path, stamp, warning);
    ASSIGN_OR_RETURN(Linear linear, Linear::create(options.element, nullptr, 0, std::move(cache)));
    linear.set_fast_accumulation(options.fast_accumulation);
    if (options.reproducible) linear.set_in_order();
    return Products(options, rows, std::move(linear));
}

bool Products::takes(int64_t rows, int64_t columns, Scaling scaling, bool ends) {
    // In f32 nothing is rounded that need not be.
    if (element_ == DType::f32 || columns > kMostNormed) return false;
    const DType result = ends ? residual_ : element_;
    return linear_.has(rows, columns, scaling, result, false, most_asked_);
}

bool Products::adds(const Matrix &w) {
    return w.scaling == Scaling::none ||
           linear_.has(w.rows, w.columns, w.scaling, residual_, true, most_asked_);
}

Status Products::prepare_in_order(const std::vector<InOrder> &wanted) {
    OrderProbe probe;
    for (const InOrder &p : wanted) {
        const DType type = p.w.scaling == Scaling::none ? element_ : DType::e4m3;
        probe.reserve({p.w.rows, p.w.columns, type, p.y_type, p.accumulate, p.most_rows});
    }
    RETURN_IF_ERROR(probe.allocate());
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    for (const InOrder &p : wanted) {
        RETURN_IF_ERROR(linear_.prepare_in_order(p.w, p.y_type, p.accumulate, p.alpha, p.most_rows,
                                                 &probe, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

} // namespace batchllm::cuda
