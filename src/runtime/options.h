// batchllm_engine_options -> the engine's own options, with strings copied and values checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"

namespace batchllm {

class PictureLibrary;

struct Log {
    batchllm_log_function function = nullptr;
    void *user = nullptr;
    int32_t level = BATCHLLM_LOG_WARNING;

    void operator()(int32_t of, const std::string &message) const {
        if (function != nullptr && of <= level) function(user, of, message.c_str());
    }
};

// Whether steps compute proposed tokens (lane_drafts.h).
enum class Drafts : uint8_t {
    off,
    on_gpu,         // without the option: there as where_they_pay, elsewhere as off
    where_they_pay, // "auto"
    always,         // wherever a text repeats: for comparisons
};

struct EngineOptions {
    std::string model_dir; // "": none
    std::string backend = "auto";
    std::vector<int32_t> devices{0};
    // So many devices, one after another, are one backend's. 0: auto, until the model is known (with_ranks).
    int32_t tensor_parallel = 1;
    // of_backend() has each backend's devices; here they are as given, with auto also "".
    BackendOptions backend_options;
    int32_t threads = 0;
    int64_t max_request_tokens = 0;
    int64_t max_requests = 0;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t levels = 1;
    int32_t order = BATCHLLM_ORDER_DECODE_FIRST;
    int32_t min_prefix_tokens = 0; // 0: the plan's default
    Drafts drafts = Drafts::on_gpu;
    uint64_t seed = 0;
    std::string timeline_path;                // "": none
    double long_step_seconds = 60;            // for StepWatch; only tests change it
    std::shared_ptr<PictureLibrary> pictures; // null: the engine has its own
    Log log;

    // With the number that auto has become. Devices that were not given are the first ones.
    EngineOptions with_ranks(int32_t ranks) const;
    // Empty: all that there are.
    std::vector<int32_t> devices_to_choose_from() const {
        return backend_options.devices.empty() ? std::vector<int32_t>() : devices;
    }
    std::vector<int32_t> first_devices() const; // [backends]; undecided: all
    BackendOptions of_backend(size_t index) const;
};

// What batchllm_engine_options_init fills in.
batchllm_engine_options default_engine_options();

// `options` must be complete: fields that the caller does not know have their defaults. Errors name
// the field and its value (INVALID_ARGUMENT).
Result<EngineOptions> read_engine_options(const batchllm_engine_options &options);

} // namespace batchllm
