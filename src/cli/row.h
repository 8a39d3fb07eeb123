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

#include "batchllm.h"
#include "cli/constraint_cache.h"

namespace batchllm::cli {

class LineParser;

// batchllm_params that owns its arrays. The command line sets the defaults; a row that sets
// parameters has its own copy.
struct SamplingOptions {
    int32_t max_tokens = 128;
    float temperature = 0;
    float top_p = 1;
    float min_p = 0;
    int32_t top_k = 0;
    float repetition_penalty = 1;
    float presence_penalty = 0;
    float frequency_penalty = 0;
    int32_t samples = 1;
    uint64_t seed = 0;
    bool ignore_eos = false;
    int32_t logprobs = -1;
    int32_t min_tokens = 0;
    int32_t prompt_logprobs = -1;
    bool parse_special = true;
    bool add_special = true;
    int32_t task = BATCHLLM_TASK_GENERATE;
    int32_t pooling = BATCHLLM_POOLING_MODEL;
    int32_t normalize = 0;
    int32_t dimensions = 0;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    std::vector<std::string> bad_words;
    std::vector<int32_t> bias_tokens;
    std::vector<float> bias_values;

    // The most tokens that all samples of a row may generate together.
    int64_t most_tokens() const {
        return task == BATCHLLM_TASK_GENERATE ? std::max<int64_t>(0, int64_t{max_tokens} * samples)
                                              : 0;
    }
    ConstraintText constraint_text;
    SharedConstraint constraint; // created from that text; null: there is none, or it need not be
                                 // created
};

// What a view of the options points to in addition to the options.
struct TextPointers {
    std::vector<const char *> stop_strings, bad_words;
};

// A view of the options for the library. pointers must live as long as the view.
batchllm_params view_params(const SamplingOptions &options, TextPointers *pointers);

enum class RowFormat : uint8_t { plain, completions, chat, embeddings, batch_unknown };

// What writing a row's answer requires, kept until the row is done.
struct RowRecord {
    std::string id;    // JSON: a string or a number; "null" if the line could not be read
    std::string model; // completions, chat, embeddings: as the row states it
    RowFormat format = RowFormat::plain;
    int64_t most_tokens = 0; // that all its samples may generate together
};

struct RowError {
    std::string code; // ROW_..., the library's name or one of the program's own
    std::string message;
};

struct Row {
    int64_t line = 0;
    RowRecord record;
    std::shared_ptr<const SamplingOptions> params; // never null
    bool is_text = false;                          // false: token ids
    bool is_chat = false;                          // the text is the JSON of a conversation
    std::string text;
    std::vector<int32_t> tokens;
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
    bool ignore_unknown_keys = false;
    ConstraintCache *constraints = nullptr; // borrowed; null: constraints are parsed but not
                                            // created
    std::shared_ptr<TableRenderer> table;   // null: lines have their own prompts
};

class RowReader {
  public:
    explicit RowReader(RowReaderOptions options);
    ~RowReader();

    // Reads a line; the 64 bytes after it must be readable. Even on an error (code not empty), sets
    // row->line and as much of row->record as is known.
    RowError read(int64_t line, std::string_view text, Row *row);

  private:
    RowReaderOptions options_;
    std::unique_ptr<LineParser> parser_;
};

// What input rows call a status: BATCHLLM_ERROR_ROW_TOO_LONG is "ROW_TOO_LONG".
std::string row_error_code(int32_t status);

} // namespace batchllm::cli
