#include "backend/cpu/weights.h"

#include <cmath>
#include <utility>

#include "base/visit.h"

namespace batchllm::cpu {

Vector read_vector(const Tensor &tensor) {
    Vector out;
    if (!tensor) return out;
    out.resize(static_cast<size_t>(tensor.rows * tensor.columns));
    read_rows(tensor, 0, tensor.rows, DType::f32, out.data());
    return out;
}

PackedNorm pack_norm(const Norm &norm, int64_t length) {
    PackedNorm packed;
    packed.kind = norm.kind;
    packed.epsilon = norm.epsilon;
    if (!norm) return packed;
    packed.weight = read_vector(norm.weight);
    if (packed.weight.empty()) packed.weight.assign(static_cast<size_t>(length), 1.0f);
    for (float &weight : packed.weight) weight += norm.offset;
    if (norm.kind == NormKind::layer) {
        packed.bias = read_vector(norm.bias);
        packed.bias.resize(static_cast<size_t>(length));
    }
    return packed;
}

namespace {

// Concatenates vectors. Those that the model lacks are zeros of the given length.
Vector concatenate(std::span<const std::pair<const Tensor *, int64_t>> parts) {
    Vector out;
    bool some = false;
    for (const auto &[tensor, length] : parts) {
        Vector part = read_vector(*tensor);
        some = some || !part.empty();
        part.resize(static_cast<size_t>(length));
        out.insert(out.end(), part.begin(), part.end());
    }
    if (!some) out.clear();
    return out;
}

Result<PackedAttention> pack_attention(const Attention &from, Linear *linear) {
    PackedAttention packed;
    const int64_t q_length = from.norm_whole ? from.q_size() : from.head_dim;
    const int64_t k_length = from.norm_whole ? from.kv_size() : from.head_dim;
    packed.q_norm = pack_norm(from.q_norm, q_length);
    packed.k_norm = pack_norm(from.k_norm, k_length);
    packed.v_norm = pack_norm(from.v_norm, from.head_dim);
    const std::pair<const Tensor *, int64_t> biases[] = {{&from.q.bias, from.q.rows()},
                                                         {&from.k.bias, from.kv_size()},
                                                         {&from.v.bias, from.kv_size()},
                                                         {&from.gate.bias, from.gate.rows()}};
    const size_t parts = from.kv_layer >= 0 ? 1 : from.gate ? 4 : 3;
    packed.qkv_bias = concatenate(std::span(biases, parts));
    packed.sinks = read_vector(from.sinks);
    for (float &sink : packed.sinks) sink *= 1.44269504088896341f;
    const Tensor *const qkv[] = {&from.q.values, &from.k.values, &from.v.values, &from.gate.values};
    ASSIGN_OR_RETURN(packed.qkv, linear->pack(std::span(qkv, parts), false));
    return packed;
}

// [rows, columns] -> [columns, rows]
Vector transposed(const Vector &stored, int64_t stored_columns) {
    const auto columns = static_cast<size_t>(stored_columns);
    const size_t rows = stored.size() / columns;
    Vector turned(stored.size());
    for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < columns; ++c) turned[c * rows + r] = stored[r * columns + c];
    }
    return turned;
}

// Packs rows [first, first + rows) of `from`, or those rows turned into columns.
Result<PackedMatrix> pack_part(const Tensor &from, int64_t first, int64_t rows, bool turned,
                               Linear *linear) {
    Vector numbers(static_cast<size_t>(rows * from.columns));
    read_rows(from, first, rows, DType::f32, numbers.data());
    if (turned) numbers = transposed(numbers, from.columns);
    Tensor part;
    part.rows = turned ? from.columns : rows;
    part.columns = turned ? rows : from.columns;
    part.data = reinterpret_cast<const std::byte *>(numbers.data());
    ASSIGN_OR_RETURN(PackedMatrix packed, linear->pack(part));
    packed.tensors = {&from}; // `part` ends here; adapters of it are refused
    return packed;
}

Result<PackedLatent> pack_latent(const Attention &from, Linear *linear) {
    const Latent &latent = from.latent;
    PackedLatent packed;
    const Weight &first = from.first_q();
    const Tensor *const both[] = {&first.values, &latent.down.values};
    ASSIGN_OR_RETURN(packed.first, linear->pack(both, false));
    const std::pair<const Tensor *, int64_t> biases[] = {{&first.bias, first.rows()},
                                                         {&latent.down.bias, latent.down.rows()}};
    packed.first_bias = concatenate(biases);
    if (latent.q_down) {
        packed.q_norm = pack_norm(latent.q_norm, latent.q_down.rows());
        ASSIGN_OR_RETURN(packed.q, linear->pack(from.q.values));
        packed.q_bias = read_vector(from.q.bias);
    }
    packed.norm = pack_norm(latent.norm, latent.rank);
    for (int64_t h = 0; h < from.heads; ++h) {
        const int64_t row = h * (latent.plain + latent.value_dim);
        ASSIGN_OR_RETURN(PackedMatrix keys,
                         pack_part(latent.up.values, row, latent.plain, true, linear));
        ASSIGN_OR_RETURN(PackedMatrix values, pack_part(latent.up.values, row + latent.plain,
                                                        latent.value_dim, false, linear));
        packed.keys.push_back(std::move(keys));
        packed.values.push_back(std::move(values));
    }
    return packed;
}

// All but its norm.
Result<PackedLinearAttention> pack_linear_attention(const LinearAttention &from, Linear *linear) {
    PackedLinearAttention packed;
    std::vector<const Tensor *> input;
    for (const Tensor &part : from.input) input.push_back(&part);
    ASSIGN_OR_RETURN(packed.input, linear->pack(input, false));
    Vector stored; // [channels, width]
    std::vector<std::pair<const Tensor *, int64_t>> biases;
    for (const Weight &part : from.convolution) {
        const Vector rows = read_vector(part.values);
        stored.insert(stored.end(), rows.begin(), rows.end());
        biases.emplace_back(&part.bias, part.rows());
    }
    packed.convolution_bias = concatenate(biases);
    packed.convolution = transposed(stored, from.width);
    packed.decay = read_vector(from.decay);
    for (float &decay : packed.decay) decay = -std::exp(decay);
    packed.step_bias = read_vector(from.step_bias);
    const float dim = static_cast<float>(from.key_dim);
    packed.key_scale.assign(static_cast<size_t>(from.key_dim), 1 / std::sqrt(dim));
    packed.query_scale.assign(static_cast<size_t>(from.key_dim), 1 / dim);
    return packed;
}

Result<PackedLinearAttention> pack_delta_net(const DeltaNet &from, Linear *linear) {
    ASSIGN_OR_RETURN(PackedLinearAttention packed, pack_linear_attention(from, linear));
    packed.norm = pack_norm(from.norm, from.value_dim);
    return packed;
}

Result<PackedLinearAttention> pack_channel_net(const ChannelDeltaNet &from, Linear *linear) {
    ASSIGN_OR_RETURN(PackedLinearAttention packed, pack_linear_attention(from, linear));
    packed.norm = pack_norm(from.norm, from.value_dim);
    ASSIGN_OR_RETURN(packed.a, linear->pack(from.a.values));
    ASSIGN_OR_RETURN(packed.z, linear->pack(from.z.values));
    return packed;
}

Result<PackedLinearAttention> pack_mamba2(const Mamba2 &from, Linear *linear) {
    ASSIGN_OR_RETURN(PackedLinearAttention packed, pack_linear_attention(from, linear));
    packed.skip = read_vector(from.skip);
    packed.norm = pack_norm(from.norm, from.values_size());
    return packed;
}

Result<PackedConvolution> pack_convolution(const ShortConvolution &from, Linear *linear) {
    PackedConvolution packed;
    const Tensor *const bx[] = {&from.b.values, &from.x.values};
    ASSIGN_OR_RETURN(packed.bx, linear->pack(bx, true));
    ASSIGN_OR_RETURN(packed.c, linear->pack(from.c.values));
    packed.b_bias = read_vector(from.b.bias);
    packed.x_bias = read_vector(from.x.bias);
    packed.c_bias = read_vector(from.c.bias);
    packed.filter = transposed(read_vector(from.filter.values), from.width);
    packed.filter_bias = read_vector(from.filter.bias);
    return packed;
}

Status pack_mixer(const Mixer &from, Linear *linear, PackedLayer *to) {
    const auto put = [&](auto packed, const Weight &o) -> Status {
        ASSIGN_OR_RETURN(to->mixer, std::move(packed));
        ASSIGN_OR_RETURN(to->o, linear->pack(o.values));
        to->o_bias = read_vector(o.bias);
        return {};
    };
    return std::visit(
        Visitor{
            [](const NoMixer &) { return Status(); },
            [&](const Attention &a) {
                return a.latent ? put(pack_latent(a, linear), a.o)
                                : put(pack_attention(a, linear), a.o);
            },
            [&](const DeltaNet &net) { return put(pack_delta_net(net, linear), net.o); },
            [&](const ChannelDeltaNet &net) { return put(pack_channel_net(net, linear), net.o); },
            [&](const Mamba2 &mamba) { return put(pack_mamba2(mamba, linear), mamba.o); },
            [&](const ShortConvolution &c) { return put(pack_convolution(c, linear), c.o); }},
        from);
}

} // namespace

Status pack_feed_forward(const FeedForward &from, Linear *linear, PackedFeedForward *to) {
    to->gate_bias = read_vector(from.gate.bias);
    to->up_bias = read_vector(from.up.bias);
    to->down_bias = read_vector(from.down.bias);
    if (from.activation == Activation::xielu) {
        to->curve[0] = std::log1p(std::exp(read_vector(from.rise).at(0)));
        to->curve[1] = 0.5F + std::log1p(std::exp(read_vector(from.fall).at(0)));
    }
    if (from.gate) {
        const Tensor *const gate_up[] = {&from.gate.values, &from.up.values};
        ASSIGN_OR_RETURN(to->gate_up, linear->pack(gate_up, true));
    } else {
        ASSIGN_OR_RETURN(to->gate_up, linear->pack(from.up.values));
    }
    ASSIGN_OR_RETURN(to->down, linear->pack(from.down.values));
    return {};
}

namespace {

Status pack_input_block(const Layer &from, int32_t hidden, Linear *linear, PackedLayer *to) {
    to->after_input = pack_norm(from.after_input, hidden);
    ASSIGN_OR_RETURN(to->input_gate, linear->pack(from.input.gate.values));
    ASSIGN_OR_RETURN(to->input_down, linear->pack(from.input.down.values));
    return {};
}

Status pack_feed(const Layer &from, int64_t hidden, Linear *linear, PackedLayer *to) {
    if (const FeedForward *feed_forward = from.feed_forward()) {
        RETURN_IF_ERROR(pack_feed_forward(*feed_forward, linear, &to->feed_forward));
    }
    if (const Experts *experts = from.experts()) {
        RETURN_IF_ERROR(pack_experts(*experts, hidden, linear, &to->experts));
    }
    const SharedExperts *shared = from.shared();
    if (shared == nullptr) return {};
    to->after_shared = pack_norm(shared->after, hidden);
    if (!shared->gate) return {};
    ASSIGN_OR_RETURN(to->shared_gate, linear->pack(shared->gate.values));
    return {};
}

} // namespace

Status pack_experts(const Experts &from, int64_t hidden, Linear *linear, PackedExperts *to) {
    to->router_norm = pack_norm(from.router.norm, hidden);
    to->before = pack_norm(from.before, hidden);
    to->after = pack_norm(from.after, hidden);
    ASSIGN_OR_RETURN(to->router, linear->pack(from.router.weight.values));
    to->router_bias = read_vector(from.router.weight.bias);
    to->correction = read_vector(from.router.correction);
    to->expert_scale = read_vector(from.router.expert_scale);
    to->each.resize(from.each.size());
    for (size_t e = 0; e < from.each.size(); ++e) {
        RETURN_IF_ERROR(pack_feed_forward(from.each[e], linear, &to->each[e]));
    }
    return {};
}

Status pack_layer(const Layer &from, int64_t hidden, Linear *linear, PackedLayer *to) {
    to->before_attention = pack_norm(from.before_attention, hidden);
    to->after_attention = pack_norm(from.after_attention, hidden);
    to->before_feed_forward = pack_norm(from.before_feed_forward, hidden);
    to->after_feed_forward = pack_norm(from.after_feed_forward, hidden);
    RETURN_IF_ERROR(pack_mixer(from.mixer, linear, to));
    RETURN_IF_ERROR(pack_feed(from, hidden, linear, to));
    if (from.scalar) read_row(from.scalar, 0, &to->scalar);
    return {};
}

Result<PackedWeights> pack_weights(const Model &model, Linear *linear) {
    PackedWeights packed;
    packed.layers.reserve(model.layers.size());
    for (const Layer &from : model.layers) {
        PackedLayer &to = packed.layers.emplace_back();
        RETURN_IF_ERROR(pack_layer(from, model.hidden, linear, &to));
        if (model.layer_inputs) {
            RETURN_IF_ERROR(pack_input_block(from, model.hidden, linear, &to));
        }
    }
    if (model.layer_inputs) {
        const LayerInputs &inputs = model.layer_inputs;
        packed.input_norm = pack_norm(inputs.norm, inputs.width);
        ASSIGN_OR_RETURN(packed.input_projection, linear->pack(inputs.projection.values));
    }
    packed.final_norm = pack_norm(model.final_norm, model.hidden);
    if (!model.head) return packed;
    packed.head_bias = read_vector(model.head.bias);
    ASSIGN_OR_RETURN(packed.head, linear->pack(model.head.values));
    return packed;
}

} // namespace batchllm::cpu
