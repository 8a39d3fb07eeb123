// GoldenPictures models that read pictures (tests/golden/*/pictures.json, scripts/golden_pictures.py), as the tests of backends run them:
// towers alone, and greedy tokens of rows with pictures.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <simdjson.h>

#include "backend/backend.h"
#include "cpu_rows.h"
#include "golden_json.h"
#include "image/rope_positions.h"
#include "model/safetensors.h"
#include "model/tower.h"

// Last: cmocka has macros with everyday names.
#include "testing.h"

namespace batchllm::testing {

// In the tests' rows token `i` of picture `n` is this plus n * kIdsOfPicture + i: as the engine does, equal tokens are equal
// pictures.
constexpr int32_t kFirstPicture = 1 << 30;
constexpr int32_t kIdsOfPicture = 1 << 12;

struct PictureRow {
    std::vector<int32_t> tokens;
    std::vector<double> margins;
    std::vector<PicturePlace> places;
    std::vector<std::vector<int32_t>> rope; // [3][prompt], or empty
};

struct GoldenPictures {
    std::string name;
    std::unique_ptr<Model> model;
    std::vector<std::shared_ptr<const PreparedPicture>> pictures;
    std::vector<Row> rows; // output empty
    std::vector<PictureRow> expected;
    std::map<std::string, std::vector<float>> outputs; // "output.0", "deepstack.0.1"
};

inline std::map<std::string, std::vector<float>> read_floats(const std::string &path) {
    auto file = MappedFile::open(path);
    assert_true(file.ok());
    const auto tensors = parse_safetensors(file->bytes(), path);
    assert_true(tensors.ok());
    std::map<std::string, std::vector<float>> floats;
    for (const StoredTensor &tensor : *tensors) {
        std::vector<float> &to = floats[tensor.name];
        to.resize(static_cast<size_t>(tensor.bytes) / sizeof(float));
        std::memcpy(to.data(), file->bytes().data() + tensor.offset,
                    static_cast<size_t>(tensor.bytes));
    }
    return floats;
}

inline std::vector<std::string> models_with_pictures() {
    std::vector<std::string> names = golden_models("pictures.json");
    assert_true(!names.empty());
    return names;
}

inline GoldenPictures load_golden(const std::string &name) {
    GoldenPictures golden;
    golden.name = name;
    const std::string directory = "golden/" + name;
    auto model = load_model(directory);
    if (!model.ok()) fail_msg("%s", model.status().message().c_str());
    golden.model = std::move(model).value();
    if (golden.model->tower == nullptr) fail_msg("%s", golden.model->no_tower.c_str());
    golden.outputs = read_floats(directory + "/pictures.safetensors");
    simdjson::dom::parser parser;
    simdjson::dom::element file = parser.load(directory + "/pictures.json");
    for (simdjson::dom::element entry : file["pictures"].get_array()) {
        auto picture = std::make_shared<PreparedPicture>();
        const std::vector<int32_t> grid = read_ints(entry["grid"]);
        picture->grid = {grid[0], grid[1], static_cast<int32_t>(int64_t(entry["merge"])),
                         static_cast<int32_t>(int64_t(entry["tokens"]))};
        const std::string patches = "patches." + std::to_string(golden.pictures.size());
        picture->patches = golden.outputs.at(patches);
        golden.outputs.erase(patches);
        golden.pictures.push_back(std::move(picture));
    }
    for (simdjson::dom::element entry : file["rows"].get_array()) {
        PictureRow &expected = golden.expected.emplace_back();
        expected.tokens = read_ints(entry["tokens"]);
        expected.margins = read_doubles(entry["margins"]);
        simdjson::dom::element rope;
        if (entry["rope"].get(rope) == simdjson::SUCCESS) {
            for (simdjson::dom::element axis : rope.get_array()) {
                expected.rope.push_back(read_ints(axis));
            }
        }
        Row row{read_ints(entry["prompt"]),
                static_cast<int32_t>(int64_t(file["new_tokens"])),
                {},
                read_ints(file["eos_tokens"]),
                false};
        auto place = row.prompt.begin();
        for (const int32_t number : read_ints(entry["pictures"])) {
            const PictureGrid &grid = golden.pictures[static_cast<size_t>(number)]->grid;
            place = std::find(place, row.prompt.end(), golden.model->picture_token);
            expected.places.push_back({static_cast<int32_t>(place - row.prompt.begin()), grid});
            // Some families have other tokens between the rows of a picture.
            for (int32_t i = 0; i < grid.tokens; ++place) {
                if (*place != golden.model->picture_token) continue;
                *place = kFirstPicture + number * kIdsOfPicture + i++;
            }
        }
        golden.rows.push_back(std::move(row));
    }
    return golden;
}

inline int32_t slot_of(int32_t picture) { return 3 * picture + 1; }

// Puts what backends are told of pictures in place of the ids that rows have.
inline void place_pictures(const GoldenPictures &golden, const std::vector<int32_t> &rows_of_nodes,
                           TokenBatch *batch) {
    const bool ropes = !golden.expected[0].rope.empty();
    if (ropes) batch->rope_positions.resize(batch->tokens.size());
    for (size_t n = 0; n < batch->nodes.size(); ++n) {
        const ContextNode &node = batch->nodes[n];
        const PictureRow &row = golden.expected[static_cast<size_t>(rows_of_nodes[n])];
        const RopePositions rope(row.places);
        int32_t before = -1;
        for (int32_t t = node.token_begin; t < node.token_begin + node.token_count; ++t) {
            const int32_t position = batch->positions[static_cast<size_t>(t)];
            if (ropes) batch->rope_positions[static_cast<size_t>(t)] = rope.at(position);
            int32_t &token = batch->tokens[static_cast<size_t>(t)];
            const int32_t id = token;
            if (id >= kFirstPicture) {
                const int32_t place = id - kFirstPicture;
                if (id != before + 1 || place % kIdsOfPicture == 0) {
                    batch->pictures.push_back(
                        {t, 0, slot_of(place / kIdsOfPicture), place % kIdsOfPicture});
                }
                ++batch->pictures.back().token_count;
                token = golden.model->picture_token;
            }
            before = id;
        }
    }
}

inline std::vector<PictureLoad> all_pictures(const GoldenPictures &golden) {
    std::vector<PictureLoad> loads;
    for (size_t i = 0; i < golden.pictures.size(); ++i) {
        loads.push_back({slot_of(static_cast<int32_t>(i)), golden.pictures[i]});
    }
    return loads;
}

// Runs all rows on a backend that has no pictures yet.
inline void run_rows(GoldenPictures *golden, Backend *backend, bool sharing, int64_t step_tokens) {
    const BackendInfo &info = backend->info();
    assert_true(info.picture_slots > slot_of(3));
    assert_true(info.picture_tokens > 100);
    Status status = backend->load_pictures(all_pictures(*golden));
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    RowScheduler scheduler(&golden->rows, sharing, info.page_tokens, info.pages, step_tokens,
                           golden->model->kv_groups.size());
    if (golden->model->pictures_see_themselves) scheduler.keep_whole(kFirstPicture);
    TokenBatch batch;
    BatchOutput output;
    std::vector<int32_t> logits_rows, tokens;
    while (scheduler.next(&batch, &logits_rows)) {
        place_pictures(*golden, scheduler.rows_of_nodes(), &batch);
        status = backend->run(batch, &output);
        if (!status.ok()) fail_msg("%s: %s", golden->name.c_str(), status.message().c_str());
        tokens.clear();
        for (const SampleOutput &sample : output.samples) {
            assert_true(sample.finite);
            tokens.push_back(sample.token);
        }
        scheduler.finish(logits_rows, tokens);
    }
}

// Up to where the reference's own choice was closer than the margin, the tokens equal its.
inline void compare(const GoldenPictures &golden, double margin, int64_t *equal, int64_t *all) {
    for (size_t r = 0; r < golden.rows.size(); ++r) {
        const PictureRow &expected = golden.expected[r];
        const std::vector<int32_t> &made = golden.rows[r].output;
        assert_true(golden.rows[r].done);
        *all += static_cast<int64_t>(expected.tokens.size());
        for (size_t i = 0; i < expected.tokens.size(); ++i) {
            if (i < made.size() && made[i] == expected.tokens[i]) {
                ++*equal;
                continue;
            }
            if (expected.margins[i] < margin) break;
            fail_msg("%s: row %zu, token %zu: %d, not %d (margin %g)", golden.name.c_str(), r, i,
                     i < made.size() ? made[i] : -1, expected.tokens[i], expected.margins[i]);
        }
    }
}

// All models' rows in one way of running, which has sharing, step_tokens and compute_type; margin: as compare() has it, share:
// of tokens that must be equal. make_backend(golden, run): a new one.
template <typename Run, typename MakeBackend>
void check_rows(const Run &run, const MakeBackend &make_backend, double margin, double share) {
    int64_t equal = 0, all = 0;
    for (const std::string &name : models_with_pictures()) {
        GoldenPictures golden = load_golden(name);
        const auto backend = make_backend(golden, run);
        run_rows(&golden, backend.get(), run.sharing, run.step_tokens);
        // Rounding changes a logit of a small model with delta nets by more than its margins, transformers' as well.
        const bool rounded = run.compute_type != "f32" && golden.model->state_size() > 0;
        const int64_t before = equal, all_before = all;
        compare(golden, rounded ? HUGE_VAL : margin, &equal, &all);
        std::printf("%s: %lld of %lld; ", name.c_str(), static_cast<long long>(equal - before),
                    static_cast<long long>(all - all_before));
    }
    std::printf("%lld of %lld tokens equal the reference's\n", static_cast<long long>(equal),
                static_cast<long long>(all));
    assert_true(all > 0);
    assert_true(static_cast<double>(equal) >= share * static_cast<double>(all));
}

// [parts] of a picture's outputs, as the golden file names them.
inline std::string output_name(size_t picture, int64_t part) {
    if (part == 0) return "output." + std::to_string(picture);
    return "deepstack." + std::to_string(picture) + "." + std::to_string(part - 1);
}

// The most that an output of a picture differs from the reference's, and the root of the mean square of both.
struct Difference {
    double most = 0, squares = 0, reference = 0;
    double relative() const { return std::sqrt(squares / reference); }
    void add(double made, double expected) {
        const double apart = std::fabs(made - expected);
        most = std::max(most, std::isnan(apart) ? HUGE_VAL : apart);
        squares += apart * apart;
        reference += expected * expected;
    }
};

} // namespace batchllm::testing
