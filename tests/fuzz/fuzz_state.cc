// libFuzzer: an output and its state file, in any condition. They are rejected, or the job
// continues: then the output has only whole lines, and added lines are found again.
//
// Input: a byte (even: the state begins with the job's own first line); the output; a zero byte twice; the state.
// Four bytes for a line and a letter, in place of a record, are replaced by a valid record: see
// below.
#include <string>

#include "cli/output_file.h"
#include "fuzz_folder.h"

using namespace batchllm;
using namespace batchllm::cli;
using fuzz::check;

namespace {

JobIdentity job() {
    JobIdentity identity;
    identity.created = 5;
    identity.add("input bytes", "17");
    return identity;
}

// Valid records for the lines that the fuzzer has written, so that it need not guess their hashes.
std::string true_records(std::string_view output) {
    OutputBatch batch;
    int64_t line = 1;
    while (!output.empty()) {
        const size_t end = output.find('\n');
        if (end == std::string_view::npos) break;
        batch.text()->append(output.substr(0, end + 1));
        batch.commit_line(line++, false);
        output.remove_prefix(end + 1);
    }
    return batch.records();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fuzz::Folder folder;
    if (size < 2) return 0;
    std::string_view input(reinterpret_cast<const char *>(data), size);
    const auto how = static_cast<unsigned char>(input.front());
    input.remove_prefix(1);
    const size_t part = input.find(std::string_view("\0\0", 2));
    const std::string_view output = input.substr(0, part);
    std::string state = (how & 1) == 0 ? job().to_json() + "\n" : "";
    if ((how & 2) == 0) state += true_records(output);
    if (part != std::string_view::npos) {
        const std::string_view rest = input.substr(part + 2);
        // Written over the end, so that records are also changed, not only added.
        if ((how & 4) != 0 && rest.size() < state.size()) {
            state.replace(state.size() - rest.size(), rest.size(), rest);
        } else {
            state += rest;
        }
    }
    folder.write("out", output);
    folder.write("out.state", state);
    const std::string path = folder.path() + "/out";
    int64_t rows = 0;
    {
        JobIdentity identity = job();
        auto file = OutputFile::open(path, "-", ExistingOutput::resume, &identity);
        if (!file.ok()) {
            check(file.status().message().find(folder.path()) != std::string::npos);
            return 0;
        }
        check(identity.created == 5 || (how & 1) != 0);
        check(file->start().ok());
        int64_t line = 1;
        while (file->done().contains(line)) ++line;
        OutputBatch batch;
        *batch.text() += "{}\n";
        batch.commit_line(line, true);
        check(file->append(batch).ok());
        rows = file->resumed_rows() + 1;
    }
    JobIdentity identity = job();
    auto again = OutputFile::open(path, "-", ExistingOutput::resume, &identity);
    check(again.ok() && again->resumed_rows() == rows && again->surplus_lines() == 0);
    return 0;
}
