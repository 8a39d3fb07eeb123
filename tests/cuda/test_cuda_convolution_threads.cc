// Runs the code of each thread of the short-convolution kernel
// (cuda/recurrent/short_convolution.cuh) on the host, for all threads of all blocks of a launch,
// with blocks in random order. Results are compared with float64; every element must be written
// once, and nothing may be read that was never written.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "recurrent/short_convolution.cuh"
#include "step/state_items.h"

#include "convolution_steps.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

using Random = std::mt19937_64;
constexpr float kNever = std::numeric_limits<float>::quiet_NaN();

// 16 bits: f32 without its lower half, like bf16. Results may only be stored where there still is a
// NaN.
struct Half {
    uint16_t bits;
};
float wide(float x) { return x; }
float wide(Half x) {
    const uint32_t bits = uint32_t{x.bits} << 16;
    float made;
    std::memcpy(&made, &bits, 4);
    return made;
}
void narrow(float x, float *out) { *out = x; }
void narrow(float x, Half *out) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    out->bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

int64_t twice = 0; // elements of results written a second time

template <typename T> struct HostMemory {
    struct Raw {
        T values[kConvolvedChannels];
    };
    static Raw load(const T *from) {
        assert_int_equal(reinterpret_cast<uintptr_t>(from) % 16, 0);
        Raw made;
        std::memcpy(&made, from, sizeof made);
        return made;
    }
    static void widen(const Raw &from, float (&out)[kConvolvedChannels]) {
        for (int e = 0; e < kConvolvedChannels; ++e) out[e] = wide(from.values[e]);
    }
    static void load(const float *from, float (&out)[kConvolvedChannels]) {
        assert_int_equal(reinterpret_cast<uintptr_t>(from) % 16, 0);
        std::memcpy(out, from, sizeof out);
    }
    static void store(float *to, const float (&values)[kConvolvedChannels]) {
        assert_int_equal(reinterpret_cast<uintptr_t>(to) % 16, 0);
        std::memcpy(to, values, sizeof values);
    }
    static void store(Half *to, const float (&values)[kConvolvedChannels]) {
        for (int e = 0; e < kConvolvedChannels; ++e) {
            twice += !std::isnan(wide(to[e]));
            narrow(values[e], &to[e]);
        }
    }
};

// A vector at an address that is a multiple of 16.
template <typename T> class Aligned {
  public:
    Aligned(const std::vector<float> &values) : all_(values.size() + 16) {
        const auto at = reinterpret_cast<uintptr_t>(all_.data()) % 16;
        first_ = at == 0 ? 0 : (16 - at) / sizeof(T);
        for (size_t i = 0; i < values.size(); ++i) narrow(values[i], data() + i);
    }
    T *data() { return all_.data() + first_; }

  private:
    std::vector<T> all_;
    size_t first_;
};

template <typename T, int kWidth, bool kBiased>
void run_blocks(Random &random, const ShortConvolutionArguments &a) {
    const ConvolutionGrid grid(a);
    std::vector<std::pair<int32_t, int32_t>> blocks;
    for (int32_t x = 0; x < grid.across; ++x) {
        for (int32_t y = 0; y < grid.along; ++y) blocks.emplace_back(x, y);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const auto &[x, y] : blocks) {
        for (int32_t thread = 0; thread < grid.threads; ++thread) {
            convolve_pieces<T, kWidth, kBiased, HostMemory<T>>(a, x * grid.threads + thread, y,
                                                               grid.along);
        }
    }
}
template <typename T> void run_launch(Random &random, const ShortConvolutionArguments &a) {
    const bool biased = a.filter_bias != nullptr || a.input_bias != nullptr;
    if (a.width == 2) {
        biased ? run_blocks<T, 2, true>(random, a) : run_blocks<T, 2, false>(random, a);
    } else if (a.width == 3) {
        biased ? run_blocks<T, 3, true>(random, a) : run_blocks<T, 3, false>(random, a);
    } else {
        biased ? run_blocks<T, 4, true>(random, a) : run_blocks<T, 4, false>(random, a);
    }
}

struct Job {
    ConvolutionShape shape;
    int32_t sequences, longest, most, sms, least_chunked;
};

// Returns the results of all sequences.
template <typename T> std::vector<float> run_job(Random &random, const Job &job, double limit) {
    const ConvolutionShape &shape = job.shape;
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t count) {
        std::vector<float> made(static_cast<size_t>(count));
        for (float &x : made) {
            T element{};
            narrow(normal(random), &element);
            x = wide(element);
        }
        return made;
    };
    const auto floats = [&](int64_t count) {
        std::vector<float> made(static_cast<size_t>(count));
        for (float &x : made) x = normal(random);
        return made;
    };
    ConvolutionVectors vectors{floats(int64_t{shape.width} * shape.channels), {}, {}};
    if (shape.biased) {
        vectors.filter_bias = floats(shape.channels);
        vectors.input_bias = floats(3 * int64_t{shape.channels});
    }
    std::vector<ConvolutionSequence> all =
        make_sequences(random, shape, vectors, job.sequences, job.longest, draw);
    const int64_t ring = int64_t{shape.width - 1} * shape.channels;
    Aligned<float> states(std::vector<float>(static_cast<size_t>(job.sequences * ring), kNever));
    Aligned<float> filter(vectors.filter), filter_bias(vectors.filter_bias),
        input_bias(vectors.input_bias);
    const auto run = [&](const StateStep &step) {
        const auto tokens = static_cast<int64_t>(step.batch.tokens.size());
        StateItems lists;
        list_state_items(step.batch, job.least_chunked, &lists);
        Aligned<T> x(step.projected);
        Aligned<Half> out(std::vector<float>(static_cast<size_t>(tokens * shape.channels), kNever));
        Aligned<float> exact(
            std::vector<float>(static_cast<size_t>(tokens * shape.channels), kNever));
        ShortConvolutionArguments a{};
        a.projected = x.data();
        a.stride = shape.stride();
        a.filter = filter.data();
        a.filter_bias = shape.biased ? filter_bias.data() : nullptr;
        a.input_bias = shape.biased ? input_bias.data() : nullptr;
        a.states = reinterpret_cast<std::byte *>(states.data());
        a.slot_bytes = ring * 4;
        a.out = std::is_same_v<T, float> ? static_cast<void *>(exact.data()) : out.data();
        a.items = lists.items.data();
        a.chunks = lists.chunks.data();
        a.tokens = tokens;
        a.channels = shape.channels;
        a.width = shape.width;
        a.sms = job.sms;
        for (const StateLevel &level : lists.levels) {
            a.level = &level;
            run_launch<T>(random, a);
        }
        std::vector<float> results;
        for (int64_t i = 0; i < tokens * shape.channels; ++i) {
            results.push_back(std::is_same_v<T, float> ? exact.data()[i] : wide(out.data()[i]));
        }
        return results;
    };
    std::vector<float> got;
    while (run_step(random, shape.stride(), shape.channels, job.most, &all, run)) {}
    const std::string what = std::to_string(shape.channels) + " channels over " +
                             std::to_string(shape.width) + " tokens, steps of " +
                             std::to_string(job.most);
    assert_each_close(all, limit, what.c_str());
    for (const ConvolutionSequence &s : all) got.insert(got.end(), s.got.begin(), s.got.end());
    assert_int_equal(twice, 0);
    return got;
}

void all_threads_together_are_the_reference(void **) {
    Random random(seed_of_run());
    int jobs = 0;
    for (const int32_t channels : {8, 24, 136, 2072}) {
        for (const int32_t width : {2, 3, 4}) {
            for (const bool biased : {false, true}) {
                for (const int32_t most : {1, 5, 40, 200}) {
                    if (channels == 2072 && (most != 40 || biased)) continue;
                    const int32_t longest = channels == 2072 ? 60 : 150;
                    const int32_t sms = between(random, 1, 2) == 1 ? 1 : 132;
                    const Job job{{channels, width, biased}, 9, longest, most, sms, 16};
                    run_job<float>(random, job, 2e-6); // one token of 8 channels may nearly cancel
                    run_job<Half>(random, job, 4e-3);
                    ++jobs;
                }
            }
        }
    }
    print_message("%d kinds of steps\n", jobs);
}

// However steps cut the sequences, and whether or not long items go in chunks.
void a_tokens_bits_do_not_depend_on_its_step(void **) {
    const uint64_t seed = seed_of_run();
    for (const int32_t width : {2, 3, 4}) {
        std::vector<float> first;
        for (const int32_t most : {1, 7, 200}) {
            for (const int32_t least_chunked : {16, std::numeric_limits<int32_t>::max()}) {
                Random random(seed); // the same sequences
                const std::vector<float> got = run_job<Half>(
                    random, {{40, width, true}, 8, 120, most, 2, least_chunked}, 4e-3);
                if (first.empty()) first = got;
                assert_int_equal(first.size(), got.size());
                assert_memory_equal(first.data(), got.data(), got.size() * sizeof(float));
            }
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_together_are_the_reference),
        cmocka_unit_test(a_tokens_bits_do_not_depend_on_its_step),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
