#include "runtime/options.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <limits>
#include <utility>

#include "backend/tensor_parallel.h"

namespace batchllm {
namespace {

constexpr int32_t most_devices = 1024; // of a range

std::string text_or(const char *text, const char *otherwise) {
    return text == nullptr ? otherwise : text;
}

Status check_count(const char *field, int64_t value) {
    if (value >= 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": it cannot be negative", field,
                 value);
}

// Checks token counts that have 32 bits internally.
Status check_token_count(const char *field, int64_t value) {
    RETURN_IF_ERROR(check_count(field, value));
    if (value <= std::numeric_limits<int32_t>::max()) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": it must be below 2^31", field,
                 value);
}

Status check_range(const char *field, int32_t value, int32_t least, int32_t most) {
    if (value >= least && value <= most) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %d: it must be %d to %d", field, value,
                 least, most);
}

// "0,1" or "0-3,6" -> numbers.
Status read_devices(const std::string &text, std::vector<int32_t> *devices) {
    devices->clear();
    const char *at = text.data();
    const char *end = at + text.size();
    while (true) {
        int32_t first = -1;
        auto [rest, failure] = std::from_chars(at, end, first);
        int32_t last = first;
        if (failure == std::errc() && rest != end && *rest == '-') {
            const auto [after, wrong] = std::from_chars(rest + 1, end, last);
            rest = after;
            failure = wrong;
        }
        if (failure != std::errc() || first < 0 || last < first || last - first >= most_devices ||
            (rest != end && *rest != ',')) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "devices is \"%s\": it must be device numbers such as 0 or 0,1 or 0-3",
                         text.c_str());
        }
        for (int64_t n = first; n <= last; ++n) { // last may be the largest number there is
            const auto number = static_cast<int32_t>(n);
            if (std::find(devices->begin(), devices->end(), number) != devices->end()) {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                             "devices is \"%s\": %d is given twice", text.c_str(), number);
            }
            devices->push_back(number);
        }
        if (rest == end) return {};
        at = rest + 1;
    }
}

// given: null: as many as one backend has.
Status choose_devices(const char *given, EngineOptions *options) {
    const int32_t ranks = options->tensor_parallel;
    if (ranks == 0 && given == nullptr) return {};
    const std::string one = ranks == 1 ? "0" : "0-" + std::to_string(ranks - 1);
    const std::string &text = options->backend_options.devices = text_or(given, one.c_str());
    RETURN_IF_ERROR(read_devices(text, &options->devices));
    if (ranks == 0 || options->devices.size() % static_cast<size_t>(ranks) == 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "devices is \"%s\": tensor_parallel %d needs a multiple of as many devices",
                 text.c_str(), ranks);
}

// "key=value,key=value" -> pairs.
Status read_extra(const std::string &text,
                  std::vector<std::pair<std::string, std::string>> *extra) {
    size_t begin = 0;
    while (begin < text.size()) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const std::string item = text.substr(begin, end - begin);
        const size_t equals = item.find('=');
        if (equals == std::string::npos || equals == 0) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend_options: \"%s\" is not of the form key=value", item.c_str());
        }
        std::string key = item.substr(0, equals);
        const auto is_key = [&](const auto &pair) { return pair.first == key; };
        if (std::any_of(extra->begin(), extra->end(), is_key)) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend_options: \"%s\": %s is given twice", text.c_str(), key.c_str());
        }
        extra->emplace_back(std::move(key), item.substr(equals + 1));
        begin = end + 1;
    }
    return {};
}

// The one key that no backend reads.
Status take_drafts(std::vector<std::pair<std::string, std::string>> *extra, Drafts *drafts) {
    const auto given = std::find_if(extra->begin(), extra->end(),
                                    [](const auto &pair) { return pair.first == "drafts"; });
    if (given == extra->end()) return {};
    if (given->second == "auto") {
        *drafts = Drafts::where_they_pay;
    } else if (given->second == "always") {
        *drafts = Drafts::always;
    } else if (given->second == "off") {
        *drafts = Drafts::off;
    } else {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option drafts=%s: it must be off, auto or always",
                     given->second.c_str());
    }
    extra->erase(given);
    return {};
}

} // namespace

EngineOptions EngineOptions::with_ranks(int32_t ranks) const {
    EngineOptions own = *this;
    own.tensor_parallel = ranks;
    for (auto &[key, value] : own.backend_options.extra) {
        if (key == tensor_parallel_key) value = std::to_string(ranks);
    }
    if (backend_options.devices.empty()) {
        own.devices.clear();
        for (int32_t device = 0; device < ranks; ++device) own.devices.push_back(device);
    }
    return own;
}

std::vector<int32_t> EngineOptions::first_devices() const {
    std::vector<int32_t> first;
    const auto ranks = static_cast<size_t>(std::max(1, tensor_parallel));
    for (size_t i = 0; i < devices.size(); i += ranks) {
        first.push_back(devices[i]);
    }
    return first;
}

BackendOptions EngineOptions::of_backend(size_t index) const {
    BackendOptions own = backend_options;
    own.devices.clear();
    const auto ranks = static_cast<size_t>(std::max(1, tensor_parallel));
    for (size_t i = index * ranks; i < (index + 1) * ranks; ++i) {
        own.devices.append(own.devices.empty() ? "" : ",").append(std::to_string(devices[i]));
    }
    return own;
}

batchllm_engine_options default_engine_options() {
    batchllm_engine_options options{};
    options.struct_size = sizeof options;
    options.enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    options.levels = 0;
    options.order = BATCHLLM_ORDER_DECODE_FIRST;
    options.log_level = BATCHLLM_LOG_WARNING;
    return options;
}

Result<EngineOptions> read_engine_options(const batchllm_engine_options &options) {
    RETURN_IF_ERROR(check_range("reserved", options.reserved, 0, 0));
    RETURN_IF_ERROR(check_range("reserved2", options.reserved2, 0, 0));
    EngineOptions read;
    read.model_dir = text_or(options.model_dir, "");
    read.backend = text_or(options.backend, "auto");
    if (read.backend != "auto" && read.backend != "cpu" && read.backend != "cuda" &&
        read.backend != "sim") {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend is \"%s\": it must be auto, cpu, cuda or sim", read.backend.c_str());
    }
    BackendOptions &backend = read.backend_options;
    backend.compute_type = text_or(options.compute_type, "auto");
    if (backend.compute_type != "auto" && backend.compute_type != "bf16" &&
        backend.compute_type != "f16" && backend.compute_type != "f32") {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "compute_type is \"%s\": it must be auto, bf16, f16 or f32",
                     backend.compute_type.c_str());
    }
    RETURN_IF_ERROR(read_extra(text_or(options.backend_options, ""), &backend.extra));
    ASSIGN_OR_RETURN(read.tensor_parallel, tensor_parallel_of(backend));
    RETURN_IF_ERROR(choose_devices(options.devices, &read));
    RETURN_IF_ERROR(take_drafts(&backend.extra, &read.drafts));
    RETURN_IF_ERROR(check_count("threads", options.threads));
    RETURN_IF_ERROR(check_count("kv_memory_bytes", options.kv_memory_bytes));
    RETURN_IF_ERROR(check_token_count("step_tokens", options.step_tokens));
    RETURN_IF_ERROR(check_token_count("max_request_tokens", options.max_request_tokens));
    RETURN_IF_ERROR(check_count("max_requests", options.max_requests));
    RETURN_IF_ERROR(check_count("adapter_memory_bytes", options.adapter_memory_bytes));
    if (!(options.kv_memory_fraction >= 0 && options.kv_memory_fraction <= 1)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "kv_memory_fraction is %g: it must be 0 to 1",
                     options.kv_memory_fraction);
    }
    RETURN_IF_ERROR(
        check_range("enlarge", options.enlarge, BATCHLLM_ENLARGE_NONE, BATCHLLM_ENLARGE_PAPER));
    RETURN_IF_ERROR(check_range("levels", options.levels, 0, 2));
    RETURN_IF_ERROR(
        check_range("order", options.order, BATCHLLM_ORDER_DECODE_FIRST, BATCHLLM_ORDER_ARRIVAL));
    RETURN_IF_ERROR(check_range("min_prefix_tokens", options.min_prefix_tokens, 0,
                                std::numeric_limits<int32_t>::max()));
    RETURN_IF_ERROR(check_range("reproducible", options.reproducible, 0, 1));
    RETURN_IF_ERROR(
        check_range("log_level", options.log_level, BATCHLLM_LOG_ERROR, BATCHLLM_LOG_DEBUG));
    backend.threads = options.threads;
    backend.kv_memory_bytes = options.kv_memory_bytes;
    backend.kv_memory_fraction = options.kv_memory_fraction;
    backend.step_tokens = options.step_tokens;
    backend.adapter_memory_bytes = options.adapter_memory_bytes;
    backend.seed = options.seed;
    backend.reproducible = options.reproducible != 0;
    read.threads = options.threads;
    read.max_request_tokens = options.max_request_tokens;
    read.max_requests = options.max_requests;
    read.enlarge = options.enlarge;
    read.levels = options.levels;
    read.order = options.order;
    read.min_prefix_tokens = options.min_prefix_tokens;
    read.seed = options.seed;
    read.timeline_path = text_or(options.timeline_path, "");
    read.log = {options.log, options.log_user, options.log_level};
    return read;
}

} // namespace batchllm
