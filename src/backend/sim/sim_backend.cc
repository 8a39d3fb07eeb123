#include "backend/sim/sim_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/check_pages.h"
#include "backend/check_states.h"

namespace batchllm {

namespace {

// SplitMix64's finaliser: every bit of the result depends on every bit of the argument.
uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t splitmix(uint64_t key, uint64_t a, uint64_t b) {
    return splitmix(splitmix(splitmix(key) ^ a) ^ b);
}

// In (0, 1].
double unit(uint64_t hash) { return (static_cast<double>(hash >> 11) + 1) * 0x1p-53; }

// The purpose of a hash, which makes lengths, tokens and log-probabilities independent.
constexpr uint64_t for_length = uint64_t{1} << 40;
constexpr uint64_t for_token = uint64_t{2} << 40;
constexpr uint64_t for_logprob = uint64_t{3} << 40;

// The sum of the states of the row's tokens. A token's state depends only on its id. Its elements
// are multiples of a step size for which sums are exact in float, so the sum does not depend on how
// a row is divided into batches.
void add_hidden(const TokenBatch &batch, const OutputRow &row, int32_t size,
                std::vector<float> *out) {
    constexpr int32_t levels = 64;
    for (int32_t d = 0; d < size; ++d) {
        float sum = 0;
        for (int32_t i = 0; i < row.count; ++i) {
            const auto token = static_cast<uint64_t>(batch.tokens[row.token + i]);
            const uint64_t hash = splitmix(token, for_token, static_cast<uint64_t>(d));
            sum +=
                static_cast<float>(static_cast<int32_t>(hash % (2 * levels + 1)) - levels) / levels;
        }
        out->push_back(sum);
    }
}

struct SimAdapter : PackedAdapter {
    AdapterCost cost;
};

bool is_allowed(int32_t token, const std::vector<int32_t> &forbidden, TokenMask mask) {
    if (mask != nullptr && (mask[token / 32] >> (token % 32) & 1) == 0) return false;
    return std::find(forbidden.begin(), forbidden.end(), token) == forbidden.end();
}

} // namespace

SimBackend::SimBackend(const SimOptions &options, const BackendOptions &backend_options)
    : options_(options) {
    info_.name = "sim";
    info_.compute_type = "none";
    info_.device = "simulated, modelled time";
    if (options.costs) info_.device = "as " + options.costs->costs().name + ", modelled time";
    info_.vocabulary = options.vocabulary;
    info_.hidden = options.hidden;
    info_.reproducible = backend_options.reproducible;
    info_.page_tokens = options.page_tokens;
    if (options.ranks > 1) info_.device += ", " + std::to_string(options.ranks) + " as one";
    info_.page_bytes = options.slot_bytes * options.page_tokens * options.ranks;
    info_.kv_windows.clear();
    for (const SimOptions::GroupShape &group : options.kv_groups)
        info_.kv_windows.push_back(group.window);
    info_.pages = options.pages;
    info_.state_slots = options.states.slots;
    info_.state_bytes = options.state_bytes * options.ranks;
    info_.step_tokens =
        backend_options.step_tokens > 0 ? backend_options.step_tokens : options.step_tokens;
    info_.eos_token = options.eos_token;
    info_.weight_bytes = options.weights.all;
    info_.adapter_slots = 1024;
    info_.adapter_bytes = backend_options.adapter_memory_bytes > 0
                              ? backend_options.adapter_memory_bytes
                              : int64_t{2} << 30;
    if (options.pictures) {
        info_.picture_slots = 1024;
        info_.picture_tokens = 1 << 16;
    }
    info_.batches_in_flight = options.overlap ? 2 : 1;
    info_.gated_tokens = options.costs ? options.costs->costs().gated_tokens : 0;
}

int64_t SimBackend::output_length(uint64_t random_key) const {
    const uint64_t hash = splitmix(random_key, for_length, 0);
    if (options_.eos_token < 0) return 0;
    if (options_.max_length > 0)
        return options_.min_length +
               static_cast<int64_t>(
                   hash % static_cast<uint64_t>(options_.max_length - options_.min_length + 1));
    if (options_.mean_length > 0)
        return std::max(options_.min_length,
                        static_cast<int64_t>(std::ceil(
                            std::min(-std::log(unit(hash)) * options_.mean_length, 1e9))));
    return 0;
}

// Never the EOS. At one position, different ranks give different tokens as long as the vocabulary
// is large enough.
int32_t SimBackend::other_token(uint64_t key, int32_t position, int32_t rank) const {
    const int32_t vocabulary = options_.vocabulary;
    const int32_t choices = options_.eos_token >= 0 ? vocabulary - 1 : vocabulary;
    const uint64_t hash = splitmix(key, for_token, static_cast<uint32_t>(position));
    const auto choice =
        static_cast<int32_t>((hash + static_cast<uint64_t>(rank)) % static_cast<uint64_t>(choices));
    return options_.eos_token >= 0 && choice >= options_.eos_token ? choice + 1 : choice;
}

// The first allowed token at or after `wanted`, wrapping around; the EOS only if there is no other.
// -1: none.
int32_t SimBackend::allowed_token(int32_t wanted, const Drawn &row, TokenMask mask) const {
    if (mask == nullptr && row.forbidden.empty()) return wanted;
    for (int32_t i = 0; i < options_.vocabulary; ++i) {
        const int32_t token = (wanted + i) % options_.vocabulary;
        if (token != options_.eos_token && is_allowed(token, row.forbidden, mask)) return token;
    }
    const int32_t eos = options_.eos_token;
    return eos >= 0 && is_allowed(eos, row.forbidden, mask) ? eos : -1;
}

void SimBackend::sample_row(const Drawn &row, TokenMask mask, SampleOutput *out) const {
    const int64_t length = output_length(row.key);
    bool ends = length > 0 && row.may_end && row.generated + 1 >= length;
    if (ends) ends = is_allowed(options_.eos_token, row.forbidden, mask);
    out->token =
        ends ? options_.eos_token : allowed_token(other_token(row.key, row.position, 0), row, mask);
    out->finite = out->token >= 0;
    out->top.clear();
    out->logprob = 0;
    if (row.logprobs < 0) return;
    // The chosen token has at least half of the probability, and each further token half of the
    // previous one's.
    out->logprob = static_cast<float>(std::log(
        0.5 + 0.5 * unit(splitmix(row.key, for_logprob, static_cast<uint32_t>(row.position)))));
    const int32_t count = std::min(row.logprobs, options_.vocabulary - 1);
    for (int32_t i = 0; i < count; ++i) {
        const int32_t token =
            i == 0 ? out->token : other_token(row.key, row.position, ends ? i - 1 : i);
        const double rest = -std::expm1(out->logprob);
        out->top.push_back({token, i == 0 ? out->logprob
                                          : static_cast<float>(std::log(std::max(rest, 1e-30)) -
                                                               i * std::log(2))});
    }
}

// For a scored token: the first has half of the probability, and each further one half of the
// previous one's.
void SimBackend::list_likeliest(const SampleInput &input, SampleOutput *out) const {
    const int32_t count = std::min(input.params->prompt_logprobs, options_.vocabulary - 1);
    for (int32_t i = 0; i < count; ++i) {
        out->top.push_back({other_token(static_cast<uint64_t>(input.position), 0, i),
                            static_cast<float>(-(i + 1) * std::log(2.0))});
    }
}

// Bytes of keys and values read or written, and of the states of nodes with tokens, each read and
// written once.
int64_t SimBackend::kv_bytes(const TokenBatch &batch) const {
    const std::vector<int64_t> first = first_queries(batch);
    int64_t bytes = 0;
    for (const ContextNode &node : batch.nodes)
        bytes += node.token_count > 0 ? 2 * options_.state_bytes : 0;
    for (const SimOptions::GroupShape &group : options_.kv_groups) {
        int64_t slots = 0;
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            const int64_t unseen = group.window == 0 ? 0 : first[n] - group.window + 1 - node.start;
            slots += node.length - std::clamp<int64_t>(unseen, 0, node.length) + node.token_count;
        }
        bytes += slots * group.token_bytes;
    }
    return bytes;
}

double SimBackend::device_seconds(const TokenBatch &batch) {
    if (batch.tokens.empty()) return 0;
    if (options_.costs) {
        const StepSeconds seconds = options_.costs->seconds(batch, adapters_);
        spent_ += seconds;
        return seconds.total();
    }
    const double linear =
        std::max(options_.step_floor_us * 1e-6,
                 static_cast<double>(batch.tokens.size()) / options_.tokens_per_second);
    const double attention = static_cast<double>(kv_bytes(batch)) / options_.kv_bandwidth;
    return options_.step_overhead_us * 1e-6 + linear + attention;
}

Result<int64_t> SimBackend::adapter_bytes(const Adapter &adapter) const {
    int64_t numbers = 0;
    const auto add = [&](const LowRank &low) {
        numbers += low.a.rows * low.a.columns + low.b.rows * low.b.columns;
    };
    for (const auto &[tensor, low] : adapter.changes) add(low);
    add(adapter.embedding);
    return 2 * numbers;
}

Result<std::shared_ptr<const PackedAdapter>>
SimBackend::pack_adapter(std::shared_ptr<const Adapter> adapter) const {
    auto packed = std::make_shared<SimAdapter>();
    if (options_.adapter_costs) packed->cost = options_.adapter_costs->of(*adapter);
    return std::shared_ptr<const PackedAdapter>(std::move(packed));
}

Status SimBackend::load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) {
    if (!options_.costs) return {};
    adapters_.resize(static_cast<size_t>(info_.adapter_slots));
    adapters_[static_cast<size_t>(slot)] = static_cast<const SimAdapter &>(*packed).cost;
    return {};
}

Status SimBackend::load_pictures(std::span<const PictureLoad> pictures) {
    int64_t tokens = 0;
    for (const PictureLoad &load : pictures) {
        if (load.slot < 0 || load.slot >= info_.picture_slots)
            return error(BATCHLLM_ERROR_INTERNAL, "sim: a picture in slot %d", load.slot);
        tokens += load.picture->grid.tokens;
    }
    picture_seconds_ += options_.costs ? options_.costs->picture_seconds(pictures)
                                       : static_cast<double>(tokens) / options_.tokens_per_second;
    return {};
}

Status SimBackend::forward(const TokenBatch &batch) {
    RETURN_IF_ERROR(check_states(batch, info_));
    if (in_flight_ == info_.batches_in_flight)
        return error(BATCHLLM_ERROR_INTERNAL, "sim: a batch goes forward with %d in flight",
                     in_flight_);
    InFlight &flight = batches_[(oldest_ + static_cast<size_t>(in_flight_)) % batches_.size()];
    const double device = device_seconds(batch) + std::exchange(picture_seconds_, 0);
    const double host =
        options_.costs ? options_.costs->host_seconds(batch) : options_.host_us * 1e-6;
    flight.seconds = in_flight_ > 0 ? std::max(device, host) : device + host;
    ++in_flight_;
    flight.rows.clear();
    BatchOutput *output = &flight.output;
    output->samples.assign(batch.outputs.size(), SampleOutput{});
    output->target_logprobs.clear();
    output->hidden.clear();
    for (const OutputRow &row : batch.outputs) {
        const SampleInput &input = row.sample;
        // Not output.size(), since the last token may be in flight.
        flight.rows.push_back({row.task,
                               input.random_key,
                               input.position,
                               input.position - static_cast<int64_t>(input.prompt.size()),
                               input.params == nullptr || !input.params->ignore_eos,
                               input.params == nullptr ? -1 : input.params->logprobs,
                               {}});
        if (row.task == Task::generate && input.params != nullptr) {
            add_forbidden(input, &flight.rows.back().forbidden);
        } else if (row.task == Task::score && row.likeliest() > 0) {
            list_likeliest(input, &output->samples[flight.rows.size() - 1]);
        }
        for (const int32_t target : row.targets) {
            const uint64_t hash = splitmix(static_cast<uint32_t>(input.position), for_logprob,
                                           static_cast<uint32_t>(target));
            output->target_logprobs.push_back(static_cast<float>(std::log(unit(hash))));
        }
        if (embedded(row.task)) add_hidden(batch, row, info_.hidden, &output->hidden);
    }
    return {};
}

Status SimBackend::sample(std::span<const TokenMask> masks) {
    const size_t newest = (oldest_ + static_cast<size_t>(in_flight_) - 1) % batches_.size();
    InFlight &flight = batches_[newest];
    for (size_t i = 0; i < flight.rows.size(); ++i) {
        if (flight.rows[i].task != Task::generate) continue;
        sample_row(flight.rows[i], masks.empty() ? nullptr : masks[i], &flight.output.samples[i]);
    }
    return {};
}

Status SimBackend::collect(BatchOutput *output) {
    if (in_flight_ == 0) return error(BATCHLLM_ERROR_INTERNAL, "sim: no batch is in flight");
    if (collected_ == options_.fails_after)
        return error(BATCHLLM_ERROR_DEVICE,
                     "sim: the device fails after %lld batches (fails_after)",
                     static_cast<long long>(collected_));
    ++collected_;
    InFlight &flight = batches_[oldest_];
    std::swap(*output, flight.output);
    seconds_ = flight.seconds;
    oldest_ = (oldest_ + 1) % batches_.size();
    --in_flight_;
    return {};
}

Result<std::unique_ptr<Backend>> make_sim_backend(const Model *model,
                                                  const BackendOptions &options) {
    ASSIGN_OR_RETURN(const SimOptions read, read_sim_options(model, options));
    return std::unique_ptr<Backend>(std::make_unique<SimBackend>(read, options));
}

} // namespace batchllm
