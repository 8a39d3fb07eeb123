// A tree of prefixes -> an icicle chart: a rectangle for each prefix, below the prefix that it
// continues. Its width is its share of the rows. The more rows each of its computed tokens serves,
// the darker it is.
#pragma once

#include <string>

#include "report/sharing_tree.h"

namespace batchllm {

// SVG with a legend; "" if nothing is shared. The size is bounded: rectangles too narrow to see are
// merged, and levels that are too deep appear only in the text of the level above.
std::string draw_icicle(const SharingTree &tree);

// A table of the few prefixes that save most.
std::string list_prefixes(const SharingTree &tree);

} // namespace batchllm
