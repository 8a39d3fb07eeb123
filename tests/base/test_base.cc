// base/: files that are replaced atomically, and the thread pool.
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/thread_pool.h"

#include "processor_time.h"
#include "testing.h"

namespace batchllm {
namespace {

void a_file_is_replaced_whole_and_nothing_is_left_beside_it(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("f");
    assert_true(write_file(path, "one").ok());
    assert_true(write_file(path, "two").ok());
    assert_string_equal(read_file(path, 100).value().c_str(), "two");
    const std::filesystem::directory_iterator files(directory.path());
    assert_int_equal(std::distance(begin(files), end(files)), 1);
    assert_int_equal(write_file(directory.path(), "x").code(), BATCHLLM_ERROR_IO);
    assert_int_equal(write_file(directory.file("no/f"), "x").code(), BATCHLLM_ERROR_IO);
    const Status none = write_file("", "x"); // and no ".tmp.." here
    assert_int_equal(none.code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(none.message().c_str(), "empty"));
}

mode_t mode_of(const std::string &path) {
    struct stat info;
    assert_int_equal(::lstat(path.c_str(), &info), 0);
    return info.st_mode;
}

void a_file_that_is_replaced_keeps_its_mode(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("f"), link = directory.file("link");
    const mode_t before = ::umask(027);
    assert_true(write_file(path, "new").ok());
    assert_int_equal(mode_of(path), S_IFREG | 0640);
    for (const mode_t mode : {0600u, 0666u, 0440u, 0400u}) {
        assert_int_equal(::chmod(path.c_str(), mode), 0);
        assert_true(write_file(path, "again").ok());
        assert_int_equal(mode_of(path), S_IFREG | mode);
    }
    // A link is replaced, and what it led to stays.
    assert_int_equal(::symlink("f", link.c_str()), 0);
    assert_true(write_file(link, "linked").ok());
    assert_int_equal(mode_of(link), S_IFREG | 0400);
    assert_string_equal(read_file(path, 100).value().c_str(), "again");
    ::umask(before);
}

// Of a file of another user and group, once a process with neither has replaced it.
mode_t mode_replaced_by_another_user(const std::string &path, mode_t mode) {
    assert_int_equal(::chown(path.c_str(), 4321, 4322), 0);
    assert_int_equal(::chmod(path.c_str(), mode), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool changed =
            ::setgroups(0, nullptr) == 0 && ::setgid(4323) == 0 && ::setuid(4324) == 0;
        ::_exit(changed && write_file(path, "theirs").ok() ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(::waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return mode_of(path);
}

void a_file_of_another_user_keeps_its_owner_or_is_open_to_fewer(void **) {
    if (::geteuid() != 0) skip();
    const TemporaryDirectory directory;
    const std::string path = directory.file("f");
    assert_int_equal(::chmod(directory.path().c_str(), 0777), 0);
    assert_true(write_file(path, "one").ok());
    assert_int_equal(::chown(path.c_str(), 4321, 4322), 0);
    assert_int_equal(::chmod(path.c_str(), 0640), 0);
    assert_true(write_file(path, "two").ok());
    struct stat info;
    assert_int_equal(::stat(path.c_str(), &info), 0);
    assert_int_equal(info.st_mode, S_IFREG | 0640);
    assert_int_equal(info.st_uid, 4321);
    assert_int_equal(info.st_gid, 4322);
    assert_int_equal(mode_replaced_by_another_user(path, 0640), S_IFREG | 0600);
    assert_int_equal(mode_replaced_by_another_user(path, 0664), S_IFREG | 0644);
    assert_int_equal(mode_replaced_by_another_user(path, 0604), S_IFREG | 0600);

    const mode_t before = ::umask(077);
    assert_int_equal(::chmod(directory.path().c_str(), 01777), 0);
    assert_int_equal(::chmod(path.c_str(), 0666), 0);
    assert_true(write_file(path, "not theirs").ok());
    ::umask(before);
    assert_int_equal(::stat(path.c_str(), &info), 0);
    assert_int_equal(info.st_mode, S_IFREG | 0600);
    assert_int_equal(info.st_uid, 0);
}

// Another user may link there to any file, in a folder like /tmp.
void a_link_in_a_folder_of_all_opens_nothing(void **) {
    const TemporaryDirectory directory;
    const TemporaryDirectory other;
    const std::string target = other.file("f"), name = directory.file("f");
    assert_int_equal(::chmod(directory.path().c_str(), 01777), 0);
    for (const bool hard : {false, true}) {
        for (const auto &[mode, mask] : {std::pair<mode_t, mode_t>{0666, 077}, {0600, 022}}) {
            assert_true(write_file(target, "one").ok());
            assert_int_equal(::chmod(target.c_str(), mode), 0);
            const auto link = hard ? ::link : ::symlink;
            assert_int_equal(link(target.c_str(), name.c_str()), 0);
            const mode_t before = ::umask(mask);
            const bool written = write_file(name, "two").ok();
            ::umask(before);
            assert_true(written);
            assert_int_equal(mode_of(name), S_IFREG | 0600);
            assert_int_equal(mode_of(target), S_IFREG | mode);
            assert_int_equal(::unlink(name.c_str()), 0);
        }
    }
}

void threads_that_write_one_path_leave_one_of_their_texts(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("f");
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (const char letter : {'a', 'b', 'c', 'd'}) {
        threads.emplace_back([&, letter] {
            const std::string text(100000, letter);
            for (int i = 0; i < 10; ++i) failures += write_file(path, text).ok() ? 0 : 1;
        });
    }
    for (std::thread &thread : threads) thread.join();
    assert_int_equal(failures.load(), 0);
    const std::string text = read_file(path, 1 << 20).value();
    assert_int_equal(text.size(), 100000);
    assert_int_equal(text.find_first_not_of(text[0]), std::string::npos);
}

void a_pipe_is_written_to_and_not_replaced(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("pipe");
    assert_int_equal(::mkfifo(path.c_str(), 0600), 0);
    const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
    const bool written = write_file(path, "text").ok();
    char got[8] = {};
    const ssize_t bytes = ::read(reader, got, sizeof got);
    ::close(reader);
    struct stat info;
    assert_int_equal(::stat(path.c_str(), &info), 0);
    assert_true(written);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(bytes, 4);
    assert_memory_equal(got, "text", 4);
}

void what_is_there_what_is_not_and_what_cannot_be_told_differ(void **) {
    char folder[] = "/tmp/batchllm-base-XXXXXX";
    assert_non_null(::mkdtemp(folder));
    const std::string base = folder;
    assert_true(write_file(base + "/file", "text").ok());
    assert_true(file_exists(base + "/file").value());
    assert_true(file_exists(base).value());
    assert_false(file_exists(base + "/none").value());
    assert_false(file_exists(base + "/none/below").value());
    assert_false(file_exists(base + "/file/below").value());
    assert_false(is_directory(base + "/file").value());
    assert_false(is_directory(base + "/none").value());
    assert_true(is_directory(base).value());
    // A link to a missing file, as left by a pruned cache, and a link to itself.
    assert_int_equal(::symlink("none", (base + "/dangling").c_str()), 0);
    assert_int_equal(::symlink("loop", (base + "/loop").c_str()), 0);
    for (const char *name : {"/dangling", "/loop"}) {
        const auto found = file_exists(base + name);
        assert_int_equal(found.status().code(), BATCHLLM_ERROR_IO);
        assert_non_null(std::strstr(found.status().message().c_str(), (base + name).c_str()));
        assert_false(is_directory(base + name).ok());
    }
    for (const char *name : {"/file", "/dangling", "/loop"}) ::unlink((base + name).c_str());
    ::rmdir(folder);
}

// Stacks so large that the system refuses all threads, or all after the first few.
void a_pool_works_with_the_threads_that_the_system_starts(void **) {
    for (const size_t stack : {size_t{1} << 45, size_t{1} << 50}) {
        pthread_attr_t before, huge;
        assert_int_equal(::pthread_getattr_default_np(&before), 0);
        assert_int_equal(::pthread_getattr_default_np(&huge), 0);
        assert_int_equal(::pthread_attr_setstacksize(&huge, stack), 0);
        assert_int_equal(::pthread_setattr_default_np(&huge), 0);
        std::vector<std::atomic<int>> done(100);
        int32_t threads = 0;
        {
            ThreadPool pool(1000);
            threads = pool.size();
            pool.parallel_for(100, [&](int64_t i, int32_t) { ++done[static_cast<size_t>(i)]; });
        }
        assert_int_equal(::pthread_setattr_default_np(&before), 0);
        ::pthread_attr_destroy(&before);
        ::pthread_attr_destroy(&huge);
        assert_in_range(threads, 1, 999);
        for (const std::atomic<int> &times : done) assert_int_equal(times.load(), 1);
    }
}

// From 0.1 us a call, of which the clock sees nothing.
void quadratic_time_is_told_from_linear_time_however_short_it_is(void **) {
    volatile int64_t sink = 0;
    const auto count = [&sink](int64_t numbers) {
        for (int64_t i = 0; i < numbers; ++i) sink = sink + i;
    };
    for (const int64_t numbers : {100, 1'000, 100'000}) {
        assert_true(takes_linear_time(1, [&](int size) { count(numbers * size); }));
        assert_false(takes_linear_time(1, [&](int size) { count(numbers * size * size); }));
    }
}

void printable_text_drives_no_terminal(void **) {
    assert_string_equal(printable("a\x1b[31m\nb\x7f").c_str(), "a?[31m?b?");
    assert_string_equal(printable("\xc2\x9b"
                                  "31m \xc2\xa0\xc3\x9b")
                            .c_str(),
                        "?31m \xc2\xa0\xc3\x9b");
    assert_string_equal(printable("abcdef", 3).c_str(), "abc...");
}

void optional_members_and_unknown_keys_are_told_apart(void **) {
    const auto parsed = JsonDocument::parse(R"({"a":{"on":true,"no":null,"x\n":2}})", "FILE",
                                            BATCHLLM_ERROR_MODEL_FORMAT);
    assert_true(parsed.ok());
    const JsonValue a = parsed->root().at("a").value();
    assert_true(a.given("on").has_value());
    assert_false(a.given("no").has_value());
    assert_false(a.given("none").has_value());
    assert_true(a.boolean("on").value());
    assert_true(a.boolean_or("on", false).value());
    assert_true(a.boolean_or("no", true).value());
    assert_false(a.boolean_or("none", false).value());
    assert_int_equal(a.boolean("no").status().code(), BATCHLLM_ERROR_MODEL_FORMAT);
    assert_int_equal(a.boolean_or("x\n", true).status().code(), BATCHLLM_ERROR_MODEL_FORMAT);
    assert_string_equal(a.string("none").status().message().c_str(), "FILE: \"a.none\" is missing");
    assert_true(a.only_keys({"on", "no", "x\n"}).ok());
    const Status unknown = a.only_keys({"on", "no"});
    assert_int_equal(unknown.code(), BATCHLLM_ERROR_UNSUPPORTED);
    assert_string_equal(unknown.message().c_str(), "FILE: \"a.x?\" is 2: the key is not known");
    assert_false(a.at("on")->only_keys({}).ok());
}

void numbers_that_are_not_finite_are_read_as_python_writes_them(void **) {
    const auto parse = [](const std::string &text) {
        return JsonDocument::parse_of_python(text, "FILE", BATCHLLM_ERROR_MODEL_FORMAT);
    };
    const auto parsed = parse(R"({"a": [0.0, Infinity], "b":-Infinity, "c" :NaN, "in": "\\\"NaN\\",
        "d": {"__float__": "Infinity"}, "e": {"__float__": "x"}, "f": {"__float__": "NaN", "g": 1}})");
    assert_true(parsed.ok());
    const JsonValue root = parsed->root();
    assert_true(root.at("a")->elements().value()[1].not_finite() == "Infinity");
    assert_true(root.at("b")->not_finite() == "-Infinity" && root.at("c")->not_finite() == "NaN");
    assert_true(root.at("d")->not_finite() == "Infinity");
    assert_string_equal(root.string("in").value().c_str(), "\\\"NaN\\");
    for (const char *key : {"a", "in", "e", "f"}) {
        assert_false(root.at(key)->not_finite().has_value());
    }
    assert_true(root.at("e")->is_object() && root.at("f")->is_object());
    // Elsewhere they are out-of-range numbers.
    const JsonValue c = root.at("c").value();
    assert_false(c.is_object() || c.members().ok() || c.find("__float__").has_value() ||
                 c.at("x").ok());
    assert_false(c.only_keys({"__float__"}).ok());
    assert_string_equal(c.number(0, 1).status().message().c_str(),
                        "FILE: \"c\" is NaN: must be a number from 0 to 1");
    assert_string_equal(root.at("a")->number(0, 1).status().message().c_str(),
                        "FILE: \"a\" is [0.0,Infinity]: must be a number from 0 to 1");
    // The error names what is wrong beside them.
    assert_string_equal(parse("[NaN, 1e]").status().message().c_str(),
                        "FILE: not JSON: a malformed number at byte 6");
    for (const char *text : {"{NaN: 1}", "[NaNNaN]", "[--Infinity]", "[Infinity1]", "[+Infinity]",
                             "[nan]", "[1 NaN]", "[\"NaN]", "[NaN", "[\\NaN]"}) {
        const auto refused = parse(text);
        assert_false(refused.ok());
        assert_int_equal(refused.status().code(), BATCHLLM_ERROR_MODEL_FORMAT);
    }
    // Files of other programs are JSON or an error.
    assert_false(JsonDocument::parse("[NaN]", "FILE", BATCHLLM_ERROR_MODEL_FORMAT).ok());
}

void a_key_that_is_given_twice_is_an_error_for_whoever_asks_for_it(void **) {
    constexpr const char *text = R"({"a": {"b": 1, "b": 2, "c": 3}, "d": null, "e": 1, "e": 1})";
    const auto parsed = JsonDocument::parse_of_python(text, "FILE", BATCHLLM_ERROR_MODEL_FORMAT);
    assert_true(parsed.ok());
    const JsonValue root = parsed->root();
    const JsonValue a = root.at("a").value();
    assert_int_equal(a.at("c")->integer(0, 9).value(), 3);
    constexpr const char *twice = "FILE: the key \"a.b\" is given twice";
    assert_string_equal(a.at("b").status().message().c_str(), twice);
    assert_string_equal(a.members().status().message().c_str(), twice);
    // It is of no type, so that whoever looks at its type first fails all the same.
    const JsonValue b = a.find("b").value();
    assert_true(a.given("b").has_value());
    assert_false(b.is_null() || b.is_array() || b.is_object() || b.is_string());
    assert_string_equal(b.integer(0, 9).status().message().c_str(), twice);
    assert_string_equal(b.boolean().status().message().c_str(), twice);
    assert_string_equal(b.number(-9, 9).status().message().c_str(), twice);
    assert_string_equal(b.elements().status().message().c_str(), twice);
    assert_string_equal(b.unsupported("x").message().c_str(), twice);
    assert_false(root.boolean_or("e", true).ok());
    // Files of other programs have no equal keys.
    assert_false(JsonDocument::parse(text, "FILE", BATCHLLM_ERROR_MODEL_FORMAT).ok());
}

void python_takes_numbers_for_each_other(void **) {
    const auto parsed = JsonDocument::parse_of_python("[0, 1, 1.0, 2, -1, null]", "FILE", 1);
    const auto list = parsed->root().elements().value();
    assert_false(list[0].boolean().value());
    assert_true(list[1].boolean().value() && list[2].boolean().value());
    for (size_t i = 3; i < list.size(); ++i) assert_false(list[i].boolean().ok());
    assert_int_equal(list[2].integer(0, 1).value(), 1);
    // Elsewhere a number is neither, and only what is written as one is an integer.
    const auto strict = JsonDocument::parse("[1, 1.0]", "FILE", 1);
    const auto numbers = strict->root().elements().value();
    assert_false(numbers[0].boolean().ok() || numbers[1].integer(0, 1).ok());
}

void a_number_of_any_size_is_a_number_until_its_value_is_asked_for(void **) {
    const auto parsed = JsonDocument::parse(
        R"({"limit": 1000000000000000019884624838656, "huge": -1e400, "tiny": 0.1e-9999,
            "zero": -0, "one": 1.0, "most": 18446744073709551615})",
        "FILE", BATCHLLM_ERROR_MODEL_FORMAT);
    assert_true(parsed.ok());
    const JsonValue root = parsed->root();
    assert_string_equal(
        root.at("limit")->integer(0, 10).status().message().c_str(),
        "FILE: \"limit\" is 1000000000000000019884624838656: must be a whole number from 0 to 10");
    assert_true(root.at("limit")->number(0, 1e31).value() == 1e30);
    assert_string_equal(root.at("huge")->number(-1e300, 1).status().message().c_str(),
                        "FILE: \"huge\" is -1e400: must be a number from -1e+300 to 1");
    assert_true(root.at("tiny")->number(0, 1).value() == 0);
    assert_int_equal(root.at("zero")->integer(0, 0).value(), 0);
    assert_true(root.at("one")->view().integer() == 1);
    assert_true(root.at("most")->view().unsigned_integer() == UINT64_MAX);
    assert_false(root.at("most")->view().integer().has_value());
}

} // namespace
} // namespace batchllm

int main() {
    using namespace batchllm;
    const CMUnitTest tests[] = {
        cmocka_unit_test(optional_members_and_unknown_keys_are_told_apart),
        cmocka_unit_test(numbers_that_are_not_finite_are_read_as_python_writes_them),
        cmocka_unit_test(a_key_that_is_given_twice_is_an_error_for_whoever_asks_for_it),
        cmocka_unit_test(python_takes_numbers_for_each_other),
        cmocka_unit_test(a_number_of_any_size_is_a_number_until_its_value_is_asked_for),
        cmocka_unit_test(a_file_is_replaced_whole_and_nothing_is_left_beside_it),
        cmocka_unit_test(a_file_that_is_replaced_keeps_its_mode),
        cmocka_unit_test(a_file_of_another_user_keeps_its_owner_or_is_open_to_fewer),
        cmocka_unit_test(a_link_in_a_folder_of_all_opens_nothing),
        cmocka_unit_test(threads_that_write_one_path_leave_one_of_their_texts),
        cmocka_unit_test(what_is_there_what_is_not_and_what_cannot_be_told_differ),
        cmocka_unit_test(a_pipe_is_written_to_and_not_replaced),
        cmocka_unit_test(a_pool_works_with_the_threads_that_the_system_starts),
        cmocka_unit_test(quadratic_time_is_told_from_linear_time_however_short_it_is),
        cmocka_unit_test(printable_text_drives_no_terminal),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
