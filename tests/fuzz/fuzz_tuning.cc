// libFuzzer: a tuning cache. It is accepted as a whole or not at all, and an accepted file is
// written back unchanged.
#include <fstream>

#include "fuzz_folder.h"
#include "linear/tuning_cache.h"

using namespace batchllm::cuda;
using batchllm::fuzz::check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const batchllm::fuzz::Folder folder;
    const std::string_view input(reinterpret_cast<const char *>(data), size);
    std::map<TuningKey, int32_t> choices;
    const bool believed = TuningCache::parse(input, "stamp", &choices);
    for (const auto &[key, candidate] : choices) {
        check(believed && candidate >= 0 && candidate < TuningCache::kCandidates);
    }
    check(choices.size() <= TuningCache::kMostEntries);
    // Accepted inputs also go through a file, and a part of the others: with all of them it would
    // be ten times slower.
    if (!believed && size % 32 != 0) return 0;
    folder.write("cache", input);
    std::string warning;
    TuningCache cache(folder.path() + "/cache", "stamp", &warning);
    for (const auto &[key, candidate] : choices) check(cache.find(key) == candidate);
    cache.add({1, 2, 3, 0, 0, 0}, 4);
    check(cache.find({1, 2, 3, 0, 0, 0}) == 4);
    std::map<TuningKey, int32_t> again;
    check(TuningCache::parse(cache.text(), "stamp", &again));
    check(again.at({1, 2, 3, 0, 0, 0}) == 4);
    return 0;
}
