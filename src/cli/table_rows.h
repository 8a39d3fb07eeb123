// Input lines as rows of a table: with --template every key of a line is a column, and a row's prompt is
// made of them. "id" names the row as ever; no key is a parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json_view.h"
#include "cli/api.h"
#include "cli/row.h"

namespace batchllm::cli {

// What of the command line makes prompts.
struct TemplateOptions {
    std::string text; // empty: lines bring prompts of their own
    int32_t fields = BATCHLLM_FIELDS_GIVEN;
    bool chat = false;
    std::string system;

    bool used() const { return !text.empty(); }
    bool reorder() const { return fields == BATCHLLM_FIELDS_REORDER; }
};

// Rows whose fields are put in order together, so that memory is bounded: the same in every command, and
// also when a job goes on, as a row's prompt depends on the rows beside it.
constexpr size_t table_rows = size_t{256} << 10;
constexpr size_t table_bytes = size_t{256} << 20;

// The cells of a line; numbers, lists and objects are text as JSON writes it.
void read_cells(const JsonMembers &members, const TemplateOptions &options, Row *row);

// Rows with cells -> rows with prompts.
class TableRenderer {
  public:
    explicit TableRenderer(TemplateOptions options) : options_(std::move(options)) {}

    const TemplateOptions &options() const { return options_; }
    // Of rows that cannot have a prompt the error is set. Fails when the template is wrong or names a
    // column that no row so far has had.
    Status render(std::vector<Row> *rows, std::vector<RowError> *errors);

  private:
    TemplateOptions options_;
    std::map<std::string, bool> columns_; // seen so far: whether the template may name it
    size_t unnamed_ = 0;                  // of those kept
};

} // namespace batchllm::cli
