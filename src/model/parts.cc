#include "model/parts.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/visit.h"
#include "model/four_bits.h"

namespace batchllm {
namespace {

struct Range {
    int64_t begin, count;
};

void take_rows(Range range, Tensor *tensor) {
    if (*tensor) *tensor = rows_of(*tensor, range.begin, range.count);
}

void take_rows(Range range, Weight *weight) {
    take_rows(range, &weight->values);
    take_rows(range, &weight->bias);
}

// A multiple of how many columns must stay together, at best: those with one scale.
int64_t unit_of_columns(const Model &model, const Tensor &tensor) {
    if (const auto facts = four_bit_facts(model, tensor)) {
        return facts->any_order ? 8 : facts->group_columns;
    }
    return tensor.scales ? tensor.scales.block_columns : 1;
}

class Divider {
  public:
    Divider(const Model &model, int32_t rank, int32_t ranks)
        : model_(model), rank_(rank), ranks_(ranks) {}

    Status divide(Model *part) {
        for (layer_ = 0; layer_ < part->layers.size(); ++layer_) {
            Layer &layer = part->layers[layer_];
            RETURN_IF_ERROR(
                std::visit([&](auto &mixer) { return divide_mixer(&mixer); }, layer.mixer));
            RETURN_IF_ERROR(std::visit([&](auto &feed) { return divide_feed(&feed); }, layer.feed));
        }
        return divide_head(part);
    }

  private:
    Status refuse(const std::string &what) const {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "tensor_parallel %d: layer %zu: %s", ranks_,
                     layer_, what.c_str());
    }

    Result<Range> even(int64_t count, const char *what) const {
        if (count % ranks_ == 0) return Range{count / ranks_ * rank_, count / ranks_};
        return refuse(std::to_string(count) + " " + what + " cannot be divided");
    }

    // Of heads that those of `heads` share: of fewer than there are ranks, one that others have too.
    Result<Range> shared_heads(int64_t count, const char *what) const {
        if (count < ranks_ && ranks_ % count == 0) return Range{count * rank_ / ranks_, 1};
        return even(count, what);
    }

    // In whole units but for the last, or in smaller ones if there are fewer than ranks. Kernels want multiples of 8, and are
    // faster with those of 64, unless one rank then has much more than another.
    Result<Range> uneven(int64_t count, int64_t unit, bool four_bits, const char *what) const {
        for (const auto &[wider, least] : {std::pair(64, 8), std::pair(8, 1)}) { // units a rank
            if (wider % unit != 0 || count % wider != 0 || count / wider < least * ranks_) continue;
            unit = wider;
            break;
        }
        if ((count + unit - 1) / unit < ranks_) unit = four_bits ? 8 : 1;
        const int64_t units = (count + unit - 1) / unit;
        if (units < ranks_) {
            return refuse(std::to_string(count) + " " + what + " cannot be divided");
        }
        const int64_t begin = units * rank_ / ranks_ * unit;
        return Range{begin, std::min(count, units * (rank_ + 1) / ranks_ * unit) - begin};
    }

    // Columns of a matrix whose results are added over all ranks.
    Status take_columns(Range range, Weight *weight) const {
        const bool four_bits = four_bit_facts(model_, weight->values).has_value();
        if (four_bits && range.begin % 8 != 0) {
            return refuse("four-bit columns cannot be divided at " + std::to_string(range.begin));
        }
        weight->values = columns_of(weight->values, range.begin, range.count);
        if (rank_ > 0) weight->bias = {};
        return {};
    }

    static Range times(Range range, int64_t size) {
        return {range.begin * size, range.count * size};
    }

    static Status divide_mixer(NoMixer *) { return {}; }

    Status divide_mixer(Attention *a) const {
        ASSIGN_OR_RETURN(const Range heads, even(a->heads, "heads"));
        const Latent &latent = a->latent;
        const int64_t result = a->result_size() / a->heads;
        a->heads = static_cast<int32_t>(heads.count);
        take_rows(heads, &a->sinks);
        RETURN_IF_ERROR(take_columns(times(heads, result), &a->o));
        if (latent) {
            take_rows(times(heads, latent.query_dim()), &a->q);
            take_rows(times(heads, latent.plain + latent.value_dim), &a->latent.up);
            return {};
        }
        ASSIGN_OR_RETURN(const Range kv_heads, shared_heads(a->kv_heads, "heads of keys"));
        a->kv_heads = static_cast<int32_t>(kv_heads.count);
        const bool with_gates = a->gated && !a->gate;
        take_rows(times(heads, (with_gates ? 2 : 1) * a->head_dim), &a->q);
        take_rows(times(heads, a->head_dim), &a->gate);
        const Range keys = times(kv_heads, a->head_dim);
        take_rows(keys, &a->k);
        take_rows(keys, &a->v);
        for (std::vector<float> *scales : {&a->k_scales, &a->v_scales}) {
            if (scales->empty()) continue;
            scales->erase(scales->begin(), scales->begin() + kv_heads.begin);
            scales->resize(static_cast<size_t>(kv_heads.count));
        }
        if (!a->norm_whole) return {};
        for (const Norm *norm : {&a->q_norm, &a->k_norm}) {
            if (norm->kind == NormKind::layer) return refuse("layer norms over all heads");
        }
        take_rows(times(heads, a->head_dim), &a->q_norm.weight);
        take_rows(keys, &a->k_norm.weight);
        return {};
    }

    Status divide_linear_attention(LinearAttention *net) const {
        ASSIGN_OR_RETURN(const Range heads, even(net->value_heads, "heads of values"));
        ASSIGN_OR_RETURN(const Range key_heads, shared_heads(net->key_heads, "heads of keys"));
        const Range q = times(key_heads, net->key_dim), v = times(heads, net->value_dim);
        const int64_t keys = net->keys_size(), values = net->values_size();
        std::vector<Range> rows = {q, {keys + q.begin, q.count}, {2 * keys + v.begin, v.count}};
        std::vector<Weight> convolution;
        for (const Range &range : rows) {
            each_part(net->convolution, range, [&](const Weight &from, Range own) {
                take_rows(own, &convolution.emplace_back(from));
            });
        }
        int64_t first = net->channels();
        const auto add = [&](int64_t size, Range own) {
            rows.push_back({first + own.begin, own.count});
            first += size;
        };
        // What a second matrix makes z and a of is whole.
        const Range low = {0, net->gate_rank};
        const bool second = net->gate_rank > 0;
        add(second ? low.count : values, second ? low : v);
        for (int64_t g = 0; g < net->gates(); g += net->value_heads) add(net->value_heads, heads);
        if (second) add(low.count, low);
        std::vector<Tensor> input;
        for (const Range &range : rows) {
            each_part(net->input, range, [&](const Tensor &from, Range own) {
                input.push_back(rows_of(from, own.begin, own.count));
            });
        }
        net->convolution = std::move(convolution);
        net->input = std::move(input);
        take_rows(heads, &net->decay);
        // Of heads, or of their channels.
        take_rows(times(heads, net->step_bias.rows / net->value_heads), &net->step_bias);
        net->key_heads = static_cast<int32_t>(key_heads.count);
        net->value_heads = static_cast<int32_t>(heads.count);
        return take_columns(v, &net->o);
    }

    // Calls take(part, rows of it) for those that have some of the rows of all, one after another.
    template <typename Part, typename Take>
    static void each_part(const std::vector<Part> &parts, Range rows, const Take &take) {
        int64_t first = 0; // of the part
        for (const Part &part : parts) {
            const int64_t count = rows_in(part);
            const int64_t begin = std::max(rows.begin, first);
            const int64_t end = std::min(rows.begin + rows.count, first + count);
            if (begin < end) take(part, Range{begin - first, end - begin});
            first += count;
        }
    }
    static int64_t rows_in(const Tensor &tensor) { return tensor.rows; }
    static int64_t rows_in(const Weight &weight) { return weight.rows(); }

    Status divide_mixer(DeltaNet *net) const { return divide_linear_attention(net); }

    Status divide_mixer(ChannelDeltaNet *net) const {
        ASSIGN_OR_RETURN(const Range heads, even(net->value_heads, "heads of values"));
        take_rows(times(heads, net->key_dim), &net->a);
        take_rows(times(heads, net->value_dim), &net->z);
        return divide_linear_attention(net);
    }

    Status divide_mixer(Mamba2 *mamba) const {
        const int64_t all = mamba->values_size();
        ASSIGN_OR_RETURN(const Range heads, even(mamba->value_heads, "heads"));
        if (!mamba->norm) {
            mamba->norm_parts = 1;
        } else if (mamba->norm_parts % ranks_ == 0) {
            mamba->norm_parts /= ranks_;
        } else if (ranks_ % mamba->norm_parts == 0 && !mamba->norm_first) {
            mamba->norm_ranks = ranks_ / mamba->norm_parts;
            mamba->norm_parts = 1;
        } else {
            return refuse(std::to_string(mamba->norm_parts) + " norms cannot be divided");
        }
        take_rows(heads, &mamba->skip);
        take_rows({all / ranks_ * rank_, all / ranks_}, &mamba->norm.weight);
        return divide_linear_attention(mamba);
    }

    Status divide_mixer(ShortConvolution *convolution) const {
        ASSIGN_OR_RETURN(const Range channels, even(convolution->channels(), "channels"));
        for (Weight *w :
             {&convolution->b, &convolution->c, &convolution->x, &convolution->filter}) {
            take_rows(channels, w);
        }
        return take_columns(channels, &convolution->o);
    }

    static Status divide_feed(NoFeed *) { return {}; }

    Status divide_feed(FeedForward *feed) const {
        int64_t unit = unit_of_columns(model_, feed->down.values);
        for (const Weight *w : {&feed->gate, &feed->up}) {
            unit = std::max(unit, w->values.scales.block_rows);
        }
        const bool four_bits = four_bit_facts(model_, feed->down.values).has_value();
        ASSIGN_OR_RETURN(const Range columns,
                         uneven(feed->width, unit, four_bits, "columns of a feed-forward"));
        feed->width = static_cast<int32_t>(columns.count);
        for (Weight *w : {&feed->gate, &feed->up}) take_rows(columns, w);
        return take_columns(columns, &feed->down);
    }

    Status divide_feed(Experts *experts) const {
        for (FeedForward &expert : experts->each) RETURN_IF_ERROR(divide_feed(&expert));
        return {};
    }

    Status divide_feed(SharedExperts *both) const {
        if (both->after && !both->experts.after) return refuse("a norm of the shared expert alone");
        RETURN_IF_ERROR(divide_feed(&both->shared));
        return divide_feed(&both->experts);
    }

    Status divide_head(Model *part) const {
        if (!part->head) return {};
        constexpr int64_t unit = 8;
        ASSIGN_OR_RETURN(const Range tokens,
                         uneven(part->head.rows(), unit, false, "rows of the head"));
        take_rows(tokens, &part->head);
        part->head_begin = static_cast<int32_t>(tokens.begin);
        return {};
    }

    const Model &model_;
    int32_t rank_, ranks_;
    size_t layer_ = 0;
};

// The tensor of the whole model that a tensor of its part is cut from, and where.
struct CutFrom {
    const Tensor *whole = nullptr;
    int64_t row = 0, column = 0;
};

CutFrom find_whole(const std::vector<const Tensor *> &of_name, const Tensor &part) {
    for (const Tensor *whole : of_name) {
        const int64_t rows = part.first_row - whole->first_row;
        if (rows < 0 || rows % whole->row_step != 0 || part.row_step != whole->row_step) continue;
        const int64_t row = rows / whole->row_step;
        if (row + part.rows > whole->rows) continue;
        return {whole, row, part.first_column - whole->first_column};
    }
    return {};
}

} // namespace

Result<std::unique_ptr<Model>> part_of(const Model &model, int32_t rank, int32_t ranks) {
    auto part = std::make_unique<Model>(model);
    part->rank = rank;
    part->ranks = ranks;
    RETURN_IF_ERROR(Divider(model, rank, ranks).divide(part.get()));
    return part;
}

Adapter part_of(const Adapter &adapter, const Model &model, const Model &part) {
    const auto visit = [](const Model &of, const std::function<void(const Tensor &)> &each) {
        for_each_tensor(of, each);
        if (of.tied) each(of.head.values);
    };
    std::unordered_map<std::string, std::vector<const Tensor *>> changed; // by name
    visit(model, [&](const Tensor &tensor) {
        if (adapter.of(tensor) != nullptr) changed[tensor.name].push_back(&tensor);
    });
    Adapter own;
    own.embedding = adapter.embedding;
    own.hash = adapter.hash;
    visit(part, [&](const Tensor &tensor) {
        const auto found = changed.find(tensor.name);
        if (found == changed.end() || &tensor == &part.embedding) return;
        const CutFrom from = find_whole(found->second, tensor);
        if (from.whole == nullptr) return;
        LowRank low = *adapter.of(*from.whole);
        low.a = columns_of(low.a, from.column, tensor.columns);
        low.b = rows_of(low.b, from.row, tensor.rows);
        own.changes.emplace(&tensor, std::move(low));
    });
    return own;
}

} // namespace batchllm
