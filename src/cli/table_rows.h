// Input lines as rows of a table: with --template every key of a line is a column, and the row's
// prompt is made from them. "id" still names the row; no key is a parameter, but one may name the
// row's adapter.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json_view.h"
#include "cli/api.h"
#include "cli/row.h"

namespace batchllm::cli {

// The options that determine how prompts are made.
struct TemplateOptions {
    std::optional<std::string> text; // none: lines have their own prompts
    int32_t fields = BATCHLLM_FIELDS_GIVEN;
    bool chat = false;
    std::string system;
    std::string image_column;   // the key of a line's pictures; empty: lines have none
    std::string adapter_column; // the key of a line's adapter; empty: lines name none

    bool used() const { return text.has_value(); }
    bool reorder() const { return fields == BATCHLLM_FIELDS_REORDER; }
};

// How many rows have their fields ordered together; bounded to limit memory. It is the same in
// every command and when a job is resumed, since a row's prompt depends on the rows around it.
constexpr size_t table_rows = size_t{256} << 10;
constexpr size_t table_bytes = size_t{256} << 20;

// Lines -> rows with cells -> rows with prompts.
class TableRenderer {
  public:
    // options: must have a template.
    explicit TableRenderer(TemplateOptions options);

    bool reorders() const { return options_.fields == BATCHLLM_FIELDS_REORDER; }
    // The bytes of a row's prompt that do not come from its cells.
    size_t template_bytes() const { return options_.text->size(); }
    // Reads the cells of a line; numbers, lists and objects become their JSON text. Keeps only keys
    // the template may name, the row's pictures and its adapter.
    RowError read_cells(const JsonMembers &members, const RowReaderOptions &options, InputRow *row);
    // Skips a line that an earlier run has done. It may have had any key.
    void pass_over_line() { all_seen_ = true; }
    // Sets the error of rows that cannot have a prompt. Fails if the template is wrong or names a
    // column that no line has had so far. STOPPED if *stop is set during the search for an order of
    // fields.
    Status render(std::vector<InputRow> *rows, std::vector<RowError> *errors,
                  const std::atomic<bool> *stop);

  private:
    // option: names the column; seen: a line has had it.
    Status check_column(const char *option, const std::string &column, bool seen) const;

    TemplateOptions options_;
    // Everything in braces, with its index in seen_: the library decides which of it is a field.
    std::map<std::string, uint32_t, std::less<>> names_;
    std::vector<char> seen_;       // [names] whether any line has had the key
    bool all_seen_ = false;        // lines may have had any key
    bool image_seen_ = false;      // a line has had the key of pictures
    bool adapter_seen_ = false;    // a line has had the key of adapters
    std::set<std::string> others_; // a few keys that the template does not name, for error texts
};

} // namespace batchllm::cli
