// Grouped products that add what adapters do to their turns, before bias and activation, against the same on the host in double
// precision; and the lists of tiles' adapters that they go by.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "experts/adapted.h"

#include "cuda_experts.h"
#include "seed.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;

constexpr int32_t kFirst = 3, kEach = 2; // where an adapter's entries of experts begin; an expert's

// An adapter's change of one expert's product.
struct Change {
    int32_t ranks[2] = {}, firsts[2] = {}; // of gate and up, or of all rows: multiples of 8
    std::vector<float> b[2];               // [rows of the part, rank]
};
struct Adapted {
    std::vector<std::vector<Change>> of; // [adapters][experts]; none: it changes no experts
    std::vector<int32_t> of_turn;        // [turns] or -1
    int32_t t_stride = 8, most_of_part = 0;
    std::vector<float> t; // [turns, t_stride]; of turns without an adapter NaN
};

int32_t part_rows(const Product &p) { return p.gated ? p.rows / 2 : p.rows; }

// Turns have an adapter alike, or each its own, by runs as tokens have them.
Adapted made_up(Random &random, const Product &p, const Inputs &in, DType type, int32_t adapters,
                int32_t most_rank) {
    Adapted made;
    made.t_stride = static_cast<int32_t>(draw(random, (most_rank + 7) / 8, 8)) * 8;
    for (int32_t i = 0; i < adapters; ++i) {
        std::vector<Change> changes;
        const bool any = i == 0 || draw(random, 0, 9) > 0;
        for (int32_t e = 0; any && e < p.experts; ++e) {
            Change change;
            for (int part = 0; part < (p.gated ? 2 : 1); ++part) {
                // At times an expert or a part is left as it is.
                const auto rank = static_cast<int32_t>(
                    draw(random, 0, 5) == 0 ? 0 : (draw(random, 1, most_rank) + 7) / 8 * 8);
                change.ranks[part] = rank;
                change.firsts[part] =
                    static_cast<int32_t>(draw(random, 0, (made.t_stride - rank) / 8)) * 8;
                change.b[part] = normal(random, int64_t{part_rows(p)} * rank, type, 0.3F);
                made.most_of_part = std::max(made.most_of_part, rank);
            }
            changes.push_back(std::move(change));
        }
        made.of.push_back(std::move(changes));
    }
    made.t = normal(random, int64_t(in.row_of.size()) * made.t_stride, type);
    int32_t own = -1;
    for (size_t turn = 0; turn < in.row_of.size(); ++turn) {
        if (draw(random, 0, adapters > 20 ? 1 : 9) == 0) {
            own = static_cast<int32_t>(draw(random, -1, adapters - 1));
        }
        made.of_turn.push_back(own);
        if (own >= 0 && !made.of[size_t(own)].empty()) continue;
        std::fill_n(made.t.begin() + std::ptrdiff_t(turn) * made.t_stride, made.t_stride,
                    std::numeric_limits<float>::quiet_NaN());
    }
    return made;
}

std::vector<double> reference(const Product &p, const Inputs &in, const Adapted &adapted) {
    std::vector<double> out, y(static_cast<size_t>(p.rows));
    for (size_t turn = 0; turn < in.row_of.size(); ++turn) {
        const float *x = in.x.data() + int64_t{in.row_of[turn]} * p.columns;
        const int32_t expert = in.expert_of[turn];
        const int32_t own = adapted.of_turn[turn];
        const bool changed = own >= 0 && !adapted.of[size_t(own)].empty();
        for (int32_t r = 0; r < p.rows; ++r) {
            const float *w = in.w.data() + (int64_t{expert} * p.rows + r) * p.columns;
            double sum = p.biased ? double(in.bias[size_t(expert * p.rows + r)]) : 0;
            for (int32_t c = 0; c < p.columns; ++c) sum += double(x[c]) * double(w[c]);
            const int part = p.gated && r % 16 >= 8 ? 1 : 0;
            const int32_t row = p.gated ? r / 16 * 8 + r % 8 : r;
            if (changed) {
                const Change &change = adapted.of[size_t(own)][size_t(expert)];
                const int32_t rank = change.ranks[part];
                for (int32_t k = 0; k < rank; ++k) {
                    sum += double(change.b[part][size_t(row * rank + k)]) *
                           double(adapted.t[turn * size_t(adapted.t_stride) +
                                            size_t(change.firsts[part] + k)]);
                }
            }
            y[size_t(r)] = sum;
        }
        push_result(p, y, &out);
    }
    return out;
}

// Adapters on the device.
struct Loaded {
    Array b;
    DeviceMemory entries;
    std::vector<const AdapterEntry *> of; // [adapters]

    static std::vector<float> packed(const Product &p, const Adapted &adapted) {
        std::vector<float> all;
        for (const auto &changes : adapted.of) {
            for (const Change &change : changes) {
                for (int part = 0; part < 2; ++part) {
                    const int32_t rank = change.ranks[part];
                    if (rank == 0) continue;
                    const size_t begin = all.size();
                    all.resize(begin + size_t(packed_b_elements(part_rows(p), rank)), 0);
                    for (int32_t r = 0; r < part_rows(p); ++r) {
                        for (int32_t k = 0; k < rank; ++k) {
                            all[begin + size_t(packed_b(r, k, rank))] =
                                change.b[part][size_t(r * rank + k)];
                        }
                    }
                }
            }
        }
        return all;
    }
    Loaded(const Product &p, const Adapted &adapted, DType type, int32_t place)
        : b(packed(p, adapted), type) {
        std::vector<AdapterEntry> all;
        std::vector<size_t> begins;
        int64_t at = 0;
        for (const auto &changes : adapted.of) {
            begins.push_back(all.size());
            const size_t count = kFirst + changes.size() * kEach;
            all.resize(all.size() + count);
            all[begins.back()].entries = static_cast<int32_t>(count);
            for (size_t e = 0; e < changes.size(); ++e) {
                AdapterEntry &entry = all[begins.back() + kFirst + e * kEach + size_t(place)];
                entry.b = static_cast<const std::byte *>(b.data()) + 2 * at;
                int64_t units = 0;
                for (int part = 0; part < 2; ++part) {
                    const int32_t rank = changes[e].ranks[part];
                    entry.parts[part] = {rank, changes[e].firsts[part],
                                         static_cast<int32_t>(units / 8), 1};
                    if (rank > 0) units += packed_b_elements(part_rows(p), rank);
                }
                entry.ranks = adapted.t_stride;
                at += units;
            }
        }
        entries = upload(all);
        for (const size_t begin : begins) of.push_back(entries.as<AdapterEntry>() + begin);
    }
};

void check_product(const Product &p, int32_t adapters, int32_t most_rank, uint64_t seed) {
    for (const DType type : {DType::bf16, DType::f16}) {
        Random random(seed);
        const Inputs in = product_inputs(random, p, type);
        const Adapted adapted = made_up(random, p, in, type, adapters, most_rank);
        const auto place = static_cast<int32_t>(draw(random, 0, 1));
        const Loaded loaded(p, adapted, type, place);
        const auto turns = static_cast<int64_t>(in.row_of.size());
        const ProductLists lists(p, in);
        const Array x(in.x, type), w(in_panels(in.w, p, type), type), bias(in.bias, DType::f32);
        const Array t(adapted.t, type);
        const auto tiles = static_cast<int64_t>(tiles_of(in).size());
        auto short_tiles = DeviceMemory::create(turns * int64_t{sizeof(AdapterTile)}, "test");
        auto in_tiles = DeviceMemory::create(turns, "test");
        auto tile_adapters = DeviceMemory::create(tiles * int64_t{sizeof(TileAdapters)}, "test");
        const DeviceMemory count = upload(std::vector<int32_t>{0});
        const auto multiply = [&](GroupedAdapters of) {
            const Array y(turns * part_rows(p), type);
            GroupedArguments a = lists.arguments;
            a.element = type;
            a.x = x.data();
            a.w = w.data();
            a.bias = p.biased ? bias.floats() : nullptr;
            a.y = y.data();
            a.adapters = of;
            check(launch_grouped_sm90(a, sms, nullptr));
            return y.read();
        };
        // Of all adapters, or of one alone. A token for each turn.
        const auto run = [&](std::optional<int32_t> alone) {
            std::vector<const AdapterEntry *> of_tokens;
            std::vector<int32_t> token_of;
            for (size_t turn = 0; turn < in.row_of.size(); ++turn) {
                token_of.push_back(static_cast<int32_t>(in.row_of.size() - 1 - turn));
                const int32_t own = adapted.of_turn[in.row_of.size() - 1 - turn];
                const bool has = own >= 0 && own == alone.value_or(own);
                of_tokens.push_back(has ? loaded.of[size_t(own)] : nullptr);
            }
            const DeviceMemory entries = upload(of_tokens), tokens = upload(token_of);
            const AdaptedTurns listed{lists.tiles.as<ExpertTile>(),
                                      lists.count.as<int32_t>(),
                                      tokens.as<int32_t>(),
                                      entries.as<const AdapterEntry *>(),
                                      kFirst,
                                      kEach,
                                      false,
                                      short_tiles->as<AdapterTile>(),
                                      count.as<int32_t>(),
                                      in_tiles->as<uint8_t>(),
                                      tile_adapters->as<TileAdapters>()};
            check(launch_adapted_turns(listed, sms, nullptr));
            return multiply({tile_adapters->as<TileAdapters>(), kFirst + place, t.data(),
                             adapted.t_stride, adapted.most_of_part});
        };
        const std::string name = std::string(dtype_name(type)) + ", " + std::to_string(adapters) +
                                 " adapters, seed " + std::to_string(seed) + ", " + shape_name(p);
        const auto width = static_cast<size_t>(part_rows(p));
        const std::vector<float> got = run({});
        assert_near(got, reference(p, in, adapted), width, type == DType::bf16 ? 6e-3 : 1.5e-3,
                    name);
        // A turn's bits are its own: what its tile's other turns have does not matter.
        const auto require_same = [&](const std::vector<float> &other, auto concerned) {
            for (size_t turn = 0; turn < in.row_of.size(); ++turn) {
                if (!concerned(adapted.of_turn[turn])) continue;
                if (std::memcmp(&got[turn * width], &other[turn * width], 4 * width) != 0) {
                    fail_msg("%s: other bits of turn %zu in other company", name.c_str(), turn);
                }
            }
        };
        const auto chosen = static_cast<int32_t>(draw(random, 0, adapters - 1));
        require_same(run({}), [](int32_t) { return true; });
        require_same(run(chosen), [&](int32_t own) { return own == chosen; });
        require_same(multiply({}),
                     [&](int32_t own) { return own < 0 || adapted.of[size_t(own)].empty(); });
    }
}

void changes_are_added_before_all_else(void **) {
    uint64_t seed = seed_of_run();
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {16, 8}, {80, 24}, {144, 136}, {256, 64}, {528, 200}, {640, 320}}) {
        for (const bool gated : {true, false}) {
            for (const auto &[adapters, rank] : std::vector<std::pair<int32_t, int32_t>>{
                     {1, 8}, {2, 16}, {5, 64}, {40, 24}, {150, 8}}) {
                Random random(++seed);
                Product p{static_cast<int32_t>(kRagged.size()),
                          rows,
                          columns,
                          gated,
                          static_cast<Activation>(draw(random, 0, 3)),
                          kRagged,
                          draw(random, 0, 1) == 1,
                          draw(random, 0, 1) == 1,
                          draw(random, 0, 1) == 1};
                if (int64_t{rows} * columns > 30000) { // what the host takes long for
                    for (int32_t &count : p.counts) count = count > 150 ? 140 : count;
                }
                check_product(p, adapters, rank, seed);
            }
        }
    }
}

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9 || properties.minor != 0) {
        std::printf("SKIP: no compute capability 9.0\n");
        return 77;
    }
    sms = properties.multiProcessorCount;
    const CMUnitTest tests[] = {cmocka_unit_test(changes_are_added_before_all_else)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
