// batchllm_journal_*: what makes a job resumable.
#include "journal/journal.h"

#include <cinttypes>

#include "api/boundary.h"
#include "api/pictures.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;

struct batchllm_journal {
    std::unique_ptr<Journal> journal;
};

namespace {

batchllm_journal_options default_journal_options() {
    batchllm_journal_options options{};
    options.struct_size = sizeof options;
    options.keep_state = 1;
    return options;
}

Status need_one_of(const char *name, int32_t value, int32_t last) {
    if (value >= 0 && value <= last) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %" PRId32 ": it must be 0 to %" PRId32,
                 name, value, last);
}

Result<JournalOptions> read_options(const batchllm_journal_options *options) {
    RETURN_IF_ERROR(need("options", options));
    ASSIGN_OR_RETURN(const batchllm_journal_options known,
                     api::over_defaults(options, default_journal_options()));
    RETURN_IF_ERROR(need_one_of("kind", known.kind, BATCHLLM_JOURNAL_BLOCKS));
    RETURN_IF_ERROR(need_one_of("existing", known.existing, BATCHLLM_JOURNAL_RETRY));
    JournalOptions read;
    const auto text = [](const char *given) { return std::string(given == nullptr ? "" : given); };
    read.output = text(known.output_path);
    if (known.output_path != nullptr && read.output.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "output_path is empty");
    }
    read.input = text(known.input_path);
    read.model = text(known.model_dir);
    read.earlier_state = text(known.earlier_state);
    if (!read.earlier_state.empty() && !read.output.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "earlier_state: the state of a file is beside it");
    }
    using Existing = JournalOptions::Existing;
    read.existing = known.existing == BATCHLLM_JOURNAL_RESUME      ? Existing::resume
                    : known.existing == BATCHLLM_JOURNAL_OVERWRITE ? Existing::overwrite
                    : known.existing == BATCHLLM_JOURNAL_RETRY     ? Existing::retry
                                                                   : Existing::refuse;
    read.blocks = known.kind == BATCHLLM_JOURNAL_BLOCKS;
    read.keep_state = known.keep_state != 0;
    if (known.part_count < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "part_count is %" PRId64, known.part_count);
    }
    if (known.part_count > 0) {
        RETURN_IF_ERROR(need("part_names", known.part_names));
        RETURN_IF_ERROR(need("part_values", known.part_values));
    }
    for (int64_t i = 0; i < known.part_count; ++i) {
        RETURN_IF_ERROR(need("a part's name", known.part_names[i]));
        RETURN_IF_ERROR(need("a part's value", known.part_values[i]));
        read.parts.emplace_back(known.part_names[i], known.part_values[i]);
    }
    return read;
}

} // namespace

extern "C" {

void batchllm_journal_options_init(batchllm_journal_options *options, size_t struct_size) {
    const batchllm_journal_options defaults = default_journal_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_journal_open(const batchllm_journal_options *options, batchllm_journal **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(const JournalOptions read, read_options(options));
        auto handle = std::make_unique<batchllm_journal>();
        ASSIGN_OR_RETURN(handle->journal, Journal::open(read));
        *out = handle.release();
        return {};
    });
}

void batchllm_journal_destroy(batchllm_journal *journal) { delete journal; }

int32_t batchllm_journal_get_info(const batchllm_journal *journal, batchllm_journal_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        RETURN_IF_ERROR(need("info", info));
        const Journal &of = *journal->journal;
        batchllm_journal_info full{};
        full.struct_size = sizeof full;
        full.started = of.started() ? 1 : 0;
        full.resumable = of.resumable() ? 1 : 0;
        full.complete = of.complete() ? 1 : 0;
        full.created = of.created();
        full.done = of.done().bytes().data();
        full.done_bytes = static_cast<int64_t>(of.done().bytes().size());
        full.rows_done = of.rows_done();
        full.failed_done = of.failed_done();
        full.rows_lost = of.lost();
        full.rows_written = of.rows_written();
        full.failed_written = of.failed_written();
        full.blocks = of.blocks();
        full.state = of.state().empty() ? nullptr : of.state().c_str();
        return api::copy_out("info", &full, sizeof full, info);
    });
}

int32_t batchllm_journal_use_pictures(batchllm_journal *journal,
                                      const batchllm_pictures *pictures) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        RETURN_IF_ERROR(need("pictures", pictures));
        return journal->journal->use_pictures(pictures->library.get());
    });
}

int32_t batchllm_journal_append_lines(batchllm_journal *journal, int64_t n, const int64_t *rows,
                                      const uint8_t *failed, const char *text,
                                      const int64_t *offsets) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        RETURN_IF_ERROR(check_column("text", text, "offsets", offsets, n));
        if (n == 0) return journal->journal->append_lines({}, nullptr, {}, {});
        RETURN_IF_ERROR(need("rows", rows));
        const auto count = static_cast<size_t>(n);
        return journal->journal->append_lines(
            {rows, count}, failed, {text, static_cast<size_t>(offsets[n])}, {offsets, count + 1});
    });
}

int32_t batchllm_journal_append_block(batchllm_journal *journal, int64_t n, const int64_t *rows,
                                      const uint8_t *failed, const void *block, int64_t bytes) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        if (n < 1 || bytes < 0) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "a block of %" PRId64 " rows and %" PRId64 " bytes", n, bytes);
        }
        RETURN_IF_ERROR(need("rows", rows));
        if (bytes > 0) RETURN_IF_ERROR(need("block", block));
        return journal->journal->append_block(
            {rows, static_cast<size_t>(n)}, failed,
            {static_cast<const char *>(block), static_cast<size_t>(bytes)});
    });
}

int32_t batchllm_journal_read_block(batchllm_journal *journal, int64_t block, const int64_t **rows,
                                    int64_t *n, const void **bytes, int64_t *size) {
    return guard([&]() -> Status {
        if (rows != nullptr) *rows = nullptr;
        if (n != nullptr) *n = 0;
        if (bytes != nullptr) *bytes = nullptr;
        if (size != nullptr) *size = 0;
        RETURN_IF_ERROR(need("journal", journal));
        if ((rows == nullptr) != (n == nullptr)) RETURN_IF_ERROR(need("rows or n", nullptr));
        if ((bytes == nullptr) != (size == nullptr))
            RETURN_IF_ERROR(need("bytes or size", nullptr));
        std::span<const int64_t> of_rows;
        std::string_view of_bytes;
        if (rows != nullptr) {
            ASSIGN_OR_RETURN(of_rows, journal->journal->rows_of_block(block));
        }
        if (bytes != nullptr) {
            ASSIGN_OR_RETURN(of_bytes, journal->journal->read_block(block));
        }
        if (rows != nullptr) {
            *rows = of_rows.data();
            *n = static_cast<int64_t>(of_rows.size());
        }
        if (bytes != nullptr) {
            *bytes = of_bytes.data();
            *size = static_cast<int64_t>(of_bytes.size());
        }
        return {};
    });
}

int32_t batchllm_journal_sync(batchllm_journal *journal) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        return journal->journal->sync();
    });
}

int32_t batchllm_journal_finish(batchllm_journal *journal, const char *path) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("journal", journal));
        return journal->journal->finish(path == nullptr ? "" : path);
    });
}

} // extern "C"
