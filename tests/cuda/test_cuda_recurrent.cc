// Layers of gated delta nets on the device against the rule in float64, token by token: random shapes, lengths,
// gates near 0 and 1, and steps that cut the tokens anywhere, with requests that continue others.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "step/states.h"

#include "cuda_arrays.h"

#include "delta_reference.h"
#include "state_replays.h"
#include "state_steps.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;
bool hopper = false;
bool few = false; // main's argument "few": shapes and steps for compute-sanitizer

struct Layers { // of one
    Layers(const DeltaShape &shape, const StepStateOptions &options, int32_t slots, int64_t rows,
           const DeltaVectors &vectors)
        : model(model_of(shape)), step(model, options),
          convolution(vectors.convolution, DType::f32), decay(vectors.decay, DType::f32),
          bias(vectors.step, DType::f32), norm(vectors.norm, DType::f32) {
        StepForm form;
        form.element = options.element;
        form.state_chunks = goes_in_chunks(model, options.element, options.reproducible);
        check(step.allocate(step_buffers(model, form, rows), &input));
        check(step.take_slots(slots));
        check(staging.reserve(1 << 20));
        const LinearAttention &net = *model.layers[0].linear_attention();
        weights.qkv.rows = (net.input_rows() + 15) / 16 * 16;
        DeviceDelta &delta = weights.mixer.emplace<DeviceDelta>();
        delta.convolution = convolution.floats();
        delta.decay = decay.floats();
        delta.step = bias.floats();
        delta.norm = {NormKind::rms, norm.floats(), nullptr, 1e-6F};
    }
    static Model model_of(const DeltaShape &shape) {
        Model made;
        made.layers.resize(1);
        made.layers[0].mixer = net_of(shape);
        return made;
    }

    Model model;
    StepStates step;
    StepInput input;
    Staging staging;
    DeviceLayer weights;
    Array convolution, decay, bias, norm;
    int64_t chunked = 0, stepped = 0; // levels of steps with items of each kind
};

std::vector<float> run_layer(const StateStep &step, DType type, Layers *layers) {
    const auto tokens = static_cast<int64_t>(step.batch.tokens.size());
    const LinearAttention &net = *layers->model.layers[0].linear_attention();
    const Array x(step.projected, type), out(tokens * net.values_size(), type);
    layers->staging.clear();
    check(layers->step.stage(step.batch, &layers->input, &layers->staging));
    check(layers->staging.send(nullptr));
    check(layers->input.reserve(nullptr).status());
    check(layers->input.fill(layers->staging, nullptr));
    check(layers->step.launch(0, layers->weights, x.data(), out.data(), nullptr, tokens,
                              layers->input, nullptr));
    for (const uint8_t form : layers->step.form()) {
        layers->chunked += (form & StepStates::kChunked) != 0;
        layers->stepped += (form & StepStates::kStepped) != 0;
    }
    return out.read();
}

// Runs steps of at most `most` tokens per sequence until nothing is left.
void run_steps(Random &random, DType type, int32_t most, Layers *layers,
               std::vector<DeltaSequence> *sequences) {
    const auto run = [&](const StateStep &step) { return run_layer(step, type, layers); };
    const int64_t values = layers->model.layers[0].linear_attention()->values_size();
    while (run_step(random, layers->weights.qkv.rows, values, most, sequences, run)) {}
}

struct Job {
    DeltaShape shape;
    DType type;
    int32_t sequences, longest, most; // tokens of a sequence, and in a step
    DType state = DType::f32;
    bool sm90 = false;
    int32_t on_sms = sms; // that kernels may use
};

void run_job(Random &random, const Job &job, double limit) {
    const DeltaNet net = net_of(job.shape);
    const DeltaVectors vectors = make_vectors(random, net);
    Layers layers(job.shape, {job.type, job.state, job.on_sms, false, job.sm90}, job.sequences,
                  int64_t{job.sequences} * job.most, vectors);
    std::vector<DeltaSequence> all = make_sequences(random, net, vectors, layers.weights.qkv.rows,
                                                    job.type, job.sequences, job.longest);
    run_steps(random, job.type, job.most, &layers, &all);
    const std::string what =
        std::string(dtype_name(job.type)) + (job.sm90 ? " (sm90)" : "") +
        (job.state == DType::f32 ? "" : std::string(", states in ") + dtype_name(job.state)) +
        ", heads " + std::to_string(net.key_heads) + "/" + std::to_string(net.value_heads) +
        " of " + std::to_string(net.key_dim) + "/" + std::to_string(net.value_dim) + ", steps of " +
        std::to_string(job.most);
    assert_each_close(all, limit, what.c_str());
    assert_true(layers.stepped > 0);
    assert_int_equal(layers.chunked > 0,
                     job.most >= 16 && takes_chunks(job.type, net.key_dim, net.value_dim));
}

const DeltaShape kShapes[] = {
    {2, 4, 128, 128, 4}, {3, 3, 127, 4, 3}, // in bf16, S is not a multiple of 16 bytes
    {3, 3, 20, 16, 3},   {1, 3, 32, 16, 4}, {2, 4, 16, 24, 2}, {1, 2, 127, 64, 4},
};

void steps_are_the_references(void **) {
    Random random(kSeed);
    for (const DeltaShape &shape : kShapes) {
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
    const DeltaShape shapes[] = {{1, 2, 128, 128, 4}, {3, 3, 128, 128, 3}, {1, 3, 128, 128, 4}};
    for (const DeltaShape &shape : shapes) {
        for (const DType type : {DType::bf16, DType::f16}) {
            for (const int32_t most : {20, 64, 90, 400}) {
                if (few && most != 90) continue;
                const int32_t longest = few ? 100 : 300;
                for (const bool sm90 : {false, true}) {
                    if (sm90 && !hopper) continue;
                    run_job(random, {shape, type, 9, longest, most, DType::f32, sm90},
                            type == DType::bf16 ? 1e-2 : 2e-3);
                }
            }
        }
    }
}

// Blocks have many items each, as on a whole device with hundreds of requests.
void few_blocks_are_the_references(void **) {
    Random random(kSeed + 6);
    if (few) return;
    for (const DType state : {DType::f32, DType::bf16}) {
        for (const int32_t most : {3, 90}) {
            for (const bool sm90 : {false, true}) {
                if (sm90 && (!hopper || most == 3)) continue; // steps have no family
                const int32_t sequences = most == 3 ? 100 : 24;
                run_job(random, {kShapes[0], DType::bf16, sequences, most, most, state, sm90, 2},
                        state == DType::f32 ? 2e-2 : 4e-2);
            }
        }
    }
}

// bf16 keeps 8 bits of each number of a state at the end of each step.
void states_in_bf16_are_close_to_the_references(void **) {
    Random random(kSeed + 3);
    for (const DeltaShape &shape : kShapes) {
        if (few && &shape > kShapes + 1) break;
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const int32_t most : {1, 9, 90}) {
                if (few && most != 90) continue;
                const bool sm90 = hopper && type == DType::bf16; // f16 uses the other family
                run_job(random, {shape, type, 9, 100, most, DType::bf16, sm90}, 4e-2);
            }
        }
    }
}

// All steps have as many tokens. The second step, which is captured, has one item with one token,
// one with several and one in chunks; later steps have up to 23, 4 and 6 of these, some of which
// start from another slot. On two SMs there are fewer blocks than items.
void replay_job(Random &random, const DeltaShape &shape, DType type, double limit) {
    const std::vector<std::vector<int32_t>> steps = {
        {150, 1, 49, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
        {0, 1, 199, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
        {0, 1, 5, 15, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 100, 69},
        {0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 16, 16, 16, 16, 60, 65, 1, 1},
        {0, 1, 177, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    const DeltaNet net = net_of(shape);
    const DeltaVectors vectors = make_vectors(random, net);
    const int64_t stride = (net.input_rows() + 15) / 16 * 16;
    // Slots are far apart if there is enough memory: for 128 by 128, the last ones are beyond 2 or
    // 4 GiB.
    size_t unused = 0, total = 0;
    check(cudaMemGetInfo(&unused, &total));
    const int32_t apart = unused > size_t{8} << 30 ? 700 : 1;
    std::vector<DeltaSequence> all(steps[0].size());
    for (size_t i = 0; i < all.size(); ++i) {
        DeltaSequence &s = all[i];
        for (const auto &step : steps) s.length += step[i];
        s.slot = static_cast<int32_t>(i) * apart;
        const bool continues = i >= 4 && i + 1 < all.size(); // the first, complete by then
        if (continues) s.parent = 0, s.start = all[0].length;
        fill_sequence(random, net, vectors, stride, type, continues ? &all[0] : nullptr, &s);
    }
    for (const DType state : {DType::f32, DType::bf16}) {
        for (const bool reproducible : {false, true}) {
            for (const bool sm90 : {false, true}) {
                const bool chunks = !reproducible && takes_chunks(type, net.key_dim, net.value_dim);
                if (sm90 && !(hopper && chunks)) continue;
                if (reproducible && state == DType::bf16) continue; // is rejected
                Layers layers(shape, {type, state, 2, reproducible, sm90}, all.back().slot + 1, 210,
                              vectors);
                std::vector<DeltaSequence> run = all;
                run_replays(steps, type, net.values_size(),
                            static_cast<uint8_t>(StepStates::kStepped |
                                                 (chunks ? StepStates::kChunked : 0)),
                            &layers, &run);
                const std::string what = std::string("replays, ") + dtype_name(type) +
                                         ", states in " + dtype_name(state) +
                                         (sm90 ? ", sm90" : "") +
                                         (reproducible ? ", reproducible" : "");
                assert_each_close(run, state == DType::f32 ? limit : 4e-2, what.c_str());
            }
        }
    }
}

void a_graphs_replays_have_other_items(void **) {
    Random random(kSeed + 7);
    for (const DeltaShape &shape : {kShapes[0], kShapes[4]}) {
        replay_job(random, shape, DType::bf16, 2e-2);
        if (!few) replay_job(random, shape, DType::f32, 3e-5);
    }
}

// Wherever steps end.
void reproducible_results_are_the_same_bits(void **) {
    Random random(kSeed + 4);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const DeltaNet net = net_of(kShapes[0]);
        const DeltaVectors vectors = make_vectors(random, net);
        std::vector<DeltaSequence> all;
        std::vector<std::vector<float>> first; // of each sequence
        for (const int32_t most : {100, 33, 1}) {
            if (few && most == 1) continue;
            Layers layers(kShapes[0], {type, DType::f32, sms, true}, 9, int64_t{9} * most, vectors);
            if (all.empty()) {
                all = make_sequences(random, net, vectors, layers.weights.qkv.rows, type, 9, 100);
            }
            run_steps(random, type, most, &layers, &all);
            assert_int_equal(layers.chunked, 0);
            for (size_t i = 0; i < all.size(); ++i) {
                if (first.size() <= i) first.push_back(all[i].got);
                assert_int_equal(all[i].got.size(), first[i].size());
                assert_memory_equal(all[i].got.data(), first[i].data(),
                                    first[i].size() * sizeof(float));
                all[i].done = 0;
                all[i].got.clear();
            }
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    if (const int skip = skipped(); skip != 0) return skip;
    few = argc > 1 && argv[1] == std::string("few");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    hopper = properties.major == 9 && properties.minor == 0;
    const CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_the_references),
        cmocka_unit_test(long_sequences_in_f32_are_the_references),
        cmocka_unit_test(chunks_are_the_references),
        cmocka_unit_test(few_blocks_are_the_references),
        cmocka_unit_test(states_in_bf16_are_close_to_the_references),
        cmocka_unit_test(a_graphs_replays_have_other_items),
        cmocka_unit_test(reproducible_results_are_the_same_bits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
