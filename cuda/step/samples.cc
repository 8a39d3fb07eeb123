#include "step/samples.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace batchllm::cuda {
namespace {

bool changes_logits(const SamplingParams &params) {
    return !params.bias.empty() || forbids_tokens(params) || StepSamples::needs_history(params);
}

Status grow(PinnedMemory *memory, int64_t bytes, const char *what) {
    if (memory->bytes() >= bytes) return {};
    ASSIGN_OR_RETURN(*memory, PinnedMemory::create(2 * bytes, what));
    return {};
}

} // namespace

// ---- Host: before the batch ----

// A row's changes, one for each token that has any.
void StepSamples::add_edits(const SampleInput &input, SampleTask *task) {
    const SamplingParams &p = *input.params;
    std::unordered_map<int32_t, LogitEdit> edits;
    const auto edit = [&](int32_t token) -> LogitEdit * {
        if (token < 0 || token >= vocabulary_) return nullptr;
        return &edits.try_emplace(token, LogitEdit{token, 0, 0, 0, 0}).first->second;
    };
    std::vector<int32_t> forbidden;
    add_forbidden(input, &forbidden);
    for (const int32_t token : forbidden) {
        if (LogitEdit *e = edit(token)) e->bias = -INFINITY;
    }
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

SampleTask sampling_task(const SamplingParams &params, int32_t row, int32_t output,
                         int32_t *likely) {
    SampleTask task{};
    task.row = row;
    task.output = output;
    task.spare = -1;
    task.logprob = params.logprobs >= 0;
    task.likely_begin = *likely;
    task.likely_count = std::max(0, params.logprobs);
    *likely += task.likely_count;
    task.temperature = params.temperature;
    task.top_p = params.top_p;
    task.min_p = params.min_p;
    task.top_k = params.top_k;
    task.repetition_penalty = params.repetition_penalty;
    task.presence_penalty = params.presence_penalty;
    task.frequency_penalty = params.frequency_penalty;
    return task;
}

SampleTask StepSamples::task_of(const OutputRow &row, int32_t number, int64_t logits_row) {
    if (row.task == Task::score) {
        SampleTask task{};
        task.row = static_cast<int32_t>(logits_row);
        task.output = number;
        task.spare = -1;
        task.target_begin = static_cast<int32_t>(rows_.target_begin(number));
        task.target_count = static_cast<int32_t>(row.targets.size());
        task.likely_begin = likely_;
        task.likely_count = std::max(0, row.likeliest());
        likely_ += task.likely_count;
        return task;
    }
    const SamplingParams &p = *row.sample.params;
    SampleTask task = sampling_task(p, static_cast<int32_t>(logits_row), number, &likely_);
    if (!p.greedy()) task.uniform = random_uniform(row.sample.random_key, row.sample.position);
    if (changes_logits(p)) add_edits(row.sample, &task);
    return task;
}

Status StepSamples::reserve(int64_t rows) {
    return grow(&answers_, rows * static_cast<int64_t>(sizeof(SampleResult)), "samples");
}

// The tokens of an embedded row follow each other among the wanted ones too.
Status StepSamples::stage_sums(const TokenBatch &batch, int32_t hidden, Staging *staging) {
    hidden_ = hidden;
    spans_.clear();
    for (const int32_t number : rows_.embedded_rows()) {
        const OutputRow &row = batch.outputs[static_cast<size_t>(number)];
        spans_.push_back({static_cast<int32_t>(rows_.place(row.token)), row.count});
    }
    ASSIGN_OR_RETURN(staged_spans_, staging->add(std::span<const SumSpan>(spans_)));
    const int64_t floats = static_cast<int64_t>(spans_.size()) * hidden;
    return grow(&sums_, floats * static_cast<int64_t>(sizeof(float)), "hidden states");
}

Status StepSamples::stage(const TokenBatch &batch, const BackendInfo &info, int64_t logits_rows,
                          Staging *staging) {
    vocabulary_ = info.vocabulary;
    const size_t rows = batch.outputs.size();
    rows_.read(batch);
    generates_.clear();
    targets_.clear();
    for (const OutputRow &row : batch.outputs) {
        generates_.push_back(row.task == Task::generate);
        targets_.insert(targets_.end(), row.targets.begin(), row.targets.end());
    }
    tasks_.clear();
    wanted_of_.clear();
    edits_.clear();
    likely_ = 0;
    spares_ = 0;
    masked_ = false;
    for (size_t i = 0; i < wanted().size(); ++i) {
        for (const int32_t number : rows_.rows_of(static_cast<int64_t>(i))) {
            tasks_.push_back(task_of(batch.outputs[static_cast<size_t>(number)], number,
                                     static_cast<int64_t>(i) % logits_rows));
            wanted_of_.push_back(static_cast<int32_t>(i));
        }
    }
    join_edited_rows();
    RETURN_IF_ERROR(stage_sums(batch, info.hidden, staging));
    ASSIGN_OR_RETURN(staged_tasks_, staging->add(std::span<const SampleTask>(tasks_)));
    ASSIGN_OR_RETURN(staged_edits_, staging->add(std::span<const LogitEdit>(edits_)));
    ASSIGN_OR_RETURN(staged_targets_, staging->add(std::span<const int32_t>(targets_)));
    RETURN_IF_ERROR(grow(&answers_, static_cast<int64_t>(rows * sizeof(SampleResult)), "samples"));
    RETURN_IF_ERROR(
        grow(&target_logprobs_, static_cast<int64_t>(targets_.size() * sizeof(float)), "scores"));
    return grow(&likely_answers_, likely_ * static_cast<int64_t>(sizeof(Likely)),
                "the likeliest tokens");
}

// Tasks of one row of logits that some of them edit are done one after the other. A mask cannot be
// taken back, so those that sample would work on a row of their own.
void StepSamples::join_edited_rows() {
    for (size_t begin = 0, end = 0; begin < tasks_.size(); begin = end) {
        bool edited = false;
        while (end < tasks_.size() && wanted_of_[end] == wanted_of_[begin]) {
            edited |= tasks_[end++].edit_count > 0;
        }
        for (size_t i = begin; i < end; ++i) {
            tasks_[i].together = edited ? 0 : 1;
            if (end - begin > 1 && tasks_[i].target_count == 0) tasks_[i].spare = spares_++;
        }
        if (edited) tasks_[begin].together = static_cast<int32_t>(end - begin);
    }
}

// ---- Device ----

Status StepSamples::reserve_masks(int64_t bytes) {
    RETURN_IF_ERROR(grow(&host_masks_, bytes, "masks"));
    if (device_masks_.bytes() >= host_masks_.bytes()) return {};
    device_masks_ = DeviceMemory();
    ASSIGN_OR_RETURN(device_masks_, DeviceMemory::create(host_masks_.bytes(), "masks"));
    return {};
}

Status StepSamples::send_masks(std::span<const TokenMask> masks, cudaStream_t stream, bool *sent) {
    *sent = masked_ = false;
    std::unordered_map<TokenMask, int32_t> numbers;
    std::vector<int32_t> mask_of(generates_.size(), -1);
    std::vector<TokenMask> distinct;
    for (size_t row = 0; row < std::min(masks.size(), mask_of.size()); ++row) {
        if (generates_[row] == 0 || masks[row] == nullptr) continue;
        const auto [place, fresh] =
            numbers.try_emplace(masks[row], static_cast<int32_t>(distinct.size()));
        if (fresh) distinct.push_back(masks[row]);
        mask_of[row] = place->second;
    }
    if (distinct.empty()) return {};
    const auto words = static_cast<int64_t>((vocabulary_ + 31) / 32);
    mask_words_ = static_cast<int64_t>(mask_of.size());
    const int64_t bytes = (mask_words_ + words * static_cast<int64_t>(distinct.size())) * 4;
    RETURN_IF_ERROR(reserve_masks(bytes));
    std::copy(mask_of.begin(), mask_of.end(), host_masks_.as<int32_t>());
    uint32_t *to = host_masks_.as<uint32_t>() + mask_words_;
    for (const TokenMask mask : distinct) to = std::copy(mask, mask + words, to);
    RETURN_IF_CUDA(cudaMemcpyAsync(device_masks_.data(), host_masks_.data(),
                                   static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
    *sent = masked_ = true;
    return {};
}

Status StepSamples::reserve_spare(const OutputHead &head) {
    if (!masked_) return {};
    const int64_t bytes = spares_ * head.logits_stride() * static_cast<int64_t>(sizeof(float));
    if (spare_.bytes() >= bytes) return {};
    spare_ = DeviceMemory();
    ASSIGN_OR_RETURN(spare_, DeviceMemory::create(bytes, "masked logits"));
    return {};
}

Status StepSamples::run(const Staging &staging, OutputHead *head, cudaStream_t stream) {
    const auto rows = static_cast<int64_t>(wanted().size());
    const auto tasks = static_cast<int64_t>(tasks_.size());
    const int64_t chunk = head->logits_rows();
    if (!spans_.empty()) {
        RETURN_IF_ERROR(head->sum_hidden(staging.on_device<SumSpan>(staged_spans_),
                                         static_cast<int32_t>(spans_.size()), sums_.as<float>(),
                                         stream));
    }
    const DeviceRank &rank = head->rank();
    const int64_t result_bytes = this->rows() * static_cast<int64_t>(sizeof(SampleResult));
    if (rank && tasks > 0) { // those of other ranks' shares are added
        RETURN_IF_CUDA(
            cudaMemsetAsync(head->samples(), 0, static_cast<size_t>(result_bytes), stream));
    }
    int64_t task = 0;
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t last = std::min(rows, first + chunk);
        if (task == tasks || wanted_of_[static_cast<size_t>(task)] >= last) continue;
        RETURN_IF_ERROR(head->compute_logits(first, last - first, stream));
        const OutputHead::Share share = head->share_of(last - first);
        const auto first_task_of = [&](int64_t row) {
            return std::lower_bound(wanted_of_.begin() + task, wanted_of_.end(), row) -
                   wanted_of_.begin();
        };
        const int64_t end = first_task_of(first + share.end), next = first_task_of(last);
        task = first_task_of(first + share.begin);
        SampleArguments arguments{head->logits() - share.begin * head->logits_stride(),
                                  head->logits_stride(),
                                  vocabulary_,
                                  staging.on_device<SampleTask>(staged_tasks_) + task,
                                  static_cast<int32_t>(end - task),
                                  staging.on_device<LogitEdit>(staged_edits_),
                                  staging.on_device<int32_t>(staged_targets_),
                                  head->samples(),
                                  answers_in_->answers_.as<SampleResult>(),
                                  answers_in_->target_logprobs_.as<float>(),
                                  answers_in_->likely_answers_.as<Likely>()};
        if (masked_) {
            arguments.mask_of = device_masks_.as<int32_t>();
            arguments.masks = device_masks_.as<uint32_t>() + mask_words_;
            arguments.spare = spare_.as<float>();
        }
        RETURN_IF_CUDA(launch_sample(arguments, stream));
        RETURN_IF_ERROR(head->profile().mark(Part::sample, stream));
        task = next;
    }
    if (!rank || tasks == 0) return {};
    RETURN_IF_ERROR(rank.group->sum(rank.number, reinterpret_cast<int32_t *>(head->samples()),
                                    result_bytes / 4, stream));
    return head->profile().mark(Part::exchange, stream);
}

// ---- Host: after the batch ----

void StepSamples::take_sums(BatchOutput *output) const {
    const auto *sums = sums_.as<float>();
    const auto hidden = static_cast<size_t>(hidden_);
    output->hidden.assign(sums, sums + spans_.size() * hidden);
    size_t first = 0;
    for (const int32_t number : rows_.embedded_rows()) {
        const std::span<const float> sum = std::span(output->hidden).subspan(first, hidden);
        output->samples[static_cast<size_t>(number)].finite =
            std::all_of(sum.begin(), sum.end(), [](float x) { return std::isfinite(x); });
        first += hidden;
    }
}

void StepSamples::take(BatchOutput *output) {
    output->samples.assign(generates_.size(), SampleOutput{});
    take_sums(output);
    for (const SampleTask &done : tasks_) {
        const SampleResult &result = answers_.as<SampleResult>()[done.output];
        SampleOutput &to = output->samples[static_cast<size_t>(done.output)];
        to.token = result.token;
        to.finite = result.finite != 0;
        to.logprob = result.logprob;
        const Likely *likely = likely_answers_.as<Likely>() + done.likely_begin;
        for (int32_t i = 0; i < done.likely_count && likely[i].token >= 0; ++i) {
            to.top.push_back({likely[i].token, likely[i].logprob});
        }
    }
    output->target_logprobs.assign(target_logprobs_.as<float>(),
                                   target_logprobs_.as<float>() + targets_.size());
}

} // namespace batchllm::cuda
