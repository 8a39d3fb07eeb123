// The operations between the matrix products, written once for any vector type and element type.
// Included after kernel_attention.h, under the same rules.

// Loads the last n < 16 floats, filling with zeros; and the reverse.
KERNEL_TARGET inline Vector load_some(const float *x, int32_t n) {
    alignas(64) float lanes[kLanes] = {};
    for (int32_t i = 0; i < n; ++i) lanes[i] = x[i];
    return Simd::load(lanes);
}

KERNEL_TARGET inline void store_some(float *out, Vector x, int32_t n) {
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, x);
    for (int32_t i = 0; i < n; ++i) out[i] = lanes[i];
}

KERNEL_TARGET inline void store_some_elements(Type *out, Vector x, int32_t n) {
    alignas(64) Type lanes[kLanes];
    Element::store(lanes, x);
    for (int32_t i = 0; i < n; ++i) out[i] = lanes[i];
}

KERNEL_TARGET inline float inverse_root_mean_square(const float *x, float epsilon, int32_t n) {
    Vector total = Simd::zero();
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vector v = Simd::load(x + i);
        total = Simd::multiply_add(v, v, total);
    }
    if (i < n) {
        const Vector v = load_some(x + i, n - i);
        total = Simd::multiply_add(v, v, total);
    }
    return 1.0f / __builtin_sqrtf(Simd::reduce_add(total) / static_cast<float>(n) + epsilon);
}

KERNEL_TARGET void rms_norm(const float *x, const float *weight, float epsilon, int32_t n,
                            void *out) {
    const Vector scale = Simd::set(inverse_root_mean_square(x, epsilon, n));
    Type *elements = static_cast<Type *>(out);
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Element::store(elements + i, Simd::multiply(Simd::multiply(Simd::load(x + i), scale),
                                                    Simd::load(weight + i)));
    }
    if (i < n) {
        store_some_elements(elements + i,
                            Simd::multiply(Simd::multiply(load_some(x + i, n - i), scale),
                                           load_some(weight + i, n - i)),
                            n - i);
    }
}

KERNEL_TARGET void rms_norm_head(float *x, const float *weight, float epsilon, int32_t n) {
    const Vector scale = Simd::set(inverse_root_mean_square(x, epsilon, n));
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Simd::store(x + i, Simd::multiply(Simd::multiply(Simd::load(x + i), scale),
                                          Simd::load(weight + i)));
    }
    if (i < n) {
        store_some(x + i,
                   Simd::multiply(Simd::multiply(load_some(x + i, n - i), scale),
                                  load_some(weight + i, n - i)),
                   n - i);
    }
}

KERNEL_TARGET inline float mean_of(const float *x, int32_t n) {
    Vector total = Simd::zero();
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) total = Simd::add(total, Simd::load(x + i));
    if (i < n) total = Simd::add(total, load_some(x + i, n - i));
    return Simd::reduce_add(total) / static_cast<float>(n);
}

KERNEL_TARGET inline float inverse_deviation(const float *x, float mean, float epsilon, int32_t n) {
    const Vector middle = Simd::set(mean);
    Vector total = Simd::zero();
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vector v = Simd::subtract(Simd::load(x + i), middle);
        total = Simd::multiply_add(v, v, total);
    }
    float sum = Simd::reduce_add(total);
    for (; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
    return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + epsilon);
}

KERNEL_TARGET void layer_norm_head(float *x, const float *weight, const float *bias, float epsilon,
                                   int32_t n) {
    const float mean = mean_of(x, n);
    const float scale = inverse_deviation(x, mean, epsilon, n);
    const Vector middle = Simd::set(mean);
    const Vector factor = Simd::set(scale);
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vector v = Simd::multiply(Simd::subtract(Simd::load(x + i), middle), factor);
        Simd::store(x + i, Simd::multiply_add(v, Simd::load(weight + i), Simd::load(bias + i)));
    }
    for (; i < n; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

KERNEL_TARGET void layer_norm(const float *x, const float *weight, const float *bias, float epsilon,
                              int32_t n, void *out) {
    const float mean = mean_of(x, n);
    const Vector middle = Simd::set(mean);
    const Vector factor = Simd::set(inverse_deviation(x, mean, epsilon, n));
    Type *elements = static_cast<Type *>(out);
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        if (left >= kLanes) {
            const Vector v = Simd::multiply(Simd::subtract(Simd::load(x + i), middle), factor);
            Element::store(elements + i,
                           Simd::multiply_add(v, Simd::load(weight + i), Simd::load(bias + i)));
        } else {
            const Vector v = Simd::multiply(Simd::subtract(load_some(x + i, left), middle), factor);
            store_some_elements(
                elements + i,
                Simd::multiply_add(v, load_some(weight + i, left), load_some(bias + i, left)),
                left);
        }
    }
}

KERNEL_TARGET void rope_pairs(float *x, const float *cosine, const float *sine, int32_t half) {
    for (int32_t i = 0; i < half; ++i) {
        const float a = x[2 * i];
        const float b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

KERNEL_TARGET void rope(float *x, const float *cosine, const float *sine, int32_t half) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Vector a = Simd::load(x + i);
        const Vector b = Simd::load(x + half + i);
        const Vector c = Simd::load(cosine + i);
        const Vector s = Simd::load(sine + i);
        Simd::store(x + i, Simd::subtract(Simd::multiply(a, c), Simd::multiply(b, s)));
        Simd::store(x + half + i, Simd::add(Simd::multiply(b, c), Simd::multiply(a, s)));
    }
    for (; i < half; ++i) {
        const float a = x[i];
        const float b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

KERNEL_TARGET void store_elements(const float *x, float scale, int32_t n, int32_t padded,
                                  void *out) {
    const Vector factor = Simd::set(scale);
    Type *elements = static_cast<Type *>(out);
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Element::store(elements + i, Simd::multiply(Simd::load(x + i), factor));
    }
    for (; i < padded; i += kLanes) {
        const Vector last = i < n ? load_some(x + i, n - i) : Simd::zero();
        store_some_elements(elements + i, Simd::multiply(last, factor),
                            padded - i < kLanes ? padded - i : kLanes);
    }
}

KERNEL_TARGET void store_key(const float *key, int32_t n, int32_t padded, int32_t slot,
                             void *group) {
    Type *keys = static_cast<Type *>(group) + slot * kPack;
    for (int32_t d = 0; d < padded; d += kLanes) {
        alignas(64) Type lanes[kLanes];
        Element::store(lanes, d + kLanes <= n ? Simd::load(key + d)
                              : d < n         ? load_some(key + d, n - d)
                                              : Simd::zero());
        for (int32_t i = 0; i < kLanes; i += kPack) {
            for (int32_t p = 0; p < kPack; ++p) keys[(d + i) * kGroupTokens + p] = lanes[i + p];
        }
    }
}

KERNEL_TARGET void store_value(const float *value, int32_t n, int32_t padded, int32_t slot,
                               void *group) {
    const int32_t place = Element::kLaterFirst ? kPack - 1 - slot % kPack : slot % kPack;
    Type *values = static_cast<Type *>(group) + int64_t{slot / kPack} * kPack * padded + place;
    for (int32_t d = 0; d < padded; d += kLanes) {
        alignas(64) Type lanes[kLanes];
        Element::store(lanes, d + kLanes <= n ? Simd::load(value + d)
                              : d < n         ? load_some(value + d, n - d)
                                              : Simd::zero());
        for (int32_t i = 0; i < kLanes; ++i) values[(d + i) * kPack] = lanes[i];
    }
}

KERNEL_TARGET void copy_bias(const float *x, const float *bias, int32_t n, float *out) {
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vector v = Simd::load(x + i);
        Simd::store(out + i, bias == nullptr ? v : Simd::add(v, Simd::load(bias + i)));
    }
    for (; i < n; ++i) out[i] = bias == nullptr ? x[i] : x[i] + bias[i];
}

KERNEL_TARGET void add_bias(const float *x, const float *bias, int32_t n, float *out) {
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Vector v = Simd::load(x + i);
        if (bias != nullptr) v = Simd::add(v, Simd::load(bias + i));
        Simd::store(out + i, Simd::add(Simd::load(out + i), v));
    }
    for (; i < n; ++i) out[i] += bias == nullptr ? x[i] : x[i] + bias[i];
}

KERNEL_TARGET void add_scaled(const float *x, float scale, int32_t n, float *out) {
    const Vector factor = Simd::set(scale);
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Simd::store(out + i, Simd::multiply_add(Simd::load(x + i), factor, Simd::load(out + i)));
    }
    for (; i < n; ++i) out[i] += x[i] * scale;
}

// Several rows at a time share the loads of x. A row's sum does not depend on how many there are.
template <int32_t rows_at_once> KERNEL_TARGET inline void
multiply_some_rows(const float *x, const float *rows, int32_t n, float *out) {
    Vector sums[rows_at_once];
    for (Vector &sum : sums) sum = Simd::zero();
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vector v = Simd::load(x + i);
        for (int32_t r = 0; r < rows_at_once; ++r) {
            sums[r] = Simd::multiply_add(v, Simd::load(rows + int64_t{r} * n + i), sums[r]);
        }
    }
    for (int32_t r = 0; r < rows_at_once; ++r) {
        float sum = Simd::reduce_add(sums[r]);
        for (int32_t j = i; j < n; ++j) sum += x[j] * rows[int64_t{r} * n + j];
        out[r] = sum;
    }
}

KERNEL_TARGET void multiply_rows(const float *x, const float *rows, int32_t n, int32_t count,
                                 float *out) {
    constexpr int32_t at_once = 4;
    int32_t r = 0;
    for (; r + at_once <= count; r += at_once) {
        multiply_some_rows<at_once>(x, rows + int64_t{r} * n, n, out + r);
    }
    for (; r < count; ++r) multiply_some_rows<1>(x, rows + int64_t{r} * n, n, out + r);
}

KERNEL_TARGET void add_rows(const float *x, const float *rows, int64_t stride, int32_t n,
                            int32_t count, float *out) {
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        Vector sum = Simd::zero();
        for (int32_t r = 0; r < count; ++r) {
            const float *row = rows + r * stride + i;
            sum = Simd::multiply_add(Simd::set(x[r]),
                                     left >= kLanes ? Simd::load(row) : load_some(row, left), sum);
        }
        if (left >= kLanes) {
            Simd::store(out + i, Simd::add(Simd::load(out + i), sum));
        } else {
            store_some(out + i, Simd::add(load_some(out + i, left), sum), left);
        }
    }
}

KERNEL_TARGET void cap(float *x, float scale, float softcap, int32_t n) {
    const Vector factor = Simd::set(scale);
    int32_t i = 0;
    for (; i < n; i += kLanes) {
        const bool whole = i + kLanes <= n;
        Vector v = Simd::multiply(whole ? Simd::load(x + i) : load_some(x + i, n - i), factor);
        if (softcap != 0) v = capped(v, softcap);
        if (whole) {
            Simd::store(x + i, v);
        } else {
            store_some(x + i, v, n - i);
        }
    }
}

// Functors from a vector to activation * up.
struct Silu {
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float * = nullptr) {
        // 1 / (1 + e^-gate). If e^-gate overflows to inf for very negative gates, the quotient is
        // 0.
        const Vector power = Simd::exp2(Simd::multiply(gate, Simd::set(-1.44269504088896341f)));
        return Simd::multiply(Simd::divide(gate, Simd::add(power, Simd::set(1.0f))), up);
    }
};

struct GeluTanh {
    // x / 2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float * = nullptr) {
        const Vector square = Simd::multiply(gate, gate);
        const Vector inner =
            Simd::multiply(gate, Simd::multiply_add(square, Simd::set(0.044715f), Simd::set(1.0f)));
        // -2 sqrt(2 / pi) log2(e)
        const Vector power = Simd::exp2(Simd::multiply(inner, Simd::set(-2.30220820f)));
        return Simd::multiply(Simd::divide(gate, Simd::add(power, Simd::set(1.0f))), up);
    }
};

struct Gelu {
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float * = nullptr) {
        float lanes[kLanes];
        Simd::store(lanes, gate);
        for (float &x : lanes) x = 0.5f * x * (1.0f + __builtin_erff(x * 0.70710678118654752f));
        return Simd::multiply(Simd::load(lanes), up);
    }
};

// g * sigmoid(1.702 g) * (u + 1), where g = min(gate, 7) and u = up clamped to [-7, 7].
struct ClampedSwiglu {
    KERNEL_TARGET static Vector least(Vector a, float most) {
        const Vector zero = Simd::zero();
        return Simd::subtract(zero, Simd::maximum(Simd::subtract(zero, a), Simd::set(-most)));
    }
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float * = nullptr) {
        const Vector g = least(gate, 7.0f);
        const Vector u = Simd::maximum(least(up, 7.0f), Simd::set(-7.0f));
        // 1.702 log2(e)
        const Vector power = Simd::exp2(Simd::multiply(g, Simd::set(-2.45546696f)));
        return Simd::multiply(Simd::divide(g, Simd::add(power, Simd::set(1.0f))),
                              Simd::add(u, Simd::set(1.0f)));
    }
};

struct ReluSquared {
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float * = nullptr) {
        const Vector g = Simd::maximum(gate, Simd::zero());
        return Simd::multiply(Simd::multiply(g, g), up);
    }
};

struct Xielu {
    KERNEL_TARGET static Vector times(Vector gate, Vector up, const float *curve) {
        const Vector zero = Simd::zero();
        const Vector p = Simd::maximum(gate, zero);
        // In size; the maximum of a NaN and 0 may be either.
        const Vector m = Simd::maximum(Simd::subtract(zero, gate), zero);
        const Vector power = Simd::exp2(Simd::multiply(m, Simd::set(-1.44269504088896341f)));
        const Vector bend = Simd::add(Simd::subtract(power, Simd::set(1.0f)), m);
        Vector y = Simd::multiply(gate, Simd::set(0.5f));
        y = Simd::multiply_add(Simd::set(curve[1]), bend, y);
        y = Simd::multiply_add(Simd::set(curve[0]), Simd::multiply(p, p), y);
        return Simd::multiply(y, up);
    }
};

template <typename Function>
KERNEL_TARGET void activate(const float *gate, const float *up, const float *gate_bias,
                            const float *up_bias, const float *curve, int32_t n, void *out) {
    Type *elements = static_cast<Type *>(out);
    int32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Vector g = Simd::load(gate + i);
        Vector u = up != nullptr ? Simd::load(up + i) : Simd::set(1.0f);
        if (gate_bias != nullptr) g = Simd::add(g, Simd::load(gate_bias + i));
        if (up_bias != nullptr) u = Simd::add(u, Simd::load(up_bias + i));
        Element::store(elements + i, Function::times(g, u, curve));
    }
    if (i < n) {
        Vector g = load_some(gate + i, n - i);
        Vector u = up != nullptr ? load_some(up + i, n - i) : Simd::set(1.0f);
        if (gate_bias != nullptr) g = Simd::add(g, load_some(gate_bias + i, n - i));
        if (up_bias != nullptr) u = Simd::add(u, load_some(up_bias + i, n - i));
        store_some_elements(elements + i, Function::times(g, u, curve), n - i);
    }
}

#include "backend/cpu/kernel_delta.h"

#include "backend/cpu/kernel_convolution.h"

constexpr Kernels kKernels = {
    KERNEL_NAME,
    Element::kType,
    attention,
    attention_in_order,
    merge,
    rms_norm,
    rms_norm_head,
    layer_norm,
    layer_norm_head,
    rope,
    rope_pairs,
    store_elements,
    store_key,
    store_value,
    copy_bias,
    add_bias,
    add_scaled,
    multiply_rows,
    add_rows,
    cap,
    {activate<Silu>, activate<Gelu>, activate<GeluTanh>, activate<ClampedSwiglu>,
     activate<ReluSquared>, activate<Xielu>},
    convolve,
    scale_gated<Sigmoid>,
    scale_gated<Silu>,
    delta_recurrent,
    delta_chunked,
    multiply_biased,
    convolve_gated,
};
