// A state-space layer (Mamba-2) alone, on the GPU, at Granite-4.0-h-micro's shape (64 heads of 128 by 64, one group),
// including its norm: decode beside the rate of a copy, and prompts token by token and in chunks.
//
//     state_space
//     state_space --heads 128 --state bf16
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device_arrays.h"
#include "step/states.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int32_t kKeys = 128, kValues = 64;

Model make_model(int32_t heads) {
    Model model;
    model.layers.resize(1);
    Mamba2 &space = model.layers[0].mixer.emplace<Mamba2>();
    space.key_heads = space.norm_parts = 1;
    space.value_heads = heads;
    space.key_dim = kKeys;
    space.value_dim = kValues;
    space.width = kRing;
    return model;
}

// A layer with random inputs, and a step with a number of requests of equal length.
class Bench {
  public:
    Bench(const Model &model, DType state, int32_t sms, bool stepped, int32_t requests,
          int32_t each)
        : space_(*model.layers[0].linear_attention()), step_(model, options(state, sms, stepped)),
          tokens_(int64_t{requests} * each) {
        const int64_t vectors = space_.channels() * kRing;
        const int64_t stride = weights_.qkv.rows = first_rows(model.layers[0].mixer);
        projected_ = noise(tokens_ * stride, 1, 1);
        out_ = require(zeroed_memory(tokens_ * space_.values_size() * 2, "results"));
        vectors_ = require(zeroed_memory(vectors * 4, "vectors"));
        require(launch_random(vectors_.data(), DType::f32, vectors, 0.2F, 0.2F, 2, nullptr));
        // All numbers are the same, since only the time counts.
        DeviceDelta &delta = weights_.mixer.emplace<DeviceDelta>();
        delta.convolution = delta.decay = delta.step = delta.bias = delta.skip =
            vectors_.as<float>();
        delta.norm = {NormKind::rms, vectors_.as<float>(), nullptr, 1e-5F};
        StepForm form;
        form.state_chunks = goes_in_chunks(model, DType::bf16, stepped);
        require(step_.allocate(step_buffers(model, form, tokens_), &input_));
        require(step_.take_slots(requests));
        TokenBatch batch;
        for (int32_t i = 0; i < requests; ++i) {
            batch.nodes.push_back({-1, 0, 1000 + each, i * each, each, false, i});
        }
        Staging staging;
        require(staging.reserve(1 << 20));
        require(step_.stage(batch, &input_, &staging));
        require(staging.send(nullptr));
        require(input_.reserve(nullptr));
        require(input_.fill(staging, nullptr));
        require(cudaDeviceSynchronize());
    }
    // Milliseconds.
    double time(int times) {
        return static_cast<double>(time_launches(times, [&] {
            require(step_.launch(0, weights_, projected_.data(), out_.data(), nullptr, tokens_,
                                 input_, nullptr));
        }));
    }

  private:
    static StepStateOptions options(DType state, int32_t sms, bool stepped) {
        return {DType::bf16, state, sms, stepped, false};
    }
    const LinearAttention &space_;
    StepStates step_;
    int64_t tokens_;
    StepInput input_;
    DeviceLayer weights_;
    DeviceMemory projected_, out_, vectors_;
};

} // namespace

int main(int count, char **values) {
    int32_t heads = 64;
    DType state = DType::f32;
    for (int i = 1; i + 1 < count; i += 2) {
        if (std::strcmp(values[i], "--heads") == 0) heads = std::atoi(values[i + 1]);
        if (std::strcmp(values[i], "--state") == 0 && std::strcmp(values[i + 1], "bf16") == 0) {
            state = DType::bf16;
        }
    }
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, 0));
    for (int i = 0; i < 20; ++i) copy_rate(); // until the clock has settled
    const double copied = copy_rate();
    std::printf("%s, copies at %.2f TB/s\n", properties.name, copied * 1e-12);
    const Model model = make_model(heads);
    const int32_t sms = properties.multiProcessorCount;
    for (const int32_t rows : {16, 64, 256, 512, 1024}) {
        const double took = Bench(model, state, sms, true, rows, 1).time(20);
        const double rate =
            2e3 * rows * heads * kKeys * kValues * static_cast<double>(dtype_bytes(state)) / took;
        std::printf("decode, %4d rows: %7.1f us, state at %.2f TB/s, %.1f %% of a copy\n", rows,
                    took * 1e3, rate * 1e-12, 100 * rate / copied);
    }
    const struct {
        int32_t requests, each;
    } steps[] = {{1, 2048}, {4, 512}, {16, 128}, {32, 64}, {64, 32}, {128, 16}, {256, 8}};
    for (const auto &step : steps) {
        const auto took = [&](bool stepped) {
            return Bench(model, state, sms, stepped, step.requests, step.each).time(5);
        };
        // For each element of S, a token decays it, adds to it and multiplies it by q: 5
        // operations.
        const double rule = 5.0 * kKeys * kValues * heads * step.requests * step.each;
        const double all = took(false);
        std::printf("%3d prompts of %4d tokens: %7.1f us, %.1f TFLOP/s of the rule's; token by "
                    "token %.1f us\n",
                    step.requests, step.each, all * 1e3, rule / all * 1e-9, took(true) * 1e3);
    }
    return 0;
}
