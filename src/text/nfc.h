// Text -> its canonical composition (NFC).
//
// Follows Unicode 9, like the reference: later marks and compositions are left unchanged.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// True only if NFC leaves the text unchanged. Linear, and true for most text.
bool is_nfc(std::string_view text);

// Appends the NFC of text (valid UTF-8) to *out. O(n log n).
void append_nfc(std::string_view text, std::string *out);

} // namespace batchllm
