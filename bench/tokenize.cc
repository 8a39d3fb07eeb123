// tokenize TOKENIZER TEXT [SECONDS]: megabytes of text tokenized per second, on one thread, one
// line of the text file at a time. bench/tokenize.py runs it beside the reference on the same text.
#include <cstdio>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "clock.h"
#include "text/tokenizer.h"

using batchllm::Clock;
using batchllm::seconds_since;

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: tokenize TOKENIZER TEXT [SECONDS]\n");
        return 2;
    }
    const double seconds = argc > 3 ? std::atof(argv[3]) : 2.0;
    const auto loading = Clock::now();
    auto tokenizer = batchllm::Tokenizer::load(argv[1]);
    if (!tokenizer.ok()) {
        std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
        return 1;
    }
    const double load_seconds = seconds_since(loading);
    auto text = batchllm::read_file(argv[2], size_t{1} << 30);
    if (!text.ok()) {
        std::fprintf(stderr, "%s\n", text.status().message().c_str());
        return 1;
    }
    std::vector<std::string_view> lines;
    for (std::string_view rest = *text; !rest.empty();) {
        const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
        lines.push_back(rest.substr(0, end));
        rest.remove_prefix(end);
    }
    std::vector<int32_t> tokens;
    double best = 1e30;
    size_t count = 0;
    for (const auto start = Clock::now(); seconds_since(start) < seconds;) {
        const auto begin = Clock::now();
        count = 0;
        for (const std::string_view line : lines) {
            tokens.clear();
            if (!(*tokenizer)->encode(line, {}, &tokens).ok()) return 1;
            count += tokens.size();
        }
        best = std::min(best, seconds_since(begin));
    }
    const double megabytes = static_cast<double>(text->size()) / 1e6;
    std::printf("%.2f MB/s, %.2f million tokens/s, %zu tokens, loaded in %.3f s\n",
                megabytes / best, static_cast<double>(count) / best / 1e6, count, load_seconds);
    return 0;
}
