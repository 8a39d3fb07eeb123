#include "step/weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "elementwise/elementwise.h"
#include "experts/grouped.h"
#include "four_bits/convert.h"
#include "four_bits/product.h"
#include "model/four_bits.h"
#include "recurrent/delta.h"
#include "step/expert_weights.h"
#include "step/matrix_form.h"
#include "step/row_quantizer.h"
#include "step/sender.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;

int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

const char *name_of(PackedForm form) {
    return is_int4(form) ? "int4" : is_mxfp4(form) ? "mxfp4" : "nvfp4";
}

void add_once(const std::string &name, const char *between, std::string *all) {
    if (all->find(name) != std::string::npos) return;
    all->append(all->empty() ? "" : between).append(name);
}

class Loader {
  public:
    Loader(const Model &model, const LoadOptions &options)
        : model_(model), options_(options), element_(options.element), random_(options.random),
          seed_(options.seed), experts_(element_, random_, &seed_, &sender_) {}

    Result<int64_t> bytes() {
        DeviceWeights placed;
        RETURN_IF_ERROR(place(&placed));
        return std::exchange(used_, 0);
    }

    Status load(DeviceWeights *out) {
        ASSIGN_OR_RETURN(stream_, Stream::create());
        if (!random_) {
            RETURN_IF_ERROR(sender_.start(options_.threads, stream_));
        }
        ASSIGN_OR_RETURN(const int64_t all, bytes());
        ASSIGN_OR_RETURN(out->memory, DeviceMemory::create(all, "the weights"));
        RETURN_IF_CUDA(cudaMemsetAsync(out->memory.data(), 0, static_cast<size_t>(all), stream_));
        base_ = out->memory.data();
        RETURN_IF_ERROR(place(out));
        RETURN_IF_CUDA(cudaStreamSynchronize(stream_));
        return {};
    }

  private:
    void *take(int64_t bytes) {
        const int64_t at = used_;
        used_ += align(bytes);
        return base_ == nullptr ? nullptr : base_ + at;
    }

    Status place(DeviceWeights *out) {
        const int64_t hidden = model_.hidden, vocabulary = model_.vocabulary;
        const int64_t own_rows = head_rows(model_);
        Matrix table;
        // A head that is a view of it may have rows of padding.
        RETURN_IF_ERROR(matrix({model_.tied ? vocabulary_stride(model_) : vocabulary,
                                hidden,
                                {{&model_.embedding, 0}},
                                {}},
                               &table));
        out->embedding = table.data;
        out->head = {};
        if (model_.head && model_.tied) {
            const int64_t first = model_.head_begin * hidden * dtype_bytes(element_);
            out->head = {static_cast<const std::byte *>(table.data) + first, own_rows, hidden};
        }
        if (model_.head && !model_.tied) {
            const MatrixSource source{own_rows, hidden, {{&model_.head.values, 0}}, {}};
            const auto packing = packing_of(source, out);
            RETURN_IF_ERROR(packing ? packed(source, *packing, &out->head)
                                    : matrix(source, &out->head));
        }
        Placing scaled;
        scaled.scale = model_.logits_scale;
        RETURN_IF_ERROR(vector(own_rows, {{&model_.head.bias, 0}}, scaled, 0, &out->head_bias));
        RETURN_IF_ERROR(norm(model_.final_norm, hidden, {}, &out->final_norm));
        RETURN_IF_ERROR(layer_inputs(out));
        for (const Layer &from : model_.layers) {
            DeviceLayer to;
            RETURN_IF_ERROR(norm(from.before_attention, hidden, {}, &to.before_attention));
            if (from.beside) to.before_attention = out->layers.back().before_attention;
            RETURN_IF_ERROR(norm(from.after_attention, hidden, {}, &to.after_attention));
            RETURN_IF_ERROR(norm(from.before_feed_forward, hidden, {}, &to.before_feed_forward));
            RETURN_IF_ERROR(norm(from.after_feed_forward, hidden, {}, &to.after_feed_forward));
            const SharedExperts *both = from.shared();
            if (both != nullptr) RETURN_IF_ERROR(norm(both->after, hidden, {}, &to.after_shared));
            RETURN_IF_ERROR(mixer(from, &to));
            RETURN_IF_ERROR(feed_forward(from, &to));
            RETURN_IF_ERROR(matrices(from, &to, out));
            RETURN_IF_ERROR(experts(from, &to.experts, out));
            RETURN_IF_ERROR(input_block(from, &to));
            out->layers.push_back(to);
        }
        return {};
    }

    Status layer_inputs(DeviceWeights *out) {
        const LayerInputs &from = model_.layer_inputs;
        if (!from) return {};
        const int64_t all = from.projection.rows();
        Matrix table;
        RETURN_IF_ERROR(matrix({model_.vocabulary, all, {{&from.embedding, 0}}, {}}, &table));
        out->input_embedding = table.data;
        RETURN_IF_ERROR(matrix({all, model_.hidden, {{&from.projection.values, 0}}, {}},
                               &out->input_projection));
        make_alike(&out->input_projection);
        return norm(from.norm, from.width, {}, &out->input_norm);
    }

    Status input_block(const Layer &from, DeviceLayer *to) {
        RETURN_IF_ERROR(vector(1, {{&from.scalar, 0}}, {}, 1, &to->scalar));
        if (!model_.layer_inputs) return {};
        const int64_t hidden = model_.hidden, width = model_.layer_inputs.width;
        RETURN_IF_ERROR(norm(from.after_input, hidden, {}, &to->after_input));
        RETURN_IF_ERROR(
            matrix({width, hidden, {{&from.input.gate.values, 0}}, {}}, &to->input_gate));
        RETURN_IF_ERROR(
            matrix({hidden, width, {{&from.input.down.values, 0}}, {}}, &to->input_down));
        make_alike(&to->input_gate);
        make_alike(&to->input_down);
        return {};
    }

    // What ranks compute with it they must all have the same bits of.
    void make_alike(Matrix *matrix) const { matrix->alike = model_.ranks > 1; }

    // Of a bias at the end of a sublayer. Where Forward::finish adds it in one pass with what normalises the
    // sublayer's result or multiplies the layer's, that pass scales it too.
    Placing residual_bias(const Layer &layer, bool scaled_later) const {
        Placing placing;
        // Ranks add it to a sum, which is scaled.
        placing.scale = scaled_later || model_.ranks > 1 ? 1 : layer.residual_scale;
        return placing;
    }

    // All but its matrices.
    Status mixer(const Layer &layer, DeviceLayer *to) {
        return std::visit(
            Visitor{[](const NoMixer &) { return Status(); },
                    [&](const Attention &from) {
                        if (from.latent) {
                            return latent(layer, from, &to->mixer.emplace<DeviceLatent>(), to);
                        }
                        return attention(layer, from, &to->mixer.emplace<DeviceAttention>(), to);
                    },
                    [&](const DeltaNet &from) {
                        return linear_attention(layer, from, from.value_dim, {}, to);
                    },
                    [&](const ChannelDeltaNet &from) { return channel_delta(layer, from, to); },
                    [&](const Mamba2 &from) {
                        return linear_attention(layer, from, from.values_size(), from.skip, to);
                    },
                    [&](const ShortConvolution &from) { return convolution(layer, from, to); }},
            layer.mixer);
    }

    Status mixer_bias(const Layer &layer, const Weight &o, DeviceLayer *to) {
        return vector(model_.hidden, {{&o.bias, 0}},
                      residual_bias(layer, bool(layer.after_attention)), 0, &to->o_bias);
    }

    Status attention(const Layer &layer, const Attention &from, DeviceAttention *own,
                     DeviceLayer *to) {
        const int64_t padded = padded_head_dim(from.head_dim);
        const Placing heads_as_rows{from.head_dim, padded, 1, 1};
        const int64_t q_rows = from.heads * padded;
        const int64_t kv_rows = from.kv_layer < 0 ? from.kv_heads * padded : 0;
        const int64_t qkv_rows = first_rows(layer.mixer);
        const bool whole = from.norm_whole;
        const SplitQueries q(from.q.bias, from.gate.bias, from, padded, q_rows + 2 * kv_rows);
        RETURN_IF_ERROR(norm(from.q_norm, whole ? q_rows : padded, heads_as_rows, &own->q_norm));
        RETURN_IF_ERROR(norm(from.k_norm, whole ? kv_rows : padded, heads_as_rows, &own->k_norm));
        RETURN_IF_ERROR(norm(from.v_norm, padded, heads_as_rows, &own->v_norm));
        RETURN_IF_ERROR(vector(qkv_rows,
                               q.parts({{&from.k.bias, q_rows}, {&from.v.bias, q_rows + kv_rows}}),
                               heads_as_rows, 0, &to->qkv_bias));
        RETURN_IF_ERROR(vector(from.heads, {{&from.sinks, 0}}, {}, 0, &own->sinks));
        return mixer_bias(layer, from.o, to);
    }

    Status latent(const Layer &layer, const Attention &from, DeviceLatent *own, DeviceLayer *to) {
        const Latent &latent = from.latent;
        const Weight &first = from.first_q();
        RETURN_IF_ERROR(vector(first_rows(layer.mixer),
                               {{&first.bias, 0}, {&latent.down.bias, first.rows()}}, {}, 0,
                               &to->qkv_bias));
        RETURN_IF_ERROR(norm(latent.norm, latent.rank, {}, &own->norm));
        if (latent.q_down) {
            RETURN_IF_ERROR(norm(latent.q_norm, latent.q_down.rows(), {}, &own->q_norm));
            RETURN_IF_ERROR(
                matrix({from.q.rows(), from.q.columns(), {{&from.q.values, 0}}, {}}, &own->q));
        }
        RETURN_IF_ERROR(of_heads(from, 0, latent.plain, true, &own->keys));
        RETURN_IF_ERROR(of_heads(from, latent.plain, latent.value_dim, false, &own->values));
        return mixer_bias(layer, from.o, to);
    }

    // Of each head of Latent::up rows [first, first + rows), or those turned into columns.
    Status of_heads(const Attention &from, int64_t first, int64_t rows, bool turned,
                    const void **out) {
        const Latent &latent = from.latent;
        const int64_t rank = latent.rank, each = rows * rank;
        const bool reads = base_ != nullptr && !random_;
        std::vector<float> all(reads ? static_cast<size_t>(from.heads * each) : 0);
        std::vector<float> head(reads ? static_cast<size_t>(each) : 0);
        for (int64_t h = 0; reads && h < from.heads; ++h) {
            const int64_t row = h * (latent.plain + latent.value_dim) + first;
            read_rows(latent.up.values, row, rows, DType::f32, head.data());
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t c = 0; c < rank; ++c) {
                    all[static_cast<size_t>(h * each + (turned ? c * rows + r : r * rank + c))] =
                        head[static_cast<size_t>(r * rank + c)];
                }
            }
        }
        Tensor whole;
        whole.rows = from.heads * (turned ? rank : rows);
        whole.columns = turned ? rows : rank;
        whole.data = reinterpret_cast<const std::byte *>(all.data());
        Matrix made;
        RETURN_IF_ERROR(matrix({whole.rows, whole.columns, {{&whole, 0}}, {}}, &made));
        *out = made.data;
        return {};
    }

    // normed: numbers in the norm's weight.
    Status linear_attention(const Layer &layer, const LinearAttention &from, int64_t normed,
                            const Tensor &skip, DeviceLayer *to) {
        DeviceDelta *own = &to->mixer.emplace<DeviceDelta>();
        RETURN_IF_ERROR(vector(from.channels() * kRing, convolution_parts(from, kRing),
                               {from.width, kRing, 1, 1}, 0.25F, &own->convolution));
        RETURN_IF_ERROR(vector(from.channels(), bias_parts(from), {}, 0, &own->bias));
        RETURN_IF_ERROR(vector(from.value_heads, {{&from.decay, 0}}, {}, 0, &own->decay));
        RETURN_IF_ERROR(vector(from.step_bias.rows, {{&from.step_bias, 0}}, {}, 0, &own->step));
        RETURN_IF_ERROR(vector(from.value_heads, {{&skip, 0}}, {}, 1, &own->skip));
        RETURN_IF_ERROR(norm(from.norm, normed, {}, &own->norm));
        return mixer_bias(layer, from.o, to);
    }

    Status channel_delta(const Layer &layer, const ChannelDeltaNet &from, DeviceLayer *to) {
        RETURN_IF_ERROR(linear_attention(layer, from, from.value_dim, {}, to));
        auto &own = std::get<DeviceDelta>(to->mixer);
        for (const auto &[weight, made] :
             {std::pair(&from.a, &own.a), std::pair(&from.z, &own.z)}) {
            RETURN_IF_ERROR(
                matrix({weight->rows(), weight->columns(), {{&weight->values, 0}}, {}}, made));
        }
        return {};
    }

    Status convolution(const Layer &layer, const ShortConvolution &from, DeviceLayer *to) {
        DeviceConvolution *own = &to->mixer.emplace<DeviceConvolution>();
        const int64_t channels = from.channels();
        RETURN_IF_ERROR(
            vector(first_rows(layer.mixer),
                   {{&from.b.bias, 0}, {&from.c.bias, channels}, {&from.x.bias, 2 * channels}}, {},
                   0, &to->qkv_bias));
        const TurnedFilter filter(from.filter.values, base_ != nullptr && !random_);
        RETURN_IF_ERROR(vector(filter.tensor.rows, {{&filter.tensor, 0}}, {}, 0.25F, &own->filter));
        RETURN_IF_ERROR(vector(channels, {{&from.filter.bias, 0}}, {}, 0, &own->bias));
        return mixer_bias(layer, from.o, to);
    }

    Status feed_forward(const Layer &layer, DeviceLayer *to) {
        const FeedForward *from = layer.feed_forward();
        if (from == nullptr) return {};
        const int64_t width = from->width;
        const int64_t up = from->gate ? width : 0, rows = up + width; // where it begins, and all
        RETURN_IF_ERROR(
            vector(rows, {{&from->gate.bias, 0}, {&from->up.bias, up}}, {}, 0, &to->gate_up_bias));
        RETURN_IF_ERROR(vector(2, {{&from->rise, 0}, {&from->fall, 1}}, {}, 0, &to->curve));
        const bool ends_layer = !model_.layer_inputs;
        const bool scaled_later =
            layer.after_feed_forward || layer.shared() != nullptr || (layer.scalar && ends_layer);
        return vector(model_.hidden, {{&from->down.bias, 0}}, residual_bias(layer, scaled_later), 0,
                      &to->down_bias);
    }

    // The layer that mixes the same rows as that one; null: none does.
    const Layer *partner_of(size_t index) const {
        const std::vector<Layer> &all = model_.layers;
        if (all[index].beside) return &all[index - 1];
        return index + 1 < all.size() && all[index + 1].beside ? &all[index + 1] : nullptr;
    }

    // The layer's products, in the compute type or in e4m3.
    Status matrices(const Layer &layer, DeviceLayer *to, DeviceWeights *all) {
        const FeedForward none, *own = layer.feed_forward(), &f = own != nullptr ? *own : none;
        const int64_t hidden = model_.hidden, width = f.width, up = f.gate ? width : 0;
        const bool sparse = layer.experts() != nullptr;
        const MixerMatrices mixer(layer.mixer, hidden);
        const MatrixSource &qkv = mixer.first, &o = mixer.last;
        const MatrixSource gate_up{
            up + width, hidden, {{&f.gate.values, 0}, {&f.up.values, up}}, {}};
        const MatrixSource down{hidden, width, {{&f.down.values, 0}}, {}};
        MatrixForm of_qkv = form_of(qkv, false, all);
        const MatrixForm of_o = form_of(o, true, all);
        // What experts share a layer with takes rows of the compute type.
        const auto form_of_feed = [&](const MatrixSource &source, bool ends) {
            return sparse ? MatrixForm{Scaling::none, false, packing_of(source, all)}
                          : form_of(source, ends, all);
        };
        MatrixForm of_gate_up = form_of_feed(gate_up, false);
        const MatrixForm of_down = form_of_feed(down, true);
        // Then gate and up can be multiplied and activated in one launch.
        if (of_gate_up.packing && f.gate && !f.gate.bias && !f.up.bias && width % kGateRows == 0 &&
            has_packed_ending(f.activation) && of_down.scaling == Scaling::none) {
            of_gate_up.packing->turns = true;
        }
        if (layer.parallel && of_qkv.scaling != of_gate_up.scaling) {
            of_qkv = of_gate_up = {}; // they are multiplied with the same rows
        }
        const Layer *partner = partner_of(all->layers.size());
        if (partner != nullptr && of_qkv.scaling != Scaling::none) { // the same
            DeviceWeights uncounted;
            const MixerMatrices other(partner->mixer, hidden);
            if (form_of(other.first, false, &uncounted).scaling != of_qkv.scaling) of_qkv = {};
        }
        RETURN_IF_ERROR(matrix(qkv, of_qkv, &to->qkv, all));
        RETURN_IF_ERROR(matrix(o, of_o, &to->o, all));
        const int64_t before = all->widened;
        RETURN_IF_ERROR(matrix(gate_up, of_gate_up, &to->gate_up, all));
        RETURN_IF_ERROR(matrix(down, of_down, &to->down, all));
        if (sparse) all->widened_with_experts += std::exchange(all->widened, before) - before;
        return {};
    }

    // How a matrix stays in four bits; what does not is counted.
    template <typename Source> std::optional<Packing>
    packing_of(const Source &source, DeviceWeights *all, bool has_ending = true) const {
        if (options_.quantize != Quantize::stored) return std::nullopt;
        PackedFit fit = packed_fit(model_, source, element_);
        if (fit.packing && !has_ending) {
            fit = {std::nullopt, "products in four bits do not have their experts' activation"};
        }
        if (fit.refusal != nullptr) {
            ++all->expanded;
            add_once(fit.refusal, ", or ", &all->refusals);
        }
        if (!fit.packing) return std::nullopt;
        ++all->packed;
        add_once(name_of(fit.packing->form), ", ", &all->formats);
        return fit.packing;
    }

    // With --quantize fp8 integers stay in four bits too: it is a step that rounds them (Products).
    std::optional<Packing> rounding_of(const MatrixSource &source) const {
        if (options_.quantize != Quantize::fp8 || !options_.rounds_in_steps) return std::nullopt;
        const std::optional<Packing> packing = packed_fit(model_, source, element_).packing;
        return packing && is_int4(packing->form) ? packing : std::nullopt;
    }

    // Whether it is to be quantised here. What a quantised checkpoint leaves out stays as it is.
    bool is_wanted(const MatrixSource &source) const {
        return options_.quantize == Quantize::fp8 &&
               (model_.quantization == nullptr || is_stored_quantised(source));
    }

    MatrixForm form_of(const MatrixSource &source, bool ends, DeviceWeights *all) const {
        // A layer of one thing has no matrices of the other.
        if (options_.quantize == Quantize::none || source.rows == 0 || source.columns == 0) {
            return {};
        }
        if (const auto packing = packing_of(source, all)) return {Scaling::none, false, packing};
        const auto takes = [&](Scaling scaling) {
            return options_.takes(source.rows, source.columns, scaling, ends);
        };
        if (auto packing = rounding_of(source)) {
            packing->rounds = takes(Scaling::rows);
            ++all->packed;
            all->in_e4m3 += packing->rounds ? 1 : 0;
            add_once(name_of(packing->form), ", ", &all->formats);
            return {Scaling::none, false, packing};
        }
        const Scaling own = random_ ? Scaling::none : own_scaling(source);
        if (own != Scaling::none && takes(own)) return {own, true};
        return is_wanted(source) && takes(Scaling::rows) ? MatrixForm{Scaling::rows, false}
                                                         : MatrixForm{};
    }

    Status experts(const Layer &layer, DeviceExperts *to, DeviceWeights *all) {
        if (layer.experts() == nullptr) return {};
        const Experts &from = *layer.experts();
        const Weight none, &gate = layer.shared() != nullptr ? layer.shared()->gate : none;
        const auto count = static_cast<int64_t>(from.each.size());
        const int64_t hidden = model_.hidden, width = from.each[0].width;
        const Router &router = from.router;
        RETURN_IF_ERROR(matrix({(count + (gate ? 1 : 0) + 15) / 16 * 16,
                                hidden,
                                {{&router.weight.values, 0}, {&gate.values, count}},
                                {}},
                               &to->router));
        make_alike(&to->router);
        RETURN_IF_ERROR(vector(count, {{&router.weight.bias, 0}}, {}, 0, &to->router_bias));
        if (random_ && options_.skewed_routing) {
            auto *bias = static_cast<float *>(take(count * 4));
            to->router_bias = bias;
            if (base_ != nullptr)
                RETURN_IF_CUDA(skew_routing(bias, hidden, router, count, stream_));
        }
        RETURN_IF_ERROR(vector(count, {{&router.correction, 0}}, {}, 0, &to->correction));
        RETURN_IF_ERROR(vector(count, {{&router.expert_scale, 0}}, {}, 1, &to->expert_scale));
        RETURN_IF_ERROR(norm(router.norm, hidden, {}, &to->router_norm));
        RETURN_IF_ERROR(norm(from.before, hidden, {}, &to->before));
        RETURN_IF_ERROR(norm(from.after, hidden, {}, &to->after));
        const ExpertMatrices each(from, hidden);
        RETURN_IF_ERROR(vector(count * each.gate_up.rows, each.gate_up_bias, each.of_gate_up_bias,
                               0, &to->gate_up_bias));
        RETURN_IF_ERROR(vector(count * hidden, each.down_bias, {}, 0, &to->down_bias));
        ExpertForm of_gate_up = form_of(each.gate_up), of_down = form_of(each.down);
        const bool takes_e4m3 = options_.experts_in_e4m3 && !layer.parallel && !from.before;
        if (of_gate_up.scaling == Scaling::none || of_down.scaling == Scaling::none ||
            !takes_e4m3 || each.biased() ||
            !experts_take_e4m3(hidden, width, from.each[0].activation)) {
            of_gate_up = of_down = {element_};
        }
        if (takes_e4m3) stay_in_mxfp4(from, each, &of_gate_up, &of_down, all);
        const bool ending = !from.each[0].gate || has_packed_ending(from.each[0].activation);
        if (auto packing = packing_of(each.gate_up, all, ending)) {
            packing->turns = bool(from.each[0].gate);
            of_gate_up = {element_, Scaling::none, false, packing};
        }
        if (const auto packing = packing_of(each.down, all)) {
            of_down = {element_, Scaling::none, false, packing};
        }
        RETURN_IF_ERROR(matrix(each.gate_up, of_gate_up, &to->gate_up, &to->gate_up_scales, all));
        RETURN_IF_ERROR(matrix(each.down, of_down, &to->down, &to->down_scales, all));
        to->gate_up_scaling = of_gate_up.scaling;
        to->down_scaling = of_down.scaling;
        to->gate_up_packing = packing_with(of_gate_up, to->gate_up_scales);
        to->down_packing = packing_with(of_down, to->down_scales);
        return {};
    }

    // With --quantize fp8 those in mxfp4 stay so: it is the input of their products that is in e4m3.
    void stay_in_mxfp4(const Experts &from, const ExpertMatrices &each, ExpertForm *gate_up,
                       ExpertForm *down, DeviceWeights *all) const {
        const FeedForward &one = from.each[0];
        if (options_.quantize != Quantize::fp8 || !one.gate ||
            !experts_take_mxfp4_e4m3(each.gate_up.columns, one.width, one.activation)) {
            return;
        }
        std::optional<Packing> first = packed_fit(model_, each.gate_up, element_).packing,
                               last = packed_fit(model_, each.down, element_).packing;
        if (!first || first->form != PackedForm::mxfp4 || !last ||
            last->form != PackedForm::mxfp4) {
            return;
        }
        first->form = last->form = PackedForm::mxfp4_e4m3;
        first->turns = true;
        *gate_up = {element_, Scaling::rows, false, first};
        *down = {element_, Scaling::rows, false, last};
        all->packed += 2;
        add_once(name_of(first->form), ", ", &all->formats);
    }

    static std::optional<Packing> packing_with(const ExpertForm &form, const float *factors) {
        std::optional<Packing> packing = form.packing;
        if (packing && has_factors(packing->form)) packing->factors = factors;
        return packing;
    }

    ExpertForm form_of(const ExpertMatrix &matrix) const {
        if (options_.quantize == Quantize::none) return {element_};
        const Scaling own = random_ ? Scaling::none : own_scaling(matrix);
        if (own != Scaling::none) return {DType::e4m3, own, true};
        const bool wanted =
            is_wanted(matrix.source(0)) && is_wanted(matrix.source(matrix.experts.size() - 1));
        return wanted ? ExpertForm{DType::e4m3, Scaling::rows, false} : ExpertForm{element_};
    }

    Status matrix(const ExpertMatrix &matrix, const ExpertForm &form, const void **out,
                  const float **scales, DeviceWeights *all) {
        auto *to = static_cast<std::byte *>(take(form.bytes(matrix)));
        auto *of_to = static_cast<float *>(take(form.scale_count(matrix) * 4));
        *out = to;
        *scales = of_to;
        if (form.scaling != Scaling::none) {
            ++all->in_e4m3;
        } else if (!form.packing) {
            for (size_t e = 0; e < matrix.experts.size(); ++e) {
                if (is_stored_in_e4m3(matrix.source(e))) ++all->widened_with_experts;
            }
        }
        return base_ == nullptr ? Status() : experts_.send(matrix, form, to, of_to, stream_);
    }

    Status norm(const Norm &from, int64_t length, Placing placing, DeviceNorm *to) {
        to->kind = from.kind;
        to->epsilon = from.epsilon;
        RETURN_IF_ERROR(vector(length, {{&from.bias, 0}}, placing, 0, &to->bias));
        placing.offset = from.offset;
        return vector(length, {{&from.weight, 0}}, placing, 1, &to->weight);
    }

    // In the compute type, here or on the way to e4m3.
    Status fill(const MatrixSource &source, std::byte *to, DType type) {
        if (random_) {
            // Padding is random too: a model made up for timing has heads without any.
            return check_cuda(
                launch_random(to, type, source.rows * source.columns, 0, 0.02f, ++seed_, stream_),
                "random weights");
        }
        const int64_t row_bytes = source.columns * dtype_bytes(type);
        for (const auto &[tensor, first] : source.parts) {
            if (!*tensor) continue;
            RETURN_IF_ERROR(sender_.send(*tensor, to + first * row_bytes, type, source.columns,
                                         source.placing));
        }
        return {};
    }

    Status matrix(const MatrixSource &source, Matrix *out) {
        auto *to =
            static_cast<std::byte *>(take(source.rows * source.columns * dtype_bytes(element_)));
        *out = {to, source.rows, source.columns};
        return base_ == nullptr ? Status() : fill(source, to, element_);
    }

    // That of all parts; made up ones are in order.
    Status send_order(const MatrixSource &source, int32_t *to) {
        std::vector<int32_t> order(static_cast<size_t>(source.columns));
        std::iota(order.begin(), order.end(), 0);
        for (const MatrixPart &part : source.parts) {
            if (random_ || part.first->four_bits == nullptr) continue;
            order = column_order(*part.first->four_bits);
            break;
        }
        return check_cuda(cudaMemcpyAsync(to, order.data(), order.size() * sizeof(int32_t),
                                          cudaMemcpyHostToDevice, stream_),
                          "the order of columns");
    }

    // The rows of gate and up, which are the parts' order, may take turns.
    Status packed(const MatrixSource &source, Packing packing, Matrix *out) {
        const PackedShape shape{packing.form, static_cast<int32_t>(source.rows),
                                static_cast<int32_t>(source.columns)};
        const PackTarget target{shape, element_, static_cast<std::byte *>(take(shape.bytes()))};
        float *factors = nullptr;
        if (packing.form == PackedForm::nvfp4) {
            factors = static_cast<float *>(take(source.rows * 4));
            packing.factors = factors;
        }
        float *rounded = nullptr;
        if (packing.rounds) {
            rounded = static_cast<float *>(take(source.rows * 4));
            packing.rounded = rounded;
        }
        int32_t *order = nullptr;
        if (packing.ordered) {
            order = static_cast<int32_t *>(take(source.columns * 4));
            packing.order = order;
        }
        *out = {target.data, source.rows, source.columns, nullptr, Scaling::none, packing};
        if (base_ == nullptr) return {};
        if (factors != nullptr) {
            const std::vector<float> own = packed_factors(source, packing.turns);
            RETURN_IF_CUDA(cudaMemcpyAsync(factors, own.data(), own.size() * sizeof(float),
                                           cudaMemcpyHostToDevice, stream_));
        }
        if (order != nullptr) RETURN_IF_ERROR(send_order(source, order));
        for (const MatrixPart &part : source.parts) {
            const Tensor &tensor = *part.first;
            if (!tensor) continue;
            PackedPlace place = packed_place(source, part, packing.turns);
            place.order = order;
            RETURN_IF_ERROR(
                random_ ? sender_.make_packed(tensor.rows, source.columns, target, place, stream_)
                        : sender_.send_packed(tensor, target, place));
        }
        if (rounded == nullptr) return {};
        ExpandArguments made{};
        made.shape = shape;
        made.packed_for = element_;
        made.packed = target.data;
        made.matrices = 1;
        made.apart = packing.turns;
        return check_cuda(launch_row_scales(made, rounded, stream_), "scales of rows");
    }

    Status matrix(const MatrixSource &source, MatrixForm form, Matrix *out, DeviceWeights *all) {
        if (form.packing) return packed(source, *form.packing, out);
        if (form.scaling == Scaling::none) {
            if (is_stored_in_e4m3(source)) ++all->widened;
            return matrix(source, out);
        }
        ++all->in_e4m3;
        auto *to = static_cast<std::byte *>(take(source.rows * source.columns));
        const int64_t count = scale_count(source.rows, source.columns, form.scaling);
        auto *scales = static_cast<float *>(take(count * 4));
        *out = {to, source.rows, source.columns, scales, form.scaling};
        if (base_ == nullptr) return {};
        if (!form.own) return quantize(source, to, scales);
        const std::vector<float> own = own_scales(source, form.scaling);
        RETURN_IF_CUDA(cudaMemcpyAsync(scales, own.data(), own.size() * sizeof(float),
                                       cudaMemcpyHostToDevice, stream_));
        return fill(source, to, DType::e4m3);
    }

    // Each row by its greatest element.
    Status quantize(const MatrixSource &source, std::byte *to, float *scales) {
        ASSIGN_OR_RETURN(std::byte *const whole,
                         quantizer_.begin(element_, source.rows, source.columns, stream_));
        const int64_t bytes = source.rows * source.columns * dtype_bytes(element_);
        RETURN_IF_CUDA(cudaMemsetAsync(whole, 0, static_cast<size_t>(bytes), stream_));
        RETURN_IF_ERROR(fill(source, whole, element_));
        return quantizer_.end(to, scales);
    }

    // Null when the model has none of the parts. fresh: what a random one holds.
    Status vector(int64_t length, const std::vector<MatrixPart> &parts, const Placing &placing,
                  float fresh, const float **out) {
        *out = nullptr;
        if (!has_any(parts)) return {};
        auto *to = static_cast<float *>(take(length * 4));
        *out = to;
        if (base_ == nullptr) return {};
        if (random_) {
            return check_cuda(launch_random(to, DType::f32, length, fresh, 0.0f, 1, stream_),
                              "random weights");
        }
        return sender_.send_vector(parts, to, placing);
    }

    const Model &model_;
    const LoadOptions &options_;
    DType element_;
    bool random_;
    uint64_t seed_;
    Stream stream_;
    Sender sender_;
    ExpertSender experts_;
    RowQuantizer quantizer_;
    std::byte *base_ = nullptr;
    int64_t used_ = 0;
};

} // namespace

Result<int64_t> loaded_bytes(const Model &model, const LoadOptions &options) {
    return Loader(model, options).bytes();
}

Result<DeviceWeights> load_weights(const Model &model, const LoadOptions &options) {
    DeviceWeights weights;
    RETURN_IF_ERROR(Loader(model, options).load(&weights));
    return weights;
}

} // namespace batchllm::cuda
