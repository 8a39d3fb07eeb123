#include "cli/table_rows.h"

#include "base/printable.h"
#include "cli/json_text.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {
namespace {

// Empty optional: the cell is null.
std::optional<std::string> cell_text(const JsonView &value) {
    if (value.is_null()) return std::nullopt;
    const std::optional<std::string_view> text = value.string();
    return text.has_value() ? std::string(*text) : value.text();
}

// A column over all rows; a cell that a row lacks is null.
struct CellColumnText {
    std::string text;
    std::vector<int64_t> offsets = {0};
    std::vector<uint8_t> validity;

    explicit CellColumnText(size_t rows) : validity(rows / 8 + 1, 0) { offsets.reserve(rows + 1); }
    void end_row(size_t row) { offsets.resize(row + 2, static_cast<int64_t>(text.size())); }
    void add(size_t row, std::string_view cell) {
        offsets.resize(row + 1, static_cast<int64_t>(text.size()));
        validity[row / 8] = static_cast<uint8_t>(validity[row / 8] | 1u << row % 8);
        text += cell;
        end_row(row);
    }
};

// How many keys that the template does not name are kept for error texts: every line may have
// different ones.
constexpr size_t most_others = 64;

} // namespace

TableRenderer::TableRenderer(TemplateOptions options) : options_(std::move(options)) {
    const std::string_view text = *options_.text;
    for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
        const size_t end = text.find_first_of("{}\n", at + 1);
        if (end == std::string_view::npos || text[end] != '}') continue;
        names_.emplace(text.substr(at + 1, end - at - 1), static_cast<uint32_t>(names_.size()));
    }
    seen_.assign(names_.size(), 0);
}

RowError TableRenderer::read_cells(const JsonMembers &members, const RowReaderOptions &options,
                                   InputRow *row) {
    ParameterReader parameters(options.defaults);
    for (const auto [key, value] : members) {
        if (!options_.image_column.empty() && key == options_.image_column) {
            image_seen_ = true;
            RowError error = read_images(key, value, &row->images);
            if (!error.code.empty()) return error;
        }
        if (!options_.adapter_column.empty() && key == options_.adapter_column) {
            adapter_seen_ = true;
            RowError error = parameters.read_adapter(key, value);
            if (!error.code.empty()) return error;
        }
        const auto name = names_.find(key);
        if (name == names_.end()) {
            // Names end at a zero byte in the library, so such a key would be mistaken for another
            // one.
            if (others_.size() < most_others && key.find('\0') == std::string_view::npos) {
                others_.emplace(key);
            }
            continue;
        }
        seen_[name->second] = 1;
        if (std::optional<std::string> cell = cell_text(value); cell.has_value()) {
            row->cells.emplace_back(name->second, std::move(*cell));
        }
    }
    return parameters.take(options, row);
}

Status TableRenderer::check_column(const char *option, const std::string &column, bool seen) const {
    if (column.empty() || seen || all_seen_) return {};
    std::set<std::string> columns = others_;
    for (const auto &[name, number] : names_) {
        if (seen_[number] != 0) columns.insert(name);
    }
    constexpr size_t most = 20;
    std::string names;
    size_t shown = 0;
    for (const std::string &name : columns) {
        if (shown == most) names += ", ...";
        if (shown++ >= most) break;
        names += (names.empty() ? "" : ", ") + in_quotes(name);
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: there is no column %s; the columns are %s",
                 option, in_quotes(column).c_str(), names.c_str());
}

Status TableRenderer::render(std::vector<InputRow> *rows, std::vector<RowError> *errors,
                             const std::atomic<bool> *stop) {
    errors->assign(rows->size(), {});
    if (rows->empty()) return {};
    RETURN_IF_ERROR(check_column("--image-column", options_.image_column, image_seen_));
    RETURN_IF_ERROR(check_column("--adapter-column", options_.adapter_column, adapter_seen_));
    std::vector<CellColumnText> texts(names_.size(), CellColumnText(rows->size()));
    for (size_t i = 0; i < rows->size(); ++i) {
        InputRow &row = (*rows)[i];
        for (const auto &[name, cell] : row.cells) texts[name].add(i, cell);
        row.cells = {};
    }
    std::vector<batchllm_table_column> columns;
    const auto add_column = [&columns](const std::string &name, const int64_t *offsets) {
        batchllm_table_column view = {};
        view.struct_size = sizeof view;
        view.name = name.c_str();
        view.offsets = offsets;
        columns.push_back(view);
    };
    for (const auto &[name, number] : names_) {
        if (seen_[number] == 0 && !all_seen_) continue;
        if (name.find('\0') != std::string::npos) continue;
        CellColumnText &column = texts[number];
        column.end_row(rows->size() - 1);
        add_column(name, column.offsets.data());
        columns.back().text = column.text.data();
        columns.back().validity = column.validity.data();
    }
    const std::vector<int64_t> no_text(rows->size() + 1, 0);
    for (const std::string &name : others_) add_column(name, no_text.data());
    batchllm_table_options options;
    batchllm_table_options_init(&options, sizeof options);
    options.template_text = options_.text->data();
    options.template_bytes = static_cast<int64_t>(options_.text->size());
    options.fields = options_.fields;
    options.chat = options_.chat ? 1 : 0;
    options.system = options_.system.c_str();
    std::vector<int32_t> pictures;
    for (const InputRow &row : *rows) pictures.push_back(static_cast<int32_t>(row.images.size()));
    options.pictures = pictures.data();
    options.stop = [](void *user) -> int32_t {
        return static_cast<const std::atomic<bool> *>(user)->load(std::memory_order_relaxed);
    };
    options.stop_user = const_cast<std::atomic<bool> *>(stop);
    batchllm_table *made = nullptr;
    RETURN_IF_ERROR(
        call_status(batchllm_table_create(static_cast<int64_t>(rows->size()), columns.data(),
                                          static_cast<int64_t>(columns.size()), &options, &made)));
    const TableHandle table(made);
    std::vector<CellColumnText>().swap(texts); // the prompts now contain the cells
    const batchllm_column &prompts = *batchllm_table_prompts(made);
    for (size_t i = 0; i < rows->size(); ++i) {
        InputRow &row = (*rows)[i];
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
