#include "step/forward.h"

#include <algorithm>
#include <utility>

#include "backend/gpu/step_buffers.h"
#include "backend/gpu/tower_buffers.h"
#include "elementwise/elementwise.h"
#include "elementwise/look_up.h"
#include "latent/latent.h"
#include "step/layer_products.h"
#include "step/supported.h"

namespace batchllm::cuda {
namespace {

constexpr const char *kExpertsInFp8 =
    "of experts only routed ones in mxfp4 that are gated by SiLU or as gpt-oss's are, and others "
    "that are gated by SiLU, have no biases and have sizes that are multiples of 128, are "
    "multiplied in fp8, by kernels of family sm90";

// What is not there for attention over latents.
Status check_latents(const Model &model, const ForwardOptions &options) {
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr || !a->latent || options.element == DType::f32) continue;
        if (options.reproducible) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "cuda backend: reproducible: with latents only in compute_type f32");
        }
        int device = 0, shared = 0;
        RETURN_IF_CUDA(cudaGetDevice(&device));
        RETURN_IF_CUDA(
            cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        const int64_t needed = latent_attention_bytes(padded_key_dim(*a));
        if (shared >= needed) continue;
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: latents of %d need %lld bytes of shared memory, this device "
                     "has %d",
                     a->latent.rank, static_cast<long long>(needed), shared);
    }
    return {};
}

} // namespace

Forward::Forward(const Model &model, const ForwardOptions &options, Products products)
    : parts_(model, options), products_(std::move(products)), residual_(&parts_, &products_),
      mixers_(&parts_, &products_, &residual_, &graphs_), feeds_(&parts_, &products_, &residual_),
      head_(&parts_, &products_, &residual_) {
    // Plain attention reads the nodes by launch, not by worklist; events are not captured.
    graphs_.on = options.graphs && options.attention.fused && !options.profile &&
                 options.element != DType::f32;
}

Result<std::unique_ptr<Forward>> Forward::create(const Model &model,
                                                 const ForwardOptions &options) {
    RETURN_IF_ERROR(check_supported(model));
    RETURN_IF_ERROR(check_latents(model, options));
    // The products first: they say what can be in e4m3.
    std::string warning;
    ASSIGN_OR_RETURN(Products products,
                     Products::create(options, padded_rows(options.step_tokens), &warning));
    std::unique_ptr<Forward> forward(new Forward(model, options, std::move(products)));
    forward->warning_ = std::move(warning);
    RETURN_IF_ERROR(forward->load());
    StepParts &parts = forward->parts_;
    RETURN_IF_ERROR(parts.allocate(loaded_form(parts, &forward->products_)));
    // Nothing is in these when a product's algorithms are timed, but what it is to write.
    // Logits that other ranks read they may still be reading.
    const DeviceMemory &gate_up = parts.activations.gate_up;
    const DeviceMemory &logits =
        parts.peers != nullptr ? parts.activations.all_logits : parts.activations.logits.own;
    forward->products_.set_scratch(gate_up.bytes() > logits.bytes() ? gate_up : logits);
    forward->products_.set_expanded(parts.activations.expanded);
    forward->products_.set_taken(parts.activations.taken);
    // Steps with adapters of gate and up need these before the activation; in order there is one product alone.
    for (size_t i = 0; i < parts.weights.layers.size(); ++i) {
        const Matrix &w = parts.layer(i).gate_up;
        if (w.packing && w.packing->turns &&
            (options.reproducible || !forward->products_.can_expand(w))) {
            parts.adapters.exclude({i, LayerProduct::gate_up});
        }
        const DeviceExperts &experts = parts.layer(i).experts;
        const auto &packing = experts.gate_up_packing;
        if (packing && packing->form == PackedForm::mxfp4_e4m3) {
            parts.adapters.exclude_experts(i, ExpertProduct::gate_up);
            parts.adapters.exclude_experts(i, ExpertProduct::down);
        }
        // Scales of blocks of gate and up in turns are read by the gated product alone, so that it has to add adapters itself.
        // In order it has to, since the activation is of rounded sums otherwise, also of rows that have no adapter
        // (StepExperts::products).
        if (!experts || options.element == DType::f32) continue;
        const bool must = experts.gate_up_scaling == Scaling::blocks || options.reproducible;
        if (must && parts.experts.may_add_adapters(experts, ExpertProduct::gate_up)) {
            parts.adapters.limit_experts(i, ExpertProduct::gate_up, kMostGroupedRanks);
        } else if (must) {
            parts.adapters.exclude_experts(i, ExpertProduct::gate_up);
        }
    }
    if (options.reproducible) RETURN_IF_ERROR(prepare_in_order(parts, &forward->products_));
    RETURN_IF_ERROR(forward->make_tower(model));
    return forward;
}

// Without one, rows of text run as ever.
Status Forward::make_tower(const Model &model) {
    if (model.tower == nullptr) return {};
    const ForwardOptions &options = parts_.options;
    if (!options.pictures) {
        no_pictures_ = "the backend option pictures is 0";
        return {};
    }
    if (const char *what = StepTower::missing(model, options.element)) {
        no_pictures_ = what;
        if (!warning_.empty()) warning_ += "; ";
        warning_ += std::string("cuda backend: no pictures: ") + what;
        return {};
    }
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    const int64_t tokens = picture_tokens_on_gpu(model, options.residual, options.step_tokens,
                                                 static_cast<int64_t>(total));
    RETURN_IF_ERROR(parts_.pictures.allocate(model, options.residual, tokens));
    ASSIGN_OR_RETURN(tower_, StepTower::create(model, options, &parts_.pictures));
    return {};
}

Status Forward::load() {
    const ForwardOptions &options = parts_.options;
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    LoadOptions load = load_options(parts_.model, options, total);
    load.takes = [this](int64_t rows, int64_t columns, Scaling scaling, bool ends) {
        return products_.takes(rows, columns, scaling, ends);
    };
    ASSIGN_OR_RETURN(parts_.weights, load_weights(parts_.model, load));
    const DeviceWeights &weights = parts_.weights;
    const std::string &refusal = products_.refusal();
    const std::string why =
        refusal.empty() ? "their shapes or scales do not suit its products" : refusal;
    if (options.quantize == Quantize::fp8 && !weights.scaled()) {
        const bool sparse = parts_.model.has_experts();
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: quantize=fp8: none of the layers' matrices can be in fp8: "
                     "%s%s%s",
                     why.c_str(), sparse ? "; " : "", sparse ? kExpertsInFp8 : "");
    }
    const auto warn_of_widened = [&](int64_t count, const std::string &because) {
        if (count == 0) return;
        if (!warning_.empty()) warning_ += "; ";
        warning_ += std::to_string(count) + " of the checkpoint's matrices in fp8 are widened to " +
                    dtype_name(options.element) + ": " + because;
    };
    if (options.quantize != Quantize::none && options.element != DType::f32) {
        warn_of_widened(weights.widened, why);
        warn_of_widened(weights.widened_with_experts,
                        std::string("those of feed-forwards with experts; ") + kExpertsInFp8);
    }
    if (weights.expanded > 0) {
        if (!warning_.empty()) warning_ += "; ";
        warning_ += std::to_string(weights.expanded) +
                    " of the checkpoint's matrices in four bits are expanded to " +
                    dtype_name(options.element) + ": " + weights.refusals;
    }
    return {};
}

std::string Forward::compute_type() const {
    const DeviceWeights &weights = parts_.weights;
    std::string element = dtype_name(parts_.options.element);
    int64_t all = 0, rounded = 0; // of the layers' matrices
    for (const DeviceLayer &layer : weights.layers) {
        all += 2 * (int64_t{layer.mixes()} + int64_t{layer.gate_up.rows > 0} +
                    int64_t{bool(layer.experts)});
        for (const Matrix *w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
            rounded += w->packing && w->packing->rounds ? 1 : 0;
        }
    }
    if (weights.packed > 0) {
        const bool some = weights.expanded > 0 || (rounded > 0 && weights.packed < all);
        element += (some ? ", some weights in " : ", weights in ") + weights.formats;
    }
    if (!weights.scaled()) return element;
    return element +
           (weights.in_e4m3 == all ? ", products in fp8 (e4m3)" : ", some products in fp8 (e4m3)");
}

Status Forward::prepare(cudaStream_t stream) {
    if (products_.set_timing(true)) graphs_.clear();
    return prepare_products(parts_, &products_, stream);
}

Status Forward::run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream) {
    return run_products(&parts_, &products_, residual_, tokens, wanted, stream);
}

Status Forward::run(const Staging &staging, cudaStream_t stream) {
    ASSIGN_OR_RETURN(const bool moved, parts_.reserve(stream));
    // Graphs know addresses and choices.
    if (moved) graphs_.clear();
    if (parts_.adapters.merged_anew()) {
        graphs_.clear([](const Graphs::Shape &s) { return StepAdapters::is_merged(s.adapters); });
    }
    set_timing();
    RETURN_IF_ERROR(parts_.adapters.wait(stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::begin, stream));
    RETURN_IF_ERROR(parts_.input.fill(staging, stream));
    // Where pictures' tokens stand, and how many there are, is another thing in every step.
    Graph *graph = parts_.pictures.staged() > 0 ? nullptr : captured(stream);
    RETURN_IF_ERROR(parts_.options.rank.meet()); // nothing is allocated from here on
    if (graph == nullptr) return launch(stream);
    RETURN_IF_ERROR(mixers_.set_arguments(graph));
    return graph->replay(stream);
}

void Forward::set_timing() {
    const StagedStep &step = parts_.staged;
    std::vector<int64_t> sizes;
    const bool due = timing_is_due();
    if (due) {
        sizes = layer_rows(step.tokens, step.wanted);
        const int64_t chunk = parts_.activations.logits_rows; // of the head, which is in no graph
        sizes.push_back(std::min(step.wanted, chunk));
        sizes.push_back(step.wanted_tokens % chunk);
    }
    if (!products_.set_timing(due, sizes)) return;
    // A product whose choice is forgotten may be in graphs of other shapes.
    graphs_.clear([&](const Graphs::Shape &shape) {
        for (const int64_t a : layer_rows(shape.tokens, shape.wanted)) {
            for (const int64_t b : sizes) {
                if (a > 0 && tuned_rows(a) == tuned_rows(b)) return true;
            }
        }
        return false;
    });
}

std::vector<int64_t> Forward::layer_rows(int64_t tokens, int64_t wanted) const {
    std::vector<int64_t> rows = {tokens, wanted};
    residual_.add_owned_rows(tokens, &rows);
    return rows;
}

bool Forward::timing_is_due() {
    const int64_t untimed = parts_.options.untimed_steps;
    if (untimed == 0 || !parts_.options.tune) return true;
    const StagedStep &step = parts_.staged;
    const int64_t all = tuned_rows(step.tokens), wanted = tuned_rows(step.wanted);
    const bool due = ++steps_[all] == untimed + 1;
    // The last products' rows.
    if (wanted == 0 || wanted == all) return due;
    return ++wanted_steps_[wanted] == untimed + 1 || due;
}

Graph *Forward::captured(cudaStream_t stream) {
    const StagedStep &step = parts_.staged;
    if (parts_.attention.plain()) return nullptr; // its launches depend on which tokens are so
    bool due = false;
    Graph *graph = graphs_.find({step.tokens, step.wanted, step.gather, parts_.states.form(),
                                 parts_.attention.form(), parts_.adapters.form()},
                                &due);
    if (graph != nullptr || !due) return graph;
    // What cannot be captured can still be launched.
    Status captured = graphs_.begin(stream);
    if (captured.ok()) captured = launch(stream);
    if (captured.ok()) {
        Result<Graph *> made = graphs_.end(stream);
        if (made.ok()) {
            graph = *made;
        } else {
            captured = made.status();
        }
    }
    if (!captured.ok()) graphs_.give_up(stream);
    return graph;
}

Status Forward::launch(cudaStream_t stream) {
    const Model &model = parts_.model;
    const StepRows rows = parts_.all_rows();
    const auto tokens = static_cast<int32_t>(rows.count);
    RETURN_IF_CUDA(launch_embed(parts_.element(), parts_.options.residual, parts_.weights.embedding,
                                parts_.input.at<int32_t>(kTokens), parts_.samples(), tokens,
                                model.hidden, model.embedding_scale, rows.residual, stream));
    RETURN_IF_ERROR(adapt_embedding(rows, stream));
    RETURN_IF_ERROR(parts_.pictures.embed(parts_.input, rows.residual, stream));
    RETURN_IF_ERROR(parts_.ropes.launch(model, parts_.input, tokens, stream));
    RETURN_IF_ERROR(feeds_.make_layer_inputs(stream));
    RETURN_IF_ERROR(parts_.profile.mark(Part::input, stream));
    RETURN_IF_ERROR(residual_.begin(stream));
    const ResidualStream::First first = residual_.first_of(0);
    RETURN_IF_ERROR(residual_.norm(first.norm, first.scaling, rows, stream));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        RETURN_IF_ERROR(layer(i, stream));
        if (!parts_.pictures.adds_behind(i)) continue;
        // Never behind the last layer. The next one's norm has been launched before this is added.
        RETURN_IF_ERROR(parts_.pictures.add_behind(i, parts_.input, rows.residual, stream));
        if (residual_.keeps_input(i)) continue;
        const ResidualStream::First next = residual_.after(i);
        RETURN_IF_ERROR(residual_.norm(next.norm, next.scaling, rows, stream));
    }
    return {};
}

Status Forward::adapt_embedding(const StepRows &rows, cudaStream_t stream) {
    const StepAdapters &adapters = parts_.adapters;
    const size_t product = adapters.model().embedding();
    if (!adapters.changes(product)) return {};
    const AdapterArguments change = adapters.arguments(
        {product, parts_.input.at<int32_t>(kTokens), Scaling::none, rows.count, false,
         rows.residual, parts_.options.residual, parts_.model.embedding_scale},
        parts_.input);
    RETURN_IF_CUDA(launch_look_up(change, parts_.samples(), parts_.options.attention.sms, stream));
    return adapters.expand(change, stream);
}

// The first norm has been launched; so has the next layer's, or the last one, when this returns.
Status Forward::layer(size_t index, cudaStream_t stream) {
    const bool last = index + 1 == parts_.model.layers.size();
    const bool mixes = parts_.model.layers[index].mixes();
    residual_.enter(index);
    RETURN_IF_ERROR(mixers_.begin(index, stream));
    if (last && parts_.staged.wanted == 0) return {};
    RETURN_IF_ERROR(mixers_.mix(index, stream));
    const StepRows rows = last ? parts_.wanted_rows() : parts_.all_rows();
    if (rows.wanted != nullptr) {
        RETURN_IF_CUDA(launch_gather(parts_.activations.residual.data(), rows.wanted, rows.residual,
                                     static_cast<int32_t>(rows.count),
                                     parts_.model.hidden * dtype_bytes(parts_.options.residual),
                                     stream));
    }
    if (mixes) {
        RETURN_IF_ERROR(mixers_.end(index, rows, stream));
    } else if (rows.wanted != nullptr) { // the feed-forward's input, now of these rows
        const ResidualStream::First first = residual_.first_of(index);
        RETURN_IF_ERROR(residual_.norm(first.norm, first.scaling, rows, stream));
    }
    return feeds_.run(index, rows, stream);
}

} // namespace batchllm::cuda
