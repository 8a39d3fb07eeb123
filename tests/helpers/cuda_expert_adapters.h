// Shared by the tests of grouped products that add what adapters do: adapters of experts, on the host and on the device. Includes
// cmocka: include this last.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "experts/adapted.h"

#include "cuda_experts.h"

namespace batchllm::cuda {

// Where an adapter's entries of experts begin; an expert's.
inline constexpr int32_t kFirstOfExperts = 3, kOfExpert = 2;

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

inline int32_t part_rows(const Product &p) { return p.gated ? p.rows / 2 : p.rows; }

// Turns have an adapter alike, or each its own, by runs as tokens have them.
inline Adapted made_up(Random &random, const Product &p, const Inputs &in, DType type,
                       int32_t adapters, int32_t most_rank) {
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

// What a turn's adapter adds to row r of its expert's W x.
inline double change_of(const Product &p, const Adapted &adapted, size_t turn, int32_t expert,
                        int32_t r) {
    const int32_t own = adapted.of_turn[turn];
    if (own < 0 || adapted.of[size_t(own)].empty()) return 0;
    const int part = p.gated && r % 16 >= 8 ? 1 : 0;
    const int32_t row = p.gated ? r / 16 * 8 + r % 8 : r;
    const Change &change = adapted.of[size_t(own)][size_t(expert)];
    const int32_t rank = change.ranks[part];
    const size_t first = turn * size_t(adapted.t_stride) + size_t(change.firsts[part]);
    double sum = 0;
    for (int32_t k = 0; k < rank; ++k) {
        sum +=
            double(change.b[part][size_t(row * rank + k)]) * double(adapted.t[first + size_t(k)]);
    }
    return sum;
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
            const size_t count = kFirstOfExperts + changes.size() * kOfExpert;
            all.resize(all.size() + count);
            all[begins.back()].entries = static_cast<int32_t>(count);
            for (size_t e = 0; e < changes.size(); ++e) {
                AdapterEntry &entry =
                    all[begins.back() + kFirstOfExperts + e * kOfExpert + size_t(place)];
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

// The list of tiles' adapters, as steps make it.
class ListedAdapters {
  public:
    ListedAdapters(const Product &p, const Inputs &in, const Adapted &adapted, DType type,
                   int32_t place)
        : adapted_(adapted), place_(place), loaded_(p, adapted, type, place), lists_(p, in),
          t_(adapted.t, type) {
        const size_t turns = in.row_of.size(), tiles = tiles_of(in).size();
        short_tiles_ = upload(std::vector<AdapterTile>(turns));
        in_tiles_ = upload(std::vector<uint8_t>(turns));
        tile_adapters_ = upload(std::vector<TileAdapters>(tiles));
        count_ = upload(std::vector<int32_t>{0});
    }

    // Of all adapters, or of one alone. A token for each turn.
    GroupedAdapters list(std::optional<int32_t> alone, int32_t sms) const {
        std::vector<const AdapterEntry *> of_tokens;
        std::vector<int32_t> token_of;
        const size_t turns = adapted_.of_turn.size();
        for (size_t turn = 0; turn < turns; ++turn) {
            token_of.push_back(static_cast<int32_t>(turns - 1 - turn));
            const int32_t own = adapted_.of_turn[turns - 1 - turn];
            const bool has = own >= 0 && own == alone.value_or(own);
            of_tokens.push_back(has ? loaded_.of[size_t(own)] : nullptr);
        }
        const DeviceMemory entries = upload(of_tokens), tokens = upload(token_of);
        check(launch_adapted_turns({lists_.tiles.as<ExpertTile>(), lists_.count.as<int32_t>(),
                                    tokens.as<int32_t>(), entries.as<const AdapterEntry *>(),
                                    kFirstOfExperts, kOfExpert, false,
                                    short_tiles_.as<AdapterTile>(), count_.as<int32_t>(),
                                    in_tiles_.as<uint8_t>(), tile_adapters_.as<TileAdapters>()},
                                   sms, nullptr));
        check(cudaDeviceSynchronize()); // before the lists go
        return {tile_adapters_.as<TileAdapters>(), kFirstOfExperts + place_, t_.data(),
                adapted_.t_stride, adapted_.most_of_part};
    }

  private:
    const Adapted &adapted_;
    int32_t place_;
    Loaded loaded_;
    ProductLists lists_;
    Array t_;
    DeviceMemory short_tiles_, in_tiles_, tile_adapters_, count_;
};

// A turn's bits are its own: what its tile's other turns have does not matter. run: the products with these adapters; got: with
// all of them.
template <typename Run> void require_own_bits(Random &random, const Adapted &adapted,
                                              const ListedAdapters &listed, int32_t sms,
                                              const std::vector<float> &got, const Run &run,
                                              const std::string &what) {
    const size_t turns = adapted.of_turn.size(), width = got.size() / turns;
    const auto require_same = [&](const std::vector<float> &other, auto concerned) {
        for (size_t turn = 0; turn < turns; ++turn) {
            if (!concerned(adapted.of_turn[turn])) continue;
            if (std::memcmp(&got[turn * width], &other[turn * width], 4 * width) != 0) {
                fail_msg("%s: other bits of turn %zu in other company", what.c_str(), turn);
            }
        }
    };
    const auto chosen = static_cast<int32_t>(draw(random, 0, int64_t(adapted.of.size()) - 1));
    require_same(run(listed.list({}, sms)), [](int32_t) { return true; });
    require_same(run(listed.list(chosen, sms)), [&](int32_t own) { return own == chosen; });
    require_same(run({}), [&](int32_t own) { return own < 0 || adapted.of[size_t(own)].empty(); });
}

} // namespace batchllm::cuda
