// The attention entries of a kernel table. Included after kernel_attention.h.

KERNEL_TARGET void attention(const AttentionCall &call) { attend<VectorProducts>(call); }

KERNEL_TARGET void attention_in_order(const AttentionCall &call) {
    attend_passes<true, VectorProducts>(call);
}

KERNEL_TARGET void merge(int32_t parts, const float *const *outputs, const float *maxima,
                         const float *sums, int32_t n, void *output) {
    float maximum = -Simd::kInfinity;
    for (int32_t p = 0; p < parts; ++p) {
        if (maxima[p] > maximum) maximum = maxima[p];
    }
    const float base = maximum == -Simd::kInfinity ? 0.0f : maximum;
    float sum = 0;
    for (int32_t p = 0; p < parts; ++p) sum += sums[p] * Simd::exp2_one(maxima[p] - base);
    const float scale = 1.0f / sum;
    Type *out = static_cast<Type *>(output);
    for (int32_t i = 0; i < n; i += kLanes) {
        Vector value = Simd::zero();
        for (int32_t p = 0; p < parts; ++p) {
            const Vector factor = Simd::set(Simd::exp2_one(maxima[p] - base) * scale);
            value = Simd::multiply_add(factor, Simd::load(outputs[p] + i), value);
        }
        // The last lanes may be padding, for which the output has no room.
        if (i + kLanes <= n) {
            Element::store(out + i, value);
        } else {
            alignas(64) Type last[kLanes];
            Element::store(last, value);
            for (int32_t j = i; j < n; ++j) out[j] = last[j - i];
        }
    }
}
