#include "backend/gpu/packed_fit.h"

#include <algorithm>

#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "model/four_bits.h"

namespace batchllm {
namespace {

constexpr uint8_t largest_power = 128; // with the bias 127: larger scales would overflow bf16

PackedFit refused(const char *why) { return {std::nullopt, why}; }

PackedFit int4(const FourBitFacts &facts, int64_t columns, DType element) {
    Packing packing;
    const bool one = facts.group_columns >= columns;
    if (!one && facts.group_columns % 32 != 0) {
        return refused("their groups of columns are not multiples of 32");
    }
    packing.form =
        one || facts.group_columns % 128 == 0 ? PackedForm::int4_128 : PackedForm::int4_32;
    if (facts.scale_type == DType::f32) return refused("their scales are in f32");
    if (element == DType::f16 && facts.scale_type != DType::f16) {
        return refused("their scales in bf16 do not fit f16");
    }
    packing.split = element != facts.scale_type;
    packing.ordered = facts.any_order;
    return {packing, nullptr};
}

// Whether the columns of all parts have one order, in which groups follow one another.
bool same_order(const std::vector<const Tensor *> &parts) {
    std::vector<int32_t> first;
    for (const Tensor *part : parts) {
        if (part->four_bits == nullptr) continue; // not loaded, or not there
        const std::vector<int32_t> own = column_order(*part->four_bits);
        if (first.empty()) first = own;
        if (own.empty() || own != first) return false;
    }
    return true;
}

} // namespace

PackedFit packed_fit(const Model &model, const std::vector<const Tensor *> &parts, DType element) {
    std::optional<FourBitFacts> facts;
    bool others = false;
    int64_t columns = 0;
    for (const Tensor *tensor : parts) {
        if (!*tensor) continue;
        columns = tensor->columns;
        if (tensor->factor != 1) return refused("they have multipliers");
        const auto own = four_bit_facts(model, *tensor);
        if (own && facts) {
            const uint8_t power = std::max(own->largest_power, facts->largest_power);
            FourBitFacts same = *own;
            same.largest_power = facts->largest_power;
            if (same != *facts) return refused("parts of a matrix are in different formats");
            facts->largest_power = power;
        }
        if (own && tensor->stored_columns > 0 &&
            (own->any_order || tensor->first_column % own->group_columns != 0)) {
            return refused("their groups of columns are divided among devices");
        }
        if (!facts) facts = own;
        others = others || !own;
    }
    if (!facts || element == DType::f32) return {};
    if (others) return refused("other parts of their matrices are not in four bits");
    if (columns % 8 != 0) return refused("their columns are no multiple of 8");
    if (facts->any_order && !same_order(parts)) {
        return refused(
            "the columns of a group are in different orders in parts of a matrix (g_idx)");
    }
    if (facts->kind == FourBitKind::int4) return int4(*facts, columns, element);
    if (element == DType::f16) return refused("products of e2m1 are in bf16 alone");
    Packing packing;
    packing.form = facts->kind == FourBitKind::mxfp4 ? PackedForm::mxfp4 : PackedForm::nvfp4;
    if (facts->largest_power > largest_power) return refused("a scale is above 2");
    return {packing, nullptr};
}

std::vector<const Tensor *> first_tensors(const Mixer &mixer) {
    using Tensors = std::vector<const Tensor *>;
    return std::visit(
        Visitor{
            [](const NoMixer &) { return Tensors(); },
            [](const Attention &a) {
                if (a.latent) return Tensors{&a.first_q().values, &a.latent.down.values};
                return Tensors{&a.q.values, &a.k.values, &a.v.values, &a.gate.values};
            },
            [](const LinearAttention &linear) {
                Tensors tensors;
                for (const Tensor &part : linear.input) tensors.push_back(&part);
                return tensors;
            },
            [](const ShortConvolution &convolution) {
                return Tensors{&convolution.b.values, &convolution.c.values, &convolution.x.values};
            }},
        mixer);
}

std::vector<const Tensor *> last_tensors(const Mixer &mixer) {
    using Tensors = std::vector<const Tensor *>;
    return std::visit(Visitor{[](const NoMixer &) { return Tensors(); },
                              [](const auto &other) { return Tensors{&other.o.values}; }},
                      mixer);
}

bool has_padded_heads(const Mixer &mixer) {
    const auto *a = std::get_if<Attention>(&mixer);
    return a != nullptr && !a->latent && padded_head_dim(a->head_dim) != a->head_dim;
}

PackedLayer packed_layer(const Model &model, const Layer &layer, DType element) {
    const auto fit = [&](const std::vector<const Tensor *> &parts) {
        return packed_fit(model, parts, element).packing;
    };
    PackedLayer packed;
    packed.first = fit(first_tensors(layer.mixer));
    if (!has_padded_heads(layer.mixer)) packed.last = fit(last_tensors(layer.mixer));
    if (const FeedForward *f = layer.feed_forward()) {
        packed.gate_up = fit({&f->gate.values, &f->up.values});
        packed.down = fit({&f->down.values});
    }
    if (const Experts *experts = layer.experts()) {
        const FeedForward &one = experts->each.front();
        const auto in_order = [&](std::optional<Packing> packing) {
            return packing && packing->ordered ? std::nullopt : packing;
        };
        packed.experts_gate_up = in_order(fit({&one.gate.values, &one.up.values}));
        packed.experts_down = in_order(fit({&one.down.values}));
    }
    return packed;
}

} // namespace batchllm
