// Sixteen floats in one AVX-512 register. Included inside an anonymous namespace, after
// <immintrin.h> and KERNEL_TARGET.

struct Simd {
    using Vector = __m512;
    static constexpr float kInfinity = __builtin_inff();
    // Register blocking, for 32 registers: rows x groups (scores), rows x columns (output).
    static constexpr int kScoreRows = 12;
    static constexpr int kGroups = 2;
    static constexpr int kFewRows = 6;
    static constexpr int kWideGroups = 4;
    static constexpr int kWeighRows = 6;
    static constexpr int kColumns = 4;

    KERNEL_TARGET static Vector zero() { return _mm512_setzero_ps(); }
    KERNEL_TARGET static Vector set(float x) { return _mm512_set1_ps(x); }
    KERNEL_TARGET static Vector load(const float *p) { return _mm512_loadu_ps(p); }
    KERNEL_TARGET static void store(float *p, Vector x) { _mm512_storeu_ps(p, x); }
    KERNEL_TARGET static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
    KERNEL_TARGET static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
    KERNEL_TARGET static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
    KERNEL_TARGET static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
    KERNEL_TARGET static Vector maximum(Vector a, Vector b) { return _mm512_max_ps(a, b); }
    KERNEL_TARGET static Vector multiply_add(Vector a, Vector b, Vector c) {
        return _mm512_fmadd_ps(a, b, c);
    }
    KERNEL_TARGET static float reduce_add(Vector a) { return _mm512_reduce_add_ps(a); }
    KERNEL_TARGET static float reduce_maximum(Vector a) { return _mm512_reduce_max_ps(a); }

    KERNEL_TARGET static Vector exp2_fraction(Vector f) {
        Vector p = _mm512_set1_ps(1.3276472e-3f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6755415e-3f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5507133e-2f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022120e-1f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314697e-1f));
        return _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    }
    // 2^x within 2e-7: 2^round(x) * polynomial(x - round(x)), minimax of degree 5 on [-0.5, 0.5].
    KERNEL_TARGET static Vector exp2(Vector x) {
        // Beyond these bounds the result is 0 or inf anyway, and -inf - round(-inf) would be NaN.
        x = _mm512_min_ps(_mm512_set1_ps(160), _mm512_max_ps(_mm512_set1_ps(-160), x));
        const Vector whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_scalef_ps(exp2_fraction(_mm512_sub_ps(x, whole)), whole);
    }
    // 2^x within 9e-5, for results that are then rounded to bfloat16: 2^floor(x) * polynomial(x -
    // floor(x)), minimax of degree 3 on [0, 1], with value 1 at 0. The remainder of -inf is 0.
    KERNEL_TARGET static Vector exp2_coarse(Vector x) {
        const Vector f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        Vector p = _mm512_set1_ps(7.706706e-2f);
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.2764498e-1f));
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9511679e-1f));
        return _mm512_scalef_ps(_mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f)), x);
    }
    // 2^(x - base) for a whole number `base`. The significand is the same for every base. x may be
    // -inf.
    KERNEL_TARGET static Vector exp2_over(Vector x, Vector base) {
        x = _mm512_max_ps(_mm512_set1_ps(-1e30f), x); // -inf - round(-inf) would be NaN
        const Vector whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_scalef_ps(exp2_fraction(_mm512_sub_ps(x, whole)), _mm512_sub_ps(whole, base));
    }
    KERNEL_TARGET static float exp2_one(float x) {
        return _mm512_cvtss_f32(exp2(_mm512_set1_ps(x)));
    }
};
