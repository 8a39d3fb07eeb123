#include "runtime/predict.h"

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>

#include "backend/sim/sim_backend.h"
#include "backend/tensor_parallel.h"
#include "runtime/device_probe.h"
#include "runtime/engine.h"

namespace batchllm {
namespace {

// The engine's options adapted for sim, with the plan's own choices.
EngineOptions options_on_sim(const EngineOptions &options, const Plan &plan) {
    EngineOptions own = options;
    own.backend = "sim";
    own.drafts = Drafts::off; // whether texts repeat is not known
    // Those that sim knows too.
    std::erase_if(own.backend_options.extra, [](const auto &o) {
        constexpr std::array known = {"kv_type", "quantize", "state_type", "state_slots",
                                      tensor_parallel_key};
        return std::find(known.begin(), known.end(), o.first) == known.end();
    });
    own.timeline_path.clear();
    own.log = {};
    own.enlarge = plan.options.enlarge;
    own.levels = plan.options.levels;
    own.order = plan.options.order;
    own.min_prefix_tokens = plan.options.min_prefix_tokens;
    return own;
}

bool has_option(const EngineOptions &options, const char *key, const char *value) {
    const auto &extra = options.backend_options.extra;
    const std::pair<std::string, std::string> wanted(key, value);
    return std::find(extra.begin(), extra.end(), wanted) != extra.end();
}

// f32 takes another time than a description says, unless it was measured in f32 on this machine's device.
Status refuse_f32(const EngineOptions &options, const DeviceCosts &costs, bool measured_here) {
    if (!costs.gpu || measured_here || options.backend_options.compute_type != "f32") return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "%s is not predicted in f32 on %s: its description says what products in 16 bits "
                 "take",
                 options.model_dir.c_str(), costs.name.c_str());
}

Status add_rows(Engine *engine, const Column<int32_t> &rows, const ParamsColumn &params) {
    // One struct for all rows stays one.
    const int64_t count = params.same_as_before(1) ? std::min<int64_t>(rows.n, 1) : rows.n;
    std::vector<batchllm_params> known;
    known.reserve(static_cast<size_t>(count));
    std::unordered_map<const AdapterSource *, std::unique_ptr<batchllm_adapter>> adapters;
    for (int64_t i = 0; i < count; ++i) {
        ASSIGN_OR_RETURN(batchllm_params own, params.at(i));
        own.constraint = nullptr;     // they belong to another engine
        if (own.adapter != nullptr) { // so do these
            const AdapterSource &source = *own.adapter->source;
            std::unique_ptr<batchllm_adapter> &here = adapters[&source];
            if (here == nullptr) {
                here = std::make_unique<batchllm_adapter>();
                ASSIGN_OR_RETURN(here->source, engine->load_adapter(source.name, source.path));
            }
            own.adapter = here.get();
        }
        // Stop strings need a tokenizer and do not change the predicted length.
        own.stop_string_count = 0;
        own.bad_word_count = 0;
        known.push_back(own);
    }
    ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(known.data(), count, rows.n));
    ASSIGN_OR_RETURN(Intake * intake, engine->intake());
    return intake->add_tokens(rows, nullptr, column);
}

} // namespace

Result<Prediction> predict(const Plan &plan, const Column<int32_t> &rows,
                           const ParamsColumn &params, const EngineOptions &options,
                           const PredictOptions &predicting) {
    if (options.model_dir.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "model_dir is NULL or \"\": a prediction needs the model's config.json");
    }
    Prediction prediction;
    DeviceCosts costs;
    if (predicting.device.empty()) {
        ASSIGN_OR_RETURN(costs, costs_here(options));
    } else {
        ASSIGN_OR_RETURN(costs, find_device_costs(predicting.device));
    }
    prediction.device = costs.name;
    const EngineOptions own = options_on_sim(options, plan);
    std::vector<const SimBackend *> devices;
    const auto loader = [&](const EngineOptions &of) -> Result<LoadedModel> {
        LoadedModel loaded;
        ASSIGN_OR_RETURN(Model model, describe_model(of.model_dir));
        RETURN_IF_ERROR(refuse_f32(options, costs, predicting.device.empty()));
        if (has_option(options, "pictures", "0")) {
            model.tower = nullptr;
            model.no_tower = "the backend option pictures is 0";
        }
        loaded.model = std::make_unique<Model>(std::move(model));
        EngineOptions chosen = of;
        if (of.tensor_parallel == 0) {
            ASSIGN_OR_RETURN(const RankChoice choice,
                             choose_sim_ranks(loaded.model.get(), of.backend_options,
                                              of.devices_to_choose_from(), costs));
            chosen = take_ranks(of, choice, &loaded);
        }
        prediction.devices = static_cast<int32_t>(chosen.devices.size());
        if (chosen.tensor_parallel > 1) {
            prediction.device += ", " + std::to_string(chosen.tensor_parallel) + " as one";
        }
        BackendOptions backend = chosen.backend_options;
        if (predicting.expected_tokens > 0 && !loaded.model->eos_tokens.empty()) {
            const std::string length = std::to_string(predicting.expected_tokens);
            backend.extra.emplace_back("min_length", length);
            backend.extra.emplace_back("max_length", length);
        }
        for (size_t i = 0; i < chosen.first_devices().size(); ++i) {
            Result<SimOptions> read = read_sim_options(loaded.model.get(), backend, costs);
            if (read.status().code() == BATCHLLM_ERROR_UNSUPPORTED) {
                return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: %s", of.model_dir.c_str(),
                             read.status().message().c_str());
            }
            RETURN_IF_ERROR(read.status());
            auto sim = std::make_unique<SimBackend>(*read, backend);
            devices.push_back(sim.get());
            loaded.common_prefix_cost = sim->common_prefix_cost();
            loaded.backends.push_back(std::move(sim));
        }
        return loaded;
    };
    ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(own, loader));
    RETURN_IF_ERROR(add_rows(engine.get(), rows, params));
    RETURN_IF_ERROR(engine->use_plan(plan));
    batchllm_progress progress{};
    progress.rows_waiting = rows.n;
    while (progress.rows_waiting + progress.rows_running > 0) {
        RETURN_IF_ERROR(engine->step(&progress));
        engine->poll(0); // the made-up tokens are not used
    }
    prediction.stats = engine->stats();
    ASSIGN_OR_RETURN(const batchllm_info info, engine->info(0));
    prediction.common_prefix_cost = info.common_prefix_cost;
    prediction.weights = devices.front()->weights();
    for (const SimBackend *device : devices) prediction.parts += device->spent();
    return prediction;
}

} // namespace batchllm
