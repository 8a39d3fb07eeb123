// batchllm_ranges_*: a sample of prompts to the boundaries of ranges with about the same work.
#include "prefix/prefix_ranges.h"

#include <cinttypes>
#include <memory>

#include "api/boundary.h"

using namespace batchllm;
using api::guard_out;
using api::need;

namespace {

// batchllm_ranges with the memory that its pointers lead to.
struct RangesBatch : batchllm_ranges {
    std::string all_starts;
    std::vector<int64_t> all_offsets = {0};
    std::vector<int64_t> all_places;
};

batchllm_ranges_options default_ranges_options() {
    batchllm_ranges_options options{};
    options.struct_size = sizeof options;
    options.partitions = 1;
    options.start_bytes = RangeOptions().start_bytes;
    options.expected_tokens = 1;
    return options;
}

Result<RangeOptions> read_options(const batchllm_ranges_options *options, int64_t n) {
    ASSIGN_OR_RETURN(const batchllm_ranges_options known,
                     api::over_defaults(options, default_ranges_options()));
    RETURN_IF_ERROR(api::need_zero("options->reserved", known.reserved));
    if (known.partitions < 1 || known.start_bytes < 1 || known.expected_tokens < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%" PRId64 " partitions, starts of %" PRId64 " bytes, %" PRId64
                     " tokens: at least 1, 1 and 0",
                     known.partitions, known.start_bytes, known.expected_tokens);
    }
    if (known.rows != 0 && known.rows < n) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "a sample of %" PRId64 " rows from %" PRId64,
                     n, known.rows);
    }
    RangeOptions read;
    read.partitions = known.partitions;
    read.rows = known.rows == 0 ? n : known.rows;
    read.start_bytes = known.start_bytes;
    read.expected_tokens = known.expected_tokens;
    return read;
}

} // namespace

extern "C" {

void batchllm_ranges_options_init(batchllm_ranges_options *options, size_t struct_size) {
    const batchllm_ranges_options defaults = default_ranges_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_ranges_choose(int64_t n, const char *starts, const int64_t *offsets,
                               const int64_t *lengths, const int64_t *places,
                               const batchllm_ranges_options *options, batchllm_ranges **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(check_column("starts", starts, "offsets", offsets, n));
        if (n > 0) {
            RETURN_IF_ERROR(need("lengths", lengths));
            RETURN_IF_ERROR(need("places", places));
        }
        ASSIGN_OR_RETURN(const RangeOptions read, read_options(options, n));
        const Column<char> column{n, starts, offsets};
        std::vector<SampledPrompt> sample;
        for (int64_t i = 0; i < n; ++i) {
            if (lengths[i] < 0) {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                             "lengths[%" PRId64 "] is %" PRId64 ": it cannot be negative", i,
                             lengths[i]);
            }
            const std::span<const char> start = column[i];
            sample.push_back({{start.data(), start.size()}, places[i], lengths[i]});
        }
        const PrefixRanges chosen = choose_ranges(&sample, read);
        auto made = std::make_unique<RangesBatch>();
        for (const PrefixRanges::Boundary &boundary : chosen.boundaries) {
            made->all_starts += boundary.start;
            made->all_offsets.push_back(static_cast<int64_t>(made->all_starts.size()));
            made->all_places.push_back(boundary.place);
        }
        made->struct_size = sizeof(batchllm_ranges);
        made->blind = chosen.blind ? 1 : 0;
        made->count = static_cast<int64_t>(made->all_places.size());
        made->starts = made->all_starts.data();
        made->offsets = made->all_offsets.data();
        made->places = made->all_places.data();
        *out = made.release();
        return {};
    });
}

void batchllm_ranges_free(batchllm_ranges *ranges) { delete static_cast<RangesBatch *>(ranges); }

} // extern "C"
