// The grouped products in e4m3 against the same on the host in double precision, with the same
// elements and scales: W in e4m3 with scales of rows and of blocks, and in mxfp4, gathered or not, for
// experts with and without turns, and what adapters add.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/narrow_floats.h"
#include "four_bit_weights.h"
#include "four_bits/product.h"
#include "seed.h"

#include "cuda_expert_adapters.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;
constexpr int32_t kBlock = 128;

// The nearest e4m3 number.
uint8_t encode(float x) {
    const float size = std::min(std::fabs(x), kMostE4m3);
    const auto *end = kE4m3Floats.data() + 0x7f; // ascending
    const auto *above = std::lower_bound(kE4m3Floats.data(), end, size);
    if (above == end || (above != kE4m3Floats.data() && size - above[-1] < *above - size)) --above;
    return static_cast<uint8_t>((above - kE4m3Floats.data()) | (x < 0 ? 0x80 : 0));
}

std::vector<uint8_t> elements(Random &random, int64_t count) {
    std::normal_distribution<float> distribution(0, 100);
    std::vector<uint8_t> values(static_cast<size_t>(count));
    for (uint8_t &x : values) x = encode(distribution(random));
    return values;
}

// Between 1 / 2 and 2 of `middle`.
std::vector<float> scales(Random &random, int64_t count, float middle) {
    std::uniform_real_distribution<float> distribution(-1, 1);
    std::vector<float> values(static_cast<size_t>(count));
    for (float &x : values) x = middle * std::exp2(distribution(random));
    return values;
}

struct Quantised : Inputs {
    std::vector<uint8_t> x_elements, w_elements; // w: row-major, gate and up alternating
    std::vector<float> x_scales, w_scales;       // as in GroupedScales
    std::vector<std::byte> packed;               // mxfp4_e4m3; its factors are w_scales

    bool in_mxfp4() const { return !packed.empty(); }
};

size_t groups_of(int64_t columns) { return static_cast<size_t>(scale_groups(columns)); }

float scale_of(const Product &p, Scaling scaling, const Quantised &in, int64_t e, int32_t row,
               int32_t column) {
    if (scaling == Scaling::rows) return in.w_scales[size_t(e * p.rows + row)];
    const int64_t down = p.rows / kBlock, across = p.columns / kBlock;
    const int64_t block = (e * across + column / kBlock) * down + row / kBlock;
    return in.w_scales[size_t(2 * block + (p.gated ? row / 8 % 2 : 0))];
}

// The turns and x. whole_turns: it has a scale a row.
Quantised make_inputs(Random &random, const Product &p, bool whole_turns = false) {
    Quantised in;
    const int64_t rows = make_turns(random, p, &in);
    const auto groups = static_cast<int64_t>(groups_of(p.columns));
    in.x_elements = elements(random, rows * p.columns);
    in.x_scales = scales(random, rows * (whole_turns ? 1 : groups), 0.01F);
    for (int64_t i = 0; i < rows * p.columns; ++i) {
        const int64_t scale =
            whole_turns ? i / p.columns : i / p.columns * groups + i % p.columns / kBlock;
        in.x.push_back(kE4m3Floats[in.x_elements[size_t(i)]] * in.x_scales[size_t(scale)]);
    }
    return in;
}

Quantised make_quantised(Random &random, const Product &p, Scaling scaling) {
    Quantised in = make_inputs(random, p);
    const int64_t groups = p.columns / kBlock, all = int64_t{p.experts} * p.rows;
    in.w_elements = elements(random, all * p.columns);
    in.w_scales = scales(random, scaling == Scaling::rows ? all : 2 * all / kBlock * groups,
                         0.01F / std::sqrt(static_cast<float>(p.columns)));
    if (scaling == Scaling::blocks && !p.gated) { // a block has one
        for (size_t i = 0; i < in.w_scales.size(); i += 2) in.w_scales[i + 1] = in.w_scales[i];
    }
    for (int64_t i = 0; i < all * p.columns; ++i) {
        const int64_t row = i / p.columns;
        in.w.push_back(
            kE4m3Floats[in.w_elements[size_t(i)]] *
            scale_of(p, scaling, in, row / p.rows, int32_t(row % p.rows), int32_t(i % p.columns)));
    }
    return in;
}

// Scales of a row reach from its largest to 2^-18 times that; some rows' are among the smallest that there are.
Quantised make_in_mxfp4(Random &random, const Product &p) {
    Quantised in = make_inputs(random, p, p.gated);
    const PackedShape shape{PackedForm::mxfp4_e4m3, p.rows, p.columns};
    const auto rows = static_cast<size_t>(p.rows);
    in.packed.resize(static_cast<size_t>(p.experts * shape.bytes()));
    in.w_scales.resize(static_cast<size_t>(p.experts) * rows);
    for (int32_t e = 0; e < p.experts; ++e) {
        FourBitWeights w(random, PackedForm::mxfp4, p.rows, p.columns, 32, DType::bf16, false);
        for (size_t i = 0; i < w.scale_bytes.size(); ++i) {
            const bool small = draw(random, 0, 3) == 0, smallest = i / size_t(w.groups) % 29 == 3;
            const auto below = static_cast<int32_t>(draw(random, 0, small ? 18 : 4));
            w.scale_bytes[i] = static_cast<uint8_t>(smallest ? below : w.scale_bytes[i] - below);
        }
        pack_on_host({shape, DType::bf16, in.packed.data() + e * shape.bytes(),
                      in.w_scales.data() + size_t(e) * rows},
                     w.source());
        for (int32_t r = 0; r < p.rows; ++r) {
            for (int32_t c = 0; c < p.columns; ++c) in.w.push_back(w.value(r, c));
        }
    }
    if (p.biased) {
        std::normal_distribution<float> distribution(0, 1);
        in.bias.resize(in.w_scales.size());
        for (float &x : in.bias) x = distribution(random);
    }
    return in;
}

// The layout of experts/grouped.h.
std::vector<uint8_t> packed(const std::vector<uint8_t> &w, const Product &p) {
    std::vector<uint8_t> out(w.size());
    const int64_t panels = p.columns / kBlock;
    for (int64_t e = 0; e < p.experts; ++e) {
        for (int64_t r = 0; r < p.rows; ++r) {
            for (int64_t c = 0; c < p.columns; ++c) {
                const int64_t at = (c % kBlock) ^ (r % 8 * 16);
                out[size_t(((e * panels + c / kBlock) * p.rows + r) * kBlock + at)] =
                    w[size_t((e * p.rows + r) * p.columns + c)];
            }
        }
    }
    return out;
}

struct Result {
    std::vector<float> y;              // the values of results
    std::vector<float> scales;         // gated
    std::vector<std::byte> everything; // all results as stored
};

Result multiply(const Product &p, const Quantised &in, Scaling scaling, DType type,
                const GroupedAdapters &adapters = {}) {
    const DeviceMemory x = upload(in.x_elements), of_x = upload(in.x_scales),
                       of_w = upload(in.w_scales), bias = upload(in.bias),
                       w = in.in_mxfp4() ? upload(in.packed) : upload(packed(in.w_elements, p));
    const size_t turns = in.row_of.size(), width = size_t(p.gated ? p.rows / 2 : p.rows);
    const size_t groups = turns * groups_of(int64_t(width));
    const DeviceMemory y = upload(std::vector<uint8_t>(2 * turns * width, 0xff)),
                       of_y = upload(std::vector<float>(groups, NAN));
    const ProductLists lists(p, in);
    GroupedArguments a = lists.arguments;
    a.element = DType::e4m3;
    a.x = x.data();
    a.w = w.data();
    a.y = y.data();
    a.scales = {scaling, of_x.as<float>(), of_w.as<float>(), of_y.as<float>(), type};
    if (!in.bias.empty()) a.bias = bias.as<float>();
    a.adapters = adapters;
    check(in.in_mxfp4() ? launch_mxfp4_e4m3_sm90(a, sms, nullptr)
                        : launch_grouped(GroupedKernel::sm90, a, sms, nullptr));
    Result result;
    result.everything = download<std::byte>(y, (p.gated ? 1 : 2) * turns * width);
    if (p.gated) {
        result.scales = download<float>(of_y, groups);
        for (size_t i = 0; i < turns * width; ++i) {
            const float x8 = kE4m3Floats[std::to_integer<uint8_t>(result.everything[i])];
            const size_t scale = i / width * groups_of(int64_t(width)) + i % width / kBlock;
            result.y.push_back(x8 * result.scales[scale]);
        }
        return result;
    }
    for (size_t i = 0; i < turns * width; ++i) {
        uint16_t raw;
        std::memcpy(&raw, &result.everything[2 * i], 2);
        result.y.push_back(type == DType::bf16 ? bfloat16_to_float(raw) : float16_to_float(raw));
    }
    return result;
}

std::vector<double> reference(const Product &p, const Inputs &in,
                              const Adapted *adapted = nullptr) {
    std::vector<double> out, y(static_cast<size_t>(p.rows));
    for (size_t t = 0; t < in.row_of.size(); ++t) {
        const float *x = in.x.data() + int64_t{in.row_of[t]} * p.columns;
        const float *w = in.w.data() + int64_t{in.expert_of[t]} * p.rows * p.columns;
        for (int32_t r = 0; r < p.rows; ++r, w += p.columns) {
            double sums[4] = {};
            for (int32_t c = 0; c < p.columns; c += 4) {
                for (int32_t i = 0; i < 4; ++i) sums[i] += double(x[c + i]) * double(w[c + i]);
            }
            y[size_t(r)] = sums[0] + sums[1] + sums[2] + sums[3];
            if (!in.bias.empty())
                y[size_t(r)] += double(in.bias[size_t(in.expert_of[t] * p.rows + r)]);
            if (adapted != nullptr) y[size_t(r)] += change_of(p, *adapted, t, in.expert_of[t], r);
        }
        push_result(p, y, &out);
    }
    return out;
}

// Each value must be within half a unit of e4m3's last place of the reference, plus the error of
// the tensor cores' sums; and the scale must be the one for its 128 values.
void assert_quantised(const Result &got, const std::vector<double> &wanted, size_t width,
                      const std::string &what) {
    double squares = 0;
    for (const double x : wanted) squares += x * x / static_cast<double>(wanted.size());
    const double lost = 6e-3 * std::sqrt(squares);
    size_t bad = 0, other_scales = 0;
    const size_t groups = groups_of(int64_t(width));
    for (size_t g = 0; g < got.scales.size(); ++g) {
        double most = 0;
        const size_t row = g / groups * width, begin = row + g % groups * kBlock,
                     end = std::min(begin + kBlock, row + width);
        for (size_t i = begin; i < end; ++i) {
            most = std::max(most, std::fabs(wanted[i]));
        }
        const double scale = double(got.scales[g]);
        int exponent;
        const bool power = std::frexp(scale, &exponent) == 0.5;
        // The maximum may be rounded across the border between two scales.
        if (!power || !(most <= 448 * scale * 1.01) || !(most >= 224 * scale * 0.99)) {
            if (other_scales++ == 0) {
                print_message("%s: scale %zu is %g for a greatest of %g\n", what.c_str(), g, scale,
                              most);
            }
        }
        for (size_t i = begin; i < end; ++i) {
            const double wrong = std::fabs(double(got.y[i]) - wanted[i]);
            const double limit = std::max(0.067 * std::fabs(wanted[i]), 0x1p-10 * scale) + lost;
            if (wrong <= limit) continue; // a NaN is not skipped
            if (bad++ == 0) {
                print_message("%s: turn %zu, column %zu: %g and not %g\n", what.c_str(), i / width,
                              i % width, double(got.y[i]), wanted[i]);
            }
        }
    }
    if (bad + other_scales == 0) return;
    fail_msg("%s: %zu of %zu values and %zu of %zu scales are wrong", what.c_str(), bad,
             wanted.size(), other_scales, got.scales.size());
}

void check_product(const Product &p, const Quantised &in, Scaling scaling,
                   const std::string &what) {
    const std::vector<double> wanted = reference(p, in);
    const auto width = static_cast<size_t>(p.gated ? p.rows / 2 : p.rows);
    for (const DType type : {DType::bf16, DType::f16}) {
        if ((p.gated || in.in_mxfp4()) && type == DType::f16) continue;
        const Result got = multiply(p, in, scaling, type);
        if (p.gated) {
            assert_quantised(got, wanted, width, what);
        } else {
            // In f16 the error is that of the tensor cores' own sums of some 14 bits: up to
            // 1.8e-3 among three million.
            assert_near(got.y, wanted, width, type == DType::bf16 ? 6e-3 : 3e-3, what);
            assert_close(got.y, wanted, tolerance(type), what.c_str());
        }
        const Result again = multiply(p, in, scaling, type);
        if (again.everything != got.everything || again.scales != got.scales) {
            fail_msg("%s: other bits in another run", what.c_str());
        }
    }
}

void check_product(const Product &p, uint64_t seed) {
    for (const Scaling scaling : {Scaling::rows, Scaling::blocks}) {
        Random random(seed);
        check_product(p, make_quantised(random, p, scaling), scaling,
                      std::string(scaling == Scaling::rows ? "rows" : "blocks") + ", " +
                          shape_name(p));
    }
}

void check_in_mxfp4(const Product &p, uint64_t seed) {
    Random random(seed);
    check_product(p, make_in_mxfp4(random, p), Scaling::rows, "mxfp4, " + shape_name(p));
}

void products_in_e4m3_are_the_references(void **) {
    const std::vector<int32_t> one = {0, 0, 391}, single = {0, 1};
    const std::vector<int32_t> even(7, 48), skewed = {2, 530, 1, 0, 9, 3};
    uint64_t seed = kSeed + 80;
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {256, 128}, {512, 256}, {768, 640}, {256, 1152}}) {
        for (const bool gated : {true, false}) {
            for (const auto &counts : {kRagged, one, single, even, skewed}) {
                check_product({static_cast<int32_t>(counts.size()), rows, columns, gated,
                               Activation::silu, counts, gated},
                              ++seed);
            }
        }
    }
    // Half of a tile's rows, as for down; rows gathered for it, but not for gate and up.
    check_product({3, 128, 256, false, Activation::silu, {5, 0, 277}, false}, ++seed);
    check_product({3, 384, 128, false, Activation::silu, {130, 2, 0}, true}, ++seed);
    check_product({3, 512, 128, true, Activation::silu, {130, 2, 61}, false}, ++seed);
}

// More tiles than CTAs, so that each computes several and writes most of them late.
void products_in_e4m3_of_many_experts_are_the_references(void **) {
    Product p{64, 1280, 256, true, Activation::silu, many_counts(kSeed + 90), true};
    check_product(p, kSeed + 91);
    p.gated = p.gathered = false;
    check_product(p, kSeed + 92);
}

void products_in_mxfp4_are_the_references(void **) {
    const std::vector<int32_t> one = {0, 0, 391}, single = {0, 1}, skewed = {2, 530, 1, 0, 9, 3};
    uint64_t seed = kSeed + 100;
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {256, 128}, {64, 32}, {32, 64}, {704, 352}, {512, 640}, {5760 / 16, 2880 / 16}}) {
        for (const auto &counts : {kRagged, one, single, skewed}) {
            const auto experts = static_cast<int32_t>(counts.size());
            for (const Activation kind : {Activation::silu, Activation::clamped_swiglu}) {
                check_in_mxfp4({experts, rows / 32 * 32, columns / 16 * 16, true, kind, counts,
                                true, kind != Activation::silu},
                               ++seed);
            }
            check_in_mxfp4({experts, rows / 8 * 8, columns / 16 * 16, false, Activation::silu,
                            counts, false, true},
                           ++seed);
        }
    }
    // More tiles than CTAs.
    Product p{64, 1312, 288, true, Activation::clamped_swiglu, many_counts(kSeed + 91), true, true};
    check_in_mxfp4(p, ++seed);
    p.gated = p.gathered = false;
    check_in_mxfp4(p, ++seed);
}

void check_adapted(const Product &p, Scaling scaling, int32_t adapters, int32_t most_rank,
                   uint64_t seed) {
    Random random(seed);
    const Quantised in = make_quantised(random, p, scaling);
    const Adapted adapted = made_up(random, p, in, DType::bf16, adapters, most_rank);
    const ListedAdapters listed(p, in, adapted, DType::bf16,
                                static_cast<int32_t>(draw(random, 0, 1)));
    const std::string what = std::string(scaling == Scaling::rows ? "rows" : "blocks") + ", " +
                             std::to_string(adapters) + " adapters, seed " + std::to_string(seed) +
                             ", " + shape_name(p);
    const auto run = [&](const GroupedAdapters &of) {
        return multiply(p, in, scaling, DType::bf16, of);
    };
    const auto width = static_cast<size_t>(part_rows(p));
    const Result got = run(listed.list({}, sms));
    const std::vector<double> wanted = reference(p, in, &adapted);
    if (p.gated) {
        assert_quantised(got, wanted, width, what);
    } else {
        assert_near(got.y, wanted, width, 6e-3, what);
    }
    require_own_bits(
        random, adapted, listed, sms, got.y, [&](const GroupedAdapters &of) { return run(of).y; },
        what);
}

void changes_are_added_to_products_in_e4m3(void **) {
    uint64_t seed = seed_of_run();
    for (const auto &[rows, columns] :
         std::vector<std::pair<int32_t, int32_t>>{{256, 128}, {512, 384}, {128, 640}}) {
        for (const Scaling scaling : {Scaling::rows, Scaling::blocks}) {
            for (const bool gated : {true, false}) {
                if (gated && rows % 256 != 0) continue;
                for (const auto &[adapters, rank] : std::vector<std::pair<int32_t, int32_t>>{
                         {1, 8}, {2, 16}, {5, 64}, {40, 24}, {150, 8}}) {
                    check_adapted({static_cast<int32_t>(kRagged.size()), rows, columns, gated,
                                   Activation::silu, kRagged, seed % 2 == 0},
                                  scaling, adapters, rank, ++seed);
                }
            }
        }
    }
    // More tiles than CTAs.
    check_adapted({64, 768, 256, true, Activation::silu, many_counts(seed), true}, Scaling::rows, 3,
                  16, ++seed);
    check_adapted({64, 1280, 128, false, Activation::silu, many_counts(seed), false},
                  Scaling::blocks, 3, 16, ++seed);
}

// A turn's result is the same bits whatever other turns there are.
void a_turns_result_in_e4m3_depends_on_itself_alone(void **) {
    for (const Scaling scaling : {Scaling::rows, Scaling::blocks, Scaling::none}) {
        for (const bool gated : {true, false}) {
            const Product p{2, 512, 384, gated, Activation::silu, {140, 90}, false};
            Random random(kSeed + 93);
            const Quantised in = scaling == Scaling::none ? make_in_mxfp4(random, p)
                                                          : make_quantised(random, p, scaling);
            const Scaling of = in.in_mxfp4() ? Scaling::rows : scaling;
            const std::vector<float> all = multiply(p, in, of, DType::bf16).y;
            const int32_t width = gated ? p.rows / 2 : p.rows;
            const int32_t groups = in.in_mxfp4() && gated ? 1 : p.columns / kBlock;
            for (const int32_t turn : {0, 63, 64, 79, 80, 139, 140, 229}) {
                Quantised alone = in;
                alone.x_elements.assign(in.x_elements.begin() + turn * p.columns,
                                        in.x_elements.begin() + (turn + 1) * p.columns);
                alone.x_scales.assign(in.x_scales.begin() + turn * groups,
                                      in.x_scales.begin() + (turn + 1) * groups);
                alone.row_of = {0};
                alone.expert_of = {turn < 140 ? 0 : 1};
                const std::vector<float> got = multiply(p, alone, of, DType::bf16).y;
                if (std::memcmp(got.data(), all.data() + turn * width, 4 * got.size()) != 0) {
                    fail_msg("turn %d alone has other bits", turn);
                }
            }
        }
    }
}

// A row that is not finite makes its own results not finite, and no others.
void what_is_not_finite_stays_so(void **) {
    for (const bool gated : {true, false}) {
        const Product p{1, 256, 256, gated, Activation::silu, {40}, false};
        Random random(kSeed + 94);
        Quantised in = make_quantised(random, p, Scaling::blocks);
        in.x_elements[size_t(7 * p.columns + 3)] = 0x7f; // NaN
        in.x_scales[size_t(9 * 2)] = std::numeric_limits<float>::infinity();
        in.x_elements[size_t(9 * p.columns)] = 0x40;
        const Result got = multiply(p, in, Scaling::blocks, DType::bf16);
        const auto width = static_cast<size_t>(gated ? p.rows / 2 : p.rows);
        for (size_t i = 0; i < got.y.size(); ++i) {
            const size_t turn = i / width;
            const bool finite = std::isfinite(got.y[i]);
            if (finite == (turn == 7 || turn == 9)) {
                fail_msg("turn %zu, column %zu: %g", turn, i % width, double(got.y[i]));
            }
        }
    }
}

// Nothing is launched where a result would be wrong.
void what_has_no_kernel_is_refused(void **) {
    const DeviceMemory zeros = upload(std::vector<float>(1 << 16));
    const auto refused = [&](const std::function<void(GroupedArguments *)> &change,
                             bool in_mxfp4 = false) {
        const Product p{1, 256, 128, true, Activation::silu, {5}, false};
        Random random(kSeed + 95);
        Inputs in;
        make_turns(random, p, &in);
        const ProductLists lists(p, in);
        GroupedArguments a = lists.arguments;
        a.element = DType::e4m3;
        a.x = a.w = a.y = zeros.data();
        const float *ones = zeros.as<float>() + (1 << 15);
        a.scales = {Scaling::rows, ones, ones, zeros.as<float>() + (1 << 14), DType::bf16};
        change(&a);
        const cudaError_t status = in_mxfp4 ? launch_mxfp4_e4m3_sm90(a, sms, nullptr)
                                            : launch_grouped(GroupedKernel::sm90, a, sms, nullptr);
        check(cudaDeviceSynchronize());
        return status == cudaErrorInvalidValue;
    };
    assert_false(refused([](GroupedArguments *) {}));
    assert_true(refused([&](GroupedArguments *a) { a->bias = zeros.as<float>(); }));
    assert_true(refused([](GroupedArguments *a) { a->activation = Activation::gelu; }));
    assert_true(refused([](GroupedArguments *a) { a->rows = 128; }));
    assert_true(refused([](GroupedArguments *a) { a->columns = 64; }));
    assert_true(refused([](GroupedArguments *a) { a->scales.scaling = Scaling::none; }));
    assert_true(refused([](GroupedArguments *a) { a->scales.y = nullptr; }));
    assert_true(refused([](GroupedArguments *a) {
        a->gated = false;
        a->scales.y_type = DType::f32;
    }));
    // Adapters: of bf16, up to 64 ranks.
    const auto *none = zeros.as<TileAdapters>(); // of each tile
    const GroupedAdapters adapters{none, 0, zeros.data(), 64, 64};
    assert_false(refused([&](GroupedArguments *a) { a->adapters = adapters; }));
    assert_true(refused([&](GroupedArguments *a) {
        a->adapters = adapters;
        a->adapters.t_stride = 72;
    }));
    assert_true(refused([&](GroupedArguments *a) {
        a->adapters = adapters;
        a->scales.y_type = DType::f16;
    }));
    assert_true(refused([&](GroupedArguments *a) { a->adapters = adapters; }, true));
    assert_false(refused([&](GroupedArguments *a) { a->bias = zeros.as<float>(); }, true));
    assert_true(refused([](GroupedArguments *a) { a->activation = Activation::gelu; }, true));
    assert_true(refused([](GroupedArguments *a) { a->rows = 240; }, true));
    assert_true(refused([](GroupedArguments *a) { a->columns = 72; }, true));
    assert_true(refused([](GroupedArguments *a) { a->scales.scaling = Scaling::blocks; }, true));
    assert_true(refused([](GroupedArguments *a) { a->gated = false, a->squared = true; }, true));
}

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    if (properties.major != 9 || properties.minor != 0) {
        std::printf("skipped: no device of compute capability 9.0\n");
        return 77;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_in_e4m3_are_the_references),
        cmocka_unit_test(products_in_e4m3_of_many_experts_are_the_references),
        cmocka_unit_test(products_in_mxfp4_are_the_references),
        cmocka_unit_test(changes_are_added_to_products_in_e4m3),
        cmocka_unit_test(a_turns_result_in_e4m3_depends_on_itself_alone),
        cmocka_unit_test(what_is_not_finite_stays_so),
        cmocka_unit_test(what_has_no_kernel_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
