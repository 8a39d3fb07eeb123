// The kinds of options: names, sizes, numbers. Each kind says what is wrong with a value that it
// rejects.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

namespace batchllm::cli {

// An option whose value is one of a few names.
void add_named(CLI::App *app, const std::string &name, std::map<std::string, int32_t> names,
               std::function<void(int32_t)> set, const std::string &help);
inline void add_named(CLI::App *app, const std::string &name, int32_t *value,
                      const std::map<std::string, int32_t> &names, const std::string &help) {
    add_named(
        app, name, names, [value](int32_t given) { *value = given; }, help);
}

// An option in bytes, tokens or rows: "2GiB", "16M".
void add_size(CLI::App *app, const std::string &name, int64_t *value, int64_t least,
              const std::string &help);

// A whole number of at least `least`.
void add_whole(CLI::App *app, const std::string &name, int32_t *value, int32_t least,
               const std::string &help);

// A whole number from 0 on, of 64 bits.
void add_unsigned(CLI::App *app, const std::string &name, uint64_t *value, const std::string &help);

} // namespace batchllm::cli
