// Kernels of experts: routing, the order of turns, the grouped products and the weighted sum, each against the
// same on the host in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "experts/combine.h"
#include "experts/routing.h"
#include "experts/weigh.h"

#include "cuda_experts.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;
bool hopper = false;
const char *const kKernels[] = {"sm80", "sm90"};

std::vector<GroupedKernel> kernels() { // that run here
    if (!hopper) return {GroupedKernel::sm80};
    return {GroupedKernel::sm80, GroupedKernel::sm90};
}

// ---- Routing ----

struct Routed {
    std::vector<int32_t> experts_of, token_of, turn_of;
    std::vector<float> weights;
    std::vector<ExpertTile> tiles;
};

RoutingArguments shape_of(const Router &router, int32_t tokens, int32_t experts, int32_t stride) {
    RoutingArguments a{};
    a.kind = router.kind;
    a.stride = stride;
    a.tokens = tokens;
    a.experts = experts;
    a.chosen = router.chosen;
    a.groups = router.groups;
    a.chosen_groups = router.chosen_groups;
    a.normalised = router.normalised;
    a.scale = router.scale;
    a.epsilon = router.epsilon;
    return a;
}

Routed route(RoutingArguments a, const std::vector<float> &logits, const std::vector<float> &bias,
             const std::vector<float> &correction, const std::vector<float> &expert_scale = {}) {
    const int64_t turns = int64_t{a.tokens} * a.chosen;
    const Array from(logits, DType::f32), b(bias, DType::f32), c(correction, DType::f32),
        s(expert_scale, DType::f32);
    const Array weights(turns, DType::f32);
    const auto ints = [](int64_t count) {
        return upload(std::vector<int32_t>(static_cast<size_t>(count), -1));
    };
    const DeviceMemory experts_of = ints(turns), token_of = ints(turns), turn_of = ints(turns),
                       count = ints(1), counts = ints(routing_blocks(a.tokens) * a.experts),
                       tiles = ints(4 * most_tiles(turns, a.experts));
    a.logits = from.floats();
    a.bias = bias.empty() ? nullptr : b.floats();
    a.correction = correction.empty() ? nullptr : c.floats();
    a.expert_scale = expert_scale.empty() ? nullptr : s.floats();
    a.experts_of = experts_of.as<int32_t>();
    a.weights = weights.floats();
    a.counts = counts.as<int32_t>();
    a.token_of = token_of.as<int32_t>();
    a.turn_of = turn_of.as<int32_t>();
    a.tiles = tiles.as<ExpertTile>();
    a.tile_count = count.as<int32_t>();
    check(launch_routing(a, nullptr));
    const auto n = static_cast<size_t>(turns);
    const int32_t made = download<int32_t>(count, 1)[0];
    assert_in_range(made, 1, most_tiles(turns, a.experts));
    return {download<int32_t>(experts_of, n), download<int32_t>(token_of, n),
            download<int32_t>(turn_of, n), weights.read(),
            download<ExpertTile>(tiles, static_cast<size_t>(made))};
}

// As model/model.h says it, of one token. The order is by float32, in which equal scores are equal.
std::vector<std::pair<int32_t, double>> choose(const RoutingArguments &a, const float *logits,
                                               const std::vector<float> &bias,
                                               const std::vector<float> &correction,
                                               const std::vector<float> &expert_scale) {
    const auto experts = static_cast<size_t>(a.experts);
    std::vector<double> scores(experts), by(experts);
    double sum = 0, most = -INFINITY;
    for (size_t e = 0; e < experts; ++e) {
        scores[e] = double(logits[e]) + (bias.empty() ? 0 : double(bias[e]));
        most = std::max(most, scores[e]);
    }
    for (double &x : scores) {
        x = a.kind == RouterKind::sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - most);
        sum += x;
    }
    for (size_t e = 0; e < experts; ++e) {
        if (a.kind == RouterKind::softmax) scores[e] /= sum;
        by[e] = scores[e] + (correction.empty() ? 0 : double(correction[e]));
        if (std::isnan(by[e])) by[e] = -INFINITY;
    }
    const size_t size = experts / static_cast<size_t>(a.groups);
    if (a.groups > a.chosen_groups) {
        std::vector<std::pair<double, size_t>> groups;
        for (size_t g = 0; g < static_cast<size_t>(a.groups); ++g) {
            std::vector<double> own(by.begin() + int64_t(g * size),
                                    by.begin() + int64_t((g + 1) * size));
            std::sort(own.rbegin(), own.rend());
            groups.emplace_back(-(own[0] + own[1]), g);
        }
        std::sort(groups.begin(), groups.end());
        for (size_t i = static_cast<size_t>(a.chosen_groups); i < groups.size(); ++i) {
            std::fill_n(by.begin() + int64_t(groups[i].second * size), size, -INFINITY);
        }
    }
    std::vector<size_t> order(experts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return by[x] > by[y]; });
    order.resize(static_cast<size_t>(a.chosen));
    std::sort(order.begin(), order.end());
    double all = 0;
    for (const size_t e : order) all += scores[e];
    std::vector<std::pair<int32_t, double>> chosen;
    for (const size_t e : order) {
        const double scale = double(a.scale) / (a.normalised ? all + double(a.epsilon) : 1);
        const double own = expert_scale.empty() ? 1 : double(expert_scale[e]);
        chosen.emplace_back(int32_t(e), scores[e] * scale * own);
    }
    return chosen;
}

// Turns in the order of experts and then of tokens, each in its place, and tiles of all of them.
void assert_sorted(const RoutingArguments &a, const Routed &got, const std::string &what) {
    std::vector<std::pair<int32_t, int32_t>> turns; // expert, token
    for (int32_t t = 0; t < a.tokens; ++t) {
        for (int32_t c = 0; c < a.chosen; ++c) {
            turns.emplace_back(got.experts_of[size_t(t * a.chosen + c)], t);
        }
    }
    std::sort(turns.begin(), turns.end());
    for (size_t i = 0; i < turns.size(); ++i) {
        if (got.token_of[i] != turns[i].second) {
            fail_msg("%s: turn %d is token %d's and not %d's (expert %d)", what.c_str(), int(i),
                     got.token_of[i], turns[i].second, turns[i].first);
        }
    }
    for (int32_t t = 0; t < a.tokens; ++t) {
        for (int32_t c = 0; c < a.chosen; ++c) {
            const auto at = size_t(t * a.chosen + c);
            const std::pair<int32_t, int32_t> own{got.experts_of[at], t};
            const auto place = std::lower_bound(turns.begin(), turns.end(), own) - turns.begin();
            if (got.turn_of[at] != place) {
                fail_msg("%s: token %d's turn %d is %d and not %d", what.c_str(), t, c,
                         got.turn_of[at], int(place));
            }
        }
    }
    std::vector<ExpertTile> wanted;
    for (size_t i = 0; i < turns.size();) {
        size_t end = i;
        while (end < turns.size() && turns[end].first == turns[i].first) ++end;
        const auto first = static_cast<int32_t>(wanted.size());
        for (size_t begin = i; begin < end; begin += kTileRows) {
            wanted.push_back({turns[i].first, int32_t(i), int32_t(end), first});
        }
        i = end;
    }
    assert_int_equal(got.tiles.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
        const ExpertTile &g = got.tiles[i], &w = wanted[i];
        if (g.expert != w.expert || g.begin != w.begin || g.end != w.end || g.first != w.first) {
            fail_msg("%s: tile %d is (%d, %d, %d, %d) and not (%d, %d, %d, %d)", what.c_str(),
                     int(i), g.expert, g.begin, g.end, g.first, w.expert, w.begin, w.end, w.first);
        }
    }
}

void check_routing(const RoutingArguments &a, const std::vector<float> &logits,
                   const std::vector<float> &bias, const std::vector<float> &correction,
                   const std::string &what, const std::vector<float> &expert_scale = {}) {
    const Routed got = route(a, logits, bias, correction, expert_scale);
    for (int32_t t = 0; t < a.tokens; ++t) {
        const auto wanted =
            choose(a, logits.data() + int64_t{t} * a.stride, bias, correction, expert_scale);
        for (size_t c = 0; c < wanted.size(); ++c) {
            const size_t at = size_t(t) * wanted.size() + c;
            const double weight = double(got.weights[at]);
            if (got.experts_of[at] != wanted[c].first ||
                !(std::fabs(weight - wanted[c].second) <= 1e-5 * std::fabs(wanted[c].second))) {
                fail_msg("%s: token %d, choice %d: expert %d, %g and not %d, %g", what.c_str(), t,
                         int(c), got.experts_of[at], weight, wanted[c].first, wanted[c].second);
            }
        }
    }
    assert_sorted(a, got, what);
    const Routed again = route(a, logits, bias, correction, expert_scale);
    assert_true(again.token_of == got.token_of && again.turn_of == got.turn_of);
    assert_memory_equal(again.weights.data(), got.weights.data(), 4 * got.weights.size());
}

// Logits that no rounding puts in another order: all of a token differ by a thousandth or more.
std::vector<float> apart(Random &random, int32_t tokens, int32_t experts, int32_t stride) {
    std::vector<float> logits(static_cast<size_t>(tokens) * static_cast<size_t>(stride), 1e9F);
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int32_t t = 0; t < tokens; ++t) {
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (int32_t e = 0; e < experts; ++e) {
            logits[size_t(t) * size_t(stride) + size_t(e)] =
                4 * float(order[size_t(e)]) / float(experts) - 2;
        }
    }
    return logits;
}

void routing_is_the_references(void **) {
    Random random(kSeed + 30);
    const int32_t all_tokens[] = {1, 7, 32, 33, 150, 700};
    for (const int32_t experts : {4, 8, 33, 60, 128, 256, 400, 1024}) {
        for (const int32_t tokens : all_tokens) {
            for (const RouterKind kind : {RouterKind::softmax, RouterKind::sigmoid}) {
                Router router;
                router.kind = kind;
                router.chosen = static_cast<int32_t>(draw(random, 1, std::min(experts, 12)));
                router.normalised = draw(random, 0, 1) == 1;
                router.scale = draw(random, 0, 1) == 1 ? 1 : 2.5F;
                router.epsilon = draw(random, 0, 1) == 1 ? 0 : 0.3F;
                const int32_t stride = (experts + 16) / 16 * 16;
                const RoutingArguments a = shape_of(router, tokens, experts, stride);
                check_routing(a, apart(random, tokens, experts, stride), {}, {},
                              std::to_string(experts) + " experts, " + std::to_string(tokens) +
                                  " tokens, " + std::to_string(router.chosen) + " chosen");
            }
        }
    }
}

void biases_corrections_and_groups_are_the_references(void **) {
    Random random(kSeed + 31);
    for (const auto &[experts, groups, kept, chosen] :
         std::vector<std::array<int32_t, 4>>{{8, 4, 2, 3},
                                             {128, 8, 4, 8},
                                             {256, 8, 4, 8},
                                             {60, 6, 1, 4},
                                             {128, 1, 1, 8},
                                             {1024, 64, 3, 20}}) {
        Router router;
        router.kind = RouterKind::sigmoid;
        router.chosen = chosen;
        router.groups = groups;
        router.chosen_groups = kept;
        router.normalised = true;
        router.scale = 1.8F;
        const RoutingArguments a = shape_of(router, 90, experts, experts);
        // Sums of distinct powers would be exact; random ones are as good as never closer than float32.
        const auto logits = normal(random, int64_t{90} * experts, DType::f32);
        const auto bias = normal(random, experts, DType::f32, 0.5F);
        const auto correction = normal(random, experts, DType::f32, 0.2F);
        check_routing(a, logits, bias, correction,
                      std::to_string(groups) + " groups of " + std::to_string(experts));
    }
}

// As Gemma 4 has them, and with all else. An expert's scale has no part in the choice.
void experts_scales_are_the_references(void **) {
    Random random(kSeed + 32);
    for (const int32_t experts : {6, 33, 60, 128, 256, 400, 1024}) {
        for (const int32_t tokens : {1, 33, 700}) {
            Router router;
            router.chosen = std::min(experts - 1, 8);
            router.normalised = true;
            const RoutingArguments a = shape_of(router, tokens, experts, (experts + 15) / 16 * 16);
            check_routing(a, apart(random, tokens, experts, a.stride), {}, {},
                          std::to_string(experts) + " scaled experts, " + std::to_string(tokens) +
                              " tokens",
                          normal(random, experts, DType::f32));
        }
    }
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = 5;
    router.groups = 4;
    router.chosen_groups = 2;
    router.scale = 1.8F;
    const RoutingArguments a = shape_of(router, 90, 64, 64);
    check_routing(a, normal(random, 90 * 64, DType::f32), normal(random, 64, DType::f32, 0.5F),
                  normal(random, 64, DType::f32, 0.2F), "scaled experts in groups",
                  normal(random, 64, DType::f32));
}

// Of equal scores the first; a NaN is the last; saturated sigmoids are equal.
void ties_choose_the_first(void **) {
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = 3;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const int32_t experts = 40;
    std::vector<float> logits(4 * experts);
    for (int32_t e = 0; e < experts; ++e) logits[size_t(e)] = 1;
    for (int32_t e = 0; e < experts; ++e) logits[size_t(experts + e)] = e % 7 == 3 ? 1.0F : 0.0F;
    for (int32_t e = 0; e < experts; ++e) logits[size_t(2 * experts + e)] = e % 9 == 8 ? -3 : nan;
    for (int32_t e = 0; e < experts; ++e) logits[size_t(3 * experts + e)] = e < 2 ? -1.0F : 2.0F;
    const Routed got = route(shape_of(router, 4, experts, experts), logits, {}, {});
    const std::vector<int32_t> wanted = {0, 1, 2, 3, 10, 17, 8, 17, 26, 2, 3, 4};
    for (size_t i = 0; i < wanted.size(); ++i) {
        if (got.experts_of[i] != wanted[i]) {
            fail_msg("choice %d is %d and not %d", int(i), got.experts_of[i], wanted[i]);
        }
    }
}

// Also where their sigmoids are all 1.
void experts_are_chosen_by_logits_where_inputs_are_weighed(void **) {
    Router router;
    router.kind = RouterKind::sigmoid;
    router.chosen = 2;
    const int32_t experts = 40;
    std::vector<float> logits(2 * experts);
    for (int32_t e = 0; e < experts; ++e) {
        logits[size_t(e)] = e == 17 ? 40.0F : e == 5 ? 39.0F : 30.0F;
        logits[size_t(experts + e)] = e == 9 ? -1.0F : e == 38 ? 0.0F : -2.0F;
    }
    RoutingArguments a = shape_of(router, 2, experts, experts);
    a.by_logits = true;
    const Routed got = route(a, logits, {}, {});
    assert_true(got.experts_of == std::vector<int32_t>({5, 17, 9, 38}));
    assert_true(got.weights[0] == 1 && got.weights[1] == 1);
    assert_float_equal(got.weights[2], 1 / (1 + std::exp(1.0F)), 1e-6F);
    assert_float_equal(got.weights[3], 0.5F, 1e-6F);
}

// A row of each turn is its token's times its weight; bytes are copied, and their scales weighed. Weights are 1 then.
void inputs_are_weighed(void **) {
    Random random(kSeed + 33);
    const int32_t tokens = 37, chosen = 3, turns = tokens * chosen, groups = 2;
    for (const int32_t hidden : {8, 256, 5120, 40}) {
        std::vector<int32_t> turn_of(static_cast<size_t>(turns));
        std::iota(turn_of.begin(), turn_of.end(), 0);
        std::shuffle(turn_of.begin(), turn_of.end(), random);
        const DeviceMemory order = upload(turn_of);
        const auto weights = normal(random, turns, DType::f32);
        std::vector<uint8_t> bytes(static_cast<size_t>(tokens) * static_cast<size_t>(hidden));
        for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(draw(random, 0, 255));
        const auto scales = normal(random, tokens * groups, DType::f32);
        const DeviceMemory b = upload(bytes),
                           b_out = upload(std::vector<uint8_t>(chosen * bytes.size()));
        const Array s(scales, DType::f32), s_out(int64_t{turns} * groups, DType::f32);
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            const std::vector<float> x = normal(random, int64_t{tokens} * hidden, type);
            const Array from(x, type), to(int64_t{turns} * hidden, type), w(weights, DType::f32);
            WeighArguments a{};
            a.element = type;
            a.x = from.data();
            a.out = to.data();
            const bool narrow = hidden % 16 == 0;
            if (narrow) {
                a.bytes = b.data();
                a.scales = s.floats();
                a.bytes_out = b_out.data();
                a.scales_out = s_out.floats();
            }
            a.tokens = tokens;
            a.chosen = chosen;
            a.hidden = hidden;
            a.groups = groups;
            a.turn_of = order.as<int32_t>();
            a.weights = w.floats();
            check(launch_weigh(a, nullptr));
            std::vector<double> wanted(static_cast<size_t>(turns) * static_cast<size_t>(hidden));
            const auto got_bytes = download<uint8_t>(b_out, chosen * bytes.size());
            const std::vector<float> got_scales = s_out.read();
            for (int32_t p = 0; p < turns; ++p) {
                const size_t token = size_t(p / chosen), turn = size_t(turn_of[size_t(p)]);
                const size_t h = size_t(hidden);
                for (size_t i = 0; i < h; ++i) {
                    wanted[turn * h + i] = double(weights[size_t(p)]) * double(x[token * h + i]);
                    if (narrow) assert_int_equal(got_bytes[turn * h + i], bytes[token * h + i]);
                }
                for (size_t g = 0; narrow && g < groups; ++g) {
                    assert_true(got_scales[turn * groups + g] ==
                                weights[size_t(p)] * scales[token * groups + g]);
                }
            }
            assert_near(to.read(), wanted, size_t(hidden), tolerance(type), "weighed inputs");
            for (const float weight : w.read()) assert_true(weight == 1);
        }
    }
}

void all_tokens_may_choose_one_expert(void **) {
    Router router;
    router.chosen = 1;
    std::vector<float> logits(1000 * 16, 0);
    for (size_t t = 0; t < 1000; ++t) logits[16 * t + 11] = 5;
    const RoutingArguments a = shape_of(router, 1000, 16, 16);
    const Routed got = route(a, logits, {}, {});
    assert_sorted(a, got, "one expert");
    assert_int_equal(got.tiles.size(), 8);
    assert_int_equal(got.tiles[7].expert, 11);
}

// ---- Grouped products ----

std::vector<double> reference(const Product &p, const Inputs &in) {
    std::vector<double> out, y(static_cast<size_t>(p.rows));
    for (size_t t = 0; t < in.row_of.size(); ++t) {
        const float *x = in.x.data() + int64_t{in.row_of[t]} * p.columns;
        for (int32_t r = 0; r < p.rows; ++r) {
            const float *w = in.w.data() + (int64_t{in.expert_of[t]} * p.rows + r) * p.columns;
            double sum = p.biased ? double(in.bias[size_t(in.expert_of[t] * p.rows + r)]) : 0;
            for (int32_t c = 0; c < p.columns; ++c) sum += double(x[c]) * double(w[c]);
            y[size_t(r)] = sum;
        }
        push_result(p, y, &out);
    }
    return out;
}

std::vector<float> multiply(const Product &p, const Inputs &in, DType type, GroupedKernel kernel) {
    const Array x(in.x, type), w(in_panels(in.w, p, type), type), bias(in.bias, DType::f32);
    const auto turns = static_cast<int64_t>(in.row_of.size());
    const Array y(turns * (p.gated ? p.rows / 2 : p.rows), type);
    const ProductLists lists(p, in);
    GroupedArguments a = lists.arguments;
    a.element = type;
    a.x = x.data();
    a.w = w.data();
    a.bias = p.biased ? bias.floats() : nullptr;
    a.y = y.data();
    check(launch_grouped(kernel, a, sms, nullptr));
    return y.read();
}

std::string name_of(const Product &p, DType type, GroupedKernel kernel) {
    return std::string(dtype_name(type)) + ", " + kKernels[int(kernel)] + ", " + shape_name(p);
}

void check_product(const Product &p, uint64_t seed) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        Random random(seed);
        const Inputs in = product_inputs(random, p, type);
        const std::vector<double> wanted = reference(p, in);
        for (const GroupedKernel kernel : kernels()) {
            if (kernel != GroupedKernel::sm80 && type == DType::f32) continue;
            const std::string name = name_of(p, type, kernel);
            const std::vector<float> got = multiply(p, in, type, kernel);
            const auto width = static_cast<size_t>(p.gated ? p.rows / 2 : p.rows);
            const double limit = type == DType::f32 ? 5e-5 : type == DType::bf16 ? 6e-3 : 1.5e-3;
            assert_near(got, wanted, width, limit, name);
            assert_close(got, wanted, tolerance(type), name.c_str());
            const std::vector<float> again = multiply(p, in, type, kernel);
            if (std::memcmp(again.data(), got.data(), 4 * got.size()) != 0) {
                fail_msg("%s: other bits in another run", name.c_str());
            }
        }
    }
}

// Rows and columns that fill no tile.
void grouped_products_are_the_references(void **) {
    const std::vector<int32_t> one = {0, 0, 391}, single = {0, 1};
    uint64_t seed = kSeed + 40;
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {16, 8}, {48, 24}, {144, 136}, {256, 64}, {272, 320}, {528, 200}, {640, 768}}) {
        for (const bool gated : {true, false}) {
            for (const auto &counts : {kRagged, one, single}) {
                Random random(seed);
                const auto activation = static_cast<Activation>(draw(random, 0, 3));
                const bool biased = draw(random, 0, 1) == 1;
                Product p{static_cast<int32_t>(counts.size()),
                          rows,
                          columns,
                          gated,
                          activation,
                          counts,
                          gated,
                          biased,
                          draw(random, 0, 1) == 1};     // gated: no matter
                if (int64_t{rows} * columns > 100000) { // what the host takes long for
                    for (int32_t &count : p.counts) count = count > 150 ? 150 : count;
                }
                check_product(p, ++seed);
            }
        }
    }
    // As down may have it: columns that are no gate's, rows of eights alone.
    check_product({3, 136, 40, false, Activation::silu, {5, 0, 77}, false}, ++seed);
    check_product({3, 72, 72, false, Activation::silu, {130, 2, 0}, true, true}, ++seed);
    // Up of experts without a gate: of Nemotron 3 Nano's width and narrower.
    const Activation relu = Activation::relu_squared;
    check_product({3, 1856, 96, false, relu, {131, 0, 20}, true, false, true}, ++seed);
    check_product({3, 24, 64, false, relu, {5, 0, 77}, true, true, true}, ++seed);
    // As gpt-oss has it, its experts narrower than any tile and wider than one.
    const Activation clamped = Activation::clamped_swiglu;
    check_product({3, 64, 64, true, clamped, {5, 0, 77}, true, true}, ++seed);
    check_product({4, 720, 360, true, clamped, {1, 140, 0, 33}, true, true}, ++seed);
    // As Gemma 4 26B-A4B has it: gate and up of its experts' width, and down of it, which is no multiple of 128.
    const Activation tanh = Activation::gelu_tanh;
    check_product({3, 1408, 88, true, tanh, {131, 0, 20}, true}, ++seed);
    check_product({3, 144, 704, false, tanh, {131, 0, 20}, false}, ++seed);
    check_product({13, 160, 136, true, tanh, kRagged, true, true}, ++seed);
}

// More tiles than CTAs, so that each computes several.
void grouped_products_of_many_experts_are_the_references(void **) {
    Product p{64, 544, 128, true, Activation::silu, many_counts(kSeed + 60), true};
    check_product(p, kSeed + 61);
    p.gated = p.gathered = false;
    check_product(p, kSeed + 62);
    p.squared = p.gathered = true;
    check_product(p, kSeed + 63);
}

// A turn's result is the same bits whatever other turns there are.
void a_turns_result_depends_on_itself_alone(void **) {
    for (const GroupedKernel kernel : kernels()) {
        Product p{2, 320, 192, true, Activation::clamped_swiglu, {140, 90}, false, true};
        Random random(kSeed + 70);
        Inputs in = product_inputs(random, p, DType::bf16);
        const std::vector<float> all = multiply(p, in, DType::bf16, kernel);
        for (const int32_t turn : {0, 63, 64, 127, 128, 139, 140, 229}) {
            Inputs alone;
            alone.w = in.w;
            alone.bias = in.bias;
            alone.x.assign(in.x.begin() + turn * p.columns, in.x.begin() + (turn + 1) * p.columns);
            alone.row_of = {0};
            alone.expert_of = {turn < 140 ? 0 : 1};
            const std::vector<float> got = multiply(p, alone, DType::bf16, kernel);
            if (std::memcmp(got.data(), all.data() + turn * p.rows / 2, 4 * got.size()) != 0) {
                fail_msg("%s: turn %d alone has other bits", kKernels[int(kernel)], turn);
            }
        }
    }
}

// Far from zero too, where the argument of its tanh is beyond f32's range.
void gates_by_gelu_are_the_references_whatever_their_size(void **) {
    for (const float size : {1e-6F, 0.1F, 5.0F, 50.0F, 1e6F, 1e18F}) {
        for (const GroupedKernel kernel : kernels()) {
            for (const DType type : {DType::f32, DType::bf16}) {
                if (kernel != GroupedKernel::sm80 && type == DType::f32) continue;
                const Product p{1, 32, 64, true, Activation::gelu_tanh, {40}, false};
                Random random(kSeed + 90);
                Inputs in = product_inputs(random, p, type);
                for (float &x : in.x) x = rounded(x * size, type);
                for (size_t i = 0; i < in.w.size(); ++i) { // ups stay as they are
                    if (i / 64 % 16 >= 8) in.w[i] = rounded(in.w[i] / size, type);
                }
                const std::string name =
                    name_of(p, type, kernel) + ", gates of " + std::to_string(size);
                assert_near(multiply(p, in, type, kernel), reference(p, in), 16,
                            type == DType::f32 ? 5e-5 : 6e-3, name);
            }
        }
    }
}

// So that a row whose logits are not finite is found, whatever the activation's bounds.
void a_nan_stays_one(void **) {
    for (const GroupedKernel kernel : kernels()) {
        for (const DType type : {DType::f32, DType::f16}) {
            if (kernel != GroupedKernel::sm80 && type == DType::f32) continue;
            Product p{1, 32, 64, true, Activation::clamped_swiglu, {3}, false, true};
            for (const bool gated : {true, false}) {
                p.gated = gated;
                p.squared = !gated;
                Random random(kSeed + 80);
                Inputs in = product_inputs(random, p, type);
                in.x[size_t(p.columns)] = std::numeric_limits<float>::quiet_NaN(); // of turn 1
                const std::vector<float> got = multiply(p, in, type, kernel);
                const size_t width = got.size() / 3;
                for (size_t i = 0; i < got.size(); ++i) {
                    if (std::isnan(got[i]) != (i / width == 1)) {
                        fail_msg("%s: turn %d: %g", name_of(p, type, kernel).c_str(),
                                 int(i / width), static_cast<double>(got[i]));
                    }
                }
            }
        }
    }
}

// ---- The weighted sum ----

void sums_are_the_references(void **) {
    Random random(kSeed + 50);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const DType stream : {type, DType::f32}) {
            for (const int variant : {0, 1, 2}) { // no shared expert, one, one behind a gate
                const int32_t tokens = 37, chosen = 5, hidden = variant == 1 ? 2048 : 136;
                const int64_t turns = tokens * chosen;
                const auto made = normal(random, turns * hidden, type);
                const auto delta = normal(random, int64_t{tokens} * hidden, stream);
                const auto before = normal(random, int64_t{tokens} * hidden, stream);
                const auto weights = normal(random, turns, DType::f32);
                const auto gates = normal(random, int64_t{tokens} * 16, DType::f32);
                const auto scales = normal(random, hidden, DType::f32);
                std::vector<int32_t> turn_of(static_cast<size_t>(turns));
                std::iota(turn_of.begin(), turn_of.end(), 0);
                std::shuffle(turn_of.begin(), turn_of.end(), random);
                const Array from(made, type), shared(delta, stream), to(before, stream),
                    w(weights, DType::f32), g(gates, DType::f32), norm(scales, DType::f32);
                const Array out(int64_t{tokens} * hidden, type);
                const DeviceMemory places = upload(turn_of);
                CombineArguments a{};
                a.add.element = type;
                a.add.stream_type = stream;
                a.add.residual = to.data();
                a.add.delta = variant > 0 ? shared.data() : nullptr;
                a.add.scale = 0.7F;
                a.add.next = {NormKind::rms, norm.floats(), nullptr, 1e-5F};
                a.add.out = out.data();
                a.add.count = tokens;
                a.add.hidden = hidden;
                a.made = from.data();
                a.turn_of = places.as<int32_t>();
                a.weights = w.floats();
                a.shared_gate = variant == 2 ? g.floats() + 3 : nullptr;
                a.gate_stride = 16;
                a.chosen = chosen;
                check(launch_combine(a, nullptr));
                const std::vector<float> kept = to.read();
                std::vector<double> sums, normed;
                for (int32_t t = 0; t < tokens; ++t) {
                    const double gate = 1 / (1 + std::exp(-double(gates[size_t(16 * t + 3)])));
                    double squares = 0;
                    for (int32_t i = 0; i < hidden; ++i) {
                        const auto place = static_cast<size_t>(t * hidden + i);
                        double sum = variant == 0 ? 0 : double(delta[place]);
                        if (variant == 2) sum *= gate;
                        for (int32_t c = 0; c < chosen; ++c) {
                            const auto at = static_cast<size_t>(t * chosen + c);
                            sum += double(weights[at]) *
                                   double(made[size_t(turn_of[at] * hidden + i)]);
                        }
                        sums.push_back(double(before[place]) + double(0.7F) * sum);
                        squares += double(kept[place]) * double(kept[place]) / hidden;
                    }
                    for (int32_t i = 0; i < hidden; ++i) { // of what is stored
                        normed.push_back(double(kept[size_t(t * hidden + i)]) *
                                         double(scales[size_t(i)]) / std::sqrt(squares + 1e-5));
                    }
                }
                const std::string what = "sum, variant " + std::to_string(variant);
                assert_close(kept, sums, tolerance(stream), what.c_str());
                assert_close(out.read(), normed, tolerance(type), (what + ", its norm").c_str());
            }
        }
    }
}

// to += norm(sum): nothing is passed on.
void sums_with_a_norm_of_their_own_are_the_references(void **) {
    Random random(kSeed + 51);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const DType stream : {type, DType::f32}) {
            for (const int32_t hidden : {8, 136, 2816, 5376}) {
                const int32_t tokens = 21, chosen = 8;
                const int64_t turns = tokens * chosen, all = int64_t{tokens} * hidden;
                const auto made = normal(random, turns * hidden, type);
                const auto before = normal(random, all, stream);
                const auto weights = normal(random, turns, DType::f32);
                const auto scales = normal(random, hidden, DType::f32);
                std::vector<int32_t> turn_of(static_cast<size_t>(turns));
                std::iota(turn_of.begin(), turn_of.end(), 0);
                std::shuffle(turn_of.begin(), turn_of.end(), random);
                const Array from(made, type), to(before, stream), w(weights, DType::f32),
                    norm(scales, DType::f32);
                const DeviceMemory places = upload(turn_of);
                CombineArguments a{};
                a.add = {type,    stream,  to.data(),
                         nullptr, nullptr, {NormKind::rms, norm.floats(), nullptr, 1e-6F},
                         1,       {},      nullptr,
                         tokens,  hidden};
                a.made = from.data();
                a.turn_of = places.as<int32_t>();
                a.weights = w.floats();
                a.chosen = chosen;
                check(launch_combine(a, nullptr));
                std::vector<double> wanted;
                for (int32_t t = 0; t < tokens; ++t) {
                    std::vector<double> sum(static_cast<size_t>(hidden));
                    double squares = 0;
                    for (int32_t i = 0; i < hidden; ++i) {
                        for (int32_t c = 0; c < chosen; ++c) {
                            const auto at = size_t(t * chosen + c);
                            sum[size_t(i)] += double(weights[at]) *
                                              double(made[size_t(turn_of[at] * hidden + i)]);
                        }
                        squares += sum[size_t(i)] * sum[size_t(i)] / hidden;
                    }
                    for (int32_t i = 0; i < hidden; ++i) {
                        wanted.push_back(double(before[size_t(t * hidden + i)]) +
                                         sum[size_t(i)] * double(scales[size_t(i)]) /
                                             std::sqrt(squares + 1e-6));
                    }
                }
                const std::string what = "normed sum, " + std::to_string(hidden) + " wide";
                assert_close(to.read(), wanted, tolerance(stream), what.c_str());
            }
        }
    }
}

// A norm of the shared expert's result and one of the sum, what is added up normed again: as by three launches.
void sums_of_normed_parts_are_those_of_launches_apart(void **) {
    Random random(kSeed + 52);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const int32_t hidden : {8, 136, 2816, 5376}) {
            const int32_t tokens = 21, chosen = 8;
            const int64_t turns = tokens * chosen, all = int64_t{tokens} * hidden;
            const auto made = normal(random, turns * hidden, type);
            const auto before = normal(random, all, type), delta = normal(random, all, type);
            const auto weights = normal(random, turns, DType::f32);
            std::vector<int32_t> turn_of(static_cast<size_t>(turns));
            std::iota(turn_of.begin(), turn_of.end(), 0);
            std::shuffle(turn_of.begin(), turn_of.end(), random);
            const Array from(made, type), w(weights, DType::f32),
                keep(std::vector<float>{0.3F}, DType::f32);
            const Array together(before, type), apart(before, type);
            const Array shared(delta, type), parts(delta, type);
            const Array out(all, type), wanted(all, type);
            std::vector<Array> scales;
            std::vector<DeviceNorm> norms;
            for (int i = 0; i < 4; ++i) {
                scales.emplace_back(normal(random, hidden, DType::f32), DType::f32);
                norms.push_back({NormKind::rms, scales.back().floats(), nullptr, 1e-6F});
            }
            const DeviceMemory places = upload(turn_of);
            CombineArguments a{};
            a.add = {type, type,     together.data(), shared.data(), nullptr, norms[2],
                     1,    norms[3], out.data(),      tokens,        hidden,  keep.floats()};
            a.made = from.data();
            a.turn_of = places.as<int32_t>();
            a.weights = w.floats();
            a.chosen = chosen;
            CombineArguments sum = a;
            AddNormArguments end = a.add;
            a.norms = {norms[0], norms[1]};
            check(launch_combine(a, nullptr));
            check(launch_add_norm({type,
                                   type,
                                   parts.data(),
                                   nullptr,
                                   nullptr,
                                   {},
                                   1,
                                   norms[0],
                                   parts.data(),
                                   tokens,
                                   hidden},
                                  nullptr));
            sum.add = {type, type, parts.data(), nullptr, nullptr, norms[1],
                       1,    {},   nullptr,      tokens,  hidden};
            check(launch_combine(sum, nullptr));
            end.residual = apart.data();
            end.delta = parts.data();
            end.out = wanted.data();
            check(launch_add_norm(end, nullptr));
            const auto as_double = [](const std::vector<float> &x) {
                return std::vector<double>(x.begin(), x.end());
            };
            const std::string what = "normed parts, " + std::to_string(hidden) + " wide";
            assert_close(together.read(), as_double(apart.read()), tolerance(type), what.c_str());
            assert_close(out.read(), as_double(wanted.read()), tolerance(type), what.c_str());
        }
    }
}

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    hopper = properties.major == 9 && properties.minor == 0;
    const CMUnitTest tests[] = {
        cmocka_unit_test(routing_is_the_references),
        cmocka_unit_test(biases_corrections_and_groups_are_the_references),
        cmocka_unit_test(experts_scales_are_the_references),
        cmocka_unit_test(ties_choose_the_first),
        cmocka_unit_test(experts_are_chosen_by_logits_where_inputs_are_weighed),
        cmocka_unit_test(inputs_are_weighed),
        cmocka_unit_test(all_tokens_may_choose_one_expert),
        cmocka_unit_test(grouped_products_are_the_references),
        cmocka_unit_test(grouped_products_of_many_experts_are_the_references),
        cmocka_unit_test(a_turns_result_depends_on_itself_alone),
        cmocka_unit_test(gates_by_gelu_are_the_references_whatever_their_size),
        cmocka_unit_test(a_nan_stays_one),
        cmocka_unit_test(sums_are_the_references),
        cmocka_unit_test(sums_with_a_norm_of_their_own_are_the_references),
        cmocka_unit_test(sums_of_normed_parts_are_those_of_launches_apart),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
