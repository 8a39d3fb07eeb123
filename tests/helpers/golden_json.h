// What tests read of tests/golden (format: golden/README.md), whatever they check it with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <simdjson.h>

// Names of the golden models that have this file, sorted.
inline std::vector<std::string> golden_models(const char *file) {
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator("golden")) {
        if (std::filesystem::exists(entry.path() / file)) {
            names.push_back(entry.path().filename().string());
        }
    }
    std::sort(names.begin(), names.end());
    return names;
}

inline std::vector<int32_t> read_ints(simdjson::dom::element array) {
    std::vector<int32_t> values;
    for (const auto value : array) values.push_back(static_cast<int32_t>(int64_t(value)));
    return values;
}

inline std::vector<double> read_doubles(simdjson::dom::element array) {
    std::vector<double> values;
    for (const auto value : array) values.push_back(double(value));
    return values;
}
