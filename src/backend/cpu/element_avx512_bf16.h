// bfloat16 with AVX-512's pairwise dot product. Included inside an anonymous namespace, after
// <immintrin.h> and KERNEL_TARGET.

struct Element {
    using Type = uint16_t;
    using Operand = __m512i;
    static constexpr DType kType = DType::bf16;
    static constexpr int32_t kPack = 2;
    static constexpr bool kLaterFirst = true;

    KERNEL_TARGET static Operand load(const Type *p) { return _mm512_loadu_si512(p); }
    KERNEL_TARGET static Operand broadcast(const Type *p) {
        int32_t pair;
        __builtin_memcpy(&pair, p, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    // c + (product of the second elements), then + (product of the first), each rounded, as the
    // instruction is specified.
    KERNEL_TARGET static __m512 multiply_add(Operand a, Operand b, __m512 c) {
        return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
    KERNEL_TARGET static __m512 rounded(__m512 x) {
        const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    KERNEL_TARGET static void store(Type *p, __m512 x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                            reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
    KERNEL_TARGET static __m512 weight(__m512 x) { return Simd::exp2_coarse(x); }
    KERNEL_TARGET static void store_weights(Type *p, __m512 a, __m512 b) {
        _mm512_storeu_si512(
            p, _mm512_rol_epi32(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)), 16));
    }
    KERNEL_TARGET static void store_weights(Type *p, __m512 x) {
        const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm256_rol_epi32(halves, 16));
    }
};
