// Makes every call of CUDA and cuBLASLt fail, one after the other, once and from then on, while an
// engine on a GPU is created, loads a small model, runs a job, is polled and destroyed. After each
// failure: a status names what failed, or the result is as if nothing had; every result is that of
// an undisturbed life; everything allocated from CUDA has been freed; the device has as much free
// memory as before; no life hangs.
//     cuda_torture MODEL TYPE SECONDS   as many failures as fit, each place in the code first
//     cuda_torture MODEL TYPE 0         all
// Exits with 77 if there is no device.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "cuda_backend.h"
#include "cuda_faults.h"
#include "runtime/engine.h"

using namespace batchllm;

namespace {

constexpr unsigned hang_seconds = 60; // a life takes less than one

using Key = std::pair<uint64_t, int32_t>; // tag and sample
using Given = std::map<Key, std::vector<int32_t>>;

struct Life {
    Status status;
    bool created = false;
    Given given;
    std::vector<std::string> warnings;
};

void log_line(void *user, int32_t, const char *message) {
    static_cast<Life *>(user)->warnings.emplace_back(message);
}

char hanging[160] = "before the first life";

void on_alarm(int) {
    (void)!::write(STDOUT_FILENO, hanging, std::strlen(hanging));
    (void)!::write(STDOUT_FILENO, " HANGS\n", 7);
    _exit(1);
}

// Twelve rows, four of which share a prefix, sampled in every way.
Status add_rows(Engine *engine) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    std::vector<batchllm_params> params(12);
    for (int32_t row = 0; row < 12; ++row) {
        for (int32_t i = 0; i < 40 + row; ++i) tokens.push_back(3 + (i * 7 + row / 4) % 90);
        tokens.push_back(3 + row);
        offsets.push_back(static_cast<int64_t>(tokens.size()));
        batchllm_params &own = params[static_cast<size_t>(row)];
        batchllm_params_init(&own, sizeof own);
        own.max_tokens = 12;
        own.ignore_eos = 1;
        own.seed = 5;
        if (row % 4 == 1) own.temperature = 0.8f;
        if (row % 4 == 2) own.logprobs = 3;
        if (row % 4 == 3) own.frequency_penalty = 0.5f;
        if (row % 5 == 1) own.top_k = 20;
    }
    ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params.data(), 12, 12));
    return (*engine->intake())->add_tokens({12, tokens.data(), offsets.data()}, nullptr, column);
}

struct Job {
    std::string model, type;

    Life live() const {
        Life life;
        EngineOptions options;
        options.model_dir = model;
        options.backend = "cuda";
        options.threads = 1;
        options.log = {log_line, &life, BATCHLLM_LOG_WARNING};
        BackendOptions &own = options.backend_options;
        own.devices = "0";
        own.compute_type = type;
        own.threads = 2;
        own.step_tokens = 128;
        own.kv_memory_bytes = int64_t{16} << 20;
        // Tuning may choose a different algorithm each time; in 32 bits this does not change any
        // token.
        own.extra = {{"tuning_cache", "none"}, {"tuning", type == "f32" ? "1" : "0"}};
        auto made = Engine::create(options, [&](const EngineOptions &of) -> Result<LoadedModel> {
            LoadedModel loaded;
            ASSIGN_OR_RETURN(loaded.model, load_model(of.model_dir));
            ASSIGN_OR_RETURN(auto backend,
                             cuda::CudaBackend::create(*loaded.model, of.backend_options));
            loaded.backends.push_back(std::move(backend));
            return loaded;
        });
        life.status = made.status();
        if (!made.ok()) return life;
        life.created = true;
        Engine &engine = **made;
        life.status = add_rows(&engine);
        if (life.status.ok()) life.status = engine.run(nullptr, nullptr);
        const auto results = engine.poll(0);
        for (int64_t i = 0; i < results->count; ++i) {
            life.given.emplace(
                Key{results->tags[i], results->samples[i]},
                std::vector<int32_t>(results->tokens + results->token_offsets[i],
                                     results->tokens + results->token_offsets[i + 1]));
        }
        return life;
    }
};

int64_t free_memory() {
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    return static_cast<int64_t>(left);
}

class Torture {
  public:
    explicit Torture(Job job) : job_(std::move(job)) {}

    // Returns "" or what is wrong without any failure.
    std::string prepare() {
        Life life;
        for (int i = 0; i < 3; ++i) { // kernels and cuBLASLt's are loaded at their first use
            alarm(4 * hang_seconds);
            cuda_faults::start(-1, false);
            life = job_.live();
            calls_ = cuda_faults::stop();
            if (!life.status.ok()) return life.status.message();
            if (i > 0 && life.given != expected_) return "two undisturbed lives differ";
            expected_ = life.given;
        }
        if (const std::string taken = cuda_faults::taken(); !taken.empty())
            return "an undisturbed life keeps " + taken;
        return expected_.size() == 12 ? "" : "rows without a result";
    }

    // Returns the number of wrong lives.
    int run(double seconds) {
        const auto start = std::chrono::steady_clock::now();
        const std::vector<int64_t> order = places_first();
        int64_t done[2] = {0, 0};
        for (const int64_t k : order) {
            const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
            if (seconds > 0 && spent.count() > seconds) break;
            for (const bool forever : {false, true}) {
                try_fault(k, forever);
                ++done[forever];
            }
        }
        std::printf("cuda-%s: call once: %lld of %zu\n", job_.type.c_str(),
                    static_cast<long long>(done[0]), calls_.size());
        std::printf("cuda-%s: call forever: %lld of %zu\n", job_.type.c_str(),
                    static_cast<long long>(done[1]), calls_.size());
        std::printf(
            "%zu places in the code; %lld lives ended well in spite of a failure, %lld with a "
            "smaller pool\n",
            places_, static_cast<long long>(survived_), static_cast<long long>(smaller_));
        return wrong_;
    }

  private:
    // Calls by number: the first of each place in the code, then the last, then one in the middle,
    // then all others.
    std::vector<int64_t> places_first() {
        std::map<const void *, std::vector<int64_t>> by_place;
        for (size_t i = 0; i < calls_.size(); ++i)
            by_place[calls_[i].site].push_back(static_cast<int64_t>(i));
        places_ = by_place.size();
        std::vector<int64_t> order;
        std::set<int64_t> seen;
        const auto take = [&](int64_t k) {
            if (seen.insert(k).second) order.push_back(k);
        };
        for (const auto &[place, numbers] : by_place) take(numbers.front());
        for (const auto &[place, numbers] : by_place) take(numbers.back());
        for (const auto &[place, numbers] : by_place) take(numbers[numbers.size() / 2]);
        for (size_t i = 0; i < calls_.size(); ++i) take(static_cast<int64_t>(i));
        return order;
    }

    std::string fault_of(const Life &life) const {
        static const std::set<int32_t> expected = {BATCHLLM_ERROR_DEVICE,
                                                   BATCHLLM_ERROR_OUT_OF_MEMORY,
                                                   BATCHLLM_ERROR_BACKEND_UNAVAILABLE};
        if (const std::string taken = cuda_faults::taken(); !taken.empty()) return "keeps " + taken;
        if (!life.status.ok() && expected.count(life.status.code()) == 0)
            return "status " + std::to_string(life.status.code()) + ": " + life.status.message();
        if (!life.status.ok() && life.status.message().find("cuda") == std::string::npos)
            return "a status that says too little: " + life.status.message();
        for (const auto &[row, tokens] : life.given) {
            const auto found = expected_.find(row);
            if (found == expected_.end() || found->second != tokens) return "a wrong result";
        }
        if (life.status.ok() && life.given.size() != expected_.size()) return "a result is missing";
        return "";
    }

    void try_fault(int64_t k, bool forever) {
        const char *name = calls_[static_cast<size_t>(k)].name;
        std::snprintf(hanging, sizeof hanging,
                      "FAILED cuda-%s: call %s, number %lld, %s:", job_.type.c_str(), name,
                      static_cast<long long>(k), forever ? "forever" : "once");
        const int64_t before = free_memory();
        Life life = live(k, forever);
        std::string fault = fault_of(life);
        // The first time, kernels that are only used then may have been loaded.
        for (int i = 0; i < 2 && fault.empty() && free_memory() < before; ++i) {
            const int64_t again = free_memory();
            life = live(k, forever);
            if (free_memory() < again && i == 1)
                fault = "the device lost " + std::to_string(again - free_memory()) + " bytes";
        }
        survived_ += life.status.ok();
        for (const std::string &line : life.warnings)
            smaller_ += line.find("smaller") != std::string::npos;
        if (std::getenv("CUDA_TORTURE_SAY") != nullptr)
            std::printf("%s %s\n", hanging,
                        life.status.ok() ? "fine" : life.status.message().c_str());
        if (fault.empty()) return;
        ++wrong_;
        std::printf("%s %s\n", hanging, fault.c_str());
        std::fflush(stdout);
    }

    Life live(int64_t k, bool forever) const {
        alarm(hang_seconds);
        cuda_faults::start(k, forever);
        Life life = job_.live();
        cuda_faults::stop();
        return life;
    }

    Job job_;
    Given expected_;
    std::vector<cuda_faults::Call> calls_;
    size_t places_ = 0;
    int64_t survived_ = 0, smaller_ = 0;
    int wrong_ = 0;
};

} // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: cuda_torture MODEL TYPE SECONDS\n");
        return 2;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
    std::signal(SIGALRM, on_alarm);
    Torture torture({argv[1], argv[2]});
    if (const std::string wrong = torture.prepare(); !wrong.empty()) {
        std::printf("FAILED cuda-%s: call none: %s\n", argv[2], wrong.c_str());
        return 1;
    }
    return torture.run(std::atof(argv[3])) == 0 ? 0 : 1;
}
