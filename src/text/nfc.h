// Text to its canonical composition (NFC).
//
// Of Unicode 9, as the reference's is: later marks and compositions stay as they are.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// Whether NFC surely leaves the text as it is. Linear, and true for most text.
bool is_nfc(std::string_view text);

// Appends the NFC of text (valid UTF-8) to *out. O(n log n).
void append_nfc(std::string_view text, std::string *out);

} // namespace batchllm
