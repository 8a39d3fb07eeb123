// A Forward's products: which of them are in e4m3, what they read and write, and all of them alone.
#include <algorithm>

#include "base/cache_path.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "elementwise/quantize.h"
#include "linear/order_probe.h"
#include "step/forward.h"

namespace batchllm::cuda {
namespace {

constexpr const char *kExpertsInFp8 =
    "of experts only routed ones that are gated by SiLU, have no biases and have sizes that are "
    "multiples of 128 are multiplied in fp8, by kernels of family sm90";

} // namespace

Status Forward::make_linear() {
    std::string path = options_.tuning_cache;
    const std::string stamp = Linear::stamp(options_.device);
    if (path.empty()) path = cache_path(stamp + ".txt");
    if (path == "none" || !options_.tune) path.clear();
    TuningCache cache(path, stamp, &warning_);
    ASSIGN_OR_RETURN(Linear linear, Linear::create(options_.element, nullptr, 0, std::move(cache)));
    linear_ = std::make_unique<Linear>(std::move(linear));
    linear_->set_fast_accumulation(options_.fast_accumulation);
    if (options_.reproducible) linear_->set_in_order();
    return {};
}

bool Forward::takes(int64_t rows, int64_t columns, Scaling scaling, bool ends) const {
    // In f32 nothing is rounded that need not be.
    if (options_.element == DType::f32 || columns > kMostNormed) return false;
    const DType result = ends ? options_.residual : options_.element;
    return linear_->has(rows, columns, scaling, result, false, most_asked());
}

bool Forward::adds(const Matrix &w) const {
    return w.scaling == Scaling::none ||
           linear_->has(w.rows, w.columns, w.scaling, options_.residual, true, most_asked());
}

// What is in e4m3 is the same at every step size.
int64_t Forward::most_asked() const {
    return options_.reproducible ? std::max<int64_t>(rows_, 16384) : rows_;
}

void Forward::warn_of_widened(int64_t count, const std::string &why) {
    if (count == 0) return;
    if (!warning_.empty()) warning_ += "; ";
    warning_ += std::to_string(count) + " of the checkpoint's matrices in fp8 are widened to " +
                dtype_name(options_.element) + ": " + why;
}

// The products first: they say what can be in e4m3.
Status Forward::load() {
    rows_ = padded_rows(options_.step_tokens);
    RETURN_IF_ERROR(make_linear());
    LoadOptions load;
    load.element = options_.element;
    load.random = options_.random_weights;
    load.skewed_routing = options_.skewed_routing;
    load.seed = options_.seed;
    load.threads = options_.threads;
    load.quantize = options_.quantize;
    // In f32 nothing is rounded that need not be.
    load.experts_in_e4m3 =
        options_.experts == GroupedKernel::sm90 && options_.element != DType::f32;
    load.takes = [this](int64_t rows, int64_t columns, Scaling scaling, bool ends) {
        return takes(rows, columns, scaling, ends);
    };
    ASSIGN_OR_RETURN(weights_, load_weights(model_, load));
    const std::string &refusal = linear_->refusal();
    const std::string why =
        refusal.empty() ? "their shapes or scales do not suit its products" : refusal;
    if (options_.quantize == Quantize::fp8 && !weights_.scaled()) {
        const bool sparse =
            std::any_of(weights_.layers.begin(), weights_.layers.end(),
                        [](const DeviceLayer &layer) { return bool(layer.experts); });
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: quantize=fp8: none of the layers' matrices can be in fp8: "
                     "%s%s%s",
                     why.c_str(), sparse ? "; " : "", sparse ? kExpertsInFp8 : "");
    }
    if (options_.quantize != Quantize::none && options_.element != DType::f32) {
        warn_of_widened(weights_.widened, why);
        warn_of_widened(weights_.widened_with_experts,
                        std::string("those of feed-forwards with experts; ") + kExpertsInFp8);
    }
    return {};
}

std::string Forward::compute_type() const {
    const std::string element = dtype_name(options_.element);
    if (!weights_.scaled()) return element;
    int64_t all = 0;
    for (const DeviceLayer &layer : weights_.layers) {
        all += 2 * (int64_t{layer.mixes()} + int64_t{layer.gate_up.rows > 0} +
                    int64_t{bool(layer.experts)});
    }
    return element +
           (weights_.in_e4m3 == all ? ", products in fp8 (e4m3)" : ", some products in fp8 (e4m3)");
}

StepForm Forward::form() const {
    StepForm form = step_form(model_, options_);
    const auto take = [](const Matrix &w, int64_t *most) {
        const int64_t scales = w.scaling == Scaling::none   ? 0
                               : w.scaling == Scaling::rows ? 1
                                                            : w.columns / kScaleBlock;
        *most = std::max(*most, scales);
    };
    for (const DeviceLayer &layer : weights_.layers) {
        take(layer.qkv, &form.normed_scales);
        take(layer.gate_up, &form.normed_scales);
        take(layer.o, &form.attended_scales);
        take(layer.down, &form.activated_scales);
        form.deltas = form.deltas || (!layer.after_attention && !adds(layer.o)) ||
                      (!layer.after_feed_forward && !adds(layer.down));
        if (!layer.experts.in_e4m3()) continue;
        form.experts_in_e4m3 = true;
        form.normed_scales = std::max(form.normed_scales, model_.hidden / kScaleBlock);
    }
    return form;
}

// The queries in qkv_ have been read.
Result<Input> Forward::attended(const Matrix &w, const int32_t *wanted, int64_t rows,
                                cudaStream_t stream) {
    const auto count = static_cast<int32_t>(rows);
    if (w.scaling != Scaling::none) {
        const QuantizeArguments arguments{options_.element,
                                          attended_.data(),
                                          qkv_.data(),
                                          scales_of(attended_scales_, w.scaling, rows),
                                          count,
                                          static_cast<int32_t>(w.columns),
                                          wanted};
        RETURN_IF_CUDA(launch_quantize_rows(arguments, stream));
        RETURN_IF_ERROR(profile_.mark(Part::quantize, stream));
        return Input(qkv_.data(), attended_scales_.as<float>());
    }
    if (wanted == nullptr) return Input(attended_.data());
    RETURN_IF_CUDA(launch_gather(attended_.data(), wanted, qkv_.data(), count,
                                 w.columns * dtype_bytes(options_.element), stream));
    return Input(qkv_.data());
}

std::vector<Forward::Product> Forward::products(const DeviceLayer &w) const {
    const DType element = options_.element, residual = options_.residual;
    const Layer &described = model_.layers[static_cast<size_t>(&w - weights_.layers.data())];
    const float scale = described.residual_scale;
    // What ends a sublayer: added to the residual stream, or a delta.
    const auto end = [&](const Matrix &matrix, const Input &x, const DeviceNorm &after,
                         float alpha) {
        const bool delta = after || !adds(matrix);
        return Product{matrix,   x,      delta ? delta_.data() : residual_.data(),
                       residual, !delta, alpha};
    };
    const Input normed{normed_.data(), normed_scales_.as<float>()};
    const Input attended{w.o.scaling == Scaling::none ? attended_.data() : qkv_.data(),
                         attended_scales_.as<float>()};
    const Input activated{activated_.data(), activated_scales_.as<float>()};
    std::vector<Product> products;
    if (w.mixes()) {
        products.push_back({w.qkv, normed, qkv_.data(), element, false});
        products.push_back(end(w.o, attended, w.after_attention, scale));
    }
    if (w.gate_up.rows > 0) {
        products.push_back({w.gate_up, normed, gate_up_.data(), element, false});
        products.push_back(w.experts ? Product{w.down, activated, delta_.data(), residual, false}
                                     : end(w.down, activated, w.after_feed_forward, scale));
    }
    if (w.experts) {
        const Input x = w.experts.in_e4m3() ? Input(normed_whole_.data()) : normed;
        products.push_back({w.experts.router, x, experts_.logits(), DType::f32, false,
                            described.experts.router.logits_scale});
    }
    if (model_.layer_inputs) {
        products.push_back({w.input_gate, normed, gate_up_.data(), element, false});
        products.push_back(end(w.input_down, activated, w.after_input, 1));
    }
    return products;
}

Status Forward::prepare_in_order() {
    struct Wanted {
        Matrix w;
        DType y_type;
        bool accumulate;
        float alpha;
        int64_t most_rows;
    };
    std::vector<Wanted> wanted;
    for (const DeviceLayer &layer : weights_.layers) {
        for (const Product &p : products(layer)) {
            wanted.push_back({p.w, p.y_type, p.accumulate, p.alpha, rows_});
            // What a layer's scalar multiplies is a delta first.
            if (p.accumulate && layer.scalar != nullptr) {
                wanted.push_back({p.w, p.y_type, false, 1, rows_});
            }
        }
    }
    if (model_.layer_inputs) {
        wanted.push_back({weights_.input_projection, options_.element, false, 1, rows_});
    }
    if (weights_.head.rows > 0) {
        wanted.push_back({weights_.head, DType::f32, false, 1, logits_rows_});
    }
    OrderProbe probe;
    for (const Wanted &p : wanted) {
        probe.reserve(
            {p.w.rows, p.w.columns, input_type(p.w.scaling), p.y_type, p.accumulate, p.most_rows});
    }
    RETURN_IF_ERROR(probe.allocate());
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    for (const Wanted &p : wanted) {
        RETURN_IF_ERROR(linear_->prepare_in_order(p.w, p.y_type, p.accumulate, p.alpha, p.most_rows,
                                                  &probe, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

Status Forward::prepare(cudaStream_t stream) {
    if (options_.reproducible) return {}; // done
    for (int64_t rows = 1; rows <= rows_; rows = padded_rows(rows) + 1) {
        for (const DeviceLayer &layer : weights_.layers) { // those of one shape share it
            for (const Product &p : products(layer)) {
                RETURN_IF_ERROR(linear_->prepare(p.w, p.x, rows, p.y_type, p.accumulate, stream));
            }
        }
        if (rows > logits_rows_ || weights_.head.rows == 0) continue;
        RETURN_IF_ERROR(
            linear_->prepare(weights_.head, normed_.data(), rows, DType::f32, false, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

Status Forward::run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream) {
    for (const DeviceLayer &w : weights_.layers) {
        const bool last = &w == &weights_.layers.back();
        for (const Product &p : products(w)) { // but for QKV, the last layer's are of the wanted
            const int64_t rows = last && &p.w != &w.qkv ? wanted : tokens;
            RETURN_IF_ERROR(
                linear_->run(p.w, p.x, rows, p.y, p.y_type, p.accumulate, stream, p.alpha));
        }
        if (!w.experts) continue;
        const Ending ending{w.down, nullptr, nullptr, {}, 1, nullptr, Scaling::none, Part::combine};
        RETURN_IF_ERROR(experts_.run(
            model_.layers[static_cast<size_t>(&w - weights_.layers.data())], w.experts,
            Input(normed_.data(), normed_scales_.as<float>()),
            addition(ending, residual_.data(), last ? wanted : tokens), &profile_, stream));
    }
    if (weights_.head.rows == 0) return {};
    for (int64_t first = 0; first < wanted; first += logits_rows_) {
        RETURN_IF_ERROR(linear_->run(weights_.head, normed_.data(),
                                     std::min(logits_rows_, wanted - first), logits_.data(),
                                     DType::f32, false, stream));
    }
    return {};
}

} // namespace batchllm::cuda
