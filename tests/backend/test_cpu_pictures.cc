// Models that read pictures on the CPU: towers alone, and greedy tokens of rows with pictures, against transformers in float32
// (tests/golden/*/pictures.json, scripts/golden_pictures.py).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <simdjson.h>

#include "backend/cpu/tower.h"
#include "cpu_rows.h"
#include "golden_json.h"
#include "image/rope_positions.h"
#include "model/safetensors.h"

// Last: cmocka has macros with everyday names.
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;
using batchllm::testing::Row;
using batchllm::testing::RowScheduler;

namespace {

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

struct Golden {
    std::string name;
    std::unique_ptr<Model> model;
    std::vector<std::shared_ptr<const PreparedPicture>> pictures;
    std::vector<Row> rows; // output empty
    std::vector<PictureRow> expected;
    std::map<std::string, std::vector<float>> outputs; // "output.0", "deepstack.0.1"
};

std::map<std::string, std::vector<float>> read_floats(const std::string &path) {
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

Golden load_golden(const std::string &name) {
    Golden golden;
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

struct Run {
    bool sharing = true;
    int64_t step_tokens = 512;
    int32_t threads = 2;
    std::string compute_type = "f32";
    std::string kernels; // ""; the best
    bool reproducible = false;
};

int32_t slot_of(int32_t picture) { return 3 * picture + 1; }

// Puts what backends are told of pictures in place of the ids that rows have.
void place_pictures(const Golden &golden, const std::vector<int32_t> &rows_of_nodes,
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

std::unique_ptr<Backend> make_backend(const Golden &golden, const Run &run) {
    BackendOptions options;
    options.compute_type = run.compute_type;
    options.threads = run.threads;
    options.kv_memory_bytes = int64_t{32} << 20;
    options.step_tokens = run.step_tokens;
    options.reproducible = run.reproducible;
    if (!run.kernels.empty()) options.extra = {{"kernels", run.kernels}};
    auto backend = make_cpu_backend(*golden.model, options);
    if (!backend.ok()) fail_msg("%s", backend.status().message().c_str());
    return std::move(backend).value();
}

std::vector<PictureLoad> all_pictures(const Golden &golden) {
    std::vector<PictureLoad> loads;
    for (size_t i = 0; i < golden.pictures.size(); ++i) {
        loads.push_back({slot_of(static_cast<int32_t>(i)), golden.pictures[i]});
    }
    return loads;
}

void run_rows(Golden *golden, const Run &run) {
    const std::unique_ptr<Backend> backend = make_backend(*golden, run);
    const BackendInfo &info = backend->info();
    assert_true(info.picture_slots > slot_of(3));
    assert_true(info.picture_tokens > 1000);
    Status status = backend->load_pictures(all_pictures(*golden));
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    RowScheduler scheduler(&golden->rows, run.sharing, info.page_tokens, info.pages,
                           run.step_tokens, golden->model->kv_groups.size());
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
void compare(const Golden &golden, double margin, int64_t *equal, int64_t *all) {
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

void check_rows(const Run &run, double margin, double share) {
    int64_t equal = 0, all = 0;
    for (const std::string &name : golden_models("pictures.json")) {
        Golden golden = load_golden(name);
        run_rows(&golden, run);
        // Rounding changes a logit of a small model with delta nets by more than its margins, transformers' as well.
        const bool rounded = run.compute_type == "bf16" && golden.model->state_size() > 0;
        compare(golden, rounded ? HUGE_VAL : margin, &equal, &all);
    }
    std::printf("%lld of %lld tokens equal the reference's\n", static_cast<long long>(equal),
                static_cast<long long>(all));
    assert_true(all > 0);
    assert_true(static_cast<double>(equal) >= share * static_cast<double>(all));
}

void greedy_tokens_equal_transformers_without_sharing(void **) {
    Run run;
    run.sharing = false;
    check_rows(run, 0, 1);
}

void greedy_tokens_equal_transformers_with_sharing(void **) { check_rows({}, 0, 1); }

// Steps that end in the middle of pictures where those may be cut, and have little more than one where not.
void greedy_tokens_equal_transformers_in_small_steps(void **) {
    Run run;
    run.step_tokens = 17;
    run.threads = 1;
    check_rows(run, 0, 1);
}

void greedy_tokens_equal_transformers_with_portable_kernels(void **) {
    Run run;
    run.step_tokens = 100;
    run.kernels = "portable";
    check_rows(run, 0, 1);
}

void greedy_tokens_equal_transformers_if_reproducible(void **) {
    Run run;
    run.step_tokens = 50;
    run.reproducible = true;
    check_rows(run, 0, 1);
}

void bf16_tokens_equal_transformers_but_for_close_calls(void **) {
    if (best_isa(DType::bf16) == Isa::portable) skip();
    Run run;
    run.compute_type = "bf16";
    check_rows(run, 0.6, 0.5);
}

// [parts] of a picture's outputs, as the golden file names them.
std::string output_name(size_t picture, int64_t part) {
    if (part == 0) return "output." + std::to_string(picture);
    return "deepstack." + std::to_string(picture) + "." + std::to_string(part - 1);
}

// The most that an output of a picture differs from the reference's, and the root of the mean square of both.
struct Difference {
    double most = 0, squares = 0, reference = 0;
    double relative() const { return std::sqrt(squares / reference); }
};

Difference difference(const Golden &golden, const CpuTower &tower, size_t picture) {
    Difference found;
    for (int64_t part = 0; part < tower.parts(); ++part) {
        const std::vector<float> &expected = golden.outputs.at(output_name(picture, part));
        const auto hidden = static_cast<size_t>(golden.model->hidden);
        const auto slot = slot_of(static_cast<int32_t>(picture));
        assert_int_equal(expected.size(), static_cast<size_t>(tower.tokens(slot)) * hidden);
        for (size_t i = 0; i < expected.size(); ++i) {
            const float made =
                tower.output(slot, part, static_cast<int32_t>(i / hidden))[i % hidden];
            const double apart = std::fabs(static_cast<double>(made) - expected[i]);
            found.most = std::max(found.most, std::isnan(apart) ? HUGE_VAL : apart);
            found.squares += apart * apart;
            found.reference += static_cast<double>(expected[i]) * expected[i];
        }
    }
    return found;
}

void outputs_of_towers_equal_transformers(void **) {
    ThreadPool pool(2);
    for (const std::string &name : golden_models("pictures.json")) {
        const Golden golden = load_golden(name);
        for (const Isa isa : kAllIsas) {
            const Kernels *kernels = kernels_for(isa, DType::f32);
            if (kernels == nullptr || !isa_runs_here(isa)) continue;
            CpuTower tower(*golden.model, *kernels, &pool, slot_of(4), false);
            assert_true(tower.load(all_pictures(golden)).ok());
            for (size_t i = 0; i < golden.pictures.size(); ++i) {
                const double most = difference(golden, tower, i).most;
                if (!(most <= 1e-4)) fail_msg("%s: picture %zu: %g apart", name.c_str(), i, most);
            }
        }
    }
}

void outputs_of_towers_in_bf16_are_close(void **) {
    const Kernels *kernels = kernels_for(best_isa(DType::bf16), DType::bf16);
    if (best_isa(DType::bf16) == Isa::portable) skip();
    ThreadPool pool(2);
    for (const std::string &name : golden_models("pictures.json")) {
        const Golden golden = load_golden(name);
        CpuTower tower(*golden.model, *kernels, &pool, slot_of(4), false);
        assert_true(tower.load(all_pictures(golden)).ok());
        for (size_t i = 0; i < golden.pictures.size(); ++i) {
            const double relative = difference(golden, tower, i).relative();
            if (!(relative <= 0.03)) {
                fail_msg("%s: picture %zu: %g apart", name.c_str(), i, relative);
            }
        }
    }
}

std::vector<float> values_of(const Golden &golden, const CpuTower &tower, size_t picture) {
    const auto slot = slot_of(static_cast<int32_t>(picture));
    const float *first = tower.output(slot, 0, 0);
    return {first, first + tower.parts() * tower.tokens(slot) * golden.model->hidden};
}

// Alone, last of several, in another slot's place: the same bits.
void outputs_are_the_same_whatever_is_loaded_with_them(void **) {
    ThreadPool pool(2);
    for (const std::string &name : golden_models("pictures.json")) {
        const Golden golden = load_golden(name);
        const Kernels &kernels = *kernels_for(best_isa(DType::f32), DType::f32);
        CpuTower together(*golden.model, kernels, &pool, slot_of(4), true);
        assert_true(together.load(all_pictures(golden)).ok());
        ThreadPool one(1);
        CpuTower alone(*golden.model, kernels, &one, slot_of(4), true);
        for (size_t i = golden.pictures.size(); i-- > 0;) {
            const PictureLoad load{slot_of(static_cast<int32_t>(i)), golden.pictures[i]};
            assert_true(alone.load({&load, 1}).ok());
            const std::vector<float> a = values_of(golden, together, i);
            const std::vector<float> b = values_of(golden, alone, i);
            assert_memory_equal(a.data(), b.data(), a.size() * sizeof(float));
        }
        alone.unload(slot_of(0));
        assert_int_equal(alone.tokens(slot_of(0)), 0);
    }
}

void positions_of_ropes_equal_transformers(void **) {
    size_t compared = 0;
    for (const std::string &name : golden_models("pictures.json")) {
        const Golden golden = load_golden(name);
        for (size_t r = 0; r < golden.rows.size(); ++r) {
            const PictureRow &row = golden.expected[r];
            if (row.rope.empty()) continue;
            const RopePositions rope(row.places);
            for (size_t i = 0; i < golden.rows[r].prompt.size(); ++i) {
                const RopePosition at = rope.at(static_cast<int32_t>(i));
                assert_int_equal(at.time, row.rope[0][i]);
                assert_int_equal(at.row, row.rope[1][i]);
                assert_int_equal(at.column, row.rope[2][i]);
                ++compared;
            }
        }
    }
    assert_true(compared > 0);
}

void pictures_that_do_not_fit_the_model_are_refused(void **) {
    const Golden golden = load_golden("qwen3_vl_pictures");
    const std::unique_ptr<Backend> backend = make_backend(golden, {});
    const auto refused = [&](int32_t slot, auto change) {
        auto picture = std::make_shared<PreparedPicture>(*golden.pictures[0]);
        change(*picture);
        const PictureLoad load{slot, picture};
        assert_int_equal(backend->load_pictures({&load, 1}).code(), BATCHLLM_ERROR_INTERNAL);
    };
    refused(-1, [](PreparedPicture &) {});
    refused(backend->info().picture_slots, [](PreparedPicture &) {});
    refused(0, [](PreparedPicture &picture) { picture.patches.pop_back(); });
    refused(0, [](PreparedPicture &picture) { picture.grid.tokens += 1; });
    refused(0, [](PreparedPicture &picture) { picture.grid.rows = 0; });
    refused(0, [](PreparedPicture &picture) { // rows that no token covers
        picture.grid.rows = 1;
        picture.grid.columns *= 4;
    });
}

// A batch of one row's first tokens, which are all a picture's.
void tokens_that_no_picture_has_are_refused(void **) {
    const Golden golden = load_golden("qwen3_vl_pictures");
    const std::unique_ptr<Backend> backend = make_backend(golden, {});
    const PictureLoad load{2, golden.pictures[0]};
    assert_true(backend->load_pictures({&load, 1}).ok());
    const auto run = [&](PictureTokens part, int32_t slot_to_unload = -1) {
        if (slot_to_unload >= 0) backend->unload_picture(slot_to_unload);
        TokenBatch batch;
        batch.tokens.assign(4, golden.model->picture_token);
        batch.positions = {0, 1, 2, 3};
        batch.nodes = {{-1, 0, 4, 0, 4, false}};
        batch.pages = {{{0}, {{0, 0}}}};
        batch.pictures = {part};
        BatchOutput output;
        return backend->run(batch, &output).code();
    };
    assert_int_equal(run({0, 4, 2, 0}), BATCHLLM_OK);
    assert_int_equal(run({0, 4, 2, 1}), BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(run({0, 4, 3, 0}), BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(run({0, 4, -1, 0}), BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(run({1, 4, 2, 0}), BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(run({0, 4, 2, -1}), BATCHLLM_ERROR_INTERNAL);
    assert_int_equal(run({0, 4, 2, 0}, 2), BATCHLLM_ERROR_INTERNAL);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(outputs_of_towers_equal_transformers),
        cmocka_unit_test(outputs_of_towers_in_bf16_are_close),
        cmocka_unit_test(outputs_are_the_same_whatever_is_loaded_with_them),
        cmocka_unit_test(positions_of_ropes_equal_transformers),
        cmocka_unit_test(greedy_tokens_equal_transformers_without_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_with_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_in_small_steps),
        cmocka_unit_test(greedy_tokens_equal_transformers_with_portable_kernels),
        cmocka_unit_test(greedy_tokens_equal_transformers_if_reproducible),
        cmocka_unit_test(bf16_tokens_equal_transformers_but_for_close_calls),
        cmocka_unit_test(pictures_that_do_not_fit_the_model_are_refused),
        cmocka_unit_test(tokens_that_no_picture_has_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
