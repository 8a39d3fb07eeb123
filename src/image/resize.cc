#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace batchllm {
namespace {

// Keys' cubic with a = -1/2, and the triangle.
double filter_value(ResizeFilter filter, double x) {
    x = std::abs(x);
    if (filter == ResizeFilter::bilinear) return x < 1 ? 1 - x : 0;
    constexpr double a = -0.5;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

// The weights of one axis. A value of the result is the sum over k < pairs of
// weight[2 k] * source[begin + 2 k] + weight[2 k + 1] * source[begin + 2 k + 1], times
// 2^-precision, rounded and put into a byte. The weights are padded with zeros to pairs.
struct Weights {
    struct Place {
        int32_t begin, taps;
        const int16_t *weights;
    };
    Place at(int32_t i) const {
        const auto index = static_cast<size_t>(i);
        return {begins[index], taps[index], values.data() + index * stride};
    }

    int precision = 0;
    size_t stride = 0; // even
    std::vector<int32_t> begins, taps;
    std::vector<int16_t> values; // [size, stride]
};

Weights make_weights(int32_t from, int32_t to, ResizeFilter filter) {
    const double scale = static_cast<double>(from) / to;
    const double width = filter == ResizeFilter::bicubic ? 2 : 1; // of the filter, to one side
    const double support = scale >= 1 ? width * scale : width;
    const double inverse = scale >= 1 ? 1 / scale : 1;
    const auto most_taps = static_cast<int64_t>(std::ceil(support)) * 2 + 1;

    Weights result;
    result.stride = static_cast<size_t>(most_taps + 1) & ~size_t{1};
    const auto size = static_cast<size_t>(to);
    std::vector<double> exact(size * result.stride);
    result.begins.resize(size);
    result.taps.resize(size);
    double largest = 0;
    for (size_t i = 0; i < size; ++i) {
        const double centre = scale * (static_cast<double>(i) + 0.5);
        const int64_t begin = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
        const int64_t end = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), from);
        const int64_t taps = std::clamp<int64_t>(end - begin, 0, most_taps);
        double *weights = exact.data() + i * result.stride;
        double sum = 0;
        for (int64_t k = 0; k < taps; ++k) {
            weights[k] =
                filter_value(filter, (static_cast<double>(k + begin) - centre + 0.5) * inverse);
            sum += weights[k];
        }
        for (int64_t k = 0; k < taps && sum != 0; ++k) {
            weights[k] /= sum;
            largest = std::max(largest, weights[k]);
        }
        result.begins[i] = static_cast<int32_t>(begin);
        result.taps[i] = static_cast<int32_t>(taps);
    }

    // As many bits as let the largest weight stay below 2^15.
    while (result.precision < 22 &&
           static_cast<int>(0.5 + largest * (1 << (result.precision + 1))) < 1 << 15) {
        ++result.precision;
    }
    result.values.resize(exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
        const double value = exact[i] * (1 << result.precision);
        result.values[i] = static_cast<int16_t>(value < 0 ? value - 0.5 : value + 0.5);
    }
    return result;
}

uint8_t to_byte(int32_t sum, int precision) {
    return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

#ifdef __SSE2__
__m128i load_4(const uint8_t *from) {
    int32_t value;
    std::memcpy(&value, from, 4);
    return _mm_cvtsi32_si128(value);
}

// Two weights in each lane.
__m128i load_pair(const int16_t *weights) {
    int32_t value;
    std::memcpy(&value, weights, 4);
    return _mm_set1_epi32(value);
}
#endif

// One row: from -> to, whose memory goes on for 4 bytes at least.
void resize_row(const uint8_t *from, const Weights &weights, int32_t width, uint8_t *to) {
    for (int32_t x = 0; x < width; ++x, to += 3) {
        const Weights::Place place = weights.at(x);
        const uint8_t *source = from + int64_t{place.begin} * 3;
        int32_t k = 0;
#ifdef __SSE2__
        __m128i sum = _mm_set1_epi32(1 << (weights.precision - 1));
        for (; k < place.taps; k += 2, source += 6) {
            // r0 r1 g0 g1 b0 b1, with 16 bits each. A weight of 0 may meet a pixel behind the last tap.
            const __m128i pair = _mm_unpacklo_epi8(
                _mm_unpacklo_epi8(load_4(source), load_4(source + 3)), _mm_setzero_si128());
            sum = _mm_add_epi32(sum, _mm_madd_epi16(pair, load_pair(place.weights + k)));
        }
        sum = _mm_srai_epi32(sum, weights.precision);
        sum = _mm_packs_epi32(sum, sum);
        const int32_t value = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
        std::memcpy(to, &value, 4); // the fourth is overwritten by the next pixel
#else
        int32_t sum[3];
        std::fill_n(sum, 3, 1 << (weights.precision - 1));
        for (; k < place.taps; ++k, source += 3) {
            for (int c = 0; c < 3; ++c) sum[c] += place.weights[k] * source[c];
        }
        for (int c = 0; c < 3; ++c) to[c] = to_byte(sum[c], weights.precision);
#endif
    }
}

// One row of the result from `place.taps` rows of the source, `bytes` long each.
void resize_column(const uint8_t *from, int64_t bytes, const Weights::Place &place, int precision,
                   uint8_t *to) {
    int64_t x = 0;
    const int32_t half = 1 << (precision - 1);
#ifdef __SSE2__
    for (; x + 16 <= bytes; x += 16) {
        __m128i sum[4];
        for (__m128i &s : sum) s = _mm_set1_epi32(half);
        const uint8_t *source = from + x;
        for (int32_t k = 0; k < place.taps; k += 2, source += 2 * bytes) {
            // The weight of a row that is not there is 0.
            const auto *second = source + (k + 1 < place.taps ? bytes : 0);
            const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i *>(source));
            const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i *>(second));
            const __m128i zero = _mm_setzero_si128(), pair = load_pair(place.weights + k);
            const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
            sum[0] = _mm_add_epi32(sum[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
            sum[1] = _mm_add_epi32(sum[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
            sum[2] = _mm_add_epi32(sum[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
            sum[3] = _mm_add_epi32(sum[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
        }
        for (__m128i &s : sum) s = _mm_srai_epi32(s, precision);
        _mm_storeu_si128(
            reinterpret_cast<__m128i *>(to + x),
            _mm_packus_epi16(_mm_packs_epi32(sum[0], sum[1]), _mm_packs_epi32(sum[2], sum[3])));
    }
#endif
    for (; x < bytes; ++x) {
        int32_t sum = half;
        for (int32_t k = 0; k < place.taps; ++k) sum += place.weights[k] * from[k * bytes + x];
        to[x] = to_byte(sum, precision);
    }
}

} // namespace

Result<Pixels> resize_picture(Pixels pixels, int32_t width, int32_t height, ResizeFilter filter) {
    if (pixels.width != width) {
        ASSIGN_OR_RETURN(Pixels wide, Pixels::make(width, pixels.height));
        const Weights weights = make_weights(pixels.width, width, filter);
        for (int32_t y = 0; y < pixels.height; ++y) {
            resize_row(pixels.row(y), weights, width, wide.row(y));
        }
        pixels = std::move(wide);
    }
    if (pixels.height != height) {
        ASSIGN_OR_RETURN(Pixels high, Pixels::make(width, height));
        const Weights weights = make_weights(pixels.height, height, filter);
        for (int32_t y = 0; y < height; ++y) {
            const Weights::Place place = weights.at(y);
            resize_column(pixels.row(place.begin), pixels.row_bytes(), place, weights.precision,
                          high.row(y));
        }
        pixels = std::move(high);
    }
    return pixels;
}

} // namespace batchllm
