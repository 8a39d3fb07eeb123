// Grammars in which a text can be read in very many ways: the cost limits, and which row fails.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../bench/constraint_vocabulary.h"
#include "constraint/specification.h"
#include "testing.h"

using namespace batchllm;

namespace {

std::shared_ptr<const TokenVocabulary> vocabulary() {
    static const std::shared_ptr<const TokenVocabulary> made = [] {
        std::vector<std::string> tokens = VocabularyMaker::make(4000);
        std::vector<uint8_t> special(tokens.size(), 0);
        const auto eos = static_cast<int32_t>(tokens.size());
        tokens.emplace_back("</s>");
        special.push_back(1);
        return TokenVocabulary::make(tokens, special, {&eos, 1}).value();
    }();
    return made;
}

ConstraintSpecification gbnf(std::string text) {
    ConstraintSpecification made;
    made.kind = ConstraintSpecification::Kind::gbnf;
    made.text = std::move(text);
    return made;
}

std::shared_ptr<const Constraint> must_make(const ConstraintSpecification &wanted) {
    auto made = make_constraint(wanted, vocabulary());
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return made->constraint;
}

// "s" and letters; or "zza" and one of more rules than a state may have places, each with its own
// end.
std::string one_way_of_many(int32_t rules) {
    std::string text = "root ::= \"s\" [a-z]* | \"zza\" many\nq ::= \"b\" q | \"c\"\nmany ::= ";
    for (int32_t i = 0; i < rules; ++i) text += (i > 0 ? " | r" : "r") + std::to_string(i);
    for (int32_t i = 0; i < rules; ++i)
        text += "\nr" + std::to_string(i) + " ::= q \"" + std::to_string(i) + "\"";
    return text;
}

void the_ambiguity_of_one_row_leaves_the_others_alone(void **) {
    const auto constraint = must_make(gbnf(one_way_of_many(20'100)));
    ConstraintState bad(constraint);
    ConstraintState good(constraint);
    assert_true(good.allowed().ok());
    assert_true(good.advance_bytes("sa").ok());
    assert_true(bad.advance_bytes("zz").ok());
    const Status failed = bad.advance_bytes("ab");
    assert_int_equal(failed.code(), BATCHLLM_ERROR_ROW_CONSTRAINT);
    assert_non_null(strstr(failed.message().c_str(), "too ambiguous"));
    assert_int_equal(bad.allowed().status().code(), BATCHLLM_ERROR_ROW_CONSTRAINT);
    // A row that has reached new states since, and one that begins.
    assert_true(good.allowed().ok());
    assert_true(good.advance_bytes("bcdefghijklmnopqrstuvwxyz").ok());
    assert_true(good.allowed().ok() && good.complete());
    ConstraintState fresh(constraint);
    assert_true(fresh.allowed().ok());
    assert_true(fresh.advance_bytes("sxyz").ok() && fresh.complete());
    // Any other row that reaches the same place fails there too.
    assert_int_equal(ConstraintState(constraint).advance_bytes("zzab").code(),
                     BATCHLLM_ERROR_ROW_CONSTRAINT);
}

void threads_fail_where_one_alone_does(void **) {
    ConstraintSpecification wanted = gbnf(one_way_of_many(20'100));
    wanted.options.cache_bytes = int64_t{1} << 20; // dropped now and then while others use it
    const auto constraint = must_make(wanted);
    std::vector<int32_t> codes(40, -1);
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (size_t i = thread; i < codes.size(); i += 4) {
                ConstraintState state(constraint);
                const bool fails = i % 3 == 0;
                codes[i] = state.advance_bytes(fails ? "zzabc1" : "sabcabcabcabcabcabc").code();
                if (codes[i] == BATCHLLM_OK && !state.allowed().ok()) codes[i] = -2;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (size_t i = 0; i < codes.size(); ++i)
        assert_int_equal(codes[i], i % 3 == 0 ? BATCHLLM_ERROR_ROW_CONSTRAINT : BATCHLLM_OK);
}

void a_constraint_that_cannot_begin_is_refused(void **) {
    std::string text = one_way_of_many(20'100);
    text.replace(0, text.find('\n'), "root ::= many");
    const auto made = make_constraint(gbnf(text), vocabulary());
    assert_int_equal(made.status().code(), BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(
        strstr(made.status().message().c_str(), "grammar: the constraint is too ambiguous"));
}

void thousands_of_alternatives_are_no_trouble(void **) {
    std::string text = one_way_of_many(5'000);
    const auto constraint = must_make(gbnf(text));
    for (const char *good : {"zzabbbc0", "zzac4999", "zzabc123"}) {
        ConstraintState state(constraint);
        for (const char *c = good; *c != '\0'; ++c) {
            assert_true(state.allowed().ok());
            if (!state.advance_bytes({c, 1}).ok()) fail_msg("%s is refused at %s", good, c);
        }
        assert_true(state.complete());
    }
    ConstraintState state(constraint);
    assert_int_equal(state.advance_bytes("zzabc5000").code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
}

// A letter may end a word or not: after n letters the counter has any of n values.
void words_that_nothing_separates_are_counted(void **) {
    const auto constraint = must_make(gbnf("root ::= w{1,1000}\nw ::= [a-z ]+"));
    const int64_t before = Constraint::all_cached_bytes();
    ConstraintState state(constraint);
    for (int32_t i = 0; i < 100; ++i) {
        assert_true(state.allowed().ok());
        assert_true(state.advance_bytes("ten bytes ").ok());
    }
    assert_true(state.complete() && !state.exhausted());
    // Each state has up to a thousand frames, stored once, not again for each way to merge them.
    assert_true(Constraint::all_cached_bytes() - before < int64_t{16} << 20);
    const auto exact = must_make(gbnf("root ::= w{3,4} \".\"\nw ::= [a-z]+"));
    assert_int_equal(ConstraintState(exact).advance_bytes("ab.").code(),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_true(ConstraintState(exact).advance_bytes("abc.").ok());
    assert_true(ConstraintState(exact).advance_bytes("abcabcabc.").ok());
}

// Each letter may be any of a million counts of three counters. A row fails, with bounded memory.
void a_mask_that_takes_too_much_is_the_failure_of_its_row(void **) {
    const auto constraint =
        must_make(gbnf("root ::= \"ok\" | \"x\" x{0,100}\nx ::= y{0,100}\ny ::= z{0,100}\n"
                       "z ::= [a-z]? [a-z]? \" \"?"));
    const int64_t before = Constraint::all_cached_bytes();
    ConstraintState bad(constraint);
    Status failed;
    for (int32_t i = 0; i < 400 && failed.ok(); ++i) {
        failed = bad.allowed().status();
        if (failed.ok()) failed = bad.advance_bytes(i == 0 ? "x" : "ab c ");
    }
    assert_int_equal(failed.code(), BATCHLLM_ERROR_ROW_CONSTRAINT);
    assert_true(Constraint::all_cached_bytes() - before < int64_t{400} << 20);
    ConstraintState good(constraint);
    assert_true(good.advance_bytes("ok").ok() && good.complete() && good.allowed().ok());
}

// In one call: the graph is replaced on the way when it is full.
void a_long_text_takes_no_more_memory_than_a_short_one(void **) {
    ConstraintSpecification wanted = gbnf("root ::= [a-c]{10,200000}");
    wanted.options.cache_bytes = int64_t{1} << 20;
    const auto constraint = must_make(wanted);
    const int64_t before = Constraint::all_cached_bytes();
    ConstraintState state(constraint);
    assert_true(state.advance_bytes(std::string(100'000, 'a')).ok());
    assert_true(Constraint::all_cached_bytes() - before < int64_t{4} << 20);
    // A mismatch at the end changes nothing, wherever the text has led.
    assert_int_equal(state.advance_bytes(std::string(50'000, 'b') + "d").code(),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_true(state.advance_bytes(std::string(100'000, 'c')).ok());
    assert_true(state.complete() && state.exhausted());
    assert_int_equal(state.advance_bytes("c").code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_ambiguity_of_one_row_leaves_the_others_alone),
        cmocka_unit_test(threads_fail_where_one_alone_does),
        cmocka_unit_test(a_constraint_that_cannot_begin_is_refused),
        cmocka_unit_test(thousands_of_alternatives_are_no_trouble),
        cmocka_unit_test(words_that_nothing_separates_are_counted),
        cmocka_unit_test(a_mask_that_takes_too_much_is_the_failure_of_its_row),
        cmocka_unit_test(a_long_text_takes_no_more_memory_than_a_short_one),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
