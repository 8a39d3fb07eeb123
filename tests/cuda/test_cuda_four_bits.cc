// Four-bit weights on the device: packing as on the host, expanding to the very weights, and the products against float64,
// over formats, shapes and numbers of rows. An argument is the family to test: sm90 or sm80; none: all that run here.
#include <string>

#include "experts/grouped.h"
#include "four_bits/convert.h"
#include "four_bits/product.h"
#include "reference_layer.h"
#include "seed.h"

#include "cuda_arrays.h"
#include "cuda_experts.h"
#include "four_bit_weights.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;

using Launch = cudaError_t (*)(const FourBitArguments &, int, cudaStream_t);
struct Family {
    const char *name;
    Launch launch;
};
std::vector<Family> families;

// ---- Packed matrices on the device --------------------------------------------------------------

// A source's arrays on the device. They live as long as this.
struct SourceThere {
    DeviceMemory codes, scales, zeros, scale_bytes, order;
    PackSource source;

    explicit SourceThere(const FourBitWeights &weights) : source(weights.source()) {
        codes = upload(weights.codes);
        source.codes = codes.as<uint8_t>();
        scales = upload(weights.scales);
        if (source.scales != nullptr) source.scales = scales.as<float>();
        zeros = upload(weights.zeros);
        if (source.zeros != nullptr) source.zeros = zeros.as<uint8_t>();
        scale_bytes = upload(weights.scale_bytes);
        if (source.scale_bytes != nullptr) source.scale_bytes = scale_bytes.as<uint8_t>();
        order = upload(weights.order);
        if (source.order != nullptr) source.order = order.as<int32_t>();
    }
};

// Matrices of one shape, one after another.
struct PackedThere {
    PackedShape shape;
    DType element;
    DeviceMemory data;

    PackedThere(PackedShape of, DType type, int64_t matrices)
        : shape(of), element(type),
          data(upload(std::vector<std::byte>(static_cast<size_t>(of.bytes() * matrices)))) {}
    PackTarget target(int64_t matrix) {
        return {shape, element, data.as<std::byte>() + matrix * shape.bytes()};
    }
    void pack(int64_t matrix, const FourBitWeights &weights, int32_t first = 0,
              int32_t stride = 8) {
        SourceThere there(weights);
        there.source.first = first;
        there.source.stride = stride;
        check(launch_pack(target(matrix), there.source, nullptr));
        check(cudaDeviceSynchronize());
    }
};

DType drawn_scales(Random &random) { return draw(random, 0, 1) == 0 ? DType::bf16 : DType::f16; }

void packing_is_the_hosts(void **) {
    Random random(seed_of_run());
    for (const PackedForm form : kForms) {
        for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
                 {8, 32}, {200, 256}, {136, 416}, {512, 1024}}) {
            for (const DType element : {DType::bf16, DType::f16}) {
                const bool ordered = is_int4(form) && draw(random, 0, 1) == 1;
                const auto part = [&](int32_t of) {
                    return FourBitWeights(random, form, of, columns, group_of(form, columns),
                                          drawn_scales(random), ordered);
                };
                const FourBitWeights gate = part(rows), up = part(rows);
                PackedThere there({form, 2 * rows, columns}, element, 1);
                there.pack(0, gate, 0, 16);
                there.pack(0, up, 8, 16);
                std::vector<std::byte> wanted(static_cast<size_t>(there.shape.bytes()));
                for (const auto &[weights, first] : {std::pair(&gate, 0), std::pair(&up, 8)}) {
                    PackSource source = weights->source();
                    source.first = first;
                    source.stride = 16;
                    pack_on_host({there.shape, element, wanted.data()}, source);
                }
                const auto got = download<std::byte>(there.data, wanted.size());
                if (std::memcmp(got.data(), wanted.data(), wanted.size()) != 0) {
                    fail_msg("%s, %d x %d: other bytes", form_name(form).c_str(), 2 * rows,
                             columns);
                }
            }
        }
    }
}

void expanded_matrices_are_the_weights(void **) {
    Random random(seed_of_run());
    for (const PackedForm form : kForms) {
        for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
                 {16, 32}, {208, 256}, {144, 416}, {512, 1024}}) {
            for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
                constexpr int64_t matrices = 3;
                std::vector<FourBitWeights> weights;
                const DType packed_for = type == DType::f16 ? DType::f16 : DType::bf16;
                PackedThere there({form, rows, columns}, packed_for, matrices);
                const DType scales = type == DType::f16 ? DType::f16 : drawn_scales(random);
                for (int64_t m = 0; m < matrices; ++m) {
                    weights.emplace_back(random, form, rows, columns, group_of(form, columns),
                                         scales, false);
                    there.pack(m, weights.back());
                }
                std::vector<float> factors, of_matrices; // power() looks at all scales
                for (const FourBitWeights &w : weights) {
                    of_matrices.push_back(packed_factor(w.power()));
                    for (int32_t r = 0; r < rows; ++r) {
                        factors.push_back(of_matrices.back() *
                                          (is_int4(form) ? 1.0F : 0.75F + 0.001F * float(r)));
                    }
                }
                const Array there_factors(factors, DType::f32);
                for (const int way : {0, 1, 2}) { // row-major, apart, panels
                    if (way == 2 && type == DType::f32) continue;
                    const int64_t across = way == 2 ? (columns + 63) / 64 * 64 : columns;
                    const Array out(matrices * rows * across, type);
                    check(launch_expand({there.shape, packed_for, there.data.as<std::byte>(),
                                         static_cast<int32_t>(matrices), there_factors.floats(),
                                         type, way == 2, way == 1, out.data()},
                                        nullptr));
                    const std::vector<float> got = out.read();
                    for (int64_t i = 0; i < matrices * rows * columns; ++i) {
                        const auto m = static_cast<size_t>(i / (int64_t{rows} * columns));
                        const auto r = static_cast<int32_t>(i / columns % rows);
                        const auto c = static_cast<int32_t>(i % columns);
                        const int64_t first = static_cast<int64_t>(m) * rows * across;
                        const int64_t to = r / 16 * 8 + r % 8 + r % 16 / 8 * (rows / 2);
                        const int64_t at = way == 0   ? first + r * across + c
                                           : way == 1 ? first + to * across + c
                                                      : first + (c / 64 * rows + r) * 64 +
                                                            ((c % 64 / 8) ^ (r % 8)) * 8 + c % 8;
                        const float factor = factors[m * size_t(rows) + size_t(r)] / of_matrices[m];
                        const float wanted = rounded(weights[m].value(r, c) * factor, type);
                        if (got[static_cast<size_t>(at)] != wanted) {
                            fail_msg("%s, %d x %d, %s, way %d: row %d, column %d is %g and not %g",
                                     form_name(form).c_str(), rows, columns, dtype_name(type), way,
                                     r, c, double(got[static_cast<size_t>(at)]), double(wanted));
                        }
                    }
                }
            }
        }
    }
}

// Integers rounded to e4m3: a row's scale is that of the largest number that it could have, and a weight is off by half of
// the distance of e4m3's numbers at most.
void integers_are_rounded_with_scales_of_their_rows(void **) {
    Random random(seed_of_run());
    for (const PackedForm form : {PackedForm::int4_128, PackedForm::int4_32}) {
        for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
                 {16, 32}, {208, 256}, {144, 416}, {512, 1024}}) {
            for (const DType packed_for : {DType::bf16, DType::f16}) {
                for (const bool apart : {false, true}) {
                    const FourBitWeights weights(random, form, rows, columns,
                                                 group_of(form, columns), DType::f16, false);
                    PackedThere there({form, rows, columns}, packed_for, 1);
                    there.pack(0, weights);
                    const DeviceMemory scales =
                        upload(std::vector<float>(static_cast<size_t>(rows)));
                    const auto count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
                    const DeviceMemory out = upload(std::vector<uint8_t>(count, 0x7f)); // NaN
                    const ExpandArguments arguments{there.shape,
                                                    packed_for,
                                                    there.data.as<std::byte>(),
                                                    1,
                                                    nullptr,
                                                    DType::e4m3,
                                                    false,
                                                    apart,
                                                    out.data(),
                                                    scales.as<float>()};
                    check(launch_row_scales(arguments, scales.as<float>(), nullptr));
                    check(launch_expand(arguments, nullptr));
                    const auto scale = download<float>(scales, static_cast<size_t>(rows));
                    const auto got = download<uint8_t>(out, count);
                    for (int32_t r = 0; r < rows; ++r) {
                        const auto to = static_cast<size_t>(
                            apart ? r / 16 * 8 + r % 8 + r % 16 / 8 * (rows / 2) : r);
                        float most = 0;
                        for (int32_t g = 0; g < weights.groups; ++g) {
                            const auto at = static_cast<size_t>(r * weights.groups + g);
                            const int32_t zero = weights.zeros[at];
                            most =
                                std::max(most, std::fabs(weights.scales[at]) *
                                                   static_cast<float>(std::max(zero, 15 - zero)));
                        }
                        assert_true(std::fabs(scale[to] * 448 - most) <= 1e-5F * most);
                        for (int32_t c = 0; c < columns; ++c) {
                            const float wanted = weights.value(r, c);
                            const float own =
                                e4m3_to_float(got[to * size_t(columns) + size_t(c)]) * scale[to];
                            const float limit =
                                std::max(std::fabs(wanted) / 16, scale[to] / 1024) * 1.001F;
                            if (!(std::fabs(own - wanted) <= limit)) {
                                fail_msg("%s, %d x %d: row %d, column %d is %g and not %g",
                                         form_name(form).c_str(), rows, columns, r, c, double(own),
                                         double(wanted));
                            }
                        }
                    }
                }
            }
        }
    }
}

// Of a matrix in GPTQ's order: x is put in the same one.
void columns_are_taken_in_an_order(void **) {
    Random random(seed_of_run());
    constexpr int32_t rows = 37, columns = 3080;
    const std::vector<float> x = normal(random, int64_t{rows} * columns, DType::bf16);
    std::vector<int32_t> order(columns);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const Array from(x, DType::bf16), to(int64_t{rows} * columns, DType::bf16);
    const DeviceMemory there = upload(order);
    check(
        launch_take_columns({from.data(), there.as<int32_t>(), rows, columns, to.data()}, nullptr));
    const std::vector<float> got = to.read();
    for (size_t i = 0; i < got.size(); ++i) {
        const auto wanted = static_cast<size_t>(order[i % columns]);
        assert_true(got[i] == x[i / columns * columns + wanted]);
    }
}

// ---- Products -----------------------------------------------------------------------------------

struct Case {
    PackedForm form;
    DType element;
    DType scales; // of int4
    int32_t rows, columns;
    bool gated = false;
    Activation activation = Activation::silu;
    bool squared = false, biased = false, add = false;
    DType y_type = DType::bf16;
    int32_t splits = 1;
    std::vector<int32_t> counts = {}; // of experts; none: dense
    int32_t tokens = 0;
    bool gathered = false;

    int32_t experts() const { return std::max<int32_t>(1, static_cast<int32_t>(counts.size())); }
    int32_t width() const { return gated ? rows / 2 : rows; }
    std::string name() const {
        std::string name = form_name(form) + ", " + dtype_name(element) + " (scales " +
                           dtype_name(scales) + "), " + std::to_string(rows) + " x " +
                           std::to_string(columns);
        if (gated) name += ", gated by " + std::to_string(static_cast<int>(activation));
        if (squared) name += ", squared";
        if (biased) name += ", biased";
        if (add) name += ", added";
        if (y_type == DType::f32) name += ", to f32";
        if (counts.empty()) {
            return name + ", " + std::to_string(tokens) + " tokens, " + std::to_string(splits) +
                   " splits";
        }
        name += gathered ? ", gathered, turns" : ", turns";
        for (const int32_t count : counts) name += " " + std::to_string(count);
        return name;
    }
};

// Everything of a case, on the host and there.
struct Made {
    Case c;
    std::vector<FourBitWeights> weights;
    std::vector<float> x, bias, factors, before;
    std::vector<float> of_experts; // what an MXFP4 or NVFP4 expert's factors are multiplied by
    Inputs lists;                  // row_of and expert_of
    PackedThere packed;
    Array x_there, bias_there, factors_there;
    DeviceMemory row_of, tiles, tile_count;

    static int64_t padded(int64_t n) { return std::max<int64_t>(n, 1); }

    Made(Random &random, const Case &of)
        : c(of), packed({of.form, of.rows, of.columns}, of.element, of.experts()),
          x_there(1, DType::f32), bias_there(1, DType::f32), factors_there(1, DType::f32) {
        int64_t rows_of_x = c.tokens;
        if (!c.counts.empty()) {
            Product p{};
            p.experts = c.experts();
            p.counts = c.counts;
            p.gathered = c.gathered;
            rows_of_x = make_turns(random, p, &lists);
            const std::vector<ExpertTile> list = tiles_of(lists);
            row_of = upload(lists.row_of);
            tiles = upload(list);
            tile_count = upload(std::vector<int32_t>{static_cast<int32_t>(list.size())});
        } else {
            for (int32_t t = 0; t < c.tokens; ++t) {
                lists.row_of.push_back(t);
                lists.expert_of.push_back(0);
            }
        }
        for (int32_t e = 0; e < c.experts(); ++e) {
            weights.emplace_back(random, c.form, c.rows, c.columns, group_of(c.form, c.columns),
                                 c.scales, false);
            packed.pack(e, weights.back());
        }
        for (const FourBitWeights &w : weights) {
            of_experts.push_back(packed_factor(w.power()));
            for (int32_t r = 0; r < c.rows; ++r) {
                factors.push_back(of_experts.back() * (c.form == PackedForm::nvfp4
                                                           ? 0.02F + 0.0001F * float(r % 16)
                                                           : 1));
            }
        }
        x = normal(random, rows_of_x * c.columns, c.element);
        x_there = Array(x, c.element);
        factors_there = Array(factors, DType::f32);
        if (c.biased) { // so large that gates and ups reach the bounds of a clamped SwiGLU
            bias = normal(random, int64_t{c.experts()} * c.rows, DType::f32, 6);
            bias_there = Array(bias, DType::f32);
        }
        before = normal(random, static_cast<int64_t>(lists.row_of.size()) * c.width(), c.y_type);
    }

    FourBitArguments arguments(void *y) const {
        FourBitArguments a{};
        a.element = c.element;
        a.w_shape = packed.shape;
        a.split = weights[0].has_lower_parts(c.element);
        a.w = packed.data.as<std::byte>();
        a.x = x_there.data();
        a.factors = is_int4(c.form) ? nullptr : factors_there.floats();
        a.bias = c.biased ? bias_there.floats() : nullptr;
        a.gated = c.gated;
        a.activation = c.activation;
        a.squared = c.squared;
        a.add = c.add;
        a.y = y;
        a.y_type = c.y_type;
        a.tokens = c.tokens;
        a.splits = c.splits;
        if (!c.counts.empty()) {
            a.row_of = c.gathered ? row_of.as<int32_t>() : nullptr;
            a.tiles = tiles.as<ExpertTile>();
            a.tile_count = tile_count.as<int32_t>();
        }
        return a;
    }
    std::vector<float> run(const Family &family) const {
        const Array y =
            c.add ? Array(before, c.y_type) : Array(static_cast<int64_t>(before.size()), c.y_type);
        check(family.launch(arguments(y.data()), sms, nullptr));
        return y.read();
    }

    // W's element as the product has it.
    float weight(int32_t expert, int32_t row, int32_t column) const {
        const float exact = weights[size_t(expert)].value(row, column);
        return is_int4(c.form) ? rounded(exact, c.element) : exact;
    }
    double sum(int64_t turn, int32_t row) const {
        const int32_t e = lists.expert_of[size_t(turn)];
        const float *from = x.data() + int64_t{lists.row_of[size_t(turn)]} * c.columns;
        double sum = 0;
        for (int32_t k = 0; k < c.columns; ++k) sum += double(from[k]) * double(weight(e, row, k));
        const size_t at = size_t(e) * size_t(c.rows) + size_t(row);
        if (!is_int4(c.form)) {
            sum *= double(factors[at]) / double(of_experts[size_t(e)]);
        }
        return sum + (c.biased ? double(bias[at]) : 0);
    }
    double wanted(int64_t turn, int32_t column) const {
        if (c.gated) {
            const int32_t row = column / 8 * 16 + column % 8;
            return reference::gated(c.activation, sum(turn, row), sum(turn, row + 8));
        }
        const double y = sum(turn, column);
        if (c.squared) return reference::activated(Activation::relu_squared, y);
        return y + (c.add ? double(before[size_t(turn * c.width() + column)]) : 0);
    }
};

// Every element is written, and `looks` of them are the reference's; more: all.
void check_case(const Case &c, uint64_t seed, int64_t looks = 1500) {
    Random random(seed);
    const Made made(random, c);
    const auto turns = static_cast<int64_t>(made.lists.row_of.size());
    std::vector<std::pair<int64_t, int32_t>> places;
    for (int64_t i = 0; i < looks && turns > 0; ++i) {
        const bool all = turns * c.width() <= looks;
        if (all && i >= turns * c.width()) break;
        places.emplace_back(all      ? i / c.width()
                            : i == 0 ? turns - 1
                                     : draw(random, 0, turns - 1),
                            static_cast<int32_t>(all      ? i % c.width()
                                                 : i == 0 ? c.width() - 1
                                                          : draw(random, 0, c.width() - 1)));
    }
    std::vector<double> wanted;
    for (const auto &[turn, column] : places) wanted.push_back(made.wanted(turn, column));
    for (const Family &family : families) {
        const std::string name = std::string(family.name) + ", " + c.name();
        const std::vector<float> all = made.run(family);
        for (size_t i = 0; i < all.size(); ++i) {
            if (std::isnan(all[i])) {
                fail_msg("%s: row %d, column %d is NaN", name.c_str(), int(i / size_t(c.width())),
                         int(i % size_t(c.width())));
            }
        }
        std::vector<float> got;
        for (const auto &[turn, column] : places) {
            got.push_back(all[size_t(turn * c.width() + column)]);
        }
        const double limit = c.y_type == DType::f32    ? 1e-4
                             : c.y_type == DType::bf16 ? 6e-3
                                                       : 1.5e-3;
        assert_near(got, wanted, 1, limit, name);
        const std::vector<float> again = made.run(family);
        if (std::memcmp(again.data(), all.data(), 4 * all.size()) != 0) {
            fail_msg("%s: other bits in another run", name.c_str());
        }
    }
}

struct Kind {
    PackedForm form;
    DType element, scales;
};
const std::vector<Kind> kKinds = {{PackedForm::mxfp4, DType::bf16, DType::bf16},
                                  {PackedForm::nvfp4, DType::bf16, DType::bf16},
                                  {PackedForm::int4_128, DType::bf16, DType::bf16},
                                  {PackedForm::int4_128, DType::bf16, DType::f16},
                                  {PackedForm::int4_128, DType::f16, DType::f16},
                                  {PackedForm::int4_32, DType::bf16, DType::bf16},
                                  {PackedForm::int4_32, DType::bf16, DType::f16},
                                  {PackedForm::int4_32, DType::f16, DType::f16}};

void dense_products_are_the_references(void **) {
    uint64_t seed = seed_of_run();
    for (const Kind &kind : kKinds) {
        for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
                 {16, 32}, {256, 128}, {272, 320}, {528, 1056}, {1152, 640}}) {
            for (const int32_t tokens : {1, 16, 17, 40, 64, 100, 128, 129, 300, 1000}) {
                Random random(++seed);
                Case c{kind.form, kind.element, kind.scales, rows, columns};
                c.y_type = kind.element;
                c.tokens = tokens;
                c.biased = draw(random, 0, 2) == 0;
                c.splits = static_cast<int32_t>(draw(random, 1, 8));
                switch (draw(random, 0, 4)) {
                case 0:
                    c.gated = true;
                    c.activation = draw(random, 0, 2) == 0   ? Activation::silu
                                   : draw(random, 0, 1) == 0 ? Activation::gelu_tanh
                                                             : Activation::clamped_swiglu;
                    break;
                case 1:
                    c.squared = true;
                    break;
                case 2:
                    c.add = true;
                    break;
                case 3:
                    c.y_type = DType::f32;
                    c.add = draw(random, 0, 1) == 0;
                    break;
                default:
                    break;
                }
                check_case(c, seed);
            }
        }
    }
}

void products_of_experts_are_the_references(void **) {
    uint64_t seed = seed_of_run();
    const std::vector<int32_t> one = {0, 0, 391}, single = {0, 1};
    for (const Kind &kind : kKinds) {
        for (const auto &[rows, columns] :
             std::vector<std::pair<int32_t, int32_t>>{{16, 32}, {272, 320}, {640, 768}}) {
            for (const auto &counts : {kRagged, one, single}) {
                for (const bool gated : {true, false}) {
                    Random random(++seed);
                    Case c{kind.form, kind.element, kind.scales, rows, columns};
                    c.y_type = kind.element;
                    c.counts = counts;
                    c.gated = gated;
                    c.activation =
                        draw(random, 0, 1) == 0 ? Activation::silu : Activation::clamped_swiglu;
                    c.squared = !gated && draw(random, 0, 2) == 0;
                    c.biased = draw(random, 0, 1) == 0;
                    c.gathered = gated;
                    check_case(c, seed);
                }
            }
        }
    }
    // As gpt-oss has them: gate and up, then down; fewer columns than a half cell; many experts, so that each CTA computes
    // several tiles.
    Case c{PackedForm::mxfp4, DType::bf16, DType::bf16, 5760, 2880};
    c.gated = c.biased = c.gathered = true;
    c.activation = Activation::clamped_swiglu;
    c.counts = {1, 140, 0, 33};
    check_case(c, ++seed, 500);
    c.gated = c.gathered = false;
    c.rows = 2880;
    check_case(c, ++seed, 500);
    Case many{PackedForm::int4_128, DType::bf16, DType::bf16, 544, 128};
    many.counts = many_counts(seed);
    check_case(many, ++seed);
}

// More tiles than CTAs, and more tokens than are computed one after another.
void large_dense_products_are_the_references(void **) {
    uint64_t seed = seed_of_run();
    for (const PackedForm form : {PackedForm::mxfp4, PackedForm::int4_128}) {
        Case c{form, DType::bf16, DType::bf16, 4352, 1024};
        c.tokens = 4096 + 77;
        check_case(c, ++seed);
        c.add = true;
        check_case(c, ++seed);
        c.add = false;
        c.gated = true;
        check_case(c, ++seed);
    }
}

// A row's result is the same bits whatever other rows there are, for each number of splits.
void a_rows_result_depends_on_itself_alone(void **) {
    for (const Family &family : families) {
        for (const Kind &kind : {kKinds[0], kKinds[3]}) {
            for (const int32_t splits : {1, 2, 3, 7, 8}) {
                Random random(kSeed);
                Case c{kind.form, kind.element, kind.scales, 320, 1152};
                c.tokens = 300;
                c.splits = splits;
                const Made made(random, c);
                const std::vector<float> all = made.run(family);
                for (const int32_t count : {1, 17, 50, 129}) {
                    for (const int32_t first : {0, 63, 171}) {
                        const Array y(int64_t{count} * c.rows, c.y_type);
                        FourBitArguments a = made.arguments(y.data());
                        a.tokens = count;
                        a.x = static_cast<const std::byte *>(a.x) + int64_t{first} * c.columns * 2;
                        check(family.launch(a, sms, nullptr));
                        const std::vector<float> got = y.read();
                        if (std::memcmp(got.data(), all.data() + first * c.rows, 4 * got.size()) !=
                            0) {
                            fail_msg("%s, %s: tokens %d to %d alone have other bits", family.name,
                                     c.name().c_str(), first, first + count - 1);
                        }
                    }
                }
            }
        }
    }
}

// An expert's product of a turn has the bits of the dense product with the same matrix.
void experts_and_dense_layers_sum_alike(void **) {
    for (const Family &family : families) {
        Random random(kSeed);
        Case c{PackedForm::nvfp4, DType::bf16, DType::bf16, 320, 384};
        c.counts = {150};
        const Made made(random, c);
        const std::vector<float> wanted = made.run(family);
        const Array y(int64_t{150} * c.rows, c.y_type);
        FourBitArguments a = made.arguments(y.data());
        a.tiles = nullptr;
        a.tokens = 150;
        check(family.launch(a, sms, nullptr));
        const std::vector<float> got = y.read();
        assert_memory_equal(got.data(), wanted.data(), 4 * got.size());
    }
}

void a_nan_stays_one(void **) {
    for (const Family &family : families) {
        Random random(kSeed);
        Case c{PackedForm::mxfp4, DType::bf16, DType::bf16, 64, 128};
        c.gated = true;
        c.activation = Activation::clamped_swiglu;
        c.tokens = 3;
        Made made(random, c);
        made.x[size_t(c.columns) + 5] = NAN;
        made.x_there = Array(made.x, DType::bf16);
        const std::vector<float> got = made.run(family);
        for (size_t i = 0; i < got.size(); ++i) {
            assert_true(std::isnan(got[i]) == (i / size_t(c.width()) == 1));
        }
    }
}

void what_is_not_there_is_refused(void **) {
    for (const Family &family : families) {
        const auto refused = [&](auto change) {
            FourBitArguments a{};
            a.element = a.y_type = DType::bf16;
            a.w_shape = {PackedForm::int4_128, 128, 128};
            a.tokens = a.splits = 1;
            change(&a);
            return family.launch(a, sms, nullptr) == cudaErrorInvalidValue;
        };
        assert_true(refused([](FourBitArguments *a) { a->element = DType::f32; }));
        assert_true(refused([](FourBitArguments *a) { a->y_type = DType::f16; }));
        assert_true(refused([](FourBitArguments *a) {
            a->element = a->y_type = DType::f16;
            a->w_shape.form = PackedForm::mxfp4;
        }));
        assert_true(refused([](FourBitArguments *a) {
            a->gated = true;
            a->activation = Activation::gelu;
        }));
        assert_true(refused([](FourBitArguments *a) {
            a->gated = true;
            a->w_shape.rows = 120;
        }));
        assert_true(refused([](FourBitArguments *a) { a->w_shape.columns = 100; }));
        assert_true(refused([](FourBitArguments *a) { a->add = a->squared = true; }));
        assert_true(refused([](FourBitArguments *a) { a->splits = 9; }));
    }
}

} // namespace

int main(int count, char **values) {
    if (const int code = skipped(); code != 0) return code;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    const std::string family = count > 1 ? values[1] : "";
    if (properties.major == 9 && properties.minor == 0 && family != "sm80") {
        families.push_back({"sm90", launch_four_bits_sm90});
    }
    if (family != "sm90") families.push_back({"sm80", launch_four_bits_sm80});
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_is_the_hosts),
        cmocka_unit_test(expanded_matrices_are_the_weights),
        cmocka_unit_test(integers_are_rounded_with_scales_of_their_rows),
        cmocka_unit_test(columns_are_taken_in_an_order),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(dense_products_are_the_references),
        cmocka_unit_test(products_of_experts_are_the_references),
        cmocka_unit_test(large_dense_products_are_the_references),
        cmocka_unit_test(a_rows_result_depends_on_itself_alone),
        cmocka_unit_test(experts_and_dense_layers_sum_alike),
        cmocka_unit_test(a_nan_stays_one),
    };
    return cmocka_run_group_tests_name("cuda_four_bits", tests, nullptr, nullptr);
}
