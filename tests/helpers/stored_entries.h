// Synthetic checkpoints for tests: tensors by name -> a .safetensors file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "testing.h"

namespace batchllm {

struct Entry {
    std::string type;
    std::vector<int64_t> shape;
    std::string bytes;
};
using Entries = std::map<std::string, Entry>;

template <typename T> std::string bytes_of(const std::vector<T> &values) {
    return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
}

inline Entry floats(std::vector<int64_t> shape, const std::vector<float> &values) {
    return {"F32", std::move(shape), bytes_of(values)};
}

inline std::string file_of(const Entries &entries) {
    std::string header = "{", data;
    for (const auto &[name, entry] : entries) {
        std::string shape;
        for (const int64_t extent : entry.shape) {
            shape += (shape.empty() ? "" : ",") + std::to_string(extent);
        }
        header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" + entry.type +
                  R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(data.size()) +
                  ",";
        data += entry.bytes;
        header += std::to_string(data.size()) + "]}";
    }
    header += "}";
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char *>(&length), sizeof length) + header + data;
}

// Checks that a model was rejected with this code and a message that contains all the parts.
inline void must_fail(const Status &status, int32_t code, const std::vector<std::string> &parts) {
    if (status.ok()) fail_msg("was accepted, should name %s", parts[0].c_str());
    const std::string &message = status.message();
    for (const std::string &part : parts) {
        if (message.find(part) == std::string::npos) {
            fail_msg("\"%s\" lacks \"%s\"", message.c_str(), part.c_str());
        }
    }
    if (status.code() != code) fail_msg("code %d: %s", status.code(), message.c_str());
}

} // namespace batchllm
