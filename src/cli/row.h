// One input line -> a row to run, or what is wrong with it.
//
// Two forms are read: the program's own ({"id", "prompt" | "tokens" | "messages", parameters}) and
// the OpenAI batch format ({"custom_id", "method", "url", "body"}). docs/formats.md lists the keys.
// An unknown key is an error, so that a misspelt parameter is never ignored; so is a key that is given
// twice.
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

// batchllm_params with its arrays owned. The command line sets the defaults; a row with parameters of
// its own has its own copy.
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

    // The most tokens that a row's samples may generate together.
    int64_t most_tokens() const {
        return task == BATCHLLM_TASK_GENERATE ? std::max<int64_t>(0, int64_t{max_tokens} * samples)
                                              : 0;
    }
    ConstraintText constraint_text;
    SharedConstraint constraint; // made from that text; null: none, or it was not to be made
};

// What a view of the options points to besides the options themselves.
struct TextPointers {
    std::vector<const char *> stop_strings, bad_words;
};

// A view of the options for the library. pointers must live as long.
batchllm_params view_params(const SamplingOptions &options, TextPointers *pointers);

enum class RowFormat : uint8_t { plain, completions, chat, embeddings, batch_unknown };

// What a row's answer needs, kept until the row is done.
struct RowRecord {
    std::string id;    // JSON: a string or a number; "null" when the line could not be read
    std::string model; // completions, chat, embeddings: as in the row
    RowFormat format = RowFormat::plain;
    int64_t most_tokens = 0; // that its samples may generate together
};

struct RowError {
    std::string code; // ROW_..., the library's name or one of the program's own
    std::string message;
};

struct Row {
    int64_t line = 0;
    RowRecord record;
    std::shared_ptr<const SamplingOptions> params; // never null
    bool is_text = false;                          // text, or else tokens
    bool is_chat = false;                          // text, and it is a conversation's JSON
    std::string text;
    std::vector<int32_t> tokens;
    bool scored = false; // by the continuations below, of which each is text or tokens
    bool score_is_text = false;
    std::vector<std::string> score_texts;
    std::vector<std::vector<int32_t>> score_tokens;
    // With a template, until the text has been made: the row's cells by column number; a missing one is null.
    std::vector<std::pair<uint32_t, std::string>> cells;
    bool done = false; // by an earlier run; read only for the field order of other rows
};

class TableRenderer;

struct RowReaderOptions {
    std::shared_ptr<const SamplingOptions> defaults;
    bool ignore_unknown_keys = false;
    ConstraintCache *constraints = nullptr; // borrowed; null: constraints are read but not made
    std::shared_ptr<TableRenderer> table;   // null: lines bring their own prompts
};

class RowReader {
  public:
    explicit RowReader(RowReaderOptions options);
    ~RowReader();

    // Reads a line; 64 bytes after it must be readable. Even on an error (code not empty) row->line
    // and what is known of row->record are set.
    RowError read(int64_t line, std::string_view text, Row *row);

  private:
    RowReaderOptions options_;
    std::unique_ptr<LineParser> parser_;
};

// The name that input rows use of a status: "ROW_TOO_LONG" of BATCHLLM_ERROR_ROW_TOO_LONG.
std::string row_error_code(int32_t status);

} // namespace batchllm::cli
