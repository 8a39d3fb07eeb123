// Checks the fused attention against a float64 reference on random shapes, and times it.
//   attention --check [seed [rounds]]  random shapes, page tables, windows, node forests
//   attention [--only TEXT] [group...]  microseconds a launch (CUDA graph of launches over enough pools to
//                             leave L2) of the cases whose name holds TEXT;
//                             groups: table (without arguments), all, B8a B8b B8c C T7 R CH P D L
// Before these, --family sm80, sm80_small or sm90: not the device's best kernels.
// Of each case: as the worklist chooses; with every shared prefix read together, and with none; the
// same items launched one queue after the other; TB/s of the bytes that must move and TFLOP/s.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention_family.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using namespace batchllm::cuda;

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                              \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                     \
                         cudaGetErrorString(status_));                                             \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

namespace {

const AttentionFamily *family; // main chooses it

struct Shape {
    int heads, kv_heads, head_dim, window = 0;
    bool f16 = false;
    float sharpness = 1; // of the scores: times the usual scale
};

// A node forest with its pages, as a step of the engine would make it.
struct Case {
    std::string name;
    Shape shape;
    std::vector<AttentionNode> nodes;
    std::vector<int32_t> pages;
    std::vector<int32_t> positions;
    int32_t page_total = 0;

    int add(int parent, int keys, int tokens) {
        AttentionNode node{};
        node.parent = parent;
        node.start = parent < 0 ? 0 : nodes[parent].start + nodes[parent].keys;
        node.keys = keys;
        node.token_count = tokens;
        node.token_begin = static_cast<int32_t>(positions.size());
        node.page_begin = static_cast<int32_t>(pages.size());
        for (int p = 0; p < (keys + kPageKeys - 1) / kPageKeys; ++p) pages.push_back(page_total++);
        for (int t = 0; t < tokens; ++t) positions.push_back(node.start + keys - tokens + t);
        nodes.push_back(node);
        return static_cast<int>(nodes.size()) - 1;
    }
    // Page numbers at random places.
    void shuffle(unsigned seed) {
        std::vector<int32_t> order(page_total);
        for (int i = 0; i < page_total; ++i) order[i] = i;
        std::mt19937 random(seed);
        std::shuffle(order.begin(), order.end(), random);
        for (int32_t &page : pages) page = order[page];
    }
};

__host__ __device__ inline uint32_t hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return static_cast<uint32_t>(x);
}
// About normal: sum of 4 uniforms, variance 1.
__host__ __device__ inline float noise(uint64_t index) {
    float sum = 0;
    for (int i = 0; i < 4; ++i)
        sum += static_cast<float>(hash(index * 4 + i) >> 8) / 16777216.f - 0.5f;
    return sum * 1.7320508f;
}

template <typename T> __global__ void fill(T *data, int64_t count, uint64_t seed, float scale) {
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * blockDim.x) {
        data[i] = T(noise(seed + i) * scale);
    }
}

// Element d of key k of (page, kv head, K or V) in the pool: attention.h's layout.
int64_t pool_index(const Shape &s, int page, int kv_head, int which, int key, int d) {
    const int64_t block = (int64_t(page) * s.kv_heads + kv_head) * 2 + which;
    return block * kPageKeys * s.head_dim + d / 64 * kPageKeys * 64 + key * 64 +
           ((d % 64 / 8) ^ (key % 8)) * 8 + d % 8;
}

struct Device {
    std::vector<void *> owned;
    template <typename T> T *make(size_t count) {
        void *p = nullptr;
        CHECK(cudaMalloc(&p, std::max<size_t>(16, count * sizeof(T))));
        owned.push_back(p);
        return static_cast<T *>(p);
    }
    template <typename T> T *upload(const std::vector<T> &v) {
        T *p = make<T>(v.size());
        if (!v.empty())
            CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
        return p;
    }
    ~Device() {
        for (void *p : owned) cudaFree(p);
    }
};

int sm_count() {
    int sms = 0;
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    return sms;
}

enum class Sharing { chosen, together, apart };

// A case's pools, queries and outputs on the device, and a worklist for them.
struct Setup {
    Device device;
    AttentionArguments a{};
    Worklist worklist;
    Case c;
    int tokens;
    int64_t pool_elements;
    int copies; // of the pool

    Setup(const Case &source, int pool_copies, uint64_t seed) : c(source), copies(pool_copies) {
        const Shape &s = c.shape;
        tokens = static_cast<int>(c.positions.size());
        pool_elements = int64_t(c.page_total) * s.kv_heads * 2 * kPageKeys * s.head_dim;
        const int64_t q_elements = int64_t(tokens) * s.heads * s.head_dim;
        auto *kv = device.make<uint16_t>(pool_elements * copies);
        auto *q = device.make<uint16_t>(q_elements);
        auto fill_both = [&](auto type) {
            using T = decltype(type);
            fill<<<1024, 256>>>(reinterpret_cast<T *>(kv), pool_elements * copies, seed, 1.f);
            fill<<<1024, 256>>>(reinterpret_cast<T *>(q), q_elements, seed + (1ull << 40), 1.f);
        };
        if (s.f16) {
            fill_both(__half());
        } else {
            fill_both(__nv_bfloat16());
        }
        CHECK(cudaGetLastError());
        a.type = s.f16 ? AttentionType::f16 : AttentionType::bf16;
        a.heads = s.heads;
        a.kv_heads = s.kv_heads;
        a.head_dim = s.head_dim;
        a.scale = s.sharpness / std::sqrt(static_cast<float>(s.head_dim));
        a.window = s.window;
        a.q = q;
        a.q_stride = a.out_stride = int64_t(s.heads) * s.head_dim;
        a.out = device.make<uint16_t>(q_elements);
        a.kv = kv;
        a.pages = device.upload(c.pages);
        a.arrivals = device.make<int32_t>(int64_t(tokens) * s.kv_heads);
        a.queues = device.make<int32_t>(4);
        CHECK(cudaMemset(a.arrivals, 0, int64_t(tokens) * s.kv_heads * 4));
        CHECK(cudaMemset(a.queues, 0, 16));
        CHECK(cudaMemset(a.out, 0xff, q_elements * 2));
    }

    void use(Sharing sharing) {
        const Shape &s = c.shape;
        WorklistOptions options;
        options.heads = s.heads;
        options.kv_heads = s.kv_heads;
        options.head_dim = s.head_dim;
        options.window = s.window;
        options.sms = sm_count();
        family->set_costs(&options);
        options.share = sharing != Sharing::apart;
        options.always_share = sharing == Sharing::together;
        auto setting = [](const char *name, double &value) {
            if (const char *text = std::getenv(name)) value = std::atof(text);
        };
        setting("WIDE_US", options.wide_us);
        setting("NARROW_US", options.narrow_us);
        setting("SHARE_US", options.share_us);
        setting("STREAM_US", options.stream_us);
        setting("BYTES_US", options.bytes_us);
        setting("ITEM_US", options.item_us);
        setting("MERGE_US", options.merge_us);
        setting("MATRIX_SPLIT", options.matrix_split);
        setting("STREAM_SPLIT", options.stream_split);
        build_worklist(c.nodes, tokens, options, &worklist);
        a.items = device.upload(worklist.items);
        a.matrix_items = worklist.matrix_items;
        a.stream_items = worklist.stream_items;
        a.matrix_ctas = worklist.matrix_ctas;
        if (const char *text = std::getenv("MATRIX_CTAS")) a.matrix_ctas = std::atoi(text);
        a.rows = device.upload(worklist.rows);
        a.partials = device.upload(worklist.partials);
        a.merged = device.upload(worklist.merged);
        a.merged_count = static_cast<int32_t>(worklist.merged.size());
        a.partial_out = device.make<float>(int64_t(worklist.slots) * s.heads * s.head_dim);
        a.partial_lse = device.make<float>(int64_t(worklist.slots) * s.heads);
        CHECK(cudaDeviceSynchronize());
    }
};

float to_float(uint16_t bits, bool f16) {
    if (f16) {
        return __half2float(__half(__half_raw{bits}));
    }
    const uint32_t wide = uint32_t(bits) << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
}

// Largest relative error ||out - ref|| / ||ref|| over `rows` random (token, head) rows.
double check(const Case &c, Sharing sharing, uint64_t seed, int rows, bool poison) {
    Setup setup(c, 1, seed);
    setup.use(sharing);
    const Shape &s = c.shape;
    std::vector<uint16_t> kv(setup.pool_elements), q(int64_t(setup.tokens) * s.heads * s.head_dim),
        out(q.size());
    CHECK(cudaMemcpy(kv.data(), setup.a.kv, kv.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(q.data(), setup.a.q, q.size() * 2, cudaMemcpyDeviceToHost));
    if (poison) { // keys and values past each node's end hold NaN
        for (const AttentionNode &node : c.nodes) {
            const int pages = (node.keys + kPageKeys - 1) / kPageKeys;
            for (int k = node.keys; k < pages * kPageKeys; ++k)
                for (int h = 0; h < s.kv_heads; ++h)
                    for (int which = 0; which < 2; ++which)
                        for (int d = 0; d < s.head_dim; ++d)
                            kv[pool_index(s, c.pages[node.page_begin + k / kPageKeys], h, which,
                                          k % kPageKeys, d)] = 0x7fff;
        }
        CHECK(cudaMemcpy(const_cast<void *>(setup.a.kv), kv.data(), kv.size() * 2,
                         cudaMemcpyHostToDevice));
    }
    // The second launch finds what the first left behind, and must give the same bits. The third has CTAs
    // that begin when others have ended: nobody may wait for them.
    std::vector<uint16_t> first(out.size());
    for (int run = 0; run < 3; ++run) {
        CHECK(family->launch(setup.a, run < 2 ? sm_count() : 3 * sm_count(), nullptr));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy((run == 0 ? first : out).data(), setup.a.out, out.size() * 2,
                         cudaMemcpyDeviceToHost));
        if (run == 1 && first != out) return 1e9;
    }

    std::mt19937 random(static_cast<unsigned>(seed));
    double worst = 0;
    for (int i = 0; i < rows; ++i) {
        int token = static_cast<int>(random() % setup.tokens),
            head = static_cast<int>(random() % s.heads);
        const AttentionNode *node = nullptr;
        for (const AttentionNode &n : c.nodes)
            if (token >= n.token_begin && token < n.token_begin + n.token_count) node = &n;
        const int position = c.positions[token], kv_head = head / (s.heads / s.kv_heads);
        std::vector<double> o(s.head_dim, 0.0);
        double top = -INFINITY, sum = 0;
        for (const AttentionNode *n = node; n; n = n->parent < 0 ? nullptr : &c.nodes[n->parent]) {
            for (int k = 0; k < n->keys && n->start + k <= position; ++k) {
                if (s.window > 0 && n->start + k <= position - s.window) continue;
                const int page = c.pages[n->page_begin + k / kPageKeys];
                double dot = 0;
                for (int d = 0; d < s.head_dim; ++d)
                    dot += double(to_float(q[token * setup.a.q_stride + head * s.head_dim + d],
                                           s.f16)) *
                           to_float(kv[pool_index(s, page, kv_head, 0, k % kPageKeys, d)], s.f16);
                dot *= setup.a.scale;
                const double higher = std::max(top, dot);
                const double factor = std::exp(top - higher), p = std::exp(dot - higher);
                for (int d = 0; d < s.head_dim; ++d)
                    o[d] =
                        o[d] * factor +
                        p * to_float(kv[pool_index(s, page, kv_head, 1, k % kPageKeys, d)], s.f16);
                sum = sum * factor + p;
                top = higher;
            }
        }
        double error = 0, norm = 0;
        for (int d = 0; d < s.head_dim; ++d) {
            const double ref = o[d] / sum;
            const double got =
                to_float(out[token * setup.a.out_stride + head * s.head_dim + d], s.f16);
            error += (got - ref) * (got - ref);
            norm += ref * ref;
        }
        const double relative = std::sqrt(error / norm);
        if (!(relative <= worst)) worst = std::isnan(relative) ? 1e9 : relative;
    }
    return worst;
}

int run_checks(unsigned seed, int rounds) {
    std::mt19937 random(seed);
    auto pick = [&](int low, int high) {
        return low + static_cast<int>(random() % (high - low + 1));
    };
    std::printf("seed %u\n", seed);
    int failed = 0;
    const int shapes[][3] = {{32, 8, 128}, {28, 4, 128}, {8, 1, 128}, {8, 8, 64},  {32, 8, 64},
                             {16, 2, 256}, {4, 4, 128},  {14, 2, 64}, {20, 1, 128}};
    for (int round = 0; round < rounds; ++round) {
        Case c;
        const int *shape = shapes[round % 9];
        c.shape = {shape[0], shape[1], shape[2], pick(0, 3) == 0 ? pick(1, 300) : 0,
                   pick(0, 2) == 0};
        if (round % 4 == 3) c.shape.sharpness = 12; // so that later keys' scores exceed all before
        const int trees = pick(1, 3);
        for (int t = 0; t < trees; ++t) {
            int parent = -1;
            const int depth = pick(0, 2);
            for (int d = 0; d < depth; ++d)
                parent = c.add(parent, pick(1, 600), pick(0, 4) == 0 ? 1 : 0);
            const int requests = pick(1, 40);
            for (int r = 0; r < requests; ++r) {
                const int tokens = pick(0, 3) > 0 ? 1 : pick(1, 200);
                c.add(parent, tokens + (pick(0, 1) ? pick(0, 700) : 0), tokens);
            }
        }
        c.shuffle(random());
        for (const Sharing sharing : {Sharing::chosen, Sharing::together, Sharing::apart}) {
            const double error = check(c, sharing, random(), 200, true);
            const double limit = c.shape.f16 ? 2e-3 : 1e-2;
            const bool ok = error < limit;
            failed += !ok;
            if (!ok || round < 9)
                std::printf(
                    "%s round %d %s %d/%d d%d window %d, %zu nodes, %zu tokens: error %.2e\n",
                    ok ? "ok  " : "FAIL", round,
                    sharing == Sharing::chosen     ? "chosen"
                    : sharing == Sharing::together ? "together"
                                                   : "apart",
                    shape[0], shape[1], shape[2], c.shape.window, c.nodes.size(),
                    c.positions.size(), error);
        }
    }
    std::printf("%d passed, %d failed\n", 3 * rounds - failed, failed);
    return failed != 0;
}

// ---- Timing -----------------------------------------------------------------------------------------

// Bytes that must move: every node's keys and values once, the queries and the outputs.
double bytes_moved(const Case &c) {
    const Shape &s = c.shape;
    double bytes = 2.0 * static_cast<double>(c.positions.size()) * s.heads * s.head_dim * 2;
    for (const AttentionNode &n : c.nodes)
        bytes += double(n.keys) * s.kv_heads * 2 * s.head_dim * 2;
    return bytes;
}
double flops(const Case &c) {
    double keys = 0;
    for (const int32_t position : c.positions) keys += position + 1;
    return 4.0 * c.shape.heads * c.shape.head_dim * keys;
}

// Median microseconds of a launch, or of two: the matrix queue's items and then the stream queue's.
double time_us(const Setup &setup, bool fused) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    const int launches = std::max(8, setup.copies);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) {
        AttentionArguments a = setup.a;
        a.kv = static_cast<const uint16_t *>(a.kv) + setup.pool_elements * (i % setup.copies);
        if (fused) {
            CHECK(family->launch(a, sm_count(), stream));
        } else {
            AttentionArguments part = a;
            part.stream_items = 0;
            part.matrix_ctas = sm_count();
            if (a.stream_items > 0) part.merged_count = 0;
            CHECK(family->launch(part, sm_count(), stream));
            part = a;
            part.items += a.matrix_items;
            part.matrix_items = 0;
            part.matrix_ctas = 0;
            CHECK(family->launch(part, sm_count(), stream));
        }
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < 8; ++run) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (run > 1) times.push_back(ms * 1000 / launches);
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

struct Summary {
    int cases = 0, slower = 0;
    double worst = 0;
    std::string worst_name;
    int beaten = 0, peers = 0;
    std::string only;
};

// peer, cascade: microseconds of FlashAttention-3 unshared and of FlashInfer's cascade, 0: not known.
void time_case(const std::string &group, Case c, Summary *summary, double peer = 0,
               double cascade = 0) {
    c.shuffle(1);
    if (c.name.find(summary->only) == std::string::npos) return;
    const int64_t pool_bytes =
        int64_t(c.page_total) * c.shape.kv_heads * 2 * kPageKeys * c.shape.head_dim * 2;
    const int64_t enough = int64_t(600) << 20;
    const int copies = pool_bytes > 2 * enough
                           ? 1
                           : static_cast<int>(std::clamp<int64_t>(enough / pool_bytes + 1, 2, 64));
    Setup setup(c, copies, 7);
    setup.use(Sharing::chosen);
    const int matrix = setup.worklist.matrix_items, stream = setup.worklist.stream_items;
    const double chosen = time_us(setup, true);
    const bool mixed = matrix > 0 && stream > 0;
    const double unfused = mixed ? time_us(setup, false) : chosen;
    bool prefixes = false;
    for (const AttentionNode &node : c.nodes) prefixes |= node.parent >= 0;
    double together = chosen, apart = chosen;
    if (prefixes) {
        setup.use(Sharing::together);
        together = time_us(setup, true);
        setup.use(Sharing::apart);
        apart = time_us(setup, true);
    }
    const double ratio = chosen / std::min(together, apart);
    std::printf("%-5s%-42s %8.1f %6.2f %6.1f |", group.c_str(), c.name.c_str(), chosen,
                bytes_moved(c) / chosen * 1e-6, flops(c) / chosen * 1e-6);
    auto column = [](bool there, double value, const char *format) {
        if (there) {
            std::printf(format, value);
        } else {
            std::printf("%8s", "");
        }
    };
    column(prefixes, together, "%8.1f");
    column(prefixes, apart, "%8.1f");
    column(prefixes, ratio, "%8.2f");
    column(mixed, unfused, "%8.1f");
    column(peer > 0, peer, "%8.1f");
    column(cascade > 0, cascade, "%8.1f");
    std::printf(" | %d + %d\n", matrix, stream);
    std::fflush(stdout);
    ++summary->cases;
    if (ratio > 1.03) ++summary->slower;
    if (ratio > summary->worst) {
        summary->worst = ratio;
        summary->worst_name = group + " " + c.name;
    }
    const double best = peer > 0 && cascade > 0 ? std::min(peer, cascade) : std::max(peer, cascade);
    if (best > 0) {
        ++summary->peers;
        summary->beaten += chosen < best;
    }
}

std::string text(const char *format, auto... values) {
    char line[128];
    std::snprintf(line, sizeof line, format, values...);
    return line;
}
Case decode(int requests, int keys, Shape shape = {32, 8, 128}) {
    Case c;
    c.name = text("decode %d x %d", requests, keys);
    c.shape = shape;
    for (int r = 0; r < requests; ++r) c.add(-1, keys, 1);
    return c;
}
// chunks: prefill chunks of 512 beside the decodes, the first of each group's.
Case grouped(int requests, int prefix, int own, int each, Shape shape = {32, 8, 128},
             int chunks = 0) {
    Case c;
    c.name = text("%d: prefix %d own %d by %d", requests, prefix, own, each);
    c.shape = shape;
    int parent = -1;
    for (int r = 0; r < requests; ++r) {
        if (r % each == 0) {
            parent = c.add(-1, prefix, 0);
            if (chunks-- > 0) c.add(parent, 512, 512);
        }
        c.add(parent, own, 1);
    }
    for (; chunks > 0; --chunks) c.add(parent, 512, 512);
    return c;
}
Case chunk(int tokens, int keys, int decodes, int decode_keys, Shape shape = {32, 8, 128}) {
    Case c;
    c.name = tokens == keys ? text("prefill %d", tokens) : text("chunk %d to %d", tokens, keys);
    if (decodes > 0) c.name += text(" + %d x %d", decodes, decode_keys);
    c.shape = shape;
    c.add(-1, keys, tokens);
    for (int r = 0; r < decodes; ++r) c.add(-1, decode_keys, 1);
    return c;
}

void time_table(Summary *s) {
    time_case("", chunk(2048, 2048, 0, 0), s);
    time_case("", chunk(8192, 8192, 0, 0), s, 791);
    time_case("", chunk(512, 4608, 0, 0), s);
    time_case("", decode(32, 4096), s, 131, 129);
    time_case("", decode(128, 2048), s, 259, 258);
    time_case("", decode(256, 1024), s, 276, 265);
    time_case("", grouped(256, 1024, 256, 8), s, 238, 140);
    time_case("", grouped(256, 1024, 256, 256), s, 235, 112);
    time_case("", grouped(256, 2048, 256, 8), s, 383, 176);
    time_case("", grouped(256, 2048, 1024, 8), s, 560, 361);
    time_case("", grouped(512, 2000, 256, 16), s, 759, 256);
    time_case("", grouped(256, 256, 256, 8), s, 120, 111);
    time_case("R", grouped(32, 2048, 128, 32, {52, 52, 128}), s, 311, 89);
    time_case("R", grouped(32, 4096, 128, 32, {52, 52, 128}), s, 586, 109);
    time_case("L", grouped(8, 4000, 128, 8, {8, 1, 128}), s, 14.8, 19.4);
    time_case("C0", chunk(1024, 12288, 80, 12288), s, 1288);
    time_case("C0", chunk(1024, 12288, 0, 0), s, 394);
    time_case("C0", decode(80, 12288), s, 917);
    time_case("T7'", chunk(512, 16384, 48, 16384), s, 1015);
    time_case("", chunk(2048, 2048, 384, 2048), s, 916);
}

void time_group(const std::string &group, Summary *s) {
    const bool all = group == "all";
    const Shape usual{32, 8, 128};
    auto is = [&](const char *name) { return all || group == name; };
    auto grid = [&](const char *id, int requests, int chunks) {
        for (const int prefix : {256, 1024, 2048}) {
            for (const int own : {256, 1024, 2048}) {
                for (const int each : {8, 32, 256}) {
                    if (each > requests) continue;
                    time_case(id, grouped(requests, prefix, own, each, usual, chunks), s);
                }
            }
        }
    };
    if (is("table")) time_table(s);
    if (is("B8a")) grid("B8a", 32, 0);
    if (is("B8b")) grid("B8b", 256, 0);
    if (is("B8c")) grid("B8c", 256, 7);
    if (is("C")) {
        for (const Shape shape : {Shape{16, 4, 128}, usual}) {
            time_case("C0", chunk(1024, 12288, 80, 12288, shape), s);
            time_case("C1", chunk(12288, 12288, 220, 12288, shape), s);
            time_case("C2", chunk(16384, 16384, 250, 12288, shape), s);
        }
    }
    if (is("T7")) time_case("T7", chunk(512, 16384, 64, 16384), s);
    if (is("R")) {
        for (const int prefix : {512, 1024, 2048, 4096}) {
            time_case("R", grouped(32, prefix, 128, 32, {52, 52, 128}), s);
        }
    }
    if (is("CH")) {
        for (const int prefix : {256, 512, 1024, 2048, 4096, 8192}) {
            time_case("CH", grouped(32, prefix, 64, 32, {32, 32, 128}), s);
        }
    }
    if (is("P")) { // causal alone: the engine has no other
        for (int keys = 512; keys <= 32768; keys *= 2) {
            time_case("P", chunk(keys, keys, 0, 0, {64, 8, 128}), s);
        }
    }
    if (is("D")) {
        for (const int requests : {1, 8, 32, 128, 256}) {
            for (int keys = 1024; keys <= 32768; keys *= 2)
                time_case("D", decode(requests, keys), s);
        }
    }
    if (is("L")) {
        time_case("L", grouped(8, 4000, 128, 8, {8, 1, 128}), s, 14.8, 19.4);
        for (const int prefix : {128, 256, 512}) {
            for (const int requests : {2, 4, 8}) {
                time_case("L", grouped(requests, prefix, 128, requests), s);
            }
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77; // Meson's number for a skipped test
    }
    cudaDeviceProp properties{};
    CHECK(cudaGetDeviceProperties(&properties, 0));
    std::string name = "auto";
    if (argc > 2 && std::string(argv[1]) == "--family") {
        name = argv[2];
        argc -= 2;
        argv += 2;
    }
    family = find_attention(name, properties.major, properties.minor);
    if (family == nullptr) {
        std::printf("skipped: no attention %s for compute capability %d.%d\n", name.c_str(),
                    properties.major, properties.minor);
        return 77;
    }
    std::printf("attention %s on %s\n", family->name, properties.name);
    if (argc > 1 && std::string(argv[1]) == "--check") {
        return run_checks(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2]))
                                   : std::random_device()(),
                          argc > 3 ? std::atoi(argv[3]) : 60);
    }
    std::printf("%-47s %8s %6s %6s |%8s%8s%8s%8s%8s%8s | %s\n",
                "case, 32/8 heads of 128 unless R CH L P", "us", "TB/s", "TFLOP", "together",
                "apart", "to best", "unfused", "FA3", "cascade", "items");
    Summary summary;
    int first = 1;
    if (argc > 2 && std::string(argv[1]) == "--only") {
        summary.only = argv[2];
        first = 3;
    }
    if (argc == first) time_group("table", &summary);
    for (int i = first; i < argc; ++i) time_group(argv[i], &summary);
    std::printf(
        "%d cases; chosen over the better of together and apart: worst %.2f (%s), above 1.03: "
        "%d; faster than the best peer: %d of %d\n",
        summary.cases, summary.worst, summary.worst_name.c_str(), summary.slower, summary.beaten,
        summary.peers);
    return 0;
}
