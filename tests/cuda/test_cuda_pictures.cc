// Models that read pictures on the GPU: attention of towers against sums in float64; towers alone, and greedy tokens of rows with
// pictures, against transformers in float32 (tests/golden/*/pictures.json). The arguments: the family of attention
// kernels, and a pattern of tests' names.
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_backend.h"
#include "tower/attention.h"

// Last: these include cmocka.
#include "golden_pictures.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;
using namespace batchllm::testing;

namespace {

std::string family = "auto";

struct Run {
    bool sharing = true;
    int64_t step_tokens = 512;
    std::string compute_type = "f32";
    bool reproducible = false;
    std::string extra_key = "overlap", extra_value = "1";
};

std::unique_ptr<CudaBackend> make_backend(const GoldenPictures &golden, const Run &run) {
    BackendOptions options;
    options.compute_type = run.compute_type;
    options.threads = 2;
    options.kv_memory_bytes = int64_t{64} << 20;
    options.step_tokens = run.step_tokens;
    options.reproducible = run.reproducible;
    options.extra = {{"tuning", "0"},
                     {"tuning_cache", "none"},
                     {"attention", family},
                     {run.extra_key, run.extra_value}};
    auto backend = CudaBackend::create(*golden.model, options);
    if (!backend.ok()) fail_msg("%s: %s", golden.name.c_str(), backend.status().message().c_str());
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

void greedy_tokens_equal_transformers_in_small_steps(void **) {
    Run run;
    run.step_tokens = 17;
    check_rows(run, 0, 1);
}

void greedy_tokens_equal_transformers_if_reproducible(void **) {
    Run run;
    run.step_tokens = 50;
    run.reproducible = true;
    check_rows(run, 0, 1);
}

void tokens_in_16_bits_equal_transformers_but_for_close_calls(void **) {
    Run run;
    for (const char *type : {"bf16", "f16"}) {
        run.compute_type = type;
        check_rows(run, 0.6, 0.5);
        run.step_tokens = 17;
        run.sharing = false;
        check_rows(run, 0.6, 0.5);
    }
    run.compute_type = "bf16";
    run.extra_key = "kv_type";
    run.extra_value = "fp8";
    check_rows(run, 1.2, 0.35);
    run.extra_key = "residual";
    run.extra_value = "f32";
    check_rows(run, 0.6, 0.5);
}

void tokens_in_bf16_equal_transformers_if_reproducible(void **) {
    Run run;
    run.compute_type = "bf16";
    run.reproducible = true;
    check_rows(run, 0.6, 0.5);
}

// A picture's outputs, [parts][tokens][hidden].
std::vector<float> values_of(const GoldenPictures &golden, CudaBackend *backend, size_t picture) {
    check(cudaDeviceSynchronize());
    const StepPictures &pictures = backend->step().parts().pictures;
    const PictureOutputs &outputs = pictures.outputs();
    const int32_t tokens = golden.pictures[picture]->grid.tokens;
    const auto hidden = static_cast<size_t>(outputs.hidden);
    const auto bytes = static_cast<size_t>(dtype_bytes(outputs.type));
    std::vector<float> all;
    std::vector<std::byte> row(hidden * bytes);
    for (int64_t part = 0; part < outputs.parts; ++part) {
        for (int32_t t = 0; t < tokens; ++t) {
            const int64_t place = pictures.place(slot_of(static_cast<int32_t>(picture)), t);
            const auto at = static_cast<size_t>(place * outputs.parts + part) * hidden * bytes;
            check(cudaMemcpy(row.data(), static_cast<std::byte *>(outputs.data) + at, row.size(),
                             cudaMemcpyDeviceToHost));
            Tensor stored;
            stored.dtype = outputs.type;
            stored.data = row.data();
            stored.rows = 1;
            stored.columns = outputs.hidden;
            all.resize(all.size() + hidden);
            read_rows(stored, 0, 1, DType::f32, all.data() + all.size() - hidden);
        }
    }
    return all;
}

Difference difference(const GoldenPictures &golden, CudaBackend *backend, size_t picture) {
    const std::vector<float> made = values_of(golden, backend, picture);
    Difference found;
    size_t at = 0;
    for (int64_t part = 0; part < golden.model->tower->parts(); ++part) {
        for (const float expected : golden.outputs.at(output_name(picture, part))) {
            assert_true(at < made.size());
            found.add(made[at++], expected);
        }
    }
    assert_int_equal(at, made.size());
    return found;
}

void outputs_of_towers_equal_transformers(void **) {
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
        for (const auto &[type, residual] :
             {std::pair("f32", "f32"), {"f16", "f32"}, {"bf16", "element"}, {"bf16", "f32"}}) {
            Run run;
            run.compute_type = type;
            run.extra_key = "residual";
            run.extra_value = residual;
            const std::unique_ptr<CudaBackend> backend = make_backend(golden, run);
            const Status status = backend->load_pictures(all_pictures(golden));
            if (!status.ok()) fail_msg("%s: %s", name.c_str(), status.message().c_str());
            double most = 0, relative = 0;
            for (size_t i = 0; i < golden.pictures.size(); ++i) {
                const Difference found = difference(golden, backend.get(), i);
                most = std::max(most, found.most);
                relative = std::max(relative, found.relative());
            }
            std::printf("%s, %s, residual %s: outputs at most %.2g apart, %.2g of their size\n",
                        name.c_str(), type, residual, most, relative);
            assert_true(type == std::string("f32") ? most <= 1e-4 : relative <= 0.03);
        }
    }
}

// Alone, last of several, in another slot's place: the same bits.
void outputs_are_the_same_whatever_is_loaded_with_them(void **) {
    for (const std::string &name : models_with_pictures()) {
        const GoldenPictures golden = load_golden(name);
        for (const char *type : {"f32", "bf16"}) {
            Run run;
            run.compute_type = type;
            run.reproducible = true;
            const std::unique_ptr<CudaBackend> together = make_backend(golden, run);
            const std::unique_ptr<CudaBackend> alone = make_backend(golden, run);
            assert_true(together->load_pictures(all_pictures(golden)).ok());
            for (size_t i = golden.pictures.size(); i-- > 0;) {
                const PictureLoad load{slot_of(static_cast<int32_t>(i)), golden.pictures[i]};
                assert_true(alone->load_pictures({&load, 1}).ok());
                const std::vector<float> a = values_of(golden, together.get(), i);
                const std::vector<float> b = values_of(golden, alone.get(), i);
                assert_int_equal(a.size(), b.size());
                assert_memory_equal(a.data(), b.data(), a.size() * sizeof(float));
            }
        }
    }
}

// Many times as many as there is room for, in slots that are used again, in several packs.
void places_of_pictures_are_used_again(void **) {
    const GoldenPictures golden = load_golden("qwen3_vl_pictures");
    const std::unique_ptr<CudaBackend> backend = make_backend(golden, {});
    std::vector<std::vector<float>> expected;
    assert_true(backend->load_pictures(all_pictures(golden)).ok());
    for (size_t i = 0; i < golden.pictures.size(); ++i) {
        expected.push_back(values_of(golden, backend.get(), i));
    }
    const int64_t room = backend->info().picture_tokens;
    for (int64_t loaded = 0; loaded < 2 * room;) {
        std::vector<PictureLoad> loads = all_pictures(golden);
        for (int32_t slot = slot_of(4); slot < 1000; ++slot) {
            loads.push_back({slot, golden.pictures[static_cast<size_t>(slot) % 4]});
        }
        assert_true(backend->load_pictures(loads).ok());
        for (const PictureLoad &load : loads) loaded += load.picture->grid.tokens;
        for (size_t i = 0; i < golden.pictures.size(); ++i) {
            const std::vector<float> made = values_of(golden, backend.get(), i);
            assert_int_equal(made.size(), expected[i].size());
            for (size_t v = 0; v < made.size(); ++v) {
                assert_true(std::fabs(made[v] - expected[i][v]) <= 1e-4F);
            }
        }
        for (const PictureLoad &load : loads) backend->unload_picture(load.slot);
    }
}

// 130 x 130 patches are more than a pack has. In 16 bits other kernels attend.
void a_picture_larger_than_a_pack_is_computed_as_any_other(void **) {
    GoldenPictures golden = load_golden("qwen3_vl_pictures");
    Random random(kSeed);
    auto large = std::make_shared<PreparedPicture>();
    large->grid = golden.pictures[0]->grid;
    large->grid.rows = large->grid.columns = 130;
    large->grid.tokens = 65 * 65;
    large->patches = normal(random, 130 * 130 * golden.model->tower->values(), DType::f32);
    golden.pictures.insert(golden.pictures.begin() + 1, large);
    const auto outputs = [&](const char *type, const char *residual) {
        Run run;
        run.compute_type = type;
        run.extra_key = "residual";
        run.extra_value = residual;
        const std::unique_ptr<CudaBackend> backend = make_backend(golden, run);
        assert_true(backend->info().picture_patches >= 130 * 130);
        const Status status = backend->load_pictures(all_pictures(golden));
        if (!status.ok()) fail_msg("%s", status.message().c_str());
        std::vector<std::vector<float>> all;
        for (size_t i = 0; i < golden.pictures.size(); ++i) {
            all.push_back(values_of(golden, backend.get(), i));
        }
        return all;
    };
    const std::vector<std::vector<float>> wide = outputs("f32", "f32");
    for (const char *residual : {"element", "f32"}) {
        const std::vector<std::vector<float>> narrow = outputs("bf16", residual);
        for (size_t i = 0; i < wide.size(); ++i) {
            Difference found;
            for (size_t at = 0; at < wide[i].size(); ++at) found.add(narrow[i][at], wide[i][at]);
            assert_true(found.relative() <= 0.03);
        }
    }
}

void pictures_that_do_not_fit_are_refused(void **) {
    const GoldenPictures golden = load_golden("qwen3_vl_pictures");
    const std::unique_ptr<CudaBackend> backend = make_backend(golden, {});
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
    TokenBatch batch;
    batch.tokens.assign(4, golden.model->picture_token);
    batch.positions = {0, 1, 2, 3};
    batch.nodes = {{-1, 0, 4, 0, 4, false}};
    batch.pages = {{{0}, {{0, 0}}}};
    batch.pictures = {{0, 4, 2, 0}};
    BatchOutput output;
    assert_int_equal(backend->run(batch, &output).code(), BATCHLLM_ERROR_INTERNAL); // none there
}

// ---- Attention ----

struct Case {
    int32_t heads, head_dim;
    std::vector<int32_t> ranges; // lengths
};

// The most that the kernel's outputs differ from sums in float64 of the same elements.
double attention_error(const Case &c, DType type, bool sm90, Random &random) {
    int32_t patches = 0;
    std::vector<TowerBlock> blocks;
    const int32_t rows = sm90 ? tower_block_rows_sm90() : tower_block_rows(type, c.head_dim);
    for (const int32_t length : c.ranges) {
        for (int32_t row = 0; row < length; row += rows) {
            blocks.push_back({patches, patches + length, patches + row});
        }
        patches += length;
    }
    const int64_t width = int64_t{c.heads} * c.head_dim;
    const std::vector<float> given = normal(random, patches * 3 * width, type);
    const Array device(given, type), turned(given, type), out(patches * width, type);
    const Array bias(normal(random, 2 * width, DType::f32, 0.3F), DType::f32);
    std::vector<float> turns = normal(random, patches * c.head_dim, DType::f32);
    for (size_t i = 0; i < turns.size(); i += 2) {
        const float angle = turns[i];
        turns[i] = std::cos(angle), turns[i + 1] = std::sin(angle);
    }
    const Array angles(turns, DType::f32);
    TowerTurnArguments turn{type,
                            turned.data(),
                            static_cast<const float *>(bias.data()),
                            static_cast<const float2 *>(angles.data()),
                            patches,
                            c.heads,
                            c.head_dim};
    check(launch_tower_turn(turn, nullptr));
    const std::vector<float> qkv = turned.read();
    turn.qkv = device.data();
    turn.keys_alone = sm90; // it turns queries itself
    check(launch_tower_turn(turn, nullptr));
    const DeviceMemory of_blocks = upload(blocks);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const TowerAttentionArguments arguments{type,
                                            device.data(),
                                            out.data(),
                                            of_blocks.as<TowerBlock>(),
                                            static_cast<int32_t>(blocks.size()),
                                            c.heads,
                                            c.head_dim,
                                            scale};
    check(sm90 ? launch_tower_attention_sm90(arguments, {turn.bias, turn.angles}, patches, nullptr)
               : launch_tower_attention(arguments, nullptr));
    const std::vector<float> made = out.read();
    double most = 0;
    for (const TowerBlock &block : blocks) {
        for (int32_t head = 0; head < c.heads; ++head) {
            // Some rows: the first, the last and those between by chance.
            const int32_t end = std::min(block.first + rows, block.end);
            for (const int32_t row :
                 {block.first, end - 1, block.first + (end - block.first) / 3}) {
                std::vector<double> sums(static_cast<size_t>(c.head_dim));
                double total = 0;
                const float *q = qkv.data() + row * 3 * width + head * c.head_dim;
                for (int32_t key = block.begin; key < block.end; ++key) {
                    const float *k = qkv.data() + (key * 3 + 1) * width + head * c.head_dim;
                    double dot = 0;
                    for (int32_t e = 0; e < c.head_dim; ++e) dot += double(q[e]) * k[e];
                    const double weight = std::exp(dot * scale);
                    total += weight;
                    for (int32_t e = 0; e < c.head_dim; ++e) sums[e] += weight * k[width + e];
                }
                for (int32_t e = 0; e < c.head_dim; ++e) {
                    const double apart = std::fabs(
                        double(made[static_cast<size_t>(row * width + head * c.head_dim + e)]) -
                        sums[e] / total);
                    most = std::max(most, std::isnan(apart) ? HUGE_VAL : apart);
                }
            }
        }
    }
    return most;
}

bool is_hopper() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    return properties.major == 9 && properties.minor == 0;
}

void attention_of_towers_equals_float64(void **) {
    Random random(kSeed);
    const Case cases[] = {{2, 16, {1, 64, 65, 7}},
                          {3, 24, {130, 3}},
                          {2, 32, {200}},
                          {2, 64, {64, 193, 112, 31}},
                          {16, 72, {129, 500}},
                          {4, 72, {1, 2500}},
                          {16, 80, {64, 48, 700}},
                          {2, 96, {333}},
                          {2, 128, {63, 257}},
                          {1, 8, {128, 127}},
                          {2, 104, {200, 64, 1}},
                          {1, 40, {77}},
                          {16, 72, {193, 1500, 450, 640, 900, 64, 700, 129}}};
    for (const Case &c : cases) {
        for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
            for (const bool sm90 : {false, true}) {
                if (sm90 && (!is_hopper() || !tower_head_fits_sm90(type, c.head_dim))) continue;
                const double most = attention_error(c, type, sm90, random);
                const double bound = type == DType::f32 ? 2e-5 : type == DType::bf16 ? 2e-2 : 3e-3;
                if (!(most <= bound)) {
                    fail_msg("%d heads of %d, %s%s: %g apart", c.heads, c.head_dim,
                             dtype_name(type), sm90 ? ", sm90" : "", most);
                }
            }
        }
    }
}

} // namespace

int main(int count, char **values) {
    if (const int code = skipped()) return code;
    if (count > 1) family = values[1];
    if (count > 2) cmocka_set_test_filter(values[2]);
    const CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_towers_equals_float64),
        cmocka_unit_test(outputs_of_towers_equal_transformers),
        cmocka_unit_test(outputs_are_the_same_whatever_is_loaded_with_them),
        cmocka_unit_test(places_of_pictures_are_used_again),
        cmocka_unit_test(greedy_tokens_equal_transformers_without_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_with_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_in_small_steps),
        cmocka_unit_test(greedy_tokens_equal_transformers_if_reproducible),
        cmocka_unit_test(tokens_in_16_bits_equal_transformers_but_for_close_calls),
        cmocka_unit_test(tokens_in_bf16_equal_transformers_if_reproducible),
        cmocka_unit_test(a_picture_larger_than_a_pack_is_computed_as_any_other),
        cmocka_unit_test(pictures_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
