// Which of cuBLASLt's candidates is fastest for a shape of product, kept from run to run in a text file:
//
//     batchllm tuning 4
//     <stamp: what the choices depend on: library's version, device, ...>
//     <m> <n> <k> <element> <result> <accumulate> <candidate>    a line each
//     end <FNV-1a of all before it>
//
// accumulate: 0: y = product; 1: it is added to y; 2: y = GELU of it and a bias (Matrix::gelu); 3, 4: as 0 and 1, with a bias.
//
// A file is believed whole or not at all; one of another version, which has other candidates, is not. The
// worst that a forged one can do is to name a slow candidate. The library has such files inside for devices
// that were measured (linear/choices); a choice in the user's file goes first. Without CUDA, so that it is
// tested anywhere.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace batchllm::cuda {

struct TuningKey {
    int64_t m, n, k;
    int32_t element, result, accumulate;
    auto operator<=>(const TuningKey &) const = default;
};

class TuningCache {
  public:
    // Candidate c is the heuristic's c % kOfHeuristic, changed in the (c / kOfHeuristic)-th way (linear.cc; 0: not); kFewRows is
    // none of cuBLASLt's (linear/few_rows.h); where that becomes faster, files need a new version.
    static constexpr int32_t kOfHeuristic = 8, kChanges = 15,
                             kFewRows = kOfHeuristic * (1 + kChanges), kCandidates = kFewRows + 1;
    static constexpr size_t kMostEntries = 1 << 14;

    TuningCache() = default; // in memory alone
    // path "": in memory alone. warning: filled when there is a file that is not believed. shipped:
    // files that are read and never written; the one of this stamp is used.
    TuningCache(std::string path, std::string stamp, std::string *warning,
                std::span<const std::string_view> shipped = {});

    int32_t find(const TuningKey &key) const; // -1: not known
    void add(const TuningKey &key, int32_t candidate);

    // Writes what is new, and what others have written since, in one piece. A failure is the end of
    // writing, and of nothing else.
    void save();
    bool changed() const { return changed_; }

    // A file's choices; false: torn, or not such a file.
    static bool parse(std::string_view text, std::string_view stamp,
                      std::map<TuningKey, int32_t> *choices);
    std::string text() const;

  private:
    std::string path_, stamp_;
    std::map<TuningKey, int32_t> choices_, shipped_;
    bool changed_ = false;
};

// The files in linear/choices, as they were when the library was built.
std::span<const std::string_view> shipped_choices();

} // namespace batchllm::cuda
