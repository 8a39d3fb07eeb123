#include "throughput_lane.h"

#include <algorithm>
#include <memory>

#include <cuda_runtime_api.h>

#include "../tests/helpers/whole_plan.h"
#include "clock.h"
#include "runtime/lane.h"

namespace batchllm {
namespace {

// A backend that outlives the lane.
class Borrowed final : public Backend {
  public:
    explicit Borrowed(Backend *backend) : backend_(backend) {}
    const BackendInfo &info() const override { return backend_->info(); }
    Status forward(const TokenBatch &batch) override { return backend_->forward(batch); }
    Status sample(std::span<const TokenMask> masks) override { return backend_->sample(masks); }
    Status collect(BatchOutput *output) override { return backend_->collect(output); }
    bool ready() const override { return backend_->ready(); }
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override {
        return backend_->adapter_bytes(adapter);
    }
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override {
        return backend_->pack_adapter(std::move(adapter));
    }
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override {
        return backend_->load_adapter(slot, std::move(packed));
    }
    void unload_adapter(int32_t slot) override { backend_->unload_adapter(slot); }
    bool feeds(const SampleInput &input) const override { return backend_->feeds(input); }
    double last_run_seconds() const override { return backend_->last_run_seconds(); }

  private:
    Backend *backend_;
};

// What attention can read, in bytes a second: 4.5 of 4.8 TB/s on an H200. Of the current device.
double floor_bandwidth() {
    int device = 0, kilohertz = 0, bits = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, device);
    cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device);
    return 4.5 / 4.8 * 2e3 * kilohertz * bits / 8;
}

} // namespace

Result<Measured> run_job(const BenchBackend &bench, const Plan &plan, const JobRows &rows,
                         const NamedJob &job, const Arguments &arguments,
                         const BenchAdapters *adapters, LinearProbe *probe) {
    Backend *all = bench.all.get();
    cuda::CudaBackend *backend = bench.first;
    const BackendInfo &info = all->info();
    SchedulerOptions scheduling;
    scheduling.max_requests = static_cast<int64_t>(arguments.cap);
    Lane lane(0, std::make_unique<Borrowed>(all), scheduling);
    JobRequests requests(rows, job);

    Measured m;
    const int64_t key_bytes = dtype_bytes(backend->step().parts().options.kv_type());
    m.attention = AttentionFloor(backend->step().parts().model, static_cast<int32_t>(key_bytes),
                                 floor_bandwidth());
    m.host = -backend->host_seconds();
    const auto start = Clock::now();
    if (adapters != nullptr && !adapters->sources.empty()) {
        for (size_t i = 0; i < requests.held.size(); ++i) {
            requests.held[i]->adapter = lane.adapters().use(adapters->sources[adapters->of_row[i]]);
        }
    }
    RETURN_IF_ERROR(add_plan(lane.scheduler(), plan, requests.held));
    while (true) {
        RETURN_IF_ERROR(lane.adapters().take_made().status());
        auto lap = Clock::now();
        while (lane.takes_another() && (probe == nullptr || !probe->done())) {
            ASSIGN_OR_RETURN(const TokenBatch *next, lane.next_batch());
            const TokenBatch &batch = *next;
            m.scheduler += seconds_since(lap);
            if (batch.tokens.empty()) break;
            RETURN_IF_ERROR(lane.forward(batch));
            RETURN_IF_ERROR(lane.sample({}));
            if (probe != nullptr) {
                RETURN_IF_ERROR(probe->follow(static_cast<int64_t>(batch.tokens.size())));
            }
            const double before = m.attention.seconds() + m.attention.decode_excess;
            m.attention.add(batch);
            m.step_attention.push_back(m.attention.seconds() + m.attention.decode_excess - before);
            lap = Clock::now();
        }
        if (lane.in_flight() == 0 && lane.waits_for_adapter()) {
            lane.adapters().wait();
            continue;
        }
        if (lane.in_flight() == 0) break;
        lap = Clock::now();
        RETURN_IF_ERROR(lane.collect());
        m.waited += seconds_since(lap);
        lap = Clock::now();
        const BatchRecord &record = lane.record();
        for (size_t i = 0; i < record.sampled.size(); ++i) {
            Request *request = record.sampled[i];
            if (request == nullptr) continue;
            const SampleOutput &sample = lane.output().samples[i];
            if (!sample.finite) return error(BATCHLLM_ERROR_DEVICE, "logits are not finite");
            request->output.push_back(sample.token);
            request->done = static_cast<int32_t>(request->output.size()) == job.generated;
        }
        const StepCounts &counts = record.counts;
        const int64_t tokens = counts.decode_tokens + counts.own_tokens + counts.prefix_tokens;
        ++m.steps;
        m.tokens += tokens;
        m.step_tokens.push_back(tokens);
        m.full += 10 * tokens >= 9 * info.step_tokens;
        m.preemptions += counts.preemptions;
        m.most_rows = std::max(m.most_rows, counts.decode_tokens);
        m.sampled += static_cast<int64_t>(record.sampled.size());
        m.backend += lane.batch_seconds();
        if (tokens == counts.decode_tokens) {
            ++m.decode_steps;
            m.decode_seconds += lane.batch_seconds();
        }
        m.step_seconds.push_back(lane.batch_seconds());
        lane.finish();
        m.scheduler += seconds_since(lap);
    }
    m.seconds = seconds_since(start);
    if (adapters != nullptr) { // the next lane begins without any
        for (size_t i = 0; i < adapters->sources.size(); ++i) {
            all->unload_adapter(static_cast<int32_t>(i));
        }
    }
    m.host += backend->host_seconds();
    for (const Request &request : requests.requests) {
        for (const int32_t token : request.output) {
            m.hash = (m.hash ^ static_cast<uint64_t>(token)) * 0x100000001b3u;
        }
    }
    return m;
}

} // namespace batchllm
