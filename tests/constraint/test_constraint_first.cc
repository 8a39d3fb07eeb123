// The first token of a constrained text: some decoders remove a space from it.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

#include "constraint/constraint.h"
#include "constraint/specification.h"
#include "seed.h"
#include "testing.h"
#include "text/tokenizer.h"

using namespace batchllm;

namespace {

uint64_t seed = 0;

struct TestModel {
    std::string name;
    std::unique_ptr<Tokenizer> tokenizer;
    std::shared_ptr<const TokenVocabulary> vocabulary;
    int32_t eos; // an id after the tokenizer's
};

std::vector<TestModel> models() {
    std::vector<TestModel> found;
    for (const auto &entry : std::filesystem::directory_iterator("text")) {
        if (!std::filesystem::exists(entry.path() / "tokenizer.json")) continue;
        auto tokenizer = Tokenizer::load(entry.path().string());
        assert_true(tokenizer.ok());
        TestModel model{entry.path().filename().string(), std::move(tokenizer).value(), nullptr, 0};
        model.eos = model.tokenizer->vocabulary();
        const int32_t ends[] = {model.eos};
        auto vocabulary = TokenVocabulary::make(*model.tokenizer, ends, model.eos + 1);
        if (!vocabulary.ok()) continue;
        model.vocabulary = *vocabulary;
        found.push_back(std::move(model));
    }
    assert_true(found.size() >= 5);
    return found;
}

// Nothing if the vocabulary cannot spell them.
std::optional<ConstraintState> start(const TestModel &model,
                                     const std::vector<std::string> &choices) {
    ConstraintSpecification wanted;
    wanted.choices = choices;
    const auto made = make_constraint(wanted, model.vocabulary);
    if (!made.ok()) return std::nullopt;
    return ConstraintState(made->constraint);
}

const std::vector<std::string> texts = {"yes", " yes", "  two", "{\"a\": 1}", " ", "\xC3\xA9"};

void what_a_constraint_allows_decodes_to_its_text(void **) {
    std::mt19937_64 random(seed);
    int32_t walked = 0;
    for (const TestModel &model : models()) {
        for (const std::string &text : texts) {
            for (int32_t round = 0; round < 8; ++round) {
                auto begun = start(model, {text});
                if (!begun) break;
                ++walked;
                ConstraintState &state = *begun;
                std::vector<int32_t> tokens;
                for (;;) {
                    const auto allowed = state.allowed();
                    assert_true(allowed.ok() && allowed->count > 0);
                    std::vector<int32_t> may;
                    for (int32_t token = 0; token <= model.eos; ++token)
                        if (allowed->words[token / 32] >> (token % 32) & 1) may.push_back(token);
                    assert_int_equal(may.size(), allowed->count);
                    const int32_t token = may[random() % may.size()];
                    assert_true(state.advance(token).ok());
                    if (state.ended()) break;
                    tokens.push_back(token);
                }
                const std::string decoded = model.tokenizer->decode(tokens, true).value();
                if (decoded != text)
                    print_message("%s, text \"%s\"\n", model.name.c_str(), text.c_str());
                assert_string_equal(decoded.c_str(), text.c_str());
            }
        }
    }
    assert_true(walked >= 200);
}

void the_tokens_that_a_model_writes_are_allowed(void **) {
    for (const TestModel &model : models()) {
        for (const std::string &text : texts) {
            std::vector<int32_t> tokens;
            assert_true(model.tokenizer->encode(text, {false, false}, &tokens).ok());
            if (model.tokenizer->decode(tokens, true).value() != text) continue;
            auto begun = start(model, {text, "other"});
            if (!begun) continue;
            ConstraintState &state = *begun;
            for (const int32_t token : tokens) {
                const auto allowed = state.allowed();
                assert_true(allowed.ok());
                const bool shown = allowed->words[token / 32] >> (token % 32) & 1;
                if (!shown) print_message("%s, text \"%s\"\n", model.name.c_str(), text.c_str());
                assert_true(shown);
                assert_true(state.advance(token).ok());
            }
            assert_true(state.complete());
        }
    }
}

} // namespace

int main() {
    seed = seed_of_run();
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_a_constraint_allows_decodes_to_its_text),
        cmocka_unit_test(the_tokens_that_a_model_writes_are_allowed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
