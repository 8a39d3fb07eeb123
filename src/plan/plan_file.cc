// magic, format version, flags | zstd frame of the sections. See docs/plan-file.md.
#include "plan/plan_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/file.h"
#include "plan/plan_bytes.h"

namespace batchllm {
namespace {

constexpr char magic[] = "BLLMPLAN";
constexpr size_t magic_bytes = sizeof magic - 1;
constexpr int compression_level = 3;

// zstd's own text for an error. If zstd ran out of memory, it is that error.
Status zstd_error(size_t result, int32_t code) {
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    return error(code, "zstd: %s", ZSTD_getErrorName(result));
}

// The most that a frame of this many bytes may contain. No plan compresses better (writers ensure
// that), so a small file cannot make a reader allocate much memory.
constexpr uint64_t most_content(uint64_t frame_bytes) {
    return (uint64_t{1} << 20) + frame_bytes * 1024;
}

using Context = std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)>;

Result<std::string> compress(const std::string &sections) {
    const Context context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
    if (!context) return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to compress a plan");
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, compression_level);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 1);
    std::string frame(ZSTD_compressBound(sections.size()), '\0');
    const size_t bytes =
        ZSTD_compress2(context.get(), frame.data(), frame.size(), sections.data(), sections.size());
    if (ZSTD_isError(bytes)) {
        return zstd_error(bytes, BATCHLLM_ERROR_INTERNAL);
    }
    frame.resize(bytes);
    return frame;
}

// Ensures that the written file can be read.
Status check_size(const Plan &plan, size_t section_bytes) {
    const int64_t tokens = plan.options.self_contained ? plan.logical_tokens() : 0;
    const auto most = static_cast<uint64_t>(most_plan_bytes);
    if (section_bytes <= most && static_cast<uint64_t>(tokens) <= (most - section_bytes) / 4) {
        return {};
    }
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "a plan of %lld rows, with %lld tokens inside, is over the %lld GiB of a plan "
                 "file%s",
                 static_cast<long long>(plan.row_count()), static_cast<long long>(tokens),
                 static_cast<long long>(most_plan_bytes >> 30),
                 tokens > 0 ? "; without the tokens it may fit" : "");
}

} // namespace

Result<std::string> write_plan(const Plan &plan) {
    RETURN_IF_ERROR(check_size(plan, 0));
    RETURN_IF_ERROR(check_plan(plan));
    std::string sections = write_plan_sections(plan);
    const size_t bare = sections.size();
    const auto least = static_cast<size_t>(least_section_bytes(plan));
    if (bare < least) append_padding(sections, least - bare);
    ASSIGN_OR_RETURN(std::string frame, compress(sections));
    if (sections.size() > most_content(frame.size())) {
        sections.resize(bare);
        append_padding(sections, std::max(least, bare) / 1000);
        if (sections.size() < least) {
            sections.resize(bare);
            append_padding(sections, least);
        }
        ASSIGN_OR_RETURN(frame, compress(sections));
    }
    RETURN_IF_ERROR(check_size(plan, sections.size()));
    std::string file(magic, magic_bytes);
    ByteWriter header(file);
    header.fixed(plan_format_version);
    header.fixed((plan.options.self_contained ? plan_has_tokens : 0) |
                 (plan.salts.empty() ? 0 : plan_has_salts));
    return file + frame;
}

Result<Plan> read_plan(std::span<const std::byte> file) {
    constexpr int32_t bad = BATCHLLM_ERROR_PLAN_FORMAT;
    ByteReader header(file);
    const auto start = header.take(magic_bytes);
    const auto version = header.fixed<uint32_t>();
    const auto flags = header.fixed<uint32_t>();
    if (header.failed() || std::memcmp(start.data(), magic, magic_bytes) != 0) {
        return error(bad, "not a plan file");
    }
    if (version < 1 || version > plan_format_version) {
        return error(bad, "format version %u; this library reads 1 to %u", version,
                     plan_format_version);
    }
    if ((flags & ~(plan_has_tokens | plan_has_salts)) != 0) {
        return error(bad, "unknown flags 0x%x", flags);
    }

    const auto frame = header.take(header.left());
    const uint64_t size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR) return error(bad, "no zstd frame after the header");
    if (size == ZSTD_CONTENTSIZE_UNKNOWN)
        return error(bad, "the zstd frame does not declare its size");
    // The descriptor after the frame's magic number (RFC 8878, 3.1.1.1.1). Bit 2 says whether there
    // is a checksum; bit 4 is unused and not covered by it.
    const int descriptor = frame.size() < 5 ? 0 : std::to_integer<int>(frame[4]);
    if ((descriptor & 0x4) == 0) return error(bad, "the zstd frame has no checksum");
    if ((descriptor & 0x10) != 0) return error(bad, "the zstd frame's header is damaged");
    if (size > most_content(frame.size())) {
        return error(bad, "%zu compressed bytes declare %llu: more than any plan", frame.size(),
                     static_cast<unsigned long long>(size));
    }
    if (size > static_cast<uint64_t>(most_plan_bytes)) {
        return error(bad, "%llu bytes of sections, over the %lld GiB of a plan file",
                     static_cast<unsigned long long>(size),
                     static_cast<long long>(most_plan_bytes >> 30));
    }
    if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) {
        return error(bad, "the zstd frame is cut off, damaged or followed by something");
    }
    const auto sections = std::make_unique_for_overwrite<std::byte[]>(size);
    const size_t bytes = ZSTD_decompress(sections.get(), size, frame.data(), frame.size());
    if (ZSTD_isError(bytes)) return zstd_error(bytes, bad);
    if (bytes != size) return error(bad, "the zstd frame is not as long as it declares");
    return read_plan_sections({sections.get(), size}, flags);
}

Status save_plan(const Plan &plan, const std::string &path) {
    auto bytes = write_plan(plan);
    if (!bytes.ok()) return std::move(bytes).status().within(path);
    return write_file(path, *bytes);
}

Result<Plan> load_plan(const std::string &path) {
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    auto plan = read_plan(file.bytes());
    if (!plan.ok()) return std::move(plan).status().within(path);
    return plan;
}

} // namespace batchllm
