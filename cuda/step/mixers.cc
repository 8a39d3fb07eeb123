#include "step/mixers.h"

#include <algorithm>
#include <variant>

#include "base/visit.h"
#include "elementwise/elementwise.h"
#include "elementwise/quantize.h"
#include "elementwise/rope.h"
#include "latent/latent.h"
#include "recurrent/channel_delta.h"
#include "step/adapted_product.h"

namespace batchllm::cuda {

Mixers::Mixers(StepParts *parts, Products *products, ResidualStream *residual, Graphs *graphs)
    : parts_(*parts), products_(*products), residual_(*residual), graphs_(*graphs) {
    for (size_t i = 0; i < parts_.model.layers.size(); ++i) {
        if (parts_.model.layers[i].attention() != nullptr) attending_.push_back(i);
    }
}

Status Mixers::begin(size_t index, cudaStream_t stream) {
    return std::visit(
        Visitor{
            [](const NoMixer &) { return Status(); },
            [&](const Attention &a) {
                return a.latent ? latents(index, a, stream) : keys_and_values(index, a, stream);
            },
            [&](const LinearAttention &) { return recurrent(index, Part::delta, stream); },
            [&](const ShortConvolution &) { return recurrent(index, Part::convolution, stream); }},
        parts_.model.layers[index].mixer);
}

Status Mixers::mix(size_t index, cudaStream_t stream) {
    // Whatever has a state is done.
    const Attention *attention = parts_.model.layers[index].attention();
    return attention != nullptr ? attend(index, *attention, stream) : Status();
}

// The mixer's first product.
Status Mixers::project(size_t index, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const Input x = residual_.normed(w.before_attention, w.qkv.scaling, parts_.all_rows());
    RETURN_IF_ERROR(run_adapted(parts_, &products_,
                                {w.qkv, x, parts_.activations.qkv.data(), parts_.element(), false},
                                {index, LayerProduct::first}, parts_.staged.tokens, false, stream));
    return parts_.profile.mark(Part::qkv, stream);
}

Status Mixers::keys_and_values(size_t index, const Attention &a, cudaStream_t stream) {
    RETURN_IF_ERROR(project(index, stream));
    const DeviceLayer &w = parts_.layer(index);
    const auto &own = std::get<DeviceAttention>(w.mixer);
    const bool turns = a.rope >= 0;
    const Rope *rope = turns ? &parts_.model.ropes[static_cast<size_t>(a.rope)] : nullptr;
    const KvPool::Scales scales = parts_.kv.scales_of(index);
    const DeviceRank &rank = parts_.options.rank;
    const bool shares = a.norm_whole && rank;
    if (shares) RETURN_IF_ERROR(share_squares(w, a, stream));
    const RopeArguments arguments{parts_.element(),
                                  parts_.activations.qkv.data(),
                                  w.qkv_bias,
                                  own.q_norm,
                                  own.k_norm,
                                  a.norm_whole,
                                  own.v_norm,
                                  turns ? parts_.ropes.angles(a.rope) : nullptr,
                                  turns ? rope->dims() : 0,
                                  turns && rope->pairs,
                                  parts_.kv.slots_of(a, parts_.input),
                                  parts_.kv.plane_of(a),
                                  static_cast<int32_t>(parts_.staged.tokens),
                                  a.heads,
                                  a.kv_layer < 0 ? a.kv_heads : 0,
                                  a.head_dim,
                                  padded_head_dim(a.head_dim),
                                  parts_.input.at<int32_t>(kPositions),
                                  a.long_scale,
                                  a.long_period,
                                  a.gated ? a.heads : 0,
                                  parts_.options.kv_e4m3,
                                  scales.k,
                                  scales.v,
                                  shares ? parts_.activations.delta.as<float2>() : nullptr,
                                  rank.ranks(),
                                  a.norm_turned,
                                  a.long_shift};
    RETURN_IF_CUDA(launch_rope(arguments, stream));
    return parts_.profile.mark(Part::rope, stream);
}

// Into Activations::delta, which no sublayer's result is in yet: the squares of all ranks' queries and keys, [tokens, 2].
// Padding of heads is zero.
Status Mixers::share_squares(const DeviceLayer &w, const Attention &a, cudaStream_t stream) {
    const Activations &buffers = parts_.activations;
    auto *sums = buffers.delta.as<float>();
    const auto tokens = static_cast<int32_t>(parts_.staged.tokens);
    const int32_t padded = padded_head_dim(a.head_dim), queries = a.heads * padded;
    const int32_t keys = a.kv_layer < 0 ? a.kv_heads * padded : 0;
    const std::byte *row = buffers.qkv.data();
    RETURN_IF_CUDA(
        launch_row_squares({parts_.element(), row, w.qkv.rows, tokens, queries, sums, 2}, stream));
    RETURN_IF_CUDA(
        launch_row_squares({parts_.element(), row + queries * dtype_bytes(parts_.element()),
                            w.qkv.rows, tokens, keys, sums + 1, 2},
                           stream));
    return parts_.options.rank.sum(sums, int64_t{2} * tokens, DType::f32, stream);
}

// Queries, absorbed, and keys of a layer with latents.
Status Mixers::latents(size_t index, const Attention &a, cudaStream_t stream) {
    RETURN_IF_ERROR(project(index, stream));
    const Latent &latent = a.latent;
    const DeviceLayer &w = parts_.layer(index);
    const auto &own = std::get<DeviceLatent>(w.mixer);
    const Activations &buffers = parts_.activations;
    const DType element = parts_.element();
    const auto tokens = static_cast<int32_t>(parts_.staged.tokens);
    const Rope *rope = a.rope >= 0 ? &parts_.model.ropes[static_cast<size_t>(a.rope)] : nullptr;
    const float2 *angles = rope != nullptr ? parts_.ropes.angles(a.rope) : nullptr;
    const bool pairs = rope != nullptr && rope->pairs;
    const int64_t first = a.first_q().rows();
    const int32_t key_dim = padded_key_dim(a);
    const LatentKeyArguments keys{element,
                                  buffers.qkv.data(),
                                  w.qkv_bias,
                                  static_cast<int32_t>(w.qkv.rows),
                                  static_cast<int32_t>(first),
                                  latent.q_down ? static_cast<int32_t>(first) : 0,
                                  own.q_norm,
                                  buffers.latent_normed.data(),
                                  own.norm,
                                  latent.rank,
                                  latent.turned,
                                  angles,
                                  pairs,
                                  parts_.kv.slots_of(a, parts_.input),
                                  parts_.kv.plane_of(a),
                                  key_dim,
                                  tokens,
                                  parts_.options.kv_e4m3,
                                  parts_.kv.scales_of(index).k,
                                  parts_.input.at<int32_t>(kPositions),
                                  a.long_scale,
                                  a.long_period,
                                  a.long_shift};
    RETURN_IF_CUDA(launch_latent_keys(keys, stream));
    const void *q = buffers.qkv.data();
    int64_t q_stride = w.qkv.rows;
    if (latent.q_down) {
        q = buffers.latent_of_down.data();
        q_stride = own.q.rows;
        const Input normed(buffers.latent_normed.data());
        RETURN_IF_ERROR(run_adapted(parts_, &products_,
                                    {own.q, normed, buffers.latent_of_down.data(), element, false},
                                    {index, LayerProduct::queries}, tokens, false, stream));
    }
    const LatentRows rows = latent_rows();
    void *queries = buffers.latent_queries.data();
    RETURN_IF_ERROR(products_.run_heads({q, q_stride, latent.query_dim(), own.keys, queries,
                                         int64_t{a.heads} * key_dim, key_dim, rows.absorbed,
                                         a.heads, latent.rank, latent.plain},
                                        stream));
    RETURN_IF_CUDA(
        launch_latent_queries({element, q, q_stride, queries, rows.absorbed, a.heads,
                               latent.query_dim(), latent.turned, key_dim, angles, pairs},
                              stream));
    if (rows.plain > 0) {
        const PlainQueries to = plain_queries(index, a);
        const auto *from =
            static_cast<const std::byte *>(q) + rows.first * q_stride * dtype_bytes(element);
        RETURN_IF_CUDA(launch_latent_plain_queries(
            {element, from, q_stride, to.q, to.stride, rows.plain, a.heads, latent.query_dim(),
             latent.turned,
             angles != nullptr ? angles + int64_t{rows.first} * (latent.turned / 2) : nullptr,
             pairs},
            stream));
    }
    return parts_.profile.mark(Part::rope, stream);
}

// The step's tokens in the absorbed form, rounded up where others follow, and those in the plain form.
Mixers::LatentRows Mixers::latent_rows() const {
    const StepAttention &step = parts_.attention;
    const int64_t all = parts_.staged.tokens;
    if (!step.plain()) return {static_cast<int32_t>(all), static_cast<int32_t>(all), 0};
    const int32_t first = step.first_plain();
    return {static_cast<int32_t>(std::min(all, padded_rows(first))), first, step.tokens() - first};
}

// Where they stay if they are as wide as the kernel needs them, or behind the absorbed ones.
Mixers::PlainQueries Mixers::plain_queries(size_t index, const Attention &a) const {
    const Activations &buffers = parts_.activations;
    const LatentRows rows = latent_rows();
    const auto bytes = dtype_bytes(parts_.element());
    if (a.latent.query_dim() == latent_head_dim && a.latent.q_down) {
        const int64_t stride = std::get<DeviceLatent>(parts_.layer(index).mixer).q.rows;
        return {buffers.latent_of_down.data() + rows.first * stride * bytes, stride};
    }
    return {buffers.latent_queries.data() +
                int64_t{rows.absorbed} * a.heads * padded_key_dim(a) * bytes,
            int64_t{a.heads} * latent_head_dim};
}

// Attention over latents, up to each head's values.
Status Mixers::attend_latents(size_t index, const Attention &a, cudaStream_t stream) {
    const AttentionTensors of_layer = tensors(index, a);
    const StepAttention &step = parts_.attention;
    const Activations &buffers = parts_.activations;
    const Latent &latent = a.latent;
    const auto &own = std::get<DeviceLatent>(parts_.layer(index).mixer);
    const LatentRows rows = latent_rows();
    if (rows.first > 0) {
        RETURN_IF_ERROR(step.launch(index, of_layer, parts_.input, stream));
        RETURN_IF_ERROR(graphs_.mark(stream));
        if (parts_.element() != DType::f32) {
            RETURN_IF_ERROR(step.launch_merging(index, of_layer, parts_.input, stream));
            RETURN_IF_ERROR(graphs_.mark(stream));
        }
        const int32_t value_dim = padded_value_dim(a);
        RETURN_IF_ERROR(products_.run_heads(
            {buffers.latent_made.data(), int64_t{a.heads} * value_dim, value_dim, own.values,
             buffers.attended.data(), a.result_size(), latent.value_dim, rows.absorbed, a.heads,
             latent.value_dim, latent.rank},
            stream));
    }
    if (rows.plain == 0) return {};
    // After the absorbed ones, whose rounded number of rows may end among these.
    const auto bytes = dtype_bytes(parts_.element());
    std::byte *results = buffers.attended.data() + rows.first * a.result_size() * bytes;
    const bool narrower = latent.value_dim != latent_head_dim;
    std::byte *made = narrower ? buffers.latent_made.data() +
                                     int64_t{rows.absorbed} * a.heads * padded_value_dim(a) * bytes
                               : results;
    const PlainQueries q = plain_queries(index, a);
    const AttentionTensors plain{q.q, made, of_layer.kv, nullptr, of_layer.k_scale};
    RETURN_IF_ERROR(step.launch_plain_latents(index, plain, own.keys, own.values, q.stride,
                                              parts_.input, stream));
    if (!narrower) return {};
    return check_cuda(launch_latent_narrow(made, results, int64_t{rows.plain} * a.heads,
                                           latent.value_dim, stream),
                      "values of latents");
}

// Of what has been projected.
Status Mixers::channel_gates(size_t index, const ChannelDeltaNet &net, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const auto &own = std::get<DeviceDelta>(w.mixer);
    const StepStates::ChannelGates gates = parts_.states.channel_gates();
    const DType element = parts_.element();
    const int64_t tokens = parts_.staged.tokens, z = net.channels();
    RETURN_IF_CUDA(launch_gate_inputs({element, parts_.activations.qkv.data(), w.qkv.rows,
                                       static_cast<int32_t>(z),
                                       static_cast<int32_t>(z + net.gate_rank + net.gates()),
                                       net.gate_rank, tokens, gates.of_z, gates.of_a},
                                      stream));
    RETURN_IF_ERROR(run_adapted(parts_, &products_, {own.z, gates.of_z, gates.z, element, false},
                                {index, LayerProduct::gates}, tokens, false, stream));
    return run_adapted(parts_, &products_, {own.a, gates.of_a, gates.a, element, false},
                       {index, LayerProduct::decays}, tokens, false, stream);
}

Status Mixers::recurrent(size_t index, Part part, cudaStream_t stream) {
    RETURN_IF_ERROR(project(index, stream));
    if (const auto *net = std::get_if<ChannelDeltaNet>(&parts_.model.layers[index].mixer)) {
        RETURN_IF_ERROR(channel_gates(index, *net, stream));
    }
    const Activations &buffers = parts_.activations;
    RETURN_IF_ERROR(parts_.states.launch(index, parts_.layer(index), buffers.qkv.data(),
                                         buffers.attended.data(), buffers.delta.as<float>(),
                                         parts_.staged.tokens, parts_.input, stream));
    return parts_.profile.mark(part, stream);
}

AttentionTensors Mixers::tensors(size_t index, const Attention &attention) const {
    const Activations &buffers = parts_.activations;
    const KvPool::Scales scales = parts_.kv.scales_of(index);
    if (attention.latent) {
        return {buffers.latent_queries.data(),
                buffers.latent_made.data(),
                parts_.kv.plane_of(attention),
                nullptr,
                scales.k,
                scales.v};
    }
    const auto &own = std::get<DeviceAttention>(parts_.layer(index).mixer);
    return {buffers.qkv.data(),
            buffers.attended.data(),
            parts_.kv.plane_of(attention),
            own.sinks,
            scales.k,
            scales.v};
}

// Keys and values have been launched.
Status Mixers::attend(size_t index, const Attention &attention, cudaStream_t stream) {
    const AttentionTensors of_layer = tensors(index, attention);
    const StepAttention &step = parts_.attention;
    if (attention.latent) {
        RETURN_IF_ERROR(attend_latents(index, attention, stream));
    } else {
        if (step.widens(index)) {
            RETURN_IF_ERROR(step.launch_widening(index, of_layer, parts_.input, stream));
            RETURN_IF_ERROR(graphs_.mark(stream));
        }
        RETURN_IF_ERROR(step.launch(index, of_layer, parts_.input, stream));
        RETURN_IF_ERROR(graphs_.mark(stream));
    }
    if (attention.gated) {
        const DeviceLayer &w = parts_.layer(index);
        const Activations &buffers = parts_.activations;
        const int64_t gates = w.qkv.rows - w.o.columns;
        const GateArguments arguments{parts_.element(),
                                      buffers.attended.data(),
                                      buffers.qkv.data() + gates * dtype_bytes(parts_.element()),
                                      w.qkv_bias == nullptr ? nullptr : w.qkv_bias + gates,
                                      w.qkv.rows,
                                      static_cast<int32_t>(parts_.staged.tokens),
                                      static_cast<int32_t>(w.o.columns)};
        RETURN_IF_CUDA(launch_gate(arguments, stream));
    }
    return parts_.profile.mark(Part::attention, stream);
}

Status Mixers::set_arguments(Graph *graph) const {
    size_t mark = 0;
    for (auto layer = attending_.begin(); mark < graph->marked(); ++layer) {
        const Attention &attention = *parts_.model.layers[*layer].attention();
        const AttentionArguments arguments =
            parts_.attention.arguments(*layer, tensors(*layer, attention), parts_.input);
        const bool two = parts_.attention.widens(*layer) || attention.latent;
        for (int launches = two ? 2 : 1; launches > 0; --launches) {
            RETURN_IF_ERROR(graph->set_arguments(mark++, &arguments));
        }
    }
    return {};
}

// In e4m3 it is written by a launch of its own, since no block of attention has all of a row. The queries in qkv have been
// read.
Result<Input> Mixers::result(const Matrix &w, const StepRows &rows, cudaStream_t stream) {
    const Activations &buffers = parts_.activations;
    const auto count = static_cast<int32_t>(rows.count);
    if (w.scaling != Scaling::none) {
        const QuantizeArguments arguments{
            parts_.element(),
            buffers.attended.data(),
            buffers.qkv.data(),
            residual_.scales_of(buffers.attended_scales.as<float>(), w.scaling, rows.count),
            count,
            static_cast<int32_t>(w.columns),
            rows.wanted};
        RETURN_IF_CUDA(launch_quantize_rows(arguments, stream));
        RETURN_IF_ERROR(parts_.profile.mark(Part::quantize, stream));
        return Input(buffers.qkv.data(), buffers.attended_scales.as<float>());
    }
    if (rows.wanted == nullptr) return Input(buffers.attended.data());
    RETURN_IF_CUDA(launch_gather(buffers.attended.data(), rows.wanted, buffers.qkv.data(), count,
                                 w.columns * dtype_bytes(parts_.element()), stream));
    return Input(buffers.qkv.data());
}

Status Mixers::end(size_t index, const StepRows &rows, cudaStream_t stream) {
    const DeviceLayer &w = parts_.layer(index);
    const Layer &described = parts_.model.layers[index];
    ASSIGN_OR_RETURN(const Input x, result(w.o, rows, stream));
    if (rows.wanted != nullptr && described.parallel) { // the feed-forward's input, now of these
        RETURN_IF_ERROR(residual_.norm(w.before_attention, scaling_of_feed(w), rows, stream));
    }
    const bool ends = !described.feeds(); // the layer
    const ResidualStream::First after = residual_.after(index);
    const DeviceNorm *next = ends ? &after.norm : &w.before_feed_forward;
    if (described.parallel || residual_.keeps_input(index)) next = nullptr;
    const ResidualStream::Ending ending{w.o,
                                        x,
                                        w.o_bias,
                                        w.after_attention,
                                        described.residual_scale,
                                        next,
                                        ends ? after.scaling : scaling_of_feed(w),
                                        Part::output,
                                        nullptr,
                                        ProductPlace{index, LayerProduct::last},
                                        true,
                                        residual_.makes_expert_inputs(index)};
    return residual_.finish(ending, rows, stream);
}

} // namespace batchllm::cuda
