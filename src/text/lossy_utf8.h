// Bytes to UTF-8: what is no character becomes U+FFFD, one for each longest start of a character
// that cannot go on (Unicode 16, 3.9, "maximal subparts"; what Rust's from_utf8_lossy does).
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

class LossyUtf8 {
  public:
    // Appends all characters that are certain by now; the start of one is held back.
    void push(std::string_view bytes, std::string *out);
    void finish(std::string *out);

  private:
    std::string held_; // start of a character, at most three bytes
};

} // namespace batchllm
