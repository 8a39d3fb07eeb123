// The arguments of bench/throughput, which throughput.cc describes at its top.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "throughput_models.h"

namespace batchllm {

struct Arguments {
    std::string job = "a16", model, devices;
    double rows = 0, cap = 0, step_tokens = 0, generated = 0, levels = 1, repeat = 1;
    double prefix = -1, common = -1, own = -1, sharing = -1, spread = -1;
    double kv_gib = 0;
    double adapters = 0, rank = 16, adapter_gib = 0;
    std::string adapted = "all";
    bool all = false, sharing_on = true, reproducible = false, arrival = false, profile = false,
         alone = true;
    bool skew = false, by_size = false;
    std::vector<std::pair<std::string, std::string>> extra;
    std::string switches; // as given
};

inline bool read_arguments(int count, char **values, Arguments *out) {
    const std::map<std::string, double *> numbers = {{"--rows", &out->rows},
                                                     {"--prefix", &out->prefix},
                                                     {"--own", &out->own},
                                                     {"--sharing", &out->sharing},
                                                     {"--spread", &out->spread},
                                                     {"--new", &out->generated},
                                                     {"--cap", &out->cap},
                                                     {"--levels", &out->levels},
                                                     {"--kv-gib", &out->kv_gib},
                                                     {"--step-tokens", &out->step_tokens},
                                                     {"--common", &out->common},
                                                     {"--repeat", &out->repeat},
                                                     {"--adapters", &out->adapters},
                                                     {"--rank", &out->rank},
                                                     {"--adapter-gib", &out->adapter_gib}};
    const std::map<std::string, std::pair<const char *, const char *>> options = {
        {"--unfused", {"fused_attention", "0"}}, {"--unshared", {"share_attention", "0"}},
        {"--no-overlap", {"overlap", "0"}},      {"--no-graphs", {"graphs", "0"}},
        {"--no-tuning", {"tuning", "0"}},        {"--profile", {"profile", "1"}}};
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        const char *value = i + 1 < count ? values[i + 1] : nullptr;
        if (name != "--job" && name != "--all") out->switches.append(" ").append(name, 2);
        if (const auto option = options.find(name); option != options.end()) {
            out->extra.emplace_back(option->second);
            out->profile |= name == "--profile";
            continue;
        }
        const std::map<std::string, const char *> keys = {{"--quantize", "quantize"},
                                                          {"--kv-type", "kv_type"},
                                                          {"--tensor-parallel", "tensor_parallel"}};
        if (const auto key = keys.find(name); key != keys.end() && value != nullptr) {
            out->switches.append(" ").append(value);
            out->extra.emplace_back(key->second, value);
            ++i;
            continue;
        }
        if (name == "--skew") {
            out->skew = true;
            continue;
        }
        if (name == "--by-size") {
            out->by_size = true;
            continue;
        }
        if (name == "--not-alone") {
            out->alone = false;
            continue;
        }
        if (name == "--reproducible") {
            out->reproducible = true;
            continue;
        }
        if (name == "--all" || name == "--no-sharing") {
            (name == "--all" ? out->all : out->sharing_on) = name == "--all";
            continue;
        }
        if (value == nullptr) return false;
        ++i;
        if (name != "--job") out->switches.append(" ").append(value);
        if (const auto number = numbers.find(name); number != numbers.end()) {
            *number->second = std::atof(value);
        } else if (name == "--job") {
            out->job = value;
        } else if (name == "--adapted") {
            out->adapted = value;
        } else if (name == "--model") {
            out->model = value;
        } else if (name == "--devices") {
            out->devices = value;
        } else if (name == "--order") {
            out->arrival = std::strcmp(value, "arrival") == 0;
            if (!out->arrival && std::strcmp(value, "decode-first") != 0) return false;
        } else if (name == "--option" && std::strchr(value, '=') != nullptr) {
            out->extra.emplace_back(std::string(value, std::strchr(value, '=')),
                                    std::strchr(value, '=') + 1);
        } else {
            return false;
        }
    }
    return true;
}

// The job with the changes of the arguments.
inline NamedJob changed(NamedJob job, const Arguments &arguments) {
    if (arguments.rows > 0) job.rows = static_cast<int64_t>(arguments.rows);
    if (arguments.prefix >= 0) job.prefix = arguments.prefix;
    if (arguments.common >= 0) job.common = static_cast<int32_t>(arguments.common);
    if (arguments.own >= 0) job.own = arguments.own;
    if (arguments.sharing >= 0) job.sharing = arguments.sharing;
    if (arguments.spread >= 0) job.spread = arguments.spread;
    if (arguments.generated > 0) job.generated = static_cast<int32_t>(arguments.generated);
    return job;
}

} // namespace batchllm
