#include "journal/job_identity.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <unistd.h>
#include <unordered_map>

#include <xxhash.h>

#include "base/file.h"
#include "base/json_escape.h"
#include "base/json_view.h"
#include "journal/file_hash.h"
#include "model/pooling.h"

namespace batchllm {
namespace {

std::string hexadecimal(uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

// The weights files of a directory, sorted by name.
Result<std::vector<std::string>> weights_files(const std::string &directory) {
    ASSIGN_OR_RETURN(std::vector<std::string> names, names_in(directory));
    std::erase_if(names, [](const std::string &name) { return !name.ends_with(".safetensors"); });
    return names;
}

// Parts that states of earlier versions lack, whether the model has these files or not.
bool may_be_missing(std::string_view part) {
    return part == "model modules.json" || part == "model 1_Pooling/config.json" ||
           part == "model preprocessor_config.json" || part == "model processor_config.json";
}

// Whether no row with a result can have had it: an adapter that was not there when the job began.
bool may_be_added(std::string_view part, std::string_view was) {
    return part.starts_with("adapter ") && (was == "unset" || was == "none");
}

} // namespace

Status add_model_parts(JobIdentity *identity, const std::string &model_dir) {
    for (const char *name : {"config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json", "model.safetensors.index.json"}) {
        const std::string path = model_dir + "/" + name;
        std::string value = "none";
        ASSIGN_OR_RETURN(const bool there, file_exists(path));
        if (there) {
            ASSIGN_OR_RETURN(const uint64_t hash, hash_file(path));
            value = hexadecimal(hash);
        }
        identity->add(std::string("model ") + name, value);
    }
    // Files that few models have. A job without them has the same identity as before they were
    // added.
    std::vector<std::string> few = {"special_tokens_map.json", "chat_template.jinja",
                                    "chat_template.json",
                                    "additional_chat_templates/tool_use.jinja"};
    const std::vector<std::string> of_vectors = embedding_files(model_dir);
    few.insert(few.end(), of_vectors.begin(), of_vectors.end());
    few.insert(few.end(), {"preprocessor_config.json", "processor_config.json"});
    for (const std::string &name : few) {
        const std::string path = model_dir + "/" + name;
        ASSIGN_OR_RETURN(const bool there, file_exists(path));
        if (!there) continue;
        ASSIGN_OR_RETURN(const uint64_t hash, hash_file(path));
        identity->add("model " + name, hexadecimal(hash));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> names, weights_files(model_dir));
    Hasher hasher;
    for (const std::string &name : names) {
        int64_t bytes = 0;
        ASSIGN_OR_RETURN(const uint64_t hash,
                         hash_file(model_dir + "/" + name, 1 << 20, 512, 4096, &bytes));
        const std::string entry =
            name + ":" + std::to_string(bytes) + ":" + hexadecimal(hash) + "\n";
        hasher.update(entry.data(), entry.size());
    }
    identity->add("model weights", names.empty() ? "none" : hexadecimal(hasher.digest()));
    return {};
}

Status add_input_parts(JobIdentity *identity, const std::string &path) {
    int64_t bytes = 0;
    ASSIGN_OR_RETURN(const uint64_t hash, hash_file(path, int64_t{1} << 30, 4096, 65536, &bytes));
    identity->add("input bytes", std::to_string(bytes));
    identity->add("input content", hexadecimal(hash));
    return {};
}

std::string JobIdentity::to_json() const {
    std::string out = "{\"batchllm_state\":1,\"created\":" + std::to_string(created) + ",\"job\":{";
    for (const auto &[name, value] : parts) {
        if (out.back() != '{') out += ',';
        out += '"';
        append_json_escaped(&out, name);
        out += "\":\"";
        append_json_escaped(&out, value);
        out += '"';
    }
    return out + "}}";
}

Result<JobIdentity> JobIdentity::from_json(const std::string &path, std::string_view json) {
    JsonParser parser;
    JsonView root;
    const JsonFault fault = parser.parse(json, &root);
    if (fault.kind == JsonFault::Kind::memory) throw std::bad_alloc();
    const auto malformed = [&] {
        return error(BATCHLLM_ERROR_JOURNAL_FORMAT, "%s: not a state file", path.c_str());
    };
    if (fault.kind != JsonFault::Kind::none || find_equal_keys(root)) return malformed();
    const auto version = root.find("batchllm_state");
    const auto created = root.find("created");
    const auto job = root.find("job");
    if (!version || !version->integer() || !created || !created->integer() || !job ||
        !job->is_object()) {
        return malformed();
    }
    if (version->integer() != 1) {
        return error(BATCHLLM_ERROR_JOURNAL_FORMAT,
                     "%s: state format %lld is newer than this library's 1", path.c_str(),
                     static_cast<long long>(*version->integer()));
    }
    JobIdentity identity;
    identity.created = *created->integer();
    const JsonMembers parts = *job->members();
    for (const auto [name, value] : parts) {
        const std::optional<std::string_view> text = value.string();
        if (!text.has_value()) return malformed();
        identity.add(std::string(name), std::string(*text));
    }
    return identity;
}

std::string JobIdentity::differences(const JobIdentity &earlier) const {
    using Values = std::unordered_map<std::string_view, std::string_view>; // there may be thousands
    const Values own(parts.begin(), parts.end()),
        others(earlier.parts.begin(), earlier.parts.end());
    const auto find = [](const Values &values, std::string_view name) {
        const auto found = values.find(name);
        return found != values.end() ? found->second : std::string_view("unset");
    };
    std::string text;
    const auto compare = [&](std::string_view name) {
        const std::string_view was = find(others, name), now = find(own, name);
        if (was == now || (was == "unset" && may_be_missing(name)) || may_be_added(name, was)) {
            return;
        }
        if (!text.empty()) text += ", ";
        text.append(name).append(" (was ").append(was).append(", now ").append(now).append(")");
    };
    for (const auto &part : parts) compare(part.first);
    for (const auto &part : earlier.parts) {
        if (!own.contains(part.first)) compare(part.first);
    }
    return text;
}

} // namespace batchllm
