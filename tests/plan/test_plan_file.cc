// src/plan: plan files: written, read, of old versions, damaged and forged.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" { // which cmocka 1.1.5 lacks
#include <cmocka.h>
}

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>
#include <zstd.h>

#include "base/file.h"
#include "plan/checks.h"
#include "plan/plan.h"
#include "plan/plan_bytes.h"
#include "plan/plan_file.h"
#include "seed.h"

using namespace batchllm;

namespace {

std::span<const std::byte> bytes_of(const std::string &text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

bool same(const Plan &a, const Plan &b) {
    const auto same_prefix = [](const PlanPrefix &x, const PlanPrefix &y) {
        return x.row == y.row && x.length == y.length && x.parent == y.parent;
    };
    const auto same_group = [](const PlanGroup &x, const PlanGroup &y) {
        return x.prefix == y.prefix && x.row_begin == y.row_begin && x.row_end == y.row_end;
    };
    return a.options.enlarge == b.options.enlarge && a.options.levels == b.options.levels &&
           a.options.order == b.options.order &&
           a.options.min_prefix_tokens == b.options.min_prefix_tokens &&
           a.options.self_contained == b.options.self_contained &&
           a.options.tokenizer_fingerprint == b.options.tokenizer_fingerprint &&
           std::equal(a.prefixes.begin(), a.prefixes.end(), b.prefixes.begin(), b.prefixes.end(),
                      same_prefix) &&
           std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                      same_group) &&
           a.rows == b.rows && a.fingerprints == b.fingerprints && a.lengths == b.lengths &&
           a.tokens == b.tokens && a.salts == b.salts;
}

std::string temporary(const char *name) {
    return "/tmp/batchllm-" + std::to_string(::getpid()) + name;
}

Plan some_plan(std::mt19937_64 &random, bool self_contained, int rows = 40) {
    PlanOptions options;
    options.levels = static_cast<int32_t>(random() % 3);
    options.min_prefix_tokens = 1 + static_cast<int32_t>(random() % 3);
    options.order = static_cast<int32_t>(random() % 2);
    options.enlarge = static_cast<int32_t>(random() % 3);
    options.self_contained = self_contained;
    options.tokenizer_fingerprint = random();
    const TokenRows tokens = random_rows(random, rows, 3, 40);
    const std::vector<TokenRow> plain = views(tokens);
    return make_plan(random() % 2 ? plain : salted(random, plain), {}, options, nullptr).value();
}

uint32_t flags_of(const Plan &plan) {
    return (plan.options.self_contained ? plan_has_tokens : 0) |
           (plan.salts.empty() ? 0 : plan_has_salts);
}

std::mt19937_64 seeded() { return std::mt19937_64(seed_of_run()); }

void a_plan_read_back_is_the_plan_written(void **) {
    std::mt19937_64 random = seeded();
    const std::string path = temporary("-roundtrip.plan");
    for (int i = 0; i < 200; ++i) {
        const Plan plan = some_plan(random, i % 2 == 0, static_cast<int>(random() % 60));
        assert_true(save_plan(plan, path).ok());
        const auto loaded = load_plan(path);
        assert_string_equal(loaded.status().message().c_str(), "");
        assert_true(same(plan, *loaded));
    }
    ::unlink(path.c_str());
}

void a_loaded_plan_is_reused_as_the_plan_itself(void **) {
    std::mt19937_64 random = seeded();
    const std::string path = temporary("-reuse.plan");
    const TokenRows rows = random_rows(random, 50, 3, 40);
    for (const bool self_contained : {false, true}) {
        PlanOptions options;
        options.self_contained = self_contained;
        const Plan plan = make_plan(views(rows), {}, options, nullptr).value();
        assert_true(save_plan(plan, path).ok());
        const Plan loaded = load_plan(path).value();
        const Plan again = make_plan(views(rows), {}, options, &loaded).value();
        assert_int_equal(again.reused_rows, 50);
        assert_true(again.rows == plan.rows);
    }
    ::unlink(path.c_str());
}

// The rows of tests/plan/make_version_1.py.
TokenRows rows_of_version_1() {
    std::vector<int32_t> head(16);
    for (int i = 0; i < 16; ++i) head[static_cast<size_t>(i)] = 100 + i;
    const std::vector<int32_t> a = {1, 2, 3, 4}, b = {-1, INT32_MAX, INT32_MIN, 0, 5, 5, 5, 5};
    const std::vector<std::pair<const std::vector<int32_t> *, std::vector<int32_t>>> parts = {
        {&a, {10}}, {&b, {11, 12}}, {&a, {13, 14, 15}}, {nullptr, {7}}, {&a, {16}}, {&b, {17}}};
    TokenRows rows;
    for (const auto &[middle, end] : parts) {
        std::vector<int32_t> row;
        if (middle != nullptr) {
            row = head;
            row.insert(row.end(), middle->begin(), middle->end());
        }
        row.insert(row.end(), end.begin(), end.end());
        rows.push_back(row);
    }
    return rows;
}

// The file of a plan without salts does not change, because older versions of the library read it.
void plans_without_salts_are_written_as_ever(void **) {
    for (const char *path : {"plan/version-1.plan", "plan/version-1-tokens.plan"}) {
        const MappedFile file = MappedFile::open(path).value();
        const std::span<const std::byte> frame = file.bytes().subspan(16);
        std::string sections(ZSTD_getFrameContentSize(frame.data(), frame.size()), '\0');
        assert_int_equal(
            ZSTD_decompress(sections.data(), sections.size(), frame.data(), frame.size()),
            sections.size());
        const Plan plan = load_plan(path).value();
        assert_true(write_plan_sections(plan) == sections);
        const std::string written = write_plan(plan).value();
        assert_true(std::memcmp(written.data(), file.bytes().data(), 16) == 0);
    }
}

void a_file_with_salts_is_readable_and_makes_the_same_plan_again(void **) {
    const TokenRows rows = rows_of_version_1();
    std::vector<TokenRow> salted_rows = views(rows);
    salted_rows[1].salt = salted_rows[5].salt = 0xfedcba9876543210;
    const auto loaded = load_plan("plan/version-1-salts.plan");
    assert_string_equal(loaded.status().message().c_str(), "");
    assert_string_equal(fault_of(*loaded, salted_rows).c_str(), "");
    for (size_t i = 0; i < rows.size(); ++i) {
        assert_true(loaded->salts[i] == salted_rows[i].salt);
        assert_true(loaded->fingerprints[i] == token_fingerprint(rows[i], salted_rows[i].salt));
    }
    PlanOptions options = loaded->options;
    assert_true(is_plan_of(*loaded, salted_rows, options));
    assert_false(is_plan_of(*loaded, views(rows), options));
    assert_int_equal(make_plan(salted_rows, {}, options, &*loaded)->reused_rows, 6);
    assert_int_equal(make_plan(views(rows), {}, options, &*loaded)->reused_rows, 4);
}

void salts_that_are_all_0_or_without_tokens_are_refused(void **) {
    std::mt19937_64 random = seeded();
    Plan plan = some_plan(random, true);
    while (plan.salts.empty()) plan = some_plan(random, true);
    assert_true(read_plan_sections(bytes_of(write_plan_sections(plan)), flags_of(plan)).ok());
    Plan zero = plan;
    zero.salts.assign(zero.salts.size(), 0);
    const auto all_0 =
        read_plan_sections(bytes_of(write_plan_sections(zero)), plan_has_tokens | plan_has_salts);
    assert_non_null(strstr(all_0.status().message().c_str(), "all are 0"));
    assert_false(read_plan_sections(bytes_of(write_plan_sections(plan)), plan_has_tokens).ok());
    const auto alone = read_plan_sections(bytes_of(write_plan_sections(plan)), plan_has_salts);
    assert_non_null(strstr(alone.status().message().c_str(), "not self-contained"));
    plan.salts[3] ^= 1;
    assert_false(write_plan(plan).ok());
    plan.salts[3] ^= 1;
    plan.salts.pop_back();
    assert_false(write_plan(plan).ok());
}

void version_1_files_are_readable(void **) {
    const TokenRows rows = rows_of_version_1();
    for (const bool tokens : {false, true}) {
        const auto loaded =
            load_plan(tokens ? "plan/version-1-tokens.plan" : "plan/version-1.plan");
        assert_string_equal(loaded.status().message().c_str(), "");
        const Plan &plan = *loaded;
        assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
        assert_int_equal(plan.options.levels, 2);
        assert_int_equal(plan.options.enlarge, BATCHLLM_ENLARGE_OPTIMAL);
        assert_true(plan.options.tokenizer_fingerprint == 0x1122334455667788);
        assert_true(plan.options.self_contained == tokens);
        assert_true((plan.rows == std::vector<int64_t>{5, 1, 0, 2, 4, 3}));
        assert_int_equal(plan.prefixes.size(), 3);
        assert_int_equal(plan.prefixes[2].parent, 0);
        assert_int_equal(plan.prefixes[2].length, 20);
        assert_int_equal(plan.processed_tokens(), 16 + 8 + 4 + (1 + 2 + 3 + 1 + 1 + 1));
        for (size_t i = 0; i < rows.size(); ++i)
            assert_true(plan.fingerprints[i] == token_fingerprint(rows[i], 0));
        std::vector<int32_t> all;
        for (const auto &row : rows) all.insert(all.end(), row.begin(), row.end());
        assert_true(plan.tokens == (tokens ? all : std::vector<int32_t>()));
        const Plan again = make_plan(views(rows), {}, plan.options, &plan).value();
        assert_int_equal(again.reused_rows, 6);
        assert_int_equal(again.processed_tokens(), plan.processed_tokens());
    }
}

// Each bit of the file in turn; each length; extra bytes at the end.
void flipped_cut_and_extended_files_are_refused(void **) {
    std::mt19937_64 random = seeded();
    for (int i = 0; i < 6; ++i) {
        const Plan original = some_plan(random, i % 2 == 0);
        const std::string good = write_plan(original).value();
        int harmless = 0;
        assert_true(read_plan(bytes_of(good)).ok());
        for (size_t at = 0; at < good.size(); ++at) {
            for (int bit = 0; bit < 8; ++bit) {
                std::string bad = good;
                bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
                const auto plan = read_plan(bytes_of(bad));
                if (plan.ok()) { // the same content, compressed another way
                    assert_true(same(*plan, original));
                    ++harmless;
                    continue;
                }
                assert_int_equal(plan.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
            }
            const auto cut = read_plan(bytes_of(good).first(at));
            assert_false(cut.ok());
            assert_int_equal(cut.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
        }
        const auto extended = read_plan(bytes_of(good + '\0'));
        assert_false(extended.ok());
        assert_non_null(strstr(extended.status().message().c_str(), "followed"));
        assert_false(read_plan(bytes_of(good + good.substr(16))).ok());
        assert_true(harmless < static_cast<int>(good.size()) * 8 / 20);
    }
}

// Past the checksum: whatever the sections say, they are rejected or make a valid plan.
void damaged_sections_are_refused_or_make_a_sound_plan(void **) {
    std::mt19937_64 random = seeded();
    int refused = 0, read = 0;
    for (int i = 0; i < 20000; ++i) {
        const Plan original = some_plan(random, random() % 2 == 0, 12);
        const uint32_t flags = flags_of(original);
        std::string sections = write_plan_sections(original);
        for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
            const size_t at = random() % sections.size();
            switch (random() % 5) {
            case 0:
                sections[at] = static_cast<char>(random());
                break;
            case 1:
                sections[at] = static_cast<char>(sections[at] ^ (1 << random() % 8));
                break;
            case 2:
                sections.resize(at + 1);
                break;
            case 3:
                sections.insert(at, 1, static_cast<char>(random()));
                break;
            case 4:
                sections[at] = static_cast<char>(0xff);
                break;
            }
        }
        const auto plan = read_plan_sections(bytes_of(sections), flags);
        if (!plan.ok()) {
            assert_int_equal(plan.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
            assert_false(plan.status().message().empty());
            ++refused;
            continue;
        }
        ++read;
        assert_true(check_plan(*plan).ok());
        // Such a plan can be used with any rows.
        const TokenRows rows = random_rows(random, 12, 3, 40);
        Plan believed = *plan;
        const Plan honest = make_plan(views(rows), {}, plan->options, nullptr).value();
        if (believed.row_count() == 12)
            believed.fingerprints = honest.fingerprints, believed.lengths = honest.lengths;
        const Plan reused = make_plan(views(rows), {}, plan->options, &believed).value();
        assert_string_equal(fault_of(reused, views(rows)).c_str(), "");
    }
    assert_true(refused > 1000 && read > 100);
}

std::string file_of(const std::string &sections, uint64_t declared, uint32_t version = 1) {
    std::string frame(ZSTD_compressBound(sections.size()), '\0');
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    frame.resize(
        ZSTD_compress2(context, frame.data(), frame.size(), sections.data(), sections.size()));
    ZSTD_freeCCtx(context);
    if (declared != sections.size()) {
        // A frame header with an 8-byte content size, in front of the blocks and the checksum.
        const size_t size_bytes = sections.size() < 256 ? 1 : sections.size() < 65792 ? 2 : 4;
        std::string forged = frame.substr(0, 4) + static_cast<char>(0xe4);
        ByteWriter(forged).fixed(declared);
        frame = forged + frame.substr(5 + size_bytes);
    }
    std::string file = "BLLMPLAN";
    ByteWriter(file).fixed(version);
    ByteWriter(file).fixed(uint32_t{0});
    return file + frame;
}

void a_file_that_declares_too_much_is_refused_before_memory_is_taken(void **) {
    const auto message = [](const std::string &file) {
        const auto plan = read_plan(bytes_of(file));
        return plan.ok() ? std::string("read") : plan.status().message();
    };
    // The frame declares 2^60 bytes.
    assert_non_null(
        strstr(message(file_of("0123456789", uint64_t{1} << 60)).c_str(), "more than any plan"));
    // A frame that really holds 1 GiB of zeros in a few kilobytes.
    assert_non_null(
        strstr(message(file_of(std::string(size_t{1} << 28, '\0'), size_t{1} << 28)).c_str(),
               "more than any plan"));
    // The options declare 2^30 rows, prefixes and groups.
    for (int which = 0; which < 3; ++which) {
        std::string sections;
        ByteWriter bytes(sections);
        bytes.fixed(uint32_t{1});
        std::string options;
        ByteWriter writer(options);
        for (const int x : {1, 1, 0, 16}) writer.varint(static_cast<uint64_t>(x));
        writer.fixed(uint64_t{5});
        for (int i = 0; i < 3; ++i) writer.varint(i == which ? uint64_t{1} << 30 : 0);
        bytes.fixed(uint64_t{options.size()});
        sections += options;
        for (uint32_t id = 2; id <= 6; ++id) {
            bytes.fixed(id);
            bytes.fixed(uint64_t{0});
        }
        assert_non_null(
            strstr(message(file_of(sections, sections.size())).c_str(), "items in 0 bytes"));
    }
}

std::string section(uint32_t id, const std::string &content) {
    std::string out;
    ByteWriter bytes(out);
    bytes.fixed(id);
    bytes.fixed(uint64_t{content.size()});
    return out + content;
}

// Rows one token longer than a prefix that all of them share, followed by `padding` bytes.
std::string shared_rows(uint64_t rows, uint64_t prefix, size_t padding) {
    std::string options, lengths, prefixes, groups, places;
    ByteWriter writer(options);
    for (const int x : {1, 1, 0, 16}) writer.varint(static_cast<uint64_t>(x));
    writer.fixed(uint64_t{5});
    for (const uint64_t count : {rows, uint64_t{1}, uint64_t{1}}) writer.varint(count);
    for (uint64_t i = 0; i < rows; ++i) {
        ByteWriter(lengths).varint(prefix + 1);
        ByteWriter(places).varint(zigzag(1));
    }
    for (const uint64_t x : {uint64_t{0}, prefix, uint64_t{0}}) ByteWriter(prefixes).varint(x);
    ByteWriter(groups).varint(zigzag(1) + 1);
    ByteWriter(groups).varint(rows);
    return section(1, options) + section(2, std::string(rows * 8, '\1')) + section(3, lengths) +
           section(4, prefixes) + section(5, groups) + section(6, places) +
           section(7, std::string(prefix + rows, '\0')) + section(8, std::string(padding, 'x'));
}

void a_large_file_may_not_ask_for_more_than_16_gib(void **) {
    // 16 MiB that do not compress: 1,024 times as much would be accepted.
    std::mt19937_64 random = seeded();
    std::string noise;
    while (noise.size() < size_t{17} << 20) ByteWriter(noise).fixed(random());
    const auto large = read_plan(bytes_of(file_of(noise, (uint64_t{1} << 34) + 1)));
    assert_int_equal(large.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
    assert_non_null(strstr(large.status().message().c_str(), "over the 16 GiB"));

    // 2^32 tokens and more in 6 MB. One such row is read up to its fingerprint.
    const std::string bomb = shared_rows(4096, uint64_t{1} << 20, size_t{5} << 20);
    const auto unfolded = read_plan_sections(bytes_of(bomb), plan_has_tokens);
    assert_int_equal(unfolded.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
    assert_non_null(strstr(unfolded.status().message().c_str(), "over the 16 GiB"));
    const std::string small = shared_rows(2, uint64_t{1} << 10, size_t{1} << 10);
    const auto read = read_plan_sections(bytes_of(small), plan_has_tokens);
    assert_non_null(strstr(read.status().message().c_str(), "fingerprint"));
}

void a_plan_too_large_to_be_read_is_not_written(void **) {
    Plan plan;
    plan.options.self_contained = true;
    plan.lengths.assign(4, (1 << 30) + 1); // the tokens need not exist to be counted
    const auto file = write_plan(plan);
    assert_int_equal(file.status().code(), BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(file.status().message().c_str(), "without the tokens"));
}

void a_newer_format_and_other_files_are_named_as_such(void **) {
    const auto newer = read_plan(bytes_of(file_of("", 0, 2)));
    assert_non_null(strstr(newer.status().message().c_str(), "format version 2"));
    const auto other = read_plan(bytes_of("PK\3\4 this is something else"));
    assert_non_null(strstr(other.status().message().c_str(), "not a plan file"));
    const auto missing = load_plan("plan/no-such-file.plan");
    assert_int_equal(missing.status().code(), BATCHLLM_ERROR_IO);
    assert_non_null(strstr(missing.status().message().c_str(), "no-such-file.plan"));
    const std::string path = temporary("-bad.plan");
    for (const char *content : {"", "x", "BLLMPLAN", "BLLMPLAN\1\0\0\0"}) {
        assert_true(write_file(path, content).ok());
        const auto bad = load_plan(path);
        assert_int_equal(bad.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
        assert_non_null(strstr(bad.status().message().c_str(), path.c_str()));
    }
    ::unlink(path.c_str());
}

// Plans that compress or expand more than a reader would accept are padded, and can be read back.
void plans_that_shrink_a_thousandfold_can_be_read_back(void **) {
    const std::vector<int32_t> text(20000, 3);
    TokenRows equal(3000, std::vector<int32_t>(text.begin(), text.begin() + 500));
    PlanOptions options;
    options.self_contained = true;
    options.enlarge = BATCHLLM_ENLARGE_NONE; // every row's tokens are stored
    Plan plan = make_plan(views(equal), {}, options, nullptr).value();
    std::string file = write_plan(plan).value();
    assert_true(file.size() < 20000);
    assert_true(same(plan, read_plan(bytes_of(file)).value()));

    const TokenRows shared(2000, text); // 40 million tokens, of which 22,000 are stored
    options.enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    plan = make_plan(views(shared), {}, options, nullptr).value();
    file = write_plan(plan).value();
    assert_true(file.size() < 100000);
    assert_true(same(plan, read_plan(bytes_of(file)).value()));
}

void a_plan_that_contradicts_itself_is_not_written(void **) {
    std::mt19937_64 random = seeded();
    Plan plan = some_plan(random, true);
    plan.rows[0] = plan.rows[1];
    assert_false(save_plan(plan, temporary("-never.plan")).ok());
    assert_false(file_exists(temporary("-never.plan")).value());
    plan = some_plan(random, true);
    plan.tokens[0] ^= 1;
    assert_false(write_plan(plan).ok());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_read_back_is_the_plan_written),
        cmocka_unit_test(a_loaded_plan_is_reused_as_the_plan_itself),
        cmocka_unit_test(plans_without_salts_are_written_as_ever),
        cmocka_unit_test(a_file_with_salts_is_readable_and_makes_the_same_plan_again),
        cmocka_unit_test(salts_that_are_all_0_or_without_tokens_are_refused),
        cmocka_unit_test(version_1_files_are_readable),
        cmocka_unit_test(flipped_cut_and_extended_files_are_refused),
        cmocka_unit_test(damaged_sections_are_refused_or_make_a_sound_plan),
        cmocka_unit_test(a_file_that_declares_too_much_is_refused_before_memory_is_taken),
        cmocka_unit_test(a_large_file_may_not_ask_for_more_than_16_gib),
        cmocka_unit_test(a_plan_too_large_to_be_read_is_not_written),
        cmocka_unit_test(a_newer_format_and_other_files_are_named_as_such),
        cmocka_unit_test(plans_that_shrink_a_thousandfold_can_be_read_back),
        cmocka_unit_test(a_plan_that_contradicts_itself_is_not_written),
    };
    return cmocka_run_group_tests_name("plan_file", tests, nullptr, nullptr);
}
