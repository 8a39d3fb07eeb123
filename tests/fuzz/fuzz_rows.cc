// libFuzzer: an input line of the program, of either form. It is a row or a named error; the
// returned id is JSON; the library itself accepts or rejects the row's sampling parameters.
//
// Input: a byte of options, then the line.
#include <memory>
#include <string>

#include "base/json_tree.h"
#include "base/json_view.h"
#include "base/printable.h"
#include "cli/output_row.h"
#include "cli/row.h"
#include "fuzz_folder.h"

using namespace batchllm;
using namespace batchllm::cli;
using fuzz::check;

// A tree keeps numbers as written, since an id may be an integer beyond any type.
static bool is_json(std::string_view text) {
    return parse_json_tree(text, "text", text.size()).ok();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    RowReaderOptions options;
    options.defaults = std::make_shared<SamplingOptions>();
    options.ignore_unknown_keys = (data[0] & 1) != 0;
    InputRowReader reader(std::move(options));
    const std::string_view line(reinterpret_cast<const char *>(data) + 1, size - 1);
    InputRow row;
    const RowError error = reader.read(7, line, &row);
    check(row.line == 7);
    check(is_json(row.record.id));
    if (!error.code.empty()) {
        check(error.code.starts_with("ROW_") && !error.message.empty());
        std::string out;
        append_failure(&out, row.line, row.record, error);
        check(out.ends_with("\n") && is_json(out));
        return 0;
    }
    check(row.params != nullptr);
    check(row.is_text || row.text.empty());
    if (row.is_chat) {
        static JsonParser parser; // which allows deeper nesting than a tree
        JsonView conversation;
        check(parser.parse(row.text, &conversation).kind == JsonFault::Kind::none);
    }
    if (row.is_text) check(is_utf8(row.text));
    for (const int32_t token : row.tokens) check(token >= -1);
    ParameterViews views;
    const batchllm_params params = view_params(*row.params, &views);
    check(params.struct_size == sizeof params);
    check(static_cast<size_t>(params.stop_string_count) == row.params->stop_strings.size());
    check(static_cast<size_t>(params.bad_word_count) == row.params->bad_words.size());
    return 0;
}
