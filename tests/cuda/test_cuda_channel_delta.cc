// Delta nets that decay by channel (Kimi Linear) on the device against the rule in float64, token by token: random shapes,
// lengths and gates, and steps that cut the tokens anywhere, with requests that continue others.
#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "recurrent/channel_delta.h"
#include "reference_layer.h"
#include "step/states.h"

#include "cuda_arrays.h"

#include "state_steps.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

bool few = false; // main's argument "few": shapes and steps for compute-sanitizer

struct Shape {
    int32_t key_heads, value_heads, key_dim, value_dim, width, gate_rank;
};

// A layer whose tensors are in `own`, for the reference; and its vectors as the device has them.
struct OneLayer {
    Model model;
    std::vector<float> convolution, decay, step, norm, a, z;
    std::deque<std::vector<float>> own;

    const ChannelDeltaNet &net() const { return std::get<ChannelDeltaNet>(model.layers[0].mixer); }
    Tensor tensor(const std::vector<float> &values, int64_t rows) {
        own.push_back(values);
        Tensor made;
        made.rows = rows;
        made.columns = static_cast<int64_t>(values.size()) / rows;
        made.data = reinterpret_cast<const std::byte *>(own.back().data());
        return made;
    }
};

// A gate is one number of those that it is made of, or twice that one: exact in any type.
std::vector<float> make_matrix(Random &random, int64_t rows, int32_t rank) {
    std::vector<float> made(static_cast<size_t>(rows * rank));
    for (int64_t r = 0; r < rows; ++r) {
        made[static_cast<size_t>(r * rank + between(random, 0, rank - 1))] =
            between(random, 0, 1) == 0 ? 1.0F : 2.0F;
    }
    return made;
}

OneLayer make_layer(Random &random, const Shape &shape) {
    OneLayer made;
    made.model.layers.resize(1);
    ChannelDeltaNet &net = made.model.layers[0].mixer.emplace<ChannelDeltaNet>();
    net.key_heads = shape.key_heads;
    net.value_heads = shape.value_heads;
    net.key_dim = shape.key_dim;
    net.value_dim = shape.value_dim;
    net.width = shape.width;
    net.gate_rank = shape.gate_rank;
    const int64_t channels = net.channels(), heads = shape.value_heads;
    const int64_t decays = heads * shape.key_dim;
    const std::vector<float> filter = normal(random, channels * shape.width, DType::f32, 0.6F);
    made.convolution.resize(static_cast<size_t>(channels * kRing));
    for (int64_t i = 0; i < channels * shape.width; ++i) {
        const int64_t at = i / shape.width * kRing + kRing - shape.width + i % shape.width;
        made.convolution[static_cast<size_t>(at)] = filter[static_cast<size_t>(i)];
    }
    // Decays per token from nearly none to nearly all.
    for (int64_t h = 0; h < heads; ++h) {
        made.decay.push_back(static_cast<float>(draw(random, -60, 25)) / 10);
    }
    made.step = normal(random, decays, DType::f32);
    made.norm = normal(random, shape.value_dim, DType::f32);
    made.a = make_matrix(random, decays, shape.gate_rank);
    made.z = make_matrix(random, net.values_size(), shape.gate_rank);
    net.convolution.push_back({made.tensor(filter, channels), {}});
    net.decay = made.tensor(made.decay, heads);
    net.step_bias = made.tensor(made.step, decays);
    net.a.values = made.tensor(made.a, decays);
    net.z.values = made.tensor(made.z, net.values_size());
    net.norm.kind = NormKind::rms;
    net.norm.epsilon = 1e-5F;
    net.norm.weight = made.tensor(made.norm, shape.value_dim);
    return made;
}

struct Sequence : StateSequence {
    reference::Rows all; // [start + length] inputs from position 0 on
};

std::vector<Sequence> make_sequences(Random &random, const OneLayer &layer, DType type,
                                     int32_t count, int32_t longest) {
    const ChannelDeltaNet &net = layer.net();
    const int64_t stride = first_rows(layer.model.layers[0].mixer);
    return random_sequences<Sequence>(
        random, count, longest, [&](Sequence *s, const Sequence *from) {
            s->inputs = normal(random, s->length * stride, type, 1.5F);
            if (from != nullptr) s->all = from->all;
            for (int32_t t = 0; t < s->length; ++t) {
                const auto row = s->inputs.begin() + t * stride;
                s->all.emplace_back(row, row + net.input_rows());
            }
            const reference::Rows results = reference::ruled(net, s->all);
            for (auto row = results.begin() + s->start; row != results.end(); ++row) {
                s->wanted.insert(s->wanted.end(), row->begin(), row->end());
            }
        });
}

struct Job {
    Shape shape;
    DType type;
    int32_t sequences, longest, most; // tokens of a sequence, and in a step
    DType state = DType::f32;
    bool reproducible = false;
};

struct Device {
    Device(const OneLayer &from, const Job &job)
        // As on a device with one SM, so that blocks have several items.
        : layer(from), step(from.model, {job.type, job.state, 1, job.reproducible}),
          convolution(from.convolution, DType::f32), decay(from.decay, DType::f32),
          step_bias(from.step, DType::f32), norm(from.norm, DType::f32) {
        StepForm form;
        form.element = job.type;
        form.state_chunks = goes_in_chunks(from.model, job.type, job.reproducible);
        assert_false(form.state_chunks);
        check(step.allocate(step_buffers(from.model, form, int64_t{job.sequences} * job.most),
                            &input));
        check(step.take_slots(job.sequences));
        check(staging.reserve(1 << 20));
        weights.qkv.rows = first_rows(from.model.layers[0].mixer);
        DeviceDelta &own = weights.mixer.emplace<DeviceDelta>();
        own.convolution = convolution.floats();
        own.decay = decay.floats();
        own.step = step_bias.floats();
        own.norm = {NormKind::rms, norm.floats(), nullptr, 1e-5F};
    }
    const OneLayer &layer;
    StepStates step;
    StepInput input;
    Staging staging;
    DeviceLayer weights;
    Array convolution, decay, step_bias, norm;
};

// to [tokens, rows] = from [tokens, rank] times the matrix, by the host.
void multiply(const std::byte *from, const std::vector<float> &matrix, int64_t rank, int64_t tokens,
              DType type, std::byte *to) {
    const Array copied(tokens * rank, type);
    check(cudaMemcpy(copied.data(), from, static_cast<size_t>(tokens * rank * dtype_bytes(type)),
                     cudaMemcpyDeviceToDevice));
    const std::vector<float> x = copied.read();
    const auto rows = static_cast<int64_t>(matrix.size()) / rank;
    std::vector<float> y;
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
            float sum = 0;
            for (int64_t i = 0; i < rank; ++i) {
                sum += x[static_cast<size_t>(t * rank + i)] *
                       matrix[static_cast<size_t>(r * rank + i)];
            }
            y.push_back(sum);
        }
    }
    const Array made(y, type);
    check(cudaMemcpy(to, made.data(), y.size() * static_cast<size_t>(dtype_bytes(type)),
                     cudaMemcpyDeviceToDevice));
}

std::vector<float> run_layer(const Job &job, const StateStep &step, Device *device) {
    const auto tokens = static_cast<int64_t>(step.batch.tokens.size());
    const OneLayer &layer = device->layer;
    const ChannelDeltaNet &net = layer.net();
    const int64_t z = net.channels(), rank = net.gate_rank;
    const Array x(step.projected, job.type), out(tokens * net.values_size(), job.type);
    device->staging.clear();
    check(device->step.stage(step.batch, &device->input, &device->staging));
    check(device->staging.send(nullptr));
    check(device->input.reserve(nullptr).status());
    check(device->input.fill(device->staging, nullptr));
    const StepStates::ChannelGates gates = device->step.channel_gates();
    const GateInputArguments arguments{job.type,
                                       x.data(),
                                       device->weights.qkv.rows,
                                       static_cast<int32_t>(z),
                                       static_cast<int32_t>(z + rank + net.gates()),
                                       net.gate_rank,
                                       tokens,
                                       gates.of_z,
                                       gates.of_a};
    check(launch_gate_inputs(arguments, nullptr));
    multiply(gates.of_z, layer.z, rank, tokens, job.type, gates.z);
    multiply(gates.of_a, layer.a, rank, tokens, job.type, gates.a);
    check(device->step.launch(0, device->weights, x.data(), out.data(), nullptr, tokens,
                              device->input, nullptr));
    return out.read();
}

// The results of all sequences' tokens.
std::vector<float> run_job(Random &random, const OneLayer &layer, const Job &job,
                           std::vector<Sequence> all, double limit) {
    Device device(layer, job);
    const auto run = [&](const StateStep &step) { return run_layer(job, step, &device); };
    const int64_t stride = first_rows(layer.model.layers[0].mixer);
    while (run_step(random, stride, layer.net().values_size(), job.most, &all, run)) {}
    std::vector<float> got;
    for (const Sequence &s : all) got.insert(got.end(), s.got.begin(), s.got.end());
    const Shape &shape = job.shape;
    const std::string what = std::string(dtype_name(job.type)) + ", states in " +
                             dtype_name(job.state) + ", " + std::to_string(shape.key_heads) + "/" +
                             std::to_string(shape.value_heads) + " heads of " +
                             std::to_string(shape.key_dim) + "/" + std::to_string(shape.value_dim) +
                             ", steps of " + std::to_string(job.most);
    assert_each_close(all, limit, what.c_str());
    return got;
}

void run_job(Random &random, const Job &job, double limit) {
    const OneLayer layer = make_layer(random, job.shape);
    run_job(random, layer, job, make_sequences(random, layer, job.type, job.sequences, job.longest),
            limit);
}

// The published heads first.
const Shape kShapes[] = {
    {2, 2, 128, 128, 4, 16}, {2, 4, 20, 24, 3, 8}, {3, 3, 127, 8, 2, 8}, {1, 3, 17, 120, 4, 24}};

void steps_are_the_references(void **) {
    Random random(kSeed);
    for (const Shape &shape : kShapes) {
        if (few && &shape > kShapes + 1) break;
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const int32_t most : {1, 3, 9, 40}) {
                if (few && most != 9) continue;
                run_job(random, {shape, type, 12, 40, most}, 2 * tolerance(type));
            }
        }
    }
}

void long_sequences_in_f32_are_the_references(void **) {
    Random random(kSeed + 1);
    if (few) return;
    run_job(random, {kShapes[0], DType::f32, 6, 300, 300}, 3e-5);
}

// bf16 keeps 8 bits of each number of a state at the end of each step.
void states_in_bf16_are_close_to_the_references(void **) {
    Random random(kSeed + 2);
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
    Random random(kSeed + 3);
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
        cmocka_unit_test(states_in_bf16_are_close_to_the_references),
        cmocka_unit_test(reproducible_results_are_the_same_bits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
