#include "backend/kv_scales.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/thread_pool.h"

namespace batchllm {
namespace {

constexpr int most_exponent = 60; // keeps a key with such a scale, and the scale's inverse, finite

std::vector<float> numbers(const Tensor &tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.columns));
    if (tensor) read_rows(tensor, 0, tensor.rows, DType::f32, values.data());
    return values;
}

// The factors of a norm's result; ones if it has no weight.
std::vector<float> gains(const Norm &norm, int64_t length) {
    std::vector<float> weight = numbers(norm.weight);
    for (float &w : weight) w += norm.offset;
    weight.resize(static_cast<size_t>(length), 1.0F);
    return weight;
}

double at(const std::vector<float> &values, int64_t i) {
    return values.empty() ? 0 : static_cast<double>(values[static_cast<size_t>(i)]);
}

// For a head's rows [first, first + count) of a projection whose input is normed.
double size_of_projection(const Weight &weight, const Norm &norm, int64_t first, int64_t count) {
    const std::vector<float> gain = gains(norm, weight.columns());
    const std::vector<float> norm_bias = numbers(norm.bias), bias = numbers(weight.bias);
    // Reads all rows at once: formats that store columns one after another are slow to read row by
    // row.
    std::vector<float> rows(static_cast<size_t>(count * weight.columns()));
    read_rows(weight.values, first, count, DType::f32, rows.data());
    double squares = 0, largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float *const row = rows.data() + i * weight.columns();
        double constant = at(bias, first + i);
        for (int64_t j = 0; j < weight.columns(); ++j) {
            const double w = static_cast<double>(row[j]), x = w * at(gain, j);
            squares += x * x;
            constant += w * at(norm_bias, j);
        }
        largest = std::max(largest, std::fabs(constant));
    }
    return std::sqrt(squares / static_cast<double>(count)) + largest;
}

// For the elements [first, first + count) of a norm's output.
double size_of_normed(const Norm &norm, int64_t first, int64_t count) {
    const std::vector<float> gain = gains(norm, first + count), bias = numbers(norm.bias);
    double squares = 0, largest = 0;
    for (int64_t i = first; i < first + count; ++i) {
        squares += at(gain, i) * at(gain, i);
        largest = std::max(largest, std::fabs(at(bias, i)));
    }
    return std::sqrt(squares / static_cast<double>(count)) + largest;
}

float scale_for(double size) {
    if (!(size > 0) || !std::isfinite(size)) return 1;
    return std::ldexp(1.0F, std::clamp(std::ilogb(size), -most_exponent, most_exponent));
}

} // namespace

std::vector<KvScales> kv_scales(const Model &model, int32_t threads) {
    std::vector<KvScales> all(model.layers.size());
    struct Task {
        size_t layer;
        bool value;
        int32_t head;
    };
    std::vector<Task> tasks;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Attention *a = model.layers[i].attention();
        if (a == nullptr) continue;
        if (a->latent) { // a key, most of which is its value too, has one
            const Latent &latent = a->latent;
            const double of_turned = size_of_projection(
                latent.down, model.layers[i].before_attention, latent.rank, latent.turned);
            const float scale =
                scale_for(std::max(size_of_normed(latent.norm, 0, latent.rank), of_turned));
            all[i] = {{scale}, {scale}};
        }
        if (!a->k) continue;
        all[i] = {a->k_scales, a->v_scales};
        for (const bool value : {false, true}) {
            std::vector<float> &scales = value ? all[i].v : all[i].k;
            if (!scales.empty()) continue;
            scales.resize(static_cast<size_t>(a->kv_heads));
            for (int32_t head = 0; head < a->kv_heads; ++head) tasks.push_back({i, value, head});
        }
    }
    ThreadPool pool(threads);
    pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t number, int32_t) {
        const Task &task = tasks[static_cast<size_t>(number)];
        const Layer &layer = model.layers[task.layer];
        const Attention &a = *layer.attention();
        const Norm &norm = task.value ? a.v_norm : a.k_norm;
        const int64_t first = int64_t{task.head} * a.head_dim;
        const double size = norm ? size_of_normed(norm, a.norm_whole ? first : 0, a.head_dim)
                                 : size_of_projection(task.value ? a.v : a.k,
                                                      layer.before_attention, first, a.head_dim);
        std::vector<float> &scales = task.value ? all[task.layer].v : all[task.layer].k;
        scales[static_cast<size_t>(task.head)] = scale_for(size);
    });
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Attention *a = model.layers[i].attention();
        if (a != nullptr && a->kv_layer >= 0) all[i] = all[static_cast<size_t>(a->kv_layer)];
    }
    return all;
}

} // namespace batchllm
