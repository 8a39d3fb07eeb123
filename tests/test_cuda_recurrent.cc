// Layers of gated delta nets on the device against the rule in float64, token by token: random shapes, lengths,
// gates near 0 and 1, and steps that cut the tokens anywhere, with requests that continue others.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "step/states.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;
bool hopper = false;
bool few = false; // main's argument "few": shapes and steps for compute-sanitizer

struct Shape {
    int32_t key_heads, value_heads, key_dim, value_dim, width;
};

LinearAttention net_of(const Shape &shape) {
    LinearAttention net;
    net.key_heads = shape.key_heads;
    net.value_heads = shape.value_heads;
    net.key_dim = shape.key_dim;
    net.value_dim = shape.value_dim;
    net.width = shape.width;
    return net;
}

// A layer's vectors.
struct Vectors {
    std::vector<float> convolution; // [channels, kRing]
    std::vector<float> decay, step; // [value_heads]
    std::vector<float> norm;        // [value_dim]
};

Vectors make_vectors(Random &random, const LinearAttention &net) {
    Vectors made;
    made.convolution = normal(random, net.channels() * kRing, DType::f32, 0.6F);
    for (int64_t c = 0; c < net.channels(); ++c) {
        for (int64_t w = 0; w < kRing - net.width; ++w) {
            made.convolution[static_cast<size_t>(c * kRing + w)] = 0;
        }
    }
    // A decay of a token from nearly none to nearly all.
    for (int32_t h = 0; h < net.value_heads; ++h) {
        made.decay.push_back(static_cast<float>(draw(random, -60, 25)) / 10);
    }
    made.step = normal(random, net.value_heads, DType::f32);
    made.norm = normal(random, net.value_dim, DType::f32);
    return made;
}

// What continues another one, or nothing: its tokens, and the state behind them.
struct Sequence {
    int32_t parent = -1;
    int32_t start = 0, length = 0;
    int32_t slot = 0;
    int32_t done = 0;                            // tokens given to the device
    std::vector<float> inputs;                   // [length, stride]
    std::vector<std::vector<double>> state;      // [value_heads][key_dim * value_dim]
    std::vector<std::vector<float>> last_inputs; // [kRing - 1][channels]
    std::vector<double> results;                 // [length, values]
    std::vector<float> got;                      // the device's
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Of one token and value head: its own state goes on.
void reference_head(const LinearAttention &net, const Vectors &v, const std::vector<double> &mixed,
                    const float *row, int64_t head, std::vector<double> *state,
                    std::vector<double> *results) {
    const int64_t key_head = head / (net.value_heads / net.key_heads);
    const auto K = static_cast<size_t>(net.key_dim), V = static_cast<size_t>(net.value_dim);
    const double *query = mixed.data() + key_head * net.key_dim, *key = query + net.keys_size();
    const double *value = mixed.data() + 2 * net.keys_size() + head * net.value_dim;
    const float *gate = row + net.channels() + head * net.value_dim;
    const float *b = row + net.channels() + net.values_size() + head;
    const double x = double(b[net.value_heads]) + double(v.step[static_cast<size_t>(head)]);
    const double decay =
        std::exp(-std::exp(double(v.decay[static_cast<size_t>(head)])) * std::log1p(std::exp(x)));
    std::vector<double> result(V);
    double squares = 0;
    for (size_t c = 0; c < V; ++c) {
        double known = 0;
        for (size_t k = 0; k < K; ++k) known += key[k] * decay * (*state)[k * V + c];
        for (size_t k = 0; k < K; ++k) {
            double &s = (*state)[k * V + c];
            s = decay * s + sigmoid(double(b[0])) * key[k] * (value[c] - known);
            result[c] += query[k] * s;
        }
        squares += result[c] * result[c] / static_cast<double>(V);
    }
    for (size_t c = 0; c < V; ++c) {
        const double z = double(gate[c]);
        results->push_back(result[c] / std::sqrt(squares + 1e-6) * double(v.norm[c]) * z *
                           sigmoid(z));
    }
}

void compute_reference(const LinearAttention &net, const Vectors &v, int64_t stride, Sequence *s) {
    for (int32_t t = 0; t < s->length; ++t) {
        const float *row = s->inputs.data() + t * stride;
        std::vector<double> mixed(static_cast<size_t>(net.channels()));
        for (size_t c = 0; c < mixed.size(); ++c) {
            double sum = double(row[c]) * double(v.convolution[c * kRing + kRing - 1]);
            for (size_t w = 0; w + 1 < kRing; ++w) {
                sum += double(s->last_inputs[w][c]) * double(v.convolution[c * kRing + w]);
            }
            mixed[c] = sum * sigmoid(sum);
        }
        for (int64_t h = 0; h < 2 * net.key_heads; ++h) {
            double *head = mixed.data() + h * net.key_dim, squares = 1e-6;
            for (int64_t i = 0; i < net.key_dim; ++i) squares += head[i] * head[i];
            const double length = std::sqrt(squares * (h < net.key_heads ? net.key_dim : 1));
            for (int64_t i = 0; i < net.key_dim; ++i) head[i] /= length;
        }
        for (int64_t h = 0; h < net.value_heads; ++h) {
            reference_head(net, v, mixed, row, h, &s->state[static_cast<size_t>(h)], &s->results);
        }
        s->last_inputs.erase(s->last_inputs.begin());
        s->last_inputs.emplace_back(row, row + net.channels());
    }
}

// Requests that continue prefixes, which may continue others.
std::vector<Sequence> make_sequences(Random &random, const LinearAttention &net, const Vectors &v,
                                     int64_t stride, DType type, int32_t count, int32_t longest) {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < count; ++i) slots.push_back(i);
    std::shuffle(slots.begin(), slots.end(), random);
    std::vector<Sequence> all;
    for (int32_t i = 0; i < count; ++i) {
        Sequence s;
        s.parent = i == 0 ? -1 : static_cast<int32_t>(draw(random, -1, i - 1));
        s.length = static_cast<int32_t>(draw(random, 0, 2) == 0 ? draw(random, 1, 4)
                                                                : draw(random, 1, longest));
        s.slot = slots[static_cast<size_t>(i)];
        s.inputs = normal(random, s.length * stride, type);
        for (int32_t t = 0; t < s.length; ++t) { // gates near 0 and 1 too
            const int64_t gates = t * stride + net.channels() + net.values_size();
            for (int64_t g = gates; g < gates + 2 * net.value_heads; ++g) {
                float &x = s.inputs[static_cast<size_t>(g)];
                x = rounded(4 * x, type);
            }
        }
        s.state.assign(static_cast<size_t>(net.value_heads),
                       std::vector<double>(static_cast<size_t>(net.key_dim * net.value_dim)));
        s.last_inputs.assign(kRing - 1, std::vector<float>(static_cast<size_t>(net.channels())));
        if (s.parent >= 0) {
            const Sequence &from = all[static_cast<size_t>(s.parent)];
            s.start = from.start + from.length;
            s.state = from.state;
            s.last_inputs = from.last_inputs;
        }
        compute_reference(net, v, stride, &s);
        all.push_back(std::move(s));
    }
    return all;
}

struct Layers { // of one
    Layers(const Shape &shape, const StepStateOptions &options, int32_t slots, int64_t rows,
           const Vectors &vectors)
        : model(model_of(shape)), step(model, options),
          convolution(vectors.convolution, DType::f32), decay(vectors.decay, DType::f32),
          bias(vectors.step, DType::f32), norm(vectors.norm, DType::f32) {
        StepForm form;
        form.element = options.element;
        form.state_chunks = goes_in_chunks(model, options.element, options.reproducible);
        check(step.allocate(step_buffers(model, form, rows), &input));
        check(step.take_slots(slots));
        check(staging.reserve(1 << 20));
        const LinearAttention &net = model.layers[0].linear_attention;
        weights.qkv.rows = (net.input_rows() + 15) / 16 * 16;
        weights.delta.convolution = convolution.floats();
        weights.delta.decay = decay.floats();
        weights.delta.step = bias.floats();
        weights.delta.norm = {NormKind::rms, norm.floats(), nullptr, 1e-6F};
    }
    static Model model_of(const Shape &shape) {
        Model made;
        made.layers.resize(1);
        made.layers[0].linear_attention = net_of(shape);
        return made;
    }

    Model model;
    StepStates step;
    StepInput input;
    Staging staging;
    DeviceLayer weights;
    Array convolution, decay, bias, norm;
    int64_t chunked = 0, stepped = 0; // levels of steps with items of either kind
};

// A step of some of what is left, at most `most` tokens a sequence. False: nothing was left.
bool run_step(Random &random, Layers *layers, DType type, int32_t most,
              std::vector<Sequence> *sequences) {
    const LinearAttention &net = layers->model.layers[0].linear_attention;
    const auto stride = static_cast<size_t>(layers->weights.qkv.rows);
    TokenBatch batch;
    std::vector<float> projected;
    std::vector<std::pair<size_t, int32_t>> places; // sequence and its count, in order
    int32_t tokens = 0;
    for (size_t i = 0; i < sequences->size(); ++i) {
        Sequence &s = (*sequences)[i];
        int32_t count = 0;
        const bool can = s.parent < 0 || [&] {
            const Sequence &from = (*sequences)[static_cast<size_t>(s.parent)];
            return from.done == from.length;
        }();
        if (can && draw(random, 0, 3) != 0) {
            count = static_cast<int32_t>(draw(random, 0, 1) == 0 ? 1 : draw(random, 1, most));
            count = std::min(count, s.length - s.done);
        }
        batch.nodes.push_back({s.parent, s.start, s.done + count, tokens, count, false, s.slot});
        const auto begin = s.inputs.begin() + static_cast<int64_t>(stride) * s.done;
        projected.insert(projected.end(), begin, begin + static_cast<int64_t>(stride) * count);
        places.emplace_back(i, count);
        s.done += count;
        tokens += count;
    }
    if (tokens == 0) {
        return std::any_of(sequences->begin(), sequences->end(),
                           [](const Sequence &s) { return s.done < s.length; });
    }
    batch.tokens.resize(static_cast<size_t>(tokens));
    const Array x(projected, type), out(tokens * net.values_size(), type);
    layers->staging.clear();
    check(layers->step.stage(batch, &layers->input, &layers->staging));
    check(layers->staging.send(nullptr));
    check(layers->input.reserve(nullptr).status());
    check(layers->input.fill(layers->staging, nullptr));
    check(layers->step.launch(0, layers->weights, x.data(), out.data(), tokens, layers->input,
                              nullptr));
    for (const uint8_t form : layers->step.form()) {
        layers->chunked += (form & StepStates::kChunked) != 0;
        layers->stepped += (form & StepStates::kStepped) != 0;
    }
    const std::vector<float> results = out.read();
    auto at = results.begin();
    for (const auto &[i, count] : places) {
        std::vector<float> &got = (*sequences)[i].got;
        got.insert(got.end(), at, at + count * net.values_size());
        at += count * net.values_size();
    }
    return true;
}

double error_of(const std::vector<float> &got, const std::vector<double> &wanted) {
    double wrong = 0, all = 1e-30;
    for (size_t i = 0; i < wanted.size(); ++i) {
        wrong += std::pow(double(got[i]) - wanted[i], 2);
        all += wanted[i] * wanted[i];
    }
    return std::sqrt(wrong / all);
}

struct Job {
    Shape shape;
    DType type;
    int32_t sequences, longest, most; // tokens of a sequence, and in a step
    DType state = DType::f32;
    bool sm90 = false;
    int32_t on_sms = sms; // that kernels may count on
};

void run_job(Random &random, const Job &job, double limit) {
    const LinearAttention net = net_of(job.shape);
    const Vectors vectors = make_vectors(random, net);
    Layers layers(job.shape, {job.type, job.state, job.on_sms, false, job.sm90}, job.sequences,
                  int64_t{job.sequences} * job.most, vectors);
    std::vector<Sequence> all = make_sequences(random, net, vectors, layers.weights.qkv.rows,
                                               job.type, job.sequences, job.longest);
    while (run_step(random, &layers, job.type, job.most, &all)) {}
    std::vector<double> wanted;
    std::vector<float> got;
    for (const Sequence &s : all) {
        wanted.insert(wanted.end(), s.results.begin(), s.results.end());
        got.insert(got.end(), s.got.begin(), s.got.end());
    }
    assert_int_equal(got.size(), wanted.size());
    const std::string what =
        std::string(dtype_name(job.type)) + (job.sm90 ? " (sm90)" : "") +
        (job.state == DType::f32 ? "" : std::string(", states in ") + dtype_name(job.state)) +
        ", heads " + std::to_string(net.key_heads) + "/" + std::to_string(net.value_heads) +
        " of " + std::to_string(net.key_dim) + "/" + std::to_string(net.value_dim) + ", steps of " +
        std::to_string(job.most);
    print_message("%s: relative error %.2g\n", what.c_str(), error_of(got, wanted));
    assert_close(got, wanted, limit, what.c_str());
    assert_true(layers.stepped > 0);
    assert_int_equal(layers.chunked > 0,
                     job.most >= 16 && takes_chunks(job.type, net.key_dim, net.value_dim));
}

const Shape kShapes[] = {
    {2, 4, 128, 128, 4}, {3, 3, 127, 4, 3}, // in bf16, S is no multiple of 16 bytes
    {3, 3, 20, 16, 3},   {1, 3, 32, 16, 4}, {2, 4, 16, 24, 2}, {1, 2, 127, 64, 4},
};

void steps_are_the_references(void **) {
    Random random(kSeed);
    for (const Shape &shape : kShapes) {
        if (few && &shape > kShapes + 1) break;
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const int32_t most : {1, 3, 9}) {
                if (few && most != 9) continue;
                const bool sm90 = hopper && most != 3;
                run_job(random, {shape, type, 12, 20, most, DType::f32, sm90}, 2 * tolerance(type));
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

// Cut anywhere; what is left of a chunk, and requests of few tokens, token by token.
void chunks_are_the_references(void **) {
    Random random(kSeed + 2);
    const Shape shapes[] = {{1, 2, 128, 128, 4}, {3, 3, 128, 128, 3}, {1, 3, 128, 128, 4}};
    for (const Shape &shape : shapes) {
        for (const DType type : {DType::bf16, DType::f16}) {
            for (const int32_t most : {20, 64, 90, 400}) {
                if (few && most != 90) continue;
                const int32_t longest = few ? 100 : 300;
                for (const bool sm90 : {false, true}) {
                    if (sm90 && !hopper) continue;
                    run_job(random, {shape, type, 9, longest, most, DType::f32, sm90},
                            type == DType::bf16 ? 2e-2 : 3e-3);
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
                if (sm90 && !hopper) continue;
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
    for (const Shape &shape : kShapes) {
        if (few && &shape > kShapes + 1) break;
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const int32_t most : {1, 9, 90}) {
                if (few && most != 90) continue;
                const bool sm90 = hopper && type == DType::bf16; // f16: the other family
                run_job(random, {shape, type, 9, 100, most, DType::bf16, sm90}, 4e-2);
            }
        }
    }
}

// Wherever the steps' ends are.
void reproducible_results_are_the_same_bits(void **) {
    Random random(kSeed + 4);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const LinearAttention net = net_of(kShapes[0]);
        const Vectors vectors = make_vectors(random, net);
        std::vector<Sequence> all;
        std::vector<std::vector<float>> first; // of each sequence
        for (const int32_t most : {100, 33, 1}) {
            if (few && most == 1) continue;
            Layers layers(kShapes[0], {type, DType::f32, sms, true}, 9, int64_t{9} * most, vectors);
            if (all.empty()) {
                all = make_sequences(random, net, vectors, layers.weights.qkv.rows, type, 9, 100);
            }
            while (run_step(random, &layers, type, most, &all)) {}
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
        cmocka_unit_test(reproducible_results_are_the_same_bits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
