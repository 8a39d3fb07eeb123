// The part of short convolutions between their products (ShortConvolution in model/model.h),
// written once for any vector type and element type. Included by kernel_elementwise.h, under its
// rules.

// out = (a + a_bias) * (b + b_bias); biases may be null.
KERNEL_TARGET void multiply_biased(const float *a, const float *a_bias, const float *b,
                                   const float *b_bias, int32_t n, float *out) {
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        const bool whole = left >= kLanes;
        Vector x = whole ? Simd::load(a + i) : load_some(a + i, left);
        Vector y = whole ? Simd::load(b + i) : load_some(b + i, left);
        if (a_bias != nullptr) {
            x = Simd::add(x, whole ? Simd::load(a_bias + i) : load_some(a_bias + i, left));
        }
        if (b_bias != nullptr) {
            y = Simd::add(y, whole ? Simd::load(b_bias + i) : load_some(b_bias + i, left));
        }
        if (whole) {
            Simd::store(out + i, Simd::multiply(x, y));
        } else {
            store_some(out + i, Simd::multiply(x, y), left);
        }
    }
}

// out[i] = element of gate[i] * (bias[i] + sum over w of inputs[w][i] * weight[w][i]); bias may be
// null.
KERNEL_TARGET void convolve_gated(const float *const *inputs, const float *weight,
                                  const float *bias, const float *gate, int32_t width, int32_t n,
                                  void *out) {
    Type *elements = static_cast<Type *>(out);
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        const bool whole = left >= kLanes;
        Vector sum = bias == nullptr ? Simd::zero()
                     : whole         ? Simd::load(bias + i)
                                     : load_some(bias + i, left);
        for (int32_t w = 0; w < width; ++w) {
            const float *x = inputs[w] + i;
            const float *factor = weight + int64_t{w} * n + i;
            sum = whole ? Simd::multiply_add(Simd::load(x), Simd::load(factor), sum)
                        : Simd::multiply_add(load_some(x, left), load_some(factor, left), sum);
        }
        if (whole) {
            Element::store(elements + i, Simd::multiply(sum, Simd::load(gate + i)));
        } else {
            store_some_elements(elements + i, Simd::multiply(sum, load_some(gate + i, left)), left);
        }
    }
}
