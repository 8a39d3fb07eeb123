// Two pinned buffers: while the device copies and converts from one, host threads read the mapped
// file into the other.
#include "step/weights.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "elementwise/elementwise.h"
#include "experts/grouped.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kStaging = int64_t{64} << 20;
constexpr int64_t kReadBytes = int64_t{2} << 20; // a host thread reads so much at once
constexpr int64_t kAlign = 256;

int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Where a tensor's rows and columns go, and what becomes of its elements: ConvertArguments.
struct Placing {
    int64_t row_group = 1, row_group_out = 1, column_group = 1, column_group_out = 1;
    float scale = 1, offset = 0;
    bool swizzled = false;
};

class Loader {
  public:
    Loader(const Model &model, DType element, bool random, uint64_t seed)
        : model_(model), element_(element), random_(random), seed_(seed) {}

    Status load(int32_t threads, DeviceWeights *out) {
        ASSIGN_OR_RETURN(stream_, Stream::create());
        if (!random_) {
            pool_ = std::make_unique<ThreadPool>(threads);
            for (int i = 0; i < 2; ++i) {
                ASSIGN_OR_RETURN(pinned_[i], PinnedMemory::create(kStaging, "loading weights"));
                ASSIGN_OR_RETURN(raw_[i], DeviceMemory::create(kStaging, "loading weights"));
                ASSIGN_OR_RETURN(free_[i], Event::create(false));
            }
        }
        // Once to add up the sizes, once to load.
        RETURN_IF_ERROR(place(out));
        ASSIGN_OR_RETURN(out->memory, DeviceMemory::create(used_, "the weights"));
        RETURN_IF_CUDA(cudaMemsetAsync(out->memory.data(), 0, static_cast<size_t>(used_), stream_));
        base_ = out->memory.data();
        used_ = 0;
        out->layers.clear();
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
        const int64_t head_rows = (vocabulary + 15) / 16 * 16;
        Matrix table;
        RETURN_IF_ERROR(matrix(model_.tied ? head_rows : vocabulary, hidden,
                               {{&model_.embedding, 0}}, {}, &table));
        out->embedding = table.data;
        out->head = table;
        if (!model_.head) out->head = {};
        if (model_.head && !model_.tied) {
            RETURN_IF_ERROR(matrix(head_rows, hidden, {{&model_.head.values, 0}}, {}, &out->head));
        }
        Placing scaled;
        scaled.scale = model_.logits_scale;
        RETURN_IF_ERROR(vector(head_rows, {{&model_.head.bias, 0}}, scaled, 0, &out->head_bias));
        RETURN_IF_ERROR(norm(model_.final_norm, hidden, {}, &out->final_norm));
        RETURN_IF_ERROR(layer_inputs(out));
        for (const Layer &from : model_.layers) {
            DeviceLayer to;
            RETURN_IF_ERROR(norm(from.before_attention, hidden, {}, &to.before_attention));
            RETURN_IF_ERROR(norm(from.after_attention, hidden, {}, &to.after_attention));
            RETURN_IF_ERROR(norm(from.before_feed_forward, hidden, {}, &to.before_feed_forward));
            RETURN_IF_ERROR(norm(from.after_feed_forward, hidden, {}, &to.after_feed_forward));
            RETURN_IF_ERROR(attention(from, &to));
            RETURN_IF_ERROR(feed_forward(from, &to));
            RETURN_IF_ERROR(experts(from, &to.experts));
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
        RETURN_IF_ERROR(matrix(model_.vocabulary, all, {{&from.embedding, 0}}, {}, &table));
        out->input_embedding = table.data;
        RETURN_IF_ERROR(
            matrix(all, model_.hidden, {{&from.projection.values, 0}}, {}, &out->input_projection));
        return norm(from.norm, from.width, {}, &out->input_norm);
    }

    Status input_block(const Layer &from, DeviceLayer *to) {
        RETURN_IF_ERROR(vector(1, {{&from.scalar, 0}}, {}, 1, &to->scalar));
        if (!model_.layer_inputs) return {};
        const int64_t hidden = model_.hidden, width = model_.layer_inputs.width;
        RETURN_IF_ERROR(norm(from.after_input, hidden, {}, &to->after_input));
        RETURN_IF_ERROR(matrix(width, hidden, {{&from.input.gate.values, 0}}, {}, &to->input_gate));
        return matrix(hidden, width, {{&from.input.down.values, 0}}, {}, &to->input_down);
    }

    // Of a bias at the end of a sublayer. Where Forward::finish adds it in one pass with what normalises the
    // sublayer's result or multiplies the layer's, that pass scales it too.
    static Placing residual_bias(const Layer &layer, bool scaled_later) {
        Placing placing;
        placing.scale = scaled_later ? 1 : layer.residual_scale;
        return placing;
    }

    Status attention(const Layer &layer, DeviceLayer *to) {
        const Attention &from = layer.attention;
        const int64_t hidden = model_.hidden, padded = padded_head_dim(from.head_dim);
        const Placing heads_as_rows{from.head_dim, padded, 1, 1};
        const Placing heads_as_columns{1, 1, from.head_dim, padded};
        const int64_t q_rows = from.heads * padded;
        const int64_t kv_rows = from.kv_layer < 0 ? from.kv_heads * padded : 0;
        const int64_t qkv_rows = q_rows + 2 * kv_rows;
        const bool whole = from.norm_whole;
        RETURN_IF_ERROR(norm(from.q_norm, whole ? q_rows : padded, heads_as_rows, &to->q_norm));
        RETURN_IF_ERROR(norm(from.k_norm, whole ? kv_rows : padded, heads_as_rows, &to->k_norm));
        RETURN_IF_ERROR(norm(from.v_norm, padded, heads_as_rows, &to->v_norm));
        RETURN_IF_ERROR(vector(
            qkv_rows, {{&from.q.bias, 0}, {&from.k.bias, q_rows}, {&from.v.bias, q_rows + kv_rows}},
            heads_as_rows, 0, &to->qkv_bias));
        RETURN_IF_ERROR(vector(from.heads, {{&from.sinks, 0}}, {}, 0, &to->sinks));
        RETURN_IF_ERROR(vector(hidden, {{&from.o.bias, 0}},
                               residual_bias(layer, bool(layer.after_attention)), 0, &to->o_bias));
        RETURN_IF_ERROR(matrix(
            qkv_rows, hidden,
            {{&from.q.values, 0}, {&from.k.values, q_rows}, {&from.v.values, q_rows + kv_rows}},
            heads_as_rows, &to->qkv));
        return matrix(hidden, q_rows, {{&from.o.values, 0}}, heads_as_columns, &to->o);
    }

    Status feed_forward(const Layer &layer, DeviceLayer *to) {
        const FeedForward &from = layer.feed_forward;
        const int64_t hidden = model_.hidden, width = from.width;
        const int64_t up = from.gate ? width : 0, rows = up + width; // where it begins, and all
        RETURN_IF_ERROR(
            vector(rows, {{&from.gate.bias, 0}, {&from.up.bias, up}}, {}, 0, &to->gate_up_bias));
        const bool ends_layer = !model_.layer_inputs;
        const bool scaled_later =
            bool(layer.after_feed_forward) || bool(layer.experts) || (layer.scalar && ends_layer);
        RETURN_IF_ERROR(vector(hidden, {{&from.down.bias, 0}}, residual_bias(layer, scaled_later),
                               0, &to->down_bias));
        RETURN_IF_ERROR(matrix(rows, hidden, {{&from.gate.values, 0}, {&from.up.values, up}}, {},
                               &to->gate_up));
        return matrix(hidden, width, {{&from.down.values, 0}}, {}, &to->down);
    }

    Status experts(const Layer &layer, DeviceExperts *to) {
        if (!layer.experts) return {};
        const Experts &from = layer.experts;
        const auto count = static_cast<int64_t>(from.each.size());
        const int64_t hidden = model_.hidden, width = from.each[0].width;
        const Router &router = from.router;
        RETURN_IF_ERROR(matrix((count + (layer.shared_gate ? 1 : 0) + 15) / 16 * 16, hidden,
                               {{&router.weight.values, 0}, {&layer.shared_gate.values, count}}, {},
                               &to->router));
        RETURN_IF_ERROR(vector(count, {{&router.weight.bias, 0}}, {}, 0, &to->router_bias));
        RETURN_IF_ERROR(vector(count, {{&router.correction, 0}}, {}, 0, &to->correction));
        std::vector<Stacked> gate_up, down;
        for (const FeedForward &expert : from.each) {
            gate_up.push_back({&expert.gate.values, &expert.up.values});
            down.push_back({&expert.down.values, nullptr});
        }
        RETURN_IF_ERROR(stack(gate_up, 2 * width, hidden, &to->gate_up));
        return stack(down, hidden, width, &to->down);
    }

    // Matrices of one shape one after another, each of one tensor or of two whose rows take turns.
    struct Stacked {
        const Tensor *first, *second;
    };
    Status stack(const std::vector<Stacked> &parts, int64_t rows, int64_t columns,
                 const void **out) {
        const int64_t padded = padded_columns(columns, element_);
        const int64_t bytes = rows * padded * dtype_bytes(element_);
        const auto count = static_cast<int64_t>(parts.size());
        auto *to = static_cast<std::byte *>(take(count * bytes));
        *out = to;
        if (base_ == nullptr) return {};
        if (random_) {
            return check_cuda(
                launch_random(to, element_, count * rows * padded, 0, 0.02f, ++seed_, stream_),
                "random weights");
        }
        const bool panels = element_ != DType::f32;
        const int64_t stride = panels ? kPanel : columns;
        for (const Stacked &part : parts) {
            Placing placing;
            if (panels) {
                placing.column_group = kPanel;
                placing.column_group_out = rows * kPanel;
                placing.swizzled = true;
            }
            if (part.second != nullptr) {
                placing.row_group = kGateRows;
                placing.row_group_out = 2 * kGateRows;
                RETURN_IF_ERROR(send(*part.second, to + kGateRows * stride * dtype_bytes(element_),
                                     element_, stride, placing));
            }
            RETURN_IF_ERROR(send(*part.first, to, element_, stride, placing));
            to += bytes;
        }
        return {};
    }

    Status norm(const Norm &from, int64_t length, Placing placing, DeviceNorm *to) {
        to->kind = from.kind;
        to->epsilon = from.epsilon;
        RETURN_IF_ERROR(vector(length, {{&from.bias, 0}}, placing, 0, &to->bias));
        placing.offset = from.offset;
        return vector(length, {{&from.weight, 0}}, placing, 1, &to->weight);
    }

    using Part = std::pair<const Tensor *, int64_t>; // and its first row in the whole

    Status matrix(int64_t rows, int64_t columns, std::initializer_list<Part> parts,
                  const Placing &placing, Matrix *out) {
        const int64_t row_bytes = columns * dtype_bytes(element_);
        auto *to = static_cast<std::byte *>(take(rows * row_bytes));
        *out = {to, rows, columns};
        if (base_ == nullptr) return {};
        for (const auto &[tensor, first] : parts) {
            if (random_ || !*tensor) continue;
            RETURN_IF_ERROR(send(*tensor, to + first * row_bytes, element_, columns, placing));
        }
        if (random_) {
            // Padding is random too: a model made up for timing has heads without any.
            return check_cuda(
                launch_random(to, element_, rows * columns, 0, 0.02f, ++seed_, stream_),
                "random weights");
        }
        return {};
    }

    // Null when the model has none of the parts. fresh: what a random one holds.
    Status vector(int64_t length, std::initializer_list<Part> parts, const Placing &placing,
                  float fresh, const float **out) {
        *out = nullptr;
        const bool some = std::any_of(parts.begin(), parts.end(),
                                      [](const Part &part) { return bool(*part.first); });
        if (!some) return {};
        auto *to = static_cast<float *>(take(length * 4));
        *out = to;
        if (base_ == nullptr) return {};
        if (random_) {
            return check_cuda(launch_random(to, DType::f32, length, fresh, 0.0f, 1, stream_),
                              "random weights");
        }
        for (const auto &[tensor, first] : parts) {
            if (!*tensor) continue;
            Tensor column = *tensor;
            column.rows = tensor->rows * tensor->columns;
            column.columns = 1;
            RETURN_IF_ERROR(
                send(column, reinterpret_cast<std::byte *>(to + first), DType::f32, 1, placing));
        }
        return {};
    }

    // Host threads fill the staging memory: with bytes as they are in the file, or with quantised elements
    // times their scales, in f32.
    Status send(const Tensor &tensor, std::byte *to, DType type, int64_t stride,
                const Placing &placing) {
        const DType sent = tensor.dtype == DType::e4m3 ? DType::f32 : tensor.dtype;
        const int64_t row_bytes = tensor.columns * dtype_bytes(sent);
        if (row_bytes > kStaging) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda: a weight's row of %lld bytes",
                         static_cast<long long>(row_bytes));
        }
        const int64_t rows_at_once = kStaging / row_bytes;
        for (int64_t row = 0; row < tensor.rows; row += rows_at_once) {
            const int64_t rows = std::min(rows_at_once, tensor.rows - row);
            const int64_t bytes = rows * row_bytes;
            const int side = turn_;
            turn_ ^= 1;
            RETURN_IF_CUDA(cudaEventSynchronize(free_[side]));
            std::byte *pinned = pinned_[side].data();
            if (sent == tensor.dtype) {
                read_bytes(tensor.data + row * row_bytes, bytes, pinned);
            } else {
                read_quantized(tensor, row, rows, pinned);
            }
            RETURN_IF_CUDA(cudaMemcpyAsync(raw_[side].data(), pinned, static_cast<size_t>(bytes),
                                           cudaMemcpyHostToDevice, stream_));
            const ConvertArguments convert{raw_[side].data(),
                                           sent,
                                           to,
                                           type,
                                           row,
                                           rows,
                                           tensor.columns,
                                           stride,
                                           placing.row_group,
                                           placing.row_group_out,
                                           placing.column_group,
                                           placing.column_group_out,
                                           placing.scale,
                                           placing.offset,
                                           placing.swizzled};
            RETURN_IF_CUDA(launch_convert(convert, stream_));
            RETURN_IF_CUDA(cudaEventRecord(free_[side], stream_));
        }
        return {};
    }

    void read_bytes(const std::byte *from, int64_t bytes, std::byte *pinned) {
        pool_->parallel_for((bytes + kReadBytes - 1) / kReadBytes, [&](int64_t i, int32_t) {
            const int64_t begin = i * kReadBytes;
            std::memcpy(pinned + begin, from + begin,
                        static_cast<size_t>(std::min(kReadBytes, bytes - begin)));
        });
    }

    void read_quantized(const Tensor &tensor, int64_t row, int64_t rows, std::byte *pinned) {
        const int64_t row_bytes = tensor.columns * dtype_bytes(DType::f32);
        const int64_t at_once = std::max<int64_t>(1, kReadBytes / row_bytes);
        pool_->parallel_for((rows + at_once - 1) / at_once, [&](int64_t i, int32_t) {
            const int64_t begin = i * at_once;
            read_rows(tensor, row + begin, std::min(at_once, rows - begin), DType::f32,
                      pinned + begin * row_bytes);
        });
    }

    const Model &model_;
    DType element_;
    bool random_;
    uint64_t seed_;
    Stream stream_;
    std::unique_ptr<ThreadPool> pool_;
    PinnedMemory pinned_[2];
    DeviceMemory raw_[2];
    Event free_[2];
    int turn_ = 0;
    std::byte *base_ = nullptr;
    int64_t used_ = 0;
};

} // namespace

int32_t padded_head_dim(int32_t head_dim) {
    return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 512;
}

Result<DeviceWeights> load_weights(const Model &model, DType element, bool random, uint64_t seed,
                                   int32_t threads) {
    DeviceWeights weights;
    RETURN_IF_ERROR(Loader(model, element, random, seed).load(threads, &weights));
    return weights;
}

} // namespace batchllm::cuda
