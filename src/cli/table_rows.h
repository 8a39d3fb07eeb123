// Input lines as rows of a table: with --template every key of a line is a column, and a row's prompt is
// made of them. "id" names the row as ever; no key is a parameter.
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

// What of the command line makes prompts.
struct TemplateOptions {
    std::optional<std::string> text; // none: lines bring prompts of their own
    int32_t fields = BATCHLLM_FIELDS_GIVEN;
    bool chat = false;
    std::string system;

    bool used() const { return text.has_value(); }
    bool reorder() const { return fields == BATCHLLM_FIELDS_REORDER; }
};

// Rows whose fields are put in order together, so that memory is bounded: the same in every command, and
// also when a job goes on, as a row's prompt depends on the rows beside it.
constexpr size_t table_rows = size_t{256} << 10;
constexpr size_t table_bytes = size_t{256} << 20;

// Lines -> rows with cells -> rows with prompts.
class TableRenderer {
  public:
    // With a template.
    explicit TableRenderer(TemplateOptions options);

    bool reorders() const { return options_.fields == BATCHLLM_FIELDS_REORDER; }
    // What a row's prompt has beside its cells.
    size_t template_bytes() const { return options_.text->size(); }
    // The cells of a line; numbers, lists and objects are text as JSON writes it. Only what the template
    // may name is kept.
    void read_cells(const JsonMembers &members, Row *row);
    // A line that an earlier run has done: it may have had any key.
    void pass_over_line() { all_seen_ = true; }
    // Of rows that cannot have a prompt the error is set. Fails when the template is wrong or names a
    // column that no line so far has had.
    // STOPPED once *stop is set while an order of fields is looked for.
    Status render(std::vector<Row> *rows, std::vector<RowError> *errors,
                  const std::atomic<bool> *stop);

  private:
    TemplateOptions options_;
    // All that stands in braces, with its place in seen_: the library decides what is a field.
    std::map<std::string, uint32_t, std::less<>> names_;
    std::vector<char> seen_;       // [names] a line has had the key
    bool all_seen_ = false;        // or may have had
    std::set<std::string> others_; // keys that the template does not name: a few, told in an error
};

} // namespace batchllm::cli
