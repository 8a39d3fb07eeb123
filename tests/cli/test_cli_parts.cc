// The program's parts without the engine: lines, numbers, sizes, keys, the output file.
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/display.h"
#include "cli/json_text.h"
#include "cli/line_reader.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/row.h"
#include "cli/row_keys.h"
#include "cli/size_text.h"
#include "cli/table_rows.h"
#include "json_numbers.h"
#include "seed.h"

// Last: it defines fail() as a macro, which C++ headers use as a name.
extern "C" {
#include <cmocka.h>
}

namespace batchllm::cli {
namespace {

// A file in its own folder; both are removed at the end.
class TemporaryFile {
  public:
    explicit TemporaryFile(const std::string &bytes) {
        char name[] = "/tmp/batchllm-cli-XXXXXX";
        directory_ = ::mkdtemp(name);
        path_ = directory_ + "/file";
        std::FILE *file = std::fopen(path_.c_str(), "wb");
        std::fwrite(bytes.data(), 1, bytes.size(), file);
        std::fclose(file);
    }
    TemporaryFile(const TemporaryFile &) = delete;
    TemporaryFile &operator=(const TemporaryFile &) = delete;
    ~TemporaryFile() {
        ::unlink(path_.c_str());
        ::unlink((path_ + ".state").c_str());
        ::rmdir(directory_.c_str());
    }
    const std::string &path() const { return path_; }
    std::string read() const {
        std::string bytes;
        std::FILE *file = std::fopen(path_.c_str(), "rb");
        for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file))
            bytes += static_cast<char>(c);
        std::fclose(file);
        return bytes;
    }

  private:
    std::string directory_, path_;
};

std::string json(auto value) {
    std::string out;
    append_json(&out, value);
    return out;
}

// "number:text" of each line, joined; "!" for one that is too long.
std::string read_lines(const std::string &bytes, int64_t limit) {
    const TemporaryFile file(bytes);
    Result<LineReader> reader = LineReader::open(file.path(), limit, nullptr);
    std::string all;
    Line line;
    while (reader.ok() && reader->next(&line).value()) {
        all += std::to_string(line.number) + ":" + (line.too_long ? "!" : std::string(line.text)) +
               ";";
    }
    if (reader->bytes_read() != static_cast<int64_t>(bytes.size())) all += " bytes lost";
    return all;
}

void lines_end_with_lf_or_crlf_or_the_file(void **) {
    assert_string_equal(read_lines("a\nb\r\n\nc", 100).c_str(), "1:a;2:b;3:;4:c;");
    assert_string_equal(read_lines("", 100).c_str(), "");
    assert_string_equal(read_lines("\xEF\xBB\xBF", 100).c_str(), "");
    assert_string_equal(read_lines("\xEF\xBB\xBF{}\n\xEF\xBB\xBF", 100).c_str(),
                        "1:{};2:\xEF\xBB\xBF;");
    assert_string_equal(read_lines("\n", 100).c_str(), "1:;");
}

void a_line_over_the_limit_is_passed_over_whatever_its_length(void **) {
    assert_string_equal(read_lines("12345\n123456\n12345", 5).c_str(), "1:12345;2:!;3:12345;");
    const std::string huge(5000000, 'x');
    assert_string_equal(read_lines(huge + "\na\n" + huge, 1000).c_str(), "1:!;2:a;3:!;");
    const std::string all = read_lines(huge + "\nab\n" + huge + "\nc", 5000000);
    assert_int_equal(all.size(), 2 * (huge.size() + 3) + 5 + 4);
}

void numbers_read_back_as_they_were(void **) {
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < 20000; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        float single;
        double wide;
        const auto bits = static_cast<uint32_t>(state);
        std::memcpy(&single, &bits, sizeof single);
        std::memcpy(&wide, &state, sizeof wide);
        if (std::isfinite(single)) {
            assert_true(std::strtof(json(single).c_str(), nullptr) == single);
        }
        if (std::isfinite(wide)) assert_true(std::strtod(json(wide).c_str(), nullptr) == wide);
    }
    assert_string_equal(json(std::numeric_limits<float>::infinity()).c_str(), "null");
    assert_string_equal(json(std::nan("")).c_str(), "null");
    assert_string_equal(json(INT64_MIN).c_str(), "-9223372036854775808");
    assert_string_equal(json(UINT64_MAX).c_str(), "18446744073709551615");
}

void text_is_escaped_and_always_utf8(void **) {
    assert_string_equal(json(std::string_view("a\"\\\n\t\x01\x7F"
                                              "b"))
                            .c_str(),
                        "\"a\\\"\\\\\\n\\t\\u0001\\u007fb\"");
    assert_string_equal(json(std::string_view("\xC3\xA9\xF0\x9F\x98\x80")).c_str(),
                        "\"\xC3\xA9\xF0\x9F\x98\x80\"");
    assert_string_equal(json(std::string_view("a\xFF\xC3")).c_str(),
                        "\"a\xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_string_equal(json(std::string_view("\xED\xA0\x80")).c_str(),
                        "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

void sizes_are_read_as_people_write_them(void **) {
    assert_int_equal(*parse_size("2GiB"), int64_t{2} << 30);
    assert_int_equal(*parse_size("1.5K"), 1536);
    assert_int_equal(*parse_size("10MB"), 10000000);
    assert_int_equal(*parse_size("7"), 7);
    for (const char *bad : {"", "x", "-1", "1X", "1KBB", "1e30", "9999999T", "inf", "nan"}) {
        assert_false(parse_size(bad).has_value());
    }
    assert_true(*parse_percentage("40%") == 0.4);
    assert_false(parse_percentage("40").has_value());
}

void misspelt_keys_are_recognised(void **) {
    assert_true(nearest_row_key("temprature") == "temperature");
    assert_true(nearest_row_key("Max-Tokens") == "max_tokens");
    assert_true(nearest_row_key("max_new_tokens") == "max_tokens");
    assert_true(nearest_row_key("topk") == "top_k");
    assert_true(nearest_row_key("label").empty());
    assert_true(nearest_row_key("x").empty());
}

void counts_and_durations_are_written_for_people(void **) {
    assert_string_equal(format_count(1234567).c_str(), "1,234,567");
    assert_string_equal(format_count(-123).c_str(), "-123");
    assert_string_equal(format_duration(59.4).c_str(), "59s");
    assert_string_equal(format_duration(3725).c_str(), "1h02m");
}

// Lines are numbered from 1, rows of the journal from 0.
void lines_that_are_written_are_done_when_the_output_is_resumed(void **) {
    const TemporaryFile file("");
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = file.path().c_str();
    {
        Result<OutputFile> output = OutputFile::open(options);
        assert_true(output.ok());
        OutputBatch batch;
        for (const int64_t line : {5, 2, 9, 64}) {
            *batch.text() += "line " + std::to_string(line) + "\n";
            batch.commit_line(line, line == 9);
        }
        *batch.text() += "part of a li";
        batch.drop_uncommitted();
        assert_true(output->append(batch).ok());
        assert_int_equal(output->info().rows_written, 4);
        assert_int_equal(output->info().failed_written, 1);
        batch.clear();
        assert_true(batch.empty() && batch.bytes() == 0);
    }
    assert_string_equal(file.read().c_str(), "line 5\nline 2\nline 9\nline 64\n");
    const Result<OutputFile> refused = OutputFile::open(options);
    assert_non_null(std::strstr(refused.status().message().c_str(),
                                ": exists; --resume continues it, --force starts over"));
    options.existing = BATCHLLM_JOURNAL_RESUME;
    const Result<OutputFile> output = OutputFile::open(options);
    assert_true(output.ok());
    const DoneLines done = output->done();
    for (const int64_t line : {2, 5, 9, 64}) assert_true(done.contains(line));
    for (const int64_t line : {1, 3, 8, 63, 65, 1 << 30}) assert_false(done.contains(line));
    ::unlink((file.path() + ".state").c_str());
}

// Rows that an earlier run has done may have had every column; the rows that are left need not.
void rows_left_by_an_earlier_run_lack_a_cell_and_no_column(void **) {
    TemplateOptions options;
    options.text = "{title}: {text}";
    std::vector<RowError> errors;
    std::vector<InputRow> rows(1);
    rows[0].cells = {{1, "t"}};
    assert_false(TableRenderer(options).render(&rows, &errors, nullptr).ok());
    rows[0].cells = {{1, "t"}};
    TableRenderer resumed(options);
    resumed.pass_over_line();
    assert_true(resumed.render(&rows, &errors, nullptr).ok());
    assert_string_equal(errors[0].code.c_str(), "ROW_NULL");
}

// ---- Rows ----

// A row with this number in each kind of place: whether it is JSON, and what the number becomes.
bool row_is_right(InputRowReader *reader, const std::string &number) {
    const bool good = testing::NumberTexts::is_number(number);
    InputRow row;
    RowError error = reader->read(
        1, "{\"tokens\": [1], \"metadata\": [" + number + "], \"_own\":" + number + "}", &row);
    if (error.code != (good ? "" : "ROW_JSON")) return false;
    error =
        reader->read(1, "{\"max_tokens\": " + number + ", \"tokens\": [1], \"id\": \"x\"}", &row);
    // The id is known even if a number is malformed, unlike other things that are not JSON.
    const bool like_number = std::string("0123456789-+.").find(number[0]) != std::string::npos;
    if (row.record.id != (like_number ? "\"x\"" : "null")) return false;
    const double value = std::strtod(number.c_str(), nullptr);
    const bool fits =
        good && value == std::floor(value) && value >= INT32_MIN && value <= INT32_MAX;
    if (error.code.empty() != fits || (error.code == "ROW_JSON") == good) return false;
    if (fits && row.params->max_tokens != value) return false;
    // Whatever the id, it comes back as a number of the same value.
    error = reader->read(1, "{\"id\":" + number + ",\"tokens\":[1]}", &row);
    if (!good) return error.code == "ROW_JSON" && row.record.id == (like_number ? "1" : "null");
    const bool plain = number.find_first_of(".eE") == std::string::npos;
    return error.code.empty() && testing::NumberTexts::is_number(row.record.id) &&
           (plain && number != "-0" ? row.record.id == number
                                    : std::strtod(row.record.id.c_str(), nullptr) == value);
}

int check_numbers_in_rows() {
    testing::NumberTexts texts(seed_of_run());
    RowReaderOptions options;
    options.defaults = std::make_shared<SamplingOptions>();
    InputRowReader reader(std::move(options));
    int failures = 0;
    for (int32_t i = 0; i < cases(10000, 1000); ++i) {
        const std::string text = texts.next();
        if (row_is_right(&reader, text)) continue;
        ++failures;
        print_message("%s\n", text.c_str());
    }
    return failures;
}

void a_number_in_a_row_is_exact_or_refused(void **) {
    assert_int_equal(check_numbers_in_rows(), 0);
}

} // namespace
} // namespace batchllm::cli

int main() {
    using namespace batchllm::cli;
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_number_in_a_row_is_exact_or_refused),
        cmocka_unit_test(lines_end_with_lf_or_crlf_or_the_file),
        cmocka_unit_test(a_line_over_the_limit_is_passed_over_whatever_its_length),
        cmocka_unit_test(numbers_read_back_as_they_were),
        cmocka_unit_test(text_is_escaped_and_always_utf8),
        cmocka_unit_test(sizes_are_read_as_people_write_them),
        cmocka_unit_test(misspelt_keys_are_recognised),
        cmocka_unit_test(counts_and_durations_are_written_for_people),
        cmocka_unit_test(lines_that_are_written_are_done_when_the_output_is_resumed),
        cmocka_unit_test(rows_left_by_an_earlier_run_lack_a_cell_and_no_column),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
