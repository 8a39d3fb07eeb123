// A job of rows with pictures, of random weights: rows a second, and how long steps wait for pictures to be prepared.
//
//     vision page.jpg                             240 pages of their own, a question about each
//     vision --rows 500 --questions 8 page.jpg    eight questions about each of 500 pages
//     vision --rows 500 --questions 8 --own 1 page.jpg        the same questions about pages of their own
//
// The files (JPEG, PNG, WebP) take turns; a few bytes behind a file's end make each row's another picture. Run it in the
// repository's root: the tokenizer and how pictures are prepared are those of tests/image/processors/qwen3_vl (--files).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "batchllm.h"
#include "clock.h"
#include "throughput_models.h"

using namespace batchllm;

namespace {

struct Job {
    std::map<std::string, std::string> options = {{"--backend", "cuda"},
                                                  {"--devices", "0"},
                                                  {"--files", "tests/image/processors/qwen3_vl"},
                                                  {"--kv-gib", "0"},
                                                  {"--max-requests", "0"},
                                                  {"--model", "Qwen3-VL-8B"},
                                                  {"--option", ""},
                                                  {"--own", "0"},
                                                  {"--questions", "1"},
                                                  {"--rows", "240"},
                                                  {"--step-tokens", "0"},
                                                  {"--threads", "0"},
                                                  {"--tokens", "128"}};
    std::vector<std::string> pictures; // bytes of files

    const std::string &text(const char *name) const { return options.at(name); }
    int64_t number(const char *name) const { return std::stoll(options.at(name)); }
};

Status of_api(int32_t status) {
    return status == BATCHLLM_OK ? Status() : Status(status, batchllm_last_error());
}

struct Rows {
    std::string text, bytes;
    std::vector<int64_t> text_offsets = {0}, rows = {0}, offsets = {0};
    int64_t count() const { return static_cast<int64_t>(rows.size()) - 1; }
};

// Of `pages` pages; first: the number of the first, so that another call's are others.
Rows make_rows(const Job &job, int64_t pages, int64_t first) {
    Rows made;
    const int64_t questions = job.number("--questions");
    const bool own = job.number("--own") != 0;
    for (int64_t row = 0; row < pages * questions; ++row) {
        const int64_t page = first + (own ? row : row / questions);
        made.text += "<|vision_start|><|image_pad|><|vision_end|>\n";
        for (int64_t i = 0, digits = first + row; i < 24; ++i, digits /= 3) {
            made.text += "abc"[digits % 3]; // a token each
        }
        made.text_offsets.push_back(static_cast<int64_t>(made.text.size()));
        made.bytes += job.pictures[static_cast<size_t>(page) % job.pictures.size()];
        made.bytes.append(reinterpret_cast<const char *>(&page), sizeof page);
        made.offsets.push_back(static_cast<int64_t>(made.bytes.size()));
        made.rows.push_back(row + 1);
    }
    return made;
}

Status add(const Job &job, const Rows &rows, batchllm_engine *engine) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = static_cast<int32_t>(job.number("--tokens"));
    params.ignore_eos = 1;
    params.add_special = 0;
    batchllm_picture_column column{};
    column.struct_size = sizeof column;
    column.rows = rows.rows.data();
    column.bytes = reinterpret_cast<const uint8_t *>(rows.bytes.data());
    column.offsets = rows.offsets.data();
    return of_api(batchllm_add_pictures(engine, rows.count(), rows.text.data(),
                                        rows.text_offsets.data(), &column, nullptr, &params, 1));
}

Status run(const Job &job, const std::string &directory) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    const bool cuda = job.text("--backend") == "cuda";
    const std::string extra = (cuda ? "random_weights=1," : "") + job.text("--option");
    const std::string given =
        extra.empty() || extra.back() != ',' ? extra : extra.substr(0, extra.size() - 1);
    options.model_dir = directory.c_str();
    options.backend = job.text("--backend").c_str();
    options.devices = cuda ? job.text("--devices").c_str() : nullptr;
    options.backend_options = given.c_str();
    options.step_tokens = job.number("--step-tokens");
    options.max_requests = job.number("--max-requests");
    options.threads = static_cast<int32_t>(job.number("--threads"));
    options.kv_memory_bytes = job.number("--kv-gib") << 30;
    batchllm_engine *engine = nullptr;
    RETURN_IF_ERROR(of_api(batchllm_engine_create(&options, &engine)));
    const int64_t pages = job.number("--rows");
    int64_t first = 0;
    // A first round with some rows, because algorithms for each shape are searched at its first use.
    for (const int64_t count : {std::min<int64_t>(pages, 32), pages}) {
        const Rows rows = make_rows(job, count, first);
        first += rows.count();
        const auto begin = Clock::now();
        RETURN_IF_ERROR(add(job, rows, engine));
        const double added = seconds_since(begin);
        batchllm_stats before{}, after{};
        before.struct_size = after.struct_size = sizeof before;
        RETURN_IF_ERROR(of_api(batchllm_engine_stats(engine, &before)));
        const auto start = Clock::now();
        RETURN_IF_ERROR(of_api(batchllm_run(engine, nullptr, nullptr)));
        const double seconds = seconds_since(start);
        RETURN_IF_ERROR(of_api(batchllm_engine_stats(engine, &after)));
        batchllm_results *results = nullptr;
        RETURN_IF_ERROR(of_api(batchllm_poll(engine, 0, &results)));
        int64_t good = 0;
        for (int64_t i = 0; i < results->count; ++i) good += results->statuses[i] == BATCHLLM_OK;
        if (good != rows.count()) {
            std::fprintf(stderr, "%s\n", std::string(results->errors, 200).c_str());
        }
        const int64_t prompt = results->count > 0 ? results->prompt_tokens[0] : 0;
        batchllm_results_free(results);
        const double device = after.backend_seconds - before.backend_seconds;
        const double waited = after.picture_wait_seconds - before.picture_wait_seconds;
        std::printf(
            "%lld rows of %lld tokens, %lld pictures computed: %.2f rows/s in %.2f s (adding "
            "them %.2f s); %lld steps, device %.2f s, prompt tokens computed %lld; prepared "
            "in %.2f s of threads, waited for it %.2f s (%.1f %%)\n",
            static_cast<long long>(good), static_cast<long long>(prompt),
            static_cast<long long>(after.picture_loads - before.picture_loads),
            static_cast<double>(good) / seconds, seconds, added,
            static_cast<long long>(after.steps - before.steps), device,
            static_cast<long long>(after.processed_prompt_tokens - before.processed_prompt_tokens),
            after.picture_prepare_seconds - before.picture_prepare_seconds, waited,
            100 * waited / seconds);
        std::fflush(stdout);
    }
    batchllm_engine_destroy(engine);
    return {};
}

Status bench(const Job &job) {
    if (job.pictures.empty()) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "name a picture");
    ASSIGN_OR_RETURN(const BenchModel model, bench_model(job.text("--model")));
    if (model.model.tower == nullptr) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "no tower: %s", model.model.no_tower.c_str());
    }
    const std::filesystem::path directory =
        std::filesystem::temp_directory_path() / "batchllm-vision";
    RETURN_IF_ERROR(write_model_directory(model, directory.string()));
    for (const char *name : {"tokenizer.json", "preprocessor_config.json"}) {
        std::filesystem::copy_file(std::filesystem::path(job.text("--files")) / name,
                                   directory / name,
                                   std::filesystem::copy_options::overwrite_existing);
    }
    const Status status = run(job, directory.string());
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    return status;
}

} // namespace

int main(int count, char **values) {
    Job job;
    for (int i = 1; i < count; ++i) {
        const auto option = job.options.find(values[i]);
        if (option != job.options.end() && i + 1 < count) {
            option->second = values[++i];
            continue;
        }
        std::ifstream file(values[i], std::ios::binary);
        if (!file) {
            std::fprintf(stderr, "%s cannot be read\n", values[i]);
            return 2;
        }
        job.pictures.emplace_back(std::istreambuf_iterator<char>(file),
                                  std::istreambuf_iterator<char>());
    }
    const Status status = bench(job);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok() ? 0 : 1;
}
