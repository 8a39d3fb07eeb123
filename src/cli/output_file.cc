#include "cli/output_file.h"

namespace batchllm::cli {
namespace {

// What a user of the program can do about an output that cannot be taken as it is.
std::string remedy(int32_t status) {
    switch (status) {
    case BATCHLLM_ERROR_JOURNAL_EXISTS:
        return "; --resume continues it, --force starts over";
    case BATCHLLM_ERROR_JOURNAL_FORMAT:
    case BATCHLLM_ERROR_JOURNAL_MISMATCH:
        return "; --force starts over";
    default:
        return "";
    }
}

} // namespace

void OutputBatch::commit_line(int64_t input_line, bool failed) {
    // Only this may run out of memory. rows_ comes last: it tells whether all three have room.
    if (rows_.size() == rows_.capacity()) {
        const size_t room = 2 * rows_.size() + 64;
        offsets_.reserve(room + 1);
        failed_.reserve(room);
        rows_.reserve(room);
    }
    offsets_.push_back(static_cast<int64_t>(text_.size()));
    rows_.push_back(input_line - 1);
    failed_.push_back(failed ? 1 : 0);
}

void OutputBatch::clear() {
    text_.clear();
    offsets_.resize(1);
    rows_.clear();
    failed_.clear();
}

Result<OutputFile> OutputFile::open(const batchllm_journal_options &options) {
    batchllm_journal *journal = nullptr;
    const Status status = call_status(batchllm_journal_open(&options, &journal));
    if (!status.ok()) return Status(status.code(), status.message() + remedy(status.code()));
    OutputFile file{JournalHandle(journal)};
    RETURN_IF_ERROR(file.after(BATCHLLM_OK));
    return file;
}

Status OutputFile::use_pictures(const batchllm_pictures *pictures) {
    const Status status = call_status(batchllm_journal_use_pictures(journal_.get(), pictures));
    return Status(status.code(), status.message() + remedy(status.code()));
}

Status OutputFile::append(const OutputBatch &batch) {
    return after(batchllm_journal_append_lines(
        journal_.get(), static_cast<int64_t>(batch.rows_.size()), batch.rows_.data(),
        batch.failed_.data(), batch.text_.data(), batch.offsets_.data()));
}

Status OutputFile::sync() { return after(batchllm_journal_sync(journal_.get())); }

// The status of a call that has just returned; counts what it has done even if it failed.
Status OutputFile::after(int32_t code) {
    Status status = call_status(code);
    info_.struct_size = sizeof info_;
    const Status told = call_status(batchllm_journal_get_info(journal_.get(), &info_));
    return status.ok() ? told : status;
}

} // namespace batchllm::cli
