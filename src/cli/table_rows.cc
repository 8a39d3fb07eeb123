#include "cli/table_rows.h"

#include <algorithm>

#include "cli/json_text.h"

namespace batchllm::cli {
namespace {

// Null: the cell is.
std::optional<std::string> cell_text(const JsonView &value) {
    if (value.is_null()) return std::nullopt;
    const std::optional<std::string_view> text = value.string();
    return text.has_value() ? std::string(*text) : value.text();
}

// A column of all rows.
struct CellColumnText {
    std::string text;
    std::vector<int64_t> offsets = {0};
    std::vector<uint8_t> validity;

    void add(const std::optional<std::string> *cell) {
        const size_t row = offsets.size() - 1;
        if (row % 8 == 0) validity.push_back(0);
        if (cell != nullptr && cell->has_value()) {
            validity.back() = static_cast<uint8_t>(validity.back() | 1u << row % 8);
            text += **cell;
        }
        offsets.push_back(static_cast<int64_t>(text.size()));
    }
};

// Keys told in an error, of those that the template does not name: lines may all have keys of their own.
constexpr size_t most_unnamed = 64;

bool may_be_named(const TemplateOptions &options, const std::string &key) {
    return options.text.find("{" + key + "}") != std::string::npos;
}

} // namespace

void read_cells(const JsonMembers &members, const TemplateOptions &options, Row *row) {
    for (const auto [key, value] : members) {
        std::string name(key);
        // The library's names end at a zero byte: such a key would stand for another one.
        if (name.find('\0') != std::string::npos) continue;
        // Only what the template may name is kept; of the rest the names alone, for errors.
        const bool named = may_be_named(options, name);
        row->cells.emplace_back(std::move(name), named ? cell_text(value) : std::nullopt);
    }
}

Status TableRenderer::render(std::vector<Row> *rows, std::vector<RowError> *errors) {
    errors->assign(rows->size(), {});
    if (rows->empty()) return {};
    for (const Row &row : *rows) {
        for (const auto &cell : row.cells) {
            if (columns_.contains(cell.first)) continue;
            const bool named = may_be_named(options_, cell.first);
            if (!named && unnamed_ == most_unnamed) continue;
            columns_.emplace(cell.first, named);
            if (!named) ++unnamed_;
        }
    }
    std::vector<CellColumnText> texts(columns_.size());
    std::vector<batchllm_table_column> columns;
    const std::vector<int64_t> no_text(rows->size() + 1, 0); // of columns that are not read
    size_t number = 0;
    for (const auto &known : columns_) {
        const std::string &name = known.first;
        CellColumnText &column = texts[number++];
        batchllm_table_column view = {};
        view.struct_size = sizeof view;
        view.name = name.c_str();
        view.offsets = no_text.data();
        if (!known.second) {
            columns.push_back(view);
            continue;
        }
        for (const Row &row : *rows) {
            const auto cell = std::find_if(row.cells.begin(), row.cells.end(),
                                           [&](const auto &entry) { return entry.first == name; });
            column.add(cell == row.cells.end() ? nullptr : &cell->second);
        }
        view.text = column.text.data();
        view.offsets = column.offsets.data();
        view.validity = column.validity.data();
        columns.push_back(view);
    }
    for (Row &row : *rows) row.cells = {};
    batchllm_table_options options;
    batchllm_table_options_init(&options, sizeof options);
    options.template_text = options_.text.data();
    options.template_bytes = static_cast<int64_t>(options_.text.size());
    options.fields = options_.fields;
    options.chat = options_.chat ? 1 : 0;
    options.system = options_.system.c_str();
    batchllm_table *made = nullptr;
    RETURN_IF_ERROR(
        call_status(batchllm_table_create(static_cast<int64_t>(rows->size()), columns.data(),
                                          static_cast<int64_t>(columns.size()), &options, &made)));
    const TableHandle table(made);
    const batchllm_column &prompts = *batchllm_table_prompts(made);
    for (size_t i = 0; i < rows->size(); ++i) {
        Row &row = (*rows)[i];
        row.is_text = true;
        row.is_chat = options_.chat;
        row.text.assign(prompts.text + prompts.offsets[i], prompts.text + prompts.offsets[i + 1]);
        if (prompts.statuses[i] == BATCHLLM_OK) continue;
        (*errors)[i] = {row_error_code(prompts.statuses[i]),
                        std::string(prompts.errors + prompts.error_offsets[i],
                                    prompts.errors + prompts.error_offsets[i + 1])};
    }
    return {};
}

} // namespace batchllm::cli
