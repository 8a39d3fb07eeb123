#include "backend/sim/step_cost.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "backend/batch_rows.h"
#include "backend/gpu/gated_product.h"
#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "model/tower.h"
#include "plan/plan.h"

namespace batchllm {
namespace {

constexpr double element_bytes = 2; // bytes
// Bytes of memory traffic per element; caches absorb part of what is written.
constexpr double norm_bytes = 6;       // the stream read and written, the term added, the result
constexpr double activation_bytes = 6; // two read, one written
constexpr double rope_bytes = 4;
// With matrices in e4m3 (docs/lab/engine.md): a norm that rounds what it makes, an activation that does, which is never
// part of a product then, and rounding attention's result.
constexpr double norm_scaled_bytes = 7;
constexpr double activation_scaled_bytes = 5;
constexpr double rounding_bytes = 3;
// Of layers with a state (docs/lab/states.md), for each number of a token that they read or write: of delta nets, of
// Mamba-2, of short convolutions. Their states come at this share of the rate at which keys do.
constexpr double delta_bytes = 7;
constexpr double mamba_bytes = 8.5;
constexpr double convolution_bytes = 2;
constexpr double state_bandwidth = 0.93;
constexpr double state_us = 6;         // launches
constexpr double sampling_bytes = 12;  // an f32 logit written once and read twice
constexpr int32_t padded_queries = 64; // rows of a matrix tile: fewer cost the same
// merge_ns is the time per head if this many heads share keys: the cost depends on the number of KV
// common prefixes.
constexpr double merge_heads = 4;
// Of adapters on a GPU, measured on an H200 (docs/lab/adapters.md): of each changed matrix, and of memory_bandwidth what their
// bytes have, in effect: part of them is still in L2.
constexpr double adapter_matrix_us = 6;
constexpr double adapter_bandwidth = 1.25;
// Of latents (docs/lab/latents.md): making pages of heads' keys and values of them reaches this share of attention_flops,
// 458 and 516 TFLOP/s of 560 on an H100.
constexpr double expanding_share = 0.85;
constexpr int32_t streamed_queries = 2; // up to this many queries read a node at memory bandwidth
// A tile of up to this many rows, queries times the heads that share keys, widens keys in fp8 as it reads them; for more of
// them they are widened first.
constexpr double narrow_rows = 64;

// The time per matrix element for this many rows. A product with few rows costs as much as reading
// the matrix.
double element_seconds(const std::vector<DeviceCosts::Product> &known, double rows) {
    const auto cost = [](const DeviceCosts::Product &p) { return 2 * p.rows / p.flops; };
    if (rows <= known.front().rows) return cost(known.front());
    if (rows >= known.back().rows) return 2 * rows / known.back().flops;
    const auto above =
        std::find_if(known.begin(), known.end(), [&](const auto &p) { return p.rows >= rows; });
    const auto below = above - 1;
    const double part = (rows - below->rows) / (above->rows - below->rows);
    return cost(*below) + part * (cost(*above) - cost(*below));
}

// The time of a product with a matrix in four bits, in parts of that with 16 bits; of experts by the rows of each. On an
// H100 (docs/lab/four-bits.md): the time of reading weights falls, widening them takes some of what multiplies.
struct PackedShare {
    double rows, share;
};
constexpr PackedShare packed_products[] = {{16, 0.38},  {64, 0.44},   {128, 0.6},  {256, 1.02},
                                           {512, 1.25}, {1024, 1.22}, {4096, 1.1}, {16384, 1.03}};
constexpr PackedShare packed_experts[] = {{8, 0.34},  {32, 0.38}, {64, 0.46},
                                          {128, 0.7}, {512, 1},   {2048, 1.06}};

template <size_t N> double packed_share(const PackedShare (&known)[N], double rows) {
    if (rows <= known[0].rows) return known[0].share;
    for (size_t i = 1; i < N; ++i) {
        const PackedShare &below = known[i - 1], &above = known[i];
        if (rows > above.rows) continue;
        const double part = (rows - below.rows) / (above.rows - below.rows);
        return below.share + part * (above.share - below.share);
    }
    return known[N - 1].share;
}

double elements(const Weight &weight) {
    return static_cast<double>(weight.rows()) * static_cast<double>(weight.columns());
}

double rounded_up(double value, double to) {
    return to * static_cast<double>(static_cast<int64_t>((value + to - 1) / to));
}

// Attention's arithmetic with heads of this size on a GPU, in parts of the rate with heads of 128, by kernels on an H100:
// with 256 450 to 528 TFLOP/s (docs/lab/latents.md, attention.md), with 512 347 to 425, of 560. Of heads of 64 no time is
// known.
double head_share(int32_t head_dim) {
    return head_dim <= 128 ? 1 : head_dim <= latent_head_dim ? 0.85 : 0.69;
}

// How many keys tokens at positions [first, end) see at most, on average: of a window all, of a chunk of the same size those
// up to the token's own.
double most_seen(int32_t window, bool chunked, double first, double end) {
    if (window <= 0) return 1e18;
    if (!chunked) return window;
    const double size = window;
    const auto before = [&](double position) { // of all tokens before this one
        const double whole = std::floor(position / size), rest = position - whole * size;
        return (whole * size * (size + 1) + rest * (rest + 1)) / 2;
    };
    return (before(end) - before(first)) / (end - first);
}

// The tokens of prompts, and the nodes in which rows that decode have the largest part of their context.
double choices_by_context(const TokenBatch &batch) {
    std::vector<bool> chosen(batch.nodes.size());
    double choices = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count > streamed_queries) choices += node.token_count;
        if (node.token_count == 0 || node.token_count > streamed_queries) continue;
        size_t most = n;
        for (int32_t up = node.parent; up >= 0; up = batch.nodes[static_cast<size_t>(up)].parent) {
            const auto u = static_cast<size_t>(up);
            if (batch.nodes[u].length > batch.nodes[most].length) most = u;
        }
        choices += chosen[most] ? 0 : 1;
        chosen[most] = true;
    }
    return choices;
}

} // namespace

StepSeconds &StepSeconds::operator+=(const StepSeconds &other) {
    linear += other.linear;
    attention += other.attention;
    states += other.states;
    elementwise += other.elementwise;
    logits += other.logits;
    exchange += other.exchange;
    step += other.step;
    adapters += other.adapters;
    return *this;
}

StepCost::StepCost(DeviceCosts costs, const Model &model, const CostTypes &types)
    : costs_(std::move(costs)), types_(types) {
    for (size_t i = 0; i < model.layers.size(); ++i) {
        add_layer(model.layers[i], forms_of(model, i), model.hidden);
    }
    head_ = static_cast<double>(model.head.rows()) * static_cast<double>(model.head.columns());
    vocabulary_ = model.head ? static_cast<double>(model.vocabulary) : 0;
    ranks_ = model.ranks;
    if (model.tower != nullptr) add_tower(*model.tower);
}

void StepCost::add_tower(const Tower &tower) {
    const auto add = [](std::vector<Product> *to, double elements) {
        if (elements > 0) to->push_back({elements, Form::plain, 1});
    };
    add(&patch_products_, elements(tower.patch) / tower.frames);
    for (const Layer &layer : tower.layers) {
        const Attention &a = *layer.attention();
        const FeedForward &feed = *layer.feed_forward();
        add(&patch_products_, elements(a.q) + elements(a.k) + elements(a.v));
        add(&patch_products_, elements(a.o));
        add(&patch_products_, elements(feed.gate) + elements(feed.up));
        add(&patch_products_, elements(feed.down));
        (a.window > 0 ? window_layers_ : whole_layers_) += 1;
    }
    const auto add_merger = [&](const Merger &merger) {
        add(&token_products_, elements(merger.projection));
        add(&token_products_, elements(merger.feed_forward.up));
        add(&token_products_, elements(merger.feed_forward.down));
    };
    add_merger(tower.merger);
    for (const DeepstackMerger &deepstack : tower.deepstack) add_merger(deepstack.merger);
    patch_flops_ = 4.0 * tower.hidden;
    window_patches_ = static_cast<double>(tower.window) * tower.window;
}

StepCost::LayerForms StepCost::forms_of(const Model &model, size_t index) const {
    LayerForms forms;
    if (!costs_.gpu || types_.quantize == Quantize::none) return forms;
    const DType type = model.dtype == DType::f16 ? DType::f16 : DType::bf16;
    const PackedLayer packed = packed_layer(model, model.layers[index], type);
    const bool knows = !costs_.fp8_products.empty();
    const ScaledLayer scaled = knows ? scaled_layer(model, index, types_.quantize) : ScaledLayer();
    const auto form = [](bool in_four_bits, bool in_e4m3) {
        return in_four_bits ? Form::packed : in_e4m3 ? Form::scaled : Form::plain;
    };
    forms.first = form(packed.first.has_value(), scaled.first);
    forms.last = form(packed.last.has_value(), scaled.last);
    forms.gate_up = form(packed.gate_up.has_value(), scaled.gate_up);
    forms.down = form(packed.down.has_value(), scaled.down);
    forms.experts_gate_up = form(packed.experts_gate_up.has_value(), scaled.experts);
    forms.experts_down = form(packed.experts_down.has_value(), scaled.experts);
    return forms;
}

void StepCost::add_product(double elements, Form form) {
    if (elements == 0) return;
    const auto same = [&](const Product &p) { return p.elements == elements && p.form == form; };
    auto at = std::find_if(products_.begin(), products_.end(), same);
    if (at == products_.end()) at = products_.insert(at, Product{elements, form, 0});
    at->count += 1;
}

void StepCost::add_experts(const Experts &experts, const LayerForms &forms, double hidden) {
    const FeedForward &one = experts.each.front();
    const auto count = static_cast<double>(experts.each.size());
    const double chosen = experts.router.chosen;
    add_product(elements(experts.router.weight));
    for (const auto &[of_one, form] :
         {std::pair(elements(one.gate) + elements(one.up), forms.experts_gate_up),
          std::pair(elements(one.down), forms.experts_down)}) {
        const ExpertProduct product{of_one, count, chosen, form, 0};
        const auto same = [&](const ExpertProduct &known) {
            return known.elements == product.elements && known.experts == count &&
                   known.chosen == chosen && known.form == product.form;
        };
        auto at = std::find_if(expert_products_.begin(), expert_products_.end(), same);
        if (at == expert_products_.end()) at = expert_products_.insert(at, product);
        at->count += 1;
    }
    routed_ += chosen;
    routings_ += 1;
    elementwise_bytes_ += chosen * hidden * element_bytes; // read by the weighted sum
}

StepCost::AttentionLayers StepCost::layers_of(const Attention &a) const {
    AttentionLayers one{a.window, a.heads, a.kv_heads, a.head_dim, a.value_dim(), a.kept_size()};
    one.chunked = a.chunked;
    if (!costs_.gpu) return one;
    one.key_dim = padded_key_dim(a);
    one.value_dim = padded_value_dim(a);
    one.kept = padded_kept(a);
    if (!a.latent) {
        one.share = head_share(one.key_dim);
        return one;
    }
    const Latent &of = a.latent;
    one.up = elements(of.up);
    one.up_bytes = element_bytes * a.heads * (of.plain + 2 * of.rank + of.value_dim);
    if (!expands_latents(a)) return one;
    one.plain_pair = 4.0 * a.heads * latent_head_dim / head_share(latent_head_dim);
    one.expansion = 2 * one.up / expanding_share;
    return one;
}

void StepCost::add_attention(const AttentionLayers &one) {
    const auto same = [&](const AttentionLayers &known) {
        return known.window == one.window && known.chunked == one.chunked &&
               known.heads == one.heads && known.kv_heads == one.kv_heads &&
               known.key_dim == one.key_dim && known.value_dim == one.value_dim;
    };
    auto at = std::find_if(attention_.begin(), attention_.end(), same);
    if (at == attention_.end()) at = attention_.insert(at, one);
    at->count += 1;
}

void StepCost::add_state(double numbers, double token_bytes) {
    state_layers_ += 1;
    state_bytes_ += numbers;
    state_token_bytes_ += token_bytes;
}

void StepCost::add_mixer(const Layer &layer, const LayerForms &forms, double hidden) {
    const bool on_gpu = costs_.gpu;
    const auto add_ends = [&] {
        add_product(double(first_rows(layer.mixer)) * hidden, forms.first);
        add_product(double(last_columns(layer.mixer)) * hidden, forms.last);
    };
    std::visit(Visitor{[](const NoMixer &) {},
                       [&](const Attention &a) {
                           const Weight &q = a.first_q();
                           if (on_gpu) {
                               add_ends();
                           } else {
                               add_product(elements(q) + elements(a.k) + elements(a.v) +
                                           elements(a.gate) + elements(a.latent.down));
                               add_product(elements(a.o));
                           }
                           if (a.latent.q_down) add_product(elements(a.q));
                           if (!on_gpu) add_product(elements(a.latent.up));
                           add_attention(layers_of(a));
                           elementwise_bytes_ += rope_bytes * double(a.q_size() + a.kept_size());
                       },
                       [&](const LinearAttention &linear) {
                           add_ends();
                           const bool mamba = std::holds_alternative<Mamba2>(layer.mixer);
                           const auto numbers =
                               double(linear.channels() + 2 * linear.values_size());
                           const int64_t matrices = linear.matrices_size();
                           add_state(double(matrices * dtype_bytes(types_.states) +
                                            (linear.state_size() - matrices) * 4),
                                     numbers * (mamba ? mamba_bytes : delta_bytes));
                       },
                       [&](const ShortConvolution &convolution) {
                           add_ends();
                           add_state(double(convolution.state_size() * 4),
                                     double(4 * convolution.channels()) * convolution_bytes);
                       }},
               layer.mixer);
    if (forms.last == Form::scaled) {
        elementwise_bytes_ += rounding_bytes * double(last_columns(layer.mixer));
    }
}

void StepCost::add_layer(const Layer &layer, const LayerForms &forms, double hidden) {
    add_mixer(layer, forms, hidden);
    double norms = 0;
    const auto count_norms = [&](std::initializer_list<const Norm *> some) {
        for (const Norm *norm : some) norms += *norm ? 1 : 0;
    };
    count_norms({&layer.before_attention, &layer.after_attention, &layer.before_feed_forward,
                 &layer.after_feed_forward});
    if (const FeedForward *feed = layer.feed_forward()) {
        add_product(elements(feed->gate) + elements(feed->up), forms.gate_up);
        add_product(elements(feed->down), forms.down);
        const bool rounds = forms.down == Form::scaled;
        elementwise_bytes_ += (rounds ? activation_scaled_bytes : activation_bytes) * feed->width;
        const bool plain = forms.gate_up != Form::scaled && !rounds;
        if (plain && takes_gated(DType::bf16, *feed))
            gated_bytes_ += activation_bytes * feed->width;
    }
    if (const Experts *experts = layer.experts()) {
        add_experts(*experts, forms, hidden);
        count_norms({&experts->router.norm, &experts->before, &experts->after});
    }
    if (layer.shared() != nullptr) count_norms({&layer.shared()->after});
    const bool rounds[] = {forms.first == Form::scaled, forms.gate_up == Form::scaled,
                           forms.experts_gate_up == Form::scaled};
    elementwise_bytes_ += norms * norm_bytes * hidden;
    for (const bool norm_rounds : rounds) {
        if (norm_rounds) elementwise_bytes_ += (norm_scaled_bytes - norm_bytes) * hidden;
    }
    const SharedExperts *shared = layer.shared();
    const double sums = (layer.mixes() ? 1 : 0) + (layer.feeds() ? 1 : 0) +
                        (shared != nullptr && shared->experts.after ? 1 : 0);
    sums_ += sums;
    summed_ += sums * hidden;
    const Attention *attention = layer.attention();
    if (attention != nullptr && attention->norm_whole) sums_ += 1; // of two numbers per token
}

// wanted: rows that are sampled, as many on each device.
double StepCost::exchange_seconds(double tokens, double wanted) const {
    if (ranks_ == 1) return 0;
    const double others = (ranks_ - 1) / ranks_;
    const bool hides = ranks_ == 2 && tokens >= DeviceCosts::owned_tokens;
    const double sums = (hides ? 1 : 2) * others * tokens * summed_ * element_bytes;
    const double logits = wanted / ranks_ * others * vocabulary_ * 4;
    return (sums_ + (wanted > 0 ? 1 : 0)) * costs_.exchange_us * 1e-6 +
           (sums + logits) / costs_.link_bandwidth;
}

double StepCost::product_seconds(double rows, const Product &of) const {
    if (rows <= 0) return 0;
    const double share = of.form == Form::packed ? packed_share(packed_products, rows) : 1;
    const auto &known = of.form == Form::scaled ? costs_.fp8_products : costs_.products;
    return costs_.product_us * 1e-6 + share * of.elements * element_seconds(known, rows);
}

double StepCost::expert_seconds(double tokens, double choices, const ExpertProduct &of) const {
    if (tokens <= 0) return 0;
    // How many experts are used by at least one token, if all are equally likely.
    const double used = of.experts * (1 - std::pow(1 - of.chosen / of.experts, choices));
    const bool scaled = of.form == Form::scaled;
    const auto &products = scaled ? costs_.fp8_products : costs_.products;
    const auto &experts = scaled ? costs_.fp8_experts : costs_.experts;
    const auto &known = experts.empty() ? products : experts;
    const double rows = tokens * of.chosen / used; // of each
    const double share = of.form == Form::packed ? packed_share(packed_experts, rows) : 1;
    return costs_.product_us * 1e-6 + share * used * of.elements * element_seconds(known, rows);
}

AdapterCosts::AdapterCosts(const Model &model, int32_t ranks) : ranks_(ranks) {
    for (const Layer &layer : model.layers) {
        const Experts *experts = layer.experts();
        if (experts == nullptr) continue;
        const double share =
            static_cast<double>(experts->router.chosen) / static_cast<double>(experts->each.size());
        const FeedForward &first = experts->each[0];
        for (const FeedForward &each : experts->each) {
            of_experts_[&each.gate.values] = {share, &first.gate.values};
            of_experts_[&each.up.values] = {share, &first.up.values};
            of_experts_[&each.down.values] = {share, &first.down.values};
        }
    }
}

AdapterCost AdapterCosts::of(const Adapter &adapter) const {
    AdapterCost cost;
    const auto add = [&](const LowRank &low, double chosen) {
        if (!low.a) return;
        const double share = chosen / ranks_;
        cost.elements += share * double(low.rank()) * double(low.a.columns + low.b.rows);
        cost.token_bytes += share * element_bytes * double(low.a.columns + 2 * low.b.rows);
    };
    std::unordered_set<const Tensor *> launched;
    for (const auto &[tensor, low] : adapter.changes) {
        const auto expert = of_experts_.find(tensor);
        const bool routed = expert != of_experts_.end();
        if (low.a) launched.insert(routed ? expert->second.first : tensor);
        add(low, routed ? expert->second.share : 1);
    }
    cost.matrices = static_cast<double>(launched.size());
    if (adapter.embedding.a) cost.elements += double(adapter.embedding.b.rows); // looked up
    return cost;
}

double StepCost::adapter_seconds(const TokenBatch &batch,
                                 std::span<const AdapterCost> adapters) const {
    std::vector<double> tokens(adapters.size(), 0);
    for (const ContextNode &node : batch.nodes) {
        if (node.adapter >= 0) tokens[static_cast<size_t>(node.adapter)] += node.token_count;
    }
    double launches = 0, bytes = 0, multiplied = 0;
    for (size_t slot = 0; slot < adapters.size(); ++slot) {
        if (tokens[slot] == 0) continue;
        const AdapterCost &of = adapters[slot];
        launches = std::max(launches, of.matrices);
        bytes += tokens[slot] * of.token_bytes + element_bytes * of.elements;
        multiplied += tokens[slot] * of.elements;
    }
    if (!costs_.gpu) return multiplied * element_seconds(costs_.products, 1);
    return launches * adapter_matrix_us * 1e-6 +
           bytes / (adapter_bandwidth * costs_.memory_bandwidth);
}

// The time for one of the layers.
double StepCost::attention_seconds(const TokenBatch &batch, const AttentionLayers &layers) const {
    const auto key_elements = static_cast<double>(layers.kept);
    const auto kv_bytes = static_cast<double>(types_.kv_bytes);
    const double pair_flops = 2.0 * layers.heads * (layers.key_dim + layers.value_dim);
    const double ratio = static_cast<double>(layers.heads) / layers.kv_heads;
    // For each node: queries below it, and pairs of a query and a key that it sees in the node.
    std::vector<double> queries(batch.nodes.size(), 0), pairs(batch.nodes.size(), 0);
    std::vector<double> seen(batch.nodes.size(), 0); // keys that some query sees
    std::vector<bool> expanded(batch.nodes.size());
    std::vector<double> of_prompts(batch.nodes.size(), 0); // of the pairs
    double merges = 0, partials = 0, streamed_tokens = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count == 0) continue;
        const double count = node.token_count;
        const double end = static_cast<double>(node.start) + node.length;
        const double middle =
            end - (count - 1) / 2; // keys that a query sees on average, ignoring windows
        const double most = most_seen(layers.window, layers.chunked, end - count, end);
        const double oldest = layers.window <= 0 ? -1e18
                              : layers.chunked
                                  ? std::floor((end - count) / layers.window) * layers.window
                                  : end - count + 1 - layers.window;
        int32_t parts = 0;
        for (auto up = static_cast<int32_t>(n); up >= 0;
             up = batch.nodes[static_cast<size_t>(up)].parent) {
            const auto u = static_cast<size_t>(up);
            const ContextNode &part = batch.nodes[u];
            const double begin = std::max<double>(part.start, middle - most);
            const double last = up == static_cast<int32_t>(n)
                                    ? middle
                                    : static_cast<double>(part.start) + part.length;
            if (last <= begin) break; // nor does it see the nodes above
            queries[u] += count;
            pairs[u] += count * (last - begin);
            if (count > streamed_queries) {
                of_prompts[u] += count * (last - begin);
                expanded[u] = true;
            }
            const double first = std::max<double>(part.start, oldest);
            const double whole = static_cast<double>(part.start) + part.length;
            seen[u] = std::max(seen[u], whole - first);
            ++parts;
        }
        // On a GPU, a prompt's tokens read two nodes in one pass; all others read each separately.
        const bool in_pairs = costs_.gpu && count > streamed_queries;
        const int32_t reads = in_pairs ? (parts + 1) / 2 : parts;
        merges += count * std::max(0, reads - 1);
        partials += reads > 1 ? count * reads : 0;
        if (count <= streamed_queries) streamed_tokens += count;
    }
    // Of latents in the plain form prompts' pairs cost less, and all keys that they see are expanded, page by page.
    const auto tokens = static_cast<double>(batch.tokens.size());
    double expanding = 0, absorbing = 2 * layers.up * (tokens - streamed_tokens);
    for (size_t n = 0; n < batch.nodes.size() && layers.plain_pair > 0; ++n) {
        absorbing += of_prompts[n] * (pair_flops - layers.plain_pair);
        if (!expanded[n]) continue;
        expanding +=
            layers.expansion * rounded_up(double(batch.nodes[n].length), costs_.page_tokens);
    }
    const bool plain = layers.plain_pair > 0 && expanding < absorbing;
    double flops = plain ? expanding : 0, bytes = 0, widened = 0; // widened is in bytes too
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        if (queries[n] == 0) continue;
        const bool streamed = queries[n] <= streamed_queries;
        const double rows = queries[n] * ratio;
        const bool narrow = streamed || rows <= narrow_rows;
        bytes += seen[n] * key_elements * (narrow ? kv_bytes : element_bytes);
        if (streamed) continue;
        if (!narrow && kv_bytes < element_bytes)
            widened += seen[n] * key_elements * (kv_bytes + element_bytes);
        const double in_plain_form = plain ? of_prompts[n] : 0;
        flops += in_plain_form * layers.plain_pair +
                 (pairs[n] - in_plain_form) * pair_flops * rounded_up(rows, padded_queries) / rows;
    }
    const double matrix = flops / (layers.share * costs_.attention_flops);
    const double stream = bytes / costs_.attention_bandwidth;
    const double both =
        std::max(matrix, stream) + (1 - costs_.attention_overlap) * std::min(matrix, stream);
    const double widening = widened > 0 ? widened / costs_.memory_bandwidth : 0;
    const double launches = plain && streamed_tokens > 0 ? 2 : 1; // in the plain form, and absorbed
    return launches * costs_.attention_us * 1e-6 + widening + both +
           merging_seconds(merges, partials, layers) +
           absorbing_seconds(plain ? streamed_tokens : tokens, layers);
}

// Queries into the space of latents, and results out of it: a head has few columns, so that few rows cost what they move.
double StepCost::absorbing_seconds(double tokens, const AttentionLayers &layers) const {
    if (layers.up == 0 || tokens == 0) return 0;
    const double arithmetic = layers.up * element_seconds(costs_.products, tokens);
    return 2 * costs_.product_us * 1e-6 +
           std::max(arithmetic, tokens * layers.up_bytes / costs_.memory_bandwidth);
}

// The time for all layers with a state.
double StepCost::state_seconds(const TokenBatch &batch) const {
    if (state_layers_ == 0) return 0;
    const auto states = static_cast<double>(
        std::count_if(batch.nodes.begin(), batch.nodes.end(),
                      [](const ContextNode &node) { return node.token_count > 0; }));
    return state_layers_ * state_us * 1e-6 +
           2 * states * state_bytes_ / (state_bandwidth * costs_.attention_bandwidth) +
           static_cast<double>(batch.tokens.size()) * state_token_bytes_ / costs_.memory_bandwidth;
}

// Partial results are written and read in f32; wide heads, and those of latents, which share one head of keys, cost that.
double StepCost::merging_seconds(double merges, double partials,
                                 const AttentionLayers &layers) const {
    const double seconds = merges * merge_heads * layers.kv_heads * costs_.merge_ns * 1e-9;
    if (!costs_.gpu) return seconds;
    const double bytes = 2.0 * sizeof(float) * layers.heads * layers.value_dim;
    return std::max(seconds, partials * bytes / costs_.memory_bandwidth);
}

StepSeconds StepCost::seconds(const TokenBatch &batch,
                              std::span<const AdapterCost> adapters) const {
    StepSeconds all;
    const auto tokens = static_cast<double>(batch.tokens.size());
    if (batch.tokens.empty()) return all;
    for (const Product &product : products_)
        all.linear += product.count * product_seconds(tokens, product);
    const double choices = by_context_ ? choices_by_context(batch) : tokens;
    for (const ExpertProduct &product : expert_products_)
        all.linear += product.count * expert_seconds(tokens, choices, product);
    for (const AttentionLayers &layers : attention_)
        all.attention += layers.count * attention_seconds(batch, layers);
    all.states = state_seconds(batch);
    const bool gated =
        costs_.gated_tokens > 0 && tokens >= static_cast<double>(costs_.gated_tokens);
    const double moved = elementwise_bytes_ - (gated ? gated_bytes_ : 0);
    all.elementwise = tokens * moved / costs_.memory_bandwidth +
                      routings_ * costs_.routing_us * 1e-6 +
                      tokens * routed_ * costs_.routing_ns * 1e-9;
    const auto wanted = static_cast<double>(
        std::count_if(batch.outputs.begin(), batch.outputs.end(),
                      [](const OutputRow &row) { return !embedded(row.task); }));
    if (wanted > 0) {
        all.logits = product_seconds(wanted, {head_, Form::plain, 1}) +
                     wanted / ranks_ * vocabulary_ * sampling_bytes / costs_.memory_bandwidth;
    }
    all.exchange = exchange_seconds(tokens, wanted);
    if (!adapters.empty()) all.adapters = adapter_seconds(batch, adapters);
    all.step = costs_.step_us * 1e-6;
    return all;
}

double StepCost::picture_seconds(std::span<const PictureLoad> pictures) const {
    double patches = 0, tokens = 0, pairs = 0;
    for (const PictureLoad &load : pictures) {
        const PictureGrid &grid = load.picture->grid;
        const double own = static_cast<double>(grid.rows) * grid.columns;
        patches += own;
        tokens += grid.tokens;
        pairs += own * (whole_layers_ * own + window_layers_ * std::min(own, window_patches_));
    }
    double seconds = patch_flops_ * pairs / costs_.attention_flops;
    for (const Product &product : patch_products_) seconds += product_seconds(patches, product);
    for (const Product &product : token_products_) seconds += product_seconds(tokens, product);
    return seconds;
}

double StepCost::merge_seconds() const {
    double seconds = 0;
    for (const AttentionLayers &layers : attention_)
        seconds += layers.count * merging_seconds(1, 1, layers);
    return seconds;
}

double StepCost::token_seconds() const {
    // Not the default step size, because common prefix sharing was measured with these
    // (docs/lab/engine.md).
    const bool experts = !expert_products_.empty();
    const int64_t tokens = std::min<int64_t>(experts ? 8192 : 4096, costs_.tokens_of_step(experts));
    TokenBatch prompt;
    prompt.tokens.resize(static_cast<size_t>(tokens));
    const auto length = static_cast<int32_t>(prompt.tokens.size());
    prompt.nodes.push_back({-1, 0, length, 0, length, true});
    return seconds(prompt).total() / length;
}

double common_prefix_cost(const StepCost &cost) {
    // Excludes common prefixes near their break-even, since predictions are off by a few per cent
    // (docs/lab/engine.md).
    constexpr double margin = 1.4;
    return std::min(margin * cost.merge_seconds() / cost.token_seconds(), most_common_prefix_cost);
}

double common_prefix_cost(DeviceCosts costs, const Model &model, bool products_in_fp8) {
    costs.fp8_products.clear();
    return (products_in_fp8 ? fp8_speed : 1) *
           common_prefix_cost(StepCost(std::move(costs), model));
}

double StepCost::host_seconds(const TokenBatch &batch) const {
    return (costs_.host_us + costs_.host_token_us * static_cast<double>(batch.tokens.size())) *
           1e-6;
}

} // namespace batchllm
