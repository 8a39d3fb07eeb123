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
constexpr float kScale = 1.0f / 32; // of a latent in e4m3

cudaError_t launch(const AttentionArguments &arguments, int sms, cudaStream_t stream) {
    AttentionArguments a = arguments;
    a.out_stride = int64_t{a.heads} * kValue;
    static DeviceArrays scales;
    static const float *scale = scales.upload(std::vector<float>{kScale});
    a.k_scale = a.v_scale = a.kv_e4m3 ? scale : nullptr;
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
    return page * kPageKeys * kKey + place_in_block(key % kPageKeys, d, c.shape.kv_bytes());
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

// The pool's numbers.
std::vector<float> latents_of(const AttentionSetup &setup) {
    const AttentionCase &c = setup.source();
    auto pool = kv_to_floats(download<uint8_t>(setup.arguments().kv, c.pool_bytes()), c.shape);
    if (c.shape.e4m3) {
        for (float &x : pool) x *= kScale;
    }
    return pool;
}

// The worst relative error of some heads of tokens. Keys past each node's end are NaN.
double worst_error(const AttentionCase &c, Sharing sharing, unsigned seed) {
    AttentionSetup setup(kLatents, c, 1, seed);
    const AttentionArguments &a = setup.arguments();
    const int bytes = c.shape.kv_bytes();
    auto bits = download<uint8_t>(a.kv, c.pool_bytes());
    // What is past a node's end is no number.
    for (const AttentionNode &node : c.nodes) {
        for (int k = node.keys; k % kPageKeys != 0; ++k) {
            for (int d = 0; d < kKey; ++d) {
                for (int i = 0; i < bytes; ++i) {
                    bits[static_cast<size_t>(place(c, node, k, d) * bytes + i)] =
                        i + 1 == bytes ? 0x7f : 0xff;
                }
            }
        }
    }
    CHECK(cudaMemcpy(const_cast<void *>(a.kv), bits.data(), bits.size(), cudaMemcpyHostToDevice));
    const std::vector<float> pool = latents_of(setup);
    const auto q = to_floats(download<uint16_t>(a.q, setup.q_elements()), c.shape.f16);
    setup.use(sharing);
    for (int i = 0; i < 2; ++i) CHECK(launch(a, setup.sms(), nullptr)); // the queue begins anew
    CHECK(cudaDeviceSynchronize());
    const int heads = c.shape.heads;
    const auto out =
        to_floats(download<uint16_t>(a.out, int64_t{c.tokens()} * heads * kValue), c.shape.f16);
    std::mt19937 random(seed);
    double worst = 0;
    if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); })) return 1e9;
    for (int i = 0; i < 100; ++i) {
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
        // In 24 rounds each kind comes with each number of heads.
        const int kind = (round % 6 + round / 6) % 4;
        c.shape.f16 = kind % 2 == 1;
        c.shape.e4m3 = kind / 2 == 1;
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
        if (round % 3 == 0) { // many short ones, so that an SM has several
            for (int i = 0; i < 30; ++i) {
                const int prefix = c.add(-1, pick(1, 300), 0);
                for (int r = 0; r < 20; ++r) c.add(prefix, pick(1, 150), 1);
            }
        }
        c.shuffle(static_cast<unsigned>(random()));
        for (const Sharing sharing : {Sharing::chosen, Sharing::together, Sharing::apart}) {
            const double error = worst_error(c, sharing, static_cast<unsigned>(random()));
            const bool right = error < (c.shape.f16 ? 2e-3 : 1e-2);
            failed += !right;
            if (right && round >= 6) continue;
            std::printf("%s round %d %s, %d heads, %s%s, %zu nodes, %d tokens: error %.2e\n",
                        right ? "ok  " : "FAIL", round, kSharingNames[static_cast<int>(sharing)],
                        c.shape.heads, c.shape.f16 ? "f16" : "bf16", c.shape.e4m3 ? " on e4m3" : "",
                        c.nodes.size(), c.tokens(), error);
        }
    }
    std::printf("%d passed, %d failed\n", 3 * rounds - failed, failed);
    return failed == 0;
}

// Pages of latents and a head's matrices, and what is made of them.
class Expansion {
  public:
    // pages: indices into the pool's.
    Expansion(const void *pool, const AttentionCase &c, int plain, int value_dim)
        : element_(c.shape.f16 ? batchllm::DType::f16 : batchllm::DType::bf16) {
        const std::vector<int32_t> &pages = c.pages;
        const int heads = c.shape.heads;
        const auto count = static_cast<int32_t>(pages.size());
        std::vector<int32_t> all(pages.size());
        for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
        of_keys = int64_t{heads} * kValue * plain;
        of_values = int64_t{heads} * kValue * value_dim;
        made = int64_t{count} * heads * 2 * kPageKeys * batchllm::latent_head_dim;
        auto *out = device_.make<uint16_t>(made);
        CHECK(cudaMemset(out, 0, static_cast<size_t>(made) * 2));
        arguments = {pool,
                     device_.upload(pages),
                     device_.upload(all),
                     count,
                     heads,
                     plain,
                     noise(of_keys),
                     noise(of_values),
                     out,
                     c.shape.e4m3,
                     device_.upload(std::vector<float>{kScale})};
    }
    cudaError_t launch(int sms) const {
        return launch_latent_expand(arguments, element_, sms, nullptr);
    }

    LatentExpandArguments arguments;
    int64_t of_keys, of_values, made; // elements

  private:
    const uint16_t *noise(int64_t count) {
        std::mt19937 random(static_cast<unsigned>(count));
        std::vector<uint16_t> bits(static_cast<size_t>(count));
        // Of either sign, up to 1/8: in bf16 0x3e00 and in f16 0x3000 are the greatest.
        for (uint16_t &b : bits) {
            const unsigned top = element_ == batchllm::DType::f16 ? 0x3000 : 0x3e00;
            b = static_cast<uint16_t>((random() % top) | (random() & 0x8000));
        }
        return device_.upload(bits);
    }
    batchllm::DType element_;
    DeviceArrays device_;
};

// Keys and values of heads against float64.
bool check_expansion(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) {
        return static_cast<int64_t>(random() % static_cast<unsigned>(n));
    };
    bool right = true;
    for (int round = 0; round < 12; ++round) {
        const int plain = round % 2 == 0 ? 192 : 128, value_dim = round % 2 == 0 ? 256 : 128;
        AttentionCase c = make_case("", 3 + 17 * (round % 3 == 0));
        c.shape.f16 = round % 6 >= 3;
        c.shape.e4m3 = round >= 6;
        c.add(-1, 64 * (1 + 3 * round) - 5, 1);
        c.shuffle(seed);
        AttentionSetup setup(kLatents, c, 1, seed);
        const Expansion e(setup.arguments().kv, c, plain, value_dim);
        CHECK(e.launch(setup.sms()));
        CHECK(cudaDeviceSynchronize());
        const auto floats = [&](const void *from, int64_t count) {
            return to_floats(download<uint16_t>(from, count), c.shape.f16);
        };
        const auto pool = latents_of(setup);
        const auto keys = floats(e.arguments.keys, e.of_keys);
        const auto values = floats(e.arguments.values, e.of_values);
        const auto out = floats(e.arguments.out, e.made);
        double worst = 0;
        for (int i = 0; i < 4000; ++i) {
            const int64_t page = below(static_cast<int64_t>(c.pages.size()));
            const int64_t head = below(c.shape.heads), which = below(2);
            const auto key = static_cast<int>(below(kPageKeys));
            const auto d = static_cast<int>(below(which == 0 ? 256 : value_dim));
            const int64_t at = ((page * c.shape.heads + head) * 2 + which) * kPageKeys * 256 +
                               place_in_block(key, d, 2);
            const auto latent = [&](int k) {
                return double{pool[static_cast<size_t>(
                    place(c, c.nodes[0], static_cast<int>(page) * kPageKeys + key, k))]};
            };
            double sum = 0, norm = 0;
            for (int k = 0; k < kValue; ++k) {
                const int64_t from = which == 0 ? (head * kValue + k) * plain + d
                                                : (head * value_dim + d) * kValue + k;
                if (which == 0 && d >= plain) break;
                const double w = double{(which == 0 ? keys : values)[static_cast<size_t>(from)]};
                sum += w * latent(k);
                norm += std::pow(w * latent(k), 2);
            }
            if (which == 0 && d >= plain) sum = d < plain + 64 ? latent(kValue + d - plain) : 0;
            const double error = std::abs(double{out[static_cast<size_t>(at)]} - sum) /
                                 (std::abs(sum) + std::sqrt(norm) + 1e-9);
            if (!(error <= worst)) worst = std::isnan(error) ? 1e9 : error;
        }
        const bool ok = worst < (c.shape.f16 ? 1e-3 : 5e-3);
        right = right && ok;
        std::printf("%s %zu pages%s, %d heads, keys of %d + 64, values of %d: error %.2e\n",
                    ok ? "ok  " : "FAIL", c.pages.size(), c.shape.e4m3 ? " in e4m3" : "",
                    c.shape.heads, plain, value_dim, worst);
    }
    return right;
}

// Median microseconds of what act(i) enqueues.
template <typename Act> double time_us(int launches, const Act &act) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < 7; ++run) {
        CHECK(cudaEventRecord(begin));
        for (int i = 0; i < launches; ++i) act(i);
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

// Of a launch and its merge.
double time_us(const AttentionSetup &setup) {
    return time_us(std::max(8, setup.copies()), [&](int i) {
        AttentionArguments a = setup.arguments();
        a.kv =
            static_cast<const uint8_t *>(a.kv) + setup.source().pool_bytes() * (i % setup.copies());
        CHECK(launch(a, setup.sms(), nullptr));
    });
}

// The same in the plain form, with values as long as keys: expanding all pages, and attention to what they become.
void time_plain(const AttentionCase &absorbed, double wide) {
    const AttentionFamily *family = find_attention("sm90", 9, 0);
    AttentionCase c = absorbed;
    c.shape.kv_heads = c.shape.heads;
    c.shape.head_dim = batchllm::latent_head_dim;
    if (static_cast<double>(c.pool_bytes()) > 2e10) return;
    AttentionSetup latents(kLatents, absorbed, 1, 1);
    const Expansion e(latents.arguments().kv, c, 192, 256);
    const double expand = time_us(5, [&](int) { CHECK(e.launch(latents.sms())); });
    c.shape.e4m3 = false;
    AttentionSetup setup(*family, c, 1, 1);
    setup.use(Sharing::chosen);
    const double attend =
        time_us(5, [&](int) { setup.launch(setup.arguments(), setup.sms(), nullptr); });
    const double pages = static_cast<double>(c.pages.size());
    std::printf("%46s %8.1f us: expanding %.1f (%.0f TFLOP/s), attention %.1f (%.0f TFLOP/s)\n",
                "in the plain form", expand + attend, expand,
                pages * c.shape.heads * 64 * 2 * 512 * 448 / expand / 1e6, attend,
                wide * 512 / 544 / attend / 1e6);
}

void time_case(AttentionCase c) {
    c.shuffle(1);
    double keys = 0, seen = 0;
    for (const AttentionNode &node : c.nodes) keys += node.keys;
    for (const int32_t position : c.positions) seen += position + 1;
    const double bytes =
        keys * kKey * c.shape.kv_bytes() + double(c.tokens()) * c.shape.heads * (kKey + kValue) * 2;
    const double flops = 2.0 * (kKey + kValue) * c.shape.heads * seen;
    // More than L2 holds.
    const int copies = std::max(1, static_cast<int>(2e8 / (keys * kKey * 2)));
    AttentionSetup setup(kLatents, c, copies, 1);
    double us[3];
    for (const Sharing sharing : {Sharing::together, Sharing::apart, Sharing::chosen}) {
        setup.use(sharing);
        us[static_cast<int>(sharing)] = time_us(setup);
    }
    std::printf("%-46s %8.1f us %5.2f TB/s %4.0f TFLOP/s | together %.1f, apart %.1f | %d + %d "
                "tiles, %d slots\n",
                c.name.c_str(), us[0], bytes / us[0] / 1e6, flops / us[0] / 1e6, us[1], us[2],
                setup.worklist().matrix_items, setup.worklist().stream_items,
                setup.worklist().slots);
    if (c.tokens() > 600) time_plain(c, flops / 2);
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
    for (size_t i = 0, all = cases.size(); i < all; ++i) {
        cases.push_back(cases[i]);
        cases.back().shape.e4m3 = true;
        cases.back().name += " in e4m3";
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
        const bool right = check_expansion(seed);
        return check(seed, argc > 3 ? std::atoi(argv[3]) : 24) && right ? 0 : 1;
    }
    time_all(argc > 1 ? argv[1] : "");
    return 0;
}
