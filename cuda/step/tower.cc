#include "step/tower.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/gpu/tower_buffers.h"
#include "elementwise/elementwise.h"
#include "step/products.h"
#include "tower/rows.h"

namespace batchllm::cuda {
namespace {

static_assert(sizeof(TowerPatch) == tower_patch_bytes && sizeof(TowerBlock) == tower_block_bytes);
static_assert(most_row_step <= 64, "TowerBuffers has room for rows rounded up to 64");

// Ranks' outputs are the same bits, so their products are the same.
bool tunes(const ForwardOptions &options) {
    return options.tune && !options.reproducible && !options.rank;
}

} // namespace

const char *StepTower::missing(const Model &model, DType element) {
    const Tower &tower = *model.tower;
    if (tower.deepstack.size() >= model.layers.size()) return "deepstack behind the last layer";
    if (tower.hidden % kVector != 0 || tower.hidden > kMostNormed || model.hidden % kVector != 0) {
        return "a tower whose size is no multiple of 8";
    }
    const int64_t joined = int64_t{tower.hidden} * tower.merge * tower.merge;
    if (joined > kMostNormed) return "a tower whose tokens join more than 32768 numbers";
    if (tower.ropes.size() > 1) return "a tower with several ropes";
    for (const Layer &layer : tower.layers) {
        const Attention &a = *layer.attention();
        if (!tower_head_fits(element, a.head_dim)) {
            return "a tower whose heads are no multiple of 8, or larger than 128 (in f32 256)";
        }
        if (a.rope >= 0 && tower.ropes[0].dims() != a.head_dim) {
            return "a tower whose heads turn in part";
        }
        const Activation activation = layer.feed_forward()->activation;
        if (activation == Activation::clamped_swiglu || activation == Activation::xielu) {
            return "a tower with such an activation";
        }
    }
    return nullptr;
}

StepTower::StepTower(const Model &model, const ForwardOptions &options, Linear linear,
                     StepPictures *pictures)
    : model_(model), tower_(*model.tower), element_(options.element), stream_(options.residual),
      // In f16, Inf of one picture times a weight of zero would be NaN in another of the pack.
      alone_(options.reproducible || options.element == DType::f16), tunes_(tunes(options)),
      sm90_(options.experts == GroupedKernel::sm90 &&
            tower_head_fits_sm90(element_, tower_.layers[0].attention()->head_dim)),
      untimed_(options.untimed_steps), pictures_(pictures), linear_(std::move(linear)) {}

Result<std::unique_ptr<StepTower>>
StepTower::create(const Model &model, const ForwardOptions &options, StepPictures *pictures) {
    std::string warning; // of a file that cannot be used, as Products has warned
    TuningCache cache;
    if (tunes(options)) cache = tuning_cache_of(options, &warning);
    ASSIGN_OR_RETURN(Linear linear, Linear::create(options.element, nullptr, 0, std::move(cache)));
    std::unique_ptr<StepTower> tower(new StepTower(model, options, std::move(linear), pictures));
    LoadOptions load;
    load.element = options.element;
    load.random = options.random_weights;
    load.seed = options.seed;
    load.threads = options.threads;
    ASSIGN_OR_RETURN(tower->weights_, load_tower_weights(tower->tower_, load, options.residual));
    RETURN_IF_ERROR(tower->allocate());
    return tower;
}

Status StepTower::allocate() {
    for (Sent &sent : sent_) {
        ASSIGN_OR_RETURN(sent.arrived, Event::create(false));
        ASSIGN_OR_RETURN(sent.done, Event::create(false));
    }
    if (!tower_.ropes.empty()) {
        const Rope &rope = tower_.ropes[0];
        const size_t half = rope.frequencies.size();
        ASSIGN_OR_RETURN(frequencies_, DeviceMemory::create(static_cast<int64_t>(half) * 4,
                                                            "a tower's frequencies"));
        ASSIGN_OR_RETURN(axes_, DeviceMemory::create(static_cast<int64_t>(half), "a tower's axes"));
        RETURN_IF_CUDA(cudaMemcpy(frequencies_.data(), rope.frequencies.data(), half * 4,
                                  cudaMemcpyHostToDevice));
        RETURN_IF_CUDA(cudaMemcpy(axes_.data(), rope.axes.data(), half, cudaMemcpyHostToDevice));
    }
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    most_patches_ = tower_patches_on_gpu(model_, element_, stream_, pictures_->most_tokens(),
                                         static_cast<int64_t>(available));
    const TowerBuffers room = tower_buffers(model_, element_, stream_, most_patches_);
    const int64_t pack =
        tower_buffers(model_, element_, stream_, std::min(most_pack_patches, most_patches_)).sent;
    for (Sent &sent : sent_) RETURN_IF_ERROR(sent.staging.reserve(pack, room.sent));
    const auto make = [](DeviceMemory *memory, int64_t bytes) -> Status {
        ASSIGN_OR_RETURN(*memory, DeviceMemory::create(bytes, "a tower's buffers"));
        return {};
    };
    RETURN_IF_ERROR(make(&residual_, room.residual));
    RETURN_IF_ERROR(make(&delta_, room.delta));
    RETURN_IF_ERROR(make(&normed_, room.normed));
    RETURN_IF_ERROR(make(&qkv_, room.qkv));
    RETURN_IF_ERROR(make(&attended_, room.attended));
    RETURN_IF_ERROR(make(&up_, room.up));
    RETURN_IF_ERROR(make(&activated_, room.activated));
    RETURN_IF_ERROR(make(&angles_, room.angles));
    // Nothing is in it when a product begins, but what that is to write.
    if (tunes_) linear_.set_scratch(up_.data(), up_.bytes());
    return {};
}

bool StepTower::timing_is_due() {
    if (untimed_ == 0 || !tunes_) return true;
    return ++packs_[tuned_rows(patches())] == untimed_ + 1;
}

Status StepTower::load(std::span<const PictureLoad> loads, cudaStream_t copies,
                       cudaStream_t stream) {
    for (const PictureLoad &load : loads) {
        RETURN_IF_ERROR(pictures_->take(load.slot, load.picture->grid.tokens));
    }
    while (!loads.empty()) {
        const auto pack =
            alone_ ? loads.first(1) : first_pack(loads, std::min(most_pack_patches, most_patches_));
        Sent &sent = sent_[turn_];
        turn_ = (turn_ + 1) % sent_.size();
        RETURN_IF_CUDA(cudaEventSynchronize(sent.done));
        RETURN_IF_ERROR(send(pack, &sent, copies));
        RETURN_IF_CUDA(cudaStreamWaitEvent(stream, sent.arrived, 0));
        linear_.set_timing(timing_is_due());
        RETURN_IF_ERROR(run(sent, stream));
        RETURN_IF_CUDA(cudaEventRecord(sent.done, stream));
        loads = loads.subspan(pack.size());
    }
    return {};
}

Status StepTower::send(std::span<const PictureLoad> loads, Sent *to, cudaStream_t copies) {
    pack_.place(tower_, loads);
    Staging &staging = to->staging;
    staging.clear();
    ASSIGN_OR_RETURN(to->values, staging.add<float>(patches() * tower_.values()));
    float *values = staging.at<float>(to->values);
    for (const PictureLoad &load : loads) {
        const std::vector<float> &from = load.picture->patches;
        std::memcpy(values, from.data(), from.size() * sizeof(float));
        values += from.size();
    }
    ASSIGN_OR_RETURN(to->patches, staging.add<TowerPatch>(patches()));
    auto *patch = staging.at<TowerPatch>(to->patches);
    for (const TowerPack::Patch &from : pack_.patches) {
        const int64_t first = pack_.pictures[static_cast<size_t>(from.picture)].begin;
        *patch++ = {static_cast<int32_t>(first) + from.at, from.row, from.column, from.rows,
                    from.columns};
    }
    ASSIGN_OR_RETURN(to->places, staging.add<int32_t>(tokens()));
    auto *place = staging.at<int32_t>(to->places);
    for (const TowerPack::Output &output : pack_.outputs) {
        *place++ = pictures_->place(output.slot, output.token);
    }
    const int32_t head_dim = tower_.layers[0].attention()->head_dim;
    const int32_t rows = tower_block_rows(element_, head_dim);
    ASSIGN_OR_RETURN(to->pictures,
                     stage_blocks(pack_.pictures, sm90_ ? tower_block_rows_sm90() : rows, &staging,
                                  &to->picture_blocks));
    ASSIGN_OR_RETURN(to->windows, stage_blocks(pack_.windows, rows, &staging, &to->window_blocks));
    RETURN_IF_ERROR(staging.send(copies));
    return check_cuda(cudaEventRecord(to->arrived, copies), "pictures");
}

Result<int64_t> StepTower::stage_blocks(const std::vector<TowerPack::Range> &ranges, int32_t rows,
                                        Staging *staging, int32_t *count) {
    std::vector<TowerBlock> blocks;
    for (const TowerPack::Range &range : ranges) {
        for (int64_t row = range.begin; row < range.end; row += rows) {
            blocks.push_back({static_cast<int32_t>(range.begin), static_cast<int32_t>(range.end),
                              static_cast<int32_t>(row)});
        }
    }
    *count = static_cast<int32_t>(blocks.size());
    return staging->add<TowerBlock>(blocks);
}

Status StepTower::norm(const DeviceNorm &norm, const Rows &x, int64_t rows, int64_t width,
                       const Rows &out, cudaStream_t stream) {
    if (norm && width <= kMostTowerNormed) {
        const TowerNormArguments arguments{out.type,
                                           x.type,
                                           x.data,
                                           norm,
                                           out.data,
                                           static_cast<int32_t>(rows),
                                           static_cast<int32_t>(width)};
        return check_cuda(launch_tower_norm(arguments, stream), "a tower's norm");
    }
    AddNormArguments arguments{};
    arguments.element = out.type;
    arguments.stream_type = x.type;
    arguments.residual = x.data; // only read
    arguments.scale = 1;
    arguments.next = norm;
    arguments.out = out.data;
    arguments.count = static_cast<int32_t>(rows);
    arguments.hidden = static_cast<int32_t>(width);
    return check_cuda(launch_add_norm(arguments, stream), "a tower's norm");
}

Status StepTower::run(const Sent &sent, cudaStream_t stream) {
    RETURN_IF_ERROR(embed(sent, stream));
    for (size_t i = 0; i < tower_.layers.size(); ++i) RETURN_IF_ERROR(layer(i, sent, stream));
    if (weights_.after) {
        RETURN_IF_ERROR(
            norm(weights_.after, residual(), patches(), tower_.hidden, residual(), stream));
    }
    return merge(0, sent, stream);
}

Status StepTower::embed(const Sent &sent, cudaStream_t stream) {
    const auto *of_patches = sent.staging.on_device<TowerPatch>(sent.patches);
    const auto count = static_cast<int32_t>(patches());
    RETURN_IF_CUDA(launch_tower_values(
        {element_, sent.staging.on_device<float>(sent.values), of_patches, normed_.data(), count,
         static_cast<int32_t>(tower_.values()), static_cast<int32_t>(weights_.patch.columns)},
        stream));
    RETURN_IF_ERROR(product(weights_.patch, normed_.data(), count, residual(), stream));
    RETURN_IF_CUDA(launch_tower_positions({stream_, residual_.data(), of_patches,
                                           weights_.patch_bias, weights_.positions, count,
                                           tower_.hidden, tower_.side, tower_.interpolated},
                                          stream));
    if (!tower_.ropes.empty()) {
        const Rope &rope = tower_.ropes[0];
        RETURN_IF_CUDA(
            launch_tower_angles({of_patches, frequencies_.as<float>(), axes_.as<uint8_t>(),
                                 rope.scale, angles_.as<float2>(), count, rope.dims() / 2},
                                stream));
    }
    if (weights_.before) {
        RETURN_IF_ERROR(
            norm(weights_.before, residual(), count, tower_.hidden, residual(), stream));
    }
    return {};
}

Status StepTower::layer(size_t index, const Sent &sent, cudaStream_t stream) {
    const TowerLayer &w = weights_.layers[index];
    const Attention &a = *tower_.layers[index].attention();
    const int64_t count = patches();
    RETURN_IF_ERROR(norm(w.before_attention, residual(), count, tower_.hidden, normed(), stream));
    RETURN_IF_ERROR(product(w.qkv, normed_.data(), count, {qkv_.data(), element_}, stream));
    const float2 *angles = a.rope >= 0 ? angles_.as<float2>() : nullptr;
    RETURN_IF_CUDA(launch_tower_turn({element_, qkv_.data(), w.qk_bias, angles,
                                      static_cast<int32_t>(count), a.heads, a.head_dim, on_sm90(a)},
                                     stream));
    RETURN_IF_ERROR(attend(a, {w.qk_bias, angles}, sent, stream));
    RETURN_IF_ERROR(add_product(w.o, attended_.data(), count, stream));
    RETURN_IF_ERROR(
        norm(w.before_feed_forward, residual(), count, tower_.hidden, normed(), stream));
    RETURN_IF_ERROR(activate(w.feed, normed_.data(), count, stream));
    RETURN_IF_ERROR(add_product(w.feed.down, activated_.data(), count, stream));
    const auto deepstack = std::find_if(
        tower_.deepstack.begin(), tower_.deepstack.end(),
        [&](const DeepstackMerger &d) { return d.layer == static_cast<int32_t>(index); });
    if (deepstack == tower_.deepstack.end()) return {};
    return merge(static_cast<size_t>(deepstack - tower_.deepstack.begin()) + 1, sent, stream);
}

Status StepTower::attend(const Attention &a, const TowerQueries &queries, const Sent &sent,
                         cudaStream_t stream) {
    const bool windows = a.window > 0;
    const TowerAttentionArguments arguments{
        element_,
        qkv_.data(),
        attended_.data(),
        sent.staging.on_device<TowerBlock>(windows ? sent.windows : sent.pictures),
        windows ? sent.window_blocks : sent.picture_blocks,
        a.heads,
        a.head_dim,
        static_cast<float>(a.scale)};
    return check_cuda(on_sm90(a)
                          ? launch_tower_attention_sm90(arguments, queries, patches(), stream)
                          : launch_tower_attention(arguments, stream),
                      "a tower's attention");
}

Status StepTower::activate(const TowerFeed &feed, const void *x, int64_t rows,
                           cudaStream_t stream) {
    if (feed.up.gelu) return product(feed.up, x, rows, {activated_.data(), element_}, stream);
    RETURN_IF_ERROR(product(feed.up, x, rows, {up_.data(), element_}, stream));
    const ActivationArguments arguments{element_,
                                        feed.activation,
                                        feed.gated,
                                        up_.data(),
                                        feed.up_bias,
                                        activated_.data(),
                                        static_cast<int32_t>(rows),
                                        static_cast<int32_t>(feed.width)};
    return check_cuda(launch_activation(arguments, stream), "a tower's activation");
}

// Writes part `part` of all outputs.
Status StepTower::merge(size_t part, const Sent &sent, cudaStream_t stream) {
    const TowerMerger &w = weights_.mergers[part];
    const Merger &from = part == 0 ? tower_.merger : tower_.deepstack[part - 1].merger;
    const int64_t width = merged_width(from, tower_);
    const auto count = static_cast<int32_t>(tokens());
    Rows x = residual();
    const bool joins = !from.averaged && !w.merged_norm; // then a patch's norm is the only one
    if (joins) {
        RETURN_IF_ERROR(norm(w.norm, x, patches(), tower_.hidden, normed(), stream));
    } else if (w.norm) {
        const Rows to{delta_.data(), DType::f32};
        RETURN_IF_ERROR(norm(w.norm, x, patches(), tower_.hidden, to, stream));
        x = to;
    }
    if (from.averaged) {
        const Rows to{qkv_.data(), DType::f32};
        RETURN_IF_CUDA(launch_tower_means(x.type, x.data, qkv_.as<float>(), count,
                                          tower_.merge * tower_.merge, tower_.hidden, stream));
        x = to;
    }
    if (!joins) {
        RETURN_IF_ERROR(norm(w.merged_norm, x, count, width, normed(), stream));
    }
    const void *input = normed_.data();
    const float *bias = w.projection_bias;
    if (from.projection) {
        const Rows to = w.feed ? Rows{qkv_.data(), element_} : Rows{delta_.data(), DType::f32};
        RETURN_IF_ERROR(product(w.projection, input, count, to, stream));
        if (w.feed) {
            RETURN_IF_CUDA(launch_add_bias(to.type, to.data, bias, count,
                                           static_cast<int32_t>(w.projection.rows), stream));
        }
        input = to.data;
    }
    if (w.feed) {
        RETURN_IF_ERROR(activate(w.feed, input, count, stream));
        RETURN_IF_ERROR(
            product(w.feed.down, activated_.data(), count, {delta_.data(), DType::f32}, stream));
        bias = nullptr;
    }
    return check_cuda(launch_tower_outputs({pictures_->outputs(), delta_.as<float>(), bias,
                                            part == 0 ? tower_.output_scale : 1,
                                            sent.staging.on_device<int32_t>(sent.places),
                                            static_cast<int64_t>(part), count},
                                           stream),
                      "pictures");
}

} // namespace batchllm::cuda
