// Bytes -> UTF-8. Invalid bytes become U+FFFD: one for each maximal incomplete character (Unicode
// 16, 3.9, "maximal subparts"; as in Rust's from_utf8_lossy).
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

class LossyUtf8 {
  public:
    // Appends all complete characters and holds back an incomplete one.
    void push(std::string_view bytes, std::string *out);
    void finish(std::string *out);

  private:
    std::string held_; // the start of a character, at most three bytes
};

} // namespace batchllm
