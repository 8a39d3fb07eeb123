// A layer of gated delta nets alone, on the GPU, at Qwen3.5-9B's shape (16 heads of keys, 32 of values, 128 by 128):
// decode beside the rate of a copy, and prompts in chunks with what their parts take. And a short convolution at
// LFM2-1.2B's (2,048 channels over three tokens), decode and prompts beside a copy of as many bytes.
//
//     recurrent
//     recurrent --key-heads 16 --value-heads 32 --state bf16 --family sm80 --sms 128
//     recurrent --part inputs    # only the inputs of chunks: convolution, lengths of q and k, gates
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "recurrent/chunk.h"
#include "recurrent/short_convolution.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int32_t kDim = 128;

// A layer with random inputs, and the lists of one step.
struct Bench {
    int32_t key_heads = 16, value_heads = 32, sms = 1;
    bool sm90 = false;
    DType state = DType::f32;
    DeviceMemory projected, vectors, states, out, mixed, gates, w, p;
    DeviceMemory items, level, chunks;

    DeltaArguments delta(int32_t most_items) const {
        DeltaArguments a{};
        a.element = DType::bf16;
        a.state = state;
        a.projected = projected.data();
        a.stride = stride();
        // All the same numbers: only the time counts.
        a.convolution = a.decay = a.step = a.norm = vectors.as<float>();
        a.epsilon = 1e-6F;
        a.states = states.data();
        a.slot_bytes = slot_bytes();
        a.out = out.data();
        a.items = items.as<StateItem>();
        a.level = level.as<StateLevel>();
        a.most_items = most_items;
        a.key_heads = key_heads;
        a.value_heads = value_heads;
        a.key_dim = a.value_dim = kDim;
        a.sms = sms;
        a.sm90 = sm90;
        return a;
    }
    int64_t channels() const { return int64_t{kDim} * (2 * key_heads + value_heads); }
    int64_t stride() const {
        return (channels() + kDim * value_heads + 2 * value_heads + 15) / 16 * 16;
    }
    int64_t matrix_bytes() const { return int64_t{value_heads} * kDim * kDim * dtype_bytes(state); }
    int64_t slot_bytes() const { return matrix_bytes() + kRing * channels() * 2; }

    void make(int32_t tokens, int32_t slots) {
        projected = noise(tokens * stride(), 1, 1);
        vectors = require(zeroed_memory(channels() * kRing * 4, "vectors"));
        require(
            launch_random(vectors.data(), DType::f32, channels() * kRing, 0.2F, 0.2F, 2, nullptr));
        states = require(zeroed_memory(slots * slot_bytes(), "states"));
        const int64_t values = int64_t{tokens} * value_heads * kDim;
        out = require(zeroed_memory(values * 2, "results"));
        mixed = require(zeroed_memory(tokens * channels() * 2, "mixed"));
        w = require(zeroed_memory(values * 2, "W"));
        p = require(zeroed_memory(values, "P"));
        gates = require(zeroed_memory(int64_t{tokens} * value_heads * 8, "gates"));
    }
    // So many requests, of so many tokens each.
    std::vector<StateChunk> set_step(int32_t requests, int32_t each, bool chunked) {
        std::vector<StateItem> all;
        std::vector<StateChunk> made;
        for (int32_t i = 0; i < requests; ++i) {
            all.push_back({i, i, i * each, each, 1000});
            for (int32_t t = 0; chunked && t < each; t += kStateChunk) made.push_back({i, t});
        }
        StateLevel one{};
        one.several = each > 1 ? 0 : requests;
        one.chunked = chunked ? 0 : requests;
        one.end = requests;
        one.chunk_end = static_cast<int32_t>(made.size());
        items = upload(all);
        level = upload(std::vector<StateLevel>{one});
        chunks = upload(made.empty() ? std::vector<StateChunk>{{0, 0}} : made);
        return made;
    }
};

void time_decode(Bench *bench, double copied) {
    for (const int32_t rows : {16, 64, 256, 512, 1024}) {
        bench->make(rows, rows);
        bench->set_step(rows, 1, false);
        const float took = time_launches(
            20, [&] { require(launch_delta_decode(bench->delta(rows), rows, nullptr)); });
        const auto bytes = static_cast<size_t>(rows * bench->matrix_bytes());
        const double rate = 2e3 * static_cast<double>(bytes) / static_cast<double>(took);
        const DeviceMemory to =
            require(DeviceMemory::create(static_cast<int64_t>(bytes), "copied"));
        const float copy = time_launches(20, [&] {
            require(cudaMemcpyAsync(to.data(), bench->states.data(), bytes,
                                    cudaMemcpyDeviceToDevice, nullptr));
        });
        std::printf(
            "decode, %4d rows: %7.1f us, state at %.2f TB/s, %.1f %% of a copy; a copy of as "
            "many bytes: %.1f us\n",
            rows, static_cast<double>(took) * 1e3, rate * 1e-12, 100 * rate / copied,
            static_cast<double>(copy) * 1e3);
    }
}

constexpr struct {
    int32_t requests, each;
} kPromptSteps[] = {{1, 2048}, {4, 512}, {16, 128}, {32, 64}, {64, 32},
                    {128, 16}, {256, 8}, {2, 2048}, {1, 4096}};

ChunkArguments chunks_of(Bench *bench, int32_t requests, int32_t each) {
    bench->make(requests * each, requests);
    const auto chunks = static_cast<int32_t>(bench->set_step(requests, each, true).size());
    return {bench->delta(requests),
            bench->chunks.as<StateChunk>(),
            chunks,
            requests,
            requests * each,
            bench->mixed.data(),
            bench->gates.as<float2>(),
            bench->w.data(),
            bench->p.data()};
}

// Bytes: q, k and v read and written, each request's ring and the gates. Every family has the same kernel.
void time_inputs(Bench *bench) {
    for (const auto &step : kPromptSteps) {
        const ChunkArguments a = chunks_of(bench, step.requests, step.each);
        const auto time = [](const auto &launch) {
            return 1e3 * static_cast<double>(time_launches(50, launch));
        };
        const double took = time([&] { require(launch_chunk_inputs(a, nullptr)); });
        const int64_t gates = a.tokens * bench->value_heads * (2 * 2 + 8);
        const int64_t bytes =
            2 * bench->channels() * (2 * a.tokens + (kRing - 1) * step.requests) + gates;
        const DeviceMemory from = require(zeroed_memory(bytes / 2, "copied"));
        const DeviceMemory to = require(zeroed_memory(bytes / 2, "copied"));
        const double copy = time([&] {
            require(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes / 2),
                                    cudaMemcpyDeviceToDevice, nullptr));
        });
        std::printf("inputs of %3d prompts of %4d tokens: %6.1f us, %.2f TB/s; a copy of as many "
                    "bytes: %.1f us\n",
                    step.requests, step.each, took, static_cast<double>(bytes) / took * 1e-6, copy);
    }
}

void time_prompts(Bench *bench) {
    for (const auto &step : kPromptSteps) {
        const int32_t requests = step.requests, each = step.each, tokens = requests * each;
        const ChunkArguments a = chunks_of(bench, requests, each);
        const int32_t chunks = a.chunk_count;
        const auto time = [&](auto launch) {
            return static_cast<double>(time_launches(10, [&] { require(launch(a, nullptr)); }));
        };
        const double all = time(launch_delta_chunks);
        const double parts[] = {bench->sm90 ? 0 : time(launch_chunk_inputs),
                                time(launch_within_chunks), time(launch_across_chunks),
                                time(launch_chunk_results)};
        bench->set_step(requests, each, false);
        const auto stepped = static_cast<double>(time_launches(
            3, [&] { require(launch_delta_steps(bench->delta(requests), false, nullptr)); }));
        // The rule reads S twice and writes it once; chunks count whole, zeros above their diagonals too.
        const double heads = bench->value_heads;
        const double rule = 6.0 * kDim * kDim * heads * tokens;
        const double square = 2.0 * kStateChunk * kStateChunk * kDim;
        const double whole = (5 * square + 3 * 2.0 * kStateChunk * kDim * kDim) * heads * chunks;
        std::printf(
            "%3d prompts of %4d tokens: %7.1f us (inputs %.1f, within %.1f, across %.1f, results "
            "%.1f); %.1f TFLOP/s of the rule's, %.1f of the chunks'; token by token %.1f us\n",
            requests, each, all * 1e3, parts[0] * 1e3, parts[1] * 1e3, parts[2] * 1e3,
            parts[3] * 1e3, rule / all * 1e-9, whole / all * 1e-9, stepped * 1e3);
    }
}

// B, C and x are read, the results written; of each request the ring is read, and of its last tokens written.
void time_convolution(int32_t sms) {
    constexpr int32_t kChannels = 2048, kWidth = 3;
    const struct {
        int32_t requests, each;
    } steps[] = {{16, 1},   {64, 1},   {256, 1},  {512, 1}, {1024, 1},
                 {1, 2048}, {16, 128}, {128, 16}, {1, 8192}};
    for (const auto &step : steps) {
        Bench lists;
        lists.set_step(step.requests, step.each, step.each >= 16);
        const int64_t tokens = int64_t{step.requests} * step.each;
        const int64_t slot = (kWidth - 1) * kChannels * 4;
        const DeviceMemory projected = noise(tokens * 3 * kChannels, 1, 1);
        const DeviceMemory filter = require(zeroed_memory(kWidth * kChannels * 4, "a filter"));
        const DeviceMemory states = require(zeroed_memory(step.requests * slot, "states"));
        const DeviceMemory out = require(zeroed_memory(tokens * kChannels * 2, "results"));
        ShortConvolutionArguments a{};
        a.element = DType::bf16;
        a.projected = projected.data();
        a.stride = 3 * kChannels;
        a.filter = filter.as<float>();
        a.states = states.data();
        a.slot_bytes = slot;
        a.out = out.data();
        a.items = lists.items.as<StateItem>();
        a.chunks = lists.chunks.as<StateChunk>();
        a.level = lists.level.as<StateLevel>();
        a.tokens = tokens;
        a.channels = kChannels;
        a.width = kWidth;
        a.sms = sms;
        const auto time = [](const auto &launch) {
            return 1e3 * static_cast<double>(time_launches(50, launch));
        };
        const double took = time([&] { require(launch_short_convolution(a, nullptr)); });
        const int64_t kept = std::min(step.each, kWidth - 1) * kChannels * 4;
        const int64_t bytes = tokens * 4 * kChannels * 2 + step.requests * (slot + kept);
        const auto half = static_cast<size_t>(bytes / 2);
        const DeviceMemory from = require(zeroed_memory(bytes / 2, "copied"));
        const DeviceMemory to = require(zeroed_memory(bytes / 2, "copied"));
        const double copy = time([&] {
            require(
                cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, nullptr));
        });
        std::printf("short convolution, %4d requests of %4d tokens: %6.1f us, %.2f TB/s; a copy of "
                    "as many bytes: %.1f us\n",
                    step.requests, step.each, took, static_cast<double>(bytes) / took * 1e-6, copy);
    }
}

// Reads one option. False: unknown, or with another value.
bool read_option(const std::string &name, const std::string &value, Bench *bench, bool *inputs) {
    const int number = std::atoi(value.c_str());
    if (name == "--key-heads" && number > 0) return bench->key_heads = number, true;
    if (name == "--value-heads" && number > 0) return bench->value_heads = number, true;
    if (name == "--sms" && number > 0) return bench->sms = number, true;
    if (name == "--state" && value == "bf16") return bench->state = DType::bf16, true;
    if (name == "--family" && value == "sm80") return bench->sm90 = false, true;
    if (name == "--part" && value == "inputs") return *inputs = true;
    return false;
}

} // namespace

int main(int count, char **values) {
    Bench bench;
    bool inputs = false; // --part inputs: nothing else is timed
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, 0));
    bench.sms = properties.multiProcessorCount;
    bench.sm90 = properties.major == 9 && properties.minor == 0;
    for (int i = 1; i < count; i += 2) {
        if (i + 1 < count && read_option(values[i], values[i + 1], &bench, &inputs)) continue;
        std::fprintf(stderr, "%s: the options are at the top of bench/recurrent.cc\n", values[i]);
        return 2;
    }
    for (int i = 0; i < 20; ++i) copy_rate(); // until the clock has settled
    const double copied = copy_rate();
    std::printf("%s, copies at %.2f TB/s\n", properties.name, copied * 1e-12);
    if (inputs) {
        time_inputs(&bench);
        return 0;
    }
    time_decode(&bench, copied);
    time_prompts(&bench);
    time_convolution(bench.sms);
    return 0;
}
