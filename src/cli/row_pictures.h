// The pictures that rows name: where they may be, and the handle that reads them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/api.h"

namespace batchllm::cli {

// folders: of --images; none: the folder of the input, if that is a file. Null: the model reads text alone.
Result<PicturesHandle> open_pictures(const std::string &model, const std::string &input,
                                     std::vector<std::string> folders);

} // namespace batchllm::cli
