// State-space layers (Mamba-2) on the device against the rule in float64, token by token: random shapes, lengths and
// gates, and steps that cut the tokens anywhere, with requests that continue others.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "recurrent/state_space.h"
#include "reference_layer.h"
#include "step/states.h"

#include "cuda_arrays.h"

#include "state_replays.h"
#include "state_steps.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

bool few = false; // main's argument "few": shapes and steps for compute-sanitizer

struct Shape {
    int32_t groups, heads, key_dim, value_dim, width;
    bool bias = true, skip = true;
    float least_step = 0, most_step = 1e9F;
    bool normed = true, norm_first = false;
};

// A layer's vectors, in the order and layout of the device.
struct Vectors {
    std::vector<float> convolution, bias, decay, step, skip, norm;
};

// A layer whose tensors are in `own`, for the reference.
struct OneLayer {
    Model model;
    Vectors vectors; // on the device
    std::vector<std::vector<float>> own;

    const Mamba2 &space() const { return std::get<Mamba2>(model.layers[0].mixer); }
    Tensor tensor(const std::vector<float> &values, int64_t rows) {
        own.push_back(values);
        Tensor made;
        made.rows = rows;
        made.columns = static_cast<int64_t>(values.size()) / rows;
        made.data = reinterpret_cast<const std::byte *>(own.back().data());
        return made;
    }
};

OneLayer make_layer(Random &random, const Shape &shape) {
    OneLayer made;
    made.model.layers.resize(1);
    Mamba2 &space = made.model.layers[0].mixer.emplace<Mamba2>();
    space.key_heads = space.norm_parts = shape.groups;
    space.value_heads = shape.heads;
    space.key_dim = shape.key_dim;
    space.value_dim = shape.value_dim;
    space.width = shape.width;
    space.least_step = shape.least_step;
    space.most_step = shape.most_step;
    const int64_t channels = space.channels(), heads = shape.heads;
    Vectors &v = made.vectors;
    const std::vector<float> filter = normal(random, channels * shape.width, DType::f32, 0.6F);
    v.convolution.resize(static_cast<size_t>(channels * kRing));
    for (int64_t i = 0; i < channels * shape.width; ++i) {
        const int64_t at = i / shape.width * kRing + kRing - shape.width + i % shape.width;
        v.convolution[static_cast<size_t>(at)] = filter[static_cast<size_t>(i)];
    }
    if (shape.bias) v.bias = normal(random, channels, DType::f32, 0.5F);
    if (shape.skip) v.skip = normal(random, heads, DType::f32);
    // Decays per token from nearly none to nearly all.
    for (int64_t h = 0; h < heads; ++h) {
        v.decay.push_back(static_cast<float>(draw(random, -60, 25)) / 10);
    }
    v.step = normal(random, heads, DType::f32);
    v.norm = normal(random, space.values_size(), DType::f32);
    made.own.reserve(8); // tensors point into it
    space.convolution.push_back({made.tensor(filter, channels), {}});
    if (shape.bias) space.convolution[0].bias = made.tensor(v.bias, channels);
    if (shape.skip) space.skip = made.tensor(v.skip, heads);
    space.decay = made.tensor(v.decay, heads);
    space.step_bias = made.tensor(v.step, heads);
    space.norm_first = shape.norm_first;
    if (!shape.normed) return made;
    space.norm.kind = NormKind::rms;
    space.norm.epsilon = 1e-5F;
    space.norm.weight = made.tensor(v.norm, space.values_size());
    return made;
}

struct Sequence : StateSequence {
    reference::Rows all; // [start + length] inputs from position 0 on
};

// from: the sequence that it continues, or null.
void fill_sequence(Random &random, const OneLayer &layer, DType type, const Sequence *from,
                   Sequence *s) {
    const Mamba2 &space = layer.space();
    const int64_t stride = first_rows(layer.model.layers[0].mixer);
    s->inputs = normal(random, s->length * stride, type);
    if (from != nullptr) s->all = from->all;
    for (int32_t t = 0; t < s->length; ++t) {
        const auto row = s->inputs.begin() + t * stride;
        s->all.emplace_back(row, row + space.input_rows());
    }
    const reference::Rows results = reference::ruled(space, s->all);
    for (auto row = results.begin() + s->start; row != results.end(); ++row) {
        s->wanted.insert(s->wanted.end(), row->begin(), row->end());
    }
}

std::vector<Sequence> make_sequences(Random &random, const OneLayer &layer, DType type,
                                     int32_t count, int32_t longest) {
    return random_sequences<Sequence>(
        random, count, longest,
        [&](Sequence *s, const Sequence *from) { fill_sequence(random, layer, type, from, s); });
}

struct Job {
    Shape shape;
    DType type;
    int32_t sequences, longest, most; // tokens of a sequence, and in a step
    DType state = DType::f32;
    bool reproducible = false;
};

struct Device {
    Device(const OneLayer &layer, const Job &job)
        // As on a device with one SM, so that blocks have several items.
        : model(layer.model), step(model, {job.type, job.state, 1, job.reproducible}),
          convolution(layer.vectors.convolution, DType::f32), bias(layer.vectors.bias, DType::f32),
          decay(layer.vectors.decay, DType::f32), step_bias(layer.vectors.step, DType::f32),
          skips(layer.vectors.skip, DType::f32), norm(layer.vectors.norm, DType::f32) {
        StepForm form;
        form.element = job.type;
        form.state_chunks = goes_in_chunks(model, job.type, job.reproducible);
        check(step.allocate(step_buffers(model, form, int64_t{job.sequences} * job.most), &input));
        check(step.take_slots(job.sequences));
        check(staging.reserve(1 << 20));
        weights.qkv.rows = first_rows(model.layers[0].mixer);
        DeviceDelta &own = weights.mixer.emplace<DeviceDelta>();
        own.convolution = convolution.floats();
        if (job.shape.bias) own.bias = bias.floats();
        if (job.shape.skip) own.skip = skips.floats();
        own.decay = decay.floats();
        own.step = step_bias.floats();
        if (job.shape.normed) own.norm = {NormKind::rms, norm.floats(), nullptr, 1e-5F};
    }
    const Model &model;
    StepStates step;
    StepInput input;
    Staging staging;
    DeviceLayer weights;
    Array convolution, bias, decay, step_bias, skips, norm;
    int64_t chunked = 0; // levels of steps with items in chunks
};

std::vector<float> run_layer(const Job &job, const StateStep &step, Device *device) {
    const auto tokens = static_cast<int64_t>(step.batch.tokens.size());
    const LinearAttention &space = *device->model.layers[0].linear_attention();
    const Array x(step.projected, job.type), out(tokens * space.values_size(), job.type);
    device->staging.clear();
    check(device->step.stage(step.batch, &device->input, &device->staging));
    check(device->staging.send(nullptr));
    check(device->input.reserve(nullptr).status());
    check(device->input.fill(device->staging, nullptr));
    check(device->step.launch(0, device->weights, x.data(), out.data(), nullptr, tokens,
                              device->input, nullptr));
    for (const uint8_t form : device->step.form()) {
        device->chunked += (form & StepStates::kChunked) != 0;
    }
    return out.read();
}

// The results of all sequences' tokens.
std::vector<float> run_job(Random &random, const OneLayer &layer, const Job &job,
                           std::vector<Sequence> all, double limit) {
    Device device(layer, job);
    const auto run = [&](const StateStep &step) { return run_layer(job, step, &device); };
    const int64_t stride = first_rows(layer.model.layers[0].mixer),
                  values = layer.space().values_size();
    while (run_step(random, stride, values, job.most, &all, run)) {}
    std::vector<float> got;
    for (const Sequence &s : all) got.insert(got.end(), s.got.begin(), s.got.end());
    const Shape &shape = job.shape;
    const std::string what =
        std::string(dtype_name(job.type)) + ", states in " + dtype_name(job.state) + ", " +
        std::to_string(shape.groups) + "/" + std::to_string(shape.heads) + " heads of " +
        std::to_string(shape.key_dim) + "/" + std::to_string(shape.value_dim) +
        (shape.normed ? shape.norm_first ? ", gated last" : "" : ", without a norm") +
        ", steps of " + std::to_string(job.most);
    assert_each_close(all, limit, what.c_str());
    assert_int_equal(device.chunked > 0,
                     !job.reproducible && job.most >= 16 &&
                         takes_state_space_chunks(job.type, shape.key_dim, shape.value_dim));
    return got;
}

void run_job(Random &random, const Job &job, double limit) {
    const OneLayer layer = make_layer(random, job.shape);
    run_job(random, layer, job, make_sequences(random, layer, job.type, job.sequences, job.longest),
            limit);
}

// Without a norm, as in Falcon-H1; and with the gate behind it.
Shape without_norm(Shape shape) {
    shape.normed = false;
    return shape;
}
Shape gated_last(Shape shape) {
    shape.norm_first = true;
    return shape;
}

// The published one first.
const Shape kShapes[] = {
    {1, 4, 128, 64, 4},
    gated_last({3, 6, 15, 28, 3, false}),
    without_norm({2, 4, 20, 24, 4}),
    without_norm({1, 4, 128, 64, 4}),
    gated_last({2, 4, 128, 64, 4}),
    {2, 4, 20, 24, 3, false, true, 0.3F, 0.8F},
    {3, 6, 20, 28, 3, false},
    {1, 2, 256, 128, 4},
    {1, 3, 127, 40, 2, true, false},
    {2, 2, 256, 4, 4},
};

void steps_are_the_references(void **) {
    Random random(kSeed);
    for (const Shape &shape : kShapes) {
        if (few && &shape > kShapes + 1) break;
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const int32_t most : {1, 3, 9}) {
                if (few && most != 9) continue;
                run_job(random, {shape, type, 12, 20, most}, 2 * tolerance(type));
            }
        }
    }
}

void long_sequences_in_f32_are_the_references(void **) {
    Random random(kSeed + 1);
    if (few) return;
    for (const int32_t most : {40, 300}) {
        run_job(random, {kShapes[0], DType::f32, 6, 300, most}, 3e-5);
    }
}

// Cut anywhere; the rest of a chunk, and requests of few tokens, go token by token.
void chunks_are_the_references(void **) {
    Random random(kSeed + 2);
    const Shape shapes[] = {{1, 3, 128, 64, 4},
                            {2, 4, 128, 64, 3, false, false},
                            {1, 2, 128, 64, 4, true, true, 0.3F, 0.8F},
                            without_norm({2, 4, 128, 64, 4}),
                            gated_last({2, 4, 128, 64, 4, false})};
    for (const Shape &shape : shapes) {
        for (const int32_t most : {20, 64, 90, 400}) {
            if (few && most != 90) continue;
            for (const DType state : {DType::f32, DType::bf16}) {
                run_job(random, {shape, DType::bf16, 9, few ? 100 : 300, most, state}, 2e-2);
            }
        }
    }
}

// All steps have the same number of tokens, but the last ones have more items and chunks than the
// captured one.
void a_graphs_replays_have_other_items(void **) {
    const std::vector<std::vector<int32_t>> steps = {{280, 14, 1, 1, 1, 1, 1, 1},
                                                     {280, 14, 1, 1, 1, 1, 1, 1},
                                                     {1, 1, 2, 3, 16, 16, 130, 131},
                                                     {16, 16, 16, 16, 3, 30, 202, 1}};
    Random random(kSeed + 5);
    const Job job{{2, 4, 128, 64, 4}, DType::bf16, 8, 0, 300};
    const OneLayer layer = make_layer(random, job.shape);
    std::vector<Sequence> all;
    for (int32_t i = 0; i < job.sequences; ++i) {
        Sequence s;
        for (const auto &step : steps) s.length += step[static_cast<size_t>(i)];
        s.slot = i;
        fill_sequence(random, layer, job.type, nullptr, &s);
        all.push_back(std::move(s));
    }
    Device device(layer, job);
    run_replays(steps, job.type, layer.space().values_size(),
                StepStates::kStepped | StepStates::kChunked, &device, &all);
    assert_each_close(all, 3e-2, "a graph's replays");
}

// bf16 keeps 8 bits of each number of a state at the end of each step.
void states_in_bf16_are_close_to_the_references(void **) {
    Random random(kSeed + 3);
    for (const Shape &shape : kShapes) {
        if (few && &shape > kShapes) break;
        for (const DType type : {DType::f32, DType::bf16}) {
            for (const int32_t most : {1, 9}) {
                run_job(random, {shape, type, 9, 40, most, DType::bf16}, 4e-2);
            }
        }
    }
}

// Wherever steps end.
void reproducible_results_are_the_same_bits(void **) {
    Random random(kSeed + 4);
    for (const DType type : {DType::f32, DType::bf16}) {
        const OneLayer layer = make_layer(random, kShapes[0]);
        const std::vector<Sequence> all = make_sequences(random, layer, type, 9, few ? 20 : 100);
        std::vector<float> first;
        for (const int32_t most : {100, 33, 1}) {
            if (few && most == 1) continue;
            const std::vector<float> got =
                run_job(random, layer, {kShapes[0], type, 9, 100, most, DType::f32, true}, all,
                        2 * tolerance(type));
            if (first.empty()) first = got;
            assert_int_equal(got.size(), first.size());
            assert_memory_equal(got.data(), first.data(), first.size() * sizeof(float));
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    if (const int skip = skipped(); skip != 0) return skip;
    few = argc > 1 && argv[1] == std::string("few");
    const CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_the_references),
        cmocka_unit_test(long_sequences_in_f32_are_the_references),
        cmocka_unit_test(chunks_are_the_references),
        cmocka_unit_test(a_graphs_replays_have_other_items),
        cmocka_unit_test(states_in_bf16_are_close_to_the_references),
        cmocka_unit_test(reproducible_results_are_the_same_bits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
