#include "backend_options.h"

#include <algorithm>
#include <charconv>

#include "attention/attention.h"
#include "backend/gpu/rank_choice.h"
#include "backend/kv_type.h"
#include "backend/tensor_parallel.h"
#include "model/quantization.h"

namespace batchllm::cuda {
namespace {

constexpr int kLeastDriver = 13000; // the version of the runtime that this is built with
constexpr int kLeastCapability = 8; // bf16, mma.sync m16n8k16, cp.async
constexpr int kLeastE4m3 = 89;

Result<bool> read_switch(const std::string &key, const std::string &value) {
    if (value == "0" || value == "1") return value == "1";
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend option %s=%s: 0 or 1", key.c_str(),
                 value.c_str());
}

Result<int64_t> read_tokens(const std::string &key, const std::string &value, int64_t least) {
    int64_t tokens = 0;
    const char *end = value.data() + value.size();
    const auto [stop, failure] = std::from_chars(value.data(), end, tokens);
    if (failure == std::errc() && stop == end && tokens >= least) return tokens;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "backend option %s=%s: not a number of tokens, from %d on", key.c_str(),
                 value.c_str(), static_cast<int>(least));
}

// Options that were requested by name are not ignored silently.
Status check_quantize(const ForwardOptions &forward, const cudaDeviceProp &device) {
    if (forward.quantize != Quantize::fp8) return {};
    if (forward.element == DType::f32) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option quantize=fp8: compute_type must be bf16 or f16, it is f32");
    }
    if (10 * device.major + device.minor >= kLeastE4m3) return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "backend option quantize=fp8: %s has compute capability %d.%d and no products in "
                 "fp8 (8.9 and later have them)",
                 device.name, device.major, device.minor);
}

// Chooses attention kernels for reproducible: the sm90 family cannot compute items of more than
// kNarrowRows rows by row.
Status choose_by_row(const Model &model, std::string *attention) {
    const bool wide = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer &layer) {
        return layer.attention() != nullptr && layer.attention()->gqa_ratio() > kNarrowRows;
    });
    if (!wide) return {};
    if (*attention == "sm90") {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "backend option attention=sm90: reproducible with more than %d query heads "
                     "for one of keys; sm80 has it",
                     kNarrowRows);
    }
    if (*attention == "auto") *attention = "sm80";
    return {};
}

} // namespace

Result<int> read_device(const std::string &devices) {
    int number = 0;
    const char *end = devices.data() + devices.size();
    const auto [stop, failure] = std::from_chars(devices.data(), end, number);
    if (devices.empty()) return 0;
    if (failure == std::errc() && stop != end && *stop == ',') {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "devices \"%s\": a cuda backend runs on one device", devices.c_str());
    }
    if (failure != std::errc() || stop != end || number < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "devices \"%s\": not a device's number",
                     devices.c_str());
    }
    return number;
}

Result<std::vector<int>> read_devices(const std::string &devices, int32_t ranks) {
    std::vector<int> all;
    for (size_t begin = 0; begin < devices.size();) {
        const size_t end = std::min(devices.find(',', begin), devices.size());
        ASSIGN_OR_RETURN(const int one, read_device(devices.substr(begin, end - begin)));
        all.push_back(one);
        begin = end + 1;
    }
    for (int r = 0; devices.empty() && r < ranks; ++r) all.push_back(r);
    if (static_cast<int32_t>(all.size()) == ranks) return all;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "devices \"%s\": tensor_parallel %d has as many devices", devices.c_str(), ranks);
}

// Which layers will be in e4m3 is not known yet, so this assumes all that can be.
int64_t step_tokens_by_memory(const Model &model, const ForwardOptions &options,
                              int64_t memory_bytes) {
    StepForm form = step_form(model, options);
    const bool stored = options.quantize == Quantize::stored && model.quantization != nullptr &&
                        model.quantization->has_fp8();
    if (options.element != DType::f32 && (stored || options.quantize == Quantize::fp8)) {
        for (const Layer &layer : model.layers) {
            const auto take = [&](int64_t columns, int64_t *most) {
                *most = std::max(*most, stored ? columns / kScaleBlock : 1);
            };
            take(model.hidden, &form.normed_scales);
            take(last_columns(layer.mixer), &form.attended_scales);
            const FeedForward *dense = layer.feed_forward();
            if (dense != nullptr) take(dense->width, &form.activated_scales);
        }
    }
    return default_step_tokens(model, form, memory_bytes);
}

Status check_device(const DeviceFacts &facts) {
    constexpr int32_t unavailable = BATCHLLM_ERROR_BACKEND_UNAVAILABLE;
    if (facts.driver == 0) {
        return error(unavailable, "backend \"cuda\": no NVIDIA driver is installed");
    }
    if (facts.counted == cudaErrorInsufficientDriver || facts.driver < kLeastDriver) {
        return error(unavailable,
                     "backend \"cuda\": the driver knows CUDA up to %d.%d, this library needs "
                     "%d.%d",
                     facts.driver / 1000, facts.driver % 1000 / 10, kLeastDriver / 1000,
                     kLeastDriver % 1000 / 10);
    }
    if (facts.counted == cudaErrorNoDevice || (facts.counted == cudaSuccess && facts.count == 0)) {
        return error(unavailable, "backend \"cuda\": no device is visible");
    }
    if (facts.counted != cudaSuccess) {
        return error(unavailable, "backend \"cuda\": %s", cudaGetErrorString(facts.counted));
    }
    if (facts.device >= facts.count) {
        return error(unavailable, "backend \"cuda\": device %d of %d is not there", facts.device,
                     facts.count);
    }
    if (facts.asked != cudaSuccess) {
        return error(unavailable, "backend \"cuda\": device %d: %s", facts.device,
                     cudaGetErrorString(facts.asked));
    }
    if (facts.major < kLeastCapability) {
        return error(unavailable,
                     "backend \"cuda\": device %d (%s) has compute capability %d.%d; this "
                     "library needs %d.0 or later",
                     facts.device, facts.name, facts.major, facts.minor, kLeastCapability);
    }
    return {};
}

Result<cudaDeviceProp> open_device(int device) {
    DeviceFacts facts;
    facts.device = device;
    cudaDriverGetVersion(&facts.driver);
    if (facts.driver != 0) facts.counted = cudaGetDeviceCount(&facts.count);
    cudaDeviceProp properties{};
    if (facts.counted == cudaSuccess && device < facts.count) {
        facts.asked = cudaGetDeviceProperties(&properties, device);
        facts.name = properties.name;
        facts.major = properties.major;
        facts.minor = properties.minor;
    }
    RETURN_IF_ERROR(check_device(facts));
    const cudaError_t set = cudaSetDevice(device);
    const cudaError_t made = set == cudaSuccess ? cudaFree(nullptr) : set; // creates the context
    if (made != cudaSuccess) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": device %d (%s): %s",
                     device, properties.name, cudaGetErrorString(made));
    }
    return properties;
}

Result<CudaOptions> read_options(const Model &model, const BackendOptions &options,
                                 const cudaDeviceProp &device) {
    CudaOptions read;
    ForwardOptions &forward = read.forward;
    forward.attention.sms = device.multiProcessorCount;
    forward.device = device.name;
    std::string attention = "auto";
    const std::string &type = options.compute_type;
    if (type.empty() || type == "auto") {
        forward.element = model.dtype == DType::f32 ? DType::bf16 : model.dtype;
    } else if (type == "bf16" || type == "f16" || type == "f32") {
        forward.element = type == "bf16" ? DType::bf16 : type == "f16" ? DType::f16 : DType::f32;
    } else {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "compute_type %s: the cuda backend has auto, bf16, f16 and f32", type.c_str());
    }
    forward.residual = residual_type(forward.element);
    forward.seed = options.seed;
    forward.reproducible = forward.attention.reproducible = options.reproducible;
    forward.threads = options.threads;
    const std::pair<const char *, bool *> switches[] = {
        {"tuning", &forward.tune},
        {"share_attention", &forward.attention.share},
        {"fused_attention", &forward.attention.fused},
        {"profile", &forward.profile},
        {"random_weights", &forward.random_weights},
        {"graphs", &forward.graphs},
        {"overlap", &read.overlap},
        {"fast_accumulation", &forward.fast_accumulation},
        {"gated_product", &forward.gated_product},
        {"peer_sums", &forward.peer_sums},
        {"pictures", &forward.pictures},
    };
    for (const auto &[key, value] : options.extra) {
        const auto *found = std::find_if(std::begin(switches), std::end(switches),
                                         [&name = key](const auto &s) { return name == s.first; });
        if (key == "random_weights" && value == "skewed") {
            forward.random_weights = forward.skewed_routing = true;
        } else if (key == "tuning" && value == "at_once") {
            forward.tune = true;
            forward.untimed_steps = 0;
        } else if (found != std::end(switches)) {
            ASSIGN_OR_RETURN(*found->second, read_switch(key, value));
        } else if (key == "residual") {
            if (value != "f32" && value != "element") {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                             "backend option residual=%s: f32 or element", value.c_str());
            }
            forward.residual = value == "f32" ? DType::f32 : forward.element;
        } else if (key == "quantize") {
            ASSIGN_OR_RETURN(forward.quantize, read_quantize(value));
        } else if (key == "kv_type") {
            ASSIGN_OR_RETURN(const DType kept, read_kv_type(value, forward.element));
            forward.kv_e4m3 = kept == DType::e4m3;
        } else if (key == tensor_parallel_key) {
            RETURN_IF_ERROR(read_tensor_parallel(value).status());
        } else if (key == "owned_rows") {
            ASSIGN_OR_RETURN(forward.owned_rows, read_tokens(key, value, 1));
        } else if (key == "merge_adapters") {
            ASSIGN_OR_RETURN(forward.merge_after, read_tokens(key, value, 0));
        } else if (key == "attention") {
            attention = value;
        } else if (key == "tuning_cache") {
            forward.tuning_cache = value;
        } else {
            ASSIGN_OR_RETURN(const bool known, read_state_option(key, value, &model, &read.states));
            if (known) continue;
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "backend option %s: the cuda backend has residual, tuning, tuning_cache, "
                         "overlap, graphs, attention, share_attention, fused_attention, quantize, "
                         "kv_type, fast_accumulation, gated_product, pictures, state_slots, "
                         "state_type, tensor_parallel, drafts, peer_sums, owned_rows, "
                         "merge_adapters, profile "
                         "and random_weights",
                         key.c_str());
        }
    }
    forward.state = read.states.type;
    if (options.reproducible) {
        RETURN_IF_ERROR(check_reproducible(read.states));
        RETURN_IF_ERROR(choose_by_row(model, &attention));
    }
    forward.attention.family = find_attention(attention, device.major, device.minor);
    if (forward.attention.family == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option attention=%s: auto, sm80 or sm90 (compute capability 9.0 "
                     "alone); %s has %d.%d",
                     attention.c_str(), device.name, device.major, device.minor);
    }
    // Products of experts, gated products and the chunks of delta nets use the same family.
    if (std::string_view(forward.attention.family->name) == "sm90") {
        forward.experts = GroupedKernel::sm90;
    }
    RETURN_IF_ERROR(check_quantize(forward, device));
    forward.step_tokens =
        options.step_tokens > 0
            ? options.step_tokens
            : step_tokens_by_memory(model, forward, static_cast<int64_t>(device.totalGlobalMem));
    // Events between a step's parts are read before the next step sets them.
    if (forward.profile) read.overlap = false;
    return read;
}

Result<int64_t> pool_bytes(const BackendOptions &options, int64_t beside_adapters) {
    if (options.kv_memory_bytes < 0 || options.kv_memory_fraction < 0 ||
        options.kv_memory_fraction > 1) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "kv_memory: %lld bytes, fraction %g: negative, or a fraction above 1",
                     static_cast<long long>(options.kv_memory_bytes), options.kv_memory_fraction);
    }
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    const auto left = static_cast<int64_t>(available);
    const int64_t asked = options.kv_memory_bytes, adapters = options.adapter_memory_bytes;
    if (asked > left) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory_bytes %lld: %lld bytes of the device's memory are left beside "
                     "weights and workspaces",
                     static_cast<long long>(asked), static_cast<long long>(left));
    }
    const int64_t bytes = pool_share(options, left, gpu_kv_fraction, beside_adapters);
    if (asked == 0 && adapters > 0 && bytes <= 0) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "adapter_memory_bytes %lld: %lld bytes of the device's memory are left "
                     "beside weights and workspaces",
                     static_cast<long long>(adapters), static_cast<long long>(left));
    }
    return bytes;
}

Result<int64_t> count_pages(int64_t bytes, int64_t page_bytes) {
    const int64_t pages = bytes / page_bytes;
    if (pages < 1) {
        size_t available = 0, total = 0;
        RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory: %lld bytes, a KV page has %lld; %lld of the device are left",
                     static_cast<long long>(bytes), static_cast<long long>(page_bytes),
                     static_cast<long long>(available));
    }
    return pages;
}

} // namespace batchllm::cuda
