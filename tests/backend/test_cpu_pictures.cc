// Models that read pictures on the CPU: towers alone, and greedy tokens of rows with pictures, against transformers in float32
// (tests/golden/*/pictures.json, scripts/golden_pictures.py).
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/tower.h"
#include "golden_pictures.h"

using namespace batchllm;
using namespace batchllm::cpu;
using namespace batchllm::testing;

namespace {

struct Run {
    bool sharing = true;
    int64_t step_tokens = 512;
    int32_t threads = 2;
    std::string compute_type = "f32";
    std::string kernels; // ""; the best
    bool reproducible = false;
};

std::unique_ptr<Backend> make_backend(const GoldenPictures &golden, const Run &run) {
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

void check_rows(const Run &run, double margin, double share) {
    testing::check_rows(run, make_backend, margin, share);
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

Difference difference(const GoldenPictures &golden, const CpuTower &tower, size_t picture) {
    Difference found;
    for (int64_t part = 0; part < tower.parts(); ++part) {
        const std::vector<float> &expected = golden.outputs.at(output_name(picture, part));
        const auto hidden = static_cast<size_t>(golden.model->hidden);
        const auto slot = slot_of(static_cast<int32_t>(picture));
        assert_int_equal(expected.size(), static_cast<size_t>(tower.tokens(slot)) * hidden);
        for (size_t i = 0; i < expected.size(); ++i) {
            const float made =
                tower.output(slot, part, static_cast<int32_t>(i / hidden))[i % hidden];
            found.add(made, expected[i]);
        }
    }
    return found;
}

void outputs_of_towers_equal_transformers(void **) {
    ThreadPool pool(2);
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
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
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
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

std::vector<float> values_of(const GoldenPictures &golden, const CpuTower &tower, size_t picture) {
    const auto slot = slot_of(static_cast<int32_t>(picture));
    const float *first = tower.output(slot, 0, 0);
    return {first, first + tower.parts() * tower.tokens(slot) * golden.model->hidden};
}

// Alone, last of several, in another slot's place: the same bits.
void outputs_are_the_same_whatever_is_loaded_with_them(void **) {
    ThreadPool pool(2);
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
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
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
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
    const GoldenPictures golden = load_golden("qwen3_vl_pictures");
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
    const GoldenPictures golden = load_golden("qwen3_vl_pictures");
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
