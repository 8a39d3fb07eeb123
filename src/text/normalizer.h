// Text -> normalized text: the "normalizer" of tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm {

struct NormalizerStep {
    enum class Kind : uint8_t {
        nfc,
        prepend, // content before the text, unless the text is empty
        replace, // each occurrence of pattern (not empty) with content
    };
    Kind kind;
    std::string pattern;
    std::string content;
};

// Appends the text to *out with each occurrence of pattern replaced, leftmost first.
void append_replaced(std::string_view text, std::string_view pattern, std::string_view content,
                     std::string *out);

class Normalizer {
  public:
    explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}

    const std::vector<NormalizerStep> &steps() const { return steps_; }

    // Applies the steps in order. Returns text itself if nothing changes, else a view of *buffer.
    std::string_view apply(std::string_view text, std::string *buffer) const;

  private:
    std::vector<NormalizerStep> steps_;
};

} // namespace batchllm
