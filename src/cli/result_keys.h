// The keys that a line of output has itself (docs/formats.md). Keys of the input that pass through have other names.
#pragma once

#include <array>
#include <string_view>

namespace batchllm::cli::result_key {

inline constexpr std::string_view id = "id";
inline constexpr std::string_view error = "error";

// Rows in the program's own form.
inline constexpr std::string_view text = "text";
inline constexpr std::string_view tokens = "tokens";
inline constexpr std::string_view finish_reason = "finish_reason";
inline constexpr std::string_view logprobs = "logprobs";
inline constexpr std::string_view top_logprobs = "top_logprobs";
inline constexpr std::string_view prompt_logprobs = "prompt_logprobs";
inline constexpr std::string_view prompt_top_logprobs = "prompt_top_logprobs";
inline constexpr std::string_view scores = "scores";
inline constexpr std::string_view score_logprobs = "score_logprobs";
inline constexpr std::string_view embedding = "embedding";
inline constexpr std::string_view labels = "labels";
inline constexpr std::string_view samples = "samples";
inline constexpr std::string_view usage = "usage";

// The OpenAI batch format.
inline constexpr std::string_view custom_id = "custom_id";
inline constexpr std::string_view response = "response";

inline constexpr std::array all = {id,           error,           text,
                                   tokens,       finish_reason,   logprobs,
                                   top_logprobs, prompt_logprobs, prompt_top_logprobs,
                                   scores,       score_logprobs,  embedding,
                                   labels,       samples,         usage,
                                   custom_id,    response};

} // namespace batchllm::cli::result_key
