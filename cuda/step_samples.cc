#include "step_samples.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace batchllm::cuda {
namespace {

bool changes_logits(const SamplingParams &params) {
    return !params.bias.empty() || StepSamples::needs_history(params);
}

Status grow(PinnedMemory *memory, int64_t bytes, const char *what) {
    if (memory->bytes() >= bytes) return {};
    ASSIGN_OR_RETURN(*memory, PinnedMemory::create(2 * bytes, what));
    return {};
}

} // namespace

// ---- Host: before the batch ----

// What the device's sampler does not do: lists of the likeliest, and log-probabilities or company of
// rows whose logits are changed first.
bool StepSamples::on_device(const TokenBatch &batch, size_t at) const {
    const LogitsRow &row = batch.logits[static_cast<size_t>(by_token_[at])];
    if (!row.targets.empty()) return true;
    const SamplingParams &p = *row.sample.params;
    if (needs_host(p)) return false;
    if (!changes_logits(p)) return true;
    const bool shared = (at > 0 && wanted_of_[at - 1] == wanted_of_[at]) ||
                        (at + 1 < by_token_.size() && wanted_of_[at + 1] == wanted_of_[at]);
    return p.logprobs < 0 && !shared;
}

// A row's changes, one for each token that has any.
void StepSamples::add_edits(const SampleInput &input, SampleTask *task) {
    const SamplingParams &p = *input.params;
    std::unordered_map<int32_t, LogitEdit> edits;
    const auto edit = [&](int32_t token) -> LogitEdit * {
        if (token < 0 || token >= vocabulary_) return nullptr;
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

SampleTask StepSamples::task_of(const LogitsRow &row, int32_t number, int64_t logits_row) {
    SampleTask task{};
    task.row = static_cast<int32_t>(logits_row);
    task.output = number;
    if (!row.targets.empty()) {
        task.target_begin = static_cast<int32_t>(target_begin_[static_cast<size_t>(number)]);
        task.target_count = static_cast<int32_t>(row.targets.size());
        return task;
    }
    const SamplingParams &p = *row.sample.params;
    task.logprob = p.logprobs >= 0;
    task.temperature = p.temperature;
    task.top_p = p.top_p;
    task.min_p = p.min_p;
    task.top_k = p.top_k;
    task.repetition_penalty = p.repetition_penalty;
    task.presence_penalty = p.presence_penalty;
    task.frequency_penalty = p.frequency_penalty;
    if (!p.greedy()) task.uniform = random_uniform(row.sample.random_key, row.sample.position);
    if (changes_logits(p)) add_edits(row.sample, &task);
    return task;
}

Status StepSamples::reserve(int64_t rows) {
    return grow(&answers_, rows * static_cast<int64_t>(sizeof(SampleResult)), "samples");
}

Status StepSamples::plan(const TokenBatch &batch, int32_t vocabulary, int64_t logits_rows,
                         Staging *staging) {
    vocabulary_ = vocabulary;
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
    scored_.resize(rows);
    targets_.clear();
    for (size_t i = 0; i < rows; ++i) {
        const std::span<const int32_t> targets = batch.logits[i].targets;
        target_begin_[i] = static_cast<int64_t>(targets_.size());
        scored_[i] = !targets.empty();
        targets_.insert(targets_.end(), targets.begin(), targets.end());
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
        tasks_.push_back(task_of(batch.logits[static_cast<size_t>(number)], number,
                                 wanted_of_[i] % logits_rows));
    }
    ASSIGN_OR_RETURN(staged_tasks_, staging->add(std::span<const SampleTask>(tasks_)));
    ASSIGN_OR_RETURN(staged_edits_, staging->add(std::span<const LogitEdit>(edits_)));
    ASSIGN_OR_RETURN(staged_targets_, staging->add(std::span<const int32_t>(targets_)));
    RETURN_IF_ERROR(grow(&answers_, static_cast<int64_t>(rows * sizeof(SampleResult)), "samples"));
    RETURN_IF_ERROR(
        grow(&target_logprobs_, static_cast<int64_t>(targets_.size() * sizeof(float)), "scores"));
    output_.samples.assign(rows, SampleOutput{});
    return {};
}

// ---- Device ----

Status StepSamples::run(const TokenBatch &batch, const Staging &staging, Forward *forward,
                        HostSampling *host, cudaStream_t stream) {
    const auto rows = static_cast<int64_t>(wanted_.size());
    const int64_t places = this->rows();
    const int64_t chunk = forward->logits_rows();
    int64_t place = 0, task = 0, host_row = 0;
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t last = std::min(rows, first + chunk);
        RETURN_IF_ERROR(forward->compute_logits(first, last - first, stream));
        while (place < places && wanted_of_[static_cast<size_t>(place)] < last) ++place;
        int64_t host_end = host_row;
        while (host_end < static_cast<int64_t>(host_rows_.size()) &&
               host_rows_[static_cast<size_t>(host_end)] < place) {
            ++host_end;
        }
        // The host first: the device's sampler may change a row.
        RETURN_IF_ERROR(sample_on_host(batch, first, host_row, host_end, *forward, host, stream));
        const int64_t task_end = place - host_end; // every place is a task or the host's
        const SampleArguments arguments{forward->logits(),
                                        forward->logits_stride(),
                                        vocabulary_,
                                        staging.on_device<SampleTask>(staged_tasks_) + task,
                                        static_cast<int32_t>(task_end - task),
                                        staging.on_device<LogitEdit>(staged_edits_),
                                        staging.on_device<int32_t>(staged_targets_),
                                        forward->samples(),
                                        answers_.as<SampleResult>(),
                                        target_logprobs_.as<float>()};
        RETURN_IF_CUDA(launch_sample(arguments, stream));
        RETURN_IF_ERROR(forward->profile().mark(Part::sample, stream));
        host_row = host_end;
        task = task_end;
    }
    // The host's, for a next batch that is fed them.
    for (const int32_t at : host_rows_) {
        const auto row = static_cast<size_t>(by_token_[static_cast<size_t>(at)]);
        answers_.as<SampleResult>()[row] = {output_.samples[row].token,
                                            output_.samples[row].finite ? 1 : 0,
                                            output_.samples[row].logprob};
        RETURN_IF_CUDA(cudaMemcpyAsync(forward->samples() + row, answers_.as<SampleResult>() + row,
                                       sizeof(SampleResult), cudaMemcpyHostToDevice, stream));
    }
    return {};
}

// host_rows_[begin, end), whose logits are in the chunk that begins at wanted row `first`.
Status StepSamples::sample_on_host(const TokenBatch &batch, int64_t first, int64_t begin,
                                   int64_t end, const Forward &forward, HostSampling *host,
                                   cudaStream_t stream) {
    const auto vocabulary = static_cast<size_t>(vocabulary_);
    if (begin < end && !host->logits) {
        ASSIGN_OR_RETURN(host->logits, PinnedMemory::create(HostSampling::kRows * vocabulary_ * 4,
                                                            "logits on the host"));
    }
    float *logits = host->logits.as<float>();
    for (int64_t at = begin; at < end; at += HostSampling::kRows) {
        const int64_t count = std::min(HostSampling::kRows, end - at);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row =
                wanted_of_[static_cast<size_t>(host_rows_[static_cast<size_t>(at + i)])] - first;
            RETURN_IF_CUDA(cudaMemcpyAsync(
                logits + i * vocabulary_, forward.logits() + row * forward.logits_stride(),
                vocabulary * sizeof(float), cudaMemcpyDeviceToHost, stream));
        }
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        host->pool.parallel_for(count, [&](int64_t i, int32_t) {
            const auto place = static_cast<size_t>(host_rows_[static_cast<size_t>(at + i)]);
            const auto row = static_cast<size_t>(by_token_[place]);
            sample({logits + i * vocabulary_, vocabulary}, batch.logits[row].sample,
                   &output_.samples[row]);
        });
    }
    return {};
}

// ---- Host: after the batch ----

void StepSamples::take(BatchOutput *output) {
    for (const SampleTask &done : tasks_) {
        const SampleResult &result = answers_.as<SampleResult>()[done.output];
        SampleOutput &to = output_.samples[static_cast<size_t>(done.output)];
        to.token = result.token;
        to.finite = result.finite != 0;
        to.logprob = result.logprob;
    }
    output_.target_logprobs.assign(target_logprobs_.as<float>(),
                                   target_logprobs_.as<float>() + targets_.size());
    std::swap(*output, output_);
}

} // namespace batchllm::cuda
