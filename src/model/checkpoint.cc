#include "model/checkpoint.h"

#include <algorithm>
#include <map>

#include "base/json.h"
#include "base/printable.h"

namespace batchllm {
namespace {

constexpr size_t index_limit = 256U << 20U;
constexpr size_t shard_limit = 4096;

bool is_passed_over(const std::string &name, const Model &model) {
    return std::any_of(model.passed_over.begin(), model.passed_over.end(),
                       [&](const std::string &prefix) { return name.starts_with(prefix); });
}

// A shard's name must be that of a file directly in the directory. (That file may be a link to
// another place, as in the cache of downloaded models: whoever made the directory also made the
// link.)
Status check_shard_name(const JsonValue &value, const std::string &name) {
    const bool plain = name.find('/') == std::string::npos &&
                       name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
    constexpr std::string_view ending = ".safetensors";
    if (!plain || name.size() <= ending.size() || name.front() == '.' || name.size() > 255 ||
        !name.ends_with(ending)) {
        return value.fail("must be the name of a .safetensors file in the model's directory");
    }
    return {};
}

Status add_shards(const std::string &model_dir, const std::string &index_path,
                  Checkpoint *checkpoint) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(index_path, BATCHLLM_ERROR_MODEL_FORMAT, index_limit));
    if (!document.root().is_object()) return document.root().fail("must be an object");
    ASSIGN_OR_RETURN(const JsonValue map, document.root().at("weight_map"));
    ASSIGN_OR_RETURN(const auto members, map.members());
    std::map<std::string, size_t> shards; // name -> index into checkpoint->files
    std::unordered_map<std::string, std::string> listed;
    for (const auto &[tensor, value] : members) {
        ASSIGN_OR_RETURN(std::string shard, value.string());
        RETURN_IF_ERROR(check_shard_name(value, shard));
        shards.emplace(shard, 0);
        listed.emplace(tensor, std::move(shard));
    }
    if (shards.empty()) return map.fail("names no file");
    if (shards.size() > shard_limit) return map.fail("names more than 4096 files");
    for (auto &[name, file] : shards) {
        file = checkpoint->files.size();
        RETURN_IF_ERROR(checkpoint->add_file(model_dir + "/" + name));
    }
    for (const auto &[tensor, shard] : listed) {
        const auto found = checkpoint->tensors.find(tensor);
        if (found == checkpoint->tensors.end() || found->second.file != shards[shard]) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is not in %s",
                         index_path.c_str(), printable(tensor).c_str(), shard.c_str());
        }
    }
    for (const auto &[tensor, located] : checkpoint->tensors) {
        if (!listed.contains(tensor) && !is_ignored_tensor(tensor)) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is not in %s",
                         checkpoint->files[located.file].path().c_str(), printable(tensor).c_str(),
                         index_path.c_str());
        }
    }
    return {};
}

} // namespace

Status Checkpoint::add_file(const std::string &path) {
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    ASSIGN_OR_RETURN(auto list, parse_safetensors(file.bytes(), path));
    for (StoredTensor &stored : list) {
        std::string name = stored.name;
        const auto [place, is_new] =
            tensors.try_emplace(std::move(name), Located{files.size(), std::move(stored)});
        if (!is_new) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is in %s too", path.c_str(),
                         printable(place->first).c_str(), files[place->second.file].path().c_str());
        }
    }
    files.push_back(std::move(file));
    return {};
}

Status Checkpoint::rename(const Model &model) {
    std::unordered_map<std::string, Located> named;
    for (auto &[name, located] : tensors) {
        const std::string described = described_name(name, model);
        if (is_passed_over(name, model) || is_passed_over(described, model)) {
            passed_over.try_emplace(described, std::move(located));
            continue;
        }
        const auto [place, is_new] = named.try_emplace(described, std::move(located));
        if (!is_new) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s stands there under two names",
                         files[place->second.file].path().c_str(), printable(described).c_str());
        }
    }
    tensors = std::move(named);
    return {};
}

std::string Checkpoint::name_in_files(const std::string &name, const Model &model) const {
    for (const Model::Renamed &renamed : model.renamed) {
        const bool used = std::any_of(tensors.begin(), tensors.end(), [&](const auto &tensor) {
            return tensor.second.stored.name.starts_with(renamed.from);
        });
        if (!used || !name.starts_with(renamed.to)) continue;
        return renamed.from + name.substr(renamed.to.size());
    }
    return name;
}

std::string described_name(const std::string &name, const Model &model) {
    std::string described = name;
    for (const Model::Renamed &renamed : model.renamed) {
        if (!name.starts_with(renamed.from)) continue;
        described.replace(0, renamed.from.size(), renamed.to);
        break;
    }
    return described;
}

bool is_ignored_tensor(const std::string &name) {
    return name.ends_with(".rotary_emb.inv_freq") || name == "rotary_emb.inv_freq";
}

Result<Checkpoint> open_checkpoint(const std::string &model_dir) {
    Checkpoint checkpoint;
    const std::string single = model_dir + "/model.safetensors";
    const std::string index = model_dir + "/model.safetensors.index.json";
    ASSIGN_OR_RETURN(const bool has_single, file_exists(single));
    ASSIGN_OR_RETURN(const bool has_index, file_exists(index));
    if (has_single) {
        RETURN_IF_ERROR(checkpoint.add_file(single));
    } else if (has_index) {
        RETURN_IF_ERROR(add_shards(model_dir, index, &checkpoint));
    } else {
        ASSIGN_OR_RETURN(const bool has_torch, file_exists(model_dir + "/pytorch_model.bin"));
        ASSIGN_OR_RETURN(const bool has_torch_index,
                         file_exists(model_dir + "/pytorch_model.bin.index.json"));
        return error(
            BATCHLLM_ERROR_MODEL_FORMAT,
            "%s: neither model.safetensors nor model.safetensors.index.json%s", model_dir.c_str(),
            has_torch || has_torch_index ? "; pytorch_model.bin must be converted to safetensors"
                                         : "");
    }
    return checkpoint;
}

} // namespace batchllm
