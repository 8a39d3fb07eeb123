// What a Forward is made of besides its buffers: planes of the pool, ropes.
#include <algorithm>
#include <numeric>

#include "attention/worklist_by_position.h"
#include "backend/gpu/key_segments.h"
#include "backend/kv_scales.h"
#include "step/forward.h"

namespace batchllm::cuda {
namespace {

constexpr bool has_key_segments() {
    for (int32_t begin = 0; begin < 1 << 29; begin = segment_end(begin)) {
        if (segment_end(begin) != key_segment_end(begin)) return false;
    }
    return true;
}
static_assert(has_key_segments());

} // namespace

StepForm step_form(const Model &model, const ForwardOptions &options) {
    StepForm form;
    form.element = options.element;
    form.residual = options.residual;
    if (options.attention.reproducible) form.partials = most_partials(model.max_positions);
    form.state_chunks = goes_in_chunks(model, options.element, options.reproducible);
    return form;
}

Forward::Forward(const Model &model, const ForwardOptions &options)
    : model_(model), options_(options),
      attention_(model, options.element, options.kv_type(), options.attention),
      states_(model, {options.element, options.state, options.attention.sms, options.reproducible,
                      options.experts == GroupedKernel::sm90}),
      experts_(model, options.element, options.experts, options.attention.sms) {
    profile_.on = options.profile;
    // Plain attention reads the nodes by launch, not by worklist; events are not captured.
    graphs_.on = options.graphs && options.attention.fused && !options.profile &&
                 options.element != DType::f32;
    for (size_t i = 0; i < model_.layers.size(); ++i) {
        if (model_.layers[i].attends()) attending_.push_back(i);
    }
    choose_planes();
}

void Forward::choose_planes() {
    std::vector<int64_t> bytes; // [KV groups] of a page in a plane
    plane_bytes_ = 1;
    for (const KvGroup &group : model_.kv_groups) {
        const Attention &a = model_.layers[static_cast<size_t>(group.layers[0])].attention;
        bytes.push_back(kv_page_bytes(a.kv_heads, padded_head_dim(a.head_dim),
                                      static_cast<int32_t>(dtype_bytes(kv_type()))));
        plane_bytes_ = std::lcm(plane_bytes_, bytes.back());
    }
    for (const int64_t of_group : bytes) {
        page_scale_.push_back(static_cast<int32_t>(plane_bytes_ / of_group));
    }
    attention_.set_page_scale(page_scale_);
}

int64_t Forward::most_pages() const {
    return int64_t{INT32_MAX} / kPageKeys /
           *std::max_element(page_scale_.begin(), page_scale_.end());
}

Status Forward::allocate_ropes() {
    for (const Rope &rope : model_.ropes) {
        RopeTable table;
        const auto half = static_cast<int64_t>(rope.frequencies.size());
        ASSIGN_OR_RETURN(table.frequencies, zeroed_memory(half * 4, "rope frequencies"));
        ASSIGN_OR_RETURN(table.angles, zeroed_memory(rows_ * half * 8, "rope angles"));
        RETURN_IF_CUDA(cudaMemcpy(table.frequencies.data(), rope.frequencies.data(),
                                  rope.frequencies.size() * sizeof(float), cudaMemcpyHostToDevice));
        ropes_.push_back(std::move(table));
    }
    return {};
}

// Random weights are of such a size that keys and values need no scale.
Status Forward::allocate_kv_scales() {
    if (!options_.kv_e4m3 || options_.random_weights) return {};
    const std::vector<KvScales> scales = kv_scales(model_, options_.threads);
    std::vector<float> all;
    for (const KvScales &of_layer : scales) {
        all.insert(all.end(), of_layer.k.begin(), of_layer.k.end());
        all.insert(all.end(), of_layer.v.begin(), of_layer.v.end());
    }
    const size_t bytes = all.size() * sizeof(float);
    ASSIGN_OR_RETURN(kv_scales_,
                     DeviceMemory::create(static_cast<int64_t>(bytes), "scales of keys"));
    RETURN_IF_CUDA(cudaMemcpy(kv_scales_.data(), all.data(), bytes, cudaMemcpyHostToDevice));
    const auto *next = kv_scales_.as<float>();
    for (size_t i = 0; i < scales.size(); ++i) {
        weights_.layers[i].k_scale = next;
        weights_.layers[i].v_scale = next + scales[i].k.size();
        next += scales[i].k.size() + scales[i].v.size();
    }
    return {};
}

Status Forward::take_pages(int64_t pages) {
    // Padding of heads stays zero for ever.
    ASSIGN_OR_RETURN(kv_, zeroed_memory(pages * page_bytes(), "the KV pages"));
    pages_ = pages;
    return {};
}

} // namespace batchllm::cuda
