// adapter_config.json, as PEFT writes it -> which modules of the base model a LoRA changes, and with
// which ranks and scales. A key that would change results and is not supported is an error that
// names it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "constraint/automaton.h"

namespace batchllm {

class AdapterConfig {
  public:
    // text: the file's; file: its name, for errors.
    static Result<AdapterConfig> parse(std::string_view text, const std::string &file);

    // Names are those of modules in the base model, such as "model.layers.0.self_attn.q_proj", and
    // of a module's parameters, such as "model.layers.0.mlp.experts.gate_up_proj".
    int64_t rank_of(const std::string &name) const;
    double scale_of(const std::string &name) const;
    // As far as it can be told: an expression of a kind that cannot be read names every module.
    bool names_module(const std::string &module) const;
    bool names_parameter(const std::string &parameter) const;
    // Whether it can be told which modules are named.
    bool names_are_read() const { return !modules_.unread && !excluded_.unread; }
    // Keys of rank_pattern and alpha_pattern that match none of these names.
    std::vector<std::string> unused_patterns(const std::vector<std::string> &names) const;
    // Of the PEFT that wrote the adapter, if it is a release and the file says it.
    using Version = std::array<int64_t, 3>;
    const std::optional<Version> &peft_version() const { return peft_version_; }

  private:
    // Full names, or what they end with after a dot; or an expression for the whole name.
    struct Names {
        std::unordered_set<std::string> list;
        Automaton expression;
        bool all = false;
        bool unread = false; // an expression of a kind that cannot be read

        bool match(const std::string &name) const;
    };
    // Values by patterns for what names end with, of which the first that matches counts. Most are
    // plain names.
    template <typename T> struct Patterns {
        struct Plain {
            size_t place;
            T value;
        };
        struct Expression {
            size_t place;
            T value;
            std::string key;
            Automaton automaton;
        };
        std::unordered_map<std::string, Plain> plain;
        std::vector<Expression> expressions;

        const T *find(const std::string &name) const;
        // Adds the keys that match none of these names.
        void add_unused(const std::vector<std::string> &names,
                        std::vector<std::string> *keys) const;
    };

    AdapterConfig() = default;
    Status read_names(const JsonValue &config, std::string_view key, Names *names);
    Status read_layers(const JsonValue &config);
    template <typename T, typename Read>
    static Status read_patterns(const JsonValue &config, std::string_view key, const Read &read,
                                Patterns<T> *patterns);
    bool in_layers(const std::string &module) const;

    std::optional<Version> peft_version_;
    int64_t rank_ = 0;
    double alpha_ = 0;
    bool by_root_ = false; // scales are alpha / sqrt(rank)
    Patterns<int64_t> ranks_;
    Patterns<double> alphas_;
    Names modules_, excluded_, parameters_;
    bool some_layers_ = false;
    std::vector<int64_t> layers_;             // if so: only these,
    std::vector<std::string> layers_pattern_; // counted in modules with these names; empty: in any
};

} // namespace batchllm
