// The synthetic job of the planning benches and of tests/plan/test_plan_cache.cc: rows that consist of a
// common head, a document's prefix and their own part, with normally distributed lengths, in random
// order. ("industry 1": 3,000 rows, prefix 1,100, of which 275 are common to all, own 400, sharing
// 7, spread 20 %.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "plan/plan.h"

namespace batchllm {

struct JobShape {
    int64_t rows = 3000;
    double prefix = 1100; // tokens, including the common ones
    int32_t common = 275;
    double own = 400;
    double sharing = 7;  // rows per prefix, on average
    bool uneven = false; // rows per prefix: geometric instead of as even as possible
    double spread = 0.2; // of prefix and own lengths: standard deviation / mean
    uint64_t seed = 1;
};

struct JobRows {
    std::vector<int32_t> tokens;
    std::vector<TokenRow> rows;
};

inline JobRows make_job_rows(const JobShape &shape) {
    std::mt19937_64 random(shape.seed);
    const auto length = [&](double mean, int32_t least) {
        // Drawn even without a spread, so that the rows' tokens stay the same.
        std::normal_distribution<double> normal(mean, std::max(1e-9, mean * shape.spread));
        return std::max(least, static_cast<int32_t>(std::lround(normal(random))));
    };
    uint64_t state = random() | 1;
    const auto fill = [&](int32_t *tokens, int64_t count) {
        for (int64_t i = 0; i < count; ++i) { // xorshift, because there are up to a billion tokens
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            tokens[i] = static_cast<int32_t>(state >> 40) & 0x7fff;
        }
    };

    struct Document {
        int64_t offset; // of its tokens after the common ones
        int32_t length;
    };
    struct OwnRow {
        uint32_t document;
        int32_t own;
    };
    std::vector<int32_t> common(static_cast<size_t>(shape.common));
    fill(common.data(), shape.common);
    std::vector<Document> documents;
    std::vector<OwnRow> rows;
    std::vector<int32_t> prefixes;
    // Its probability is below 1.
    std::geometric_distribution<int> more(std::min(1 / shape.sharing, 1 - 1e-9));
    double due = 0;
    int64_t total = 0;
    while (static_cast<int64_t>(rows.size()) < shape.rows) {
        due += shape.sharing;
        int64_t sharers = shape.uneven
                              ? 1 + more(random)
                              : static_cast<int64_t>(due) - static_cast<int64_t>(rows.size());
        sharers = std::clamp<int64_t>(sharers, 1, shape.rows - static_cast<int64_t>(rows.size()));
        const int32_t prefix = length(shape.prefix, shape.common + 1) - shape.common;
        for (int64_t i = 0; i < sharers; ++i) {
            rows.push_back({static_cast<uint32_t>(documents.size()), length(shape.own, 1)});
            total += shape.common + prefix + rows.back().own;
        }
        documents.push_back({static_cast<int64_t>(prefixes.size()), prefix});
        prefixes.resize(prefixes.size() + static_cast<size_t>(prefix));
    }
    fill(prefixes.data(), static_cast<int64_t>(prefixes.size()));
    std::shuffle(rows.begin(), rows.end(), random);

    JobRows job;
    job.tokens.resize(static_cast<size_t>(total));
    int32_t *out = job.tokens.data();
    for (const OwnRow &row : rows) {
        const Document &document = documents[row.document];
        const int32_t length_of_row = shape.common + document.length + row.own;
        job.rows.push_back({out, length_of_row, length_of_row - 1});
        out = std::copy(common.begin(), common.end(), out);
        out = std::copy_n(prefixes.begin() + document.offset, document.length, out);
        fill(out, row.own);
        out += row.own;
    }
    return job;
}

} // namespace batchllm
