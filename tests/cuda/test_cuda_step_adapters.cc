// Steps whose rows have adapters: the CUDA backend against the CPU's in f32, on all golden models and all matrices that it has
// adapters for; and in 16 bits bits that are a row's own, with graphs and without.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/narrow_floats.h"
#include "cuda_backend.h"
#include "golden_files.h"
#include "seed.h"

#include "cuda_arrays.h"

using namespace batchllm;
using cuda::check;
using cuda::CudaBackend;
using cuda::Random;

namespace {

BackendOptions options_of(const std::string &type, bool graphs, bool reproducible = false) {
    BackendOptions options;
    options.compute_type = type;
    options.threads = 2;
    options.step_tokens = 256;
    options.kv_memory_bytes = int64_t{32} << 20;
    options.reproducible = reproducible;
    if (type != "f32" || graphs) {
        options.extra = {{"tuning_cache", "none"}, {"tuning", "0"}, {"graphs", graphs ? "1" : "0"}};
    }
    return options;
}
// merges: steps of one adapter alone run on merged layers from the second on; else none does.
std::unique_ptr<CudaBackend> make_cuda(const Model &model, const std::string &type,
                                       bool graphs = true, bool reproducible = false,
                                       const char *quantize = "none", bool merges = false) {
    BackendOptions options = options_of(type, graphs, reproducible);
    options.extra.emplace_back("quantize", quantize);
    options.extra.emplace_back("merge_adapters", merges ? "1" : "0");
    auto made = CudaBackend::create(model, options);
    check(made.status());
    return std::move(made).value();
}

// ---- Adapters -----------------------------------------------------------------------------------

std::vector<const Tensor *> matrices(const Model &model) {
    std::vector<const Tensor *> all;
    const auto add = [&](const Tensor &tensor) {
        if (tensor) all.push_back(&tensor);
    };
    const auto feed = [&](const FeedForward &f) {
        for (const Weight *w : {&f.gate, &f.up, &f.down}) add(w->values);
    };
    for (const Layer &layer : model.layers) {
        if (const Attention *a = layer.attention()) {
            for (const Weight *w :
                 {&a->q, &a->k, &a->v, &a->o, &a->latent.q_down, &a->latent.down}) {
                add(w->values);
            }
        }
        if (const auto *delta = std::get_if<DeltaNet>(&layer.mixer)) {
            for (const Tensor &part : delta->input) add(part);
            add(delta->o.values);
        }
        if (const auto *net = std::get_if<ChannelDeltaNet>(&layer.mixer)) {
            for (const Tensor &part : net->input) add(part);
            for (const Weight *w : {&net->a, &net->z, &net->o}) add(w->values);
        }
        if (const auto *mamba = std::get_if<Mamba2>(&layer.mixer)) {
            for (const Tensor &part : mamba->input) add(part);
            add(mamba->o.values);
        }
        if (const auto *c = std::get_if<ShortConvolution>(&layer.mixer)) {
            for (const Weight *w : {&c->b, &c->c, &c->x, &c->o}) add(w->values);
        }
        if (const FeedForward *f = layer.feed_forward()) feed(*f);
        if (const Experts *experts = layer.experts()) {
            for (const FeedForward &f : experts->each) feed(f);
            add(experts->router.weight.values);
        }
        if (const SharedExperts *both = layer.shared()) add(both->gate.values);
    }
    add(model.head.values);
    return all;
}

Tensor made_up(Random &random, Adapter *adapter, int64_t rows, int64_t columns, float deviation) {
    const DType types[] = {DType::f32, DType::f16, DType::bf16};
    Tensor tensor;
    tensor.dtype = types[random() % 3];
    tensor.rows = rows;
    tensor.columns = columns;
    const auto element = static_cast<size_t>(dtype_bytes(tensor.dtype));
    const auto count = static_cast<size_t>(rows * columns);
    adapter->bytes.push_back(std::make_unique<std::byte[]>(count * element + 1));
    std::byte *to = adapter->bytes.back().get() + 1; // of any alignment
    std::normal_distribution<float> normal(0, deviation);
    for (size_t i = 0; i < count; ++i) {
        const float x = normal(random);
        const uint16_t half = float_to_float16(x);
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        const auto top = static_cast<uint16_t>(bits >> 16);
        const void *from = &x;
        if (tensor.dtype != DType::f32) from = tensor.dtype == DType::f16 ? &half : &top;
        std::memcpy(to + i * element, from, element);
    }
    tensor.data = to;
    return tensor;
}

// Experts' products add adapters themselves if none has more than 64 ranks, of gate and up together.
enum class Ranks : size_t { low = 5, any = 6 };

std::vector<const Tensor *> downs_of_experts(const Model &model) {
    std::vector<const Tensor *> all;
    for (const Layer &layer : model.layers) {
        if (layer.experts() == nullptr) continue;
        for (const FeedForward &f : layer.experts()->each) all.push_back(&f.down.values);
    }
    return all;
}

// Of some of the matrices, those that the backend has adapters for. *refused: how many it has not.
std::shared_ptr<Adapter> made_up(Random &random, const Model &model, const Backend &backend,
                                 size_t one_of, int64_t *refused, Ranks which = Ranks::any,
                                 bool downs_alone = false) {
    auto adapter = std::make_shared<Adapter>();
    constexpr int64_t ranks[] = {1, 4, 8, 16, 24, 64};
    const auto of = [&](int64_t rows, int64_t columns, float deviation) {
        const int64_t rank = ranks[random() % static_cast<size_t>(which)];
        LowRank change;
        change.a = made_up(random, adapter.get(), rank, columns, deviation);
        change.b = made_up(random, adapter.get(), rows, rank, 0.05F);
        change.scale = 0.5F + static_cast<float>(random() % 4);
        return change;
    };
    if (!downs_alone && random() % one_of == 0)
        adapter->embedding = of(model.hidden, model.embedding.rows, 0.5F);
    for (const Tensor *matrix : downs_alone ? downs_of_experts(model) : matrices(model)) {
        if (random() % one_of != 0) continue;
        const auto wide = static_cast<float>(matrix->columns);
        const LowRank change = of(matrix->rows, matrix->columns, 1 / std::sqrt(wide));
        Adapter alone;
        alone.changes.emplace(matrix, change);
        if (!backend.adapter_bytes(alone).ok()) {
            ++*refused;
            continue;
        }
        adapter->changes.emplace(matrix, change);
        // Parts of one product have at most so many ranks together.
        if (!backend.adapter_bytes(*adapter).ok()) adapter->changes.erase(matrix);
    }
    return adapter;
}

void load(Backend *backend, int32_t slot, std::shared_ptr<const Adapter> adapter) {
    auto packed = backend->pack_adapter(std::move(adapter));
    check(packed.status());
    check(backend->load_adapter(slot, std::move(packed).value()));
}

// ---- Steps --------------------------------------------------------------------------------------

// Nodes of up to 16 tokens, one page each; with more than 32 nodes all but the first three have at most 4.
struct Step {
    TokenBatch batch;
    std::vector<int32_t> targets = {3, 5, 7};

    // all: every token's logits are wanted, else the last ones'.
    Step(uint64_t seed, const Model &model, const std::vector<int32_t> &adapters, bool all) {
        const auto groups = model.kv_windows().size();
        batch.pages.resize(groups);
        for (size_t n = 0; n < adapters.size(); ++n) {
            Random random(seed + n); // a node's tokens are its own
            const auto count =
                static_cast<int32_t>(1 + random() % (adapters.size() > 32 && n >= 3 ? 4 : 16));
            const auto begin = static_cast<int32_t>(batch.tokens.size());
            const auto number = static_cast<int32_t>(n);
            ContextNode node{-1, 0, count, begin, count, false, number};
            node.adapter = adapters[n];
            batch.nodes.push_back(node);
            for (int32_t i = 0; i < count; ++i) {
                batch.tokens.push_back(static_cast<int32_t>(random() % 50));
                batch.positions.push_back(i);
                if (!all && i + 1 < count) continue;
                OutputRow row{};
                row.token = begin + i;
                row.task = Task::score;
                row.targets = targets;
                batch.outputs.push_back(row);
            }
            for (size_t g = 0; g < groups; ++g) {
                batch.pages[g].nodes.push_back({number, 0});
                batch.pages[g].list.push_back(static_cast<int32_t>(g * adapters.size()) + number);
            }
        }
    }
    std::vector<float> run(Backend *backend) {
        if (backend->info().state_slots == 0) {
            for (ContextNode &node : batch.nodes) node.state = -1;
        }
        BatchOutput output;
        check(backend->run(batch, &output));
        return output.target_logprobs;
    }
};

std::unique_ptr<Model> load_of(const Golden &golden) {
    auto model = load_model(golden.directory);
    check(model.status());
    return std::move(model).value();
}

void results_are_the_cpus(void **) {
    uint64_t seed = seed_of_run();
    int64_t models = 0, merging = 0, wrong = 0;
    for (const Golden &golden : golden_on_cuda()) {
        const auto model = load_of(golden);
        if (!model->head) continue;
        const auto cuda = make_cuda(*model, "f32", true, false, "none", true);
        auto cpu = cpu::CpuBackend::create(*model, options_of("f32", false));
        check(cpu.status());
        if (cpu.value()->info().adapter_slots == 0) fail_msg("the CPU has no adapters");
        Random random(++seed);
        int64_t refused = 0;
        for (int32_t slot = 0; slot < 3; ++slot) {
            const auto adapter = made_up(random, *model, *cuda, slot == 0 ? 1 : 2, &refused);
            load(cuda.get(), 10 * slot, adapter);
            load(cpu.value().get(), 10 * slot, adapter);
        }
        for (const bool all : {true, false}) {
            for (const std::vector<int32_t> &adapters :
                 {std::vector<int32_t>{0, -1, 10, 0, 20, 10, -1},
                  {-1, -1},
                  {20, 20, 20},
                  {0, 0},
                  {0, 0, 10}}) {
                const auto before = seed++;
                const std::vector<float> got = Step(before, *model, adapters, all).run(cuda.get());
                const std::vector<float> wanted =
                    Step(before, *model, adapters, all).run(cpu.value().get());
                assert_int_equal(got.size(), wanted.size());
                double worst = 0;
                for (size_t i = 0; i < got.size(); ++i) {
                    worst = std::max(worst, double(std::fabs(got[i] - wanted[i])));
                    if (!std::isfinite(got[i])) worst = INFINITY;
                }
                if (!(worst < 4e-3)) {
                    std::printf("%s: log-probabilities differ by %g\n", golden.directory.c_str(),
                                worst);
                    ++wrong;
                }
            }
        }
        if (refused > 0) {
            std::printf("%s: %lld matrices without adapters\n", golden.directory.c_str(),
                        static_cast<long long>(refused));
        }
        ++models;
        merging += cuda->adapter_use().merged_batches == 2 ? 1 : 0;
    }
    assert_true(models > 0);
    assert_true(merging > models / 2);
    assert_int_equal(wrong, 0);
}

double mean_difference(const std::vector<float> &a, const std::vector<float> &b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(double(a[i]) - double(b[i]));
    return sum / static_cast<double>(std::max<size_t>(1, a.size()));
}

// What rounding changes is little beside what adapters do, also where weights are in fp8 or in four bits.
// all: none of the matrices may be refused.
struct Narrow {
    const char *quantize = "none", *type = "bf16";
    Ranks ranks = Ranks::any;
    bool downs_alone = false, all = false;
};
bool is_near(const Golden &golden, const Narrow &way, uint64_t seed) {
    const auto model = load_of(golden);
    if (!model->head) return true;
    const auto wide = make_cuda(*model, "f32");
    const auto narrow = make_cuda(*model, way.type, true, false, way.quantize);
    Random random(seed);
    int64_t refused = 0;
    for (int32_t slot = 0; slot < 2; ++slot) {
        const auto adapter =
            made_up(random, *model, *narrow, 1, &refused, way.ranks, way.downs_alone);
        load(wide.get(), slot, adapter);
        load(narrow.get(), slot, adapter);
    }
    const std::vector<int32_t> with = {0, -1, 1, 0, 1}, without(5, -1);
    const auto run = [&](CudaBackend *backend, const std::vector<int32_t> &adapters) {
        return Step(seed, *model, adapters, true).run(backend);
    };
    const std::vector<float> wanted = run(wide.get(), with), plain = run(wide.get(), without);
    const double effect = mean_difference(wanted, plain);
    const double error = mean_difference(run(narrow.get(), with), wanted);
    const double of_base = mean_difference(run(narrow.get(), without), plain);
    // Where weights are rounded too, other experts may be chosen.
    const double share = std::string(way.quantize) == "none" ? 0.2 : 0.4;
    const bool none_refused = refused == 0 || !way.all;
    if (none_refused && error < share * effect + 2 * of_base) return true;
    std::printf("%s, %s, %s: off by %g, without adapters by %g; they change %g; %lld refused\n",
                golden.directory.c_str(), way.type, way.quantize, error, of_base, effect,
                static_cast<long long>(refused));
    return false;
}

// More than 32 adapters with few rows each, which have launches of their own, beside others and rows without any; in steps of all
// tokens and of wanted ones, with graphs and without.
void many_adapters_have_few_rows_each(void **) {
    uint64_t seed = seed_of_run();
    constexpr int32_t count = 45;
    for (const char *name :
         {"golden/llama_bias_f32", "golden/llama2_mha_f16", "golden/qwen2_moe_bf16"}) {
        const Golden golden = read_golden(name);
        const auto model = load_of(golden);
        const auto wide = make_cuda(*model, "f32");
        for (const char *quantize : {"none", "fp8"}) {
            const auto with = make_cuda(*model, "bf16", true, false, quantize);
            const auto without = make_cuda(*model, "bf16", false, false, quantize);
            Random random(++seed);
            int64_t refused = 0;
            std::vector<int32_t> of_nodes = {0, -1, 1}, none(count + 3, -1);
            for (int32_t slot = 0; slot < count; ++slot) {
                const auto adapter =
                    made_up(random, *model, *with, 1 + slot % 2, &refused, Ranks::low);
                for (CudaBackend *backend : {wide.get(), with.get(), without.get()}) {
                    if (std::string(quantize) != "none" && backend == wide.get()) {
                        backend->unload_adapter(slot);
                    }
                    load(backend, slot, adapter);
                }
                of_nodes.push_back(slot);
            }
            for (const bool all : {true, false}) {
                const auto run = [&](CudaBackend *backend, const std::vector<int32_t> &adapters) {
                    return Step(seed, *model, adapters, all).run(backend);
                };
                const std::vector<float> wanted = run(wide.get(), of_nodes);
                const std::vector<float> first = run(without.get(), of_nodes);
                const double error = mean_difference(first, wanted);
                const double effect = mean_difference(wanted, run(wide.get(), none));
                const double of_base =
                    mean_difference(run(without.get(), none), run(wide.get(), none));
                if (!(error <
                      (std::string(quantize) == "none" ? 0.2 : 0.4) * effect + 2 * of_base)) {
                    fail_msg("%s, %s: off by %g, without adapters by %g; they change %g", name,
                             quantize, error, of_base, effect);
                }
                for (int i = 0; i < 4; ++i) {
                    const std::vector<float> got = run(with.get(), of_nodes);
                    assert_int_equal(got.size(), first.size());
                    assert_memory_equal(got.data(), first.data(), 4 * got.size());
                }
            }
        }
    }
}

void results_in_16_bits_are_those_in_32(void **) {
    uint64_t seed = seed_of_run();
    int64_t wrong = 0;
    for (const Golden &golden : golden_on_cuda()) {
        for (const char *quantize : {"none", "stored"}) {
            wrong += is_near(golden, {quantize}, ++seed) ? 0 : 1;
        }
        const auto is_of = [&](const char *name) {
            return golden.directory.find(name) != std::string::npos;
        };
        if (!is_of("moe") && !is_of("gpt_oss_bf16") && !is_of("llama4_text")) continue;
        for (const char *quantize : {"none", "stored", "fp8"}) {
            wrong += is_near(golden, {quantize, "bf16", Ranks::low}, ++seed) ? 0 : 1;
        }
    }
    assert_int_equal(wrong, 0);
}

bool on_hopper() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    return properties.major == 9;
}

// With scales of rows and of blocks: all of their matrices, and the last ones alone, whose input is in e4m3 then.
void experts_in_fp8_are_changed(void **) {
    if (!on_hopper()) skip();
    uint64_t seed = seed_of_run();
    int64_t wrong = 0;
    for (const char *name : {"golden/qwen3_moe_channel_fp8", "golden/qwen3_moe_wide_block_fp8"}) {
        const Golden golden = read_golden(name);
        for (const Narrow &way : {Narrow{"stored", "bf16", Ranks::low, false, true},
                                  Narrow{"stored", "bf16", Ranks::any, true, true},
                                  Narrow{"stored", "f16", Ranks::any, true, true},
                                  Narrow{"stored", "f16", Ranks::any, false, false}}) {
            wrong += is_near(golden, way, ++seed) ? 0 : 1;
        }
    }
    assert_int_equal(wrong, 0);
}

// Bits with graphs are those without, and are the same again once adapters have come and gone.
void graphs_and_slots_change_no_bit(void **) {
    uint64_t seed = seed_of_run();
    for (const char *name :
         {"golden/llama_bias_f32", "golden/llama2_mha_f16", "golden/qwen2_moe_bf16"}) {
        const Golden golden = read_golden(name);
        const auto model = load_of(golden);
        const auto with = make_cuda(*model, "bf16"), without = make_cuda(*model, "bf16", false);
        Random random(++seed);
        int64_t refused = 0;
        std::vector<std::shared_ptr<Adapter>> adapters;
        for (int i = 0; i < 4; ++i) {
            adapters.push_back(made_up(random, *model, *with, 1, &refused, Ranks::low));
        }
        for (CudaBackend *backend : {with.get(), without.get()}) {
            for (int32_t slot = 0; slot < 2; ++slot) load(backend, slot, adapters[size_t(slot)]);
        }
        const std::vector<int32_t> of_nodes = {0, 1, -1, 0, 1};
        const std::vector<float> first = Step(7, *model, of_nodes, false).run(without.get());
        for (int i = 0; i < 8; ++i) {
            if (i == 4) { // others come, and go
                for (int32_t slot = 2; slot < 4; ++slot) {
                    load(with.get(), slot, adapters[size_t(slot)]);
                }
                Step(9, *model, {3, 2, 1}, true).run(with.get());
                with->unload_adapter(2);
                with->unload_adapter(0);
                load(with.get(), 0, adapters[0]);
            }
            const std::vector<float> got = Step(7, *model, of_nodes, false).run(with.get());
            assert_int_equal(got.size(), first.size());
            assert_memory_equal(got.data(), first.data(), 4 * got.size());
        }
        assert_true(with->step().graphs().replayed() > 0);
    }
}

// Steps of one adapter alone give the same bits on merged layers with graphs and without, also after these have been made for
// another adapter, and after they had to go for one that was loaded.
void merged_layers_come_and_go(void **) {
    const Golden golden = read_golden("golden/llama2_mha_f16");
    const auto model = load_of(golden);
    Random random(seed_of_run());
    int64_t refused = 0;
    const auto with = make_cuda(*model, "bf16", true, false, "none", true);
    const auto without = make_cuda(*model, "bf16", false, false, "none", true);
    std::vector<std::shared_ptr<Adapter>> adapters;
    for (int i = 0; i < 2; ++i) {
        adapters.push_back(made_up(random, *model, *with, 1, &refused));
        for (CudaBackend *backend : {with.get(), without.get()}) {
            load(backend, i, adapters.back());
        }
    }
    const auto run = [&](CudaBackend *backend, int32_t slot) {
        return Step(7, *model, {slot, slot, slot}, false).run(backend);
    };
    run(without.get(), 0), run(without.get(), 1);
    const std::vector<float> first = run(without.get(), 0), second = run(without.get(), 1);
    run(with.get(), 0), run(with.get(), 1);
    assert_memory_not_equal(first.data(), second.data(), 4 * first.size());
    for (const int32_t slot : {0, 0, 0, 1, 1, 1, -1, 0, 0}) {
        if (slot < 0) { // a step that is not merged comes first again
            run(with.get(), 0);
            continue;
        }
        const std::vector<float> got = run(with.get(), slot);
        const std::vector<float> &wanted = slot == 0 ? first : second;
        assert_memory_equal(got.data(), wanted.data(), 4 * got.size());
    }
    cuda::StepAdapters &own = with->step().parts().adapters;
    assert_int_equal(own.use().merged_batches, 8);
    assert_true(with->step().graphs().replayed() > 0);
    int64_t loaded = 0;
    for (const auto &adapter : adapters) {
        auto bytes = with->adapter_bytes(*adapter);
        check(bytes.status());
        loaded += bytes.value();
    }
    // Merged layers took more.
    assert_true(with->adapter_use().bytes_peak > loaded);
    with->unload_adapter(1);
    own.set_merging(&with->step().parts().weights.layers, 1, 1); // no room
    load(with.get(), 1, adapters[1]);
    const std::vector<float> launched = run(with.get(), 0);
    assert_int_equal(own.use().merged_batches, 8);
    assert_true(mean_difference(launched, first) < 0.2 * mean_difference(second, first));
}

// In reproducible steps.
void bits_are_a_rows_own(const char *name, const char *quantize = "none") {
    const Golden golden = read_golden(name);
    const auto model = load_of(golden);
    const auto backend = make_cuda(*model, "bf16", true, true, quantize);
    Random random(seed_of_run());
    int64_t refused = 0;
    for (int32_t slot = 0; slot < 3; ++slot) {
        load(backend.get(), slot, made_up(random, *model, *backend, 1, &refused));
    }
    if (on_hopper()) assert_int_equal(refused, 0);
    for (const std::vector<int32_t> &adapters :
         {std::vector<int32_t>{0, 0, 0, 0, 0, 0}, {0, -1, 1, 2}, {0, 2}, {-1, 0, 1}}) {
        const std::vector<float> one = Step(5, *model, {adapters[0]}, true).run(backend.get());
        const std::vector<float> all = Step(5, *model, adapters, true).run(backend.get());
        assert_true(all.size() >= one.size());
        assert_memory_equal(all.data(), one.data(), 4 * one.size());
    }
}

void a_rows_bits_do_not_depend_on_others_adapters(void **) {
    bits_are_a_rows_own("golden/llama_bias_f32");
    bits_are_a_rows_own("golden/qwen2_moe_bf16");
    if (!on_hopper()) return;
    bits_are_a_rows_own("golden/qwen3_moe_channel_fp8", "stored");
    bits_are_a_rows_own("golden/qwen3_moe_wide_block_fp8", "stored");
}

// Where the product has to add them, of gate and up together. may: it can.
void check_limit(const char *name, const char *type, bool reproducible, bool may) {
    const Golden golden = read_golden(name);
    const auto model = load_of(golden);
    const auto backend = make_cuda(*model, type, true, reproducible, "stored");
    const Layer &layer = model->layers.back();
    const FeedForward &expert = layer.experts()->each[1];
    Random random(seed_of_run());
    const auto with = [&](int64_t gate, int64_t up) {
        Adapter adapter;
        for (const auto &[w, rank] :
             {std::pair{&expert.gate.values, gate}, {&expert.up.values, up}}) {
            LowRank change;
            change.a = made_up(random, &adapter, rank, w->columns, 1);
            change.b = made_up(random, &adapter, w->rows, rank, 1);
            adapter.changes.emplace(w, change);
        }
        return backend->adapter_bytes(adapter).status();
    };
    assert_int_equal(with(40, 25).code(), BATCHLLM_ERROR_UNSUPPORTED); // multiples of eight
    if (may) {
        check(with(40, 24));
        assert_non_null(std::strstr(with(64, 1).message().c_str(), "their ranks are 72 together"));
    } else {
        assert_int_equal(with(8, 8).code(), BATCHLLM_ERROR_UNSUPPORTED);
    }
}

void ranks_of_experts_are_limited(void **) {
    // What a row's bits would depend on, if some of them were added otherwise.
    check_limit("golden/qwen2_moe_bf16", "bf16", true, on_hopper());
    if (!on_hopper()) return;
    check_limit("golden/qwen3_moe_wide_block_fp8", "bf16", false, true);
    check_limit("golden/qwen3_moe_wide_block_fp8", "f16", false, false);
}

void what_is_not_loaded_is_refused(void **) {
    const Golden golden = read_golden("golden/llama_bias_f32");
    const auto model = load_of(golden);
    const auto backend = make_cuda(*model, "f32");
    Adapter adapter;
    adapter.embedding.a.rows = 600; // its rank
    assert_int_equal(backend->adapter_bytes(adapter).status().code(), BATCHLLM_ERROR_UNSUPPORTED);
    const Step step(1, *model, {0}, true);
    assert_int_equal(backend->forward(step.batch).code(), BATCHLLM_ERROR_INTERNAL);
}

} // namespace

int main() {
    if (const int code = cuda::skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(results_are_the_cpus),
        cmocka_unit_test(many_adapters_have_few_rows_each),
        cmocka_unit_test(results_in_16_bits_are_those_in_32),
        cmocka_unit_test(experts_in_fp8_are_changed),
        cmocka_unit_test(graphs_and_slots_change_no_bit),
        cmocka_unit_test(merged_layers_come_and_go),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_others_adapters),
        cmocka_unit_test(ranks_of_experts_are_limited),
        cmocka_unit_test(what_is_not_loaded_is_refused),
    };
    return cmocka_run_group_tests_name("cuda_step_adapters", tests, nullptr, nullptr);
}
