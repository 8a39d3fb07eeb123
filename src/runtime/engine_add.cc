// Adding rows: columns -> tokens -> rows that can be computed, or the error of a row that cannot.
#include <algorithm>
#include <cinttypes>
#include <limits>
#include <new>

#include "runtime/addition.h"
#include "runtime/engine.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// How many texts are tokenized before their rows are added; limits the memory that exists twice.
constexpr int64_t tokenize_block = 1024;

struct Encoded {
    std::vector<int32_t> tokens;
    Status status;
};

// Calls encode(i, &tokens) for each i of a block, on all threads. If memory runs out, the whole
// call fails, because no row is to blame.
template <typename Encode>
void encode_block(ThreadPool *pool, int64_t count, std::vector<Encoded> *block, Encode encode) {
    if (static_cast<int64_t>(block->size()) < count) block->resize(static_cast<size_t>(count));
    pool->parallel_for(count, [&](int64_t i, int32_t) {
        Encoded &encoded = (*block)[static_cast<size_t>(i)];
        encoded.tokens.clear();
        encoded.status = encode(i, &encoded.tokens);
        if (encoded.status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
    });
}

// The tokens of row i and the rows after it, up to the size of one segment of the row store.
int64_t tokens_to_come(const Column<int32_t> &prompts, int64_t i) {
    return prompts.offsets[std::min(prompts.n, i + RowStore::segment_rows)] - prompts.offsets[i];
}

// Checks that a ScoreSpec can count a row's continuations, whether in tokens or bytes.
template <typename T> Status check_size(const ContinuationColumns<T> &scored, int64_t row) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max() - 1;
    const int64_t begin = scored.rows[row];
    const int64_t end = scored.rows[row + 1];
    const int64_t size = scored.continuations.offsets[end] - scored.continuations.offsets[begin];
    if (end - begin <= most && size <= most) return {};
    return error(BATCHLLM_ERROR_ROW_TOO_LONG,
                 "%" PRId64 " continuations of %" PRId64 " in all are more than a row may have",
                 end - begin, size);
}

int64_t total_tokens(const std::vector<Encoded> &block, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; ++i) {
        tokens += static_cast<int64_t>(block[static_cast<size_t>(i)].tokens.size());
    }
    return tokens;
}

} // namespace

ThreadPool &Engine::pool() {
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(options_.threads);
    return *pool_;
}

Status Engine::need_tokenizer() const {
    if (tokenizer_ != nullptr) return {};
    return error(BATCHLLM_ERROR_STATE,
                 options_.model_dir.empty()
                     ? "the engine has no tokenizer: it was made without model_dir%s; give it a "
                       "model, or rows of token ids"
                     : "the engine has no tokenizer: no tokenizer.json in %s; rows of token ids "
                       "need none",
                 options_.model_dir.c_str());
}

// ---- Checks of one row ----

Status Engine::check_tokens(const char *what, std::span<const int32_t> tokens) const {
    const int32_t vocabulary = lanes_.front()->info().vocabulary;
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] >= 0 && tokens[i] < vocabulary) continue;
        return error(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN,
                     "%s token %zu is %d, outside the vocabulary of %d", what, i, tokens[i],
                     vocabulary);
    }
    return {};
}

// generated: how many tokens after the prompt are stored or sampled.
Status Engine::check_prompt(std::span<const int32_t> prompt, int64_t generated) const {
    if (prompt.empty()) return error(BATCHLLM_ERROR_ROW_EMPTY, "the prompt has no tokens");
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (length + generated > max_request_tokens_) {
        return error(BATCHLLM_ERROR_ROW_TOO_LONG,
                     "%" PRId64 " prompt tokens and %" PRId64
                     " more exceed the longest request, %" PRId64,
                     length, generated, max_request_tokens_);
    }
    return check_tokens("prompt", prompt);
}

// Any of the devices may get the row. The last token of a request is not stored, unless all_stored.
Status Engine::check_pool(const char *what, int64_t tokens, bool all_stored) const {
    for (const auto &lane : lanes_) {
        if (lane->scheduler().fits(all_stored ? tokens + 1 : tokens)) continue;
        return error(BATCHLLM_ERROR_ROW_TOO_LARGE,
                     "%" PRId64 " tokens of prompt and %s do not fit the pool of %" PRId64
                     " KV pages of %d tokens",
                     tokens, what, lane->info().pages, lane->info().page_tokens);
    }
    return {};
}

// Checks that do not depend on the prompt.
Status Engine::check_prepared(const PreparedParams &params) const {
    if (!params.stop_strings.empty() && tokenizer_ == nullptr) {
        return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                     "stop_strings need a tokenizer, and the engine has none");
    }
    return check_constraint(params);
}

Status Engine::check_params(const batchllm_params &params) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const PreparedParams> read, params_->read(params));
    return check_prepared(*read);
}

Status Engine::check_row(std::span<const int32_t> prompt, const PreparedParams &params) const {
    if (embedded(params.task)) {
        RETURN_IF_ERROR(check_prompt(prompt, 0));
        const bool first = params.task == Task::embed && params.form.pooling == Pooling::first;
        return check_pool("nothing more", first ? 1 : static_cast<int64_t>(prompt.size()), true);
    }
    RETURN_IF_ERROR(check_prepared(params));
    RETURN_IF_ERROR(check_prompt(prompt, 1));
    const int64_t length = static_cast<int64_t>(prompt.size());
    const int64_t tokens = length + clipped_max_tokens(params, length, max_request_tokens_);
    return check_pool("output", tokens, false);
}

Status Engine::check_constraint(const SamplingParams &params) const {
    if (params.constraint == nullptr) return {};
    const std::lock_guard lock(vocabulary_mutex_);
    if (&params.constraint->vocabulary() == vocabulary_.get()) return {};
    return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                 "constraint was made for another engine: its tokens are another model's");
}

Status Engine::check_scored(std::span<const int32_t> prompt, const ScoreSpec &score) const {
    if (model_ != nullptr && !model_->head) {
        return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                     "the model has no lm_head: it has no scores of tokens");
    }
    if (score.count() == 0) {
        return error(BATCHLLM_ERROR_ROW_EMPTY, "the row has no continuations to score");
    }
    for (int32_t c = 0; c < score.count(); ++c) {
        if (score.length(c) == 0) {
            return error(BATCHLLM_ERROR_ROW_EMPTY, "continuation %d has no tokens", c);
        }
        RETURN_IF_ERROR(check_tokens("continuation", score.continuation(c)));
    }
    RETURN_IF_ERROR(check_prompt(prompt, score.longest()));
    const int64_t tokens = static_cast<int64_t>(prompt.size()) + score.longest();
    return check_pool("continuation", tokens, false);
}

// ---- Sampling parameters of a column's rows ----

// Reads each struct once. A parameter that is out of range is the row's error.
class Engine::RowParams {
  public:
    RowParams(const ParamsColumn &column, ParamsReader *reader)
        : column_(column), reader_(reader) {}

    // Fails only if the column cannot be read.
    Status move_to(int64_t i) {
        if (column_.same_as_before(i)) return {};
        ASSIGN_OR_RETURN(const batchllm_params params, column_.at(i));
        Result<std::shared_ptr<const PreparedParams>> read = reader_->read(params);
        status_ = read.status();
        current_ = read.ok() ? *read : nullptr;
        return {};
    }
    const Status &status() const { return status_; }
    const std::shared_ptr<const PreparedParams> &get() const { return current_; }
    int32_t samples() const { return current_ == nullptr ? 1 : current_->samples; }

  private:
    const ParamsColumn &column_;
    ParamsReader *reader_;
    std::shared_ptr<const PreparedParams> current_;
    Status status_;
};

void Engine::add_sampled(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                         const RowParams &params, int64_t tokens_to_come) {
    const Status status = params.status().ok() ? check_row(prompt, *params.get()) : params.status();
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (!status.ok()) {
        addition->add_bad(tag, length, params.samples(), status);
        return;
    }
    addition->add(tag, prompt, params.get(), nullptr, generation_of(*params.get(), length),
                  tokens_to_come);
}

void Engine::add_scored(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                        std::unique_ptr<ScoreSpec> score, int64_t tokens_to_come) {
    const Status status = check_scored(prompt, *score);
    if (!status.ok()) {
        addition->add_bad(tag, static_cast<int64_t>(prompt.size()), 1, status);
        return;
    }
    addition->add(tag, prompt, score_params_, std::move(score), 0, tokens_to_come);
}

void Engine::commit(Addition *addition) {
    addition->commit();
    next_id_.store(intake_.rows.next_id(), std::memory_order_relaxed);
}

// ---- The columns ----

Status Engine::add_tokens(const Column<int32_t> &prompts, const uint64_t *tags,
                          const ParamsColumn &params) {
    RETURN_IF_ERROR(failed_);
    Addition addition(&intake_);
    RowParams row_params(params, &*params_);
    for (int64_t i = 0; i < prompts.n; ++i) {
        RETURN_IF_ERROR(row_params.move_to(i));
        add_sampled(&addition, addition.next_tag(tags), prompts[i], row_params,
                    tokens_to_come(prompts, i));
    }
    commit(&addition);
    return {};
}

// Adds n rows whose tokens come from encode(i, its parameters, &tokens), on all threads.
template <typename Encode> Status Engine::add_encoded(int64_t n, const uint64_t *tags,
                                                      const ParamsColumn &params, Encode encode) {
    RETURN_IF_ERROR(failed_);
    const Clock::time_point start = Clock::now();
    Addition addition(&intake_);
    RowParams row_params(params, &*params_);
    std::vector<Encoded> block;
    for (int64_t begin = 0; begin < n; begin += tokenize_block) {
        const int64_t count = std::min(tokenize_block, n - begin);
        encode_block(&pool(), count, &block, [&](int64_t i, std::vector<int32_t> *tokens) {
            ASSIGN_OR_RETURN(const batchllm_params read, params.at(begin + i));
            return encode(begin + i, read, tokens);
        });
        int64_t left = total_tokens(block, count);
        for (int64_t i = 0; i < count; ++i) {
            RETURN_IF_ERROR(row_params.move_to(begin + i));
            const uint64_t tag = addition.next_tag(tags);
            const Encoded &encoded = block[static_cast<size_t>(i)];
            if (row_params.status().ok() && !encoded.status.ok()) {
                addition.add_bad(tag, 0, row_params.samples(), encoded.status);
            } else {
                add_sampled(&addition, tag, encoded.tokens, row_params, left);
            }
            left -= static_cast<int64_t>(encoded.tokens.size());
        }
    }
    commit(&addition);
    stats_.tokenize_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

Status Engine::encode_text(std::string_view text, const batchllm_params &params,
                           std::vector<int32_t> *tokens) const {
    return tokenizer_->encode(text, {params.add_special != 0, params.parse_special != 0}, tokens);
}

Status Engine::encode_chat(std::string_view conversation, const batchllm_params &params,
                           const std::tm &now, std::vector<int32_t> *tokens) const {
    std::string text;
    RETURN_IF_ERROR(chat_->render(
        conversation, {true, params.parse_special == 0 ? tokenizer_.get() : nullptr, now}, &text));
    return tokenizer_->encode(text, chat_encode_options, tokens);
}

Status Engine::add_text(const Column<char> &prompts, const uint64_t *tags,
                        const ParamsColumn &params) {
    RETURN_IF_ERROR(need_tokenizer());
    return add_encoded(prompts.n, tags, params,
                       [&](int64_t i, const batchllm_params &read, std::vector<int32_t> *tokens) {
                           const std::span<const char> text = prompts[i];
                           return encode_text({text.data(), text.size()}, read, tokens);
                       });
}

Status Engine::add_chat(const Column<char> &conversations, const uint64_t *tags,
                        const ParamsColumn &params) {
    RETURN_IF_ERROR(need_tokenizer());
    const std::tm now = local_time_now();
    return add_encoded(
        conversations.n, tags, params,
        [&](int64_t i, const batchllm_params &read, std::vector<int32_t> *tokens) {
            const std::span<const char> conversation = conversations[i];
            return encode_chat({conversation.data(), conversation.size()}, read, now, tokens);
        });
}

Status Engine::add_table(const Table &table, const uint64_t *tags, const ParamsColumn &params) {
    // Rows without a prompt, such as nulls, get their answer even without a tokenizer.
    const bool all_bad = std::all_of(table.statuses.begin(), table.statuses.end(),
                                     [](int32_t status) { return status != BATCHLLM_OK; });
    if (!all_bad) RETURN_IF_ERROR(need_tokenizer());
    const std::tm now = local_time_now();
    return add_encoded(
        table.rows(), tags, params,
        [&](int64_t i, const batchllm_params &read, std::vector<int32_t> *tokens) -> Status {
            RETURN_IF_ERROR(table.status(i));
            return table.chat ? encode_chat(table.prompt(i), read, now, tokens)
                              : encode_text(table.prompt(i), read, tokens);
        });
}

Status Engine::add_scores(const Column<int32_t> &prompts,
                          const ContinuationColumns<int32_t> &scored, const uint64_t *tags) {
    RETURN_IF_ERROR(failed_);
    Addition addition(&intake_);
    for (int64_t i = 0; i < prompts.n; ++i) {
        const Status size = check_size(scored, i);
        if (!size.ok()) {
            addition.add_bad(addition.next_tag(tags), static_cast<int64_t>(prompts[i].size()), 1,
                             size);
            continue;
        }
        auto score = std::make_unique<ScoreSpec>();
        for (int64_t c = scored.rows[i]; c < scored.rows[i + 1]; ++c) {
            const std::span<const int32_t> continuation = scored.continuations[c];
            score->append(continuation);
        }
        add_scored(&addition, addition.next_tag(tags), prompts[i], std::move(score),
                   tokens_to_come(prompts, i));
    }
    commit(&addition);
    return {};
}

Status Engine::add_score_text(const Column<char> &prompts, const ContinuationColumns<char> &scored,
                              const uint64_t *tags, const batchllm_params &params) {
    RETURN_IF_ERROR(failed_);
    RETURN_IF_ERROR(need_tokenizer());
    const Clock::time_point start = Clock::now();
    const EncodeOptions prompt_options{params.add_special != 0, params.parse_special != 0};
    const EncodeOptions continuation_options{false, false};
    Addition addition(&intake_);
    std::vector<Encoded> block;
    std::vector<std::unique_ptr<ScoreSpec>> scores(
        static_cast<size_t>(std::min(tokenize_block, prompts.n)));
    for (int64_t begin = 0; begin < prompts.n; begin += tokenize_block) {
        const int64_t count = std::min(tokenize_block, prompts.n - begin);
        encode_block(&pool(), count, &block, [&](int64_t i, std::vector<int32_t> *tokens) {
            RETURN_IF_ERROR(check_size(scored, begin + i));
            auto score = std::make_unique<ScoreSpec>();
            std::vector<int32_t> continuation;
            for (int64_t c = scored.rows[begin + i]; c < scored.rows[begin + i + 1]; ++c) {
                const std::span<const char> text = scored.continuations[c];
                continuation.clear();
                Status status = tokenizer_->encode({text.data(), text.size()}, continuation_options,
                                                   &continuation);
                if (!status.ok()) {
                    return std::move(status).within("continuation " +
                                                    std::to_string(c - scored.rows[begin + i]));
                }
                score->append(continuation);
            }
            scores[static_cast<size_t>(i)] = std::move(score);
            const std::span<const char> text = prompts[begin + i];
            return tokenizer_->encode({text.data(), text.size()}, prompt_options, tokens);
        });
        int64_t left = total_tokens(block, count);
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t tag = addition.next_tag(tags);
            const Encoded &encoded = block[static_cast<size_t>(i)];
            if (!encoded.status.ok()) {
                addition.add_bad(tag, 0, 1, encoded.status);
            } else {
                add_scored(&addition, tag, encoded.tokens,
                           std::move(scores[static_cast<size_t>(i)]), left);
            }
            left -= static_cast<int64_t>(encoded.tokens.size());
        }
    }
    commit(&addition);
    stats_.tokenize_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

} // namespace batchllm
