// Rows under JSON schemas, compared with free rows of the same lengths, on the whole engine.
//
//     structured --backend cuda --job a16        a job by name (throughput_models.h), or changed by
//                                                --rows --prefix --own --sharing --new
//     --model NAME|DIRECTORY        a named shape (on cuda with random weights) and a synthetic
//                                   vocabulary of its size; or a directory with weights and a tokenizer
//     --schemas N                   number of schemas in the last runs of a job (default 1000)
//     --items N                     records in a row's text: default 1000, which max_tokens cuts,
//                                   so that all rows are as long as the job's; 1: rows end with
//                                   their record
//     --temperature T --repeat N --step-tokens N --kv-gib N --threads N
//     --option key=value            any of the backend's
//
// A round runs the same prompts free, under one schema with every token sampled and with forced
// tokens, and under N schemas in both ways. Every constraint is new, so that the time includes
// making states and masks; compiling is not included, but printed. A ratio is relative to free rows
// of exactly the same lengths, which are run again if a run's lengths differ; on sim, whose time is
// modelled, it says how steps compare. On the CPU the ratio is also given in processor time, which
// other programs do not affect.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "constraint/handle.h"
#include "runtime/engine.h"
#include "structured_schema.h"
#include "structured_tokenizer.h"
#include "throughput_models.h"

using namespace batchllm;

namespace {

struct StructuredArguments {
    std::string job = "a16", model, backend = "cuda";
    double rows = 0, prefix = -1, own = -1, sharing = 0, generated = 0, step_tokens = 0, kv_gib = 0;
    double schemas = 1000, items = 1000, temperature = 0, repeat = 1, threads = 0;
    std::vector<std::pair<std::string, std::string>> extra;
};

bool read_arguments(int count, char **values, StructuredArguments *out) {
    const std::map<std::string, double *> numbers = {
        {"--rows", &out->rows},     {"--prefix", &out->prefix},
        {"--own", &out->own},       {"--sharing", &out->sharing},
        {"--new", &out->generated}, {"--step-tokens", &out->step_tokens},
        {"--kv-gib", &out->kv_gib}, {"--schemas", &out->schemas},
        {"--items", &out->items},   {"--temperature", &out->temperature},
        {"--repeat", &out->repeat}, {"--threads", &out->threads}};
    const std::map<std::string, std::string *> texts = {
        {"--job", &out->job}, {"--model", &out->model}, {"--backend", &out->backend}};
    for (int i = 1; i + 1 < count; i += 2) {
        const char *value = values[i + 1];
        if (const auto number = numbers.find(values[i]); number != numbers.end()) {
            *number->second = std::atof(value);
        } else if (const auto text = texts.find(values[i]); text != texts.end()) {
            *text->second = value;
        } else if (const char *equals = std::strchr(value, '=');
                   std::strcmp(values[i], "--option") == 0 && equals != nullptr) {
            out->extra.emplace_back(std::string(value, equals), equals + 1);
        } else {
            return false;
        }
    }
    return count % 2 == 1;
}

Result<NamedJob> job_of(const StructuredArguments &arguments) {
    for (NamedJob job : kJobs) {
        if (arguments.job != job.name) continue;
        if (arguments.rows > 0) job.rows = static_cast<int64_t>(arguments.rows);
        if (arguments.prefix >= 0) job.prefix = arguments.prefix;
        if (arguments.own >= 0) job.own = arguments.own;
        if (arguments.sharing > 0) job.sharing = arguments.sharing;
        if (arguments.generated > 0) job.generated = static_cast<int32_t>(arguments.generated);
        return job;
    }
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no job %s", arguments.job.c_str());
}

// A directory with a model of the named shape and a synthetic tokenizer; removed with this object.
class MadeDirectory {
  public:
    Status make(const std::string &name) {
        ASSIGN_OR_RETURN(const BenchModel model, bench_model(name));
        path_ = (std::filesystem::temp_directory_path() / "batchllm-structured").string();
        RETURN_IF_ERROR(write_model_directory(model, path_));
        return write_file(path_ + "/tokenizer.json", made_up_tokenizer(model.model.vocabulary));
    }
    MadeDirectory() = default;
    MadeDirectory(const MadeDirectory &) = delete;
    MadeDirectory &operator=(const MadeDirectory &) = delete;
    ~MadeDirectory() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    const std::string &path() const { return path_; }

  private:
    std::string path_;
};

// Processor time of all threads so far.
double processor_seconds() {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    const auto of = [](const timeval &t) {
        return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return of(use.ru_utime) + of(use.ru_stime);
}

struct Measured {
    double rate = 0; // rows per second
    double seconds = 0;
    double processor_seconds = 0;
    batchllm_stats before{}, after{};
    MaskWork masks_before, masks;
    std::vector<int32_t> lengths; // [rows] lengths of the outputs
    int64_t ended = 0;            // rows whose text is complete
};

class Bench {
  public:
    Bench(Engine *engine, const NamedJob &job, int32_t vocabulary, std::string backend)
        : engine_(engine), job_(job), rows_(make_rows(job, vocabulary)), vocabulary_(vocabulary),
          backend_(std::move(backend)) {
        offsets_.push_back(0);
        for (const TokenRow &row : rows_.rows) {
            tags_.push_back(tags_.size());
            offsets_.push_back(offsets_.back() + row.length);
        }
    }

    Status warm_up();
    Status round(const StructuredArguments &arguments);

  private:
    using Constraints = std::vector<batchllm_constraint>;
    Result<Constraints> make_constraints(int64_t schemas, int64_t items);
    Result<Measured> run(int64_t rows, const std::vector<int32_t> *lengths,
                         const Constraints *constraints, bool forced);
    Status compare(const char *name, const StructuredArguments &arguments, int64_t schemas,
                   bool forced);
    void print(const char *name, const Measured &m) const;

    Engine *engine_;
    NamedJob job_;
    JobRows rows_;
    int32_t vocabulary_;
    std::string backend_;
    float temperature_ = 0;
    std::vector<uint64_t> tags_;
    std::vector<int64_t> offsets_;
    std::vector<int32_t> free_lengths_;
    double free_rate_ = 0, free_processor_seconds_ = 0;
};

Result<Bench::Constraints> Bench::make_constraints(int64_t schemas, int64_t items) {
    Constraints made;
    const auto start = Clock::now();
    const double processor = processor_seconds();
    for (int64_t i = 0; i < schemas; ++i) {
        ConstraintSpecification wanted;
        wanted.kind = ConstraintSpecification::Kind::json_schema;
        wanted.text = record_schema(i, items);
        ASSIGN_OR_RETURN(SpecifiedConstraint constraint, engine_->make_constraint(wanted));
        made.push_back({std::move(constraint.constraint), ""});
    }
    std::printf("  compiled %lld schemas in %.1f ms, %.1f of processor time\n",
                static_cast<long long>(schemas), seconds_since(start) * 1e3,
                (processor_seconds() - processor) * 1e3);
    return made;
}

// lengths: [rows] those of free rows; null: the job's.
Result<Measured> Bench::run(int64_t rows, const std::vector<int32_t> *lengths,
                            const Constraints *constraints, bool forced) {
    // If a row names a token that stops it, each of its tokens is sampled. No schema allows this
    // token.
    const int32_t never = vocabulary_ - 1;
    std::vector<batchllm_params> params(static_cast<size_t>(rows), default_params());
    for (size_t i = 0; i < params.size(); ++i) {
        params[i].max_tokens = lengths != nullptr ? (*lengths)[i] : job_.generated;
        params[i].ignore_eos = 1;
        params[i].temperature = temperature_;
        if (constraints == nullptr) continue;
        params[i].constraint = &(*constraints)[i % constraints->size()];
        if (forced) continue;
        params[i].stop_tokens = &never;
        params[i].stop_token_count = 1;
    }
    Measured m;
    m.before = engine_->stats();
    m.masks_before = engine_->mask_work();
    ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params.data(), rows, rows));
    RETURN_IF_ERROR(
        (*engine_->intake())
            ->add_tokens({rows, rows_.tokens.data(), offsets_.data()}, tags_.data(), column));
    const auto start = Clock::now();
    m.processor_seconds = -processor_seconds();
    RETURN_IF_ERROR(engine_->run(nullptr, nullptr));
    m.seconds = seconds_since(start);
    m.processor_seconds += processor_seconds();
    m.after = engine_->stats();
    m.masks = engine_->mask_work();
    if (backend_ == "sim") m.seconds = m.after.backend_seconds - m.before.backend_seconds;
    m.rate = static_cast<double>(rows) / m.seconds;
    const std::unique_ptr<ResultBatch> results = engine_->poll(0);
    m.lengths.resize(params.size());
    for (int64_t i = 0; i < results->count; ++i) {
        if (results->statuses[i] != BATCHLLM_OK) {
            const std::string why(results->errors + results->error_offsets[i],
                                  results->errors + results->error_offsets[i + 1]);
            return error(results->statuses[i], "row %d: %s", static_cast<int>(results->tags[i]),
                         why.c_str());
        }
        m.ended += results->finish_reasons[i] == BATCHLLM_FINISH_STOP ? 1 : 0;
        m.lengths[results->tags[i]] =
            static_cast<int32_t>(results->token_offsets[i + 1] - results->token_offsets[i]);
    }
    return m;
}

void Bench::print(const char *name, const Measured &m) const {
    const int64_t steps = m.after.steps - m.before.steps;
    std::printf("%-28s %8.1f rows/s, %.3f of free; %.2f s, %lld steps, %lld tokens", name, m.rate,
                free_rate_ > 0 ? m.rate / free_rate_ : 1.0, m.seconds,
                static_cast<long long>(steps),
                static_cast<long long>(m.after.completion_tokens - m.before.completion_tokens));
    if (backend_ == "cpu") {
        std::printf(", %.2f s of processor time (%.3f of free)", m.processor_seconds,
                    free_processor_seconds_ / m.processor_seconds);
    }
    const MaskWork &to = m.masks, &from = m.masks_before;
    const double batches = static_cast<double>(std::max<int64_t>(1, to.batches - from.batches));
    if (to.batches > from.batches) {
        std::printf(
            " (%lld forced), %lld texts complete\n"
            "    masks: %.2f ms a step on the host (longest so far %.2f), %.1f rows and %.1f "
            "different ones a step; the device waited for them %.3f ms a step",
            static_cast<long long>(to.forced_tokens - from.forced_tokens),
            static_cast<long long>(m.ended), 1e3 * (to.seconds - from.seconds) / batches,
            1e3 * to.longest, static_cast<double>(to.rows - from.rows) / batches,
            static_cast<double>(to.distinct - from.distinct) / batches,
            1e3 * (to.waited - from.waited) / batches);
    }
    std::printf("\n");
    std::fflush(stdout);
}

// A run under constraints, and free rows of its lengths if the last free run had other lengths.
Status Bench::compare(const char *name, const StructuredArguments &arguments, int64_t schemas,
                      bool forced) {
    ASSIGN_OR_RETURN(const Constraints constraints,
                     make_constraints(schemas, static_cast<int64_t>(arguments.items)));
    ASSIGN_OR_RETURN(const Measured m, run(job_.rows, nullptr, &constraints, forced));
    if (m.lengths != free_lengths_) {
        ASSIGN_OR_RETURN(const Measured free, run(job_.rows, &m.lengths, nullptr, false));
        free_lengths_ = free.lengths;
        free_rate_ = free.rate;
        free_processor_seconds_ = free.processor_seconds;
        print("free, of these lengths", free);
    }
    print(name, m);
    return {};
}

// Algorithms for each shape are searched at its first use.
Status Bench::warm_up() {
    return run(std::min<int64_t>(job_.rows, 256), nullptr, nullptr, false).status();
}

Status Bench::round(const StructuredArguments &arguments) {
    temperature_ = static_cast<float>(arguments.temperature);
    ASSIGN_OR_RETURN(const Measured free, run(job_.rows, nullptr, nullptr, false));
    free_lengths_ = free.lengths;
    free_rate_ = free.rate;
    free_processor_seconds_ = free.processor_seconds;
    print("free", free);
    RETURN_IF_ERROR(compare("one schema, all sampled", arguments, 1, false));
    RETURN_IF_ERROR(compare("one schema, forced tokens", arguments, 1, true));
    const auto schemas = static_cast<int64_t>(arguments.schemas);
    if (schemas < 2) return {};
    const std::string name = std::to_string(schemas) + " schemas, ";
    RETURN_IF_ERROR(compare((name + "all sampled").c_str(), arguments, schemas, false));
    return compare((name + "forced tokens").c_str(), arguments, schemas, true);
}

Status bench(const StructuredArguments &arguments) {
    ASSIGN_OR_RETURN(const NamedJob job, job_of(arguments));
    const std::string model = arguments.model.empty() ? job.model : arguments.model;
    MadeDirectory made;
    EngineOptions options;
    options.model_dir = model;
    options.backend = arguments.backend;
    options.threads = options.backend_options.threads = static_cast<int32_t>(arguments.threads);
    options.backend_options.extra = arguments.extra;
    options.backend_options.step_tokens = static_cast<int64_t>(arguments.step_tokens);
    options.backend_options.kv_memory_bytes =
        static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
    ASSIGN_OR_RETURN(const bool whole, file_exists(model + "/tokenizer.json"));
    if (!whole) {
        RETURN_IF_ERROR(made.make(model));
        options.model_dir = made.path();
        if (arguments.backend == "cuda")
            options.backend_options.extra.emplace_back("random_weights", "1");
    }
    ASSIGN_OR_RETURN(const BenchModel described, bench_model(model));
    ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
    Bench rounds(engine.get(), job, described.model.vocabulary, arguments.backend);
    std::printf("%s, %s, vocabulary %d, %lld rows\n", job.name, model.c_str(),
                static_cast<int>(described.model.vocabulary), static_cast<long long>(job.rows));
    RETURN_IF_ERROR(rounds.warm_up());
    for (int i = 0; i < static_cast<int>(arguments.repeat); ++i) {
        RETURN_IF_ERROR(rounds.round(arguments));
    }
    return {};
}

} // namespace

int main(int count, char **values) {
    StructuredArguments arguments;
    if (!read_arguments(count, values, &arguments)) {
        std::fprintf(stderr,
                     "unknown argument; the options are at the top of bench/structured.cc\n");
        return 2;
    }
    const Status status = bench(arguments);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok() ? 0 : 1;
}
