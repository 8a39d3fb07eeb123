// A plan <-> the sections of a plan file, format version 1 (docs/plan-file.md).
#include <algorithm>

#include "plan/plan_bytes.h"
#include "plan/plan_file.h"

namespace batchllm {
namespace {

enum Section : uint32_t {
    section_options = 1,
    section_fingerprints = 2,
    section_lengths = 3,
    section_prefixes = 4,
    section_groups = 5,
    section_rows = 6,
    section_tokens = 7,
    section_padding = 8,
    section_salts = 9,   // before the advice
    section_advice = 10, // before the padding
};

constexpr const char *section_names[] = {"",         "options", "fingerprints", "lengths",
                                         "prefixes", "groups",  "rows",         "tokens",
                                         "padding",  "salts",   "advice"};

// How many tokens a reader allocates memory for, at most, per byte of the sections.
constexpr int64_t tokens_a_byte = 1024;

class SectionWriter {
  public:
    explicit SectionWriter(std::string &out) : out_(out) {}

    template <typename Body> void section(Section id, const Body &body) {
        ByteWriter bytes(out_);
        bytes.fixed(static_cast<uint32_t>(id));
        const size_t at = out_.size();
        bytes.fixed(uint64_t{0});
        body(bytes);
        std::string length;
        ByteWriter(length).fixed(static_cast<uint64_t>(out_.size() - at - 8));
        std::copy(length.begin(), length.end(), out_.begin() + static_cast<ptrdiff_t>(at));
    }

  private:
    std::string &out_;
};

size_t index(int64_t i) { return static_cast<size_t>(i); }

std::vector<int64_t> row_offsets(const Plan &plan) {
    std::vector<int64_t> offsets(plan.lengths.size() + 1);
    for (size_t i = 0; i < plan.lengths.size(); ++i) offsets[i + 1] = offsets[i] + plan.lengths[i];
    return offsets;
}

// Calls run(row, begin, end) for each range of tokens that is stored: prefixes beyond their
// parents, then each row beyond its group's prefix.
template <typename Run> bool for_each_run(const Plan &plan, const Run &run) {
    for (const PlanPrefix &prefix : plan.prefixes) {
        const int32_t begin = prefix.parent < 0 ? 0 : plan.prefixes[index(prefix.parent)].length;
        if (!run(prefix.row, begin, prefix.length)) return false;
    }
    for (const PlanGroup &group : plan.groups) {
        const int32_t begin = group.prefix < 0 ? 0 : plan.prefixes[index(group.prefix)].length;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const int64_t row = plan.rows[index(i)];
            if (!run(row, begin, plan.lengths[index(row)])) return false;
        }
    }
    return true;
}

void write_tokens(const Plan &plan, ByteWriter &bytes) {
    const std::vector<int64_t> offsets = row_offsets(plan);
    for_each_run(plan, [&](int64_t row, int32_t begin, int32_t end) {
        int64_t previous = 0;
        for (int32_t i = begin; i < end; ++i) {
            const int32_t token = plan.tokens[index(offsets[index(row)] + i)];
            bytes.varint(zigzag(token - previous));
            previous = token;
        }
        return true;
    });
}

// Ratios are stored in millionths.
constexpr double whole = 1e6;

void write_advice(const PlanAdvice &advice, ByteWriter &bytes) {
    bytes.varint(static_cast<uint64_t>(advice.kind));
    for (const int64_t number :
         {advice.rows, advice.common_tokens, advice.row, advice.begin, advice.end}) {
        bytes.varint(static_cast<uint64_t>(number));
    }
    for (const double ratio : {advice.saving_ratio, advice.possible_ratio}) {
        bytes.varint(static_cast<uint64_t>(ratio * whole + 0.5));
    }
}

PlanAdvice read_advice(const Plan &plan, ByteReader &section) {
    PlanAdvice advice;
    advice.kind = static_cast<int32_t>(section.varint_up_to(BATCHLLM_ADVICE_EARLY_DIFFERENCE));
    advice.rows = static_cast<int64_t>(section.varint_up_to(plan.rows.size()));
    advice.common_tokens = static_cast<int64_t>(section.varint_up_to(INT32_MAX));
    advice.row = static_cast<int64_t>(section.varint_up_to(INT32_MAX));
    if (advice.row >= plan.row_count()) section.set_failed();
    if (section.failed()) return advice;
    const auto length = static_cast<uint64_t>(plan.lengths[index(advice.row)]);
    advice.begin = static_cast<int64_t>(section.varint_up_to(length));
    advice.end = static_cast<int64_t>(section.varint_up_to(length));
    advice.saving_ratio = static_cast<double>(section.varint_up_to(1000000)) / whole;
    advice.possible_ratio = static_cast<double>(section.varint_up_to(1000000)) / whole;
    if (advice.kind == BATCHLLM_ADVICE_NONE || advice.begin > advice.end) section.set_failed();
    return advice;
}

Status malformed(Section section, const char *what, size_t item) {
    return error(BATCHLLM_ERROR_PLAN_FORMAT, "section '%s': %s %zu is not readable",
                 section_names[section], what, item);
}

// The bytes of this section, which must come next.
Result<ByteReader> open_section(ByteReader &sections, Section id) {
    const auto found = sections.fixed<uint32_t>();
    const auto length = sections.fixed<uint64_t>();
    if (sections.failed()) {
        return error(BATCHLLM_ERROR_PLAN_FORMAT, "section '%s' is missing", section_names[id]);
    }
    if (found != id) {
        return error(BATCHLLM_ERROR_PLAN_FORMAT, "section %u where '%s' should be", found,
                     section_names[id]);
    }
    if (length > sections.left()) {
        return error(BATCHLLM_ERROR_PLAN_FORMAT,
                     "section '%s' of %llu bytes, of which %zu are there", section_names[id],
                     static_cast<unsigned long long>(length), sections.left());
    }
    return ByteReader(sections.take(static_cast<size_t>(length)));
}

Status close_section(const ByteReader &section, Section id) {
    if (section.failed())
        return error(BATCHLLM_ERROR_PLAN_FORMAT, "section '%s' ends early", section_names[id]);
    if (section.at_end()) return {};
    return error(BATCHLLM_ERROR_PLAN_FORMAT, "section '%s': %zu bytes too many", section_names[id],
                 section.left());
}

// Checks a count of items of at least `item_bytes` each against the bytes that are present.
Status check_count(Section id, uint64_t count, uint64_t item_bytes, const ByteReader &section) {
    if (count <= section.left() / item_bytes) return {};
    return error(BATCHLLM_ERROR_PLAN_FORMAT, "section '%s': %llu items in %zu bytes",
                 section_names[id], static_cast<unsigned long long>(count), section.left());
}

Status read_tokens(ByteReader &section, size_t sections_bytes, Plan &plan) {
    const std::vector<int64_t> offsets = row_offsets(plan);
    const int64_t total = offsets.back();
    if (total / tokens_a_byte > static_cast<int64_t>(sections_bytes)) {
        return error(BATCHLLM_ERROR_PLAN_FORMAT,
                     "section 'tokens': rows of %lld tokens in %zu bytes",
                     static_cast<long long>(total), sections_bytes);
    }
    const int64_t most = most_plan_bytes - static_cast<int64_t>(sections_bytes);
    if (total > most / static_cast<int64_t>(sizeof(int32_t))) {
        return error(BATCHLLM_ERROR_PLAN_FORMAT,
                     "section 'tokens': rows of %lld tokens, over the %lld GiB of a plan file",
                     static_cast<long long>(total), static_cast<long long>(most_plan_bytes >> 30));
    }
    int64_t stored = 0;
    for_each_run(plan, [&](int64_t, int32_t begin, int32_t end) {
        stored += end - begin;
        return true;
    });
    RETURN_IF_ERROR(check_count(section_tokens, static_cast<uint64_t>(stored), 1, section));
    plan.tokens.resize(index(total));
    const bool read = for_each_run(plan, [&](int64_t row, int32_t begin, int32_t end) {
        int64_t previous = 0;
        for (int32_t i = begin; i < end; ++i) {
            previous = section.step_from(previous, INT32_MIN, INT32_MAX);
            plan.tokens[index(offsets[index(row)] + i)] = static_cast<int32_t>(previous);
        }
        return !section.failed();
    });
    if (!read) return error(BATCHLLM_ERROR_PLAN_FORMAT, "section 'tokens' is not readable");
    // Copies stored tokens to all that share them: parents before children, prefixes before rows.
    const auto copy = [&](int64_t from, int64_t to, int32_t length) {
        if (from == to) return;
        std::copy_n(plan.tokens.begin() + offsets[index(from)], length,
                    plan.tokens.begin() + offsets[index(to)]);
    };
    for (const PlanPrefix &prefix : plan.prefixes) {
        if (prefix.parent < 0) continue;
        const PlanPrefix &parent = plan.prefixes[index(prefix.parent)];
        copy(parent.row, prefix.row, parent.length);
    }
    for (const PlanGroup &group : plan.groups) {
        if (group.prefix < 0) continue;
        const PlanPrefix &prefix = plan.prefixes[index(group.prefix)];
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            copy(prefix.row, plan.rows[index(i)], prefix.length);
        }
    }
    return {};
}

Status read_salts(ByteReader &sections, Plan &plan) {
    ASSIGN_OR_RETURN(ByteReader section, open_section(sections, section_salts));
    RETURN_IF_ERROR(check_count(section_salts, plan.rows.size(), 8, section));
    plan.salts.resize(plan.rows.size());
    for (uint64_t &salt : plan.salts) salt = section.fixed<uint64_t>();
    RETURN_IF_ERROR(close_section(section, section_salts));
    if (std::any_of(plan.salts.begin(), plan.salts.end(), [](uint64_t salt) { return salt != 0; }))
        return {};
    return error(BATCHLLM_ERROR_PLAN_FORMAT, "section 'salts': all are 0");
}

} // namespace

std::string write_plan_sections(const Plan &plan) {
    std::string out;
    SectionWriter writer(out);
    writer.section(section_options, [&](ByteWriter &bytes) {
        bytes.varint(static_cast<uint64_t>(plan.options.enlarge));
        bytes.varint(static_cast<uint64_t>(plan.options.levels));
        bytes.varint(static_cast<uint64_t>(plan.options.order));
        bytes.varint(static_cast<uint64_t>(plan.options.min_prefix_tokens));
        bytes.fixed(plan.options.tokenizer_fingerprint);
        bytes.varint(plan.rows.size());
        bytes.varint(plan.prefixes.size());
        bytes.varint(plan.groups.size());
    });
    writer.section(section_fingerprints, [&](ByteWriter &bytes) {
        for (const uint64_t fingerprint : plan.fingerprints) bytes.fixed(fingerprint);
    });
    writer.section(section_lengths, [&](ByteWriter &bytes) {
        for (const int32_t length : plan.lengths) bytes.varint(static_cast<uint64_t>(length));
    });
    writer.section(section_prefixes, [&](ByteWriter &bytes) {
        int64_t previous = 0;
        for (size_t i = 0; i < plan.prefixes.size(); ++i) {
            const PlanPrefix &prefix = plan.prefixes[i];
            bytes.varint(zigzag(prefix.row - previous));
            bytes.varint(static_cast<uint64_t>(prefix.length));
            bytes.varint(prefix.parent < 0 ? 0 : i - index(prefix.parent));
            previous = prefix.row;
        }
    });
    writer.section(section_groups, [&](ByteWriter &bytes) {
        int64_t previous = -1;
        for (const PlanGroup &group : plan.groups) {
            if (group.prefix < 0) {
                bytes.varint(0);
                continue;
            }
            bytes.varint(zigzag(group.prefix - previous) + 1);
            bytes.varint(static_cast<uint64_t>(group.row_end - group.row_begin));
            previous = group.prefix;
        }
    });
    writer.section(section_rows, [&](ByteWriter &bytes) {
        int64_t previous = -1;
        for (const int64_t row : plan.rows) {
            bytes.varint(zigzag(row - previous));
            previous = row;
        }
    });
    if (plan.options.self_contained) {
        writer.section(section_tokens, [&](ByteWriter &bytes) { write_tokens(plan, bytes); });
    }
    if (!plan.salts.empty()) {
        writer.section(section_salts, [&](ByteWriter &bytes) {
            for (const uint64_t salt : plan.salts) bytes.fixed(salt);
        });
    }
    if (plan.advice.kind != BATCHLLM_ADVICE_NONE) {
        writer.section(section_advice,
                       [&](ByteWriter &bytes) { write_advice(plan.advice, bytes); });
    }
    return out;
}

void append_padding(std::string &sections, size_t bytes) {
    SectionWriter(sections).section(section_padding, [&](ByteWriter &writer) {
        uint64_t state = 0x9e3779b97f4a7c15u; // xorshift: bytes that do not compress
        for (size_t i = 0; i < bytes; i += 8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            writer.fixed(state);
        }
    });
}

int64_t least_section_bytes(const Plan &plan) {
    return plan.options.self_contained ? plan.logical_tokens() / tokens_a_byte : 0;
}

Result<Plan> read_plan_sections(std::span<const std::byte> bytes, uint32_t flags) {
    constexpr int32_t bad = BATCHLLM_ERROR_PLAN_FORMAT;
    ByteReader sections(bytes);
    Plan plan;
    plan.options.self_contained = (flags & plan_has_tokens) != 0;
    if ((flags & plan_has_salts) != 0 && !plan.options.self_contained) {
        return error(bad, "salts in a plan that is not self-contained");
    }

    ASSIGN_OR_RETURN(ByteReader section, open_section(sections, section_options));
    plan.options.enlarge = static_cast<int32_t>(section.varint_up_to(INT32_MAX));
    plan.options.levels = static_cast<int32_t>(section.varint_up_to(INT32_MAX));
    plan.options.order = static_cast<int32_t>(section.varint_up_to(INT32_MAX));
    plan.options.min_prefix_tokens = static_cast<int32_t>(section.varint_up_to(INT32_MAX));
    plan.options.tokenizer_fingerprint = section.fixed<uint64_t>();
    const uint64_t rows = section.varint_up_to(INT32_MAX - 1);
    const uint64_t prefixes = section.varint_up_to(INT32_MAX - 1);
    const uint64_t groups = section.varint_up_to(INT32_MAX - 1);
    RETURN_IF_ERROR(close_section(section, section_options));

    ASSIGN_OR_RETURN(section, open_section(sections, section_fingerprints));
    RETURN_IF_ERROR(check_count(section_fingerprints, rows, 8, section));
    plan.fingerprints.resize(rows);
    for (uint64_t &fingerprint : plan.fingerprints) fingerprint = section.fixed<uint64_t>();
    RETURN_IF_ERROR(close_section(section, section_fingerprints));

    ASSIGN_OR_RETURN(section, open_section(sections, section_lengths));
    RETURN_IF_ERROR(check_count(section_lengths, rows, 1, section));
    plan.lengths.resize(rows);
    for (size_t i = 0; i < rows; ++i) {
        plan.lengths[i] = static_cast<int32_t>(section.varint_up_to(INT32_MAX - 1));
        if (section.failed()) return malformed(section_lengths, "row", i);
    }
    RETURN_IF_ERROR(close_section(section, section_lengths));

    ASSIGN_OR_RETURN(section, open_section(sections, section_prefixes));
    RETURN_IF_ERROR(check_count(section_prefixes, prefixes, 3, section));
    plan.prefixes.resize(prefixes);
    int64_t previous = 0;
    for (size_t i = 0; i < prefixes; ++i) {
        previous = section.step_from(previous, 0, static_cast<int64_t>(rows) - 1);
        const auto length = static_cast<int32_t>(section.varint_up_to(INT32_MAX - 1));
        const uint64_t distance = section.varint_up_to(i);
        if (section.failed()) return malformed(section_prefixes, "prefix", i);
        plan.prefixes[i] = {previous, length,
                            distance == 0 ? -1 : static_cast<int32_t>(i - distance)};
    }
    RETURN_IF_ERROR(close_section(section, section_prefixes));

    ASSIGN_OR_RETURN(section, open_section(sections, section_groups));
    RETURN_IF_ERROR(check_count(section_groups, groups, 1, section));
    plan.groups.resize(groups);
    int64_t place = 0;
    previous = -1;
    for (size_t i = 0; i < groups; ++i) {
        PlanGroup &group = plan.groups[i];
        group = {-1, place, place + 1};
        const uint64_t step = section.varint();
        if (step != 0) {
            previous = static_cast<int64_t>(static_cast<uint64_t>(previous) +
                                            static_cast<uint64_t>(unzigzag(step - 1)));
            if (previous < 0 || previous >= static_cast<int64_t>(prefixes)) section.set_failed();
            group.prefix = static_cast<int32_t>(previous);
            group.row_end = place + static_cast<int64_t>(section.varint_up_to(rows));
        }
        place = group.row_end;
        if (section.failed()) return malformed(section_groups, "group", i);
    }
    RETURN_IF_ERROR(close_section(section, section_groups));

    ASSIGN_OR_RETURN(section, open_section(sections, section_rows));
    RETURN_IF_ERROR(check_count(section_rows, rows, 1, section));
    plan.rows.resize(rows);
    previous = -1;
    for (size_t i = 0; i < rows; ++i) {
        previous = section.step_from(previous, 0, static_cast<int64_t>(rows) - 1);
        plan.rows[i] = previous;
        if (section.failed()) return malformed(section_rows, "row", i);
    }
    RETURN_IF_ERROR(close_section(section, section_rows));

    RETURN_IF_ERROR(check_plan_structure(plan));
    if (plan.options.self_contained) {
        ASSIGN_OR_RETURN(section, open_section(sections, section_tokens));
        RETURN_IF_ERROR(read_tokens(section, bytes.size(), plan));
        RETURN_IF_ERROR(close_section(section, section_tokens));
        if ((flags & plan_has_salts) != 0) RETURN_IF_ERROR(read_salts(sections, plan));
        RETURN_IF_ERROR(check_plan(plan));
    }
    ByteReader ahead = sections;
    if (!sections.at_end() && ahead.fixed<uint32_t>() == section_advice) {
        ASSIGN_OR_RETURN(section, open_section(sections, section_advice));
        plan.advice = read_advice(plan, section);
        RETURN_IF_ERROR(close_section(section, section_advice));
    }
    if (!sections.at_end()) RETURN_IF_ERROR(open_section(sections, section_padding).status());
    if (!sections.at_end()) return error(bad, "%zu bytes after the last section", sections.left());
    return plan;
}

} // namespace batchllm
