// batchllm demo: the two jobs in the folder that is installed with the program, of product records and of pages, which are
// pictures. They run as any other; then some questions and answers are shown, and how many answers of all are right.
#include "cli/commands.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <unistd.h>
#include <utility>

#include "base/file.h"
#include "base/json_view.h"
#include "cli/line_reader.h"

namespace batchllm::cli {
namespace {

namespace fs = std::filesystem;

// Beside the program, as in a Python package or a build folder, or in share.
Result<std::string> demo_folder() {
    char program[PATH_MAX];
    const ssize_t size = ::readlink("/proc/self/exe", program, sizeof program);
    if (size < 0) return error(BATCHLLM_ERROR_IO, "/proc/self/exe: %s", std::strerror(errno));
    const fs::path folder = fs::path(std::string(program, static_cast<size_t>(size))).parent_path();
    for (const fs::path &place : {folder / "demo", folder.parent_path() / "share/batchllm/demo"}) {
        ASSIGN_OR_RETURN(const bool there, file_exists((place / "rows.jsonl").string()));
        if (there) return place.string();
    }
    return error(BATCHLLM_ERROR_IO, "the demo's files are not installed with %s", program);
}

// A folder that is removed with all that is in it.
class TemporaryFolder {
  public:
    static Result<TemporaryFolder> make() {
        const char *parent = std::getenv("TMPDIR");
        std::string path = parent != nullptr && *parent != '\0' ? parent : "/tmp";
        path += "/batchllm-demo-XXXXXX";
        if (::mkdtemp(path.data()) == nullptr)
            return error(BATCHLLM_ERROR_IO, "%s: %s", path.c_str(), std::strerror(errno));
        return TemporaryFolder(std::move(path));
    }
    TemporaryFolder(TemporaryFolder &&other) noexcept : path_(std::exchange(other.path_, {})) {}
    ~TemporaryFolder() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    const std::string &path() const { return path_; }

  private:
    explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// The members of a line that are strings or whole numbers.
struct Record {
    std::map<std::string, std::string, std::less<>> text;
    std::map<std::string, int64_t, std::less<>> number;
};

Result<std::vector<Record>> read_records(const std::string &path,
                                         const std::atomic<bool> &interrupted) {
    ASSIGN_OR_RETURN(LineReader lines, LineReader::open(path, int64_t{1} << 20, &interrupted));
    std::vector<Record> records;
    JsonParser parser;
    Line line;
    for (;;) {
        ASSIGN_OR_RETURN(const bool more, lines.next(&line));
        if (!more) return records;
        JsonView object;
        const JsonFault fault = parser.parse(line.text, &object);
        const auto members = fault.kind == JsonFault::Kind::none ? object.members() : std::nullopt;
        if (!members.has_value())
            return error(BATCHLLM_ERROR_IO, "%s: a line is not a JSON object", path.c_str());
        Record &record = records.emplace_back();
        for (const auto [key, value] : *members) {
            if (value.string().has_value()) record.text[std::string(key)] = *value.string();
            if (value.integer().has_value()) record.number[std::string(key)] = *value.integer();
        }
    }
}

// On one line, without white space around it, and at most so many characters.
std::string one_line(std::string_view text, size_t longest) {
    std::string shown;
    size_t characters = 0;
    for (const char c : text) {
        const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
        if (starts && ++characters > longest) return shown + " ...";
        const bool blank = c == ' ' || c == '\n' || c == '\t';
        if (blank && (shown.empty() || shown.back() == ' ')) {
            --characters;
            continue;
        }
        shown += blank ? ' ' : c;
    }
    while (!shown.empty() && shown.back() == ' ') shown.pop_back();
    return shown;
}

// Where the first `characters` of a UTF-8 text end.
size_t bytes_of(std::string_view text, int64_t characters) {
    size_t at = 0;
    for (; at < text.size(); ++at) {
        const bool starts = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
        if (starts && --characters < 0) break;
    }
    return at;
}

// A job's answers by the ids of its rows.
Result<std::map<std::string, std::string>> read_answers(const std::string &output,
                                                        const std::atomic<bool> &interrupted) {
    ASSIGN_OR_RETURN(std::vector<Record> answered, read_records(output, interrupted));
    std::map<std::string, std::string> answers;
    for (Record &record : answered)
        answers[record.text["id"]] = one_line(record.text["text"], SIZE_MAX);
    return answers;
}

Status show_records(const std::string &folder, const std::string &output,
                    const std::atomic<bool> &interrupted) {
    ASSIGN_OR_RETURN(const std::vector<Record> rows,
                     read_records(folder + "/rows.jsonl", interrupted));
    ASSIGN_OR_RETURN(std::vector<Record> expected,
                     read_records(folder + "/expected.jsonl", interrupted));
    ASSIGN_OR_RETURN(auto answers, read_answers(output, interrupted));
    std::map<std::string, std::string> shown; // of each task, the document that is shown
    size_t right = 0;
    for (size_t i = 0; i < rows.size() && i < expected.size(); ++i) {
        const std::string_view prompt = rows[i].text.find("prompt")->second;
        const std::string &answer = answers[expected[i].text["id"]];
        const size_t shared = bytes_of(prompt, expected[i].number["prefix_characters"]);
        const std::string document(prompt.substr(0, shared));
        const bool extraction = expected[i].text["task"] == "extraction";
        const auto [place, first] = shown.emplace(expected[i].text["task"], document);
        if (first) {
            std::printf("\n%s\n  %s\n",
                        extraction ? "A record, and questions about it:"
                                   : "A request, and products checked against it:",
                        one_line(document, 300).c_str());
        }
        if (place->second == document) {
            std::printf("    %s  ->  %s\n", one_line(prompt.substr(shared), 90).c_str(),
                        answer.c_str());
        }
        right += answer == expected[i].text["expected"];
    }
    std::printf("\n%zu of %zu answers are right.\n", right, rows.size());
    return {};
}

Status show_pages(const std::string &folder, const std::string &output,
                  const std::atomic<bool> &interrupted) {
    ASSIGN_OR_RETURN(std::vector<Record> expected,
                     read_records(folder + "/expected.jsonl", interrupted));
    ASSIGN_OR_RETURN(auto answers, read_answers(output, interrupted));
    constexpr size_t pages_shown = 2;
    size_t right = 0, pages = 0;
    std::string page;
    for (Record &record : expected) {
        const std::string &answer = answers[record.text["id"]];
        right += answer == record.text["expected"];
        if (page != record.text["page"]) {
            page = record.text["page"];
            if (++pages <= pages_shown) std::printf("\n%s/%s\n", folder.c_str(), page.c_str());
        }
        if (pages <= pages_shown)
            std::printf("    %s  ->  %s\n", record.text["question"].c_str(), answer.c_str());
    }
    std::printf("\n%zu of %zu answers about pages are right.\n", right, expected.size());
    return {};
}

// Runs a folder's rows with its model.
int run_folder(const std::string &folder, const std::string &output, const DemoOptions &options,
               const std::atomic<bool> &interrupted) {
    RunOptions run;
    run.in.model = folder;
    run.in.input = folder + "/rows.jsonl";
    run.engine.backend = options.backend;
    run.output = output;
    std::printf("batchllm run --model %s --input %s --output answers.jsonl\n", run.in.model.c_str(),
                run.in.input.c_str());
    std::fflush(stdout);
    return run_command(run, interrupted);
}

Status demo(const DemoOptions &options, const std::atomic<bool> &interrupted, int *code) {
    ASSIGN_OR_RETURN(const std::string folder, demo_folder());
    ASSIGN_OR_RETURN(const TemporaryFolder temporary, TemporaryFolder::make());
    const std::string records = temporary.path() + "/answers.jsonl";
    *code = run_folder(folder, records, options, interrupted);
    if (*code != exit_ok) return {};
    RETURN_IF_ERROR(show_records(folder, records, interrupted));
    std::printf("\n");
    const std::string pages = temporary.path() + "/pages.jsonl";
    *code = run_folder(folder + "/pages", pages, options, interrupted);
    if (*code != exit_ok) return {};
    RETURN_IF_ERROR(show_pages(folder + "/pages", pages, interrupted));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        return error(BATCHLLM_ERROR_IO, "stdout: cannot write");
    return {};
}

} // namespace

int demo_command(const DemoOptions &options, const std::atomic<bool> &interrupted) try {
    int code = exit_ok;
    const Status status = demo(options, interrupted, &code);
    return status.ok() ? code : report(status.message());
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
