// The memory of a step's buffers for a model's shape: compared with sizes computed by hand and with
// the pages that were left on an H200; and the resulting sizes of steps.
#include <string>
#include <utility>
#include <vector>

#include "../../bench/throughput_models.h"
#include "backend/gpu/gated_product.h"
#include "backend/gpu/key_segments.h"
#include "backend/gpu/step_buffers.h"
#include "backend/gpu/tower_buffers.h"
#include "backend/sim/device_memory.h"
#include "backend/sim/sim_options.h"
#include "model/parts.h"
#include "model/tower.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

Model shape_of(const std::string &config) {
    Result<Model> model = describe_config(config, "test");
    if (!model.ok()) fail_msg("%s", model.status().message().c_str());
    return std::move(model).value();
}

Model named(const char *name) { return std::move(bench_model(name).value().model); }

void is_bytes(const char *what, int64_t is, int64_t wanted) {
    if (is != wanted) {
        fail_msg("%s: %lld bytes, not %lld", what, static_cast<long long>(is),
                 static_cast<long long>(wanted));
    }
}

// Checks the bytes per token in everything that grows; rest: further bytes for 8,192 tokens in
// total.
void takes(const char *name, const StepForm &form, int64_t wanted, int64_t rest = 0) {
    const Model model = named(name);
    const StepBuffers of = step_buffers(model, form, 8192);
    // In addition: the queues of attention, and a tile for each expert and their count.
    int64_t fixed = form.element == DType::f32 ? 0 : 16;
    for (const Layer &layer : model.layers) {
        const Experts *experts = layer.experts();
        if (experts != nullptr) fixed = 16 + 16 * static_cast<int64_t>(experts->each.size()) + 4;
    }
    is_bytes(name, of.growing(), 8192 * wanted + rest + fixed);
}

// Input: four sections of 16 bytes, a slot in each KV group, twice 1,024 staged. For each shape of
// attention, four lists of 128. Samples 12, angles 8 for two dimensions of each rope.
void a_token_takes_what_its_models_layers_are_wide(void **) {
    const int64_t input = 64 + 2048 + 12;
    // [hidden] three times; Q, K, V; attention's result; gate and up; activated. Partials with their LSE, counters.
    const int64_t mistral = 2 * (3 * 4096 + 6144 + 4096 + 28672 + 14336) + 6 * 4 * (4096 + 32) +
                            4 * 8 + 512 + 64 * 8 + 4;
    takes("Mistral-7B", {}, mistral + input);
    // Norms after sublayers: a delta. Two shapes of attention, two ropes, KV groups of eight layers.
    const Model gemma = named("Gemma-3-12B");
    takes("Gemma-3-12B", {},
          2 * (4 * 3840 + 8192 + 4096 + 30720 + 15360) + 6 * 4 * (4096 + 16) + 4 * 8 + 2 * 512 +
              2 * 128 * 8 + 4 * static_cast<int64_t>(gemma.kv_groups.size()) + input);
    // The residual stream in f32 beside f16; nothing of attention in f32.
    StepForm form;
    form.element = DType::f16;
    form.residual = residual_type(form.element);
    takes("Mistral-7B", form, mistral + 2 * 2 * 4096 + input);
    form.element = DType::f32;
    takes("Mistral-7B", form, 4 * (3 * 4096 + 6144 + 4096 + 28672 + 14336) + 64 * 8 + 4 + input);
    // Layers with delta nets: Q, K, V, Z and two gates per head; attention's Q with gates, K, V.
    const int64_t delta = 2 * (8192 + 4096 + 32 * 64) + 32 * 8 + 20 + 8;
    takes("qwen3.5-9b", {},
          2 * (3 * 4096 + (8192 + 4096 + 64) + 4096 + 24576 + 12288) + delta + 6 * 4 * (4096 + 16) +
              4 * 4 + 512 + 32 * 8 + 4 + input);
    // Mamba-2: q, k, v, z and a; q, k and v again; decay and step per head in f32. No rope.
    const Model granite = named("granite-4.0-h-micro");
    const int64_t attention = 6 * 4 * (2048 + 32) + 4 * 8 + 512;
    takes("granite-4.0-h-micro", {},
          2 * (3 * 2048 + (4352 + 4096 + 64) + 4096 + 16384 + 8192) + 2 * 4352 + 64 * 8 + 20 + 8 +
              attention + 4 * static_cast<int64_t>(granite.kv_groups.size()) + input);
    // Layers with one sublayer each: as wide as the widest, without a gate. Here k and q have eight
    // groups.
    const int64_t mamba = 2 * (8192 + 2 * 1024) + 128 * 8 + 20 + 8;
    takes("nemotron-h-8b", {},
          2 * (3 * 4096 + (8192 + 2 * 1024 + 8192 + 128) + 8192 + 2 * 21504) + mamba +
              6 * 4 * (4096 + 32) + 4 * 8 + 512 + 4 + input);
    // Experts, six per token, and a delta for the shared one, which is twice as wide.
    takes("nemotron-3-nano", {},
          2 * (4 * 2688 + (4096 + 2 * 1024 + 4096 + 64) + 4096 + 2 * 3712) + 2 * (4096 + 2 * 1024) +
              64 * 8 + 20 + 8 + 4 * 128 + 4 * 6 * 4 + 128 * 4 / 32 + 6 * 2 * (1856 + 2688) +
              6 * 4 * (4096 + 32) + 4 * 2 + 512 + 4 + input,
          8192 * 6 * 16 / 128);
    // Short convolutions: B, C and x, and the lists.
    const Model lfm = named("lfm2-1.2b");
    takes("lfm2-1.2b", {},
          2 * (3 * 2048 + 3 * 2048 + 2048 + 16384 + 8192) + 20 + 8 + attention + 32 * 8 +
              4 * static_cast<int64_t>(lfm.kv_groups.size()) + input);
    // Experts: logits of 128, eight turns with four numbers, counts of blocks of 32 tokens, a tile
    // of 16 bytes for 128 turns, and the results of turns.
    takes("qwen3-30b-a3b", {},
          2 * (4 * 2048 + 5120 + 4096) + 4 * 128 + 4 * 8 * 4 + 128 * 4 / 32 + 8 * 16 / 128 +
              8 * 2 * (768 + 2048) + 6 * 4 * (4096 + 32) + 4 * 4 + 512 + 64 * 8 + 4 + input);
}

void layers_of_feed_forwards_alone_need_no_lists_of_states(void **) {
    const Model model =
        shape_of(R"({"model_type": "nemotron_h", "hybrid_override_pattern": "*-"})");
    const StepBuffers of = step_buffers(model, {}, 4096);
    for (const StepBuffer list : {StepBuffer::state_items, StepBuffer::state_levels,
                                  StepBuffer::state_chunks, StepBuffer::delta_mixed}) {
        assert_int_equal(of[list], 0);
    }
}

// In predictions as on a device: delta nets and Mamba-2 where there are kernels, none that decay by channel.
void prompts_go_in_chunks_where_there_are_kernels(void **) {
    const auto chunks = [](const Model &model, const char *type, bool reproducible = false) {
        return form_on_gpu(model, type, reproducible).state_chunks;
    };
    const Model delta = named("qwen3.5-9b"), mamba = named("nemotron-h-8b");
    assert_true(chunks(delta, "bf16") && chunks(delta, "f16"));
    assert_false(chunks(delta, "f32") || chunks(delta, "bf16", true));
    assert_true(chunks(mamba, "bf16"));
    assert_false(chunks(mamba, "f16"));
    assert_true(chunks(named("Mistral-7B"), "bf16", true));  // has no states
    const Model kimi = shape_of(R"({"model_type": "kimi_linear", "num_experts": 8,
        "num_experts_per_token": 2, "q_lora_rank": null})"); // 32 heads of 128
    assert_false(chunks(kimi, "bf16"));
    const StepBuffers of = step_buffers(kimi, form_on_gpu(kimi, "bf16", false), 4096);
    for (const StepBuffer none : {StepBuffer::delta_mixed, StepBuffer::delta_gates,
                                  StepBuffer::state_chunks, StepBuffer::delta_keys}) {
        is_bytes("chunks", of[none], 0);
    }
    is_bytes("gates' inputs", of[StepBuffer::gate_inputs], int64_t{4096} * 2 * 2 * 128);
    is_bytes("decays", of[StepBuffer::channel_decays], int64_t{4096} * 2 * 4096);
    is_bytes("gates", of[StepBuffer::channel_gates], int64_t{4096} * 2 * 4096);
}

void ranks_that_need_nccl_count_it(void **) {
    const Model model = named("Mistral-7B");
    const auto part = part_of(model, 0, 2);
    assert_true(part.ok());
    const StepBuffers buffers = step_buffers(**part, {}, 4096);
    const int64_t others = buffers[StepBuffer::others_logits];
    assert_true(others > 0);
    is_bytes("one", rank_bytes(buffers, 1, false), 0);
    is_bytes("two with access", rank_bytes(buffers, 2, true), 0);
    for (const int32_t ranks : {2, 4}) {
        is_bytes("NCCL", rank_bytes(buffers, ranks, ranks > 2), others + (int64_t{1340} << 20));
    }
}

void layers_in_e4m3_have_scales_and_perhaps_a_delta(void **) {
    const Model model = named("Mistral-7B");
    StepForm form;
    const int64_t without = step_buffers(model, form, 4096).total();
    form.normed_scales = 32;
    form.attended_scales = 16;
    form.activated_scales = 112;
    form.deltas = true;
    is_bytes("scales and a delta", step_buffers(model, form, 4096).total() - without,
             4096 * (4 * (32 + 16 + 112) + 2 * 4096));
    const Model sparse = named("qwen3-30b-a3b");
    StepForm experts;
    const int64_t plain = step_buffers(sparse, experts, 4096).total();
    experts.experts_in_e4m3 = true;
    is_bytes("experts", step_buffers(sparse, experts, 4096).total() - plain,
             4096 * (2 * 2048 + 8 * 768 / 128 * 4));
}

void heads_are_padded_and_what_has_a_state_has_a_multiple_of_sixteen_rows(void **) {
    Attention attention;
    attention.heads = 6;
    attention.kv_heads = 2;
    attention.head_dim = 80;
    assert_int_equal(first_rows(attention), 10 * 128);
    assert_int_equal(last_columns(attention), 6 * 128);
    attention.gated = true;
    assert_int_equal(first_rows(attention), 16 * 128);
    attention.kv_layer = 0; // uses another layer's keys and values
    assert_int_equal(first_rows(attention), 12 * 128);
    DeltaNet net;
    net.key_heads = net.value_heads = 3;
    net.key_dim = net.value_dim = 8;
    assert_int_equal(first_rows(net), 112); // 4 * 24 + 6
    assert_int_equal(last_columns(net), 24);
    Mamba2 mamba; // one gate per head
    mamba.key_heads = 3;
    mamba.value_heads = 6;
    mamba.key_dim = mamba.value_dim = 8;
    assert_int_equal(first_rows(mamba), 160); // 2 * 24 + 2 * 48 + 6
    assert_int_equal(last_columns(mamba), 48);
    ShortConvolution convolution;
    convolution.width = 3;
    convolution.x.values.rows = 24;
    assert_int_equal(first_rows(convolution), 80); // 72
    assert_int_equal(last_columns(convolution), 24);
    assert_int_equal(first_rows(NoMixer()), 0);
}

// At 35886e2, where input was staged in 8 MiB whatever the size of a step: docs/lab/engine.md.
void pages_are_predicted_as_they_were_left_on_an_h200(void **) {
    const Model model = named("Mistral-7B");
    for (const auto &[tokens, measured] : {std::pair(4096, 14351), {16384, 14046}}) {
        BackendOptions options;
        options.extra = {{"device", "h200"}};
        options.step_tokens = tokens;
        const int64_t pages = read_sim_options(&model, options)->pages;
        if (std::abs(static_cast<double>(pages) / measured - 1) > 0.0005) {
            fail_msg("steps of %d tokens: %lld pages, not %d", tokens,
                     static_cast<long long>(pages), measured);
        }
    }
}

// totalGlobalMem of an H200, an H100 of 80 GB, an A100 of 80 GB, an L40S.
constexpr int64_t kMemories[] = {150109880320, 84942913536, 84974239744, 47576711168};

void steps_of_the_benches_models_have_the_documented_size(void **) {
    const struct {
        const char *name;
        int64_t tokens[4];
    } models[] = {
        {"Mistral-7B", {16384, 8192, 8192, 4096}},
        {"Llama-3-8B", {16384, 8192, 8192, 4096}},
        {"Qwen2-7B", {16384, 8192, 8192, 4096}},
        {"Qwen3-4B", {16384, 8192, 8192, 4096}},
        {"Gemma-3-12B", {16384, 8192, 8192, 4096}},
        {"Llama-3.2-3B", {16384, 8192, 8192, 4096}},
        {"Llama-3.2-1B", {16384, 16384, 16384, 8192}},
        {"qwen3.5-9b", {8192, 8192, 8192, 4096}},
        {"qwen3-30b-a3b", {8192, 8192, 8192, 8192}},
        {"gpt-oss-20b", {8192, 8192, 8192, 8192}},
        {"nemotron-h-8b", {8192, 8192, 8192, 4096}},
        {"nemotron-3-nano", {8192, 8192, 8192, 8192}},
        {"glm-4.7-flash", {16384, 8192, 8192, 4096}},
        {"deepseek-v2-lite", {16384, 8192, 8192, 4096}},
    };
    for (const auto &[name, tokens] : models) {
        const Model model = named(name);
        for (size_t d = 0; d < 4; ++d) {
            const int64_t chosen = default_step_tokens(model, {}, kMemories[d]);
            if (chosen != tokens[d]) {
                fail_msg("%s, %lld bytes: %lld tokens a step", name,
                         static_cast<long long>(kMemories[d]), static_cast<long long>(chosen));
            }
        }
    }
}

// The simulated device's memory follows that of the backend.
void a_described_gpu_has_the_steps_that_its_backend_chooses(void **) {
    DeviceCosts costs = named_device_costs("h200").value();
    const auto tokens = [&](const char *name, const char *type) {
        const Model model = named(name);
        BackendOptions options;
        options.compute_type = type;
        return read_sim_options(&model, options, costs)->step_tokens;
    };
    assert_int_equal(tokens("Mistral-7B", "auto"), 16384);
    assert_int_equal(tokens("Mistral-7B", "f16"), 16384);
    assert_int_equal(tokens("Mistral-7B", "f32"), 8192);
    costs.memory_bytes = kMemories[3];
    assert_int_equal(tokens("Mistral-7B", "auto"), 4096);
    assert_int_equal(tokens("Llama-3.2-1B", "auto"), 8192);
    costs.step_tokens = 2048; // as in the description
    assert_int_equal(tokens("Llama-3.2-1B", "auto"), 2048);
    costs.step_tokens = 16384;
    costs.gpu = false; // a processor
    assert_int_equal(tokens("Mistral-7B", "auto"), 16384);
}

Model with_heads_of(int32_t head_dim) {
    return shape_of(R"({"model_type": "llama", "hidden_size": 768, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": )" +
                    std::to_string(head_dim) +
                    R"(, "intermediate_size": 1024, "vocab_size": 1000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null})");
}

// On a GPU a head of 96 is treated as one of 128, except for its rope.
void heads_take_their_padding_in_pages_weights_and_time(void **) {
    BackendOptions options;
    const auto read = [&](int32_t head_dim) {
        const Model model = with_heads_of(head_dim);
        return read_sim_options(&model, options).value();
    };
    assert_int_equal(read(96).slot_bytes, 2 * 2 * 2 * 4 * 96);
    options.extra = {{"device", "h200"}};
    const SimOptions narrow = read(96), wide = read(128);
    assert_int_equal(narrow.slot_bytes, 2 * 2 * 2 * 4 * 128);
    assert_int_equal(wide.slot_bytes, narrow.slot_bytes);
    const double ropes = 0.9 * 16384 * (64 - 48) * 8;
    const double less = static_cast<double>(narrow.kv_memory_bytes - wide.kv_memory_bytes);
    assert_true(std::abs(less - ropes) < 2);
    TokenBatch batch;
    batch.tokens.resize(64);
    batch.nodes.push_back({-1, 0, 64, 0, 64, false});
    const StepSeconds a = narrow.costs->seconds(batch), b = wide.costs->seconds(batch);
    assert_true(a.linear == b.linear && a.attention == b.attention);
}

void keys_in_fp8_have_room_to_be_widened_in(void **) {
    const Model model = named("Mistral-7B");
    BackendOptions options;
    options.extra = {{"device", "h200"}};
    const int64_t without = read_sim_options(&model, options)->kv_memory_bytes;
    options.extra.emplace_back("kv_type", "fp8");
    const double less =
        static_cast<double>(without - read_sim_options(&model, options)->kv_memory_bytes);
    assert_true(std::abs(less - 0.9 * (512 << 20)) < 2);
}

void what_does_not_fit_says_what_there_is(void **) {
    DeviceCosts costs = named_device_costs("h200").value();
    const Model model = named("Mistral-7B");
    BackendOptions options;
    const auto fails = [&](const char *words) {
        const auto read = read_sim_options(&model, options, costs);
        assert_false(read.ok());
        if (read.status().message().find(words) == std::string::npos) {
            fail_msg("%s", read.status().message().c_str());
        }
    };
    const int64_t left = read_sim_options(&model, options, costs)->kv_memory_bytes;
    options.kv_memory_bytes = left;
    assert_true(read_sim_options(&model, options, costs).ok());
    options.kv_memory_bytes =
        left / 9 * 10 + 100; // more than all, since the default is nine tenths
    fails("NVIDIA H200 has 150754820096 bytes of memory");
    options.kv_memory_bytes = 0;
    costs.memory_bytes = int64_t{15} << 30;
    fails("leave 0 for keys and values");
}

void keys_and_weights_in_f32_have_four_bytes(void **) {
    const DeviceCosts costs = named_device_costs("h200").value();
    const Model model = named("Llama-3.2-1B");
    BackendOptions options;
    options.step_tokens = 4096;
    const SimOptions bf16 = read_sim_options(&model, options, costs).value();
    options.compute_type = "f32";
    const SimOptions f32 = read_sim_options(&model, options, costs).value();
    assert_int_equal(f32.slot_bytes, 2 * bf16.slot_bytes);
    StepForm form;
    const int64_t buffers = step_buffers(model, form, 4096).total();
    form.element = form.residual = DType::f32;
    int64_t elements = 0;
    for_each_tensor(model, [&](const Tensor &tensor) { elements += tensor.rows * tensor.columns; });
    const int64_t more = 2 * elements + step_buffers(model, form, 4096).total() - buffers;
    const double less = static_cast<double>(bf16.kv_memory_bytes - f32.kv_memory_bytes);
    assert_true(std::abs(less - 0.9 * static_cast<double>(more)) < 2);
}

void reproducible_steps_have_larger_buffers_in_predictions_too(void **) {
    const DeviceCosts costs = named_device_costs("h200").value();
    const Model model = named("Llama-3.2-1B");
    BackendOptions options;
    const int64_t plain_tokens = read_sim_options(&model, options, costs).value().step_tokens;
    options.reproducible = true;
    const SimOptions chosen = read_sim_options(&model, options, costs).value();
    StepForm form;
    form.partials = reproducible_partials(model);
    assert_int_equal(chosen.step_tokens, default_step_tokens(model, form, costs.memory_bytes));
    assert_true(chosen.step_tokens < plain_tokens);
    assert_true(chosen.common_prefix_cost == 0);
    // Keys and values in fp8 are not widened in them.
    for (const char *type : {"auto", "fp8"}) {
        options.extra = {{"kv_type", type}};
        options.step_tokens = 4096;
        const auto left = [&](bool reproducible) {
            options.reproducible = reproducible;
            return read_sim_options(&model, options, costs).value().kv_memory_bytes;
        };
        const int64_t widened = std::string(type) == "fp8"
                                    ? widened_bytes(attention_shapes(model).all.front())
                                    : int64_t{0};
        const int64_t more = step_buffers(model, form, 4096).total() -
                             step_buffers(model, {}, 4096).total() - widened;
        const auto less = static_cast<double>(left(false) - left(true));
        assert_true(std::abs(less - 0.9 * static_cast<double>(more)) < 2);
    }
}

// Patches of Qwen3-VL's tower: [1152] in f32 and three times in bf16, queries, keys and values, twice the feed-forward, the rope's
// angles; sent are 768 numbers, what is known of a patch, and for each token a place and two blocks.
void towers_have_memory_that_pages_do_not_get(void **) {
    Model model = named("Qwen3-VL-8B");
    const int64_t patches = 16384, tokens = patches / 4;
    const int64_t sent =
        patches * (4 * 768 + 20) + tokens * (4 + 2 * 12) + 2 * patches / 16 * 12 + 5 * 16;
    is_bytes("a pack", tower_buffers(model, DType::bf16, DType::bf16, patches).total(),
             patches * (4 * 1152 + 3 * 2 * 1152 + 2 * 3456 + 2 * 2 * 4304 + 36 * 8) + 2 * sent);
    // The stream may be wider than the elements, which leaves room for fewer patches.
    is_bytes("a stream in f32", tower_buffers(model, DType::bf16, DType::f32, patches).residual,
             patches * 4 * 1152);
    const int64_t left = int64_t{60} << 30;
    assert_true(tower_patches_on_gpu(model, DType::bf16, DType::f32, 65536, left) <
                tower_patches_on_gpu(model, DType::bf16, DType::bf16, 65536, left));

    const DeviceCosts costs = named_device_costs("h200").value();
    BackendOptions options;
    options.step_tokens = 4096;
    const SimOptions with = read_sim_options(&model, options, costs).value();
    const int64_t weights = tower_weight_bytes(*model.tower, DType::bf16);
    // 27 layers, the patches and positions, and four mergers of [4608, 4608] and [4096, 4608].
    const int64_t products = 27 * 2 * (4 * 1152 * 1152 + 2 * 1152 * 4304) + 2 * 1152 * 768 +
                             4 * 1152 * 48 * 48 + 4 * 2 * 4608 * (4608 + 4096);
    assert_true(weights > products && weights < products + 27 * 4 * 20000);
    // Outputs of 32,768 tokens with deepstack's three parts; the largest picture has 131,072 patches.
    const int64_t more = weights + 32768 * 4 * 4096 * 2 + linear_workspace +
                         tower_buffers(model, DType::bf16, DType::bf16, 131072).total();
    model.tower = nullptr;
    const SimOptions without = read_sim_options(&model, options, costs).value();
    const double less = static_cast<double>(without.kv_memory_bytes - with.kv_memory_bytes);
    assert_true(std::abs(less - 0.9 * static_cast<double>(more)) < 2);
    assert_int_equal(with.weights.all - without.weights.all, weights);
}

// Less than this many bytes a patch for a sixteenth of what is left: a pack of two large pictures always has room.
void small_devices_have_towers_for_smaller_pictures(void **) {
    const Model model = named("Qwen3-VL-8B");
    const auto patches = [&](int64_t gib) {
        return tower_patches_on_gpu(model, DType::bf16, DType::bf16, 65536, gib << 30);
    };
    assert_int_equal(patches(200), 131072);
    assert_true(patches(60) < 131072 && patches(60) > 2 * 16384);
    assert_int_equal(patches(8), 16384);
    assert_true(patches(1) < 16384 && patches(1) > 4 * 2304);
    // Outputs for few tokens are places for small pictures alone.
    assert_int_equal(
        tower_patches_on_gpu(model, DType::bf16, DType::bf16, 1024, int64_t{200} << 30), 16384);
}

// The kernel's own conditions and those of a feed-forward, whatever its shape.
void gate_and_up_are_one_product_where_the_kernel_has_it(void **) {
    std::mt19937_64 random(seed_of_run());
    const auto one_of = [&](auto... values) {
        const int64_t all[] = {static_cast<int64_t>(values)...};
        return all[random() % std::size(all)];
    };
    int taken = 0;
    for (int i = 0; i < 2000; ++i) {
        FeedForward feed;
        const int64_t columns = one_of(64, 4096, 2880, 96, 32);
        feed.width = static_cast<int32_t>(one_of(128, 14336, 64, 192));
        feed.activation = static_cast<Activation>(one_of(0, 1, 2, 3));
        const bool gate = random() % 4 != 0, bias = random() % 4 == 0, other = random() % 4 == 0;
        if (gate) feed.gate.values.rows = feed.width;
        feed.gate.values.columns = feed.up.values.columns = columns;
        if (bias) feed.gate.bias.rows = feed.width;
        if (other) feed.up.bias.rows = feed.width;
        for (const DType element : {DType::f32, DType::bf16, DType::f16}) {
            const bool wanted = element != DType::f32 && gate && !bias && !other &&
                                feed.activation != Activation::clamped_swiglu &&
                                columns % 64 == 0 && feed.width % 128 == 0;
            assert_int_equal(takes_gated(element, feed), wanted);
            taken += wanted;
        }
    }
    assert_true(taken > 100);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_token_takes_what_its_models_layers_are_wide),
        cmocka_unit_test(layers_of_feed_forwards_alone_need_no_lists_of_states),
        cmocka_unit_test(prompts_go_in_chunks_where_there_are_kernels),
        cmocka_unit_test(ranks_that_need_nccl_count_it),
        cmocka_unit_test(layers_in_e4m3_have_scales_and_perhaps_a_delta),
        cmocka_unit_test(heads_are_padded_and_what_has_a_state_has_a_multiple_of_sixteen_rows),
        cmocka_unit_test(pages_are_predicted_as_they_were_left_on_an_h200),
        cmocka_unit_test(steps_of_the_benches_models_have_the_documented_size),
        cmocka_unit_test(a_described_gpu_has_the_steps_that_its_backend_chooses),
        cmocka_unit_test(heads_take_their_padding_in_pages_weights_and_time),
        cmocka_unit_test(keys_in_fp8_have_room_to_be_widened_in),
        cmocka_unit_test(what_does_not_fit_says_what_there_is),
        cmocka_unit_test(keys_and_weights_in_f32_have_four_bytes),
        cmocka_unit_test(reproducible_steps_have_larger_buffers_in_predictions_too),
        cmocka_unit_test(towers_have_memory_that_pages_do_not_get),
        cmocka_unit_test(small_devices_have_towers_for_smaller_pictures),
        cmocka_unit_test(gate_and_up_are_one_product_where_the_kernel_has_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
