// Checks the fused attention against a float64 reference on random shapes, and times it.
//   attention [--family sm80|sm90] --check [seed]   random shapes, page tables, windows, node forests
//   attention [--family sm80|sm90]                  the brief's table: microseconds a launch (CUDA graph of launches over
//                              enough pools to leave L2), TB/s of the bytes that must move, TFLOP/s
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

struct Setup {
    Device device;
    AttentionArguments a{};
    Worklist worklist;
    int tokens;
    int64_t pool_elements;
    int copies;

    Setup(const Case &c, bool share, int pool_copies, uint64_t seed) : copies(pool_copies) {
        const Shape &s = c.shape;
        tokens = static_cast<int>(c.positions.size());
        WorklistOptions options;
        options.heads = s.heads;
        options.kv_heads = s.kv_heads;
        options.head_dim = s.head_dim;
        options.window = s.window;
        options.sms = sm_count();
        options.share = share;
        family->set_costs(&options);
        auto setting = [](const char *name, double &value) {
            if (const char *text = std::getenv(name)) value = std::atof(text);
        };
        setting("MATRIX_US", options.matrix_us);
        setting("STREAM_US", options.stream_us);
        setting("ITEM_US", options.item_us);
        setting("MERGE_US", options.merge_us);
        setting("MATRIX_SPLIT", options.matrix_split);
        setting("STREAM_SPLIT", options.stream_split);
        build_worklist(c.nodes, tokens, options, &worklist);
        pool_elements = int64_t(c.page_total) * s.kv_heads * 2 * kPageKeys * s.head_dim;
        auto *kv = device.make<uint16_t>(pool_elements * copies);
        auto *q = device.make<uint16_t>(int64_t(tokens) * s.heads * s.head_dim);
        if (s.f16) {
            fill<<<1024, 256>>>(reinterpret_cast<__half *>(kv), pool_elements * copies, seed, 1.f);
            fill<<<1024, 256>>>(reinterpret_cast<__half *>(q),
                                int64_t(tokens) * s.heads * s.head_dim, seed + (1ull << 40), 1.f);
        } else {
            fill<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16 *>(kv), pool_elements * copies, seed,
                                1.f);
            fill<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16 *>(q),
                                int64_t(tokens) * s.heads * s.head_dim, seed + (1ull << 40), 1.f);
        }
        CHECK(cudaGetLastError());
        a.type = s.f16 ? AttentionType::f16 : AttentionType::bf16;
        a.heads = s.heads;
        a.kv_heads = s.kv_heads;
        a.head_dim = s.head_dim;
        a.scale = 1.f / std::sqrt(static_cast<float>(s.head_dim));
        a.window = s.window;
        a.q = q;
        a.q_stride = a.out_stride = int64_t(s.heads) * s.head_dim;
        a.out = device.make<uint16_t>(tokens * a.out_stride);
        a.kv = kv;
        a.pages = device.upload(c.pages);
        a.items = device.upload(worklist.items);
        a.matrix_items = worklist.matrix_items;
        a.stream_items = worklist.stream_items;
        a.rows = device.upload(worklist.rows);
        a.partials = device.upload(worklist.partials);
        a.partial_out = device.make<float>(int64_t(worklist.slots) * s.heads * s.head_dim);
        a.partial_lse = device.make<float>(int64_t(worklist.slots) * s.heads);
        a.arrivals = device.make<int32_t>(int64_t(tokens) * s.kv_heads);
        a.queues = device.make<int32_t>(4);
        CHECK(cudaMemset(a.arrivals, 0, int64_t(tokens) * s.kv_heads * 4));
        CHECK(cudaMemset(a.queues, 0, 16));
        CHECK(cudaMemset(a.out, 0xff, tokens * a.out_stride * 2));
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
double check(const Case &c, bool share, uint64_t seed, int rows, bool poison) {
    Setup setup(c, share, 1, seed);
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
    // Twice: the second launch finds what the first left behind, and must give the same bits.
    std::vector<uint16_t> first(out.size());
    for (int run = 0; run < 2; ++run) {
        CHECK(family->launch(setup.a, sm_count(), nullptr));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy((run == 0 ? first : out).data(), setup.a.out, out.size() * 2,
                         cudaMemcpyDeviceToHost));
    }
    if (first != out) return 1e9;

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

int run_checks(unsigned seed) {
    std::mt19937 random(seed);
    auto pick = [&](int low, int high) {
        return low + static_cast<int>(random() % (high - low + 1));
    };
    std::printf("seed %u\n", seed);
    int failed = 0;
    const int shapes[][3] = {{32, 8, 128}, {28, 4, 128}, {8, 1, 128}, {8, 8, 64},  {32, 8, 64},
                             {16, 2, 256}, {4, 4, 128},  {14, 2, 64}, {20, 1, 128}};
    for (int round = 0; round < 60; ++round) {
        Case c;
        const int *shape = shapes[round % 9];
        c.shape = {shape[0], shape[1], shape[2], pick(0, 3) == 0 ? pick(1, 300) : 0,
                   pick(0, 2) == 0};
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
        for (const bool share : {true, false}) {
            const double error = check(c, share, random(), 200, true);
            const double limit = c.shape.f16 ? 2e-3 : 1e-2;
            const bool ok = error < limit;
            failed += !ok;
            if (!ok || round < 9)
                std::printf(
                    "%s round %d %s %d/%d d%d window %d, %zu nodes, %zu tokens: error %.2e\n",
                    ok ? "ok  " : "FAIL", round, share ? "shared" : "apart", shape[0], shape[1],
                    shape[2], c.shape.window, c.nodes.size(), c.positions.size(), error);
        }
    }
    std::printf("%d passed, %d failed\n", 120 - failed, failed);
    return failed != 0;
}

// ---- Timing -----------------------------------------------------------------------------------------

double time_us(const Case &c, bool share, double *moved, double *flops, Worklist *worklist) {
    const Shape &s = c.shape;
    const int64_t pool_bytes = int64_t(c.page_total) * s.kv_heads * 2 * kPageKeys * s.head_dim * 2;
    const int copies =
        static_cast<int>(std::clamp<int64_t>((int64_t(600) << 20) / pool_bytes + 1, 2, 64));
    Setup setup(c, share, copies, 7);
    *worklist = setup.worklist;
    *moved = 0;
    *flops = 0;
    for (const AttentionNode &n : c.nodes)
        *moved += double(n.keys) * s.kv_heads * 2 * s.head_dim * 2;
    *moved += 2.0 * setup.tokens * s.heads * s.head_dim * 2;
    for (const AttentionNode &n : c.nodes)
        for (int t = 0; t < n.token_count; ++t)
            *flops += 4.0 * s.heads * s.head_dim * (n.start + n.keys - n.token_count + t + 1);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    const int launches = std::max(8, copies);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) {
        AttentionArguments a = setup.a;
        a.kv = static_cast<const uint16_t *>(setup.a.kv) + setup.pool_elements * (i % copies);
        CHECK(family->launch(a, sm_count(), stream));
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
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

void print_case(Case c, double peer, double cascade) {
    c.shuffle(1);
    double moved, flops;
    Worklist w;
    const double shared = time_us(c, true, &moved, &flops, &w);
    const int matrix = w.matrix_items, stream = w.stream_items;
    const double apart = time_us(c, false, &moved, &flops, &w);
    std::printf("%-44s %8.1f us %6.2f TB/s %6.1f TFLOP/s | apart %8.1f | FA3 %6.0f cascade %5.0f | "
                "items %d + %d\n",
                c.name.c_str(), shared, moved / shared * 1e-6, flops / shared * 1e-6, apart, peer,
                cascade, matrix, stream);
    std::fflush(stdout);
}

Case decode(const char *name, int requests, int keys, Shape shape = {32, 8, 128}) {
    Case c;
    c.name = name;
    c.shape = shape;
    for (int r = 0; r < requests; ++r) c.add(-1, keys, 1);
    return c;
}
Case grouped(const char *name, int requests, int prefix, int own, int each,
             Shape shape = {32, 8, 128}) {
    Case c;
    c.name = name;
    c.shape = shape;
    int parent = -1;
    for (int r = 0; r < requests; ++r) {
        if (r % each == 0) parent = c.add(-1, prefix, 0);
        c.add(parent, own, 1);
    }
    return c;
}
Case chunk(const char *name, int tokens, int keys, int decodes, int decode_keys,
           Shape shape = {32, 8, 128}) {
    Case c;
    c.name = name;
    c.shape = shape;
    c.add(-1, keys, tokens);
    for (int r = 0; r < decodes; ++r) c.add(-1, decode_keys, 1);
    return c;
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
                                   : std::random_device()());
    }
    print_case(chunk("prefill 2048 causal", 2048, 2048, 0, 0), 0, 0);
    print_case(chunk("prefill 8192 causal", 8192, 8192, 0, 0), 0, 0);
    print_case(chunk("chunk 512 on 4096", 512, 4608, 0, 0), 0, 0);
    print_case(decode("decode 32 x 4096", 32, 4096), 131, 129);
    print_case(decode("decode 128 x 2048", 128, 2048), 259, 258);
    print_case(decode("decode 256 x 1024", 256, 1024), 276, 265);
    print_case(grouped("256: prefix 1024 own 256 by 8", 256, 1024, 256, 8), 238, 140);
    print_case(grouped("256: prefix 1024 own 256, one group", 256, 1024, 256, 256), 235, 112);
    print_case(grouped("256: prefix 2048 own 256 by 8", 256, 2048, 256, 8), 383, 176);
    print_case(grouped("256: prefix 2048 own 1024 by 8", 256, 2048, 1024, 8), 560, 361);
    print_case(grouped("512: prefix 2000 own 256 by 16", 512, 2000, 256, 16), 759, 256);
    print_case(grouped("256: prefix 256 own 256 by 8", 256, 256, 256, 8), 120, 111);
    print_case(grouped("R 52/52: 32, prefix 2048 own 128", 32, 2048, 128, 32, {52, 52, 128}), 311,
               89);
    print_case(grouped("R 52/52: 32, prefix 4096 own 128", 32, 4096, 128, 32, {52, 52, 128}), 586,
               109);
    print_case(grouped("L 8/1: 8, prefix 4000 own 128", 8, 4000, 128, 8, {8, 1, 128}), 14.8, 19.4);
    print_case(chunk("C0: 1024 to 12288 + 80 x 12288", 1024, 12288, 80, 12288), 1288, 0);
    print_case(chunk("C0 prefill alone", 1024, 12288, 0, 0), 394, 0);
    print_case(decode("C0 decode alone", 80, 12288), 917, 0);
    print_case(chunk("T7': 512 to 16384 + 48 x 16384", 512, 16384, 48, 16384), 1015, 0);
    print_case(chunk("2048 to 2048 + 384 x 2048", 2048, 2048, 384, 2048), 916, 0);
    return 0;
}
