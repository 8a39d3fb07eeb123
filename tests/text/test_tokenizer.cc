// The tokenizer compared with golden data of the reference (tests/text/make_golden.py), and on its
// own.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <simdjson.h>

#include "processor_time.h"
#include "seed.h"
#include "text/lossy_utf8.h"
#include "text/merge.h"
#include "text/tokenizer.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

using namespace batchllm;

namespace {

std::unique_ptr<Tokenizer> load(const std::string &name) {
    auto tokenizer = Tokenizer::load("text/" + name);
    if (!tokenizer.ok()) {
        print_error("%s\n", tokenizer.status().message().c_str());
        return nullptr;
    }
    return std::move(tokenizer).value();
}

std::string joined_stream(const Tokenizer &tokenizer, const std::vector<int32_t> &ids, bool skip,
                          bool *whole_characters) {
    StreamDecoder stream(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        if (!simdjson::validate_utf8(piece.data(), piece.size())) *whole_characters = false;
        text += piece;
    }
    return text + stream.finish();
}

struct GoldenCounts {
    int64_t cases = 0;
    int64_t failures = 0;
};

GoldenCounts check_golden() {
    GoldenCounts counts;
    std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
    simdjson::dom::parser parser;
    simdjson::dom::document_stream lines;
    if (parser.load_many("text/golden.jsonl").get(lines) != simdjson::SUCCESS) return counts;
    for (simdjson::dom::element line : lines) {
        const std::string name(std::string_view(line.at(0)));
        if (!tokenizers.contains(name)) tokenizers[name] = load(name);
        if (tokenizers[name] == nullptr) return {};
        const Tokenizer &tokenizer = *tokenizers[name];
        const int64_t bits = line.at(1);
        const std::string_view text = line.at(2);
        std::vector<int32_t> wanted;
        for (const int64_t id : line.at(3).get_array()) wanted.push_back(static_cast<int32_t>(id));
        std::vector<int32_t> ids;
        const Status status = tokenizer.encode(text, {(bits & 1) != 0, (bits & 2) != 0}, &ids);
        bool good = status.ok() && (ids == wanted || (bits & 4) != 0); // 4: ids to be decoded only
        for (const bool skip : {false, true}) {
            const auto decoded = tokenizer.decode(wanted, skip);
            good = good && decoded.ok() && *decoded == std::string_view(line.at(skip ? 5 : 4)) &&
                   joined_stream(tokenizer, wanted, skip, &good) == *decoded;
        }
        if (!good) print_error("%s: %s\n", name.c_str(), simdjson::minify(line).c_str());
        counts.failures += good ? 0 : 1;
        ++counts.cases;
    }
    return counts;
}

void every_golden_case_is_encoded_and_decoded_as_the_reference_does(void **) {
    const GoldenCounts counts = check_golden();
    assert_true(counts.cases > 4000);
    assert_int_equal(counts.failures, 0);
}

// Whether text comes back from its tokens; for byte-level vocabularies it must.
bool round_trips(const Tokenizer &tokenizer, const std::string &text) {
    std::vector<int32_t> ids;
    if (!tokenizer.encode(text, {false, false}, &ids).ok()) return false;
    const auto decoded = tokenizer.decode(ids, false);
    return decoded.ok() && *decoded == text;
}

void long_words_take_linear_time(void **) {
    for (const char *name : {"llama3", "llama2", "metaspace", "o200k", "qwen3_5"}) {
        const auto tokenizer = load(name);
        assert_true(tokenizer != nullptr);
        for (const char *unit : {"a", "A", "\xCC\x81",
                                 "\xCC\x81"
                                 "A",
                                 "there", "\xE4\xB8\xAD", " ", "\n", "<|", "'", "/\n"}) {
            const auto encode = [&](int bytes) {
                std::string text;
                while (text.size() < static_cast<size_t>(bytes)) text += unit;
                std::vector<int32_t> ids;
                assert_true(tokenizer->encode(text, {}, &ids).ok());
                assert_false(ids.empty());
                if (std::string(name) == "llama3") assert_true(round_trips(*tokenizer, text));
            };
            if (!takes_linear_time(1 << 13, encode)) fail_msg("%s: words of '%s'", name, unit);
        }
    }
}

// The definition of merging, without optimisations.
void merge_plainly(const MergeTable &merges, std::vector<int32_t> *symbols) {
    while (true) {
        size_t best = 0;
        Merge found{kNoMerge, -1};
        for (size_t i = 0; i + 1 < symbols->size(); ++i) {
            const Merge merge = merges.find((*symbols)[i], (*symbols)[i + 1]);
            if (merge.rank < found.rank) {
                found = merge;
                best = i;
            }
        }
        if (found.rank == kNoMerge) return;
        (*symbols)[best] = found.token;
        symbols->erase(symbols->begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
}

void short_and_long_words_merge_as_the_plain_algorithm_does(void **) {
    std::mt19937 random(static_cast<uint32_t>(seed_of_run()));
    bool good = true;
    for (int round = 0; round < 300; ++round) {
        MergeTable merges(200);
        const auto letters = static_cast<uint32_t>(2 + random() % 3);
        uint32_t tokens = letters;
        for (uint32_t rank = 0; rank < 1 + static_cast<uint32_t>(random() % 60); ++rank) {
            merges.insert(static_cast<int32_t>(random() % tokens),
                          static_cast<int32_t>(random() % tokens),
                          {rank, static_cast<int32_t>(tokens)});
            ++tokens;
        }
        std::vector<int32_t> symbols(random() % 200);
        for (int32_t &symbol : symbols) symbol = static_cast<int32_t>(random() % letters);
        std::vector<int32_t> plain = symbols;
        merge_plainly(merges, &plain);
        MergeScratch scratch;
        merge_word(merges, &scratch, &symbols);
        good = good && symbols == plain;
    }
    assert_true(good);
}

void text_that_is_not_utf8_fails_and_appends_nothing(void **) {
    const auto tokenizer = load("llama3");
    assert_true(tokenizer != nullptr);
    bool good = true;
    for (const char *text : {"a\xFF", "\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}) {
        std::vector<int32_t> ids = {7};
        const Status status = tokenizer->encode(text, {}, &ids);
        good = good && status.code() == BATCHLLM_ERROR_ROW_INVALID_UTF8 && ids.size() == 1;
    }
    assert_true(good);
}

void special_tokens_in_strangers_text_are_plain_text_when_asked(void **) {
    const auto tokenizer = load("qwen2");
    assert_true(tokenizer != nullptr);
    const int32_t end = tokenizer->token_id("<|im_end|>");
    std::vector<int32_t> parsed;
    std::vector<int32_t> plain;
    const bool encoded = tokenizer->encode("a<|im_end|>b", {true, true}, &parsed).ok() &&
                         tokenizer->encode("a<|im_end|>b", {true, false}, &plain).ok();
    assert_true(encoded);
    assert_true(tokenizer->is_special(end));
    assert_int_equal(std::count(parsed.begin(), parsed.end(), end), 1);
    assert_int_equal(std::count(plain.begin(), plain.end(), end), 0);
    assert_true(round_trips(*tokenizer, "a<|im_end|>b"));
}

void ids_outside_the_vocabulary_are_refused_and_stream_to_nothing(void **) {
    const auto tokenizer = load("gpt2");
    assert_true(tokenizer != nullptr);
    for (const int32_t id : {-1, tokenizer->vocabulary(), INT32_MAX, INT32_MIN}) {
        const std::vector<int32_t> ids = {5, id};
        assert_int_equal(tokenizer->decode(ids, false).status().code(),
                         BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN);
        StreamDecoder stream(*tokenizer, false);
        assert_true(stream.push(id).empty() && stream.finish().empty());
        assert_false(tokenizer->is_special(id));
    }
    const std::vector<int32_t> last = {tokenizer->vocabulary() - 1};
    assert_true(tokenizer->decode(last, false).ok());
}

void a_stream_of_random_tokens_equals_the_whole_and_never_cuts_a_character(void **) {
    std::mt19937 random(static_cast<uint32_t>(seed_of_run()));
    bool good = true;
    for (const char *name :
         {"llama3", "gpt2", "llama2", "metaspace", "metaspace_split", "cl100k", "gemma", "phi3"}) {
        const auto tokenizer = load(name);
        for (int round = 0; round < 300 && tokenizer != nullptr; ++round) {
            std::vector<int32_t> ids(random() % 30);
            for (int32_t &id : ids) {
                id =
                    static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocabulary()));
            }
            const auto whole = tokenizer->decode(ids, round % 2 == 0);
            good = good && whole.ok() &&
                   joined_stream(*tokenizer, ids, round % 2 == 0, &good) == *whole;
        }
        good = good && tokenizer != nullptr;
    }
    assert_true(good);
}

void bytes_that_are_no_character_become_one_mark_for_each_longest_start(void **) {
    // As decoded by Python with errors="replace"; ? stands for U+FFFD.
    const std::pair<const char *, const char *> cases[] = {
        {"\xE0\x80\x80", "???"},
        {"\xF0\x80\x80\x80", "????"},
        {"\xED\xA0\x80", "???"},
        {"\xF4\x90\x80\x80", "????"},
        {"\xE2\x82", "?"},
        {"a\xF0\x9F\x98", "a?"},
        {"\xE2(\xA1", "?(?"},
        {"\xC0\xAF", "??"},
        {"\xE4\xB8\xE4\xB8\xAD", "?\xE4\xB8\xAD"},
        {"\xF5\x80", "??"},
    };
    bool good = true;
    for (const auto &[bytes, shown] : cases) {
        std::string wanted;
        for (const char *c = shown; *c != '\0'; ++c) {
            wanted += *c == '?' ? "\xEF\xBF\xBD" : std::string(1, *c);
        }
        LossyUtf8 whole;
        LossyUtf8 bytewise;
        std::string text;
        std::string joined;
        whole.push(bytes, &text);
        whole.finish(&text);
        for (const char *c = bytes; *c != '\0'; ++c) bytewise.push({c, 1}, &joined);
        bytewise.finish(&joined);
        good = good && text == wanted && joined == wanted;
    }
    assert_true(good);
}

void threads_sharing_a_tokenizer_get_what_one_thread_gets(void **) {
    const auto tokenizer = load("llama2");
    assert_true(tokenizer != nullptr);
    std::vector<std::string> texts;
    for (int i = 0; i < 500; ++i) {
        texts.push_back("row " + std::to_string(i * 7919) + " of the people's government, again");
    }
    std::vector<std::vector<int32_t>> alone(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) (void)tokenizer->encode(texts[i], {}, &alone[i]);
    std::vector<std::thread> threads;
    std::vector<int> equal(4, 1);
    for (size_t thread = 0; thread < equal.size(); ++thread) {
        threads.emplace_back([&, thread] {
            for (size_t i = 0; i < texts.size(); ++i) {
                std::vector<int32_t> ids;
                const bool ok = tokenizer->encode(texts[i], {}, &ids).ok();
                if (!ok || ids != alone[i]) equal[thread] = 0;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    assert_true(equal == std::vector<int>(4, 1));
}

void tokenizers_that_differ_have_different_fingerprints(void **) {
    std::vector<uint64_t> seen;
    for (const char *name :
         {"llama3", "qwen2", "gpt2", "llama2", "metaspace", "metaspace_split", "digits", "cl100k",
          "qwen3_5", "o200k", "tekken", "seed", "gemma", "phi3", "command"}) {
        const auto tokenizer = load(name);
        assert_true(tokenizer != nullptr);
        assert_true(tokenizer->fingerprint() != 0);
        assert_int_equal(std::count(seen.begin(), seen.end(), tokenizer->fingerprint()), 0);
        seen.push_back(tokenizer->fingerprint());
        assert_true(load(name)->fingerprint() == tokenizer->fingerprint());
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_case_is_encoded_and_decoded_as_the_reference_does),
        cmocka_unit_test(long_words_take_linear_time),
        cmocka_unit_test(short_and_long_words_merge_as_the_plain_algorithm_does),
        cmocka_unit_test(text_that_is_not_utf8_fails_and_appends_nothing),
        cmocka_unit_test(special_tokens_in_strangers_text_are_plain_text_when_asked),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused_and_stream_to_nothing),
        cmocka_unit_test(a_stream_of_random_tokens_equals_the_whole_and_never_cuts_a_character),
        cmocka_unit_test(bytes_that_are_no_character_become_one_mark_for_each_longest_start),
        cmocka_unit_test(threads_sharing_a_tokenizer_get_what_one_thread_gets),
        cmocka_unit_test(tokenizers_that_differ_have_different_fingerprints),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
