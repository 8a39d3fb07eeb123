// A plan <-> the bytes of a plan file (docs/plan-file.md).
//
// Reading trusts nothing: a count is compared with the bytes present before memory is allocated for
// it, and a plan is returned only if check_plan accepts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "plan/plan.h"

namespace batchllm {

constexpr uint32_t plan_format_version = 1;

// Header flags for the optional parts of a file. A reader refuses flags that it does not know.
constexpr uint32_t plan_has_tokens = 1; // self-contained
constexpr uint32_t plan_has_salts = 2;  // only together with the tokens

// Limit for the sum of a file's sections and the rows' decompressed tokens. A reader uses a small
// multiple of the sections, plus the tokens.
constexpr int64_t most_plan_bytes = int64_t{1} << 34;

// The whole file, in memory.
Result<std::string> write_plan(const Plan &plan);
Result<Plan> read_plan(std::span<const std::byte> file);

// Only the sections inside the compressed frame.
std::string write_plan_sections(const Plan &plan);
Result<Plan> read_plan_sections(std::span<const std::byte> sections, uint32_t flags);

// Appends a section that readers skip. A file that would otherwise compress or decompress to so
// extreme a ratio that a reader would reject it as a bomb gets one.
void append_padding(std::string &sections, size_t bytes);

// How long a plan's sections must be for a reader to allocate memory for its tokens.
int64_t least_section_bytes(const Plan &plan);

// Checks the invariants of plan.h as far as possible without the rows. For a self-contained plan,
// also checks that the tokens match the fingerprints and share the prefixes.
Status check_plan(const Plan &plan);
Status check_plan_structure(const Plan &plan); // everything but the tokens

} // namespace batchllm
