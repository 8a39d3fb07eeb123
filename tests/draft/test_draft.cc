// Texts and the tokens that they propose: against a search of the whole text, and on texts whose
// repetitions are known.
#include <algorithm>
#include <random>
#include <vector>

#include "draft/draft_rates.h"
#include "draft/draft_text.h"
#include "draft/row_draft.h"

#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Tokens = std::vector<int32_t>;
using Random = std::mt19937_64;

// The longest end of the text that occurs before, up to the longest match.
int32_t longest_before(const Tokens &text) {
    int32_t best = 0;
    const auto size = static_cast<int32_t>(text.size());
    for (int32_t next = 1; next < size; ++next) {
        int32_t length = 0;
        while (length < std::min(next, DraftText::longest_match) &&
               text[static_cast<size_t>(next - 1 - length)] ==
                   text[static_cast<size_t>(size - 1 - length)])
            ++length;
        best = std::max(best, length);
    }
    return best >= DraftText::least_match ? best : 0;
}

void a_match_is_the_longest_end_that_occurs_before(void **) {
    const uint64_t seed = seed_of_run();
    int64_t found = 0;
    for (uint64_t job = 0; job < 300; ++job) {
        Random random(seed + job);
        DraftText text(1 << 20);
        Tokens all;
        // Words in random order: few enough occurrences of each for all to be compared.
        std::vector<Tokens> words(10);
        for (Tokens &word : words)
            for (uint64_t i = 1 + random() % 9; i > 0; --i)
                word.push_back(static_cast<int32_t>(random() % 1000));
        for (int32_t i = 0; i < 12; ++i) {
            const Tokens &word = words[random() % words.size()];
            text.append(word);
            all.insert(all.end(), word.begin(), word.end());
            const DraftText::Match match = text.find(text.tail());
            const int32_t expected = longest_before(all);
            if (match.length != expected)
                fail_msg("%d and not %d tokens, job %d of seed %llu", match.length, expected,
                         int(job), static_cast<unsigned long long>(seed));
            if (expected == 0) continue;
            ++found;
            for (int32_t j = 1; j <= expected; ++j)
                assert_int_equal(text.at(match.next - j), text.at(text.end() - j));
        }
    }
    assert_true(found > 100);
}

void of_equal_matches_the_latest_counts(void **) {
    DraftText text(100);
    text.append(Tokens{1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3});
    assert_int_equal(text.at(text.find(text.tail()).next), 8);
    DraftText other(100);
    other.append(Tokens{1, 2, 4, 5});
    assert_int_equal(text.find(other.tail()).next, -1);
    other.append(Tokens{3, 7});
    assert_int_equal(text.find(other.tail()).next, -1);
    other.append(Tokens{2, 3, 7});
    assert_int_equal(text.at(text.find(other.tail()).next), 1);
}

// Ids of pictures are in prompts, never in answers.
void a_pictures_tokens_are_not_proposed(void **) {
    const int32_t picture = (1 << 30) + 5;
    const Tokens prompt = {1, 2, 3, 9, picture, picture, 4, 1, 2};
    RowDraft draft(prompt);
    const DraftText answers(100);
    DraftRates rates;
    draft.follow(Tokens{3}, answers, &rates);
    Tokens proposed;
    draft.propose(5, answers, &proposed);
    assert_true(proposed == Tokens{9});
}

void a_full_text_forgets_its_older_half(void **) {
    constexpr size_t most = 64;
    DraftText text(most);
    Tokens all;
    Random random(7);
    for (int32_t i = 0; i < 1000; ++i) {
        all.push_back(static_cast<int32_t>(random() % 5));
        text.append(all.back());
        assert_int_equal(text.end(), i + 1);
        assert_true(text.end() - text.begin() <= static_cast<int64_t>(most));
        assert_true(i < 40 || text.end() - text.begin() >= static_cast<int64_t>(most / 2));
        for (int64_t at = text.begin(); at < text.end(); ++at)
            assert_int_equal(text.at(at), all[static_cast<size_t>(at)]);
        const DraftText::Match match = text.find(text.tail());
        for (int32_t j = 1; j <= match.length; ++j)
            assert_int_equal(text.at(match.next - j), text.at(text.end() - j));
    }
}

Tokens proposed(const RowDraft &row, const DraftText &answers, int32_t most) {
    Tokens tokens;
    row.propose(most, answers, &tokens);
    return tokens;
}

void a_row_that_copies_its_prompt_is_proposed_what_follows(void **) {
    const Tokens prompt{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    const DraftText answers(100);
    DraftRates rates;
    RowDraft row(prompt);
    row.follow({}, answers, &rates);
    assert_true(proposed(row, answers, 4).empty());
    Tokens output{12, 13};
    row.follow(output, answers, &rates);
    assert_true(proposed(row, answers, 4).empty());
    output.push_back(14);
    row.follow(output, answers, &rates);
    assert_true((proposed(row, answers, 4) == Tokens{15, 16, 17, 18}));
    const double before = row.rate(0, rates);
    for (const int32_t token : {15, 16, 17, 18}) output.push_back(token);
    row.follow(output, answers, &rates);
    assert_true((proposed(row, answers, 2) == Tokens{19, 20}));
    assert_true(row.rate(0, rates) > before);
    // What is not right is not followed further, and counts.
    const double good = row.rate(0, rates);
    for (const int32_t token : {99, 14, 15, 16}) output.push_back(token);
    row.follow(output, answers, &rates);
    assert_true((proposed(row, answers, 1) == Tokens{17}));
    assert_true(row.rate(0, rates) < good);
}

void a_row_that_repeats_itself_is_proposed_more_than_it_has(void **) {
    const DraftText answers(100);
    DraftRates rates;
    RowDraft row(Tokens{1});
    row.follow(Tokens{5, 6, 7, 5, 6, 7}, answers, &rates);
    assert_true((proposed(row, answers, 8) == Tokens{5, 6, 7, 5, 6, 7, 5, 6}));
}

void a_row_that_begins_as_an_answer_does_is_proposed_its_rest(void **) {
    DraftText answers(100);
    answers.append(Tokens{30, 31, 32, 33, 34});
    answers.append(DraftText::separator);
    answers.append(Tokens{30, 31, 40});
    DraftRates rates;
    RowDraft row(Tokens{1, 2});
    row.follow(Tokens{30, 31, 32}, answers, &rates);
    assert_true((proposed(row, answers, 8) == Tokens{33, 34})); // not beyond the answer's end
    row.follow(Tokens{30, 31, 32, 33, 34, 50}, answers, &rates);
    assert_true(proposed(row, answers, 8).empty());
}

void rates_follow_what_is_observed_for_each_length(void **) {
    DraftRates rates;
    assert_true(rates.rate(3) < rates.rate(8) && rates.rate(8) < rates.rate(40));
    for (int32_t i = 0; i < 2000; ++i) {
        rates.count(3, i % 10 == 0);
        rates.count(20, i % 10 != 0);
    }
    assert_true(rates.rate(3) > 0.08 && rates.rate(3) < 0.13);
    assert_true(rates.rate(20) > 0.87 && rates.rate(20) < 0.92);
    for (int32_t i = 0; i < 4000; ++i) rates.count(3, true);
    assert_true(rates.rate(3) > 0.95);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_match_is_the_longest_end_that_occurs_before),
        cmocka_unit_test(of_equal_matches_the_latest_counts),
        cmocka_unit_test(a_full_text_forgets_its_older_half),
        cmocka_unit_test(a_pictures_tokens_are_not_proposed),
        cmocka_unit_test(a_row_that_copies_its_prompt_is_proposed_what_follows),
        cmocka_unit_test(a_row_that_repeats_itself_is_proposed_more_than_it_has),
        cmocka_unit_test(a_row_that_begins_as_an_answer_does_is_proposed_its_rest),
        cmocka_unit_test(rates_follow_what_is_observed_for_each_length),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
