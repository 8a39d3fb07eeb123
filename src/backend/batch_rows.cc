#include "backend/batch_rows.h"

#include <algorithm>

#include "backend/check_pages.h"
#include "backend/check_states.h"

namespace batchllm {
namespace {

template <typename... Arguments>
Status malformed(const BackendInfo &info, const char *format, Arguments... arguments) {
    return error(BATCHLLM_ERROR_INTERNAL, (info.name + " backend: " + format).c_str(),
                 arguments...);
}

Status check_nodes(const TokenBatch &batch, const BackendInfo &info) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    int64_t covered = 0;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.parent < -1 || node.parent >= static_cast<int32_t>(n) || node.length < 0 ||
            node.token_count < 0 || node.token_count > node.length || node.token_begin < 0 ||
            int64_t{node.token_begin} + node.token_count > tokens) {
            return malformed(info, "context node %zu is malformed", n);
        }
        covered += node.token_count;
        for (int32_t i = 0; i < node.token_count; ++i) {
            const auto t = static_cast<size_t>(node.token_begin + i);
            if (batch.positions[t] != node.start + node.length - node.token_count + i) {
                return malformed(info, "token %zu has position %d", t, batch.positions[t]);
            }
        }
    }
    if (covered == tokens) return {};
    return malformed(info, "%lld tokens, nodes hold %lld", static_cast<long long>(tokens),
                     static_cast<long long>(covered));
}

// A slot's picture has as many tokens as its backend knows.
bool well_formed(const TokenBatch &batch, const BackendInfo &info) {
    int64_t after = 0; // the picture before
    for (const PictureTokens &part : batch.pictures) {
        if (part.token_begin < after || part.token_count < 1 || part.first < 0 ||
            int64_t{part.first} + part.token_count > info.picture_tokens || part.slot < 0 ||
            part.slot >= info.picture_slots) {
            return false;
        }
        after = int64_t{part.token_begin} + part.token_count;
    }
    return after <= static_cast<int64_t>(batch.tokens.size()) &&
           (batch.rope_positions.empty() || batch.rope_positions.size() == batch.tokens.size());
}

bool well_formed(const OutputRow &row, int64_t tokens, int32_t vocabulary) {
    if (row.token < 0 || row.count < 1 || int64_t{row.token} + row.count > tokens) return false;
    if (row.count > 1 && !embedded(row.task)) return false;
    if ((row.task == Task::score) == row.targets.empty()) return false;
    return std::all_of(row.targets.begin(), row.targets.end(),
                       [&](int32_t target) { return target >= 0 && target < vocabulary; });
}

} // namespace

Status check_batch(const TokenBatch &batch, const BackendInfo &info,
                   const std::function<bool(int32_t row)> &feedable) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    if (tokens > info.step_tokens || batch.positions.size() != batch.tokens.size()) {
        return malformed(info, "%lld tokens, %zu positions, at most %lld",
                         static_cast<long long>(tokens), batch.positions.size(),
                         static_cast<long long>(info.step_tokens));
    }
    RETURN_IF_ERROR(check_nodes(batch, info));
    RETURN_IF_ERROR(check_pages(batch, info));
    RETURN_IF_ERROR(check_states(batch, info));
    for (const int32_t token : batch.tokens) {
        if (token >= info.vocabulary ||
            (token < 0 && (feedable == nullptr || !feedable(-1 - token)))) {
            return malformed(info, "no such token: %d", token);
        }
    }
    if (!well_formed(batch, info))
        return malformed(info, "%zu malformed pictures", batch.pictures.size());
    for (const OutputRow &row : batch.outputs) {
        if (!well_formed(row, tokens, info.vocabulary)) {
            return malformed(info, "the row of token %d is malformed", row.token);
        }
    }
    return {};
}

void BatchRows::read(const TokenBatch &batch) {
    by_token_.clear();
    tokens_.clear();
    begin_.clear();
    embedded_.clear();
    target_begin_.clear();
    targets_ = 0;
    for (size_t i = 0; i < batch.outputs.size(); ++i) {
        const OutputRow &row = batch.outputs[i];
        const auto number = static_cast<int32_t>(i);
        target_begin_.push_back(targets_);
        targets_ += static_cast<int64_t>(row.targets.size());
        (embedded(row.task) ? embedded_ : by_token_).push_back(number);
        for (int32_t t = 0; t < row.count; ++t) tokens_.push_back(row.token + t);
    }
    const auto token_of = [&](int32_t number) {
        return batch.outputs[static_cast<size_t>(number)].token;
    };
    std::stable_sort(by_token_.begin(), by_token_.end(),
                     [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
    std::sort(tokens_.begin(), tokens_.end());
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end()), tokens_.end());
    size_t row = 0;
    for (const int32_t token : tokens_) {
        begin_.push_back(static_cast<int32_t>(row));
        while (row < by_token_.size() && token_of(by_token_[row]) == token) ++row;
    }
    begin_.push_back(static_cast<int32_t>(row));
}

int64_t BatchRows::place(int32_t token) const {
    return std::lower_bound(tokens_.begin(), tokens_.end(), token) - tokens_.begin();
}

} // namespace batchllm
