// One input line -> a row to run, or an error.
//
// Two formats are read: the program's own ({"id", "prompt" | "tokens" | "messages", parameters})
// and the OpenAI batch format ({"custom_id", "method", "url", "body"}). docs/formats.md lists the
// keys. An unknown key is an error, so that a misspelt parameter is never ignored; a duplicate key
// is an error too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_view.h"
#include "batchllm.h"
#include "cli/adapter_cache.h"
#include "cli/constraint_cache.h"
#include "parameters/row_parameters.h"

namespace batchllm::cli {

class LineParser;

// What the command line sets for all rows; a row that sets parameters has its own copy.
struct SamplingOptions : RowParameters {
    // The most tokens that all samples of a row may generate together.
    int64_t most_tokens() const {
        return task == Task::generate ? std::max<int64_t>(0, int64_t{max_tokens} * samples) : 0;
    }
    ConstraintText constraint_text;
    SharedConstraint constraint; // created from that text; null: there is none, or it need not be
                                 // created
    SharedAdapter adapter;       // null: none
};

// A view of the options for the library. views must live as long as it does.
batchllm_params view_params(const SamplingOptions &options, ParameterViews *views);

enum class RowFormat : uint8_t { plain, completions, chat, embeddings, batch_unknown };

// What writing a row's answer requires, kept until the row is done.
struct RowRecord {
    std::string id;      // JSON: a string or a number; "null" if the line could not be read
    std::string columns; // members that pass through, as JSON
    std::string model;   // completions, chat, embeddings: as the row states it
    RowFormat format = RowFormat::plain;
    int64_t most_tokens = 0;      // that all its samples may generate together
    int32_t prompt_logprobs = -1; // batchllm_params
    bool base64 = false;          // embeddings: the vector's bytes instead of numbers
};

struct RowError {
    std::string code; // ROW_..., the library's name or one of the program's own
    std::string message;
};

struct InputRow {
    int64_t line = 0;
    int64_t input_begin = 0; // bytes of input before the line
    RowRecord record;
    std::shared_ptr<const SamplingOptions> params; // never null
    bool is_text = false;                          // false: token ids
    bool is_chat = false;                          // the text is the JSON of a conversation
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<std::string> images; // paths or "data:" URLs
    std::shared_ptr<const batchllm_column>
        pictures;        // keeps what `tokens` stand for; null: no pictures
    bool scored = false; // by the continuations below, each of which is text or tokens
    bool score_is_text = false;
    std::vector<std::string> score_texts;
    std::vector<std::vector<int32_t>> score_tokens;
    // With a template, until the text is made: the row's cells by column number; a missing cell is
    // null.
    std::vector<std::pair<uint32_t, std::string>> cells;
    bool done = false; // by an earlier run; read only because it affects the field order of other
                       // rows
};

class TableRenderer;

struct RowReaderOptions {
    std::shared_ptr<const SamplingOptions> defaults;
    std::vector<std::string> columns; // keys that pass through to the results
    bool ignore_unknown_keys = false;
    // Whether a line, or the body of one, may have this key, which means nothing to the reader. Only
    // a line's own keys pass through.
    bool allow(std::string_view key) const;
    bool allow_in_body(std::string_view key) const;
    ConstraintCache *constraints = nullptr; // borrowed; null: constraints are parsed but not
                                            // created
    AdapterCache *adapters = nullptr;       // borrowed
    std::shared_ptr<TableRenderer> table;   // null: lines have their own prompts
};

// Whether a line without a template is of the OpenAI batch format.
bool is_batch_line(const JsonView &line);

class InputRowReader {
  public:
    explicit InputRowReader(RowReaderOptions options);
    ~InputRowReader();

    // Reads a line. Even on an error (code not empty), sets row->line and as much of row->record as
    // is known.
    RowError read(int64_t line, std::string_view text, InputRow *row);
    // Loads the adapters of the rows read so far, by as many threads (0: one for each core).
    void load_adapters(int32_t threads);
    // What is wrong with the adapter of a row that was read, whatever else is wrong with the row. Fails if the row is not to
    // blame: the run ends, and the next one reads the row again.
    Result<RowError> check_adapter(const InputRow &row);
    // Those of options.columns that no line read so far has; empty if none has been read.
    std::vector<std::string> missing_columns() const;

  private:
    RowReaderOptions options_;
    std::vector<uint8_t> column_seen_; // of options_.columns
    bool any_read_ = false;
    std::unique_ptr<LineParser> parser_;
};

// The pictures of a key: a list of paths and "data:" URLs, one of them, or null.
RowError read_images(std::string_view key, JsonView value, std::vector<std::string> *images);

// What input rows call a status: BATCHLLM_ERROR_ROW_TOO_LONG is "ROW_TOO_LONG".
std::string row_error_code(int32_t status);

} // namespace batchllm::cli
