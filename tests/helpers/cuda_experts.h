// Shared by the tests of the grouped products: a product and its inputs, on the host. Includes
// cmocka: include this last.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "experts/grouped.h"
#include "reference_layer.h"

#include "cuda_arrays.h"

namespace batchllm::cuda {

// Reports the first value that is off by more than `limit` times itself or, if larger, times the
// root mean square.
inline void assert_near(const std::vector<float> &got, const std::vector<double> &wanted,
                        size_t width, double limit, const std::string &what) {
    assert_int_equal(got.size(), wanted.size());
    double squares = 1e-30, worst = 0;
    for (const double x : wanted) squares += x * x / static_cast<double>(wanted.size());
    const double scale = std::sqrt(squares);
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double wrong = std::fabs(static_cast<double>(got[i]) - wanted[i]) /
                             std::max(scale, std::fabs(wanted[i]));
        worst = std::max(worst, wrong);
        if (wrong <= limit) continue; // a NaN is not skipped
        if (bad++ == 0) first = i;
    }
    if (bad == 0) return;
    fail_msg(
        "%s: %d of %d values are wrong (limit %g, worst %g); the first in row %d, column %d: %g "
        "and not %g",
        what.c_str(), int(bad), int(got.size()), limit, worst, int(first / width),
        int(first % width), static_cast<double>(got[first]), wanted[first]);
}

struct Product {
    int32_t experts, rows, columns;
    bool gated;
    Activation activation;
    std::vector<int32_t> counts; // turns of each expert
    bool gathered;               // x through row_of
    bool biased = false;
    bool squared = false; // if not gated
};

struct Inputs {
    std::vector<float> x, w;
    std::vector<float> bias;                // [experts, rows], or none
    std::vector<int32_t> row_of, expert_of; // [turns]
};

// The experts of the turns must be ascending.
inline std::vector<ExpertTile> tiles_of(const Inputs &in) {
    std::vector<ExpertTile> tiles;
    for (size_t i = 0; i < in.expert_of.size();) {
        size_t end = i;
        while (end < in.expert_of.size() && in.expert_of[end] == in.expert_of[i]) ++end;
        const auto first = static_cast<int32_t>(tiles.size());
        for (size_t begin = i; begin < end; begin += kTileRows) {
            tiles.push_back({in.expert_of[i], int32_t(i), int32_t(end), first});
        }
        i = end;
    }
    return tiles;
}

// Makes the turns and their rows of x: everything except x and W. Returns how many rows x has.
inline int64_t make_turns(Random &random, const Product &p, Inputs *in) {
    int32_t turns = 0;
    for (int32_t e = 0; e < p.experts; ++e) {
        const int32_t end = turns + p.counts[size_t(e)];
        for (; turns < end; ++turns) in->expert_of.push_back(e);
    }
    const int32_t rows = p.gathered ? turns / 3 + 1 : turns;
    for (int32_t i = 0; i < turns; ++i) {
        in->row_of.push_back(p.gathered ? int32_t(draw(random, 0, rows - 1)) : i);
    }
    return rows;
}

// And x, W and biases, in 16 bits or f32.
inline Inputs product_inputs(Random &random, const Product &p, DType type) {
    Inputs in;
    const int64_t rows = make_turns(random, p, &in);
    in.x = normal(random, rows * p.columns, type);
    in.w = normal(random, int64_t{p.experts} * p.rows * p.columns, type,
                  1 / std::sqrt(static_cast<float>(p.columns)));
    // So large that gates and ups reach the bounds of a clamped SwiGLU.
    if (p.biased) in.bias = normal(random, int64_t{p.experts} * p.rows, DType::f32, 6);
    return in;
}

// The arguments of a launch that are the same for all element types. The lists live as long as
// this.
struct ProductLists {
    DeviceMemory row_of, tiles, count;
    GroupedArguments arguments{};

    ProductLists(const Product &p, const Inputs &in) {
        const std::vector<ExpertTile> list = tiles_of(in);
        row_of = upload(in.row_of);
        tiles = upload(list);
        count = upload(std::vector<int32_t>{int32_t(list.size())});
        arguments.row_of = p.gathered ? row_of.as<int32_t>() : nullptr;
        arguments.rows = p.rows;
        arguments.columns = p.columns;
        arguments.gated = p.gated;
        arguments.activation = p.activation;
        arguments.squared = p.squared;
        arguments.tiles = tiles.as<ExpertTile>();
        arguments.tile_count = count.as<int32_t>();
    }
};

inline std::string shape_name(const Product &p) {
    std::string name = std::to_string(p.rows) + " x " + std::to_string(p.columns) +
                       (p.gated ? ", gated by " + std::to_string(int(p.activation)) : "") +
                       (!p.gated && p.squared ? ", squared" : "") + (p.biased ? ", biased" : "") +
                       (p.gathered ? ", gathered" : "") + ", turns";
    for (const int32_t count : p.counts) name += " " + std::to_string(count);
    return name;
}

// [experts][rows, columns] as experts/grouped.h says; rows of gate and up already in turns.
inline std::vector<float> in_panels(const std::vector<float> &w, const Product &p, DType type) {
    if (type == DType::f32) return w;
    const int64_t panels = (p.columns + 63) / 64;
    std::vector<float> out(size_t(p.experts * p.rows * panels * 64), 0.0F);
    for (int64_t e = 0; e < p.experts; ++e) {
        for (int64_t r = 0; r < p.rows; ++r) {
            for (int64_t c = 0; c < p.columns; ++c) {
                const int64_t chunk = (c % 64 / 8) ^ (r % 8);
                out[size_t(((e * panels + c / 64) * p.rows + r) * 64 + chunk * 8 + c % 8)] =
                    w[size_t((e * p.rows + r) * p.columns + c)];
            }
        }
    }
    return out;
}

// Turns of experts: none, one, a full tile, one more, half a tile and one more.
inline const std::vector<int32_t> kRagged = {0, 1, 128, 129, 64, 65, 0, 17, 300, 0, 90, 33, 105};

// For 64 experts, so that each CTA computes several tiles.
inline std::vector<int32_t> many_counts(uint64_t seed) {
    Random random(seed);
    std::vector<int32_t> counts;
    for (int32_t e = 0; e < 64; ++e) {
        counts.push_back(static_cast<int32_t>(draw(random, 0, 3) == 0 ? draw(random, 0, 200) : 9));
    }
    return counts;
}

// Appends an activated result: of gate and up, or of one row with or without an activation.
inline void push_result(const Product &p, const std::vector<double> &y, std::vector<double> *out) {
    for (int32_t r = 0; r < p.rows; ++r) {
        if (!p.gated) {
            const double of = y[size_t(r)];
            out->push_back(p.squared ? reference::activated(Activation::relu_squared, of) : of);
        }
        if (p.gated && r % 16 < 8) {
            out->push_back(reference::gated(p.activation, y[size_t(r)], y[size_t(r + 8)]));
        }
    }
}

} // namespace batchllm::cuda
