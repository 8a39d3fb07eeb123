// Rows as columns and a template -> prompts, on request with each row's fields in its own order.
//
// Always: prompts are in the rows' order, even if another order shares more; a row with a missing
// value has an error instead of a prompt.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "table/cells.h"
#include "table/field_order.h"
#include "table/prompt_template.h"

namespace batchllm {

struct TableOptions {
    std::string prompt;   // the template
    bool reorder = false; // false: the fields as the template has them
    bool chat = false;  // prompts are conversations, with the template's text as the user's message
    std::string system; // chat: the system message before it; "": none
    // chat: so many pictures stand before each row's text, [rows]; or none
    std::span<const int32_t> pictures = {};
    StopCheck stop = {};
};

struct Table {
    std::vector<int64_t> offsets;  // [rows + 1] bytes
    std::string text;              // UTF-8 if the columns are
    std::vector<int32_t> statuses; // [rows]
    std::vector<int64_t> error_offsets;
    std::string errors;

    std::vector<int64_t> row_order;    // [rows] in which neighbours share most; bad rows last
    std::vector<int32_t> field_orders; // [rows x moved] columns of the caller; bad rows: as given
    int32_t moved = 0;                 // fields of the template
    SharedBytes given;                 // rows and fields as given
    SharedBytes sorted;                // fields as given, rows sorted by them
    SharedBytes planned;               // as they are now
    double seconds = 0;                // spent on finding the order

    bool chat = false;

    int64_t rows() const { return static_cast<int64_t>(statuses.size()); }
    std::string_view prompt(int64_t row) const {
        const auto at = static_cast<size_t>(row);
        return std::string_view(text).substr(static_cast<size_t>(offsets[at]),
                                             static_cast<size_t>(offsets[at + 1] - offsets[at]));
    }
    Status status(int64_t row) const {
        const auto at = static_cast<size_t>(row);
        if (statuses[at] == BATCHLLM_OK) return {};
        return Status(statuses[at], errors.substr(static_cast<size_t>(error_offsets[at]),
                                                  static_cast<size_t>(error_offsets[at + 1] -
                                                                      error_offsets[at])));
    }
};

// Columns that the template does not name are ignored. Fails with INVALID_ARGUMENT if the template
// cannot be read or names no column, and with STOPPED if options.stop asks for it.
Result<Table> make_table(int64_t rows, std::span<const TableColumn> columns,
                         const TableOptions &options);

} // namespace batchllm
