#include "backend/sim/sim_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "backend/kv_type.h"
#include "backend/sim/device_memory.h"
#include "backend/tensor_parallel.h"
#include "model/parts.h"
#include "plan/plan.h"

namespace batchllm {

namespace {

Status bad_value(const std::string &key, const std::string &value, const char *wanted) {
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend_options: %s=%s: %s", key.c_str(),
                 value.c_str(), wanted);
}

template <typename T> Status read_number(const std::string &key, const std::string &value,
                                         double low, double high, const char *wanted, T *out) {
    double number = 0;
    const char *end = value.data() + value.size();
    const auto [rest, failure] = std::from_chars(value.data(), end, number);
    if (failure != std::errc() || rest != end || !(number >= low && number <= high))
        return bad_value(key, value, wanted);
    if constexpr (std::is_integral_v<T>)
        if (number != std::floor(number)) return bad_value(key, value, "not an integer");
    *out = static_cast<T>(number);
    return {};
}

Status read_option(const std::string &key, const std::string &value, SimOptions *out) {
    constexpr double int32 = std::numeric_limits<int32_t>::max();
    if (key == "page_tokens")
        return read_number(key, value, 1, 4096, "not in [1, 4096]", &out->page_tokens);
    if (key == "pages") return read_number(key, value, 1, int32, "not in [1, 2^31)", &out->pages);
    if (key == "vocabulary")
        return read_number(key, value, 2, int32, "not in [2, 2^31)", &out->vocabulary);
    if (key == "eos_token")
        return read_number(key, value, -1, int32, "not in [-1, 2^31)", &out->eos_token);
    if (key == "min_length")
        return read_number(key, value, 1, int32, "not in [1, 2^31)", &out->min_length);
    if (key == "max_length")
        return read_number(key, value, 0, int32, "not in [0, 2^31)", &out->max_length);
    if (key == "mean_length")
        return read_number(key, value, 0, int32, "not in [0, 2^31)", &out->mean_length);
    if (key == "tokens_per_second")
        return read_number(key, value, 1e-3, 1e15, "not in [1e-3, 1e15]", &out->tokens_per_second);
    if (key == "step_floor_us")
        return read_number(key, value, 0, 1e12, "not in [0, 1e12]", &out->step_floor_us);
    if (key == "kv_bandwidth")
        return read_number(key, value, 1, 1e18, "not in [1, 1e18]", &out->kv_bandwidth);
    if (key == "step_overhead_us")
        return read_number(key, value, 0, 1e12, "not in [0, 1e12]", &out->step_overhead_us);
    if (key == "host_us")
        return read_number(key, value, 0, 1e12, "not in [0, 1e12]", &out->host_us);
    if (key == "overlap") return read_number(key, value, 0, 1, "not 0 or 1", &out->overlap);
    if (key == "device" || key == "kv_type" || key == "quantize" || key == tensor_parallel_key)
        return {}; // read before
    if (key == "common_prefix_cost")
        return read_number(key, value, 0, most_common_prefix_cost, "not in [0, 1024]",
                           &out->common_prefix_cost);
    if (key == "fails_after")
        return read_number(key, value, -1, int32, "not in [-1, 2^31)", &out->fails_after);
    if (key == "failing_device")
        return read_number(key, value, -1, int32, "not in [-1, 2^31)", &out->failing_device);
    return bad_value(key, value, "the sim backend has no such option");
}

// Bytes per element of keys and values.
Result<int64_t> read_kv_bytes(const BackendOptions &options) {
    const DType compute = options.compute_type == "f32" ? DType::f32 : DType::bf16;
    DType type = compute;
    for (const auto &[key, value] : options.extra) {
        if (key != "kv_type") continue;
        ASSIGN_OR_RETURN(type, read_kv_type(value, compute));
    }
    return dtype_bytes(type);
}

// In f32 weights are widened.
Result<Quantize> quantize_of(const BackendOptions &options) {
    Quantize quantize = Quantize::stored;
    for (const auto &[key, value] : options.extra) {
        if (key != "quantize") continue;
        ASSIGN_OR_RETURN(quantize, read_quantize(value));
    }
    return options.compute_type == "f32" ? Quantize::none : quantize;
}

// element: bytes. padded: heads as on a GPU.
void shape_keys_and_values(const Model *model, int64_t element, bool padded, SimOptions *out) {
    if (!model) {
        out->slot_bytes = 2 * element * 32 * 8 * 128; // Llama-3-8B
        out->kv_groups = {{0, out->slot_bytes}};
        return;
    }
    int64_t largest = 0;
    for (const KvGroup &group : model->kv_groups) {
        SimOptions::GroupShape shape{group.window, 0};
        for (const int32_t layer : group.layers) {
            const Attention &a = *model->layers[static_cast<size_t>(layer)].attention();
            const int64_t bytes = element * (padded ? padded_kept(a) : a.kept_size());
            shape.token_bytes += bytes;
            largest = std::max(largest, bytes);
        }
        out->kv_groups.push_back(shape);
    }
    out->slot_bytes = largest * model->kv_planes();
}

// In float, except for S of linear attention, which has its own type.
int64_t state_bytes(const Model &model, DType type) {
    constexpr auto number = static_cast<int64_t>(sizeof(float));
    int64_t bytes = model.state_size() * number;
    for (const Layer &layer : model.layers) {
        const LinearAttention *linear = layer.linear_attention();
        if (linear != nullptr) bytes -= linear->matrices_size() * (number - dtype_bytes(type));
    }
    return bytes;
}

// The description that the options name, if any.
Result<std::optional<DeviceCosts>> read_device(const BackendOptions &options) {
    const std::string *device = nullptr;
    for (const auto &[key, value] : options.extra) {
        if (key == "device") device = &value;
    }
    if (device == nullptr) return std::optional<DeviceCosts>();
    for (const auto &[key, value] : options.extra) {
        for (const char *other : {"tokens_per_second", "step_floor_us", "kv_bandwidth",
                                  "step_overhead_us", "host_us"}) {
            if (key == other) return bad_value(key, value, "device says that already");
        }
    }
    ASSIGN_OR_RETURN(DeviceCosts costs, find_device_costs(*device));
    return std::optional<DeviceCosts>(std::move(costs));
}

// devices: "0,1"
bool has_device(const std::string &devices, int32_t number) {
    return ("," + devices + ",").find("," + std::to_string(number) + ",") != std::string::npos;
}

// For keys and values beside a model on a described device; may be negative.
int64_t bytes_left(const DeviceCosts &costs, const Model &model, const BackendOptions &options,
                   const CostTypes &types) {
    const StepForm form =
        form_on_gpu(model, options.compute_type, options.reproducible, types.quantize);
    const int64_t tokens =
        options.step_tokens > 0 ? options.step_tokens : step_tokens_on(costs, model, form);
    const bool widens = types.kv_bytes == 1 && !options.reproducible;
    return costs.memory_bytes -
           bytes_beside_pages(costs, model, form, tokens, widens, types.quantize);
}

bool has_scaled(const Model &model, Quantize quantize) {
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const ScaledLayer of = scaled_layer(model, i, quantize);
        if (of.first || of.last || of.gate_up || of.down || of.experts) return true;
    }
    return false;
}

// Whether what the description says is enough.
Status check_costs_known(const Model &model, const DeviceCosts &costs, const StepForm &form,
                         Quantize quantize) {
    const bool matrices =
        std::any_of(model.layers.begin(), model.layers.end(),
                    [](const Layer &layer) { return layer.linear_attention() != nullptr; });
    if (model.state_size() > 0 && !costs.gpu) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "layers with a state are not predicted on a CPU: what they take is not known");
    }
    if (matrices && !form.state_chunks) {
        return error(
            BATCHLLM_ERROR_UNSUPPORTED,
            "layers with a state are not predicted where prompts go through them token by "
            "token (reproducible, heads of other sizes than 128, Mamba-2 in f16 or with "
            "other sizes than 64 and 128, decays by channel): what they take is not known");
    }
    if (!costs.gpu || quantize == Quantize::none) return {};
    bool packed = false;
    for_each_packed(
        model, DType::bf16,
        [&](const Layer &, int64_t, int64_t, const Packing &, int64_t) { packed = true; });
    if (packed && quantize == Quantize::fp8) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "weights in four bits are not predicted with inputs in fp8 (quantize=fp8): "
                     "what their products take then is not known");
    }
    const bool needed = quantize == Quantize::fp8 || has_scaled(model, quantize);
    if (!needed || !costs.fp8_products.empty()) return {};
    return error(
        BATCHLLM_ERROR_UNSUPPORTED,
        "products in fp8 are not predicted on %s: its description has no fp8_products; with "
        "--quantize none (backend option quantize=none) the model is predicted in 16 bits, "
        "in which a GPU without products in fp8 computes it",
        costs.name.c_str());
}

// Sets what a description determines for options that are not given.
Status take_device(const Model *model, DeviceCosts costs, const BackendOptions &options,
                   CostTypes types, SimOptions *out) {
    if (model == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend_options: device needs a model (model_dir)");
    }
    const StepForm form =
        form_on_gpu(*model, options.compute_type, options.reproducible, types.quantize);
    RETURN_IF_ERROR(check_costs_known(*model, costs, form, types.quantize));
    if (model->ranks > 1 && costs.link_bandwidth == 0) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "tensor_parallel: the description of %s has no link_bandwidth",
                     costs.name.c_str());
    }
    out->page_tokens = costs.page_tokens;
    out->step_tokens = step_tokens_on(costs, *model, form);
    const int64_t left = std::max<int64_t>(0, bytes_left(costs, *model, options, types));
    BackendOptions share = options;
    share.kv_memory_bytes = 0; // which is taken elsewhere
    if (!costs.gpu) share.adapter_memory_bytes = 0;
    out->kv_memory_bytes = std::max<int64_t>(0, pool_share(share, left, costs.kv_fraction));
    out->weights = weight_bytes(costs, *model, form.element, types.quantize);
    out->overlap = costs.batches_in_flight > 1 ? 1 : 0;
    if (costs.gpu && options.kv_memory_bytes > left) {
        return error(
            BATCHLLM_ERROR_INVALID_ARGUMENT,
            "kv_memory_bytes %lld: %s has %lld bytes of memory, of which weights, a step's "
            "buffers and the driver leave %lld",
            static_cast<long long>(options.kv_memory_bytes), costs.name.c_str(),
            static_cast<long long>(costs.memory_bytes), static_cast<long long>(left));
    }
    // As of a backend that computes (common_prefix_cost_on).
    const bool priced = model->state_size() == 0 && !(costs.gpu && options.reproducible);
    const bool in_fp8 = costs.gpu && has_scaled(*model, types.quantize);
    out->common_prefix_cost = priced ? common_prefix_cost(costs, *model, in_fp8) : 0;
    // The rates for f32 were also derived by counting two bytes.
    types.kv_bytes = std::min<int64_t>(types.kv_bytes, 2);
    out->costs.emplace(std::move(costs), *model, types);
    return {};
}

} // namespace

Result<RankChoice> choose_sim_ranks(const Model *model, const BackendOptions &options,
                                    const std::vector<int32_t> &devices,
                                    std::optional<DeviceCosts> device) {
    if (!device) {
        ASSIGN_OR_RETURN(device, read_device(options));
    }
    if (model == nullptr || !device) {
        return RankChoice{1, "no device is described, whose memory would be too small"};
    }
    if (!device->gpu) return RankChoice{1, device->name + " is a CPU"};
    ASSIGN_OR_RETURN(const int64_t kv_bytes, read_kv_bytes(options));
    ASSIGN_OR_RETURN(const Quantize quantize, quantize_of(options));
    const CostTypes types{kv_bytes, DType::f32, quantize};
    const DType kept = kv_bytes == 1 ? DType::e4m3 : kv_bytes == 2 ? DType::bf16 : DType::f32;
    const auto count = devices.empty() ? most_ranks : static_cast<int32_t>(devices.size());
    const MostRanks most = most_gpu_ranks(options.reproducible);
    return choose_ranks(*model, count, most, kept, [&](const Model &part) -> Result<int64_t> {
        return pool_share(options, bytes_left(*device, part, options, types), device->kv_fraction);
    });
}

Result<SimOptions> read_sim_options(const Model *model, const BackendOptions &options,
                                    std::optional<DeviceCosts> device) {
    SimOptions out;
    ASSIGN_OR_RETURN(const int64_t kv_bytes, read_kv_bytes(options));
    ASSIGN_OR_RETURN(out.ranks, tensor_parallel_of(options));
    const Model *whole = model;
    std::unique_ptr<Model> part; // all of them take the same memory and time
    if (!device) {
        ASSIGN_OR_RETURN(device, read_device(options));
    }
    if (out.ranks > 1 && model != nullptr) {
        ASSIGN_OR_RETURN(part, part_of(*model, 0, out.ranks));
        model = part.get();
    }
    if (model) {
        out.vocabulary = model->vocabulary;
        out.hidden = model->hidden;
        out.pictures = model->tower != nullptr;
        if (!model->eos_tokens.empty()) out.eos_token = model->eos_tokens.front();
    }
    shape_keys_and_values(model, kv_bytes, device && device->gpu, &out);
    const bool has_states = model != nullptr && model->state_size() > 0;
    std::vector<std::pair<std::string, std::string>> others;
    for (const auto &[key, value] : options.extra) {
        ASSIGN_OR_RETURN(const bool read, read_state_option(key, value, model, &out.states));
        if (!read) others.emplace_back(key, value);
    }
    if (options.reproducible) RETURN_IF_ERROR(check_reproducible(out.states));
    ASSIGN_OR_RETURN(const Quantize quantize, quantize_of(options));
    if (device) {
        const CostTypes types{kv_bytes, out.states.type, quantize};
        RETURN_IF_ERROR(take_device(model, *std::move(device), options, types, &out));
        out.adapter_costs.emplace(*whole, out.ranks);
    }
    for (const auto &[key, value] : others) RETURN_IF_ERROR(read_option(key, value, &out));
    if (has_states) out.state_bytes = state_bytes(*model, out.states.type);
    if (out.eos_token >= out.vocabulary)
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend_options: eos_token=%d is not below the vocabulary, %d", out.eos_token,
                     out.vocabulary);
    if (out.eos_token >= 0 && out.vocabulary < 2)
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend_options: a vocabulary of %d with eos_token=%d has no other token",
                     out.vocabulary, out.eos_token);
    if (out.max_length != 0 && out.max_length < out.min_length)
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend_options: max_length=%lld is below min_length=%lld",
                     static_cast<long long>(out.max_length),
                     static_cast<long long>(out.min_length));
    if (out.max_length != 0 && out.mean_length != 0)
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend_options: max_length and mean_length exclude each other");
    if (out.failing_device >= 0 && !has_device(options.devices, out.failing_device))
        out.fails_after = -1;
    int64_t memory = options.kv_memory_bytes > 0 ? options.kv_memory_bytes : out.kv_memory_bytes;
    const MemoryNeeds needs{out.state_bytes,
                            out.slot_bytes * static_cast<int64_t>(out.kv_groups.size()),
                            options.step_tokens > 0 ? options.step_tokens : out.step_tokens};
    // Pages that are given explicitly do not count against this memory.
    if (out.states.slots == 0 || out.pages == 0) {
        ASSIGN_OR_RETURN(const MemoryShares shares, share_memory(memory, needs, out.states.slots));
        out.states.slots = shares.state_slots;
        memory = shares.bytes_left;
    }
    if (out.pages == 0) {
        out.pages = memory / (out.slot_bytes * out.page_tokens);
        if (out.pages < 1 && out.costs && options.kv_memory_bytes == 0)
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%s has %lld bytes of memory, of which weights and a step's buffers leave "
                         "%lld for keys and values: less than one page of %lld",
                         out.costs->costs().name.c_str(),
                         static_cast<long long>(out.costs->costs().memory_bytes),
                         static_cast<long long>(memory),
                         static_cast<long long>(out.slot_bytes * out.page_tokens));
        if (out.pages < 1)
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "kv_memory_bytes %lld is less than one page of %lld bytes",
                         static_cast<long long>(memory),
                         static_cast<long long>(out.slot_bytes * out.page_tokens));
        out.pages = std::min<int64_t>(out.pages, std::numeric_limits<int32_t>::max());
    }
    return out;
}

} // namespace batchllm
