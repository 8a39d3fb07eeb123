// libFuzzer: results and their state file, in any condition. They are rejected, or the job continues:
// then only whole results are left, and added ones are found again.
//
// Input: a byte; the results; a zero byte twice; the state. The byte: 1: the state does not begin with
// the job's own first line; 2: without the records below; 4: the state's bytes are written over its
// end; 8: the results are blocks instead of lines.
#include <cstring>
#include <string>
#include <vector>

#include <xxhash.h>

#include "fuzz_folder.h"
#include "journal/journal.h"

using namespace batchllm;
using fuzz::check;

namespace {

JobIdentity job() {
    JobIdentity identity;
    identity.created = 5;
    identity.add("model config.json", "none");
    identity.add("input bytes", "17");
    return identity;
}

// The bytes of the first entry; 0: there is none.
size_t entry_bytes(std::string_view results, bool blocks, uint64_t *rows) {
    *rows = 1;
    if (!blocks) return results.find('\n') + 1;
    uint64_t bytes = 0;
    if (results.size() < 16) return 0;
    std::memcpy(&bytes, results.data(), 8);
    std::memcpy(rows, results.data() + 8, 8);
    return bytes > results.size() - 16 || *rows > 100 ? 0 : 16 + bytes;
}

// Valid records for the results that the fuzzer has written, so that it need not guess their hashes.
std::string true_records(std::string_view results, bool blocks) {
    std::string records;
    ResultRecord record;
    uint64_t rows = 0;
    while (const size_t bytes = entry_bytes(results, blocks, &rows)) {
        record.hash = XXH3_64bits(results.data(), bytes);
        for (uint64_t i = 0; i < rows; ++i) {
            record.append_to(&records);
            ++record.row;
        }
        results.remove_prefix(bytes);
    }
    return records;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fuzz::Folder folder;
    if (size < 2) return 0;
    std::string_view input(reinterpret_cast<const char *>(data), size);
    const auto how = static_cast<unsigned char>(input.front());
    input.remove_prefix(1);
    const bool blocks = (how & 8) != 0;
    // Blocks are full of zeros: theirs end at the last place.
    const std::string_view between("\0\0", 2);
    const size_t part = blocks ? input.rfind(between) : input.find(between);
    const std::string_view results = input.substr(0, part);
    std::string state = (how & 1) == 0 ? job().to_json() + "\n" : "";
    if ((how & 2) == 0) state += true_records(results, blocks);
    if (part != std::string_view::npos) {
        const std::string_view rest = input.substr(part + 2);
        // Written over the end, so that records are also changed, not only added.
        if ((how & 4) != 0 && rest.size() < state.size()) {
            state.replace(state.size() - rest.size(), rest.size(), rest);
        } else {
            state += rest;
        }
    }
    folder.remove(blocks ? "out" : "out.blocks"); // of an input before
    folder.write(blocks ? "out.blocks" : "out", results);
    folder.write("out.state", state);
    JournalOptions options;
    options.output = folder.path() + "/out";
    options.parts = {{"input bytes", "17"}};
    options.existing = JournalOptions::Existing::resume;
    options.blocks = blocks;
    int64_t rows = 0;
    int64_t count = 0;
    {
        auto opened = Journal::open(options);
        if (!opened.ok()) {
            check(opened.status().message().find(folder.path()) != std::string::npos);
            return 0;
        }
        Journal &journal = **opened;
        check(journal.created() == 5 || (how & 1) != 0);
        for (int64_t block = 0; block < journal.blocks(); ++block) {
            auto bytes = journal.read_block(block);
            check(bytes.ok());
            auto of = journal.rows_of_block(block);
            check(of.ok() && !of->empty());
            for (const int64_t row : *of) check(journal.done().contains(row));
        }
        const std::vector<int64_t> row = {[&] {
            int64_t free = 0;
            while (journal.done().contains(free)) ++free;
            return free;
        }()};
        const uint8_t failed[] = {1};
        const int64_t offsets[] = {0, 3};
        check((blocks ? journal.append_block(row, failed, "{}\n")
                      : journal.append_lines(row, failed, "{}\n", offsets))
                  .ok());
        check(!(blocks ? journal.append_block(row, failed, "{}\n")
                       : journal.append_lines(row, failed, "{}\n", offsets))
                   .ok());
        rows = journal.rows_done() + 1;
        count = journal.blocks();
    }
    const auto again = Journal::open(options);
    check(again.ok() && (*again)->rows_done() == rows && (*again)->lost() == 0 &&
          (*again)->blocks() == count);
    return 0;
}
