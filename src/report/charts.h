// Curves and counts -> SVG charts with axes and units, each of bounded size.
#pragma once

#include <span>
#include <string>

#include "report/batch_curve.h"
#include "report/length_counts.h"

namespace batchllm {

// Tokens per batch over time: decode, own and prefix, stacked. most: the maximum of a batch; 0:
// unknown.
std::string draw_batches(std::span<const CurvePoint> points, int64_t most);

// KV pages in use over time. total: over all devices.
std::string draw_pages(std::span<const CurvePoint> points, int64_t total);

// How many rows have each number of tokens. name: for screen readers, e.g. "lengths of prompts".
std::string draw_lengths(const LengthCounts &lengths, const std::string &name);

} // namespace batchllm
