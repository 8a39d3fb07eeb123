// Short convolutions on the device against float64: random shapes, steps that cut sequences anywhere, and sequences that
// continue others. Also checks that results are the same bits wherever steps end, and that slots
// have the requested size.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "step/states.h"

#include "cuda_arrays.h"

#include "convolution_steps.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;

Model model_of(const ConvolutionShape &shape) {
    Model model;
    model.layers.resize(2); // the first has its part of a slot before that of the second
    for (Layer &layer : model.layers) {
        ShortConvolution &made = layer.mixer.emplace<ShortConvolution>();
        made.width = shape.width;
        made.x.values.rows = shape.channels;
        made.x.values.columns = 8;
    }
    return model;
}

ConvolutionVectors make_vectors(Random &random, const ConvolutionShape &shape) {
    ConvolutionVectors made;
    made.filter = normal(random, int64_t{shape.width} * shape.channels, DType::f32);
    if (!shape.biased) return made;
    made.filter_bias = normal(random, shape.channels, DType::f32);
    made.input_bias = normal(random, 3 * int64_t{shape.channels}, DType::f32);
    return made;
}

// The second layer of two.
class Layers {
  public:
    Layers(const ConvolutionShape &shape, DType type, int32_t slots, int64_t rows, int32_t on_sms,
           const ConvolutionVectors &vectors)
        : shape_(shape), type_(type), model_(model_of(shape)),
          states_(model_, {type, DType::f32, on_sms}), filter_(vectors.filter, DType::f32),
          filter_bias_(vectors.filter_bias, DType::f32),
          input_bias_(vectors.input_bias, DType::f32) {
        StepForm form;
        form.element = type;
        form.state_chunks = goes_in_chunks(model_, type, false);
        check(states_.allocate(step_buffers(model_, form, rows), &input_));
        check(states_.take_slots(slots));
        check(staging_.reserve(1 << 20));
        weights_.qkv.rows = shape.stride();
        DeviceConvolution &own = weights_.mixer.emplace<DeviceConvolution>();
        own.filter = filter_.floats();
        if (shape.biased) {
            own.bias = filter_bias_.floats();
            weights_.qkv_bias = input_bias_.floats();
        }
    }
    int64_t slot_bytes() const { return states_.slot_bytes(); }

    std::vector<float> run(const StateStep &step) {
        const auto tokens = static_cast<int64_t>(step.batch.tokens.size());
        const Array x(step.projected, type_), out(tokens * shape_.channels, type_);
        staging_.clear();
        check(states_.stage(step.batch, &input_, &staging_));
        check(staging_.send(nullptr));
        check(input_.reserve(nullptr).status());
        check(input_.fill(staging_, nullptr));
        check(states_.launch(1, weights_, x.data(), out.data(), nullptr, padded_rows(tokens),
                             input_, nullptr));
        return out.read();
    }

  private:
    ConvolutionShape shape_;
    DType type_;
    Model model_;
    StepStates states_;
    StepInput input_;
    Staging staging_;
    DeviceLayer weights_;
    Array filter_, filter_bias_, input_bias_;
};

struct Job {
    ConvolutionShape shape;
    DType type;
    int32_t sequences, longest, most;
    int32_t on_sms = sms;
};

std::vector<float> run_job(Random &random, const Job &job) {
    const ConvolutionVectors vectors = make_vectors(random, job.shape);
    std::vector<ConvolutionSequence> all =
        make_sequences(random, job.shape, vectors, job.sequences, job.longest,
                       [&](int64_t count) { return normal(random, count, job.type); });
    Layers layers(job.shape, job.type, job.sequences, int64_t{job.sequences} * job.most, job.on_sms,
                  vectors);
    const auto run = [&](const StateStep &step) { return layers.run(step); };
    while (run_step(random, job.shape.stride(), job.shape.channels, job.most, &all, run)) {}
    std::vector<float> got;
    for (const ConvolutionSequence &s : all) got.insert(got.end(), s.got.begin(), s.got.end());
    const std::string what = std::string(dtype_name(job.type)) + ", " +
                             std::to_string(job.shape.channels) + " channels over " +
                             std::to_string(job.shape.width) + " tokens, steps of " +
                             std::to_string(job.most);
    // In f32 one token of 8 channels may nearly cancel.
    const double limit = job.type == DType::f32 ? 2e-6 : tolerance(job.type);
    assert_each_close(all, limit, what.c_str());
    return got;
}

void steps_are_the_references(void **) {
    Random random(kSeed + 60);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        for (const int32_t channels : {8, 136, 1024, 2056}) {
            for (const int32_t width : {2, 3, 4}) {
                for (const int32_t most : {1, 5, 40, 300}) {
                    const bool biased = draw(random, 0, 1) == 1;
                    run_job(random, {{channels, width, biased}, type, 12, 200, most});
                }
            }
        }
    }
}

// Blocks have many pieces each, as on a whole device with hundreds of requests.
void few_blocks_are_the_references(void **) {
    Random random(kSeed + 61);
    for (const int32_t most : {1, 90}) {
        run_job(random, {{2048, 3, false}, DType::bf16, 100, most, most, 1});
    }
}

void results_are_the_same_bits_wherever_steps_end(void **) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        std::vector<float> first;
        for (const int32_t most : {200, 33, 1}) {
            Random random(kSeed + 62); // the same sequences
            const std::vector<float> got = run_job(random, {{136, 3, true}, type, 9, 120, most});
            if (first.empty()) first = got;
            assert_int_equal(first.size(), got.size());
            assert_memory_equal(first.data(), got.data(), got.size() * sizeof(float));
        }
    }
}

void slots_have_two_rows_of_f32_a_layer(void **) {
    const ConvolutionShape shape{2048, 3, false};
    const Layers layers(shape, DType::bf16, 1, 64, sms, {std::vector<float>(3 * 2048), {}, {}});
    assert_int_equal(layers.slot_bytes(), 2 * 2 * 2048 * 4);
}

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    const CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_the_references),
        cmocka_unit_test(few_blocks_are_the_references),
        cmocka_unit_test(results_are_the_same_bits_wherever_steps_end),
        cmocka_unit_test(slots_have_two_rows_of_f32_a_layer),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
