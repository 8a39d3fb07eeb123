// Which of some answers fits best: nothing is generated, the answers are scored. Answers of one token cost one
// position of logits together. Usage: rank MODEL_DIRECTORY
#include <algorithm>
#include <array>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <batchllm/handles.h>

using batchllm::check;
using batchllm::Engine;
using batchllm::make;
using batchllm::Results;

int main(int argc, char **argv) try {
    const std::array<std::string, 2> prompts = {"Is water wet? Answer:", "Is fire cold? Answer:"};
    const std::array<std::string, 3> answers = {" yes", " no", " perhaps"};

    // Columns: the prompts, and the same answers for each of them.
    std::string text, continuations;
    std::vector<int64_t> offsets = {0}, continuation_offsets = {0}, continuation_rows = {0};
    for (const std::string &prompt : prompts) {
        text += prompt;
        offsets.push_back(static_cast<int64_t>(text.size()));
        for (const std::string &answer : answers) {
            continuations += answer;
            continuation_offsets.push_back(static_cast<int64_t>(continuations.size()));
        }
        continuation_rows.push_back(static_cast<int64_t>(continuation_offsets.size()) - 1);
    }

    auto options = batchllm::init(batchllm_engine_options_init);
    options.model_dir = argc > 1 ? argv[1] : ".";
    const Engine engine = make(batchllm_engine_create, &options);
    check(batchllm_add_score_text(engine.get(), prompts.size(), text.data(), offsets.data(),
                                  continuations.data(), continuation_offsets.data(),
                                  continuation_rows.data(), nullptr, nullptr));
    check(batchllm_run(engine.get(), nullptr, nullptr));
    const Results results = make(batchllm_poll, engine.get(), 0);
    for (int64_t i = 0; i < results->count; ++i) {
        if (results->statuses[i] != BATCHLLM_OK) continue;
        const double *scores = results->scores + results->score_offsets[i];
        const auto best = std::max_element(scores, scores + answers.size()) - scores;
        std::cout << prompts[results->tags[i]] << answers[static_cast<size_t>(best)] << " ("
                  << scores[best] << ")\n";
    }
    return 0;
} catch (const std::exception &fault) {
    std::cerr << fault.what() << '\n';
    return 1;
}
