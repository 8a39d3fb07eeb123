// A tree of prefixes -> an icicle: a rectangle a prefix, as wide as its share of the rows, below the prefix
// that it continues, and the darker the more rows each of its computed tokens serves.
#pragma once

#include <string>

#include "report/sharing_tree.h"

namespace batchllm {

// SVG with a legend; "" where nothing is shared. Of bounded size: what is too narrow to see is summed up
// beside its neighbours, and what is too deep is left to the text of what stands above it.
std::string draw_icicle(const SharingTree &tree);

// The few prefixes that save most, as a table.
std::string list_prefixes(const SharingTree &tree);

} // namespace batchllm
