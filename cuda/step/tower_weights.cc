#include "step/tower_weights.h"

#include <utility>

#include "backend/gpu/tower_buffers.h"
#include "backend/tower_pack.h"
#include "elementwise/elementwise.h"
#include "step/sender.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;

class TowerLoader {
  public:
    TowerLoader(const Tower &tower, const LoadOptions &options, DType stream)
        : tower_(tower), element_(options.element), residual_(stream), random_(options.random),
          seed_(options.seed) {}

    Status load(int32_t threads, TowerWeights *out) {
        ASSIGN_OR_RETURN(stream_, Stream::create());
        if (!random_) RETURN_IF_ERROR(sender_.start(threads, stream_));
        // Once to add up the sizes, once to load.
        RETURN_IF_ERROR(place(out));
        ASSIGN_OR_RETURN(out->memory, DeviceMemory::create(used_, "the tower's weights"));
        base_ = out->memory.data();
        RETURN_IF_CUDA(cudaMemsetAsync(base_, 0, static_cast<size_t>(used_), stream_));
        used_ = 0;
        RETURN_IF_ERROR(place(out));
        return check_cuda(cudaStreamSynchronize(stream_), "the tower's weights");
    }

  private:
    std::byte *take(int64_t bytes) {
        const int64_t at = used_;
        used_ += (bytes + kAlign - 1) / kAlign * kAlign;
        return base_ == nullptr ? nullptr : base_ + at;
    }
    bool reads() const { return base_ != nullptr && !random_; }

    Status place(TowerWeights *out) {
        const int64_t hidden = tower_.hidden;
        out->layers.assign(tower_.layers.size(), {});
        out->mergers.assign(static_cast<size_t>(tower_.parts()), {});
        RETURN_IF_ERROR(changed(tower_.patch.values, reads() ? folded_patch(tower_) : Numbers(),
                                hidden, tower_.values(), &out->patch));
        RETURN_IF_ERROR(vector(hidden, {{&tower_.patch.bias, 0}}, 0, &out->patch_bias));
        const int64_t positions = int64_t{tower_.side} * tower_.side * hidden;
        RETURN_IF_ERROR(vector(positions, {{&tower_.positions, 0}}, 0, &out->positions));
        RETURN_IF_ERROR(norm(tower_.before, hidden, &out->before));
        RETURN_IF_ERROR(norm(tower_.after, hidden, &out->after));
        for (size_t i = 0; i < tower_.layers.size(); ++i) {
            RETURN_IF_ERROR(layer(tower_.layers[i], &out->layers[i]));
        }
        RETURN_IF_ERROR(merger(tower_.merger, &out->mergers[0]));
        for (size_t i = 0; i < tower_.deepstack.size(); ++i) {
            RETURN_IF_ERROR(merger(tower_.deepstack[i].merger, &out->mergers[i + 1]));
        }
        return {};
    }

    Status layer(const Layer &from, TowerLayer *to) {
        const int64_t hidden = tower_.hidden;
        const Attention &a = *from.attention();
        const int64_t q = a.q_size();
        RETURN_IF_ERROR(norm(from.before_attention, hidden, &to->before_attention));
        RETURN_IF_ERROR(norm(from.before_feed_forward, hidden, &to->before_feed_forward));
        RETURN_IF_ERROR(matrix(
            3 * q, hidden, {{&a.q.values, 0}, {&a.k.values, q}, {&a.v.values, 2 * q}}, &to->qkv));
        RETURN_IF_ERROR(vector(2 * q, {{&a.q.bias, 0}, {&a.k.bias, q}}, 0, &to->qk_bias));
        RETURN_IF_ERROR(matrix(hidden, q, {{&a.o.values, 0}}, &to->o));
        if (a.o.bias || a.v.bias) {
            const Numbers numbers = reads() ? output_bias(a) : Numbers();
            const Tensor of_output = tensor_of(a.o.values.name, numbers, hidden, 1);
            RETURN_IF_ERROR(bias(of_output, hidden, residual_, &to->o));
        }
        return feed(*from.feed_forward(), residual_, &to->feed);
    }

    Status merger(const Merger &from, TowerMerger *to) {
        const int64_t width = merged_width(from, tower_);
        RETURN_IF_ERROR(norm(from.norm, tower_.hidden, &to->norm));
        RETURN_IF_ERROR(norm(from.merged_norm, width, &to->merged_norm));
        if (from.projection) {
            const Tensor &stored = from.projection.values;
            if (from.by_channel) {
                RETURN_IF_ERROR(changed(stored,
                                        reads() ? joined_projection(from, tower_) : Numbers(),
                                        stored.rows, stored.columns, &to->projection));
            } else {
                RETURN_IF_ERROR(
                    matrix(stored.rows, stored.columns, {{&stored, 0}}, &to->projection));
            }
            RETURN_IF_ERROR(
                vector(stored.rows, {{&from.projection.bias, 0}}, 0, &to->projection_bias));
        }
        return from.has_feed_forward() ? feed(from.feed_forward, DType::f32, &to->feed) : Status();
    }

    // type: of what `down` writes.
    Status feed(const FeedForward &from, DType type, TowerFeed *to) {
        to->gated = bool(from.gate);
        to->activation = from.activation;
        to->width = padded_tower_width(from.width);
        const int64_t rows = (to->gated ? 2 : 1) * to->width;
        const int64_t up = rows - to->width; // where it begins
        RETURN_IF_ERROR(matrix(rows, from.up.columns(),
                               {{&from.gate.values, 0}, {&from.up.values, up}}, &to->up));
        if (!to->gated && to->activation == Activation::gelu_tanh && from.up.bias &&
            element_ != DType::f32) {
            RETURN_IF_ERROR(bias(from.up.bias, rows, element_, &to->up));
            to->up.gelu = true;
        } else {
            RETURN_IF_ERROR(
                vector(rows, {{&from.gate.bias, 0}, {&from.up.bias, up}}, 0, &to->up_bias));
        }
        RETURN_IF_ERROR(matrix(from.down.rows(), to->width, {{&from.down.values, 0}}, &to->down));
        return from.down.bias ? bias(from.down.bias, from.down.rows(), type, &to->down) : Status();
    }

    // parts: tensors and their first rows; they may have fewer columns.
    Status matrix(int64_t rows, int64_t columns, const std::vector<MatrixPart> &parts,
                  Matrix *out) {
        const std::byte *to = nullptr;
        RETURN_IF_ERROR(placed(rows, columns, element_, parts, &to));
        *out = {to, rows, columns};
        return {};
    }

    // length: with padding.
    Status bias(const Tensor &from, int64_t length, DType type, Matrix *of) {
        const std::byte *to = nullptr;
        RETURN_IF_ERROR(placed(length, 1, type, {{&from, 0}}, &to));
        of->bias = to;
        return {};
    }

    Status placed(int64_t rows, int64_t columns, DType type, const std::vector<MatrixPart> &parts,
                  const std::byte **out) {
        const int64_t row_bytes = columns * dtype_bytes(type);
        std::byte *to = take(rows * row_bytes);
        *out = to;
        if (to == nullptr) return {};
        if (random_) {
            return check_cuda(launch_random(to, type, rows * columns, 0, 0.02F, ++seed_, stream_),
                              "random weights");
        }
        for (const auto &[tensor, first] : parts) {
            if (!*tensor) continue;
            RETURN_IF_ERROR(sender_.send(*tensor, to + first * row_bytes, type, columns, {}));
        }
        return {};
    }

    using Numbers = std::vector<float>;

    // Numbers that stand for a tensor's: [rows, columns], padded.
    Status changed(const Tensor &stored, const Numbers &numbers, int64_t rows, int64_t columns,
                   Matrix *out) {
        const Tensor tensor = tensor_of(stored.name, numbers, rows, columns);
        return matrix(rows, padded_tower_width(columns), {{&tensor, 0}}, out);
    }
    static Tensor tensor_of(const std::string &name, const Numbers &numbers, int64_t rows,
                            int64_t columns) {
        Tensor tensor;
        tensor.name = name;
        tensor.rows = rows;
        tensor.columns = columns;
        tensor.data = reinterpret_cast<const std::byte *>(numbers.data());
        return tensor;
    }

    Status norm(const Norm &from, int64_t length, DeviceNorm *to) {
        to->kind = from.kind;
        to->epsilon = from.epsilon;
        RETURN_IF_ERROR(vector(length, {{&from.bias, 0}}, 0, &to->bias));
        return vector(length, {{&from.weight, 0}}, 1, &to->weight, from.offset);
    }

    // Null where there are none of the parts. fresh: what a random one holds.
    Status vector(int64_t length, const std::vector<MatrixPart> &parts, float fresh,
                  const float **out, float offset = 0) {
        *out = nullptr;
        if (!has_any(parts)) return {};
        auto *to = reinterpret_cast<float *>(take(length * 4));
        *out = to;
        if (to == nullptr) return {};
        if (random_) {
            return check_cuda(launch_random(to, DType::f32, length, fresh, 0, 1, stream_),
                              "random weights");
        }
        Placing placing;
        placing.offset = offset;
        return sender_.send_vector(parts, to, placing);
    }

    const Tower &tower_;
    DType element_, residual_;
    bool random_;
    uint64_t seed_;
    Stream stream_;
    Sender sender_;
    std::byte *base_ = nullptr;
    int64_t used_ = 0;
};

} // namespace

Result<TowerWeights> load_tower_weights(const Tower &tower, const LoadOptions &options,
                                        DType stream) {
    TowerWeights weights;
    RETURN_IF_ERROR(TowerLoader(tower, options, stream).load(options.threads, &weights));
    return weights;
}

} // namespace batchllm::cuda
