// The CUDA backend, driven like by the engine's lanes: batches in flight, fed tokens, graphs,
// errors.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda_backend.h"
#include "runtime/lane.h"
#include "whole_plan.h"

#include "golden_files.h"

using namespace batchllm;
using cuda::CudaBackend;

namespace {

void check(const Status &status) {
    if (!status.ok()) fail_msg("%s", status.message().c_str());
}

using Extra = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<CudaBackend> make_backend(const Model &model, const std::string &type,
                                          Extra extra = {}) {
    BackendOptions options;
    options.compute_type = type;
    options.threads = 2;
    options.step_tokens = 256;
    options.kv_memory_bytes = int64_t{32} << 20;
    options.extra = {{"tuning_cache", "none"}, {"tuning", "0"}};
    options.extra.insert(options.extra.end(), extra.begin(), extra.end());
    auto made = CudaBackend::create(model, options);
    check(made.status());
    return std::move(made).value();
}

Status submit(Backend *backend, const TokenBatch &batch) {
    RETURN_IF_ERROR(backend->forward(batch));
    return backend->sample({});
}

// Counts the lane's calls of the backend.
class Counted final : public Backend {
  public:
    struct Counts {
        int64_t fed = 0, batches = 0, overlapped = 0;
    };
    Counted(Backend *backend, Counts *counts) : backend_(backend), counts_(counts) {}
    const BackendInfo &info() const override { return backend_->info(); }
    Status sample(std::span<const TokenMask> masks) override { return backend_->sample(masks); }
    Status forward(const TokenBatch &batch) override {
        ++counts_->batches;
        counts_->overlapped += in_flight_++ > 0;
        for (const int32_t token : batch.tokens) counts_->fed += token < 0;
        return backend_->forward(batch);
    }
    Status collect(BatchOutput *output) override {
        --in_flight_;
        RETURN_IF_ERROR(backend_->collect(output));
        assert_true(backend_->last_run_seconds() > 0);
        return {};
    }
    bool ready() const override { return backend_->ready(); }
    bool feeds(const SampleInput &input) const override { return backend_->feeds(input); }
    double last_run_seconds() const override { return backend_->last_run_seconds(); }

  private:
    Backend *backend_;
    Counts *counts_;
    int32_t in_flight_ = 0;
};

struct Sampled {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<float>> logprobs;
    Counted::Counts counts;
};

// All prompts of the golden model, each twice; params[i % size] for row i.
Sampled run_rows(CudaBackend *backend, const Golden &golden,
                 const std::vector<SamplingParams> &params) {
    std::vector<TokenRow> rows;
    for (int round = 0; round < 2; ++round) {
        for (const GoldenRow &row : golden.rows) {
            const auto length = static_cast<int32_t>(row.prompt.size());
            rows.push_back({row.prompt.data(), length, length - 1});
        }
    }
    auto plan = make_plan(rows, {}, PlanOptions{}, nullptr);
    check(plan.status());
    Sampled out;
    out.logprobs.resize(rows.size());
    Lane lane(0, std::make_unique<Counted>(backend, &out.counts), SchedulerOptions{});
    std::vector<Request> requests(rows.size());
    std::vector<Request *> held;
    for (size_t i = 0; i < rows.size(); ++i) {
        requests[i].prompt = rows[i];
        requests[i].params = &params[i % params.size()];
        requests[i].max_tokens = golden.new_tokens;
        requests[i].random_key = random_key(1, 2, i, 0);
        held.push_back(&requests[i]);
    }
    check(add_plan(lane.scheduler(), *plan, held));
    while (true) {
        while (lane.takes_another()) {
            const TokenBatch &batch = *lane.next_batch().value();
            if (batch.tokens.empty()) break;
            check(lane.forward(batch));
            check(lane.sample({}));
        }
        if (lane.in_flight() == 0) break;
        check(lane.collect());
        const BatchRecord &record = lane.record();
        for (size_t i = 0; i < record.sampled.size(); ++i) {
            Request *request = record.sampled[i];
            const SampleOutput &sample = lane.output().samples[i];
            assert_true(sample.finite);
            request->output.push_back(sample.token);
            out.logprobs[static_cast<size_t>(request - requests.data())].push_back(sample.logprob);
            request->done = static_cast<int32_t>(request->output.size()) == request->max_tokens;
        }
        lane.finish();
    }
    for (const Request &request : requests) out.tokens.push_back(request.output);
    return out;
}

std::unique_ptr<Model> load(const Golden &golden) {
    auto model = load_model(golden.directory);
    check(model.status());
    return std::move(model).value();
}

std::vector<SamplingParams> ways_to_sample() {
    SamplingParams greedy, drawn, listed, penalised, biased;
    for (SamplingParams *p : {&greedy, &drawn, &listed, &penalised, &biased}) {
        p->ignore_eos = true;
        p->logprobs = 0;
    }
    drawn.temperature = 0.8f;
    drawn.top_p = 0.9f;
    listed.logprobs = 3;
    penalised.repetition_penalty = 1.3f;
    penalised.logprobs = -1;
    biased.bias = {{5, 2.0f}, {7, -3.0f}};
    biased.logprobs = -1;
    return {greedy, drawn, listed, penalised, biased, greedy, greedy};
}

void graphs_change_no_bit(void **) {
    int64_t replays = 0;
    for (const Golden &golden : golden_on_cuda()) {
        const auto model = load(golden);
        for (const char *overlap : {"0", "1"}) {
            std::vector<Sampled> runs;
            for (const char *graphs : {"0", "1", "1"}) {
                const auto backend =
                    make_backend(*model, "f16", {{"overlap", overlap}, {"graphs", graphs}});
                runs.push_back(run_rows(backend.get(), golden, {ways_to_sample()[0]}));
                const int64_t replayed = backend->step().graphs().replayed();
                assert_true((replayed > 0) == (*graphs == '1'));
                replays += replayed;
            }
            assert_true(runs[0].tokens == runs[1].tokens && runs[1].tokens == runs[2].tokens);
            assert_true(runs[0].logprobs == runs[1].logprobs);
        }
    }
    print_message("%d replays\n", int(replays));
}

void attention_in_a_launch_a_kind_changes_no_bit(void **) {
    for (const Golden &golden : golden_on_cuda()) {
        const auto model = load(golden);
        const auto fused = make_backend(*model, "f16");
        const auto apart = make_backend(*model, "f16", {{"fused_attention", "0"}});
        const Sampled a = run_rows(fused.get(), golden, {ways_to_sample()[0]});
        const Sampled b = run_rows(apart.get(), golden, {ways_to_sample()[0]});
        assert_true(a.tokens == b.tokens && a.logprobs == b.logprobs);
    }
}

void overlap_changes_no_token(void **) {
    for (const Golden &golden : golden_on_cuda()) {
        const auto model = load(golden);
        // All rows fed; one of 22 held back until its sample is known; most held back.
        std::vector<SamplingParams> most_fed(22, ways_to_sample()[1]);
        most_fed[5] = ways_to_sample()[3];
        for (const auto &params : {std::vector{ways_to_sample()[0]}, most_fed, ways_to_sample()}) {
            const auto apart = make_backend(*model, "f32", {{"overlap", "0"}});
            const auto together = make_backend(*model, "f32", {{"overlap", "1"}});
            const Sampled a = run_rows(apart.get(), golden, params);
            const Sampled b = run_rows(together.get(), golden, params);
            assert_true(a.tokens == b.tokens);
            assert_int_equal(apart->info().batches_in_flight, 1);
            assert_int_equal(together->info().batches_in_flight, 2);
            assert_int_equal(a.counts.fed + a.counts.overlapped, 0);
            if (params.size() != ways_to_sample().size()) {
                assert_true(b.counts.fed > 0 && b.counts.overlapped > 0);
            }
        }
    }
}

void the_backend_states_what_it_computes_on(void **) {
    const auto model = load(golden_on_cuda()[0]);
    const auto backend = make_backend(*model, "bf16");
    cudaDeviceProp properties{};
    assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    const ComputeDevice &device = backend->info().computes_on;
    assert_true(device.kind == DeviceKind::gpu && device.name == properties.name);
    assert_false(backend->info().products_in_fp8);
    // Every device from compute capability 8.0 on.
    assert_true(device.product_flops > 3e13 && device.product_flops < 1e16);
    assert_true(device.memory_bandwidth > 1e11 && device.memory_bandwidth < 2e13);
    if (device.name != "NVIDIA H200") return;
    assert_true(device.product_flops > 0.9e15 && device.product_flops < 1.2e15);
    assert_true(device.memory_bandwidth > 4.5e12 && device.memory_bandwidth < 5.2e12);
}

void the_backend_feeds_what_the_device_samples(void **) {
    const Golden golden = golden_on_cuda()[0];
    const auto model = load(golden);
    const auto backend = make_backend(*model, "bf16");
    const auto single = make_backend(*model, "bf16", {{"overlap", "0"}});
    const std::vector<SamplingParams> ways = ways_to_sample();
    for (const auto &[way, feeds] : {std::pair{0, true}, std::pair{1, true}, std::pair{2, true},
                                     std::pair{3, false}, std::pair{4, true}}) {
        SampleInput input{};
        input.params = &ways[static_cast<size_t>(way)];
        assert_int_equal(backend->feeds(input), feeds);
        assert_false(single->feeds(input));
    }
}

// One node of `tokens`, from position 0 on, in page `page`; logits of the last.
TokenBatch one_row(const std::vector<int32_t> &tokens, int32_t first, int32_t page,
                   const SamplingParams *params) {
    TokenBatch batch;
    batch.tokens = tokens;
    const auto count = static_cast<int32_t>(tokens.size());
    for (int32_t i = 0; i < count; ++i) batch.positions.push_back(first + i);
    batch.nodes.push_back({-1, 0, first + count, 0, count, false});
    batch.pages = {{{page}, {{0, 0}}}};
    OutputRow row{};
    row.token = count - 1;
    row.sample.params = params;
    batch.outputs.push_back(row);
    return batch;
}

void batches_in_flight_are_counted_and_fed(void **) {
    const Golden golden = read_golden("golden/llama_bias_f32"); // one KV group
    const auto model = load(golden);
    const auto backend = make_backend(*model, "f32");
    const SamplingParams params;
    BatchOutput output;
    assert_true(backend->ready());
    assert_int_equal(backend->collect(&output).code(), BATCHLLM_ERROR_INTERNAL);

    const TokenBatch first = one_row({1, 2, 3}, 0, 0, &params);
    check(backend->run(first, &output));
    const int32_t token = output.samples[0].token;
    check(backend->run(one_row({token}, 3, 0, &params), &output));
    const int32_t wanted = output.samples[0].token;

    check(submit(backend.get(), first));
    check(submit(backend.get(), one_row({fed_token(0)}, 3, 0, &params)));
    assert_int_equal(submit(backend.get(), first).code(), BATCHLLM_ERROR_INTERNAL);
    check(backend->collect(&output));
    assert_int_equal(output.samples[0].token, token);
    check(backend->collect(&output));
    assert_int_equal(output.samples[0].token, wanted);
    assert_int_equal(backend->collect(&output).code(), BATCHLLM_ERROR_INTERNAL);

    // A batch with a row whose token is not known.
    assert_int_equal(submit(backend.get(), one_row({fed_token(1)}, 3, 0, &params)).code(),
                     BATCHLLM_ERROR_INTERNAL);
    TokenBatch scored = first;
    const int32_t target = 4;
    scored.outputs[0].task = Task::score;
    scored.outputs[0].targets = {&target, 1};
    check(backend->run(scored, &output));
    assert_int_equal(output.target_logprobs.size(), 1);
    assert_int_equal(submit(backend.get(), one_row({fed_token(0)}, 3, 0, &params)).code(),
                     BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(submit(backend.get(), one_row({model->vocabulary}, 3, 0, &params)).code(),
                     BATCHLLM_ERROR_INTERNAL);
    // A batch rejected before anything was launched has no effect.
    check(backend->run(first, &output));
    assert_int_equal(output.samples[0].token, token);

    // An empty batch also takes its turn.
    check(submit(backend.get(), first));
    check(submit(backend.get(), TokenBatch{}));
    check(backend->collect(&output));
    assert_int_equal(output.samples[0].token, token);
    check(backend->collect(&output));
    assert_int_equal(output.samples.size(), 0);
}

// A step that needs more memory than any before it moves the buffers that graphs read.
void graphs_follow_memory_that_grows(void **) {
    const Golden golden = read_golden("golden/llama_bias_f32"); // one KV group
    const auto model = load(golden);
    const auto with = make_backend(*model, "f16");
    const auto without = make_backend(*model, "f16", {{"graphs", "0"}});
    const SamplingParams params;
    for (const int32_t rows : {1, 1, 1, 1, 200, 1, 1, 1, 200, 200}) {
        TokenBatch batch;
        batch.pages.resize(1);
        for (int32_t r = 0; r < rows; ++r) {
            batch.tokens.push_back(1 + r % 50);
            batch.positions.push_back(0);
            batch.nodes.push_back({-1, 0, 1, r, 1, false});
            batch.pages[0].nodes.push_back({r, 0});
            batch.pages[0].list.push_back(r);
            OutputRow row{};
            row.token = r;
            row.sample.params = &params;
            batch.outputs.push_back(row);
        }
        BatchOutput a, b;
        check(with->run(batch, &a));
        check(without->run(batch, &b));
        for (size_t i = 0; i < a.samples.size(); ++i) {
            assert_int_equal(a.samples[i].token, b.samples[i].token);
        }
    }
    assert_true(with->step().graphs().replayed() >= 3);
}

// Products of a size are timed once 64 steps have had it. Their graph is captured anew after that step, which is launched.
void graphs_go_on_when_products_have_been_timed(void **) {
    const Golden golden = read_golden("golden/llama_bias_f32");
    const auto model = load(golden);
    const auto backend = make_backend(*model, "f16", {{"tuning", "1"}});
    const SamplingParams params;
    TokenBatch batch;
    batch.pages.resize(1);
    batch.tokens = {1};
    batch.positions = {0};
    batch.nodes.push_back({-1, 0, 1, 0, 1, false});
    batch.pages[0].nodes.push_back({0, 0});
    batch.pages[0].list.push_back(0);
    OutputRow row{};
    row.sample.params = &params;
    batch.outputs.push_back(row);
    BatchOutput output;
    const auto run = [&](int steps) {
        for (int i = 0; i < steps; ++i) check(backend->run(batch, &output));
    };
    const cuda::Graphs &graphs = backend->step().graphs();
    run(64);
    assert_int_equal(graphs.captured(), 1);
    assert_int_equal(graphs.replayed(), 62);
    run(16); // one is timed, one captured
    assert_true(graphs.on);
    assert_int_equal(graphs.captured(), 2);
    assert_int_equal(graphs.replayed(), 62 + 14);
}

} // namespace

int main() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        std::printf("skipped: no device\n");
        return 77;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(batches_in_flight_are_counted_and_fed),
        cmocka_unit_test(the_backend_states_what_it_computes_on),
        cmocka_unit_test(the_backend_feeds_what_the_device_samples),
        cmocka_unit_test(graphs_change_no_bit),
        cmocka_unit_test(graphs_follow_memory_that_grows),
        cmocka_unit_test(graphs_go_on_when_products_have_been_timed),
        cmocka_unit_test(attention_in_a_launch_a_kind_changes_no_bit),
        cmocka_unit_test(overlap_changes_no_token),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
