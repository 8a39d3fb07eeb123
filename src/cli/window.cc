#include "cli/window.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/file.h"
#include "cli/plan_text.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {
namespace {

// How much is read and tokenized at a time: enough for every core, but small compared with a
// window.
constexpr size_t chunk_bytes = size_t{4} << 20;
constexpr size_t chunk_rows = 16384;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The texts of several rows as one column.
struct TextColumn {
    std::string text;
    std::vector<int64_t> offsets = {0};

    void add(std::string_view item) {
        text += item;
        offsets.push_back(static_cast<int64_t>(text.size()));
    }
    int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

std::vector<int32_t> item_tokens(const batchllm_column &column, int64_t i) {
    return {column.tokens + column.offsets[i], column.tokens + column.offsets[i + 1]};
}

RowError tokenize_error(int32_t status) {
    return {row_error_code(status), status == BATCHLLM_ERROR_ROW_INVALID_UTF8
                                        ? "the text is not valid UTF-8"
                                        : "the text cannot be tokenized"};
}

} // namespace

WindowBuilder::WindowBuilder(LineReader *input, RowReaderOptions row_options, WindowOptions options,
                             const batchllm_tokenizer *tokenizer, const DoneLines *done,
                             const std::atomic<bool> *stop)
    : input_(input), rows_(row_options), table_(row_options.table), options_(std::move(options)),
      tokenizer_(tokenizer), done_(done), stop_(stop) {}

// Reads a chunk of rows into chunk_; rows that cannot be read go to failed_.
Status WindowBuilder::read_rows() {
    const bool together = table_ != nullptr && table_->reorders();
    const size_t most_bytes = together ? table_bytes : chunk_bytes;
    const size_t most_rows = together ? table_rows : chunk_rows;
    size_t bytes = 0;
    std::vector<std::pair<InputRow, RowError>> read;
    for (size_t rows = 0; bytes < most_bytes && rows < most_rows; ++rows) {
        Line line;
        const int64_t begin = input_->bytes_read();
        ASSIGN_OR_RETURN(const bool more, input_->next(&line));
        if (!more) {
            input_ended_ = true;
            break;
        }
        if (line.blank()) continue;
        const bool done = done_ != nullptr && done_->contains(line.number);
        if (done && !together) {
            if (table_ != nullptr) table_->pass_over_line();
            continue;
        }
        bytes += line.text.size() + 64 + (table_ != nullptr ? table_->template_bytes() : 0);
        InputRow row;
        RowError error;
        if (line.too_long) {
            row.line = line.number;
            row.record.id = "null";
            error = {"ROW_LINE_TOO_LONG", "the line is longer than --max-line-bytes"};
        } else {
            error = rows_.read(line.number, line.text, &row);
        }
        row.input_begin = begin;
        row.done = done;
        read.emplace_back(std::move(row), std::move(error));
    }
    rows_.load_adapters(options_.threads);
    for (auto &[row, error] : read) {
        ASSIGN_OR_RETURN(RowError of_adapter, rows_.check_adapter(row));
        if (!of_adapter.code.empty()) error = std::move(of_adapter);
        if (error.code.empty()) {
            chunk_.push_back(std::move(row));
        } else if (!row.done) {
            failed_.push_back({row.line, std::move(row.record), std::move(error)});
        }
    }
    return {};
}

// Makes the prompts of rows that belong to a table.
Status WindowBuilder::render_rows() {
    if (table_ == nullptr) return {};
    std::vector<RowError> errors;
    RETURN_IF_ERROR(table_->render(&chunk_, &errors, stop_));
    std::vector<InputRow> rendered;
    for (size_t i = 0; i < chunk_.size(); ++i) {
        InputRow &row = chunk_[i];
        if (row.done) continue;
        if (errors[i].code.empty()) {
            rendered.push_back(std::move(row));
        } else {
            failed_.push_back({row.line, std::move(row.record), std::move(errors[i])});
        }
    }
    chunk_ = std::move(rendered);
    return {};
}

// Turns the conversations among the rows into the text that the model sees.
Status WindowBuilder::apply_chat_template(bool parse_special, std::vector<InputRow> *rows) {
    TextColumn conversations;
    std::vector<InputRow *> wanted;
    for (InputRow &row : *rows) {
        if (!row.is_text || !row.is_chat || row.line == 0 ||
            row.params->parse_special != parse_special)
            continue;
        conversations.add(row.text);
        row.text = std::string();
        wanted.push_back(&row);
    }
    if (wanted.empty()) return {};
    batchllm_column *column = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_apply_chat_template(
        tokenizer_, conversations.count(), conversations.text.data(), conversations.offsets.data(),
        parse_special ? 0u : BATCHLLM_CHAT_REFUSE_SPECIAL, options_.threads, &column)));
    const ColumnHandle owner(column);
    for (int64_t i = 0; i < conversations.count(); ++i) {
        InputRow &row = *wanted[static_cast<size_t>(i)];
        RowError error;
        if (column->statuses[i] != BATCHLLM_OK) {
            error = {row_error_code(column->statuses[i]),
                     std::string(column->errors + column->error_offsets[i],
                                 column->errors + column->error_offsets[i + 1])};
        } else {
            row.text.assign(column->text + column->offsets[i],
                            column->text + column->offsets[i + 1]);
            continue;
        }
        const bool no_template = error.message.starts_with("the model has no chat template");
        failed_.push_back({row.line, std::move(row.record), std::move(error), no_template});
        row.line = 0; // taken out
    }
    return {};
}

// Encodes the rows that have pictures, or may: conversations, if the model reads pictures. flags: theirs.
Status WindowBuilder::encode_pictures(bool chat, uint32_t flags, std::vector<InputRow> *rows) {
    TextColumn texts, images;
    std::vector<int64_t> of_rows = {0};
    std::vector<InputRow *> wanted;
    for (InputRow &row : *rows) {
        const uint32_t own = (row.params->add_special && !chat ? BATCHLLM_ENCODE_ADD_SPECIAL : 0u) |
                             (row.params->parse_special ? BATCHLLM_ENCODE_PARSE_SPECIAL : 0u);
        if (row.line == 0 || !row.is_text || row.is_chat != chat || own != flags) continue;
        if (row.images.empty() && !chat) continue;
        texts.add(row.text);
        row.text = std::string();
        for (const std::string &image : row.images) images.add(image);
        row.images.clear();
        of_rows.push_back(images.count());
        wanted.push_back(&row);
    }
    if (wanted.empty()) return {};
    const std::vector<uint8_t> kinds(static_cast<size_t>(images.count()), BATCHLLM_PICTURE_NAME);
    batchllm_picture_column given{};
    given.struct_size = sizeof given;
    given.chat = chat ? 1 : 0;
    given.rows = of_rows.data();
    given.bytes = reinterpret_cast<const uint8_t *>(images.text.data());
    given.offsets = images.offsets.data();
    given.kinds = kinds.data();
    batchllm_column *made = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_pictures_encode(options_.pictures, texts.count(),
                                                         texts.text.data(), texts.offsets.data(),
                                                         &given, flags, options_.threads, &made)));
    const std::shared_ptr<const batchllm_column> column(made, batchllm_column_free);
    constexpr int32_t first_picture = 1 << 30;
    for (int64_t i = 0; i < texts.count(); ++i) {
        InputRow &row = *wanted[static_cast<size_t>(i)];
        row.is_text = false; // it has its tokens
        if (column->statuses[i] == BATCHLLM_OK) {
            row.tokens = item_tokens(*column, i);
            const bool any = std::any_of(row.tokens.begin(), row.tokens.end(),
                                         [](int32_t id) { return id >= first_picture; });
            if (any) row.pictures = column;
            continue;
        }
        RowError error{row_error_code(column->statuses[i]),
                       std::string(column->errors + column->error_offsets[i],
                                   column->errors + column->error_offsets[i + 1])};
        const bool no_template = error.message.starts_with("the model has no chat template");
        failed_.push_back({row.line, std::move(row.record), std::move(error), no_template});
        row.line = 0; // taken out
    }
    return {};
}

// Encodes the text rows that need these flags.
Status WindowBuilder::tokenize_with(uint32_t flags, std::vector<InputRow> *rows) {
    TextColumn texts;
    std::vector<InputRow *> wanted;
    for (InputRow &row : *rows) {
        // A chat template contains all special tokens itself.
        const bool adds = row.params->add_special && !row.is_chat;
        const bool parses = row.params->parse_special || row.is_chat;
        const uint32_t own = (adds ? BATCHLLM_ENCODE_ADD_SPECIAL : 0u) |
                             (parses ? BATCHLLM_ENCODE_PARSE_SPECIAL : 0u);
        if (!row.is_text || row.line == 0 || own != flags) continue;
        texts.add(row.text);
        row.text = std::string();
        wanted.push_back(&row);
    }
    if (wanted.empty()) return {};
    batchllm_column *column = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_encode(tokenizer_, texts.count(),
                                                          texts.text.data(), texts.offsets.data(),
                                                          flags, options_.threads, &column)));
    const ColumnHandle owner(column);
    for (int64_t i = 0; i < texts.count(); ++i) {
        InputRow &row = *wanted[static_cast<size_t>(i)];
        RowError error;
        if (column->statuses[i] != BATCHLLM_OK) {
            error = tokenize_error(column->statuses[i]);
        } else {
            row.tokens = item_tokens(*column, i);
        }
        if (error.code.empty()) continue;
        failed_.push_back({row.line, std::move(row.record), std::move(error)});
        row.line = 0; // taken out
    }
    return {};
}

RowError WindowBuilder::no_tokenizer(const char *key) const {
    const std::string why = options_.model.empty()
                                ? "no model with a tokenizer.json is given (--model)"
                                : "there is no tokenizer.json in " + options_.model;
    return parameter_error('"' + std::string(key) + "\" is text, and " + why +
                           "; rows of token ids need none");
}

// Encodes the continuations given as text, separately and without adding special tokens.
Status WindowBuilder::tokenize_scores(std::vector<InputRow> *rows) {
    for (InputRow &row : *rows) {
        if (row.line == 0 || !row.scored || !row.score_is_text) continue;
        TextColumn texts;
        for (const std::string &text : row.score_texts) texts.add(text);
        RowError error;
        batchllm_column *column = nullptr;
        if (tokenizer_ == nullptr) {
            error = no_tokenizer("score");
        } else {
            RETURN_IF_ERROR(
                call_status(batchllm_tokenizer_encode(tokenizer_, texts.count(), texts.text.data(),
                                                      texts.offsets.data(), 0, 1, &column)));
        }
        const ColumnHandle owner(column);
        for (int64_t i = 0; error.code.empty() && i < texts.count(); ++i) {
            if (column->statuses[i] != BATCHLLM_OK) {
                error = tokenize_error(column->statuses[i]);
            } else if (column->offsets[i] == column->offsets[i + 1]) {
                error = {row_error_code(BATCHLLM_ERROR_ROW_EMPTY),
                         "\"score\" holds a continuation without tokens"};
            } else {
                row.score_tokens.push_back(item_tokens(*column, i));
            }
        }
        if (error.code.empty()) continue;
        failed_.push_back(
            {row.line, std::move(row.record), std::move(error), tokenizer_ == nullptr});
        row.line = 0;
    }
    return {};
}

// chunk_ -> ready_, each row with its tokens.
Status WindowBuilder::tokenize_rows() {
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t flags = 0; options_.pictures != nullptr && flags < 4; ++flags) {
        for (const bool chat : {false, true}) {
            RETURN_IF_ERROR(encode_pictures(chat, flags, &chunk_));
        }
    }
    if (tokenizer_ != nullptr) {
        for (const bool parse_special : {false, true}) {
            RETURN_IF_ERROR(apply_chat_template(parse_special, &chunk_));
        }
        for (uint32_t flags = 0; flags < 4; ++flags) {
            RETURN_IF_ERROR(tokenize_with(flags, &chunk_));
        }
    }
    RETURN_IF_ERROR(tokenize_scores(&chunk_));
    for (InputRow &row : chunk_) {
        if (row.line == 0) continue;
        RowError error;
        if (!row.images.empty()) {
            error = {row_error_code(BATCHLLM_ERROR_ROW_PICTURE),
                     "the row has pictures, and the model reads text alone"};
        } else if (row.is_text && tokenizer_ == nullptr) {
            error = no_tokenizer(row.is_chat ? "messages" : "prompt");
        } else if (row.tokens.empty()) {
            error = {row_error_code(BATCHLLM_ERROR_ROW_EMPTY), "the prompt is empty"};
        }
        if (error.code.empty()) {
            ready_.push_back(std::move(row));
        } else {
            failed_.push_back({row.line, std::move(row.record), std::move(error),
                               row.is_text && tokenizer_ == nullptr});
        }
    }
    chunk_.clear();
    tokenize_seconds_ += seconds_since(start);
    return {};
}

void WindowBuilder::add_row(InputRow row, Window *window) {
    window->tokens.insert(window->tokens.end(), row.tokens.begin(), row.tokens.end());
    window->offsets.push_back(static_cast<int64_t>(window->tokens.size()));
    window->lines.push_back(static_cast<uint64_t>(row.line));
    window->records.push_back(std::move(row.record));
    window->params.push_back(std::move(row.params));
    if (row.pictures != nullptr) window->held.push_back(std::move(row.pictures));
    if (!row.scored) {
        ++window->generated;
        return;
    }
    for (const std::vector<int32_t> &tokens : row.score_tokens) {
        window->continuations.insert(window->continuations.end(), tokens.begin(), tokens.end());
        window->continuation_offsets.push_back(static_cast<int64_t>(window->continuations.size()));
    }
    window->continuation_rows.push_back(static_cast<int64_t>(window->continuation_offsets.size()) -
                                        1);
}

Result<std::unique_ptr<Window>> WindowBuilder::next() {
    auto window = std::make_unique<Window>();
    window->number = ++windows_;
    window->pictures = options_.pictures;
    std::vector<InputRow> scored; // they go after the others
    int64_t tokens = 0;
    int64_t rows = 0;
    bool full = false;
    while (!full && !stop_->load(std::memory_order_relaxed)) {
        if (ready_.empty()) {
            if (input_ended_) break;
            if (rows + static_cast<int64_t>(failed_.size()) >= options_.rows) break;
            RETURN_IF_ERROR(read_rows());
            RETURN_IF_ERROR(render_rows());
            RETURN_IF_ERROR(tokenize_rows());
            continue;
        }
        const auto length = static_cast<int64_t>(ready_.front().tokens.size());
        full = rows > 0 && (tokens + length > options_.tokens || rows >= options_.rows);
        if (full) break;
        tokens += length;
        ++rows;
        if (ready_.front().scored) {
            scored.push_back(std::move(ready_.front()));
        } else {
            add_row(std::move(ready_.front()), window.get());
        }
        ready_.pop_front();
    }
    for (InputRow &row : scored) add_row(std::move(row), window.get());
    window->failed.assign(std::make_move_iterator(failed_.begin()),
                          std::make_move_iterator(failed_.end()));
    failed_.clear();
    window->input_bytes = ready_.empty() ? input_->bytes_read() : ready_.front().input_begin;
    window->last = input_ended_ && ready_.empty();
    if (window->last) window->missing_columns = rows_.missing_columns();
    window->tokenize_seconds = std::exchange(tokenize_seconds_, 0);
    if (window->rows() > 0 && !stop_->load(std::memory_order_relaxed)) {
        RETURN_IF_ERROR(plan(window.get()));
    }
    return window;
}

Result<PlanHandle> load_previous_plan(const std::string &path,
                                      const batchllm_tokenizer *tokenizer) {
    batchllm_plan *loaded = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_plan_load(path.c_str(), &loaded)));
    PlanHandle plan(loaded);
    batchllm_plan_stats stats = {};
    stats.struct_size = sizeof stats;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_stats(loaded, &stats)));
    const uint64_t own = tokenizer != nullptr ? batchllm_tokenizer_fingerprint(tokenizer) : 0;
    if (stats.tokenizer_fingerprint != 0 && own != 0 && stats.tokenizer_fingerprint != own) {
        return error(BATCHLLM_ERROR_PLAN_MISMATCH, "%s: made with another tokenizer", path.c_str());
    }
    return plan;
}

// F for the first window; F.2, F.3, ... for the others if they exist, else F.
Result<const batchllm_plan *> WindowBuilder::previous_plan(int64_t number) {
    if (options_.previous_plan.empty()) return static_cast<const batchllm_plan *>(nullptr);
    std::string path = options_.previous_plan;
    const std::string numbered = std::string(path).append(".").append(std::to_string(number));
    ASSIGN_OR_RETURN(const bool has_own, number > 1 ? file_exists(numbered) : false);
    if (has_own) path = numbered;
    if (path != previous_path_) {
        ASSIGN_OR_RETURN(previous_, load_previous_plan(path, tokenizer_));
        previous_path_ = path;
    }
    return static_cast<const batchllm_plan *>(previous_.get());
}

Status WindowBuilder::plan(Window *window) {
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(const batchllm_plan *previous, previous_plan(window->number));
    std::vector<int32_t> decode_lengths;
    decode_lengths.reserve(window->lines.size());
    for (int64_t i = 0; i < window->rows(); ++i) {
        decode_lengths.push_back(i < window->generated &&
                                         window->params[static_cast<size_t>(i)]->most_tokens() > 0
                                     ? window->params[static_cast<size_t>(i)]->max_tokens
                                     : 0);
    }
    // A row with a bad max_tokens gets its error from the engine; it must not make the plan fail.
    for (int32_t &length : decode_lengths) length = length < 0 ? 0 : length;
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    options.enlarge = options_.enlarge;
    options.levels = options_.levels;
    options.common_prefix_cost = options_.common_prefix_cost;
    options.self_contained = options_.keep_plan_tokens ? 1 : 0;
    if (tokenizer_ != nullptr) {
        options.tokenizer_fingerprint = batchllm_tokenizer_fingerprint(tokenizer_);
    }
    std::vector<uint64_t> salts;
    for (const auto &params : window->params) {
        salts.push_back(params->adapter == nullptr ? 0 : params->adapter->salt);
    }
    options.salts = salts.data();
    batchllm_plan *plan = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_plan_create(window->rows(), window->tokens.data(),
                                                     window->offsets.data(), decode_lengths.data(),
                                                     &options, previous, &plan)));
    window->plan.reset(plan);
    batchllm_plan_stats stats = {};
    stats.struct_size = sizeof stats;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_stats(plan, &stats)));
    window->reused_rows = stats.reused_rows;
    if (previous != nullptr && stats.known_rows == 0) {
        ASSIGN_OR_RETURN(const batchllm_plan_stats before, plan_stats(previous));
        window->plan_unused = before.grouped_rows > 0;
    }
    window->plan_seconds = seconds_since(start);
    return {};
}

} // namespace batchllm::cli
