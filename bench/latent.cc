// Checks sm90's attention over latents of 512 + 64 against a float64 reference on random shapes, and times it.
//   latent --check [seed [rounds]]
//   latent [TEXT]   microseconds of attention and its merge, of the cases whose name holds TEXT: as the worklist chooses, with
//                   every shared prefix read together and with none; TB/s of the bytes that must move, TFLOP/s in the
//                   absorbed form
// TILE_US=2 in the environment: a cost of the worklist.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "attention_setup.h"
#include "latent/latent.h"

using namespace batchllm::cuda;

namespace {

constexpr int kKey = 576, kValue = 512;

cudaError_t launch(const AttentionArguments &arguments, int sms, cudaStream_t stream) {
    AttentionArguments a = arguments;
    a.out_stride = int64_t{a.heads} * kValue;
    const cudaError_t status = launch_latent_attention_sm90(a, sms, stream);
    return status != cudaSuccess ? status : launch_latent_merge(a, sms, stream);
}

void set_costs(WorklistOptions *options) {
    set_latent_costs(options);
    if (const char *text = std::getenv("TILE_US")) options->tile_us = std::atof(text);
}

constexpr AttentionFamily kLatents{"latents", 90, 90, launch, set_costs};

AttentionCase make_case(const std::string &name, int heads) {
    AttentionCase c;
    c.name = name;
    c.shape.heads = heads;
    c.shape.kv_heads = 1;
    c.shape.head_dim = kKey;
    return c;
}

template <typename T> std::vector<T> download(const void *from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    CHECK(cudaMemcpy(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

// An element of a key in the pool.
int64_t place(const AttentionCase &c, const AttentionNode &node, int key, int d) {
    const int64_t page = c.pages[static_cast<size_t>(node.page_begin + key / kPageKeys)];
    return page * kPageKeys * kKey + place_in_block(key % kPageKeys, d, 2);
}

std::vector<double> reference(const AttentionCase &c, const std::vector<float> &pool,
                              const float *q, int token, double scale) {
    const AttentionNode *node = c.nodes.data();
    while (token < node->token_begin || token >= node->token_begin + node->token_count) ++node;
    const int position = c.positions[static_cast<size_t>(token)];
    std::vector<double> out(kValue, 0.0);
    double top = -INFINITY, sum = 0;
    for (; node != nullptr;
         node = node->parent < 0 ? nullptr : &c.nodes[static_cast<size_t>(node->parent)]) {
        for (int k = 0; k < node->keys && node->start + k <= position; ++k) {
            double key[kKey], dot = 0;
            for (int d = 0; d < kKey; ++d) {
                key[d] = double{pool[static_cast<size_t>(place(c, *node, k, d))]};
                dot += double{q[d]} * key[d];
            }
            dot *= scale;
            const double higher = std::max(top, dot);
            const double factor = std::exp(top - higher), p = std::exp(dot - higher);
            for (int d = 0; d < kValue; ++d) out[static_cast<size_t>(d)] *= factor;
            for (int d = 0; d < kValue; ++d) out[static_cast<size_t>(d)] += p * key[d];
            sum = sum * factor + p;
            top = higher;
        }
    }
    for (double &x : out) x /= sum;
    return out;
}

// The worst relative error of some heads of tokens. Keys past each node's end are NaN.
double worst_error(const AttentionCase &c, Sharing sharing, unsigned seed) {
    AttentionSetup setup(kLatents, c, 1, seed);
    const AttentionArguments &a = setup.arguments();
    auto bits = download<uint16_t>(a.kv, c.pool_elements());
    for (const AttentionNode &node : c.nodes) {
        for (int k = node.keys; k % kPageKeys != 0; ++k) {
            for (int d = 0; d < kKey; ++d) {
                bits[static_cast<size_t>(place(c, node, k, d))] = 0x7fff;
            }
        }
    }
    CHECK(cudaMemcpy(const_cast<void *>(a.kv), bits.data(), bits.size() * 2,
                     cudaMemcpyHostToDevice));
    const std::vector<float> pool = to_floats(bits, c.shape.f16);
    const auto q = to_floats(download<uint16_t>(a.q, setup.q_elements()), c.shape.f16);
    setup.use(sharing);
    for (int i = 0; i < 2; ++i) setup.launch(a, setup.sms(), nullptr); // the queue begins anew
    CHECK(cudaDeviceSynchronize());
    const int heads = c.shape.heads;
    const auto out = to_floats(download<uint16_t>(a.out, int64_t{c.tokens()} * heads * kValue),
                               c.shape.f16);
    std::mt19937 random(seed);
    double worst = 0;
    for (int i = 0; i < 60; ++i) {
        const int token = static_cast<int>(random() % static_cast<unsigned>(c.tokens()));
        const int head = static_cast<int>(random() % static_cast<unsigned>(heads));
        const int64_t row = int64_t{token} * heads + head;
        const auto wanted = reference(c, pool, q.data() + row * kKey, token, double{a.scale});
        double error = 0, norm = 0;
        for (int d = 0; d < kValue; ++d) {
            const double x = wanted[static_cast<size_t>(d)];
            error += std::pow(double{out[static_cast<size_t>(row * kValue + d)]} - x, 2);
            norm += x * x;
        }
        const double relative = std::sqrt(error / norm);
        if (!(relative <= worst)) worst = std::isnan(relative) ? 1e9 : relative;
    }
    return worst;
}

bool check(unsigned seed, int rounds) {
    std::mt19937 random(seed);
    std::printf("seed %u\n", seed);
    const auto pick = [&](int low, int high) {
        return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    int failed = 0;
    for (int round = 0; round < rounds; ++round) {
        constexpr int kHeads[] = {20, 16, 128, 7, 64, 1};
        AttentionCase c = make_case("", kHeads[round % 6]);
        c.shape.f16 = round % 4 == 3;
        if (round % 5 == 4) c.shape.sharpness = 12; // later keys' scores exceed all before
        for (int trees = pick(1, 3); trees > 0; --trees) {
            int parent = -1;
            for (int depth = pick(0, 2); depth > 0; --depth) {
                parent = c.add(parent, pick(1, 600), pick(0, 4) == 0 ? 1 : 0);
            }
            for (int requests = pick(1, 40); requests > 0; --requests) {
                const int tokens = pick(0, 3) > 0 ? 1 : pick(1, 150);
                c.add(parent, tokens + (pick(0, 1) != 0 ? pick(0, 700) : 0), tokens);
            }
        }
        c.shuffle(static_cast<unsigned>(random()));
        for (const Sharing sharing : {Sharing::chosen, Sharing::together, Sharing::apart}) {
            const double error = worst_error(c, sharing, static_cast<unsigned>(random()));
            const bool right = error < (c.shape.f16 ? 2e-3 : 1e-2);
            failed += !right;
            if (right && round >= 6) continue;
            std::printf("%s round %d %s, %d heads, %zu nodes, %d tokens: error %.2e\n",
                        right ? "ok  " : "FAIL", round, kSharingNames[static_cast<int>(sharing)],
                        c.shape.heads, c.nodes.size(), c.tokens(), error);
        }
    }
    std::printf("%d passed, %d failed\n", 3 * rounds - failed, failed);
    return failed == 0;
}

// Median microseconds of a launch and its merge.
double time_us(const AttentionSetup &setup) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    const int launches = std::max(8, setup.copies());
    for (int run = 0; run < 7; ++run) {
        CHECK(cudaEventRecord(begin));
        for (int i = 0; i < launches; ++i) {
            AttentionArguments a = setup.arguments();
            a.kv = static_cast<const uint8_t *>(a.kv) +
                   setup.source().pool_bytes() * (i % setup.copies());
            CHECK(launch(a, setup.sms(), nullptr));
        }
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (run > 1) times.push_back(ms * 1000 / static_cast<float>(launches));
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return times[times.size() / 2];
}

void time_case(AttentionCase c) {
    c.shuffle(1);
    double keys = 0, seen = 0;
    for (const AttentionNode &node : c.nodes) keys += node.keys;
    for (const int32_t position : c.positions) seen += position + 1;
    const double bytes = keys * kKey * 2 + double(c.tokens()) * c.shape.heads * (kKey + kValue) * 2;
    const double flops = 2.0 * (kKey + kValue) * c.shape.heads * seen;
    // More than L2 holds.
    const int copies = std::max(1, static_cast<int>(2e8 / (keys * kKey * 2)));
    AttentionSetup setup(kLatents, c, copies, 1);
    double us[3];
    for (const Sharing sharing : {Sharing::together, Sharing::apart, Sharing::chosen}) {
        setup.use(sharing);
        us[static_cast<int>(sharing)] = time_us(setup);
    }
    std::printf("%-46s %8.1f us %5.2f TB/s %4.0f TFLOP/s | together %.1f, apart %.1f | %d + %d tiles, %d slots\n",
                c.name.c_str(), us[0], bytes / us[0] / 1e6, flops / us[0] / 1e6, us[1], us[2],
                setup.worklist().matrix_items, setup.worklist().stream_items,
                setup.worklist().slots);
    std::fflush(stdout);
}

void time_all(const std::string &only) {
    std::vector<AttentionCase> cases;
    const auto add = [&](const std::string &name, int heads) -> AttentionCase & {
        cases.push_back(make_case(name + ", " + std::to_string(heads) + " heads", heads));
        return cases.back();
    };
    for (const int heads : {20, 16, 128}) {
        AttentionCase &many = add("decode 128 x 2048", heads);
        for (int i = 0; i < 128; ++i) many.add(-1, 2048, 1);
        AttentionCase &longer = add("decode 32 x 8192", heads);
        for (int i = 0; i < 32; ++i) longer.add(-1, 8192, 1);
        AttentionCase &chunk = add("prefill 2048", heads);
        chunk.add(-1, 2048, 2048);
        AttentionCase &end = add("prefill 1024 to 8192", heads);
        end.add(-1, 8192, 1024);
        AttentionCase &groups = add("512 rows by 16, prefix 2000, own 256", heads);
        for (int i = 0; i < 32; ++i) {
            const int prefix = groups.add(-1, 2000, 0);
            for (int r = 0; r < 16; ++r) groups.add(prefix, 256, 1);
        }
        AttentionCase &own = add("16 x 200 to a prefix of 2000", heads);
        const int prefix = own.add(-1, 2000, 0);
        for (int r = 0; r < 16; ++r) own.add(prefix, 200, 200);
    }
    for (const AttentionCase &c : cases) {
        if (c.name.find(only) != std::string::npos) time_case(c);
    }
}

} // namespace

int main(int argc, char **argv) {
    int devices = 0;
    cudaDeviceProp properties{};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9 ||
        properties.minor != 0) {
        std::printf("skipped: no CUDA device of compute capability 9.0\n");
        return 77; // Meson's number for a skipped test
    }
    std::printf("attention over latents on %s\n", properties.name);
    if (argc > 1 && std::string(argv[1]) == "--check") {
        const unsigned seed =
            argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : std::random_device()();
        return check(seed, argc > 3 ? std::atoi(argv[3]) : 24) ? 0 : 1;
    }
    time_all(argc > 1 ? argv[1] : "");
    return 0;
}
