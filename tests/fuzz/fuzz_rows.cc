// libFuzzer: an input line of the program, of either form. It is a row or an error by name; the id that is given
// back is JSON; what a row says of sampling is what the library takes or refuses by itself.
//
// Input: a byte of options, then the line.
#include <memory>
#include <string>

#include <simdjson.h>

#include "cli/output_row.h"
#include "cli/row.h"
#include "fuzz_folder.h"

using namespace batchllm;
using namespace batchllm::cli;
using fuzz::check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static simdjson::dom::parser parser;
    if (size == 0) return 0;
    RowReaderOptions options;
    options.defaults = std::make_shared<SamplingOptions>();
    options.ignore_unknown_keys = (data[0] & 1) != 0;
    RowReader reader(std::move(options));
    std::string line(reinterpret_cast<const char *>(data) + 1, size - 1);
    const size_t length = line.size();
    line.append(64, '\0');
    Row row;
    const RowError error = reader.read(7, std::string_view(line).substr(0, length), &row);
    check(row.line == 7);
    simdjson::dom::element id;
    check(parser.parse(row.record.id).get(id) == simdjson::SUCCESS);
    if (!error.code.empty()) {
        check(error.code.starts_with("ROW_") && !error.message.empty());
        std::string out;
        append_failure(&out, row.line, row.record, error);
        check(out.ends_with("\n") && parser.parse(out).error() == simdjson::SUCCESS);
        return 0;
    }
    check(row.params != nullptr);
    check(row.is_text || row.text.empty());
    if (row.is_chat) check(parser.parse(row.text).error() == simdjson::SUCCESS);
    if (row.is_text) check(simdjson::validate_utf8(row.text));
    for (const int32_t token : row.tokens) check(token >= -1);
    std::vector<const char *> stops;
    const batchllm_params params = view_params(*row.params, &stops);
    check(params.struct_size == sizeof params);
    check(static_cast<size_t>(params.stop_string_count) == row.params->stop_strings.size());
    return 0;
}
