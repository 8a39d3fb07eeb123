// Two prompts in, two texts out. Usage: hello MODEL_DIRECTORY
#include <exception>
#include <iostream>

#include "handles.h"

int main(int argc, char **argv) try {
    const Engine engine = open_engine(argc > 1 ? argv[1] : ".");
    uint64_t tag = 0;
    for (const char *prompt : {"The capital of France is", "The capital of Peru is"})
        check(batchllm_add_prompt(engine.get(), prompt, -1, tag++, nullptr));
    check(batchllm_run(engine.get(), nullptr, nullptr));
    const Results results = poll(engine);
    for (int64_t i = 0; i < results->count; ++i)
        std::cout << results->tags[i] << ": " << text_of(results, i) << '\n';
    return 0;
} catch (const std::exception &fault) {
    std::cerr << fault.what() << '\n';
    return 1;
}
