#include "backend/cpu/tower.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/feed_forward.h"
#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {
namespace {

// Patches in one pack: enough to keep the processor busy, few enough for the buffers. A larger picture is a pack of its own.
constexpr int64_t kPackPatches = 16384;
// Query rows of one head that a task of attention takes.
constexpr int64_t kBlockQueries = 128;

struct PackedMerger {
    PackedNorm norm, merged_norm;
    PackedMatrix projection;
    Vector projection_bias;
    PackedFeedForward feed_forward;
};

// Numbers that stand for a tensor's.
Result<PackedMatrix> pack_floats(const Vector &numbers, const Tensor &of, Linear *linear) {
    Tensor changed;
    changed.rows = of.rows;
    changed.columns = static_cast<int64_t>(numbers.size()) / of.rows;
    changed.data = reinterpret_cast<const std::byte *>(numbers.data());
    ASSIGN_OR_RETURN(PackedMatrix packed, linear->pack(changed));
    packed.tensors = {&of}; // `changed` ends here
    return packed;
}

Result<PackedMatrix> pack_projection(const Merger &from, const Tower &tower, Linear *linear) {
    const Tensor &stored = from.projection.values;
    if (!from.by_channel) return linear->pack(stored);
    return pack_floats(joined_projection(from, tower), stored, linear);
}

Status pack_merger(const Merger &from, const Tower &tower, Linear *linear, PackedMerger *to) {
    to->norm = pack_norm(from.norm, tower.hidden);
    to->merged_norm = pack_norm(from.merged_norm, merged_width(from, tower));
    if (from.projection) {
        ASSIGN_OR_RETURN(to->projection, pack_projection(from, tower, linear));
        to->projection_bias = read_vector(from.projection.bias);
    }
    if (!from.has_feed_forward()) return {};
    return pack_feed_forward(from.feed_forward, linear, &to->feed_forward);
}

} // namespace

struct CpuTower::Packed {
    PackedMatrix patch;
    Vector patch_bias;
    Vector positions; // [side * side, hidden]
    PackedNorm before, after;
    std::vector<PackedLayer> layers;
    std::vector<PackedMerger> mergers; // [parts]
};

CpuTower::CpuTower(const Model &model, const Kernels &kernels, ThreadPool *pool, int32_t slots,
                   bool reproducible)
    : model_(model), tower_(*model.tower), kernels_(kernels), pool_(pool),
      reproducible_(reproducible), slots_(static_cast<size_t>(slots)),
      scratch_(static_cast<size_t>(pool->size())) {}

int64_t CpuTower::token_bytes(const Model &model) {
    return model.tower->parts() * model.hidden * int64_t{sizeof(float)};
}

const float *CpuTower::output(int32_t slot, int64_t part, int32_t token) const {
    const Slot &of = slots_[static_cast<size_t>(slot)];
    return of.values.floats() + (part * of.tokens + token) * model_.hidden;
}

Status CpuTower::pack_weights() {
    if (packed_ != nullptr) return {};
    ASSIGN_OR_RETURN(linear_, Linear::create(kernels_.element, pool_, reproducible_, &kernels_));
    auto packed = std::make_shared<Packed>();
    ASSIGN_OR_RETURN(packed->patch,
                     pack_floats(folded_patch(tower_), tower_.patch.values, linear_.get()));
    packed->patch_bias = read_vector(tower_.patch.bias);
    packed->positions = read_vector(tower_.positions);
    packed->before = pack_norm(tower_.before, tower_.hidden);
    packed->after = pack_norm(tower_.after, tower_.hidden);
    packed->layers.resize(tower_.layers.size());
    for (size_t i = 0; i < tower_.layers.size(); ++i) {
        RETURN_IF_ERROR(
            pack_layer(tower_.layers[i], tower_.hidden, linear_.get(), &packed->layers[i]));
    }
    packed->mergers.resize(static_cast<size_t>(parts()));
    RETURN_IF_ERROR(pack_merger(tower_.merger, tower_, linear_.get(), &packed->mergers[0]));
    for (size_t i = 0; i < tower_.deepstack.size(); ++i) {
        RETURN_IF_ERROR(pack_merger(tower_.deepstack[i].merger, tower_, linear_.get(),
                                    &packed->mergers[i + 1]));
    }
    packed_ = std::move(packed);
    return {};
}

Status CpuTower::load(std::span<const PictureLoad> pictures) {
    RETURN_IF_ERROR(pack_weights());
    for (const PictureLoad &load : pictures) {
        Slot slot;
        slot.tokens = load.picture->grid.tokens;
        ASSIGN_OR_RETURN(slot.values,
                         Buffer::create(slot.tokens * token_bytes(model_), "a picture's outputs"));
        slots_[static_cast<size_t>(load.slot)] = std::move(slot);
    }
    while (!pictures.empty()) {
        const auto pack = first_pack(pictures, kPackPatches);
        RETURN_IF_ERROR(run(pack));
        pictures = pictures.subspan(pack.size());
    }
    return {};
}

void CpuTower::Segments::add(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += kBlockQueries) {
        blocks.push_back(
            {all.size(), row, static_cast<int32_t>(std::min(kBlockQueries, end - row))});
    }
    of.resize(static_cast<size_t>(end), all.size());
    all.push_back({begin, end, groups});
    groups += (end - begin + kGroupTokens - 1) / kGroupTokens;
}

void CpuTower::place(std::span<const PictureLoad> pictures) {
    pack_.place(tower_, pictures);
    pictures_ = windows_ = {};
    for (const TowerPack::Range &range : pack_.pictures) pictures_.add(range.begin, range.end);
    for (const TowerPack::Range &range : pack_.windows) windows_.add(range.begin, range.end);
}

Status CpuTower::reserve() {
    const char *what = "a tower's buffers";
    const int64_t rows = Linear::rounded_rows(patches());
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t hidden = tower_.hidden;
    int64_t width = 0, heads = 0, padded = 0, projected = hidden;
    for (const Layer &layer : tower_.layers) {
        const Attention &attention = *layer.attention();
        width = std::max<int64_t>(width, layer.feed_forward()->width);
        padded = std::max<int64_t>(padded, padded_head_dim(attention.head_dim));
        heads = std::max(heads, attention.heads * padded);
    }
    // A merger has fewer rows, but they may be wider.
    const int64_t tokens = Linear::rounded_rows(static_cast<int64_t>(pack_.outputs.size()));
    const int64_t joined = hidden * tower_.merge * tower_.merge;
    const auto of_merger = [&](const Merger &merger) {
        width = std::max(width, merger.feed_forward.width * tokens / rows + 1);
        projected = std::max(projected, merger.projection.rows());
    };
    of_merger(tower_.merger);
    for (const DeepstackMerger &deepstack : tower_.deepstack) of_merger(deepstack.merger);
    const int64_t groups = std::max(pictures_.groups, windows_.groups);
    RETURN_IF_ERROR(residual_.reserve(rows * hidden * 4, what));
    RETURN_IF_ERROR(merging_.reserve(rows * hidden * 4, what));
    RETURN_IF_ERROR(input_.reserve(
        std::max({rows * tower_.values(), rows * hidden, tokens * joined, tokens * projected}) *
            element,
        what));
    RETURN_IF_ERROR(qkv_.reserve(
        std::max(rows * 3 * hidden, tokens * std::max<int64_t>(projected, model_.hidden)) * 4,
        what));
    RETURN_IF_ERROR(queries_.reserve(rows * heads * element, what));
    RETURN_IF_ERROR(keys_.reserve(groups * kGroupTokens * heads * element, what));
    RETURN_IF_ERROR(values_.reserve(groups * kGroupTokens * heads * element, what));
    RETURN_IF_ERROR(attended_.reserve(rows * hidden * element, what));
    RETURN_IF_ERROR(activated_.reserve(rows * width * element, what));
    const int64_t pairs = tower_.ropes.empty() ? 0 : tower_.ropes[0].dims() / 2;
    RETURN_IF_ERROR(cosine_.reserve(patches() * pairs * 4, what));
    RETURN_IF_ERROR(sine_.reserve(patches() * pairs * 4, what));
    for (Scratch &scratch : scratch_) {
        const auto block = static_cast<size_t>(kBlockQueries);
        RETURN_IF_ERROR(scratch.scores.reserve(attention_scratch_floats() * 4, what));
        RETURN_IF_ERROR(scratch.output.reserve(kBlockQueries * padded * 4, what));
        scratch.maximum.resize(block);
        scratch.sum.resize(block);
        scratch.visible_begin.assign(block, 0);
        scratch.visible_end.resize(block);
        scratch.keys.resize(static_cast<size_t>(groups));
        scratch.values.resize(static_cast<size_t>(groups));
    }
    return {};
}

Status CpuTower::run(std::span<const PictureLoad> pictures) {
    place(pictures);
    RETURN_IF_ERROR(reserve());
    RETURN_IF_ERROR(embed(pictures));
    for (size_t i = 0; i < tower_.layers.size(); ++i) {
        RETURN_IF_ERROR(run_layer(i));
        for (size_t d = 0; d < tower_.deepstack.size(); ++d) {
            if (tower_.deepstack[d].layer != static_cast<int32_t>(i)) continue;
            RETURN_IF_ERROR(merge(tower_.deepstack[d].merger, d + 1, static_cast<int64_t>(d) + 1));
        }
    }
    norm_in_place(packed_->after, patches(), tower_.hidden, residual_.floats());
    return merge(tower_.merger, 0, 0);
}

Status CpuTower::embed(std::span<const PictureLoad> pictures) {
    const int64_t values = tower_.values();
    const int64_t element = dtype_bytes(kernels_.element);
    const Rope *rope = tower_.ropes.empty() ? nullptr : tower_.ropes.data();
    pool_->parallel_for(task_count(patches()), [&](int64_t task, int32_t) {
        const int64_t last = std::min(patches(), (task + 1) * kTokensOfTask);
        for (int64_t p = task * kTokensOfTask; p < last; ++p) {
            const TowerPack::Patch &patch = pack_.patches[static_cast<size_t>(p)];
            const PreparedPicture &picture = *pictures[static_cast<size_t>(patch.picture)].picture;
            kernels_.store_elements(picture.patches.data() + patch.at * values, 1,
                                    static_cast<int32_t>(values), static_cast<int32_t>(values),
                                    input_.data() + p * values * element);
            if (rope == nullptr) continue;
            const size_t pairs = rope->frequencies.size();
            for (size_t i = 0; i < pairs; ++i) {
                const int32_t place = rope->axes[i] == 1 ? patch.row : patch.column;
                const float angle = static_cast<float>(place) * rope->frequencies[i];
                const auto at = static_cast<size_t>(p) * pairs + i;
                cosine_.floats()[at] = std::cos(angle) * rope->scale;
                sine_.floats()[at] = std::sin(angle) * rope->scale;
            }
        }
    });
    RETURN_IF_ERROR(product(packed_->patch, input_.data(), patches(), packed_->patch_bias, false,
                            residual_.floats()));
    if (tower_.positions) {
        pool_->parallel_for(task_count(patches()), [&](int64_t task, int32_t) {
            const int64_t last = std::min(patches(), (task + 1) * kTokensOfTask);
            for (int64_t p = task * kTokensOfTask; p < last; ++p) {
                add_position(pack_.patches[static_cast<size_t>(p)],
                             residual_.floats() + p * tower_.hidden);
            }
        });
    }
    norm_in_place(packed_->before, patches(), tower_.hidden, residual_.floats());
    return {};
}

void CpuTower::add_position(const TowerPack::Patch &patch, float *x) const {
    const int32_t hidden = tower_.hidden;
    const auto add = [&](int32_t row, int32_t column, float weight) {
        const float *position =
            packed_->positions.data() + (int64_t{row} * tower_.side + column) * hidden;
        kernels_.add_scaled(position, weight, hidden, x);
    };
    if (!tower_.interpolated) return add(patch.row, patch.column, 1);
    // In float, as the reference computes it.
    const int32_t most = tower_.side - 1;
    const float row = static_cast<float>(patch.row) * static_cast<float>(most) /
                      static_cast<float>(std::max(patch.rows - 1, 1));
    const float column = static_cast<float>(patch.column) * static_cast<float>(most) /
                         static_cast<float>(std::max(patch.columns - 1, 1));
    const auto top = static_cast<int32_t>(std::floor(row));
    const auto left = static_cast<int32_t>(std::floor(column));
    const float down = row - static_cast<float>(top);
    const float right = column - static_cast<float>(left);
    for (int32_t i = 0; i < 4; ++i) {
        const float weight = (i / 2 == 0 ? 1 - down : down) * (i % 2 == 0 ? 1 - right : right);
        add(std::min(top + i / 2, most), std::min(left + i % 2, most), weight);
    }
}

Status CpuTower::run_layer(size_t index) {
    const Layer &layer = tower_.layers[index];
    const PackedLayer &weights = packed_->layers[index];
    const Attention &attention = *layer.attention();
    const int64_t hidden = tower_.hidden;
    norm(weights.before_attention, residual_.floats(), patches(), hidden, input_.data());
    RETURN_IF_ERROR(attend(attention, std::get<PackedAttention>(weights.mixer),
                           attention.window > 0 ? windows_ : pictures_));
    RETURN_IF_ERROR(
        product(weights.o, attended_.data(), patches(), weights.o_bias, true, residual_.floats()));
    norm(weights.before_feed_forward, residual_.floats(), patches(), hidden, input_.data());
    RETURN_IF_ERROR(activate(*layer.feed_forward(), weights.feed_forward, kernels_, input_.data(),
                             patches(), linear_.get(), activated_.data()));
    return product(weights.feed_forward.down, activated_.data(), patches(),
                   weights.feed_forward.down_bias, true, residual_.floats());
}

Status CpuTower::attend(const Attention &attention, const PackedAttention &weights,
                        const Segments &segments) {
    RETURN_IF_ERROR(
        product(weights.qkv, input_.data(), patches(), weights.qkv_bias, false, qkv_.floats()));
    pool_->parallel_for(task_count(patches()), [&](int64_t task, int32_t) {
        const int64_t last = std::min(patches(), (task + 1) * kTokensOfTask);
        for (int64_t p = task * kTokensOfTask; p < last; ++p) {
            write_patch(attention, segments, p);
        }
    });
    const auto blocks = static_cast<int64_t>(segments.blocks.size());
    pool_->parallel_for(blocks * attention.heads, [&](int64_t task, int32_t thread) {
        attend_block(attention, segments,
                     segments.blocks[static_cast<size_t>(task / attention.heads)],
                     task % attention.heads, &scratch_[static_cast<size_t>(thread)]);
    });
    return {};
}

// Turns a patch's queries and keys, and stores them and its values as the kernels read them.
void CpuTower::write_patch(const Attention &attention, const Segments &segments, int64_t patch) {
    const int32_t head_dim = attention.head_dim;
    const int32_t padded = padded_head_dim(head_dim);
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t group_bytes = int64_t{kGroupTokens} * padded * element;
    const auto scale = static_cast<float>(1.4426950408889634 * attention.scale);
    const Segment &segment = segments.all[segments.of[static_cast<size_t>(patch)]];
    const auto slot = static_cast<int32_t>((patch - segment.begin) % kGroupTokens);
    const int64_t group = segment.first_group + (patch - segment.begin) / kGroupTokens;
    float *queries = qkv_.floats() + patch * 3 * attention.q_size();
    const auto turn = [&](float *head) {
        if (attention.rope < 0) return;
        const Rope &rope = tower_.ropes[static_cast<size_t>(attention.rope)];
        const int64_t pairs = rope.dims() / 2;
        kernels_.rope(head, cosine_.floats() + patch * pairs, sine_.floats() + patch * pairs,
                      static_cast<int32_t>(pairs));
    };
    for (int64_t h = 0; h < attention.heads; ++h) {
        float *query = queries + h * head_dim;
        float *key = query + attention.q_size();
        float *value = key + attention.q_size();
        turn(query);
        turn(key);
        kernels_.store_elements(query, scale, head_dim, padded,
                                queries_.data() + (h * patches() + patch) * padded * element);
        const int64_t at = (h * segments.groups + group) * group_bytes;
        kernels_.store_key(key, head_dim, padded, slot, keys_.data() + at);
        kernels_.store_value(value, head_dim, padded, slot, values_.data() + at);
        if (patch + 1 != segment.end) continue;
        // The rest of the last group: a weight of zero would not suppress a NaN there.
        std::fill_n(value, head_dim, 0.0F);
        for (int32_t empty = slot + 1; empty < kGroupTokens; ++empty) {
            kernels_.store_value(value, head_dim, padded, empty, values_.data() + at);
        }
    }
}

void CpuTower::attend_block(const Attention &attention, const Segments &segments,
                            const Block &block, int64_t head, Scratch *scratch) {
    const int32_t padded = padded_head_dim(attention.head_dim);
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t group_bytes = int64_t{kGroupTokens} * padded * element;
    const Segment &segment = segments.all[block.segment];
    const auto keys = static_cast<int32_t>(segment.end - segment.begin);
    const int64_t first = head * segments.groups + segment.first_group;
    for (int64_t g = 0; g * kGroupTokens < keys; ++g) {
        scratch->keys[static_cast<size_t>(g)] = keys_.data() + (first + g) * group_bytes;
        scratch->values[static_cast<size_t>(g)] = values_.data() + (first + g) * group_bytes;
    }
    std::fill_n(scratch->visible_end.begin(), block.rows, keys);
    AttentionCall call;
    call.queries = queries_.data() + (head * patches() + block.begin) * padded * element;
    call.rows = block.rows;
    call.head_dim = call.value_dim = padded;
    call.key_groups = scratch->keys.data();
    call.value_groups = scratch->values.data();
    call.key_end = keys;
    call.visible_begin = scratch->visible_begin.data();
    call.visible_end = scratch->visible_end.data();
    call.maximum = scratch->maximum.data();
    call.sum = scratch->sum.data();
    call.output = scratch->output.floats();
    call.scratch = scratch->scores.floats();
    kernels_.attention(call);
    for (int64_t r = 0; r < block.rows; ++r) {
        const float *const output = call.output + r * padded;
        kernels_.merge(1, &output, call.maximum + r, call.sum + r, attention.head_dim,
                       attended_.data() +
                           ((block.begin + r) * attention.q_size() + head * attention.head_dim) *
                               element);
    }
}

// Writes part `part` of all pictures' outputs.
Status CpuTower::merge(const Merger &merger, size_t packed, int64_t part) {
    const PackedMerger &weights = packed_->mergers[packed];
    const auto tokens = static_cast<int64_t>(pack_.outputs.size());
    const int64_t each = int64_t{tower_.merge} * tower_.merge;
    const int64_t hidden = tower_.hidden;
    const int64_t width = merged_width(merger, tower_);
    float *x = merging_.floats();
    std::memcpy(x, residual_.floats(), static_cast<size_t>(patches() * hidden * 4));
    norm_in_place(weights.norm, patches(), hidden, x);
    if (merger.averaged) { // in place: a token's row stands before its patches'
        for (int64_t t = 0; t < tokens; ++t) {
            float *to = x + t * hidden;
            const float *from = x + t * each * hidden;
            for (int64_t i = 0; i < hidden; ++i) {
                float sum = 0;
                for (int64_t p = 0; p < each; ++p) sum += from[p * hidden + i];
                to[i] = sum / static_cast<float>(each);
            }
        }
    }
    norm(weights.merged_norm, x, tokens, width, input_.data());
    if (merger.projection) {
        RETURN_IF_ERROR(product(weights.projection, input_.data(), tokens, weights.projection_bias,
                                false, qkv_.floats()));
        if (merger.has_feed_forward()) {
            norm({}, qkv_.floats(), tokens, merger.projection.rows(), input_.data());
        }
    }
    if (merger.has_feed_forward()) {
        RETURN_IF_ERROR(activate(merger.feed_forward, weights.feed_forward, kernels_, input_.data(),
                                 tokens, linear_.get(), activated_.data()));
        RETURN_IF_ERROR(product(weights.feed_forward.down, activated_.data(), tokens,
                                weights.feed_forward.down_bias, false, qkv_.floats()));
    }
    const float scale = part == 0 ? tower_.output_scale : 1;
    for (int64_t t = 0; t < tokens; ++t) {
        const auto [slot, token] = pack_.outputs[static_cast<size_t>(t)];
        const Slot &of = slots_[static_cast<size_t>(slot)];
        float *to = of.values.floats() + (part * of.tokens + token) * model_.hidden;
        const float *from = qkv_.floats() + t * model_.hidden;
        for (int64_t i = 0; i < model_.hidden; ++i) to[i] = from[i] * scale;
    }
    return {};
}

void CpuTower::norm(const PackedNorm &norm, const float *x, int64_t rows, int64_t width,
                    std::byte *out) {
    const auto n = static_cast<int32_t>(width);
    const int64_t row_bytes = width * dtype_bytes(kernels_.element);
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            const float *row = x + r * width;
            std::byte *to = out + r * row_bytes;
            if (norm.kind == NormKind::rms) {
                kernels_.rms_norm(row, norm.weight.data(), norm.epsilon, n, to);
            } else if (norm.kind == NormKind::layer) {
                kernels_.layer_norm(row, norm.weight.data(), norm.bias.data(), norm.epsilon, n, to);
            } else {
                kernels_.store_elements(row, 1, n, n, to);
            }
        }
    });
}

void CpuTower::norm_in_place(const PackedNorm &norm, int64_t rows, int64_t width, float *x) {
    if (!norm) return;
    const auto n = static_cast<int32_t>(width);
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            if (norm.kind == NormKind::rms) {
                kernels_.rms_norm_head(x + r * width, norm.weight.data(), norm.epsilon, n);
            } else {
                kernels_.layer_norm_head(x + r * width, norm.weight.data(), norm.bias.data(),
                                         norm.epsilon, n);
            }
        }
    });
}

// to = x W^T + bias, or to += that; [rows, rows of the matrix].
Status CpuTower::product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                         const Vector &bias, bool add, float *to) {
    const auto store = add ? kernels_.add_bias : kernels_.copy_bias;
    return linear_->run(matrix, x, rows, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            store(tile.data + r * tile.width, bias_at(bias, tile.column),
                  static_cast<int32_t>(tile.width),
                  to + (tile.row + r) * matrix.rows + tile.column);
        }
    });
}

} // namespace batchllm::cpu
