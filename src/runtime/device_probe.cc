#include "runtime/device_probe.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "backend/sim/device_memory.h"
#include "backend/sim/step_cost.h"
#include "base/cache_path.h"
#include "base/file.h"
#include "base/narrow_floats.h"
#include "runtime/backend_choice.h"
#include "runtime/cuda_library.h"

namespace batchllm {
namespace {

// The fields in which the two models differ.
constexpr const char *gpu_sizes =
    R"("hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
       "head_dim": 128, "intermediate_size": 14336, "max_position_embeddings": 32768)";
constexpr const char *cpu_sizes =
    R"("hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4,
       "head_dim": 64, "intermediate_size": 3072, "max_position_embeddings": 8192)";

std::string config_of(const std::string &sizes) {
    return R"({"model_type": "llama", "vocab_size": 2048, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
               "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null, )" +
           sizes + "}";
}

constexpr int32_t chunk = 64; // tokens per node if attention should take next to no time
// Products do not get faster with more rows, and longer steps would take most of the probe's time.
constexpr int64_t most_tokens = 8192;
constexpr int repeats = 5;
constexpr double steady_seconds = 0.2;
constexpr size_t longest_file = size_t{1} << 20;

// The sizes of a batch.
struct ProbeBatch {
    int64_t nodes = 0;  // requests
    int32_t tokens = 1; // computed per request
    int32_t length = 1; // tokens per request, including those
    int32_t prefix = 0; // shared tokens before them
    int64_t page = 0;   // the first page that they use
    int64_t all() const { return nodes * tokens; }
};

// Sizes of the probe's batches: long enough to measure, short enough to finish within about a
// second.
struct Sizes {
    int64_t decodes;
    int32_t decoded;        // keys per request
    int32_t context, piece; // prefill: keys before it, and its tokens
    int64_t merged;         // requests under one prefix
};

bool on_processor(const BackendInfo &info) {
    return info.computes_on.kind == DeviceKind::processor;
}

Sizes sizes_for(const BackendInfo &info) {
    Sizes sizes{64, 4096, 6144, 2048, 1024};
    if (on_processor(info)) sizes = {16, 1024, 1536, 256, 256};
    sizes.piece = static_cast<int32_t>(std::min<int64_t>(sizes.piece, info.step_tokens));
    sizes.merged = std::min<int64_t>(sizes.merged, info.step_tokens);
    return sizes;
}

// Batches on the pages of an otherwise unused pool.
class Probe {
  public:
    Probe(Backend *backend, const Model &model) : backend_(backend), model_(model) {}

    TokenBatch make(const ProbeBatch &of) const {
        TokenBatch batch;
        batch.pages.resize(model_.kv_groups.size());
        int64_t next = of.page;
        const auto add_node = [&](int32_t parent, int32_t start, int32_t length, int32_t count) {
            const int32_t pages = (length + info().page_tokens - 1) / info().page_tokens;
            for (GroupPages &group : batch.pages) {
                const auto begin = static_cast<int32_t>(group.list.size());
                group.nodes.push_back({begin, 0});
                for (int32_t i = 0; i < pages; ++i) {
                    group.list.push_back(static_cast<int32_t>((next + i) % info().pages));
                }
            }
            next += pages;
            const auto begin = static_cast<int32_t>(batch.tokens.size());
            batch.nodes.push_back({parent, start, length, begin, count, parent < 0 && count == 0});
            for (int32_t i = 0; i < count; ++i) {
                batch.tokens.push_back((begin + i) % info().vocabulary);
                batch.positions.push_back(start + length - count + i);
                // For tokens without an output row, the backend skips the last layer.
                OutputRow row{};
                row.token = begin + i;
                row.sample.params = &greedy_;
                batch.outputs.push_back(row);
            }
        };
        if (of.prefix > 0) add_node(-1, 0, of.prefix, 0);
        for (int64_t i = 0; i < of.nodes; ++i) {
            add_node(of.prefix > 0 ? 0 : -1, of.prefix, of.length, of.tokens);
        }
        return batch;
    }

    // The time of one batch. On a CPU, the minimum over a few runs, since other programs can only
    // make it longer. On a GPU, the median, once the clock has dropped to what the power limit
    // allows in a long job of such batches.
    Result<double> seconds(const ProbeBatch &of) const {
        const bool cpu = on_processor(info());
        const TokenBatch batch = make(of);
        std::vector<double> times;
        BatchOutput output;
        double spent = 0;
        for (int i = 0; i <= repeats || (!cpu && spent < steady_seconds); ++i) {
            RETURN_IF_ERROR(backend_->run(batch, &output));
            if (i == 0) continue; // includes work that is done only once
            times.push_back(backend_->last_run_seconds());
            spent += std::max(times.back(), 1e-5);
        }
        if (!cpu) times.erase(times.begin(), times.begin() + static_cast<long>(times.size() / 2));
        std::sort(times.begin(), times.end());
        return cpu ? times.front() : times[times.size() / 2];
    }

    // Fills the pages as a job would: zeros are read faster and take less power to compute with.
    // Also warms up the device.
    Status fill(const Sizes &sizes) const {
        const auto tokens = static_cast<int32_t>(std::min<int64_t>(chunk, step_tokens()));
        const int64_t nodes = std::max<int64_t>(1, step_tokens() / chunk);
        const int64_t wanted = sizes.decodes * pages_of(sizes.decoded);
        BatchOutput output;
        for (int64_t page = 0; page < std::min(wanted, info().pages);
             page += nodes * pages_of(tokens)) {
            RETURN_IF_ERROR(backend_->run(make({nodes, tokens, tokens, 0, page}), &output));
        }
        return {};
    }

    // How many pages a node takes.
    int64_t pages_of(int64_t tokens) const {
        return (tokens + info().page_tokens - 1) / info().page_tokens;
    }
    // For the largest batch.
    int64_t step_tokens() const { return std::min(info().step_tokens, most_tokens); }
    const BackendInfo &info() const { return backend_->info(); }

  private:
    Backend *backend_;
    const Model &model_;
    SamplingParams greedy_;
};

Status measure_attention(const Probe &probe, const Model &model, DeviceCosts *costs) {
    const Sizes sizes = sizes_for(probe.info());
    const Attention &attention = *model.layers.front().attention();
    const auto layers = static_cast<double>(model.layers.size());
    const double key_bytes = 2.0 * static_cast<double>(attention.kv_size()) * 2;
    // If noise makes a difference between two times zero or negative, the difference is
    // meaningless.
    const auto longer_by = [](double a, double b) { return std::max(a - b, 0.02 * a); };

    const int64_t decodes =
        std::clamp<int64_t>(probe.info().pages / probe.pages_of(sizes.decoded), 1, sizes.decodes);
    ASSIGN_OR_RETURN(const double none, probe.seconds({decodes, 1, 1, 0}));
    ASSIGN_OR_RETURN(const double decoded, probe.seconds({decodes, 1, sizes.decoded, 0}));
    const auto rows = static_cast<double>(decodes);
    costs->attention_bandwidth =
        layers * rows * (sizes.decoded - 1) * key_bytes / longer_by(decoded, none);
    costs->memory_bandwidth = 0.8 * costs->attention_bandwidth;

    const double piece = sizes.piece;
    ASSIGN_OR_RETURN(const double apart, probe.seconds({sizes.piece / chunk, chunk, chunk, 0}));
    ASSIGN_OR_RETURN(const double long_piece,
                     probe.seconds({1, sizes.piece, sizes.context + sizes.piece, 0}));
    const double pairs = piece * (sizes.context + piece / 2);
    costs->attention_flops = layers * 4.0 * static_cast<double>(attention.q_size()) * pairs /
                             longer_by(long_piece, apart);

    const auto merged = static_cast<double>(sizes.merged);
    ASSIGN_OR_RETURN(const double lone, probe.seconds({sizes.merged, 1, 1, 0}));
    ASSIGN_OR_RETURN(const double under, probe.seconds({sizes.merged, 1, 1, chunk}));
    costs->merge_ns = 1e9 * std::max(0.0, under - lone) / (layers * merged * attention.heads);
    return {};
}

// The time of products is what remains of a batch's time after everything else is subtracted.
Status measure_products(const Probe &probe, const Model &model, DeviceCosts *costs) {
    double elements = 0, products = 0;
    for (const Layer &layer : model.layers) {
        const Attention &a = *layer.attention();
        const FeedForward &f = *layer.feed_forward();
        for (const Weight *weight : {&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down}) {
            elements +=
                static_cast<double>(weight->rows()) * static_cast<double>(weight->columns());
        }
        products += 4;
    }
    costs->products = {{1, 1e21}};
    std::vector<DeviceCosts::Product> measured;
    for (int64_t rows = 1;; rows = rows < 16 ? 16 : 2 * rows) {
        rows = std::min(rows, probe.step_tokens());
        ProbeBatch of{rows, 1, 1, 0};
        if (rows >= 2 * chunk) of = {rows / chunk, chunk, chunk, 0};
        if (probe.pages_of(of.length) * of.nodes > probe.info().pages) break;
        ASSIGN_OR_RETURN(const double took, probe.seconds(of));
        const StepCost others(*costs, model);
        const StepSeconds part = others.seconds(probe.make(of));
        const double rest = part.total() - part.linear + products * costs->product_us * 1e-6;
        const double left = std::max(took - rest, 0.3 * took);
        const auto count = static_cast<double>(of.all());
        measured.push_back({count, 2 * count * elements / left});
        if (rows == probe.step_tokens()) break;
    }
    costs->products = std::move(measured);
    return {};
}

Result<std::unique_ptr<Backend>> make_probed(const EngineOptions &options, const Model &model) {
    BackendOptions own;
    own.threads = options.backend_options.threads;
    own.compute_type = options.backend_options.compute_type;
    own.devices = std::to_string(options.devices.front());
    if (options.backend == "cpu") return make_cpu_backend(model, own);
    return make_cuda_backend(model, own);
}

// An earlier measurement, if there is such a file and it is credible: files written by an older
// library, whose figures mean something else, are not.
bool find_kept(const std::string &path, DeviceCosts *costs) {
    if (path.empty()) return false;
    const Result<bool> there = file_exists(path);
    if (!there.ok() || !*there) return false;
    Result<std::string> text = read_file(path, longest_file);
    if (!text.ok()) return false;
    Result<DeviceCosts> read = parse_device_costs(std::move(text).value(), path);
    if (!read.ok()) return false;
    *costs = std::move(read).value();
    return true;
}

// Takes what the backend says about itself. A cached description is updated too, since defaults may
// have changed.
void take_info(const BackendInfo &info, DeviceCosts *costs) {
    costs->name = info.device;
    costs->gpu = !on_processor(info);
    costs->page_tokens = info.page_tokens;
    costs->batches_in_flight = info.batches_in_flight;
    // On a GPU the backend's default depends on the model (step_tokens_on), and the probe's model
    // is not the job's.
    costs->step_tokens = costs->gpu ? most_step_tokens : info.step_tokens;
    if (on_processor(info)) costs->expert_step_tokens = 0;
    costs->gated_tokens = info.gated_tokens;
    if (info.gated_tokens == 0) { // in f32, or of another compute capability than the rates
        costs->fp8_products.clear();
        costs->fp8_experts.clear();
    }
}

// The cached description is named after the device, so another device never gets it.
Result<ProbedDevice> probe_backend(Backend *backend, const Model &model) {
    ProbedDevice probed;
    const BackendInfo &info = backend->info();
    const std::string path =
        cache_path("costs-" + info.name + "-" + info.device + "-" + info.compute_type + ".json");
    probed.kept = find_kept(path, &probed.costs);
    // Versions before 2026-11-27 did not write rates in fp8.
    if (info.gated_tokens > 0 && probed.costs.fp8_products.empty()) probed.kept = false;
    if (probed.kept) {
        take_info(info, &probed.costs);
        return probed;
    }
    ASSIGN_OR_RETURN(probed.costs, measure_device(backend, model));
    if (!path.empty()) keep_in_cache(path, device_costs_text(probed.costs));
    return probed;
}

} // namespace

Result<std::unique_ptr<ProbeModel>> probe_model(bool cpu) {
    auto probe = std::make_unique<ProbeModel>();
    ASSIGN_OR_RETURN(probe->model,
                     describe_config(config_of(cpu ? cpu_sizes : gpu_sizes), "probe"));
    Model &model = probe->model;
    model.dtype = DType::bf16;
    int64_t largest = 0;
    for_each_tensor(model, [&](const Tensor &tensor) {
        largest = std::max(largest, tensor.rows * tensor.columns);
    });
    probe->values.resize(static_cast<size_t>(largest));
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (uint16_t &value : probe->values) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        value = float_to_bfloat16(
            static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) * 0x1p-28F);
    }
    for_each_tensor(&model, [&](Tensor *tensor) {
        tensor->dtype = DType::bf16;
        tensor->data = reinterpret_cast<const std::byte *>(probe->values.data());
        tensor->stored_rows = 0;
        tensor->first_row = 0;
    });
    choose_frequencies(model.max_positions, &model);
    return probe;
}

Result<DeviceCosts> measure_device(Backend *backend, const Model &model) {
    const BackendInfo &info = backend->info();
    const Probe probe(backend, model);
    const DeviceCosts known = named_device_costs("h200").value(); // for what is not measured
    DeviceCosts costs = known;
    if (on_processor(info)) {
        costs.product_us = costs.attention_us = costs.step_us = 0;
        costs.exchange_us = costs.link_bandwidth = 0;
        costs.host_us = costs.host_token_us = 0;
        costs.attention_overlap = 0;
        costs.experts.clear(); // one product per expert
        costs.fp8_products.clear();
        costs.fp8_experts.clear();
        costs.routing_us = costs.routing_ns = 0;
    }
    take_info(info, &costs);
    RETURN_IF_ERROR(probe.fill(sizes_for(info)));
    RETURN_IF_ERROR(measure_attention(probe, model, &costs));
    RETURN_IF_ERROR(measure_products(probe, model, &costs));
    // Not measured: assumed to differ from that device by the same factors as other products, and reading keys.
    scale_unmeasured(costs.products.back().flops / known.products.back().flops,
                     costs.attention_bandwidth / known.attention_bandwidth, &costs);
    // The pool has the default share of the memory that the probe's model leaves.
    costs.kv_fraction = on_processor(info) ? cpu_kv_fraction : gpu_kv_fraction;
    costs.memory_bytes =
        bytes_beside_pages(costs, model, form_on_gpu(model, info.compute_type, false),
                           info.step_tokens, false) +
        static_cast<int64_t>(static_cast<double>(info.pages * info.page_bytes) / costs.kv_fraction);
    return costs;
}

Result<ProbedDevice> probe_device(const EngineOptions &options) {
    EngineOptions own = options.tensor_parallel == 0 ? options.with_ranks(1) : options;
    if (own.backend == "auto" || own.backend == "cuda") {
        ASSIGN_OR_RETURN(const std::unique_ptr<ProbeModel> model, probe_model(false));
        own.backend = "cuda";
        auto backend = make_probed(own, model->model);
        if (backend.ok()) return probe_backend(std::move(backend).value().get(), model->model);
        // auto: the CPU, but only if there is no device. A device that is full or misnamed is an
        // error.
        if (options.backend == "cuda" ||
            backend.status().code() != BATCHLLM_ERROR_BACKEND_UNAVAILABLE) {
            return std::move(backend).status();
        }
        own.backend = "cpu";
    }
    if (own.backend != "cpu") {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend \"%s\" has no device to measure: name one of %s", own.backend.c_str(),
                     device_names().c_str());
    }
    RETURN_IF_ERROR(check_cpu_devices(own));
    ASSIGN_OR_RETURN(const std::unique_ptr<ProbeModel> model, probe_model(true));
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, make_probed(own, model->model));
    return probe_backend(backend.get(), model->model);
}

Result<DeviceCosts> costs_here(const EngineOptions &options) {
    static std::mutex mutex;
    static std::map<std::string, DeviceCosts> known;
    const BackendOptions &backend = options.backend_options;
    const std::string key = options.backend + " " + std::to_string(options.devices.front()) + " " +
                            backend.compute_type + " " + std::to_string(backend.threads);
    const std::lock_guard lock(
        mutex); // held during the measurement, so that no device is measured twice at once
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    ASSIGN_OR_RETURN(ProbedDevice probed, probe_device(options));
    return known.emplace(key, std::move(probed.costs)).first->second;
}

} // namespace batchllm
