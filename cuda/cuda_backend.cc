#include "cuda_backend.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>
#include <unordered_map>

namespace batchllm::cuda {
namespace {

constexpr int64_t kDefaultStepTokens = 4096;
constexpr int64_t kHostRows = 64;
constexpr double kDefaultKvFraction = 0.9;
constexpr int kLeastDriver = 13000; // the runtime that this is built with
constexpr int kLeastCapability = 8; // bf16, mma.sync, cp.async

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<int> read_device(const std::string &devices) {
    int number = 0;
    const char *end = devices.data() + devices.size();
    const auto [stop, failure] = std::from_chars(devices.data(), end, number);
    if (devices.empty()) return 0;
    if (failure == std::errc() && stop != end && *stop == ',') {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "devices \"%s\": the cuda backend runs on one device so far", devices.c_str());
    }
    if (failure != std::errc() || stop != end || number < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "devices \"%s\": not a device's number",
                     devices.c_str());
    }
    return number;
}

// Whether this build can run on the device; fills in what is told about it.
Result<cudaDeviceProp> open_device(int device) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": no NVIDIA driver is installed");
    }
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorInsufficientDriver || driver < kLeastDriver) {
        return error(
            BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
            "backend \"cuda\": the driver knows CUDA up to %d.%d, this library needs %d.%d",
            driver / 1000, driver % 1000 / 10, kLeastDriver / 1000, kLeastDriver % 1000 / 10);
    }
    if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0)) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": no device is visible");
    }
    if (code != cudaSuccess) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": %s",
                     cudaGetErrorString(code));
    }
    if (device >= count) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": device %d of %d is not there", device, count);
    }
    cudaDeviceProp properties{};
    const cudaError_t asked = cudaGetDeviceProperties(&properties, device);
    if (asked != cudaSuccess) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": device %d: %s", device,
                     cudaGetErrorString(asked));
    }
    if (properties.major < kLeastCapability) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": device %d (%s) has compute capability %d.%d; it needs %d.0 "
                     "(A100) or later",
                     device, properties.name, properties.major, properties.minor,
                     kLeastCapability);
    }
    const cudaError_t set = cudaSetDevice(device);
    const cudaError_t made = set == cudaSuccess ? cudaFree(nullptr) : set; // makes the context
    if (made != cudaSuccess) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": device %d (%s): %s",
                     device, properties.name, cudaGetErrorString(made));
    }
    return properties;
}

Result<bool> read_switch(const std::string &key, const std::string &value) {
    if (value == "0" || value == "1") return value == "1";
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend option %s=%s: 0 or 1", key.c_str(),
                 value.c_str());
}

Result<ForwardOptions> read_options(const Model &model, const BackendOptions &options,
                                    const cudaDeviceProp &device) {
    ForwardOptions read;
    read.sms = device.multiProcessorCount;
    std::string attention = "auto";
    const std::string &type = options.compute_type;
    if (type.empty() || type == "auto") {
        read.element = model.config.dtype == DType::f32 ? DType::bf16 : model.config.dtype;
    } else if (type == "bf16" || type == "f16" || type == "f32") {
        read.element = type == "bf16" ? DType::bf16 : type == "f16" ? DType::f16 : DType::f32;
    } else {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "compute_type %s: the cuda backend has auto, bf16, f16 and f32", type.c_str());
    }
    // bf16's range is f32's; f16's is not, and residual streams outgrow it.
    read.residual = read.element == DType::bf16 ? DType::bf16 : DType::f32;
    read.step_tokens = options.step_tokens > 0 ? options.step_tokens : kDefaultStepTokens;
    read.seed = options.seed;
    read.threads = options.threads;
    for (const auto &[key, value] : options.extra) {
        if (key == "residual") {
            if (value != "f32" && value != "element") {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                             "backend option residual=%s: f32 or element", value.c_str());
            }
            read.residual = value == "f32" ? DType::f32 : read.element;
        } else if (key == "tuning") {
            ASSIGN_OR_RETURN(read.tune, read_switch(key, value));
        } else if (key == "share_attention") {
            ASSIGN_OR_RETURN(read.share_attention, read_switch(key, value));
        } else if (key == "attention") {
            attention = value;
        } else if (key == "profile") {
            ASSIGN_OR_RETURN(read.profile, read_switch(key, value));
        } else if (key == "random_weights") {
            ASSIGN_OR_RETURN(read.random_weights, read_switch(key, value));
        } else {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend option %s: the cuda backend has residual, tuning, "
                         "share_attention, attention, profile and random_weights",
                         key.c_str());
        }
    }
    read.attention = find_attention(attention, device.major, device.minor);
    if (read.attention == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option attention=%s: auto, sm80 or sm90 (compute capability 9.0 "
                     "alone); %s has %d.%d",
                     attention.c_str(), device.name, device.major, device.minor);
    }
    return read;
}

// Pages that the options and the memory left allow.
Result<int64_t> count_pages(const BackendOptions &options, int64_t page_bytes) {
    if (options.kv_memory_bytes < 0 || options.kv_memory_fraction < 0 ||
        options.kv_memory_fraction > 1) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "kv_memory: %lld bytes, fraction %g: negative, or a fraction above 1",
                     static_cast<long long>(options.kv_memory_bytes), options.kv_memory_fraction);
    }
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    const auto left = static_cast<int64_t>(available);
    int64_t bytes = options.kv_memory_bytes;
    if (bytes == 0) {
        const double fraction =
            options.kv_memory_fraction > 0 ? options.kv_memory_fraction : kDefaultKvFraction;
        bytes = static_cast<int64_t>(static_cast<double>(left) * fraction);
    } else if (bytes > left) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory_bytes %lld: %lld bytes of the device's memory are left beside "
                     "weights and workspaces",
                     static_cast<long long>(bytes), static_cast<long long>(left));
    }
    // A key's place in the pool is a 32-bit number.
    const int64_t pages = std::min(bytes / page_bytes, int64_t{INT32_MAX} / kPageKeys);
    if (pages < 1) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory: %lld bytes, a KV page has %lld; %lld of the device are left",
                     static_cast<long long>(bytes), static_cast<long long>(page_bytes),
                     static_cast<long long>(left));
    }
    return pages;
}

} // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const Model &model,
                                                         const BackendOptions &options) {
    ASSIGN_OR_RETURN(const int device, read_device(options.devices));
    ASSIGN_OR_RETURN(const cudaDeviceProp properties, open_device(device));
    ASSIGN_OR_RETURN(const ForwardOptions forward, read_options(model, options, properties));

    std::unique_ptr<CudaBackend> backend(new CudaBackend());
    backend->device_ = device;
    ASSIGN_OR_RETURN(backend->stream_, Stream::create());
    backend->pool_ = std::make_unique<ThreadPool>(options.threads);
    ASSIGN_OR_RETURN(backend->forward_, Forward::create(model, forward));
    const int64_t step_tokens = forward.step_tokens;
    const auto result_bytes = static_cast<int64_t>(sizeof(SampleResult)) * step_tokens;
    ASSIGN_OR_RETURN(backend->results_, DeviceMemory::create(result_bytes, "samples"));
    ASSIGN_OR_RETURN(backend->results_host_, PinnedMemory::create(result_bytes, "samples"));

    BackendInfo &info = backend->info_;
    info.name = "cuda";
    info.compute_type = dtype_name(forward.element);
    info.device = std::string(properties.name) + ", device " + std::to_string(device);
    info.vocabulary = model.config.vocabulary;
    info.page_tokens = kPageKeys;
    info.page_bytes = backend->forward_->page_bytes();
    info.step_tokens = step_tokens;
    ASSIGN_OR_RETURN(info.pages, count_pages(options, info.page_bytes));
    RETURN_IF_ERROR(backend->forward_->take_pages(info.pages));
    RETURN_IF_CUDA(cudaDeviceSynchronize());
    return backend;
}

CudaBackend::~CudaBackend() {
    // Memory goes back to the device that it is of, whichever the thread had chosen.
    cudaSetDevice(device_);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

// What would otherwise read or write past an end; the rest is the scheduler's word.
Status CudaBackend::check(const TokenBatch &batch) const {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    if (tokens > info_.step_tokens || batch.positions.size() != batch.tokens.size()) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "cuda backend: %lld tokens, %zu positions, at most %lld",
                     static_cast<long long>(tokens), batch.positions.size(),
                     static_cast<long long>(info_.step_tokens));
    }
    int64_t covered = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        const int64_t pages = (int64_t{node.length} + kPageKeys - 1) / kPageKeys;
        if (node.parent < -1 || node.parent >= static_cast<int32_t>(n) || node.length < 0 ||
            node.token_count < 0 || node.token_count > node.length || node.token_begin < 0 ||
            int64_t{node.token_begin} + node.token_count > tokens || node.page_begin < 0 ||
            node.page_count < pages ||
            int64_t{node.page_begin} + node.page_count > static_cast<int64_t>(batch.pages.size())) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: context node %zu is malformed", n);
        }
        covered += node.token_count;
        for (int32_t i = 0; i < node.token_count; ++i) {
            const auto t = static_cast<size_t>(node.token_begin + i);
            if (batch.positions[t] != node.start + node.length - node.token_count + i) {
                return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: token %zu has position %d", t,
                             batch.positions[t]);
            }
        }
    }
    if (covered != tokens) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %lld tokens, nodes hold %lld",
                     static_cast<long long>(tokens), static_cast<long long>(covered));
    }
    const auto outside = [](const auto &values, int64_t limit) {
        return std::any_of(values.begin(), values.end(),
                           [&](int32_t value) { return value < 0 || value >= limit; });
    };
    if (outside(batch.tokens, info_.vocabulary) || outside(batch.pages, info_.pages)) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: no such token or page");
    }
    for (const LogitsRow &row : batch.logits) {
        if (row.token < 0 || row.token >= tokens || outside(row.targets, info_.vocabulary)) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: logits of token %d", row.token);
        }
    }
    return {};
}

Status CudaBackend::compute(const TokenBatch &batch, BatchOutput *output) {
    RETURN_IF_ERROR(failed_);
    const auto start = Clock::now();
    RETURN_IF_ERROR(check(batch));
    output->samples.assign(batch.logits.size(), SampleOutput{});
    output->target_logprobs.clear();
    Status status = batch.tokens.empty() ? Status() : run_checked(batch, output);
    if (!status.ok()) failed_ = status;
    last_run_seconds_ = seconds_since(start);
    return status;
}

Status CudaBackend::run_checked(const TokenBatch &batch, BatchOutput *output) {
    const auto start = Clock::now();
    RETURN_IF_CUDA(cudaSetDevice(device_));
    staging_.clear();
    RETURN_IF_ERROR(plan_samples(batch));
    RETURN_IF_ERROR(forward_->stage(batch, wanted_, &staging_));
    RETURN_IF_ERROR(staging_.send(stream_));
    host_seconds_ += seconds_since(start);
    RETURN_IF_ERROR(forward_->run(staging_, stream_));
    RETURN_IF_ERROR(run_samples(batch, output));
    return forward_->profile().collect();
}

// ---- Sampling ----

// What the device's sampler does not do: lists of the likeliest, and log-probabilities or company of
// rows whose logits are changed first.
bool CudaBackend::on_device(const TokenBatch &batch, size_t at) const {
    const LogitsRow &row = batch.logits[static_cast<size_t>(by_token_[at])];
    if (!row.targets.empty()) return true;
    const SamplingParams &p = *row.sample.params;
    if (p.logprobs > 0) return false;
    const bool edits = !p.bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 ||
                       p.frequency_penalty != 0;
    if (!edits) return true;
    const bool shared = (at > 0 && wanted_of_[at - 1] == wanted_of_[at]) ||
                        (at + 1 < by_token_.size() && wanted_of_[at + 1] == wanted_of_[at]);
    return p.logprobs < 0 && !shared;
}

// A row's changes, one for each token that has any.
void CudaBackend::add_edits(const SampleInput &input, SampleTask *task) {
    const SamplingParams &p = *input.params;
    std::unordered_map<int32_t, LogitEdit> edits;
    const auto edit = [&](int32_t token) -> LogitEdit * {
        if (token < 0 || token >= info_.vocabulary) return nullptr;
        return &edits.try_emplace(token, LogitEdit{token, 0, 0, 0}).first->second;
    };
    for (const auto &[token, bias] : p.bias) {
        if (LogitEdit *e = edit(token)) e->bias += bias;
    }
    if (p.repetition_penalty != 1) {
        for (const auto &tokens : {input.prompt, input.output}) {
            for (const int32_t token : tokens) {
                if (LogitEdit *e = edit(token)) e->repeated = 1;
            }
        }
    }
    if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
        for (const int32_t token : input.output) {
            if (LogitEdit *e = edit(token)) ++e->times;
        }
    }
    task->edit_begin = static_cast<int32_t>(edits_.size());
    task->edit_count = static_cast<int32_t>(edits.size());
    for (const auto &[token, e] : edits) edits_.push_back(e);
}

Status CudaBackend::plan_samples(const TokenBatch &batch) {
    const size_t rows = batch.logits.size();
    by_token_.resize(rows);
    std::iota(by_token_.begin(), by_token_.end(), 0);
    std::stable_sort(by_token_.begin(), by_token_.end(), [&](int32_t a, int32_t b) {
        return batch.logits[static_cast<size_t>(a)].token <
               batch.logits[static_cast<size_t>(b)].token;
    });
    wanted_.clear();
    wanted_of_.resize(rows);
    for (size_t i = 0; i < rows; ++i) {
        const int32_t token = batch.logits[static_cast<size_t>(by_token_[i])].token;
        if (wanted_.empty() || wanted_.back() != token) wanted_.push_back(token);
        wanted_of_[i] = static_cast<int32_t>(wanted_.size()) - 1;
    }
    target_begin_.resize(rows);
    targets_.clear();
    for (size_t i = 0; i < rows; ++i) {
        target_begin_[i] = static_cast<int64_t>(targets_.size());
        targets_.insert(targets_.end(), batch.logits[i].targets.begin(),
                        batch.logits[i].targets.end());
    }
    tasks_.clear();
    edits_.clear();
    host_rows_.clear();
    for (size_t i = 0; i < rows; ++i) {
        if (!on_device(batch, i)) {
            host_rows_.push_back(static_cast<int32_t>(i));
            continue;
        }
        const int32_t number = by_token_[i];
        const LogitsRow &row = batch.logits[static_cast<size_t>(number)];
        SampleTask task{};
        task.row = static_cast<int32_t>(wanted_of_[i] % forward_->logits_rows());
        task.output = number;
        if (!row.targets.empty()) {
            task.target_begin = static_cast<int32_t>(target_begin_[static_cast<size_t>(number)]);
            task.target_count = static_cast<int32_t>(row.targets.size());
        } else {
            const SamplingParams &p = *row.sample.params;
            task.logprob = p.logprobs >= 0;
            task.temperature = p.temperature;
            task.top_p = p.top_p;
            task.min_p = p.min_p;
            task.top_k = p.top_k;
            task.repetition_penalty = p.repetition_penalty;
            task.presence_penalty = p.presence_penalty;
            task.frequency_penalty = p.frequency_penalty;
            if (!p.greedy()) {
                task.uniform = random_uniform(row.sample.random_key, row.sample.position);
            }
            if (!p.bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 ||
                p.frequency_penalty != 0) {
                add_edits(row.sample, &task);
            }
        }
        tasks_.push_back(task);
    }
    ASSIGN_OR_RETURN(staged_tasks_, staging_.add(std::span<const SampleTask>(tasks_)));
    ASSIGN_OR_RETURN(staged_edits_, staging_.add(std::span<const LogitEdit>(edits_)));
    ASSIGN_OR_RETURN(staged_targets_, staging_.add(std::span<const int32_t>(targets_)));

    const auto room = [](auto *memory, int64_t bytes, const char *what) -> Status {
        if (memory->bytes() >= bytes) return {};
        using M = std::remove_pointer_t<decltype(memory)>;
        *memory = M();
        ASSIGN_OR_RETURN(*memory, M::create(2 * bytes, what));
        return {};
    };
    const auto result_bytes = static_cast<int64_t>(rows * sizeof(SampleResult));
    const auto target_bytes = static_cast<int64_t>(targets_.size() * sizeof(float));
    RETURN_IF_ERROR(room(&results_, result_bytes, "samples"));
    RETURN_IF_ERROR(room(&results_host_, result_bytes, "samples"));
    RETURN_IF_ERROR(room(&target_logprobs_, target_bytes, "scores"));
    RETURN_IF_ERROR(room(&target_logprobs_host_, target_bytes, "scores"));
    return {};
}

Status CudaBackend::run_samples(const TokenBatch &batch, BatchOutput *output) {
    const auto rows = static_cast<int64_t>(wanted_.size());
    const auto places = static_cast<int64_t>(by_token_.size());
    const int64_t chunk = forward_->logits_rows();
    int64_t place = 0, task = 0, host = 0;
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t last = std::min(rows, first + chunk);
        RETURN_IF_ERROR(forward_->compute_logits(first, last - first, stream_));
        while (place < places && wanted_of_[static_cast<size_t>(place)] < last) ++place;
        int64_t host_end = host;
        while (host_end < static_cast<int64_t>(host_rows_.size()) &&
               host_rows_[static_cast<size_t>(host_end)] < place) {
            ++host_end;
        }
        // The host first: the device's sampler may change a row.
        RETURN_IF_ERROR(sample_on_host(batch, first, host, host_end, output));
        const int64_t task_end = place - host_end; // every place is a task or the host's
        const SampleArguments arguments{forward_->logits(),
                                        forward_->logits_stride(),
                                        info_.vocabulary,
                                        staging_.on_device<SampleTask>(staged_tasks_) + task,
                                        static_cast<int32_t>(task_end - task),
                                        staging_.on_device<LogitEdit>(staged_edits_),
                                        staging_.on_device<int32_t>(staged_targets_),
                                        results_.as<SampleResult>(),
                                        target_logprobs_.as<float>()};
        RETURN_IF_CUDA(launch_sample(arguments, stream_));
        RETURN_IF_ERROR(forward_->profile().mark(Part::sample, stream_));
        host = host_end;
        task = task_end;
    }
    if (!tasks_.empty()) {
        RETURN_IF_CUDA(cudaMemcpyAsync(results_host_.data(), results_.data(),
                                       by_token_.size() * sizeof(SampleResult),
                                       cudaMemcpyDeviceToHost, stream_));
    }
    if (!targets_.empty()) {
        RETURN_IF_CUDA(cudaMemcpyAsync(target_logprobs_host_.data(), target_logprobs_.data(),
                                       targets_.size() * sizeof(float), cudaMemcpyDeviceToHost,
                                       stream_));
    }
    RETURN_IF_CUDA(cudaStreamSynchronize(stream_));
    for (const SampleTask &done : tasks_) {
        const SampleResult &result = results_host_.as<SampleResult>()[done.output];
        SampleOutput &to = output->samples[static_cast<size_t>(done.output)];
        to.token = result.token;
        to.finite = result.finite != 0;
        to.logprob = result.logprob;
    }
    output->target_logprobs.assign(target_logprobs_host_.as<float>(),
                                   target_logprobs_host_.as<float>() + targets_.size());
    return {};
}

// host_rows_[begin, end), whose logits are in the chunk that begins at wanted row `first`.
Status CudaBackend::sample_on_host(const TokenBatch &batch, int64_t first, int64_t begin,
                                   int64_t end, BatchOutput *output) {
    const auto vocabulary = static_cast<size_t>(info_.vocabulary);
    if (begin < end && !logits_host_) {
        ASSIGN_OR_RETURN(logits_host_, PinnedMemory::create(kHostRows * info_.vocabulary * 4,
                                                            "logits on the host"));
    }
    for (int64_t at = begin; at < end; at += kHostRows) {
        const int64_t count = std::min(kHostRows, end - at);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row =
                wanted_of_[static_cast<size_t>(host_rows_[static_cast<size_t>(at + i)])] - first;
            RETURN_IF_CUDA(cudaMemcpyAsync(logits_host_.as<float>() + i * info_.vocabulary,
                                           forward_->logits() + row * forward_->logits_stride(),
                                           vocabulary * sizeof(float), cudaMemcpyDeviceToHost,
                                           stream_));
        }
        RETURN_IF_CUDA(cudaStreamSynchronize(stream_));
        pool_->parallel_for(count, [&](int64_t i, int32_t) {
            const auto place = static_cast<size_t>(host_rows_[static_cast<size_t>(at + i)]);
            const auto row = static_cast<size_t>(by_token_[place]);
            sample({logits_host_.as<float>() + i * info_.vocabulary, vocabulary},
                   batch.logits[row].sample, &output->samples[row]);
        });
    }
    return {};
}

} // namespace batchllm::cuda
