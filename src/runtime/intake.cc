// Columns -> tokens -> rows that can be computed, or the error of a row that cannot.
#include "runtime/intake.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <limits>
#include <new>
#include <string>

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// How many texts are tokenized before their rows are added; limits the memory that exists twice.
constexpr int64_t tokenize_block = 1024;

struct Encoded {
    std::vector<int32_t> tokens;
    std::vector<SharedPicture> pictures; // held until the row holds them
    Status status;
};

// Row i's text or conversation. pictures null: a text that has none.
Status encode_row(const RowReader &reader, std::string_view text, const PictureColumns *pictures,
                  int64_t i, const batchllm_params &params, const std::tm &now, Encoded *encoded) {
    if (pictures == nullptr) return reader.encode_text(text, params, &encoded->tokens);
    std::vector<PictureInput> inputs;
    pictures->of_row(i, &inputs);
    if (!pictures->chat)
        return reader.encode_text(text, inputs, params, &encoded->tokens, &encoded->pictures);
    return reader.encode_chat(text, inputs, params, now, &encoded->tokens, &encoded->pictures);
}

std::string_view view(std::span<const char> text) { return {text.data(), text.size()}; }

// Calls encode(i, &encoded) for each i of a block, on all threads. If memory runs out, or a file of
// pictures cannot be read through a fault of the disk, the whole call fails, because no row is to blame.
template <typename Encode>
Status encode_block(ThreadPool *pool, int64_t count, std::vector<Encoded> *block, Encode encode) {
    if (static_cast<int64_t>(block->size()) < count) block->resize(static_cast<size_t>(count));
    pool->parallel_for(count, [&](int64_t i, int32_t) {
        Encoded &encoded = (*block)[static_cast<size_t>(i)];
        encoded.tokens.clear();
        encoded.pictures.clear();
        encoded.status = encode(i, &encoded);
        if (encoded.status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
    });
    for (int64_t i = 0; i < count; ++i) {
        const Status &status = (*block)[static_cast<size_t>(i)].status;
        if (is_failure_of_process(status.code())) return status;
    }
    return {};
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

Intake::Intake(RowReader *reader, const RunLimits &limits, Answers *answers)
    : reader_(*reader), limits_(limits), answers_(*answers),
      checks_(reader->vocabulary(), reader->max_request_tokens(), reader->scores_tokens()) {}

// ---- Sampling parameters of a column's rows ----

// Reads each struct once. A parameter that is out of range is the row's error.
class Intake::RowParams {
  public:
    RowParams(const ParamsColumn &column, RowReader *reader) : column_(column), reader_(reader) {}

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
    RowReader *reader_;
    std::shared_ptr<const PreparedParams> current_;
    Status status_;
};

void Intake::add_sampled(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                         const RowParams &params, int64_t tokens_to_come) {
    Status status = params.status();
    if (status.ok() && !embedded(params.get()->task)) status = reader_.check(*params.get());
    std::shared_ptr<const RowPictures> pictures;
    if (status.ok()) {
        auto found = pictures_of(prompt);
        status = found.status();
        if (found.ok()) pictures = std::move(found).value();
    }
    if (status.ok()) status = checks_.check(prompt, pictures.get(), *params.get());
    const int64_t length = static_cast<int64_t>(prompt.size());
    if (!status.ok()) {
        addition->add_bad(tag, length, params.samples(), status);
        return;
    }
    addition->add(tag, prompt, params.get(), nullptr, std::move(pictures),
                  most_generated(*params.get(), length, limits_), tokens_to_come);
}

Result<std::shared_ptr<const RowPictures>>
Intake::pictures_of(std::span<const int32_t> prompt) const {
    if (reader_.pictures() == nullptr) return std::shared_ptr<const RowPictures>();
    ASSIGN_OR_RETURN(std::shared_ptr<const RowPictures> found, reader_.pictures()->find(prompt));
    if (found != nullptr) RETURN_IF_ERROR(reader_.no_pictures());
    return found;
}

void Intake::add_scored(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                        std::unique_ptr<ScoreSpec> score, const ScoredParams &params,
                        int64_t tokens_to_come) {
    const auto pictures = pictures_of(prompt);
    Status status = params.status();
    if (status.ok()) status = pictures.status();
    if (status.ok()) status = checks_.check(prompt, pictures->get(), *score);
    if (!status.ok()) {
        addition->add_bad(tag, static_cast<int64_t>(prompt.size()), 1, status);
        return;
    }
    addition->add(tag, prompt, *params, std::move(score), *pictures, 0, tokens_to_come);
}

void Intake::commit(Addition *addition) {
    addition->commit();
    cancels_.set_next_id(pending_.rows.next_id());
}

// ---- The columns ----

Status Intake::add_tokens(const Column<int32_t> &prompts, const uint64_t *tags,
                          const ParamsColumn &params) {
    Addition addition(&pending_, &answers_);
    RowParams row_params(params, &reader_);
    for (int64_t i = 0; i < prompts.n; ++i) {
        RETURN_IF_ERROR(row_params.move_to(i));
        add_sampled(&addition, addition.next_tag(tags), prompts[i], row_params,
                    tokens_to_come(prompts, i));
    }
    commit(&addition);
    return {};
}

// Adds n rows whose tokens come from encode(i, its parameters, &encoded), on all threads.
template <typename Encode> Status Intake::add_encoded(int64_t n, const uint64_t *tags,
                                                      const ParamsColumn &params, Encode encode) {
    const Clock::time_point start = Clock::now();
    Addition addition(&pending_, &answers_);
    RowParams row_params(params, &reader_);
    std::vector<Encoded> block;
    for (int64_t begin = 0; begin < n; begin += tokenize_block) {
        const int64_t count = std::min(tokenize_block, n - begin);
        RETURN_IF_ERROR(
            encode_block(&reader_.pool(), count, &block, [&](int64_t i, Encoded *encoded) {
                ASSIGN_OR_RETURN(const batchllm_params read, params.at(begin + i));
                return encode(begin + i, read, encoded);
            }));
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
    tokenize_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

Status Intake::add_text(const Column<char> &prompts, const uint64_t *tags,
                        const ParamsColumn &params) {
    RETURN_IF_ERROR(reader_.need_tokenizer());
    return add_encoded(prompts.n, tags, params,
                       [&](int64_t i, const batchllm_params &read, Encoded *encoded) {
                           return reader_.encode_text(view(prompts[i]), read, &encoded->tokens);
                       });
}

Status Intake::add_chat(const Column<char> &conversations, const uint64_t *tags,
                        const ParamsColumn &params) {
    PictureColumns none;
    none.chat = true;
    return add_pictures(conversations, none, tags, params);
}

void PictureColumns::of_row(int64_t i, std::vector<PictureInput> *inputs) const {
    inputs->clear();
    if (rows == nullptr) return;
    for (int64_t p = rows[i]; p < rows[i + 1]; ++p) {
        inputs->push_back({kinds != nullptr && kinds[p] == BATCHLLM_PICTURE_NAME, items[p]});
    }
}

Status Intake::add_pictures(const Column<char> &texts, const PictureColumns &pictures,
                            const uint64_t *tags, const ParamsColumn &params) {
    RETURN_IF_ERROR(reader_.need_tokenizer());
    const std::tm now = local_time_now();
    return add_encoded(
        texts.n, tags, params, [&](int64_t i, const batchllm_params &read, Encoded *encoded) {
            return encode_row(reader_, view(texts[i]), &pictures, i, read, now, encoded);
        });
}

Status Intake::add_table(const Table &table, const PictureColumns &pictures, const uint64_t *tags,
                         const ParamsColumn &params) {
    // Rows without a prompt, such as nulls, get their answer even without a tokenizer.
    const bool all_bad = std::all_of(table.statuses.begin(), table.statuses.end(),
                                     [](int32_t status) { return status != BATCHLLM_OK; });
    if (!all_bad) RETURN_IF_ERROR(reader_.need_tokenizer());
    const std::tm now = local_time_now();
    PictureColumns given = pictures;
    given.chat = table.chat;
    const PictureColumns *own = table.chat || pictures.rows != nullptr ? &given : nullptr;
    return add_encoded(table.rows(), tags, params,
                       [&](int64_t i, const batchllm_params &read, Encoded *encoded) -> Status {
                           RETURN_IF_ERROR(table.status(i));
                           return encode_row(reader_, table.prompt(i), own, i, read, now, encoded);
                       });
}

Status Intake::add_scores(const Column<int32_t> &prompts,
                          const ContinuationColumns<int32_t> &scored, const uint64_t *tags,
                          const batchllm_params &params) {
    Addition addition(&pending_, &answers_);
    const ScoredParams read = reader_.read_scored(params);
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
        add_scored(&addition, addition.next_tag(tags), prompts[i], std::move(score), read,
                   tokens_to_come(prompts, i));
    }
    commit(&addition);
    return {};
}

Status Intake::add_score_text(const Column<char> &prompts, const PictureColumns *pictures,
                              const ContinuationColumns<char> &scored, const uint64_t *tags,
                              const batchllm_params &params) {
    RETURN_IF_ERROR(reader_.need_tokenizer());
    const Clock::time_point start = Clock::now();
    const std::tm now = local_time_now();
    const EncodeOptions continuation_options{false, false};
    const ScoredParams read = reader_.read_scored(params);
    Addition addition(&pending_, &answers_);
    std::vector<Encoded> block;
    std::vector<std::unique_ptr<ScoreSpec>> scores(
        static_cast<size_t>(std::min(tokenize_block, prompts.n)));
    for (int64_t begin = 0; begin < prompts.n; begin += tokenize_block) {
        const int64_t count = std::min(tokenize_block, prompts.n - begin);
        const auto encode = [&](int64_t i, Encoded *encoded) -> Status {
            RETURN_IF_ERROR(check_size(scored, begin + i));
            auto score = std::make_unique<ScoreSpec>();
            std::vector<int32_t> continuation;
            for (int64_t c = scored.rows[begin + i]; c < scored.rows[begin + i + 1]; ++c) {
                continuation.clear();
                Status status = reader_.tokenizer()->encode(view(scored.continuations[c]),
                                                            continuation_options, &continuation);
                if (!status.ok()) {
                    return std::move(status).within("continuation " +
                                                    std::to_string(c - scored.rows[begin + i]));
                }
                score->append(continuation);
            }
            scores[static_cast<size_t>(i)] = std::move(score);
            return encode_row(reader_, view(prompts[begin + i]), pictures, begin + i, params, now,
                              encoded);
        };
        RETURN_IF_ERROR(encode_block(&reader_.pool(), count, &block, encode));
        int64_t left = total_tokens(block, count);
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t tag = addition.next_tag(tags);
            const Encoded &encoded = block[static_cast<size_t>(i)];
            if (!encoded.status.ok()) {
                addition.add_bad(tag, 0, 1, encoded.status);
            } else {
                add_scored(&addition, tag, encoded.tokens,
                           std::move(scores[static_cast<size_t>(i)]), read, left);
            }
            left -= static_cast<int64_t>(encoded.tokens.size());
        }
    }
    commit(&addition);
    tokenize_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

// ---- Rows that wait ----

void Intake::clear_unplanned() {
    pending_.unplanned.clear();
    pending_.tokens = {};
}

void Intake::unplan_all() {
    std::vector<int64_t> waiting, answered;
    RowTokens tokens;
    pending_.rows.for_each([&](int64_t id, const Row &row) {
        if (row.state == RowState::answered) answered.push_back(id);
        if (row.state != RowState::waiting) return;
        waiting.push_back(id);
        tokens.prompt += row.length;
        tokens.generated += most_generated(row, limits_);
    });
    for (const int64_t id : answered) pending_.rows.release(id);
    pending_.unplanned = std::move(waiting);
    pending_.tokens = tokens;
}

} // namespace batchllm
