// cuda/tuning_cache.h: choices survive a run, and no file can do harm.
#include "linear/tuning_cache.h"

#include <map>
#include <random>

#include "base/cache_path.h"
#include "base/file.h"
#include "testing.h"

using batchllm::cache_path;
using batchllm::cuda::TuningCache;
using batchllm::cuda::TuningKey;

namespace {

using Choices = std::map<TuningKey, int32_t>;

const char *const kStamp = "cuBLASLt 130000, 64 MiB, NVIDIA H200";

Choices some() {
    Choices choices;
    for (int32_t i = 0; i < 20; ++i) {
        choices[{16 * (i + 1), 4096, 14336, 1, i % 2, i % 3}] = i % TuningCache::kCandidates;
    }
    return choices;
}

TuningCache opened(const std::string &path, std::string *warning) {
    warning->clear();
    return TuningCache(path, kStamp, warning);
}

void choices_come_back(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("deep/er/choices");
    std::string warning;
    {
        TuningCache cache = opened(path, &warning);
        for (const auto &[key, candidate] : some()) cache.add(key, candidate);
        cache.save();
    }
    const TuningCache cache = opened(path, &warning);
    assert_true(warning.empty());
    for (const auto &[key, candidate] : some()) assert_int_equal(cache.find(key), candidate);
    assert_int_equal(cache.find({1, 1, 1, 0, 0, 0}), -1);
}

void nothing_is_written_without_news(void **) {
    const TemporaryDirectory directory;
    std::string warning;
    opened(directory.file("choices"), &warning).save();
    assert_false(batchllm::file_exists(directory.file("choices")).value());
}

void two_writers_lose_nothing(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("choices");
    std::string warning;
    TuningCache one = opened(path, &warning), other = opened(path, &warning);
    one.add({1, 2, 3, 0, 0, 0}, 1);
    one.save();
    other.add({4, 5, 6, 0, 0, 0}, 2);
    other.save();
    const TuningCache cache = opened(path, &warning);
    assert_int_equal(cache.find({1, 2, 3, 0, 0, 0}), 1);
    assert_int_equal(cache.find({4, 5, 6, 0, 0, 0}), 2);
}

void another_version_or_device_is_not_believed(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("choices");
    std::string warning;
    TuningCache cache(path, "cuBLASLt 120000, 64 MiB, NVIDIA H200", &warning);
    cache.add({1, 2, 3, 0, 0, 0}, 1);
    cache.save();
    TuningCache ours = opened(path, &warning);
    assert_true(warning.empty());
    assert_int_equal(ours.find({1, 2, 3, 0, 0, 0}), -1);
    ours.add({1, 2, 3, 0, 0, 0}, 4);
    ours.save();
    assert_int_equal(opened(path, &warning).find({1, 2, 3, 0, 0, 0}), 4);
}

void torn_and_changed_files_are_not_believed(void **) {
    TuningCache cache("", kStamp, nullptr);
    for (const auto &[key, candidate] : some()) cache.add(key, candidate);
    const std::string good = cache.text();
    Choices read;
    assert_true(TuningCache::parse(good, kStamp, &read));
    assert_true(read == some());
    for (size_t length = 0; length < good.size(); ++length) {
        assert_false(TuningCache::parse(std::string_view(good).substr(0, length), kStamp, &read));
        assert_true(read.empty());
    }
    std::mt19937_64 random(20261121);
    for (int round = 0; round < 2000; ++round) {
        std::string changed = good;
        const size_t at = random() % good.size();
        changed[at] = static_cast<char>(random());
        if (changed == good) continue;
        assert_false(TuningCache::parse(changed, kStamp, &read));
    }

    const TemporaryDirectory directory;
    directory.write("torn", good.substr(0, good.size() / 2));
    std::string warning;
    TuningCache torn = opened(directory.file("torn"), &warning);
    assert_non_null(std::strstr(warning.c_str(), "torn"));
    torn.add({7, 8, 8, 0, 0, 0}, 3);
    torn.save();
    assert_int_equal(opened(directory.file("torn"), &warning).find({7, 8, 8, 0, 0, 0}), 3);
    assert_true(warning.empty());
}

void choices_that_the_library_has_inside_are_known_and_the_users_go_first(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("choices");
    TuningCache measured("", kStamp, nullptr),
        elsewhere("", "cuBLASLt 130000, 64 MiB, NVIDIA H100", nullptr);
    for (const auto &[key, candidate] : some()) measured.add(key, candidate);
    elsewhere.add({1, 2, 3, 0, 0, 0}, 5);
    const std::string texts[] = {elsewhere.text(), measured.text().substr(1), measured.text()};
    const std::string_view shipped[] = {texts[0], texts[1], texts[2]};
    std::string warning;
    TuningCache cache(path, kStamp, &warning, shipped);
    assert_true(warning.empty());
    for (const auto &[key, candidate] : some()) assert_int_equal(cache.find(key), candidate);
    assert_int_equal(cache.find({1, 2, 3, 0, 0, 0}), -1);
    cache.save();
    assert_false(batchllm::file_exists(path).value()); // nothing was chosen

    const TuningKey key = some().begin()->first;
    const int32_t other = some().begin()->second + 1;
    cache.add(key, other);
    cache.save();
    assert_int_equal(TuningCache(path, kStamp, &warning, shipped).find(key), other);
    Choices written;
    assert_true(TuningCache::parse(*batchllm::read_file(path, 1 << 20), kStamp, &written));
    assert_int_equal(written.size(), 1); // the user's file has the user's alone
}

void the_librarys_own_files_are_whole_and_say_which_device(void **) {
    for (const std::string_view text : batchllm::cuda::shipped_choices()) {
        const size_t first = text.find('\n');
        const std::string_view stamp =
            text.substr(first + 1, text.find('\n', first + 1) - first - 1);
        Choices choices;
        assert_true(TuningCache::parse(text, stamp, &choices));
        assert_false(choices.empty());
        assert_true(stamp.starts_with("cuBLASLt "));
    }
}

// A file with a correct checksum may still contain anything.
std::string with_sum(const std::string &lines, const char *version = "4") {
    std::string text =
        std::string("batchllm tuning ") + version + "\n" + std::string(kStamp) + "\n" + lines;
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    char end[32];
    std::snprintf(end, sizeof end, "end %016llx\n", static_cast<unsigned long long>(hash));
    return text + end;
}

void forged_lines_are_refused(void **) {
    Choices read;
    assert_true(TuningCache::parse(with_sum("16 8 8 1 1 0 128\n16 8 8 1 1 4 1\n"), kStamp, &read));
    assert_int_equal(read.size(), 2);
    for (const char *line :
         {"16 8 8 1 1 0 129\n", "16 8 8 1 1 0 -1\n", "0 8 8 1 1 0 1\n", "16 8 8 1 1 5 1\n",
          "16 8 8 1 1 0\n", "16 8 8 1 1 0 1 1\n", "16 8 8 1 1 0 99999999999999999999\n",
          "4294967296 8 8 1 1 0 1\n", "\n", "16 8 8 1 1 0 1", " 16 8 8 1 1 0 1\n", "end 0\n"}) {
        assert_false(TuningCache::parse(with_sum(line), kStamp, &read));
    }
    std::string many;
    for (size_t i = 0; i <= TuningCache::kMostEntries; ++i) {
        many += std::to_string(i + 1) + " 8 8 1 1 0 1\n";
    }
    assert_false(TuningCache::parse(with_sum(many), kStamp, &read));
}

// Its candidates were others. It is no damage, and so there is no warning.
void another_versions_file_is_written_anew(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("choices");
    for (const char *version : {"1", "2", "3", "5"}) {
        directory.write("choices", with_sum("16 8 8 1 1 0 0\n", version));
        std::string warning;
        TuningCache cache = opened(path, &warning);
        assert_string_equal(warning.c_str(), "");
        assert_int_equal(cache.find({16, 8, 8, 1, 1, 0}), -1);
        cache.add({1, 2, 3, 0, 0, 0}, 1);
        cache.save();
        const TuningCache again = opened(path, &warning);
        assert_string_equal(warning.c_str(), "");
        assert_int_equal(again.find({1, 2, 3, 0, 0, 0}), 1);
        assert_int_equal(again.find({16, 8, 8, 1, 1, 0}), -1);
    }
}

void another_persons_file_is_left_alone(void **) {
    const TemporaryDirectory directory;
    directory.write("thesis.tex", "\\documentclass{book}\n");
    std::string warning;
    TuningCache cache = opened(directory.file("thesis.tex"), &warning);
    assert_non_null(std::strstr(warning.c_str(), "left as it is"));
    cache.add({1, 2, 3, 0, 0, 0}, 1);
    cache.save();
    assert_int_equal(cache.find({1, 2, 3, 0, 0, 0}), 1);
    assert_string_equal(batchllm::read_file(directory.file("thesis.tex"), 1000)->c_str(),
                        "\\documentclass{book}\n");
}

void a_place_that_cannot_be_written_is_harmless(void **) {
    const TemporaryDirectory directory;
    directory.write("file", "");
    std::string warning;
    for (const std::string &path :
         {directory.file("file") + "/choices", std::string("/dev/full"), directory.path()}) {
        TuningCache cache = opened(path, &warning);
        cache.add({1, 2, 3, 0, 0, 0}, 1);
        cache.save();
        cache.add({1, 2, 4, 0, 0, 0}, 1);
        cache.save();
        assert_int_equal(cache.find({1, 2, 3, 0, 0, 0}), 1);
    }
}

void the_default_is_in_the_users_cache(void **) {
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    assert_string_equal(cache_path("cuBLASLt 1, ../GPU.txt").c_str(),
                        "/somewhere/batchllm/cuBLASLt-1--..-GPU.txt");
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/home/me", 1);
    assert_string_equal(cache_path("x").c_str(), "/home/me/.cache/batchllm/x");
    unsetenv("HOME");
    assert_string_equal(cache_path("x").c_str(), "");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(choices_come_back),
        cmocka_unit_test(nothing_is_written_without_news),
        cmocka_unit_test(two_writers_lose_nothing),
        cmocka_unit_test(another_version_or_device_is_not_believed),
        cmocka_unit_test(choices_that_the_library_has_inside_are_known_and_the_users_go_first),
        cmocka_unit_test(the_librarys_own_files_are_whole_and_say_which_device),
        cmocka_unit_test(torn_and_changed_files_are_not_believed),
        cmocka_unit_test(forged_lines_are_refused),
        cmocka_unit_test(another_versions_file_is_written_anew),
        cmocka_unit_test(another_persons_file_is_left_alone),
        cmocka_unit_test(a_place_that_cannot_be_written_is_harmless),
        cmocka_unit_test(the_default_is_in_the_users_cache),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
