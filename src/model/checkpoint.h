// The tensors of all files of a model directory, by name: model.safetensors, or the shards that
// model.safetensors.index.json lists.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "model/model.h"
#include "model/safetensors.h"

namespace batchllm {

struct Located {
    size_t file;
    StoredTensor stored;
    bool used = false;
};

class Checkpoint {
  public:
    std::vector<MappedFile> files;
    std::unordered_map<std::string, Located> tensors;
    std::unordered_map<std::string, Located> passed_over; // those that rename() has dropped

    Status add_file(const std::string &path);
    // Gives the tensors the names used in the description, and drops those that the text model skips.
    Status rename(const Model &model);
    // For errors: the name that a missing tensor would have in these files.
    std::string name_in_files(const std::string &name, const Model &model) const;
};

Result<Checkpoint> open_checkpoint(const std::string &model_dir);

// The name in the description of a tensor with this name in files.
std::string described_name(const std::string &name, const Model &model);

// Whether no model needs this tensor, so that it is no reason to reject a file: see weights.cc.
bool is_ignored_tensor(const std::string &name);

} // namespace batchllm
