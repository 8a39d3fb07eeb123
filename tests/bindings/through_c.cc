// The job of make_job.py through the C interface. Usage: through_c MODEL_DIRECTORY INPUT.jsonl OUTPUT
#include <batchllm.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <simdjson.h>

namespace {

struct Job {
    std::string text;
    std::vector<int64_t> offsets{0};
    std::vector<uint64_t> tags;
    std::vector<batchllm_params> params;
    std::vector<std::string> schemas; // of each row; "": none
};

Job read_job(const char *path) {
    Job job;
    simdjson::dom::parser parser;
    simdjson::dom::document_stream lines = parser.load_many(path, 1 << 20);
    for (simdjson::dom::element line : lines) {
        job.text += std::string_view(line["prompt"]);
        job.offsets.push_back(static_cast<int64_t>(job.text.size()));
        job.tags.push_back(uint64_t(line["id"]));
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = static_cast<int32_t>(int64_t(line["max_tokens"]));
        double temperature = 0;
        if (line["temperature"].get(temperature) == simdjson::SUCCESS) {
            params.temperature = static_cast<float>(temperature);
            params.seed = static_cast<uint64_t>(int64_t(line["seed"]));
        }
        job.params.push_back(params);
        simdjson::dom::element schema;
        const bool structured = line["json_schema"].get(schema) == simdjson::SUCCESS;
        job.schemas.push_back(structured ? simdjson::minify(schema) : "");
    }
    return job;
}

// Makes a constraint for each distinct schema and sets it for its rows.
int32_t constrain(batchllm_engine *engine, Job *job,
                  std::map<std::string, batchllm_constraint *> *made) {
    for (size_t i = 0; i < job->params.size(); ++i) {
        if (job->schemas[i].empty()) continue;
        batchllm_constraint *&constraint = (*made)[job->schemas[i]];
        batchllm_constraint_options options;
        batchllm_constraint_options_init(&options, sizeof options);
        options.kind = BATCHLLM_CONSTRAINT_JSON_SCHEMA;
        options.text = job->schemas[i].c_str();
        int32_t status = BATCHLLM_OK;
        if (constraint == nullptr) {
            status = batchllm_constraint_create(engine, &options, &constraint);
        }
        if (status != BATCHLLM_OK) return status;
        job->params[i].constraint = constraint;
    }
    return BATCHLLM_OK;
}

int32_t run(const char *model, Job job, batchllm_results **results) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model;
    const int64_t n = static_cast<int64_t>(job.params.size());
    batchllm_engine *engine = nullptr;
    int32_t status = batchllm_engine_create(&options, &engine);
    std::map<std::string, batchllm_constraint *> constraints;
    if (status == BATCHLLM_OK) status = constrain(engine, &job, &constraints);
    if (status == BATCHLLM_OK) {
        status = batchllm_add_text(engine, n, job.text.data(), job.offsets.data(), job.tags.data(),
                                   job.params.data(), n);
    }
    for (const auto &[schema, constraint] : constraints) batchllm_constraint_destroy(constraint);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, nullptr, nullptr);
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, results);
    batchllm_engine_destroy(engine);
    return status;
}

bool write_tokens(const batchllm_results &results, const char *path) {
    std::vector<int64_t> result_of(static_cast<size_t>(results.count));
    for (int64_t i = 0; i < results.count; ++i) result_of[results.tags[i] - 1] = i;
    std::FILE *out = std::fopen(path, "w");
    if (out == nullptr) return false;
    for (const int64_t i : result_of) {
        for (int64_t j = results.token_offsets[i]; j < results.token_offsets[i + 1]; ++j) {
            std::fprintf(out, j == results.token_offsets[i] ? "%d" : " %d", results.tokens[j]);
        }
        std::fputc('\n', out);
    }
    return std::fclose(out) == 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    batchllm_results *results = nullptr;
    const int32_t status = run(argv[1], read_job(argv[2]), &results);
    if (status != BATCHLLM_OK) std::fprintf(stderr, "%s\n", batchllm_last_error());
    const bool written = results != nullptr && write_tokens(*results, argv[3]);
    batchllm_results_free(results);
    return written ? 0 : 1;
}
