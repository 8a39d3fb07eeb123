// Attention of the CPU backend against a double-precision reference: random shapes, page tables,
// windows and forests of context nodes, for every kernel table that this processor runs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/check_pages.h"
#include "backend/cpu/attention.h"
#include "base/narrow_floats.h"
#include "cpu_tables.h"
#include "seed.h"

// Last: it defines macros with the names of members of the standard library.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

struct Shape {
    int32_t kv_heads, ratio, head_dim, page_tokens, window, threads;
};

// A forest of nodes with random keys, values and queries. Keys and values are indexed
// [node token][kv_head][head_dim], queries [batch token][head][head_dim].
struct Case {
    Shape shape;
    TokenBatch batch;
    std::vector<int32_t> first_token; // [nodes] index of the node's first token in keys and values
    std::vector<float> keys, values, queries;
    float softcap = 0;
    std::vector<float> sinks; // [heads], or none
    int32_t stretch = 0;      // as in CpuWorklistOptions
};

float random_normal(std::mt19937_64 &random) {
    return static_cast<float>(std::normal_distribution<double>()(random));
}

float as_element(float x, DType element) {
    return element == DType::f32 ? x : bfloat16_to_float(float_to_bfloat16(x));
}

// Pages in one KV group: those that a query sees, as if the others had been released.
void make_pages(const Shape &shape, TokenBatch *batch) {
    const std::vector<int64_t> first = first_queries(*batch);
    GroupPages &group = batch->pages.emplace_back();
    for (size_t n = 0; n < batch->nodes.size(); ++n) {
        const ContextNode &node = batch->nodes[n];
        const int32_t columns = (node.length + shape.page_tokens - 1) / shape.page_tokens;
        int32_t begin = 0;
        if (shape.window > 0) {
            const int64_t seen = first[n] - shape.window + 1 - node.start;
            begin =
                static_cast<int32_t>(std::clamp<int64_t>(seen, 0, node.length)) / shape.page_tokens;
        }
        group.nodes.push_back({static_cast<int32_t>(group.list.size()) - begin, begin});
        for (int32_t i = begin; i < columns; ++i)
            group.list.push_back(static_cast<int32_t>(group.list.size()));
    }
}

// lengths and parents as given; the last counts[n] tokens of node n are in the batch.
Case make_case(const Shape &shape, const std::vector<int32_t> &parents,
               const std::vector<int32_t> &lengths, const std::vector<int32_t> &counts,
               std::mt19937_64 &random) {
    Case made;
    made.shape = shape;
    int32_t tokens = 0;
    for (size_t n = 0; n < parents.size(); ++n) {
        ContextNode node{};
        node.parent = parents[n];
        if (node.parent >= 0) {
            const ContextNode &parent = made.batch.nodes[node.parent];
            node.start = parent.start + parent.length;
        }
        node.length = lengths[n];
        node.token_count = counts[n];
        node.token_begin = static_cast<int32_t>(made.batch.tokens.size());
        for (int32_t i = 0; i < counts[n]; ++i) {
            made.batch.tokens.push_back(0);
            made.batch.positions.push_back(node.start + node.length - counts[n] + i);
        }
        made.first_token.push_back(tokens);
        tokens += node.length;
        made.batch.nodes.push_back(node);
    }
    make_pages(shape, &made.batch);
    std::vector<int32_t> &list = made.batch.pages[0].list;
    std::shuffle(list.begin(), list.end(), random);

    const size_t kv_size = static_cast<size_t>(tokens) * shape.kv_heads * shape.head_dim;
    made.keys.resize(kv_size);
    made.values.resize(kv_size);
    made.queries.resize(made.batch.tokens.size() * shape.kv_heads * shape.ratio * shape.head_dim);
    for (float &x : made.keys) x = random_normal(random);
    for (float &x : made.values) x = random_normal(random);
    for (float &x : made.queries) x = 2 * random_normal(random);
    return made;
}

Model model_of(const Shape &shape) {
    Model model;
    model.layers.resize(2);
    for (Layer &layer : model.layers) {
        Attention &attention = layer.mixer.emplace<Attention>();
        attention.kv_heads = shape.kv_heads;
        attention.heads = shape.kv_heads * shape.ratio;
        attention.head_dim = shape.head_dim;
    }
    place_keys_and_values(&model);
    return model;
}

// [batch token][head][head_dim]; rows: as for build_worklist. Rows of other tokens stay 0.
std::vector<float> attend(const Case &given, const Kernels &kernels,
                          const std::vector<int32_t> &rows, bool *ok) {
    const Shape &shape = given.shape;
    const Model model = model_of(shape);
    Attention layer = *model.layers[1].attention();
    layer.softcap = given.softcap;
    std::vector<float> sinks = given.sinks; // in base 2
    for (float &sink : sinks) sink *= 1.44269504f;
    const int32_t padded = padded_head_dim(shape.head_dim);
    const int64_t element = dtype_bytes(kernels.element);
    std::vector<float> out(given.queries.size(), 0.0f);
    ThreadPool pool(shape.threads);

    // One page too many, and all of them are NaN at first: unwritten data must not be read.
    const int64_t page_bytes =
        2 * int64_t{shape.page_tokens} * padded * element * layer.kv_heads * 2;
    auto pages =
        KvPages::create(model, kernels.element, shape.page_tokens,
                        page_bytes * (static_cast<int64_t>(given.batch.pages[0].list.size()) + 1));
    *ok = pages.ok() && pages->page_bytes() == page_bytes;
    if (!*ok) return out;
    std::memset(pages->keys(*model.layers[0].attention(), 0, 0, 0), 0xFF,
                static_cast<size_t>(page_bytes * pages->pages()));

    const std::vector<float> zeros(shape.head_dim, 0.0f);
    for (size_t n = 0; n < given.batch.nodes.size(); ++n) {
        const ContextNode &node = given.batch.nodes[n];
        const int32_t stored = (node.length + kGroupTokens - 1) / kGroupTokens * kGroupTokens;
        const GroupPages &group_pages = given.batch.pages[0];
        for (int32_t i = group_pages.nodes[n].first * shape.page_tokens; i < stored; ++i) {
            const int32_t page = group_pages.page(static_cast<int32_t>(n), i / shape.page_tokens);
            const int32_t group = i % shape.page_tokens / kGroupTokens;
            for (int32_t h = 0; h < shape.kv_heads; ++h) {
                const int64_t at = (int64_t{given.first_token[n]} + i) * shape.kv_heads + h;
                const bool there = i < node.length;
                if (there) {
                    kernels.store_key(given.keys.data() + at * shape.head_dim, shape.head_dim,
                                      padded, i % kGroupTokens, pages->keys(layer, page, h, group));
                }
                kernels.store_value(
                    there ? given.values.data() + at * shape.head_dim : zeros.data(),
                    shape.head_dim, padded, i % kGroupTokens, pages->values(layer, page, h, group));
            }
        }
    }

    const int64_t tokens = static_cast<int64_t>(given.batch.tokens.size());
    const float scale =
        static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(shape.head_dim)));
    std::vector<std::byte> queries(static_cast<size_t>(tokens * layer.heads * padded * element));
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < layer.heads; ++h) {
            const int64_t row = (h / shape.ratio * tokens + t) * shape.ratio + h % shape.ratio;
            kernels.store_elements(given.queries.data() + (t * layer.heads + h) * shape.head_dim,
                                   scale, shape.head_dim, padded,
                                   queries.data() + row * padded * element);
        }
    }

    CpuWorklist list;
    build_worklist(given.batch, rows,
                   {.window = shape.window,
                    .gqa_ratio = shape.ratio,
                    .kv_heads = shape.kv_heads,
                    .threads = shape.threads,
                    .stretch = given.stretch},
                   &list);
    std::vector<std::byte> attended(
        static_cast<size_t>(list.rows * layer.heads * shape.head_dim * element));
    PagedAttention attention(kernels, *pages, &pool);
    *ok = attention.run(given.batch, list, layer, sinks, queries.data(), attended.data()).ok();

    const int64_t row_size = int64_t{layer.heads} * shape.head_dim;
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t row = rows.empty() ? t : rows[t];
        if (row < 0) continue;
        for (int64_t i = 0; i < row_size; ++i) {
            const std::byte *p = attended.data() + (row * row_size + i) * element;
            float value;
            if (kernels.element == DType::f32) {
                std::memcpy(&value, p, sizeof value);
            } else {
                uint16_t bits;
                std::memcpy(&bits, p, sizeof bits);
                value = bfloat16_to_float(bits);
            }
            out[t * row_size + i] = value;
        }
    }
    return out;
}

std::vector<float> reference(const Case &given, DType element) {
    const Shape &shape = given.shape;
    const int32_t heads = shape.kv_heads * shape.ratio;
    std::vector<float> out(given.queries.size());
    for (size_t n = 0; n < given.batch.nodes.size(); ++n) {
        const ContextNode &node = given.batch.nodes[n];
        for (int32_t i = 0; i < node.token_count; ++i) {
            const int32_t t = node.token_begin + i;
            const int32_t position = given.batch.positions[t];
            // The keys that the token sees, by index in `keys`.
            std::vector<int64_t> seen;
            for (int32_t a = static_cast<int32_t>(n); a >= 0; a = given.batch.nodes[a].parent) {
                const ContextNode &from = given.batch.nodes[a];
                for (int32_t k = 0; k < from.length; ++k) {
                    const int32_t p = from.start + k;
                    if (p <= position && (shape.window == 0 || p > position - shape.window)) {
                        seen.push_back(given.first_token[a] + k);
                    }
                }
            }
            for (int32_t h = 0; h < heads; ++h) {
                const float *query =
                    given.queries.data() + (int64_t{t} * heads + h) * shape.head_dim;
                std::vector<double> weights;
                double most = -1e300;
                for (int64_t k : seen) {
                    const float *key =
                        given.keys.data() + (k * shape.kv_heads + h / shape.ratio) * shape.head_dim;
                    double score = 0;
                    const double scale = 1.4426950408889634 / std::sqrt(shape.head_dim);
                    for (int32_t d = 0; d < shape.head_dim; ++d) {
                        score += static_cast<double>(
                                     as_element(static_cast<float>(query[d] * scale), element)) *
                                 as_element(key[d], element);
                    }
                    if (given.softcap != 0) {
                        const double cap = given.softcap * 1.4426950408889634;
                        score = cap * std::tanh(score / cap);
                    }
                    weights.push_back(score);
                    most = std::max(most, score);
                }
                double sum = 0;
                if (!given.sinks.empty()) {
                    const double sink = given.sinks[h] * 1.4426950408889634;
                    most = std::max(most, sink);
                    sum = std::exp2(sink - most);
                }
                for (double &weight : weights) sum += weight = std::exp2(weight - most);
                for (int32_t d = 0; d < shape.head_dim; ++d) {
                    double value = 0;
                    for (size_t k = 0; k < seen.size(); ++k) {
                        const int64_t at =
                            (seen[k] * shape.kv_heads + h / shape.ratio) * shape.head_dim + d;
                        value += weights[k] / sum * as_element(given.values[at], element);
                    }
                    out[(int64_t{t} * heads + h) * shape.head_dim + d] = static_cast<float>(value);
                }
            }
        }
    }
    return out;
}

// The largest difference; a NaN counts as infinite.
double distance(const std::vector<float> &a, const std::vector<float> &b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
        if (!(difference <= most)) most = std::isnan(difference) ? INFINITY : difference;
    }
    return most;
}

// Values are about 1: weights in bfloat16 are off by 2^-9, and so is the result.
double tolerance(DType element) { return element == DType::f32 ? 1e-5 : 1.6e-2; }

std::string describe(const Case &given, const char *kernels) {
    const Shape &s = given.shape;
    std::string text = std::string(kernels) + " kv_heads " + std::to_string(s.kv_heads) +
                       " ratio " + std::to_string(s.ratio) + " head_dim " +
                       std::to_string(s.head_dim) + " page_tokens " +
                       std::to_string(s.page_tokens) + " window " + std::to_string(s.window) +
                       " threads " + std::to_string(s.threads) + " nodes";
    for (const ContextNode &node : given.batch.nodes) {
        text += " (" + std::to_string(node.parent) + "," + std::to_string(node.length) + "," +
                std::to_string(node.token_count) + ")";
    }
    return text;
}

// Returns an empty string, or what differs, for all kernel tables of this processor.
std::string check_all(const Case &given) {
    for (DType element : {DType::f32, DType::bf16}) {
        std::vector<float> expected;
        for (const Kernels *kernels : cpu_tables(element)) {
            if (expected.empty()) expected = reference(given, element);
            bool ok = false;
            const double off = distance(attend(given, *kernels, {}, &ok), expected);
            if (!ok || off > tolerance(element)) {
                return describe(given, kernels->name) + " " + dtype_name(element) + ": off by " +
                       std::to_string(off);
            }
        }
    }
    return {};
}

int32_t between(std::mt19937_64 &random, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
}

void every_kernel_equals_the_reference_on_random_forests(void **) {
    std::mt19937_64 random(seed_of_run());
    constexpr int32_t kHeadDims[] = {16, 24, 32, 64, 80, 96, 112, 128, 192, 256};
    constexpr int32_t kRatios[] = {1, 2, 3, 4, 5, 7, 8};
    std::string failure;
    for (int round = 0; round < cases(40, 10) && failure.empty(); ++round) {
        Shape shape;
        shape.head_dim = kHeadDims[round % 10];
        shape.ratio = kRatios[between(random, 0, 6)];
        shape.kv_heads = between(random, 1, 3);
        shape.page_tokens = 16 * between(random, 1, 4);
        shape.window = between(random, 0, 2) == 0 ? between(random, 1, 150) : 0;
        shape.threads = between(random, 1, 3);
        // Three levels: a common head, prefixes, own tokens; any of them may be empty, and any may
        // have tokens in the batch.
        std::vector<int32_t> parents{-1}, lengths{between(random, 0, 90)}, counts;
        for (int32_t p = between(random, 1, 3); p > 0; --p) {
            const int32_t prefix = static_cast<int32_t>(parents.size());
            parents.push_back(between(random, 0, 3) == 0 ? -1 : 0);
            lengths.push_back(between(random, 0, 3) == 0 ? 0 : between(random, 1, 150));
            for (int32_t rows = between(random, 0, 4); rows > 0; --rows) {
                parents.push_back(prefix);
                lengths.push_back(between(random, 0, 60));
            }
        }
        for (int32_t length : lengths) {
            const int32_t kind = between(random, 0, 3);
            counts.push_back(kind == 0   ? 0
                             : kind == 1 ? std::min(1, length)
                             : kind == 2 ? length
                                         : between(random, 0, length));
        }
        Case made = make_case(shape, parents, lengths, counts, random);
        if (round % 3 == 1) made.softcap = 0.5f + static_cast<float>(between(random, 0, 4));
        if (round % 4 >= 2) {
            for (int32_t h = 0; h < shape.kv_heads * shape.ratio; ++h) {
                made.sinks.push_back(3 * random_normal(random));
            }
        }
        if (round % 2 == 0) made.stretch = 16 << between(random, 0, 4);
        failure = check_all(made);
        if (!failure.empty()) failure += " stretch " + std::to_string(made.stretch);
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

void long_contexts_are_cut_by_positions_and_merged(void **) {
    std::mt19937_64 random(seed_of_run());
    std::string failure;
    for (int32_t threads : {1, 4}) {
        if (!failure.empty()) break;
        // Few rows on a long prefix: one item for each KV head, split to use all threads.
        failure = check_all(
            make_case({1, 3, 64, 16, 0, threads}, {-1, 0, 0}, {1500, 20, 1}, {0, 2, 1}, random));
        if (!failure.empty()) break;
        failure =
            check_all(make_case({2, 2, 80, 32, 700, threads}, {-1, 0}, {1100, 40}, {0, 3}, random));
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

void shared_equals_unshared_within_rounding(void **) {
    std::mt19937_64 random(seed_of_run());
    std::string failure;
    for (DType element : {DType::f32, DType::bf16}) {
        const Kernels *kernels = kernels_for(best_isa(element), element);
        const Case shared = make_case({2, 3, 64, 16, 0, 2}, {-1, 0, 0, 0}, {333, 40, 17, 61},
                                      {0, 1, 17, 5}, random);
        bool ok = false;
        const std::vector<float> together = attend(shared, *kernels, {}, &ok);
        const int64_t kv_row = 2 * 64;
        for (int32_t n = 1; n < 4 && ok && failure.empty(); ++n) {
            // The same row alone, in one node that also contains the prefix.
            const ContextNode &own = shared.batch.nodes[n];
            Case alone =
                make_case(shared.shape, {-1}, {333 + own.length}, {own.token_count}, random);
            for (auto [from, to] :
                 {std::pair(&shared.keys, &alone.keys), std::pair(&shared.values, &alone.values)}) {
                std::copy_n(from->begin(), 333 * kv_row, to->begin());
                std::copy_n(from->begin() + shared.first_token[n] * kv_row, own.length * kv_row,
                            to->begin() + 333 * kv_row);
            }
            const int64_t row = int64_t{6} * 64;
            std::copy_n(shared.queries.begin() + own.token_begin * row, own.token_count * row,
                        alone.queries.begin());
            const std::vector<float> expected = attend(alone, *kernels, {}, &ok);
            const std::vector<float> part(together.begin() + own.token_begin * row,
                                          together.begin() +
                                              (own.token_begin + own.token_count) * row);
            const double off = distance(part, expected);
            if (off > tolerance(element)) {
                failure = std::string(kernels->name) + ": off by " + std::to_string(off);
            }
        }
        if (!ok) failure = "attention failed";
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

void only_wanted_rows_are_computed_and_stand_close(void **) {
    std::mt19937_64 random(seed_of_run());
    const Case given =
        make_case({2, 2, 32, 16, 0, 2}, {-1, 0, 0}, {100, 30, 20}, {10, 30, 1}, random);
    std::vector<int32_t> rows(given.batch.tokens.size(), -1);
    rows[9] = 0;
    rows[39] = 1;
    rows[40] = 2;
    const Kernels *kernels = kernels_for(best_isa(DType::f32), DType::f32);
    bool ok = false;
    const std::vector<float> some = attend(given, *kernels, rows, &ok);
    std::vector<float> expected = reference(given, DType::f32);
    for (size_t t = 0; t < rows.size(); ++t) {
        if (rows[t] < 0) std::fill_n(expected.begin() + t * 4 * 32, 4 * 32, 0.0f);
    }
    const double off = distance(some, expected);
    assert_true(ok);
    assert_true(off <= 1e-5);
}

void the_same_batch_gives_identical_bits(void **) {
    std::mt19937_64 random(seed_of_run());
    const Case given = make_case({3, 4, 128, 16, 0, 3}, {-1, 0, 0, -1}, {800, 90, 33, 200},
                                 {40, 90, 1, 200}, random);
    std::string failure;
    for (DType element : {DType::f32, DType::bf16}) {
        const Kernels *kernels = kernels_for(best_isa(element), element);
        bool ok = false;
        const std::vector<float> first = attend(given, *kernels, {}, &ok);
        for (int round = 0; round < 3; ++round) {
            const std::vector<float> again = attend(given, *kernels, {}, &ok);
            if (std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) != 0) {
                failure = kernels->name;
            }
        }
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

// A row's tokens, cut between a chain of nodes at random, with other rows beside and below them.
Case in_company(const Case &row, std::mt19937_64 &random) {
    const int32_t length = row.batch.nodes[0].length;
    const int32_t wanted = row.batch.nodes[0].token_count;
    std::vector<int32_t> parents, lengths, counts, chain;
    for (int32_t begin = 0; begin < length;) {
        const int32_t left = length - begin;
        const int32_t taken = chain.size() == 3 ? left : between(random, 1, left);
        const int32_t parent = chain.empty() ? -1 : chain.back();
        for (int32_t others = between(random, 0, 2); others > 0; --others) {
            parents.push_back(parent);
            lengths.push_back(between(random, 1, 80));
            counts.push_back(between(random, 0, lengths.back()));
        }
        chain.push_back(static_cast<int32_t>(parents.size()));
        parents.push_back(parent);
        lengths.push_back(taken);
        begin += taken;
        counts.push_back(std::clamp(wanted - (length - begin), 0, taken));
    }
    Shape shape = row.shape;
    shape.page_tokens = 16 * between(random, 1, 3);
    shape.threads = between(random, 1, 3);
    Case made = make_case(shape, parents, lengths, counts, random);
    made.softcap = row.softcap;
    made.sinks = row.sinks;
    made.stretch = row.stretch;
    const auto kv_row = static_cast<ptrdiff_t>(shape.kv_heads) * shape.head_dim;
    const ptrdiff_t query_row = kv_row * shape.ratio;
    for (const int32_t n : chain) {
        const ContextNode &node = made.batch.nodes[n];
        const ptrdiff_t to = made.first_token[n] * kv_row;
        std::copy_n(row.keys.begin() + node.start * kv_row, node.length * kv_row,
                    made.keys.begin() + to);
        std::copy_n(row.values.begin() + node.start * kv_row, node.length * kv_row,
                    made.values.begin() + to);
        const int32_t from = node.start + node.length - node.token_count - (length - wanted);
        std::copy_n(row.queries.begin() + from * query_row, node.token_count * query_row,
                    made.queries.begin() + node.token_begin * query_row);
    }
    made.first_token = chain; // so that the caller knows which nodes are the row's
    return made;
}

// The results of the row's tokens in order, from those of all tokens.
std::vector<float> of_row(const std::vector<float> &all, const Case &given,
                          const std::vector<int32_t> &chain) {
    std::vector<float> out;
    const auto row = static_cast<ptrdiff_t>(all.size() / given.batch.tokens.size());
    for (const int32_t n : chain) {
        const ContextNode &node = given.batch.nodes[n];
        out.insert(out.end(), all.begin() + node.token_begin * row,
                   all.begin() + (node.token_begin + node.token_count) * row);
    }
    return out;
}

void a_row_in_order_is_the_same_bits_in_any_company(void **) {
    std::mt19937_64 random(seed_of_run());
    constexpr int32_t kHeadDims[] = {16, 24, 64, 80, 128, 256};
    constexpr int32_t kRatios[] = {1, 2, 4, 7};
    constexpr int32_t kWindows[] = {0, 1, 40, 300};
    int32_t free_differs = 0;
    std::string failure;
    for (int round = 0; round < 12 && failure.empty(); ++round) {
        const Shape shape{between(random, 1, 2),     kRatios[round % 4],
                          kHeadDims[round % 6],      16,
                          kWindows[(round / 2) % 4], 1};
        const int32_t length = between(random, 1, 700);
        const int32_t wanted = std::min(length, between(random, 1, 30));
        Case row = make_case(shape, {-1}, {length}, {wanted}, random);
        if (round % 3 == 1) row.softcap = 2;
        for (int32_t h = 0; round % 4 >= 2 && h < shape.kv_heads * shape.ratio; ++h) {
            row.sinks.push_back(3 * random_normal(random));
        }
        row.stretch = 16 << between(random, 1, 4);
        for (DType element : {DType::f32, DType::bf16}) {
            for (const Kernels *kernels : cpu_tables(element)) {
                bool ok = false;
                const std::vector<float> alone = attend(row, *kernels, {}, &ok);
                for (int company = 0; company < cases(6, 2) && ok; ++company) {
                    Case given = in_company(row, random);
                    const std::vector<int32_t> chain = std::move(given.first_token);
                    given.first_token.clear();
                    int32_t tokens = 0;
                    for (const ContextNode &node : given.batch.nodes) {
                        given.first_token.push_back(tokens);
                        tokens += node.length;
                    }
                    bool given_ok = false;
                    if (of_row(attend(given, *kernels, {}, &given_ok), given, chain) != alone) {
                        failure = describe(given, kernels->name) + " stretch " +
                                  std::to_string(row.stretch) + ": other bits";
                    }
                    given.stretch = 0;
                    if (of_row(attend(given, *kernels, {}, &given_ok), given, chain) != alone) {
                        ++free_differs;
                    }
                    ok = given_ok;
                }
                if (!ok) failure = "attention failed";
            }
        }
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
    assert_true(free_differs > 0);
}

// The worklist's promises, on a forest large enough to be split in every way.
void the_parts_of_a_row_cover_what_it_sees_once(void **) {
    std::mt19937_64 random(seed_of_run());
    std::string failure;
    for (int round = 0; round < cases(20, 6); ++round) {
        std::vector<int32_t> parents{-1}, lengths{between(random, 1, 3000)}, counts{0};
        counts[0] = between(random, 0, std::min(lengths[0], 400));
        for (int32_t n = 1; n < 12; ++n) {
            parents.push_back(between(random, -1, n - 1));
            lengths.push_back(between(random, 0, 600));
            counts.push_back(between(random, 0, std::min(lengths[n], 200)));
        }
        const int32_t window = round % 2 == 0 ? 0 : between(random, 1, 2000);
        const Case given = make_case({1, 1, 16, 16, window, 1}, parents, lengths, counts, random);
        CpuWorklist list;
        build_worklist(given.batch, {},
                       {.window = window,
                        .gqa_ratio = between(random, 1, 8),
                        .kv_heads = between(random, 1, 4),
                        .threads = between(random, 1, 64)},
                       &list);
        // By row: how many of the positions [0, position] are covered.
        std::vector<std::vector<int32_t>> times(given.batch.tokens.size());
        for (size_t t = 0; t < times.size(); ++t) times[t].assign(given.batch.positions[t] + 1, 0);
        std::vector<int32_t> part_seen(list.queries.size(), 0);
        for (const CpuAttentionItem &item : list.items) {
            for (int32_t q = item.query_begin; q < item.query_begin + item.query_count; ++q) {
                const AttentionQuery &query = list.queries[q];
                ++part_seen[query.part];
                if (query.visible_begin < item.key_begin || query.visible_end > item.key_end ||
                    query.part < list.part_begin[query.token] ||
                    query.part >= list.part_begin[query.token + 1]) {
                    failure = "an item's range or a part is wrong";
                }
                for (int32_t k = query.visible_begin; k < query.visible_end; ++k) {
                    ++times[query.token][given.batch.nodes[item.node].start + k];
                }
            }
        }
        for (int32_t seen : part_seen) {
            if (seen != 1) failure = "a part is written " + std::to_string(seen) + " times";
        }
        for (size_t t = 0; t < times.size(); ++t) {
            const int32_t position = given.batch.positions[t];
            for (int32_t p = 0; p <= position; ++p) {
                const int32_t expected = window == 0 || p > position - window ? 1 : 0;
                if (times[t][p] != expected) failure = "a position is not covered once";
            }
        }
        // Every item occurs once for every KV head.
        size_t planned = 0;
        for (const AttentionTask &task : list.tasks) planned += task.item_end - task.item_begin;
        if (list.items.empty() != list.tasks.empty() ||
            (!list.items.empty() && planned % list.items.size() != 0)) {
            failure = "items are left out";
        }
    }
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_equals_the_reference_on_random_forests),
        cmocka_unit_test(long_contexts_are_cut_by_positions_and_merged),
        cmocka_unit_test(shared_equals_unshared_within_rounding),
        cmocka_unit_test(only_wanted_rows_are_computed_and_stand_close),
        cmocka_unit_test(the_same_batch_gives_identical_bits),
        cmocka_unit_test(a_row_in_order_is_the_same_bits_in_any_company),
        cmocka_unit_test(the_parts_of_a_row_cover_what_it_sees_once),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
