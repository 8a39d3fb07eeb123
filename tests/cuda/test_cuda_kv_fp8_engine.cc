// Golden models with keys and values in fp8 (kv_type) through the engine on the GPU: how far log-probabilities move,
// that sharing, preemption and reordering change no row, and that there are twice as many pages.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "batchllm.h"
#include "engine_ways.h"
#include "testing.h"

namespace {

constexpr const char *kNarrow = "tuning=0,kv_type=fp8,drafts=off";
constexpr const char *kNarrowSm80 = "tuning=0,kv_type=fp8,attention=sm80,drafts=off";

bool has_window(const Golden &golden) { return config_has(golden, "sliding_window"); }
bool has_latents(const Golden &golden) { return config_has(golden, "kv_lora_rank"); }

// Models of every shape of attention: heads of 64 to 512, windows, sinks, caps, norms of heads,
// layers that attend to keys of earlier layers, layers with a state, latents; and checkpoints with their own
// scales. moved: the root mean square change of their log-probabilities, computed in float64, if
// keys and values are rounded to e4m3. Random weights of 64 columns average little out, and a
// rounding may send a token to other experts.
struct Subject {
    const char *name;
    double moved;
};
constexpr Subject kSubjects[] = {{"deepseek_v2_lite_bf16", 0.285},
                                 {"deepseek_v3_wide_bf16", 0.121},
                                 {"gemma2_bf16", 0.073},
                                 {"gemma3_text_bf16", 0.083},
                                 {"gemma4_text_bf16", 0.468},
                                 {"glm4_moe_lite_bf16", 0.264},
                                 {"gpt_oss_bf16", 0.930},
                                 {"llama_bias_f32", 0.212},
                                 {"llama_ct_tensor_fp8", 0.316},
                                 {"llama_modelopt_fp8", 0.298},
                                 {"mistral_window_bf16", 0.243},
                                 {"olmo2_bf16", 0.115},
                                 {"phi3_bf16", 0.250},
                                 {"qwen2_tied_bf16", 0.363},
                                 {"qwen3_5_bf16", 0.015},
                                 {"qwen3_bf16", 0.113},
                                 {"qwen3_moe_bf16", 0.213}};

std::vector<Golden> models() {
    std::vector<Golden> all;
    for (const Subject &subject : kSubjects) {
        all.push_back(read_golden(std::string("golden/") + subject.name));
    }
    return all;
}

void log_probabilities_move_as_in_float64(void **) {
    bool good = true;
    for (const Subject &subject : kSubjects) {
        const Golden golden = read_golden(std::string("golden/") + subject.name);
        const Way narrow{"kv_type=fp8", "none", kNarrow};
        const std::string type = compute_type_of(create(golden, narrow, int64_t{64} << 20));
        assert_true(type.starts_with("bf16, keys and values in fp8 (e4m3)"));
        const double wide = error_of_scores(golden, {"kv_type=auto", "none"});
        for (const Way &way : {narrow, Way{"kv_type=fp8, sm80", "none", kNarrowSm80}}) {
            const double error = error_of_scores(golden, way);
            print_message("%.3f in float64, %.3f in 16 bits\n", subject.moved, wide);
            good &= error < 1.6 * subject.moved + 2 * wide + 0.05;
            good &= error > wide || subject.moved < 0.1; // keys and values were in fact rounded
        }
    }
    assert_true(good);
}

std::vector<Way> ways(const std::string &options, int32_t reproducible) {
    constexpr int32_t optimal = BATCHLLM_ENLARGE_OPTIMAL;
    std::vector<Way> all = {
        {"no overlap, no graphs", "none", options + ",overlap=0,graphs=0"},
        {"steps of 64", "none", options, 64},
        {"prefixes read apart", "none", options + ",share_attention=0"},
        {"rows backwards", "none", options, 0, optimal, 1, 0, true},
        {"12 pages, after short rows", "none", options, 0, optimal, 1, 12, false, true}};
    if (reproducible == 0) {
        all.push_back({"the same", "none", options});
        all.push_back({"no sharing", "none", options, 0, BATCHLLM_ENLARGE_NONE});
        all.push_back({"two levels", "none", options, 0, optimal, 2});
        all.push_back({"attention in three launches", "none", options + ",fused_attention=0"});
    }
    for (Way &way : all) way.reproducible = reproducible;
    return all;
}

// In a different batch, float32 sums have a different order: now and then that rounds a key to its
// other neighbour in e4m3, and from there on rows differ if two tokens were about equally likely.
void every_way_gives_the_same_tokens_but_for_close_calls(void **) {
    bool good = true;
    std::vector<std::vector<Said>> first;
    int64_t none = 0;
    std::vector<Golden> all = models();
    // If a rounding changes a token's experts, everything that follows differs. (The wide one's layers are dense.)
    std::erase_if(all, [](const Golden &golden) {
        return has_experts(golden) && golden.directory != "golden/deepseek_v3_wide_bf16";
    });
    for (const Golden &golden : all) {
        first.push_back(run_rows(golden, {"first", "none", kNarrow}, &none));
    }
    for (const Way &way : ways(kNarrow, 0)) {
        Compared compared;
        for (size_t m = 0; m < all.size(); ++m) {
            // States would take a share of the 12 pages.
            if (way.pages > 0 && has_states(all[m])) continue;
            compare(first[m], all[m], way, &compared);
        }
        print(way, compared);
        good &= compared.widest < 1 && 2 * compared.same > compared.tokens;
        good &= (compared.preemptions > 0) == (way.pages > 0);
        const std::string name = way.name;
        const bool exactly = name == "the same" || name == "no overlap, no graphs";
        good &= compared.equal == compared.rows || !exactly;
    }
    assert_true(good);
}

// Reproducible: the same tokens whatever is read together, computed again or in the same steps. (In
// 16 bits, the end of a shared prefix does matter: docs/reproducible.md.)
void reproducible_rows_are_the_same_in_every_way(void **) {
    bool good = true;
    for (const char *options : {kNarrow, kNarrowSm80}) {
        const std::vector<Way> all = ways(options, 1);
        std::vector<Compared> sums(all.size());
        for (const Golden &golden : models()) {
            if (options == kNarrowSm80 && !has_window(golden)) continue;
            if (has_latents(golden)) continue; // in f32 alone
            Way way{"first", "none", options};
            way.reproducible = 1;
            int64_t none = 0;
            const std::vector<Said> first = run_rows(golden, way, &none);
            for (size_t w = 0; w < all.size(); ++w) {
                if (all[w].pages > 0 && has_states(golden)) continue;
                compare(first, golden, all[w], &sums[w]);
            }
        }
        for (size_t w = 0; w < all.size(); ++w) {
            print(all[w], sums[w]);
            good &= sums[w].equal == sums[w].rows;
        }
    }
    assert_true(good);
}

void the_same_memory_holds_twice_the_pages(void **) {
    for (const Golden &golden : models()) {
        if (has_states(golden)) continue; // states take a part of the memory
        const auto stats = [&](const char *options) {
            return stats_of(create(golden, {"pages", "none", options}, int64_t{64} << 20));
        };
        const batchllm_stats wide = stats("tuning=0"), narrow = stats(kNarrow);
        assert_int_equal(2 * narrow.kv_page_bytes, wide.kv_page_bytes);
        assert_int_equal(narrow.kv_pages_total / 2, wide.kv_pages_total);
    }
}

void what_cannot_be_in_fp8_is_refused(void **) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/qwen3_bf16";
    options.backend = "cuda";
    options.kv_memory_bytes = int64_t{64} << 20;
    batchllm_engine *engine = nullptr;
    options.backend_options = "kv_type=int8";
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "kv_type=int8: auto or fp8"));
    options.backend_options = "kv_type=fp8";
    options.compute_type = "f32";
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "compute_type must be bf16 or f16"));
}

} // namespace

int main() {
    if (!cuda_available()) return 77;
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_in_fp8_is_refused),
        cmocka_unit_test(the_same_memory_holds_twice_the_pages),
        cmocka_unit_test(log_probabilities_move_as_in_float64),
        cmocka_unit_test(every_way_gives_the_same_tokens_but_for_close_calls),
        cmocka_unit_test(reproducible_rows_are_the_same_in_every_way),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
