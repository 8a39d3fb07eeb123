// Bytes to UTF-8: invalid bytes become U+FFFD, one for each longest beginning of a character that
// cannot continue (Unicode 16, 3.9, "maximal subparts"; as in Rust's from_utf8_lossy).
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

class LossyUtf8 {
  public:
    // Appends all complete characters; the beginning of one is held back.
    void push(std::string_view bytes, std::string *out);
    void finish(std::string *out);

  private:
    std::string held_; // start of a character, at most three bytes
};

} // namespace batchllm
