// What the ranks of the CPU backend exchange, and the parts of a model that they compute. Whole models:
// tests/runtime/test_engine_golden.cc.
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/ranks.h"
#include "model/four_bits.h"
#include "model/model.h"
#include "model/parts.h"

// Last: they define macros with the names of members of the standard library.
#include "golden_files.h"
#include "testing.h"

using namespace batchllm;

namespace {

void sums_are_those_in_the_order_of_ranks(void **) {
    constexpr int32_t ranks = 3;
    // 2^24 + 1 is 2^24 in float: any other order gives another sum.
    const float terms[ranks] = {16777216, 1, 1};
    for (const size_t count : {size_t{1}, size_t{2}, size_t{1000}}) {
        cpu::Exchange exchange(ranks);
        std::vector<std::vector<float>> numbers(ranks);
        const auto add_twice = [&](int32_t rank) -> Status {
            std::vector<float> &own = numbers[static_cast<size_t>(rank)];
            own.assign(count, terms[rank]);
            const cpu::Rank side{&exchange, rank};
            RETURN_IF_ERROR(side.sum(own));
            return side.sum(own);
        };
        assert_true(run_ranks(&exchange, add_twice).ok());
        const float once = (terms[0] + terms[1]) + terms[2];
        for (const std::vector<float> &own : numbers) {
            for (const float x : own) assert_true(x == once + once + once);
        }
    }
}

void shared_squares_make_norms_of_all_numbers(void **) {
    cpu::Exchange exchange(4);
    float got[4] = {};
    // Ranks 0 and 1 share norms, and ranks 2 and 3.
    const float squares[4] = {1, 3, 10, 30};
    const auto share = [&](int32_t rank) -> Status {
        float &own = got[rank];
        own = squares[rank];
        return cpu::share_squares({&exchange, rank}, 2, {&own, 1});
    };
    assert_true(run_ranks(&exchange, share).ok());
    for (int32_t r = 0; r < 4; ++r) assert_true(squares[r] + got[r] == (r < 2 ? 2 : 20));
}

// Whatever a rank does instead of coming to the sum, the others do not wait for it.
void a_rank_that_fails_ends_all(void **) {
    const std::function<Status()> failures[] = {
        [] { return error(BATCHLLM_ERROR_DEVICE, "lost"); },
        []() -> Status { throw std::runtime_error("lost"); },
        []() -> Status { throw std::bad_alloc(); },
    };
    for (const auto &failure : failures) {
        for (int32_t failing = 0; failing < 3; ++failing) {
            cpu::Exchange exchange(3);
            std::atomic<int32_t> ended = 0;
            const auto start = std::chrono::steady_clock::now();
            const Status status = run_ranks(&exchange, [&](int32_t rank) -> Status {
                std::vector<float> numbers(100, 1.0F);
                const cpu::Rank side{&exchange, rank};
                RETURN_IF_ERROR(side.sum(numbers));
                if (rank == failing) return failure();
                const Status second = side.sum(numbers);
                ++ended;
                assert_false(second.ok());
                return second;
            });
            assert_int_equal(ended, 2);
            assert_false(status.ok());
            assert_true(status.message() == "lost" ||
                        status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY);
            assert_true(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
            // Nor does any later sum wait, or any later meeting take place.
            float one = 1;
            assert_false(exchange.sum(0, {&one, 1}).ok());
            for (int32_t rank = 0; rank < 3; ++rank) assert_false(exchange.meet().ok());
        }
    }
}

void a_rank_keeps_its_thread(void **) {
    cpu::Exchange exchange(3);
    thread_local int32_t calls; // of the thread
    calls = 0;
    for (int32_t call = 1; call <= 3; ++call) {
        std::array<int32_t, 3> counts{};
        const auto count = [&](int32_t rank) {
            counts[static_cast<size_t>(rank)] = ++calls;
            return exchange.meet();
        };
        assert_true(run_ranks(&exchange, count).ok());
        for (const int32_t of_rank : counts) assert_int_equal(of_rank, call);
    }
}

std::vector<float> elements(const Tensor &tensor) {
    std::vector<float> all(static_cast<size_t>(tensor.rows * tensor.columns));
    read_rows(tensor, 0, tensor.rows, DType::f32, all.data());
    return all;
}

// rows: of the whole tensor from row 1 on, and some of the columns.
void compare_codes(const Tensor &whole, const Tensor &rows) {
    const auto codes_of = [](const Tensor &tensor) {
        std::vector<uint8_t> codes(static_cast<size_t>(tensor.bytes()));
        read_codes(tensor, 0, tensor.rows, codes.data());
        return codes;
    };
    const std::vector<uint8_t> all = codes_of(whole), some = codes_of(rows);
    for (int64_t r = 0; r < rows.rows; ++r) {
        for (int64_t c = 0; c < rows.columns / 2; ++c) {
            const int64_t at = ((r + 1) * whole.columns + rows.first_column) / 2 + c;
            assert_int_equal(some[static_cast<size_t>(r * rows.columns / 2 + c)],
                             all[static_cast<size_t>(at)]);
        }
    }
    const Groups groups = groups_of(rows);
    const int64_t file_groups = whole.four_bits->groups;
    if (whole.four_bits->kind != FourBitKind::int4) {
        std::vector<uint8_t> all_scales(static_cast<size_t>(whole.rows * file_groups));
        std::vector<uint8_t> scales(static_cast<size_t>(rows.rows * groups.count));
        read_scale_bytes(whole, 0, whole.rows, all_scales.data());
        read_scale_bytes(rows, 0, rows.rows, scales.data());
        for (int64_t r = 0; r < rows.rows; ++r) {
            for (int64_t g = 0; g < groups.count; ++g) {
                assert_int_equal(
                    scales[static_cast<size_t>(r * groups.count + g)],
                    all_scales[static_cast<size_t>((r + 1) * file_groups + groups.first + g)]);
            }
        }
    }
}

void columns_are_read_as_those_of_the_whole(void **) {
    int32_t kinds = 0;
    for (const char *name :
         {"llama_bias_f32", "gpt_oss_bf16", "gpt_oss_mxfp4", "llama_awq", "llama_gptq_sym",
          "qwen2_gptq_act_order", "llama_ct_nvfp4", "qwen3_block_fp8", "qwen3_moe_channel_fp8"}) {
        const auto loaded = load_model(std::string("golden/") + name);
        assert_true(loaded.ok());
        for_each_tensor(**loaded, [&](const Tensor &tensor) {
            if (tensor.columns < 24) return;
            const std::vector<float> whole = elements(tensor);
            for (const int64_t first : {int64_t{0}, int64_t{8}, tensor.columns / 16 * 8}) {
                const int64_t count = tensor.columns - first - 8;
                const Tensor some = columns_of(tensor, first, count);
                const Tensor rows = rows_of(some, 1, tensor.rows - 1);
                const std::vector<float> got = elements(rows);
                if (tensor.four_bits != nullptr && count % 8 == 0) compare_codes(tensor, rows);
                for (int64_t r = 0; r < rows.rows; ++r) {
                    for (int64_t c = 0; c < count; ++c) {
                        const float x = got[static_cast<size_t>(r * count + c)];
                        const auto at = static_cast<size_t>((r + 1) * tensor.columns + first + c);
                        if (x != whole[at]) fail_msg("%s: %s", name, tensor.name.c_str());
                    }
                }
                ++kinds;
            }
        });
    }
    assert_true(kinds > 100);
}

// Each number of a matrix is in one part, and those of what is not divided in all.
void parts_have_the_whole_models_numbers(void **) {
    int64_t divided = 0;
    for (const char *name :
         {"llama_bias_f32", "qwen3_moe_bf16", "deepseek_v3_bf16", "qwen3_next_bf16",
          "granite_hybrid_moe_bf16", "lfm2_moe_bf16", "kimi_linear_f16"}) {
        const auto loaded = load_model(std::string("golden/") + name);
        assert_true(loaded.ok());
        const Model &whole = **loaded;
        const auto first = part_of(whole, 0, 2), second = part_of(whole, 1, 2);
        assert_true(first.ok() && second.ok());
        const auto sum = [](const Model &model) {
            double all = 0;
            for (const Layer &layer : model.layers) {
                if (const FeedForward *feed = layer.feed_forward()) {
                    for (const Weight *w : {&feed->gate, &feed->up, &feed->down}) {
                        for (const float x : elements(w->values)) all += double(x);
                    }
                }
                if (const LinearAttention *net = layer.linear_attention()) {
                    for (const float x : elements(net->o.values)) all += double(x);
                }
            }
            for (const float x : elements(model.head.values)) all += double(x);
            return all;
        };
        assert_true(std::fabs(sum(whole) - sum(**first) - sum(**second)) < 1e-3);
        assert_int_equal((*first)->head.rows() + (*second)->head.rows(), whole.head.rows());
        assert_int_equal((*second)->head_begin, (*first)->head.rows());
        assert_true((*first)->weight_bytes() + (*second)->weight_bytes() >= whole.weight_bytes());
        assert_true((*first)->weight_bytes() < whole.weight_bytes());
        for (size_t i = 0; i < whole.layers.size(); ++i) {
            const Attention *a = whole.layers[i].attention();
            if (a == nullptr) continue;
            const Attention *own = (*second)->layers[i].attention();
            assert_int_equal(2 * own->heads, a->heads);
            assert_int_equal(own->kv_group, a->kv_group);
            ++divided;
        }
    }
    assert_true(divided > 6);
}

// Gates that are made of a few numbers: these are whole, and what makes gates of them is divided by heads.
void a_delta_net_that_decays_by_channel_is_divided_by_heads(void **) {
    const auto loaded = load_model("golden/kimi_linear_f16"); // 4 heads of 16
    assert_true(loaded.ok());
    constexpr int32_t ranks = 4;
    int32_t nets = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
        const auto part = part_of(**loaded, rank, ranks);
        if (!part.ok()) fail_msg("%s", part.status().message().c_str());
        for (size_t i = 0; i < (*part)->layers.size(); ++i) {
            const auto *own = std::get_if<ChannelDeltaNet>(&(*part)->layers[i].mixer);
            if (own == nullptr) continue;
            const auto &whole = std::get<ChannelDeltaNet>((*loaded)->layers[i].mixer);
            ++nets;
            assert_int_equal(own->value_heads, 1);
            assert_int_equal(own->key_heads, 1);
            int64_t rows = 0;
            for (const Tensor &tensor : own->input) rows += tensor.rows;
            assert_int_equal(rows, own->input_rows());
            assert_int_equal(ranks * own->state_size(), whole.state_size());
            const auto compare = [&](const Tensor &all, const Tensor &some, bool divided) {
                assert_int_equal(some.rows, divided ? all.rows / ranks : all.rows);
                const std::vector<float> wanted =
                    elements(divided ? rows_of(all, rank * some.rows, some.rows) : all);
                if (elements(some) != wanted) fail_msg("%s", all.name.c_str());
            };
            assert_int_equal(own->input.size(), 6);
            for (size_t m = 0; m < 6; ++m) { // q, k, v, g_a, b, f_a
                compare(whole.input[m], own->input[m], m != 3 && m != 5);
            }
            for (size_t m = 0; m < 3; ++m) {
                compare(whole.convolution[m].values, own->convolution[m].values, true);
            }
            compare(whole.a.values, own->a.values, true);
            compare(whole.z.values, own->z.values, true);
            compare(whole.decay, own->decay, true);
            compare(whole.step_bias, own->step_bias, true);
            compare(whole.norm.weight, own->norm.weight, false);
            assert_int_equal(own->o.columns(), own->values_size());
            assert_int_equal(own->o.values.first_column, rank * own->values_size());
        }
    }
    assert_int_equal(nets, 2 * ranks);
    const auto three = load_model("golden/kimi_linear_bf16"); // 3 heads
    assert_true(three.ok());
    assert_string_equal(part_of(**three, 0, 2).status().message().c_str(),
                        "tensor_parallel 2: layer 0: 3 heads of values cannot be divided");
}

void heads_that_cannot_be_divided_are_named(void **) {
    const auto loaded = load_model("golden/llama3_gqa_sharded_bf16"); // 4 heads
    assert_true(loaded.ok());
    const auto part = part_of(**loaded, 0, 3);
    assert_int_equal(part.status().code(), BATCHLLM_ERROR_UNSUPPORTED);
    assert_string_equal(part.status().message().c_str(),
                        "tensor_parallel 3: layer 0: 4 heads cannot be divided");
    BackendOptions options;
    options.kv_memory_bytes = 1 << 20;
    for (const char *wrong : {"0", "x", "65", "2x", ""}) {
        options.extra = {{"tensor_parallel", wrong}};
        assert_int_equal(make_cpu_backend(**loaded, options).status().code(),
                         BATCHLLM_ERROR_INVALID_ARGUMENT);
    }
    options.extra = {{"tensor_parallel", "2"}};
    const auto backend = make_cpu_backend(**loaded, options);
    assert_true(backend.ok());
    options.extra = {};
    const auto alone = make_cpu_backend(**loaded, options);
    // As many pages in the same memory, a half on each rank.
    assert_int_equal((*backend)->info().pages, (*alone)->info().pages);
    assert_int_equal((*backend)->info().page_bytes, (*alone)->info().page_bytes);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_in_the_order_of_ranks),
        cmocka_unit_test(shared_squares_make_norms_of_all_numbers),
        cmocka_unit_test(a_rank_that_fails_ends_all),
        cmocka_unit_test(a_rank_keeps_its_thread),
        cmocka_unit_test(columns_are_read_as_those_of_the_whole),
        cmocka_unit_test(parts_have_the_whole_models_numbers),
        cmocka_unit_test(a_delta_net_that_decays_by_channel_is_divided_by_heads),
        cmocka_unit_test(heads_that_cannot_be_divided_are_named),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
