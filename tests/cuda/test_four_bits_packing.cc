// How four-bit weights lie on the device (cuda/four_bits/layout.h): what packing makes of random matrices, read as the
// kernels read it, is the weights. On the host alone.
#include <array>
#include <bit>

#include "four_bit_weights.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Packed {
    PackedShape shape;
    DType element;
    std::vector<std::byte> bytes;

    explicit Packed(PackedShape of, DType type = DType::bf16)
        : shape(of), element(type), bytes(static_cast<size_t>(of.bytes())) {}
    PackTarget target() { return {shape, element, bytes.data()}; }
    uint32_t word(int64_t at) const {
        uint32_t word;
        std::memcpy(&word, &bytes[static_cast<size_t>(at)], 4);
        return word;
    }
    float number(uint32_t bits) const { return element_value(element, bits & 0xffffu); }

    // The weight as widen.cuh computes it, in steps that are exact in float32.
    float value(int32_t row, int32_t column) const {
        const PackedForm form = shape.form;
        const int32_t c = column / 128, half = column % 128 / 64, j = column % 64 / 16;
        const int32_t warp = row % 64 / 16, g = row % 8, second = row % 16 / 8;
        const int32_t lane = g * 4 + column % 8 / 2, r = second + column % 16 / 8 * 2;
        const int64_t cell = shape.cell(c, row / 64);
        const int64_t codes = cell + shared_scales(form) + half * half_bytes(form);
        const uint32_t codes_word = word(codes + (warp * 32 + lane) * 16 + j * 4);
        const uint32_t own = codes_word >> column % 2 * 16; // the lower half-word
        const int64_t scales = codes + kHalfCodes, pair = warp * 8 + g;
        if (is_int4(form)) {
            const int64_t at = form == PackedForm::int4_128
                                   ? cell + pair * 8 + second * 4
                                   : scales + j / 2 * 256 + pair * 8 + second * 4;
            const uint32_t scale = word(at);
            const float code = static_cast<float>(own >> 4 * r & 15u);
            return (code - static_cast<float>(scale & 15u)) *
                   (number(scale >> 16) + number(scale & 0xfff0u));
        }
        const uint32_t x = codes_word; // both half-words, shifted as the kernel does
        const uint32_t pair_bits =
            r == 0   ? x & 0x81c081c0u
            : r == 1 ? x << 3 & 0x81c081c0u
            : r == 2 ? x << 6 & 0x81c081c0u
                     : (x << 1 & 0x80008000u) | (x >> 3 & 0x01800180u) | (x >> 7 & 0x00400040u);
        const float code = number(pair_bits >> column % 2 * 16);
        const bool mx = form == PackedForm::mxfp4;
        const int64_t at =
            mx ? scales + pair * 4 + second * 2 + j / 2 : scales + pair * 8 + second * 4 + j;
        const auto byte = std::to_integer<uint32_t>(bytes[static_cast<size_t>(at)]);
        return code * number(mx ? byte << 7 : byte * 16 + 0x7000u);
    }
};

std::string name_of(const PackedShape &shape) {
    return form_name(shape.form) + ", " + std::to_string(shape.rows) + " x " +
           std::to_string(shape.columns);
}

void assert_weights(const Packed &packed, const FourBitWeights &weights, int32_t first, int32_t run,
                    int32_t stride, bool exact) {
    const float factor = packed_factor(weights.power());
    for (int32_t r = 0; r < weights.rows; ++r) {
        for (int32_t c = 0; c < weights.columns; ++c) {
            const float got = packed.value(first + r / run * stride + r % run, c) * factor;
            const float wanted = weights.value(r, c);
            const bool right =
                exact ? got == wanted : std::fabs(got - wanted) <= 0x1p-12F * std::fabs(wanted);
            if (right) continue;
            fail_msg("%s: row %d, column %d is %g and not %g", name_of(packed.shape).c_str(), r, c,
                     static_cast<double>(got), static_cast<double>(wanted));
        }
    }
}

void what_is_packed_is_the_weights(void **) {
    std::mt19937_64 random(seed_of_run());
    for (const PackedForm form : kForms) {
        for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
                 {64, 128}, {8, 32}, {72, 192}, {200, 256}, {136, 416}, {256, 96}}) {
            for (const DType scales : {DType::bf16, DType::f16}) {
                for (const bool ordered : {false, true}) {
                    const FourBitWeights weights(random, form, rows, columns,
                                                 group_of(form, columns), scales,
                                                 ordered && is_int4(form));
                    Packed packed({form, rows, columns});
                    pack_on_host(packed.target(), weights.source());
                    assert_weights(packed, weights, 0, 8, 8, true);
                    if (!is_int4(form)) continue;
                    Packed for_f16({form, rows, columns}, DType::f16);
                    pack_on_host(for_f16.target(), weights.source());
                    assert_weights(for_f16, weights, 0, 8, 8, scales == DType::f16);
                }
            }
        }
    }
}

// For inputs in e4m3: as sm90_mxfp4_e4m3.cu reads it. Weights 2^-15 times a row's largest scale and smaller ones are 0.
void mxfp4_for_inputs_in_e4m3_is_the_weights(void **) {
    static constexpr float magnitudes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    std::mt19937_64 random(seed_of_run());
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {64, 128}, {8, 32}, {72, 192}, {136, 416}, {256, 96}}) {
        FourBitWeights weights(random, PackedForm::mxfp4, rows, columns, 32, DType::bf16, false);
        std::vector<int32_t> largest(static_cast<size_t>(rows));
        for (int32_t i = 0; i < rows * weights.groups; ++i) {
            uint8_t &scale = weights.scale_bytes[static_cast<size_t>(i)];
            scale = static_cast<uint8_t>(scale - random() % 18 -
                                         (i / weights.groups % 3 == 1 ? 98 : 0));
            int32_t &most = largest[static_cast<size_t>(i / weights.groups)];
            most = std::max<int32_t>(most, scale);
        }
        const PackedShape shape{PackedForm::mxfp4_e4m3, rows, columns};
        std::vector<std::byte> bytes(static_cast<size_t>(shape.bytes()));
        std::vector<float> factors(static_cast<size_t>(rows));
        pack_on_host({shape, DType::bf16, bytes.data(), factors.data()}, weights.source());
        for (int32_t r = 0; r < rows; ++r) {
            for (int32_t c = 0; c < columns; ++c) {
                const int32_t warp = r % 64 / 16, g = r % 8, second = r % 16 / 8;
                const int32_t i = c % 4 + c % 32 / 16 * 4, k = c % 64 / 32;
                const int64_t codes =
                    shape.cell(c / 128, r / 64) + c % 128 / 64 * half_bytes(shape.form);
                const int64_t at =
                    codes + (warp * 32 + g * 4 + c % 16 / 4) * 16 + k * 8 + second * 4;
                uint32_t word;
                std::memcpy(&word, &bytes[static_cast<size_t>(at)], 4);
                const bool minus = (word >> (i < 4 ? 8 * i + 7 : 8 * i - 29) & 1u) != 0;
                const int64_t of_scale = codes + kHalfCodes + (warp * 8 + g) * 4 + second * 2 + k;
                const auto table = std::to_integer<int32_t>(bytes[static_cast<size_t>(of_scale)]);
                assert_true(table % 8 == 0 && table < 128);
                const float size = table == 0 ? 0
                                              : std::ldexp(magnitudes[word >> 4 * i & 7u],
                                                           table / 8 - kMxfp4Places);
                const float got = (minus ? -size : size) * factors[static_cast<size_t>(r)];
                const int32_t scale =
                    weights.scale_bytes[static_cast<size_t>(r * weights.groups + c / 32)];
                const bool kept = scale > std::max(7, largest[static_cast<size_t>(r)]) - 15;
                if (got == (kept ? weights.value(r, c) : 0)) continue;
                fail_msg("%d x %d: row %d, column %d is %g and not %g", rows, columns, r, c,
                         double(got), double(weights.value(r, c)));
            }
        }
    }
}

// q, k and v one after another; gate and up in turns of eight rows. What fills up rows and columns is zero.
void matrices_are_fused(void **) {
    std::mt19937_64 random(seed_of_run());
    for (const PackedForm form : kForms) {
        constexpr int32_t columns = 160;
        const auto part = [&](int32_t rows) {
            return FourBitWeights(random, form, rows, columns, group_of(form, columns), DType::bf16,
                                  false);
        };
        const FourBitWeights q = part(88), k = part(24), v = part(40), gate = part(48),
                             up = part(48);
        Packed qkv({form, 152, columns}), both({form, 96, columns});
        const auto pack = [&](Packed *to, const FourBitWeights &from, int32_t first,
                              int32_t stride) {
            PackSource source = from.source();
            source.first = first;
            source.stride = stride;
            pack_on_host(to->target(), source);
        };
        pack(&qkv, q, 0, 8);
        pack(&qkv, k, 88, 8);
        pack(&qkv, v, 112, 8);
        pack(&both, gate, 0, 16);
        pack(&both, up, 8, 16);
        // As gpt-oss has them: rows of gate and up alternate in one matrix.
        const FourBitWeights mixed = part(96);
        Packed apart({form, 96, columns});
        for (int32_t i = 0; i < 2; ++i) {
            PackSource source = mixed.source();
            source.rows = 48;
            source.step = 2;
            source.codes += i * columns / 2;
            if (source.scales != nullptr) source.scales += i * source.groups;
            if (source.zeros != nullptr) source.zeros += i * source.groups;
            if (source.scale_bytes != nullptr) source.scale_bytes += i * source.groups;
            source.first = 8 * i;
            source.stride = 16;
            pack_on_host(apart.target(), source);
        }
        const float factor = packed_factor(mixed.power());
        for (int32_t r = 0; r < 96; ++r) {
            for (int32_t c = 0; c < columns; ++c) {
                const float got = apart.value(r / 16 * 16 + r % 2 * 8 + r / 2 % 8, c) * factor;
                assert_true(got == mixed.value(r, c));
            }
        }
        assert_weights(qkv, q, 0, 8, 8, true);
        assert_weights(qkv, k, 88, 8, 8, true);
        assert_weights(qkv, v, 112, 8, 8, true);
        assert_weights(both, gate, 0, 8, 16, true);
        assert_weights(both, up, 8, 8, 16, true);
        for (int32_t r = 0; r < 192; ++r) {
            for (int32_t c = r < 152 ? columns : 0; c < 192; ++c) {
                if (qkv.value(r, c) != 0) {
                    fail_msg("%s: beyond it, row %d, column %d is not 0",
                             name_of(qkv.shape).c_str(), r, c);
                }
            }
        }
    }
}

// Scales of these bytes, of each code.
void assert_scales_are_kept(PackedForm form, uint32_t least, uint32_t most) {
    std::mt19937_64 random(seed_of_run());
    const auto columns = static_cast<int32_t>(most - least + 1) / 8 * 8 * scale_columns(form);
    FourBitWeights weights(random, form, 8, columns, scale_columns(form), DType::bf16, false);
    for (size_t i = 0; i < weights.scale_bytes.size(); ++i) {
        uint32_t byte = least + static_cast<uint32_t>(i) % (most - least + 1);
        if (form == PackedForm::nvfp4 && (byte & 127u) == 127u) --byte; // NaN
        weights.scale_bytes[i] = static_cast<uint8_t>(byte);
    }
    Packed packed({form, 8, columns});
    pack_on_host(packed.target(), weights.source());
    assert_weights(packed, weights, 0, 8, 8, true);
}

// Weights of e2m1 are exact within 2^126 of the largest; if that is 1 or so, that is as far as bf16 goes.
void scales_of_all_sizes_are_kept(void **) {
    assert_scales_are_kept(PackedForm::nvfp4, 0, 255);
    assert_scales_are_kept(PackedForm::mxfp4, 2, 128);
    assert_scales_are_kept(PackedForm::mxfp4, 127, 252);
}

// A scale of more bits than an element has is two parts, and their sum is it.
void float16_scales_are_exact_in_bf16(void **) {
    for (uint32_t half = 1; half < 0x7c00; ++half) {
        const float scale = float16_to_float(static_cast<uint16_t>(half));
        const uint32_t word = packed_scale(DType::bf16, scale, 5);
        const float sum = bfloat16_to_float(static_cast<uint16_t>(word >> 16)) +
                          bfloat16_to_float(static_cast<uint16_t>(word & 0xfff0u));
        if (sum != scale || (word & 15u) != 5) {
            fail_msg("%g is %g", static_cast<double>(scale), static_cast<double>(sum));
        }
    }
}

void float16_is_rounded_to_nearest_even(void **) {
    for (uint32_t half = 0; half < 0x7c00; ++half) {
        const auto low = static_cast<uint16_t>(half), high = static_cast<uint16_t>(half + 1);
        const float x = float16_to_float(low);
        assert_int_equal(float_to_float16(x), low);
        assert_int_equal(float_to_float16(-x), low | 0x8000);
        if (high == 0x7c00) continue;
        const float middle = 0.5F * (x + float16_to_float(high));
        assert_int_equal(float_to_float16(middle), half % 2 == 0 ? low : high);
        assert_int_equal(float_to_float16(std::nextafter(middle, 0.0F)), low);
        assert_int_equal(float_to_float16(std::nextafter(middle, 1e9F)), high);
    }
    assert_int_equal(float_to_float16(65519.0F), 0x7bff);
    assert_int_equal(float_to_float16(65520.0F), 0x7c00);
    assert_int_equal(float_to_float16(INFINITY), 0x7c00);
    assert_true(std::isnan(float16_to_float(float_to_float16(NAN))));
}

// What a checkpoint takes, for the formats whose scales are bytes.
void packed_matrices_are_no_larger(void **) {
    assert_int_equal((PackedShape{PackedForm::mxfp4, 5760, 2880}.bytes()), 5760 * 2880 / 32 * 17);
    assert_int_equal((PackedShape{PackedForm::nvfp4, 4096, 4096}.bytes()), 4096 * 4096 / 16 * 9);
    assert_int_equal((PackedShape{PackedForm::int4_128, 1024, 4096}.bytes()),
                     1024 * 4096 / 128 * (64 + 4));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_is_the_weights),
        cmocka_unit_test(mxfp4_for_inputs_in_e4m3_is_the_weights),
        cmocka_unit_test(matrices_are_fused),
        cmocka_unit_test(scales_of_all_sizes_are_kept),
        cmocka_unit_test(float16_scales_are_exact_in_bf16),
        cmocka_unit_test(float16_is_rounded_to_nearest_even),
        cmocka_unit_test(packed_matrices_are_no_larger),
    };
    return cmocka_run_group_tests_name("four_bits_packing", tests, nullptr, nullptr);
}
