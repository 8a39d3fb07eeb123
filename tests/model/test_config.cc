// config.json and generation_config.json -> the description of a model, and the rotary
// frequencies. References:
// tests/golden/config_defaults.json and rope.json, made from transformers by scripts/make_golden.py.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>

#include "base/json.h"
#include "model/config.h"
#include "model/model.h"
#include "model/stacked_experts.h"
#include "testing.h"

using namespace batchllm;

namespace {

// The configuration of a directory that holds these two files; generation NULL: only the first.
Result<Model> load(const std::string &config, const char *generation = nullptr) {
    const TemporaryDirectory directory;
    directory.write("config.json", config);
    if (generation != nullptr) directory.write("generation_config.json", generation);
    return describe_model(directory.path());
}

constexpr const char *small =
    R"("hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
       "num_hidden_layers": 3, "max_position_embeddings": 256)";

std::string llama(const std::string &more) {
    return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], )" +
           std::string(small) + (more.empty() ? "" : ", " + more) + "}";
}
std::string family(const std::string &type, const std::string &more) {
    return R"({"model_type": ")" + type + "\", " + small + (more.empty() ? "" : ", " + more) + "}";
}

Model must_load(const std::string &config, const char *generation = nullptr) {
    auto loaded = load(config, generation);
    if (!loaded.ok()) fail_msg("%s\n%s", loaded.status().message().c_str(), config.c_str());
    return std::move(loaded).value();
}

// The layer's mixer, which is of this kind.
template <typename T> T is(const Layer &layer) {
    assert_true(std::holds_alternative<T>(layer.mixer));
    return std::get<T>(layer.mixer);
}

Attention attention(const Model &model, size_t layer = 0) {
    return *model.layers[layer].attention();
}

bool turns_as(const Model &model, const RopeConfig &rope) {
    return model.ropes.size() == 1 &&
           model.ropes[0] == Rope{rope_frequencies(rope, attention(model).head_dim), 1, false};
}

// Loading fails with this code, and the message contains the file's name and each of `parts`.
void must_fail(const std::string &config, int32_t code, std::vector<std::string> parts,
               const char *generation = nullptr) {
    const auto loaded = load(config, generation);
    if (loaded.ok()) fail_msg("was accepted: %s", config.c_str());
    const std::string message = loaded.status().message();
    parts.emplace_back("config.json");
    for (const std::string &part : parts) {
        if (message.find(part) == std::string::npos) {
            fail_msg("\"%s\" lacks \"%s\" for %s", message.c_str(), part.c_str(), config.c_str());
        }
    }
    if (loaded.status().code() != code) {
        fail_msg("code %d, not %d: %s", loaded.status().code(), code, message.c_str());
    }
}

int64_t integer_of(const JsonValue &object, const char *key, int64_t if_null) {
    const auto value = object.find(key);
    return !value || value->is_null() ? if_null : *value->integer(-1, INT32_MAX);
}

// "name [shape]" of the tensors outside the layers, of the first layer and of the last, without the
// head's: a tensor from which the model takes several parts is listed once.
std::set<std::string> tensors_of(const Model &model) {
    std::set<std::string> out;
    const std::string last = "model.layers." + std::to_string(model.layers.size() - 1) + ".";
    for_each_tensor(model, [&](const Tensor &tensor) {
        const bool of_layer = tensor.name.starts_with("model.layers.");
        if (tensor.name == "lm_head.weight") return;
        if (of_layer && !tensor.name.starts_with("model.layers.0.") &&
            !tensor.name.starts_with(last)) {
            return;
        }
        const int64_t rows = tensor.stored_rows > 0 ? tensor.stored_rows : tensor.rows;
        std::string text = tensor.name + ' ' + std::to_string(rows);
        if (tensor.columns > 1) text.append(1, ' ').append(std::to_string(tensor.columns));
        out.insert(text);
    });
    return out;
}

std::set<std::string> tensors_of(const JsonValue &expected) {
    std::set<std::string> out;
    const auto members = *expected.members();
    for (const auto &[name, shape] : members) {
        std::string text(name);
        const auto sizes = *shape.elements();
        for (const JsonValue &size : sizes) {
            text += ' ';
            text += std::to_string(*size.integer(1, INT32_MAX));
        }
        out.insert(text);
    }
    return out;
}

void check_tensors(const std::string &type, const Model &got, const JsonValue &expected) {
    const auto described = tensors_of(got);
    const auto those = tensors_of(*expected.at("tensors"));
    for (const std::string &tensor : those) {
        if (!described.contains(tensor)) fail_msg("%s lacks %s", type.c_str(), tensor.c_str());
    }
    for (const std::string &tensor : described) {
        if (!those.contains(tensor)) fail_msg("%s has %s", type.c_str(), tensor.c_str());
    }
}

void check_rope_theta(const Model &got, const JsonValue &e) {
    for (const Layer &layer : got.layers) {
        const Attention &attention = *layer.attention();
        if (attention.rope < 0) continue;
        const Rope &rope = got.ropes[static_cast<size_t>(attention.rope)];
        RopeConfig plain;
        const char *key = attention.window != 0 ? "windowed_rope_theta" : "rope_theta";
        plain.theta = *e.at(key)->number(0, 1e9);
        if (const auto part = e.given("rope_part");
            part && attention.window == 0 && rope.dims() == attention.head_dim) {
            plain.kind = RopeKind::proportional;
            plain.part = *part->number(0, 1);
        }
        assert_true(rope.frequencies == rope_frequencies(plain, rope.dims()));
    }
}

void absent_keys_have_the_defaults_of_transformers(void **) {
    auto document = JsonDocument::load("golden/config_defaults.json", 1);
    assert_true(document.ok());
    const JsonValue root = document->root();
    const auto members = *root.members();
    assert_true(members.size() >= 18);
    for (const auto &[key, e] : members) {
        const std::string type(key);
        const Model got = must_load(R"({"model_type": ")" + type + "\"}");
        assert_int_equal(got.vocabulary, integer_of(e, "vocab_size", -2));
        assert_int_equal(got.hidden, integer_of(e, "hidden_size", -2));
        assert_int_equal(got.layers[0].feed_forward()->width,
                         integer_of(e, "intermediate_size", -2));
        assert_int_equal(got.layers.size(), integer_of(e, "num_hidden_layers", -2));
        assert_int_equal(attention(got).heads, integer_of(e, "num_attention_heads", -2));
        assert_int_equal(attention(got).kv_heads, integer_of(e, "num_key_value_heads", -2));
        assert_int_equal(attention(got).head_dim,
                         integer_of(e, "head_dim", got.hidden / attention(got).heads));
        assert_int_equal(got.max_positions, integer_of(e, "max_position_embeddings", -2));
        const auto windows = *e.at("windows")->elements();
        assert_int_equal(windows.size(), got.layers.size());
        for (size_t i = 0; i < windows.size(); ++i) {
            assert_int_equal(attention(got, i).window, *windows[i].integer(0, INT32_MAX));
        }
        // A default outside the vocabulary is ignored.
        const int64_t bos = integer_of(e, "bos_token_id", -1);
        assert_int_equal(got.bos_token, bos < got.vocabulary ? bos : -1);
        std::vector<int32_t> eos;
        if (const auto tokens = e.given("eos_token_id")) {
            assert_true(read_tokens(*tokens, INT32_MAX, &eos).ok());
            std::erase_if(eos, [&](int32_t token) { return token >= got.vocabulary; });
        }
        assert_true(got.eos_tokens == eos);
        assert_true(got.final_norm.epsilon == static_cast<float>(*e.at("epsilon")->number(0, 1)));
        assert_true(got.layers[0].feed_forward()->activation ==
                    *read_activation(e, "activation", Activation::clamped_swiglu));
        assert_int_equal(got.tied, *e.at("tie_word_embeddings")->boolean());
        // YaRN and llama3 by default
        if (type != "ministral3" && type != "cwm") check_rope_theta(got, e);
        check_tensors(type, got, e);
        assert_false(got.dtype_stated);
    }
}

// ---- Short convolutions ----

void layers_of_lfm2_convolve_or_attend_as_either_key_says(void **) {
    const Model by_index = must_load(family("lfm2", R"("full_attn_idxs": [1, 9])"));
    const Model by_type =
        must_load(family("lfm2", R"("layer_types": ["conv", "full_attention", "conv"],
                                    "full_attn_idxs": [0])")); // which is then ignored
    for (const Model *model : {&by_index, &by_type}) {
        for (const size_t i : {0, 2}) {
            const Layer &layer = model->layers[i];
            assert_int_equal(is<ShortConvolution>(layer).channels(), 64);
            assert_int_equal(layer.state_size(), 2 * 64);
        }
        assert_true(model->layers[1].attention() != nullptr);
        assert_int_equal(model->kv_groups.size(), 1);
        assert_true(model->kv_groups[0].layers == std::vector<int32_t>{1});
        assert_int_equal(model->state_size(), 2 * 2 * 64);
        assert_true(model->tied);
    }
    // With neither key, all layers attend, as in transformers.
    assert_int_equal(must_load(family("lfm2", "")).state_size(), 0);
    assert_int_equal(
        must_load(family("lfm2", R"("full_attn_idxs": [0], "conv_L_cache": 5)")).state_size(),
        2 * 4 * 64);
}

// B, C and x are thirds of one tensor, and of its bias.
void the_input_of_a_short_convolution_is_one_tensor(void **) {
    const Model model = must_load(family("lfm2", R"("full_attn_idxs": [1], "conv_bias": true)"));
    const auto &s = is<ShortConvolution>(model.layers[2]);
    const std::string prefix = "model.layers.2.conv.";
    int64_t row = 0;
    for (const Weight *w : {&s.b, &s.c, &s.x}) {
        for (const Tensor *tensor : {&w->values, &w->bias}) {
            assert_int_equal(tensor->rows, 64);
            assert_int_equal(tensor->stored_rows, 3 * 64);
            assert_int_equal(tensor->first_row, row);
        }
        assert_true(w->values.name == prefix + "in_proj.weight");
        assert_true(w->bias.name == prefix + "in_proj.bias");
        row += 64;
    }
    assert_true(s.filter.values.name == prefix + "conv.weight" && s.filter.columns() == 3);
    assert_true(s.filter.bias.name == prefix + "conv.bias" && s.o.bias);
    assert_true(
        !is<ShortConvolution>(must_load(family("lfm2", R"("full_attn_idxs": [1])")).layers[2])
             .b.bias);
}

void feed_forwards_of_lfm2_are_as_wide_as_its_keys_make_them(void **) {
    const auto width = [](const std::string &more) {
        return must_load(family("lfm2", more)).layers[0].feed_forward()->width;
    };
    assert_int_equal(width(R"("intermediate_size": 300)"), 256);
    assert_int_equal(width(R"("intermediate_size": 7, "block_ff_dim": 385)"), 256);
    assert_int_equal(width(R"("block_ff_dim": 386)"), 512); // 257.3
    assert_int_equal(width(R"("block_ff_dim": 12288)"), 8192);
    assert_int_equal(width(R"("block_ff_dim": 100, "block_multiple_of": 1)"), 66);
    assert_int_equal(
        width(R"("block_ff_dim": 100, "block_multiple_of": 4, "block_ffn_dim_multiplier": 1.3)"),
        88); // 85.8
    assert_int_equal(width(R"("block_ff_dim": 100, "block_ffn_dim_multiplier": null)"), 66);
    assert_int_equal(width(R"("block_ff_dim": 100, "block_auto_adjust_ff_dim": false)"), 100);
    must_fail(family("lfm2", R"("block_ff_dim": 100, "block_ffn_dim_multiplier": 0)"),
              BATCHLLM_ERROR_MODEL_FORMAT, {"block_ff_dim", "makes it 0"});
    must_fail(family("lfm2", R"("block_ffn_dim_multiplier": 1000)"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"makes it"});
}

void lfm2s_other_spellings_are_read(void **) {
    assert_true(!must_load(family("lfm2", R"("tie_embedding": false)")).tied);
    assert_true(!must_load(family("lfm2", R"("tie_word_embeddings": false)")).tied);
    assert_true(
        must_load(family("lfm2", R"("tie_embedding": true, "tie_word_embeddings": false)")).tied);
    RopeConfig plain;
    plain.theta = 5e5;
    for (const char *more :
         {R"("theta": 500000.0)", R"("rope_theta": 5e5)", R"("theta": 5e5, "rope_theta": 5e5)",
          R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5})"}) {
        assert_true(turns_as(must_load(family("lfm2", more)), plain));
    }
    for (const char *more : {R"("theta": 500000.0, "rope_theta": 1e6)",
                             R"("theta": 5e5, "rope_parameters": {"rope_theta": 1e6})"}) {
        must_fail(family("lfm2", more), BATCHLLM_ERROR_MODEL_FORMAT, {"theta"});
    }
    must_load(family("lfm2", R"("block_norm_eps": 1e-5, "block_use_swiglu": true)"));
}

void experts_of_lfm2_moe_follow_its_dense_layers(void **) {
    const std::string types = R"("layer_types": ["conv", "full_attention", "conv"])";
    const std::string config = family("lfm2_moe", types + R"(, "num_dense_layers": 1,
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "intermediate_size": 100, "routed_scaling_factor": 2.5)");
    const Model model = must_load(config);
    assert_true(model.layers[0].experts() == nullptr &&
                model.layers[0].feed_forward()->width == 100);
    for (const size_t i : {1, 2}) {
        const Experts &experts = *model.layers[i].experts();
        const std::string prefix = "model.layers." + std::to_string(i) + ".feed_forward.";
        assert_true(experts.each.size() == 6 && model.layers[i].feed_forward() == nullptr);
        const Router &router = experts.router;
        assert_true(router.kind == RouterKind::sigmoid && router.normalised);
        assert_true(router.scale == 2.5F && router.epsilon == 1e-6F && router.chosen == 2);
        assert_true(router.correction.name == prefix + "expert_bias");
        assert_true(router.weight.values.name == prefix + "gate.weight");
        assert_true(experts.each[5].gate.values.name == prefix + "experts.5.w1.weight");
        assert_true(experts.each[5].up.values.name == prefix + "experts.5.w3.weight");
        assert_true(experts.each[5].down.values.name == prefix + "experts.5.w2.weight");
    }
    const Model plain =
        must_load(family("lfm2_moe", types + R"(, "use_expert_bias": false, "num_experts": 4,
                                                   "norm_topk_prob": false)"));
    assert_true(!plain.layers[2].experts()->router.correction);
    assert_true(!plain.layers[2].experts()->router.normalised &&
                plain.layers[1].experts() == nullptr);
    // In one tensor per layer, as in transformers 5.
    Model stacked = must_load(config);
    find_stacked_experts(
        [](const std::string &name) { return name.ends_with("experts.gate_up_proj"); }, &stacked);
    const FeedForward &last = stacked.layers[2].experts()->each[5];
    assert_true(last.up.values.name == "model.layers.2.feed_forward.experts.gate_up_proj");
    assert_true(last.up.values.first_row == 5 * 48 + 24 && last.up.values.stored_stack == 6);
    assert_true(last.down.values.name == "model.layers.2.feed_forward.experts.down_proj");
    Model both = must_load(config);
    find_stacked_experts([](const std::string &) { return true; }, &both);
    assert_true(both.layers[2].experts()->each[5].up.values.stored_stack == 0);
}

void defaults_of_lfm2_are_those_of_transformers(void **) {
    const Model dense = must_load(R"({"model_type": "lfm2"})");
    assert_true(dense.vocabulary == 65536 && dense.hidden == 2560 && dense.layers.size() == 32);
    assert_int_equal(dense.layers[0].feed_forward()->width, 8192);
    const Model moe = must_load(R"({"model_type": "lfm2_moe", "num_hidden_layers": 3,
                      "layer_types": ["full_attention", "conv", "conv"]})");
    assert_true(moe.hidden == 2048 && moe.layers[0].feed_forward()->width == 7168);
    assert_true(moe.layers[1].experts() == nullptr && moe.layers[2].experts()->each.size() == 32);
    assert_int_equal(moe.layers[2].experts()->each[0].width, 1792);
    assert_int_equal(moe.layers[2].experts()->router.chosen, 4);
    assert_true(bool(moe.layers[2].experts()->router.correction));
    assert_int_equal(is<ShortConvolution>(moe.layers[1]).width, 3);
    assert_true(!is<ShortConvolution>(moe.layers[1]).filter.bias);
    for (const Model *model : {&dense, &moe}) {
        const Attention a = attention(*model);
        assert_true(a.heads == 32 && a.kv_heads == 8 && a.head_dim == model->hidden / 32);
        assert_true(a.q_norm && a.q_norm.epsilon == 1e-5F && model->max_positions == 128000);
        assert_true(model->tied && model->bos_token == 1);
        assert_true(model->eos_tokens == std::vector<int32_t>{2});
        RopeConfig rope;
        rope.theta = 1e6;
        assert_true(turns_as(*model, rope));
    }
}

void an_lfm2_whose_keys_do_not_fit_is_refused_by_name(void **) {
    const auto fails = [&](const char *type, const std::string &more, int32_t code,
                           const char *key) { must_fail(family(type, more), code, {key}); };
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    for (const char *type : {"lfm2", "lfm2_moe"}) {
        fails(type, R"("layer_types": ["conv", "full_attention"])", format,
              "\"layer_types\" has 2 entries");
        fails(type, R"("layer_types": ["conv", "full_attention", "sliding_attention"])",
              unsupported, "layer_types");
        fails(type, R"("layer_types": ["conv", "conv", "conv"])", unsupported, "layer_types");
        const std::string types = R"("layer_types": ["conv", "full_attention", "conv"], )";
        fails(type, types + R"("conv_L_cache": 1)", format, "conv_L_cache");
        fails(type, types + R"("conv_L_cache": 65)", format, "conv_L_cache");
        fails(type, types + R"("conv_bias": 2)", format, "conv_bias");
        fails(type, types + R"("use_pos_enc": false)", unsupported, "use_pos_enc");
        fails(type, types + R"("block_use_swiglu": false)", unsupported, "block_use_swiglu");
        fails(type, types + R"("block_norm_eps": 1e-6)", format, "block_norm_eps");
        fails(type, types + R"("rope_scaling": {"type": "dynamic", "factor": 2})", unsupported,
              "dynamic");
    }
    fails("lfm2", R"("full_attn_idxs": [])", unsupported, "full_attn_idxs");
    fails("lfm2", R"("full_attn_idxs": [-1])", format, "full_attn_idxs");
    fails("lfm2_moe", R"("full_attn_idxs": [1])", format, "layer_types");
    fails("lfm2_moe", R"("layer_types": ["conv", "full_attention", "conv"], "num_experts": 3,
                         "num_experts_per_tok": 4)",
          format, "num_experts_per_tok");
    must_fail(R"({"model_type": "lfm2_vl", "text_config": {"model_type": "lfm2_moe"}})",
              unsupported, {"text_config.model_type"});
}

// ---- Hybrids ----

std::string hybrid(const std::string &type, const std::string &more) {
    return family(type, R"("head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                          "linear_key_head_dim": 8, "linear_value_head_dim": 16)" +
                            (more.empty() ? "" : ", " + more));
}

void layer_types_of_a_hybrid_say_which_layers_have_a_delta_net(void **) {
    const Model model = must_load(hybrid("qwen3_5_text", R"("layer_types": ["linear_attention",
                                         "full_attention", "linear_attention"])"));
    for (const size_t i : {0, 2}) {
        const Layer &layer = model.layers[i];
        assert_int_equal(is<DeltaNet>(layer).channels(), 2 * 2 * 8 + 6 * 16);
        assert_int_equal(layer.linear_attention()->input_rows(), 128 + 96 + 12);
        assert_int_equal(layer.linear_attention()->state_size(), 6 * 8 * 16 + 3 * 128);
    }
    const Layer &full = model.layers[1];
    assert_true(full.linear_attention() == nullptr && full.attention()->gated);
    assert_int_equal(full.attention()->q.rows(), 2 * 4 * 32);
    assert_true(full.before_attention.offset == 1 && full.attention()->q_norm.offset == 1);
    assert_true(model.layers[0].linear_attention()->norm.offset == 0);
    assert_int_equal(model.ropes[0].dims(), 8); // a quarter of the head
    // Keys and values of the one layer that has them; the states of the other two.
    assert_int_equal(model.kv_groups.size(), 1);
    assert_true(model.kv_groups[0].layers == std::vector<int32_t>{1});
    assert_int_equal(model.state_size(), 2 * (6 * 8 * 16 + 3 * 128));
    // By default every fourth layer attends.
    const Model four = must_load(R"({"model_type": "qwen3_next", "num_hidden_layers": 8})");
    for (size_t i = 0; i < 8; ++i)
        assert_true((four.layers[i].linear_attention() != nullptr) == (i % 4 != 3));
    const Model two = must_load(hybrid("qwen3_next", R"("full_attention_interval": 2)"));
    assert_true((two.layers[0].linear_attention() != nullptr) &&
                two.layers[1].linear_attention() == nullptr);
}

// The parts of one matrix are in the order q, k, v, z, b, a of all heads, wherever they are in the
// files.
void a_delta_nets_input_is_in_one_order_in_both_families(void **) {
    const Model next =
        must_load(hybrid("qwen3_next", R"("num_experts": 0, "full_attention_interval": 3)"));
    const Model newer = must_load(hybrid("qwen3_5_text", R"("full_attention_interval": 3)"));
    for (const Model *model : {&next, &newer}) {
        const auto &delta = is<DeltaNet>(model->layers[0]);
        int64_t rows = 0;
        for (const Tensor &part : delta.input) rows += part.rows;
        assert_int_equal(rows, delta.input_rows());
    }
    // For the second key head, whose rows begin at 8 + 8 + 48 + 48: its key and the gates z.
    const auto &delta = is<DeltaNet>(next.layers[0]);
    assert_int_equal(delta.input.size(), 6 * 2);
    assert_int_equal(delta.input[3].first_row, 112 + 8);
    assert_int_equal(delta.input[3].rows, 8);
    assert_int_equal(delta.input[7].first_row, 112 + 8 + 8 + 48);
    assert_int_equal(delta.input[7].rows, 48);
    assert_string_equal(delta.input[7].name.c_str(),
                        "model.layers.0.linear_attn.in_proj_qkvz.weight");
    assert_int_equal(delta.input[11].first_row, 6 + 3); // a, after the b of its head
}

void a_hybrid_whose_keys_do_not_fit_is_refused_by_name(void **) {
    for (const char *type : {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}) {
        const auto fails = [&](const std::string &more, int32_t code, const char *key) {
            must_fail(family(type, R"("head_dim": 32, )" + more), code, {key});
        };
        fails(R"("layer_types": ["linear_attention", "full_attention"])",
              BATCHLLM_ERROR_MODEL_FORMAT, "\"layer_types\" has 2 entries");
        fails(R"("layer_types": ["linear_attention", "full_attention", "mamba"])",
              BATCHLLM_ERROR_UNSUPPORTED, "layer_types");
        fails(R"("layer_types": ["linear_attention", "linear_attention", "linear_attention"])",
              BATCHLLM_ERROR_UNSUPPORTED, "layer_types");
        fails(R"("layer_types": [1, 2, 3])", BATCHLLM_ERROR_MODEL_FORMAT, "layer_types");
        fails(R"("linear_num_value_heads": 24)", BATCHLLM_ERROR_MODEL_FORMAT,
              "\"linear_num_value_heads\" is 24");
        fails(R"("linear_num_key_heads": 0)", BATCHLLM_ERROR_MODEL_FORMAT, "linear_num_key_heads");
        fails(R"("linear_key_head_dim": 1000000)", BATCHLLM_ERROR_MODEL_FORMAT,
              "linear_key_head_dim");
        fails(R"("linear_conv_kernel_dim": 1)", BATCHLLM_ERROR_MODEL_FORMAT,
              "linear_conv_kernel_dim");
        fails(R"("linear_conv_kernel_dim": 4.5)", BATCHLLM_ERROR_MODEL_FORMAT,
              "linear_conv_kernel_dim");
        fails(R"("full_attention_interval": 0)", BATCHLLM_ERROR_MODEL_FORMAT,
              "full_attention_interval");
        fails(R"("full_attention_interval": 7)", BATCHLLM_ERROR_UNSUPPORTED,
              "full_attention_interval");
        fails(R"("hidden_act": "gelu")", BATCHLLM_ERROR_UNSUPPORTED, "hidden_act");
        fails(R"("partial_rotary_factor": 0.1)", BATCHLLM_ERROR_UNSUPPORTED,
              "partial_rotary_factor");
    }
    // More parts than a description can have.
    must_fail(R"({"model_type": "qwen3_5_text", "num_hidden_layers": 4096,
                  "linear_num_key_heads": 16, "linear_num_value_heads": 16})",
              BATCHLLM_ERROR_MODEL_FORMAT, {"linear_num_key_heads"});
}

void defaults_of_hybrids_are_those_of_transformers(void **) {
    const Model dense = must_load(R"({"model_type": "qwen3_5_text"})");
    assert_true(dense.vocabulary == 248320 && dense.hidden == 4096 && dense.layers.size() == 32);
    const Attention full = attention(dense, 3);
    assert_true(full.heads == 16 && full.kv_heads == 4 && full.head_dim == 256);
    assert_int_equal(dense.layers[0].feed_forward()->width, 12288);
    const auto &delta = is<DeltaNet>(dense.layers[0]);
    assert_true(delta.key_heads == 16 && delta.value_heads == 32 && delta.key_dim == 128 &&
                delta.value_dim == 128 && delta.width == 4);
    assert_int_equal(dense.ropes[0].dims(), 64);
    const Model next = must_load(R"({"model_type": "qwen3_next"})");
    assert_true(next.layers.size() == 48 && next.hidden == 2048);
    assert_int_equal(next.layers[5].experts()->each.size(), 512);
    assert_int_equal(next.layers[5].experts()->router.chosen, 10);
    assert_true(next.layers[5].experts()->router.normalised && bool(next.layers[5].shared()->gate));
    assert_int_equal(next.layers[5].experts()->each[0].width, 512);
    // A text model that was taken out of its whole model and kept the whole's class.
    must_load(R"({"model_type": "qwen3_5_moe_text",
                  "architectures": ["Qwen3_5MoeForConditionalGeneration"]})");
    must_fail(R"({"model_type": "qwen3_5_moe_text",
                  "architectures": ["Qwen3_5ForConditionalGeneration"]})",
              BATCHLLM_ERROR_UNSUPPORTED, {"architectures[0]"});
    const Model sparse = must_load(R"({"model_type": "qwen3_5_moe_text"})");
    assert_true(sparse.layers.size() == 40 && sparse.layers[0].experts()->each.size() == 256);
    assert_true(attention(sparse, 3).kv_heads == 2 &&
                sparse.layers[0].feed_forward()->width == 512);
}

// ---- Granite 4 ----

// 3 layers, with hidden size 64 for those of `small`: mamba, attention, mamba.
std::string granite4(const std::string &more) {
    return family("granitemoehybrid", R"("layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 24, "mamba_d_conv": 3)" +
                                          (more.empty() ? "" : ", " + more));
}

void a_mamba_layers_parts_are_in_the_order_of_all_linear_attention(void **) {
    const Model model = must_load(granite4(""));
    assert_true(model.layers[1].attention()->rope == -1 && model.ropes.empty());
    assert_true(model.layers[1].linear_attention() == nullptr && model.layers[1].attention()->q);
    const int32_t values = 2 * model.hidden, keys = 2 * 24, channels = 2 * keys + values;
    for (const size_t i : {0, 2}) {
        const auto &mamba = is<Mamba2>(model.layers[i]);
        assert_true(mamba.key_heads == 2 && mamba.value_heads == 8 && mamba.norm_parts == 2);
        assert_int_equal(mamba.value_dim, values / 8);
        assert_int_equal(mamba.channels(), channels);
        assert_int_equal(mamba.input_rows(), channels + values + 8);
        assert_int_equal(mamba.state_size(), values * 24 + 2 * channels);
        // C, B, x, z and dt of rows z, x, B, C, dt; C, B and x of a convolution over x, B, C.
        const int64_t firsts[] = {2 * values + keys, 2 * values, values, 0, values + channels};
        int64_t rows = 0;
        for (size_t p = 0; p < std::size(firsts); ++p) {
            assert_int_equal(mamba.input[p].first_row, firsts[p]);
            assert_int_equal(mamba.input[p].stored_rows, mamba.input_rows());
            rows += mamba.input[p].rows;
        }
        assert_int_equal(rows, mamba.input_rows());
        const int64_t of_channels[] = {values + keys, values, 0};
        for (size_t p = 0; p < 3; ++p) {
            const Weight &part = mamba.convolution[p];
            assert_int_equal(part.values.first_row, of_channels[p]);
            assert_int_equal(part.bias.first_row, of_channels[p]);
            assert_int_equal(part.bias.rows, part.values.rows);
            assert_string_equal(part.bias.name.substr(15).c_str(), "mamba.conv1d.bias");
        }
    }
    assert_int_equal(model.layers[0].experts()->each.size(), 8);
    assert_true(model.kv_groups[0].layers == std::vector<int32_t>{1});
}

void every_spelling_of_a_granite_4_is_read(void **) {
    // transformers 5's names, and an older key.
    for (const char *types : {R"("layer_types": ["linear_attention", "full_attention", "mamba"])",
                              R"("layers_block_type": ["mamba", "attention", "mamba"])"}) {
        const Model model = must_load(family("granitemoehybrid", types));
        assert_true(model.layers[0].linear_attention() != nullptr &&
                    model.layers[1].linear_attention() == nullptr);
    }
    const auto mamba = [](const std::string &more) {
        return is<Mamba2>(must_load(granite4(more)).layers[0]);
    };
    assert_true(mamba(R"("mamba_d_head": "auto")").value_dim == mamba("").value_dim);
    assert_true(mamba(R"("mamba_conv_bias": false)").convolution[0].bias.rows == 0);
    assert_true(std::isinf(mamba(R"("time_step_limit": null)").most_step));
    assert_true(
        std::isinf(mamba(R"("time_step_limit": [0.0, {"__float__": "Infinity"}])").most_step));
    // As written by transformers before 5.
    assert_true(std::isinf(mamba(R"("time_step_limit": [0.0, Infinity])").most_step));
    assert_true(std::isinf(mamba(R"("not_read": [NaN, -Infinity])").most_step));
    const Mamba2 limited = mamba(R"("time_step_limit": [0.25, 8])");
    assert_true(limited.least_step == 0.25F && limited.most_step == 8);
    assert_int_equal(must_load(granite4(R"("position_embedding_type": "rope")")).ropes.size(), 1);
    assert_true(must_load(granite4(R"("position_embedding_type": "nope")")).ropes.empty());
    // Dense: only the feed-forward that otherwise shares a layer with experts.
    const Model dense = must_load(granite4(
        R"("num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 48)"));
    assert_true(dense.layers[0].experts() == nullptr &&
                dense.layers[0].feed_forward()->width == 48);
    assert_int_equal(dense.layers[0].feed_forward()->up.values.first_row, 48);
    // Without a Mamba layer, its keys are ignored.
    const Model attends = must_load(family("granitemoehybrid", R"("mamba_n_heads": 7,
        "layer_types": ["attention", "attention", "attention"])"));
    assert_true(attends.state_size() == 0 && attends.kv_groups.size() == 1);
    // Also with a shared expert and without any Mamba.
    const Model shared = must_load(family("granitemoeshared", R"("shared_intermediate_size": 40)"));
    assert_true(shared.layers[0].feed_forward()->width == 40 &&
                shared.layers[0].experts() != nullptr);
    assert_true(must_load(family("granitemoeshared", "")).layers[0].feed_forward() == nullptr);
}

void defaults_of_a_granite_4_are_those_of_transformers(void **) {
    const Model model = must_load(
        R"({"model_type": "granitemoehybrid", "num_hidden_layers": 2, "layer_types": ["mamba", "attention"]})");
    assert_true(model.vocabulary == 32000 && model.hidden == 4096 && !model.tied);
    assert_true(model.max_positions == 2048 && model.bos_token == 1 &&
                model.eos_tokens == std::vector<int32_t>{2});
    const auto &mamba = is<Mamba2>(model.layers[0]);
    assert_true(mamba.value_heads == 128 && mamba.value_dim == 64 && mamba.key_heads == 1 &&
                mamba.key_dim == 256 && mamba.width == 4 && mamba.convolution[0].bias);
    assert_true(mamba.least_step == 0 && std::isinf(mamba.most_step));
    const Attention full = attention(model, 1);
    assert_true(full.heads == 32 && full.kv_heads == 32 && full.head_dim == 128 && full.scale == 1);
    const Layer &layer = model.layers[1];
    assert_true(layer.experts()->each.size() == 8 && layer.experts()->router.chosen == 2);
    assert_true(layer.experts()->each[0].width == 11008 && layer.feed_forward()->width == 1024);
    assert_true(layer.residual_scale == 1 && model.embedding_scale == 1 && model.logits_scale == 1);
    assert_true(model.final_norm.epsilon == 1e-6F);
}

void a_granite_4_whose_keys_do_not_fit_is_refused_by_name(void **) {
    const auto fails = [&](const std::string &more, int32_t code, std::vector<std::string> parts) {
        must_fail(granite4(more), code, std::move(parts));
    };
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(R"({"model_type": "granitemoehybrid"})", other, {"layer_types"}); // only Mamba
    const auto types = [](const std::string &list) {
        return family("granitemoehybrid", "\"layer_types\": " + list);
    };
    must_fail(types(R"(["mamba", "mamba", "mamba"])"), other, {"layer_types"});
    must_fail(family("granitemoehybrid", R"("layers_block_type": ["mamba", "mamba", "mamba"])"),
              other, {"layers_block_type"});
    must_fail(types(R"(["mamba", "attention"])"), format, {"\"layer_types\" has 2 entries"});
    must_fail(types(R"(["mamba", "attention", "conv"])"), other, {"layer_types[2]", "conv"});
    fails(R"("mamba_d_head": 5)", format, {"mamba_d_head", "is 5"});
    fails(R"("mamba_d_head": "wide")", format, {"mamba_d_head"});
    fails(R"("mamba_expand": 0)", format, {"mamba_expand"});
    fails(R"("mamba_proj_bias": true)", other, {"mamba_proj_bias"});
    fails(R"("hidden_act": "gelu_pytorch_tanh")", other, {"hidden_act"});
    fails(R"("time_step_limit": [1])", format, {"time_step_limit"});
    fails(R"("time_step_limit": [1, 0.5])", format, {"time_step_limit"});
    fails(R"("time_step_limit": [0, {"__float__": "NaN"}])", format, {"time_step_limit[1]"});
    fails(R"("time_step_limit": [0, NaN])", format, {"\"time_step_limit[1]\" is NaN"});
    fails(R"("time_step_limit": [Infinity, Infinity])", format,
          {"\"time_step_limit[0]\" is Infinity"});
    fails(R"("rms_norm_eps": NaN)", format, {"\"rms_norm_eps\" is NaN"});
    fails(R"("position_embedding_type": "rope", "rope_scaling": Infinity)", format,
          {"\"rope_scaling\" is Infinity"});
    fails(R"("position_embedding_type": "alibi")", other, {"position_embedding_type", "alibi"});
    fails(R"("normalization_function": "layernorm")", other, {"normalization_function"});
    fails(R"("num_local_experts": -1)", format, {"num_local_experts"});
    fails(R"("num_experts_per_tok": 9)", format, {"num_experts_per_tok"});
    fails(R"("shared_intermediate_size": 0)", format, {"shared_intermediate_size"});
    const auto mamba = [&](const std::string &keys, std::vector<std::string> parts) {
        must_fail(family("granitemoehybrid",
                         R"("layer_types": ["mamba", "attention", "mamba"], )" + keys),
                  format, std::move(parts));
    };
    mamba(R"("mamba_n_heads": 7)", {"\"mamba_n_heads\" is 7"});
    mamba(R"("mamba_n_heads": 8, "mamba_n_groups": 3)", {"\"mamba_n_groups\" is 3"});
    mamba(R"("mamba_n_heads": 8, "mamba_d_conv": 1)", {"mamba_d_conv", "is 1"});
}

// ---- Bamba ----

std::string bamba(const std::string &more) {
    return family("bamba", R"("attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_n_groups": 2)" +
                               (more.empty() ? "" : ", " + more));
}

void layers_of_bamba_attend_where_its_list_says(void **) {
    const Model model = must_load(bamba(R"("attention_bias": true, "mlp_bias": true)"));
    assert_true(model.layers.size() == 3 &&
                model.final_norm.weight.name == "model.final_layernorm.weight");
    for (size_t i = 0; i < 3; ++i) {
        const Layer &layer = model.layers[i];
        assert_true((layer.attention() != nullptr) == (i == 1) &&
                    (layer.linear_attention() != nullptr) == (i != 1));
        const std::string prefix = "model.layers." + std::to_string(i) + ".";
        assert_true(layer.before_feed_forward.weight.name == prefix + "pre_ff_layernorm.weight");
        assert_true(layer.feed_forward()->gate.values.name ==
                    prefix + "feed_forward.gate_proj.weight");
        assert_true(layer.feed_forward()->down.bias && layer.feed_forward()->width == 14336);
        if (i == 1) continue;
        const auto &mamba = is<Mamba2>(layer);
        assert_true(mamba.key_heads == 2 && mamba.norm_parts == 2 && mamba.key_dim == 256);
        assert_true(mamba.o.values.name == prefix + "mamba.out_proj.weight");
    }
    const Attention full = attention(model, 1);
    assert_true(full.q.bias && full.o.bias && full.head_dim == 16);
    assert_int_equal(model.ropes[0].dims(), 8);
    const Model plain = must_load(R"({"model_type": "bamba", "attn_layer_indices": [9]})");
    assert_true(plain.vocabulary == 128000 && plain.hidden == 4096 && plain.layers.size() == 32);
    assert_true(plain.max_positions == 262144 && plain.final_norm.epsilon == 1e-5F && !plain.tied);
    assert_true(plain.bos_token == 1 && plain.eos_tokens == std::vector<int32_t>{2});
    assert_true(attention(plain, 9).kv_heads == 8 && attention(plain, 9).head_dim == 128);
    assert_int_equal(plain.layers[0].linear_attention()->value_heads, 128);
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(family("bamba", ""), format, {"attn_layer_indices"});
    must_fail(family("bamba", R"("attn_layer_indices": [])"), other, {"attn_layer_indices"});
    must_fail(family("bamba", R"("attn_layer_indices": [3])"), format, {"attn_layer_indices[0]"});
    must_fail(bamba(R"("mamba_proj_bias": true)"), other, {"mamba_proj_bias"});
    must_fail(bamba(R"("mamba_d_head": 5)"), format, {"mamba_d_head", "is 5"});
    // transformers uses 0.5 whatever the top-level key says.
    must_fail(bamba(R"("partial_rotary_factor": 0.25)"), other, {"partial_rotary_factor", "0.25"});
    const Model quarter = must_load(bamba(R"("rope_parameters": {"rope_type": "default",
        "rope_theta": 1e4, "partial_rotary_factor": 0.25})"));
    assert_int_equal(quarter.ropes[0].dims(), 4);
    assert_int_equal(must_load(bamba(R"("partial_rotary_factor": 0.5)")).ropes[0].dims(), 8);
}

// ---- Nemotron-H ----

std::string times(const std::string &pattern, int32_t count) {
    std::string all;
    for (int32_t i = 0; i < count; ++i) all += pattern;
    return all;
}

// Hidden size 64: Mamba-2, a feed-forward, attention, experts.
std::string nemotron(const std::string &more,
                     const char *layers = R"("hybrid_override_pattern": "M-*E")") {
    return std::string(
               R"({"model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100,
        "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 72, "mamba_num_heads": 6, "mamba_head_dim": 20,
        "n_groups": 2, "ssm_state_size": 24, "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 40, )") +
           layers + (more.empty() ? "" : ", " + more) + "}";
}

void a_layer_of_falcon_h1_is_mamba_with_attention_beside_it(void **) {
    const auto falcon = [](const std::string &more) {
        return family("falcon_h1",
                      R"("mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_head": 8)" + more);
    };
    const Model model = must_load(falcon(R"(, "key_multiplier": 0.5, "attention_in_multiplier": 3,
        "attention_bias": true, "ssm_in_multiplier": 2, "ssm_multipliers": [1, 2, 3, 4, 5],
        "mlp_multipliers": [7, 0.25], "lm_head_multiplier": 0.1)"));
    assert_int_equal(model.layers.size(), 2 * 3);
    for (size_t i = 0; i < 6; i += 2) {
        const Layer &alone = model.layers[i], &beside = model.layers[i + 1];
        assert_true(!alone.feeds() && alone.before_attention && !alone.beside);
        assert_true(beside.beside && !beside.before_attention && beside.feed_forward() != nullptr);
        const auto &mamba = is<Mamba2>(alone);
        assert_true(mamba.values_size() == 48 && mamba.value_dim == 8 && !mamba.norm);
        std::vector<float> factors; // of C, B, x, z, dt
        for (const Tensor &part : mamba.input) factors.push_back(part.factor);
        assert_true(factors == (std::vector<float>{8, 6, 4, 2, 10}));
        const Weight &k = beside.attention()->k;
        assert_true(k.values.factor == 1.5F && k.bias.factor == 0.5F && !k.values.as_stored());
        assert_true(beside.feed_forward()->gate.values.factor == 7 &&
                    beside.feed_forward()->down.values.factor == 0.25F);
    }
    assert_true(model.logits_scale == 0.1F);
    const auto mamba = [&](const std::string &more) {
        return is<Mamba2>(must_load(falcon(more)).layers[0]);
    };
    assert_true(mamba(R"(, "mamba_rms_norm": true)").norm_first);
    assert_false(mamba(R"(, "mamba_rms_norm": true, "mamba_norm_before_gate": false)").norm_first);
    // Null: mamba_expand * hidden_size.
    const Model expanded = must_load(
        family("falcon_h1", R"("mamba_d_ssm": null, "mamba_expand": 3, "mamba_n_heads": 6)"));
    assert_int_equal(expanded.layers[0].linear_attention()->values_size(), 3 * expanded.hidden);
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(falcon(R"(, "ssm_multipliers": [1, 2])"), format, {"ssm_multipliers", "5 numbers"});
    must_fail(falcon(R"(, "mlp_multipliers": [1, "2"])"), format, {"mlp_multipliers[1]"});
    must_fail(falcon(R"(, "hidden_act": "gelu_pytorch_tanh")"), other, {"hidden_act"});
    must_fail(falcon(R"(, "mamba_proj_bias": true)"), other, {"mamba_proj_bias"});
    must_fail(family("falcon_h1", R"("mamba_d_ssm": 50, "mamba_n_heads": 6)"), format,
              {"mamba_n_heads", "mamba_d_ssm, 50"});
}

void layers_of_llama_4_are_in_chunks_where_they_have_a_rope(void **) {
    const auto llama4 = [](const std::string &more) {
        return family("llama4_text", R"("num_local_experts": 4, "attention_chunk_size": 16,
            "intermediate_size_mlp": 72)" +
                                         more);
    };
    const Model model = must_load(llama4(R"(, "no_rope_layers": [1, 0, 1], "floor_scale": 9,
        "interleave_moe_layer_step": 2, "attn_temperature_tuning": 4)"));
    for (size_t i = 0; i < 3; ++i) {
        const Attention &a = *model.layers[i].attention();
        assert_true(a.chunked == (i != 1) && a.window == (i != 1 ? 16 : 0));
        assert_true((a.rope >= 0) == (i != 1) && bool(a.q_norm) == (i != 1));
        assert_true(a.long_scale == (i != 1 ? 0 : 0.1F));
        assert_true((model.layers[i].experts() != nullptr) == (i == 1));
    }
    const Attention &all = *model.layers[1].attention();
    assert_true(all.long_period == 9 && all.long_shift == 1);
    const Experts &experts = *model.layers[1].experts();
    assert_true(experts.router.weighs_input && experts.router.kind == RouterKind::sigmoid);
    assert_true(model.layers[0].feed_forward()->width == 72);
    assert_int_equal(model.kv_groups.size(), 3); // of one plane: two in chunks, one not
    // As quantised files have experts.
    for (const char *part : {"weight", "weight_packed"}) {
        Model apart = must_load(llama4(""));
        find_separate_experts(
            [&](const std::string &name) {
                return name.ends_with(std::string(".experts.0.up_proj.") + part);
            },
            &apart);
        const std::string prefix = "model.layers.2.feed_forward.experts.3.";
        const Model together = must_load(llama4(""));
        const FeedForward &last = apart.layers[2].experts()->each[3];
        const FeedForward &stacked = together.layers[2].experts()->each[3];
        for (const auto &[tensor, was, name] :
             {std::tuple(last.gate.values, stacked.gate.values, "gate_proj"),
              std::tuple(last.up.values, stacked.up.values, "up_proj"),
              std::tuple(last.down.values, stacked.down.values, "down_proj")}) {
            assert_true(tensor.name == prefix + name + ".weight");
            assert_true(tensor.rows == was.rows && tensor.columns == was.columns);
            assert_true(tensor.as_stored() && tensor.stored_stack + tensor.first_row == 0);
        }
        Model both = must_load(llama4(""));
        find_separate_experts([](const std::string &) { return true; }, &both);
        assert_true(both.layers[2].experts()->each[3].up.values.stored_stack == 4);
    }
    // As published: an empty list; without chunks.
    const Model plain = must_load(llama4(R"(, "no_rope_layers": [], "moe_layers": [2],
        "attn_temperature_tuning": false, "no_rope_layer_interval": 2)"));
    assert_true(plain.layers[1].attention()->rope < 0 && plain.layers[2].experts() != nullptr);
    assert_true(plain.layers[1].attention()->long_scale == 0);
    const Model whole =
        must_load(family("llama4_text", R"("num_local_experts": 4, "attention_chunk_size": null)"));
    assert_true(whole.layers[0].attention()->window == 0);
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(llama4(R"(, "moe_layers": [3])"), format, {"moe_layers[0]"});
    must_fail(
        llama4(R"(, "layer_types": ["chunked_attention", "full_attention", "sliding_attention"])"),
        other, {"layer_types[2]"});
    must_fail(llama4(R"(, "no_rope_layers": [1, 0])"), format, {"no_rope_layers"});
}

void layers_of_kimi_linear_have_a_delta_net_or_latents(void **) {
    const auto kimi = [](const std::string &lists, const std::string &more) {
        return family("kimi_linear", R"("linear_attn_config": {"num_heads": 3, "head_dim": 8,
            "short_conv_kernel_size": 3, )" +
                                         lists + R"(}, "kv_lora_rank": 16, "q_lora_rank": null,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_experts": 4,
            "num_experts_per_token": 2, "moe_intermediate_size": 8, "num_shared_experts": 2)" +
                                         more);
    };
    const std::string lists = R"("kda_layers": [1, 3], "full_attn_layers": [2])";
    const Model model =
        must_load(kimi(lists, R"(, "model_max_length": 700, "mla_use_nope": true)"));
    assert_int_equal(model.max_positions, 700);
    for (size_t i = 0; i < 3; i += 2) {
        const auto &net = is<ChannelDeltaNet>(model.layers[i]);
        assert_true(net.value_heads == 3 && net.key_dim == 8 && net.width == 3);
        assert_int_equal(net.input_rows(), 3 * 24 + 2 * 8 + 3);
        int64_t rows = 0;
        for (const Tensor &part : net.input) rows += part.rows;
        assert_int_equal(rows, net.input_rows());
        assert_int_equal(model.layers[i].state_size(), 3 * 8 * 8 + 2 * 72);
    }
    const Attention &latents = *model.layers[1].attention();
    assert_true(bool(latents.latent) && latents.rope < 0 && !latents.latent.q_down);
    assert_true(model.layers[0].experts() == nullptr);
    const Experts &experts = *model.layers[1].experts();
    assert_true(experts.each.size() == 4 && experts.router.chosen == 2);
    assert_true(experts.router.normalised && experts.router.correction);
    assert_int_equal(model.layers[1].feed_forward()->width, 16);
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(kimi(R"("kda_layers": [1, 3], "full_attn_layers": [4])", ""), format,
              {"full_attn_layers[0]"});
    must_fail(kimi(R"("kda_layers": [1, 3], "full_attn_layers": [3])", ""), format,
              {"kda_layers[1]", "twice"});
    must_fail(kimi(R"("kda_layers": [1], "full_attn_layers": [3])", ""), format, {"layer 2"});
    must_fail(kimi(R"("kda_layers": [1, 2, 3], "full_attn_layers": [])", ""), other,
              {"without a layer of attention"});
    must_fail(kimi(lists, R"(, "mla_use_nope": false)"), other, {"mla_use_nope"});
    must_fail(kimi(lists, R"(, "moe_router_activation_func": "softmax")"), other,
              {"moe_router_activation_func"});
    must_fail(kimi(lists, R"(, "moe_layer_freq": 2)"), other, {"moe_layer_freq"});
}

void each_layer_of_a_nemotron_h_is_one_thing(void **) {
    const Model model = must_load(nemotron(R"("mlp_bias": true, "n_group": 4, "topk_group": 2)"));
    assert_true(model.layers.size() == 4 && model.ropes.empty() && !model.tied);
    assert_string_equal(model.embedding.name.c_str(), "model.embeddings.weight");
    assert_string_equal(model.final_norm.weight.name.c_str(), "model.norm_f.weight");
    for (size_t i = 0; i < 4; ++i) {
        const Layer &layer = model.layers[i];
        assert_true(layer.mixes() == (i % 2 == 0) && layer.feeds() == (i % 2 == 1));
        assert_true(bool(layer.before_attention) != bool(layer.before_feed_forward));
        const Norm &norm = i % 2 == 0 ? layer.before_attention : layer.before_feed_forward;
        assert_true(norm.weight.name == "model.layers." + std::to_string(i) + ".norm.weight");
        assert_true(norm.epsilon == 1e-5F);
    }
    const auto &mamba = is<Mamba2>(model.layers[0]);
    assert_true(mamba.value_heads == 6 && mamba.value_dim == 20 && mamba.key_heads == 2);
    assert_true(mamba.key_dim == 24 && mamba.norm_parts == 2 && mamba.width == 4);
    assert_string_equal(mamba.o.values.name.c_str(), "model.layers.0.mixer.out_proj.weight");
    const FeedForward &dense = *model.layers[1].feed_forward();
    assert_true(dense.width == 72 && !dense.gate && dense.up.bias && dense.down.bias);
    assert_true(dense.activation == Activation::relu_squared);
    assert_string_equal(dense.up.values.name.c_str(), "model.layers.1.mixer.up_proj.weight");
    const Attention &full = *model.layers[2].attention();
    assert_true(full.rope < 0 && full.heads == 4 && full.kv_heads == 2 && full.head_dim == 24);
    assert_string_equal(full.o.values.name.c_str(), "model.layers.2.mixer.o_proj.weight");
    const Layer &sparse = model.layers[3];
    const Router &router = sparse.experts()->router;
    assert_true(router.kind == RouterKind::sigmoid && router.chosen == 2 && router.normalised);
    assert_true(router.groups == 4 && router.chosen_groups == 2 && router.correction.rows == 8);
    assert_string_equal(router.correction.name.c_str(),
                        "model.layers.3.mixer.gate.e_score_correction_bias");
    const FeedForward &expert = sparse.experts()->each[7];
    assert_true(expert.width == 16 && !expert.gate && !expert.up.bias);
    assert_true(expert.activation == Activation::relu_squared);
    assert_string_equal(expert.up.values.name.c_str(),
                        "model.layers.3.mixer.experts.7.up_proj.weight");
    assert_true(sparse.feed_forward()->width == 40 && sparse.feed_forward()->up.bias);
    assert_string_equal(sparse.feed_forward()->up.values.name.c_str(),
                        "model.layers.3.mixer.shared_experts.up_proj.weight");
    assert_true(model.kv_groups.size() == 1 &&
                model.kv_groups[0].layers == std::vector<int32_t>{2});
}

void every_spelling_of_a_nemotron_h_is_read(void **) {
    for (const char *layers :
         {R"("layers_block_type": ["mamba", "mlp", "attention", "moe"])",
          R"("layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
                                  "hybrid_override_pattern": "M*")",
          R"("hybrid_override_pattern": "M-*E", "num_hidden_layers": 4)"}) {
        const Model model = must_load(nemotron("", layers));
        assert_true(model.layers.size() == 4 && model.layers[0].linear_attention() != nullptr);
        assert_true(model.layers[1].feeds() && model.layers[2].attention() != nullptr &&
                    model.layers[3].experts() != nullptr);
    }
    const auto mamba = [](const std::string &more) {
        return is<Mamba2>(must_load(nemotron(more)).layers[0]);
    };
    // Infinity as written by Python, and by transformers 5.
    for (const char *infinity : {"Infinity", R"({"__float__": "Infinity"})"}) {
        const Mamba2 limited = mamba(R"("time_step_min": 0.001, "time_step_limit": [0.25, )" +
                                     std::string(infinity) + "]");
        assert_true(limited.least_step == 0.25F && std::isinf(limited.most_step));
    }
    assert_true(mamba(R"("time_step_min": 0.001)").least_step == 0);
    const Mamba2 older = mamba(R"("mamba_n_groups": 3, "mamba_d_conv": 3,
                                           "mamba_conv_bias": false, "mamba_dt_limit": [0, 9])");
    assert_true(older.key_heads == 3 && older.width == 3 && older.most_step == 9);
    assert_true(older.convolution[0].bias.rows == 0);
    assert_true(mamba("").convolution[0].bias.rows > 0);
    // The form of the first models.
    const Model first = must_load(R"({"model_type": "nemotron_h", "attention_head_dim": 64})");
    assert_int_equal(attention(first, 2).head_dim, 64);
    assert_int_equal(
        must_load(nemotron(R"("mlp_hidden_act": "silu")")).layers[3].experts()->each[0].activation,
        Activation::silu);
    // Keys for parts that no layer has are not read.
    const Model dense = must_load(nemotron(R"("n_routed_experts": 0, "moe_latent_size": 7)",
                                           R"("hybrid_override_pattern": "M-*-")"));
    assert_true(dense.layers[3].experts() == nullptr &&
                dense.layers[3].feed_forward()->width == 72);
    Model stacked = must_load(nemotron(""));
    find_stacked_experts([](const std::string &name) { return name.ends_with("experts.up_proj"); },
                         &stacked);
    const FeedForward &last = stacked.layers[3].experts()->each[7];
    assert_true(last.up.values.name == "model.layers.3.mixer.experts.up_proj" && !last.gate);
    assert_true(last.up.values.first_row == 7 * 16 && last.up.values.stored_rows == 16);
    assert_true(last.down.values.first_row == 7 * 64 && last.down.values.stored_stack == 8);
}

void defaults_of_a_nemotron_h_are_those_of_transformers(void **) {
    const Model model = must_load(R"({"model_type": "nemotron_h"})");
    assert_true(model.vocabulary == 131072 && model.hidden == 4096 && !model.tied);
    assert_true(model.max_positions == 4096 && model.bos_token == 1 &&
                model.eos_tokens == std::vector<int32_t>{2});
    assert_int_equal(model.layers.size(), 4);
    const auto &mamba = is<Mamba2>(model.layers[0]);
    assert_true(mamba.value_heads == 128 && mamba.value_dim == 64 && mamba.key_heads == 8 &&
                mamba.key_dim == 128 && mamba.width == 4 && mamba.convolution[0].bias);
    assert_true(mamba.least_step == 0 && std::isinf(mamba.most_step));
    const Layer &sparse = model.layers[1];
    assert_true(sparse.experts()->each.size() == 8 && sparse.experts()->router.chosen == 2);
    assert_true(sparse.experts()->router.groups == 1 && sparse.experts()->router.scale == 1 &&
                sparse.experts()->router.normalised);
    assert_true(sparse.experts()->each[0].width == 7688 && sparse.feed_forward()->width == 7688);
    const Attention full = attention(model, 2);
    assert_true(full.heads == 32 && full.kv_heads == 8 && full.head_dim == 128);
    assert_true(model.layers[3].feed_forward()->width == 21504 &&
                !model.layers[3].feed_forward()->up.bias);
}

void a_nemotron_h_whose_keys_do_not_fit_is_refused_by_name(void **) {
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT, other = BATCHLLM_ERROR_UNSUPPORTED;
    const auto layers = [&](const char *keys, int32_t status, std::vector<std::string> parts) {
        must_fail(nemotron("", keys), status, std::move(parts));
    };
    layers(R"("hybrid_override_pattern": "M-*X")", other, {"hybrid_override_pattern", "M-*X"});
    layers(R"("hybrid_override_pattern": "M-M-")", other, {"hybrid_override_pattern", "attention"});
    layers(R"("hybrid_override_pattern": "")", format, {"hybrid_override_pattern", "layers"});
    layers(R"("hybrid_override_pattern": 3)", format, {"hybrid_override_pattern"});
    layers(R"("layers_block_type": ["attention", "conv"])", other,
           {"layers_block_type[1]", "conv"});
    layers(R"("layers_block_type": [7])", format, {"layers_block_type[0]"});
    layers(R"("layers_block_type": "M")", other, {"layers_block_type"});
    const std::string many = "\"hybrid_override_pattern\": \"" + times("*", 4097) + "\"";
    layers(many.c_str(), format, {"hybrid_override_pattern", "4096"});
    const auto fails = [&](const std::string &more, int32_t status,
                           std::vector<std::string> parts) {
        must_fail(nemotron(more), status, std::move(parts));
    };
    fails(R"("num_hidden_layers": 5)", format, {"num_hidden_layers", "4 layers"});
    fails(R"("mamba_n_groups": 4)", format, {"\"mamba_n_groups\" is 4"});
    fails(R"("mamba_d_conv": 1)", format, {"mamba_d_conv", "is 1"});
    fails(R"("use_bias": true)", other, {"use_bias"});
    fails(R"("mamba_hidden_act": "gelu")", other, {"mamba_hidden_act"});
    fails(R"("mlp_hidden_act": "relu")", other, {"mlp_hidden_act", "relu2 are supported"});
    fails(R"("sliding_window": 8)", other, {"sliding_window"});
    fails(R"("time_step_limit": [1, 0.5])", format, {"time_step_limit"});
    fails(R"("time_step_limit": [0, -Infinity])", format, {"time_step_limit[1]", "-Infinity"});
    fails(R"("moe_latent_size": 32)", other, {"moe_latent_size"});
    fails(R"("n_shared_experts": 2)", other, {"n_shared_experts"});
    fails(R"("n_routed_experts": 0)", format, {"n_routed_experts"});
    fails(R"("num_experts_per_tok": 9)", format, {"num_experts_per_tok", "8 experts"});
    fails(R"("n_group": 3)", format, {"n_group", "8 experts"});
    fails(R"("routed_scaling_factor": 0)", format, {"routed_scaling_factor"});
    fails(R"("layer_norm_epsilon": 2)", format, {"layer_norm_epsilon"});
    // A string is not a number, whatever it contains.
    must_fail(R"({"model_type": "\"Infinity"})", other, {"Infinity", "this version runs"});
}

std::string gemma4(const std::string &more) {
    return R"({"model_type": "gemma4_text", "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 100, "num_hidden_layers": 4, "head_dim": 16,
        "global_head_dim": 32, "sliding_window": 8, "vocab_size_per_layer_input": 128,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                        "full_attention"], )" +
           more + "}";
}

void layers_of_gemma_4_share_keys_and_values_with_earlier_ones_of_their_kind(void **) {
    const Model model = must_load(gemma4(R"("num_kv_shared_layers": 2, "use_double_wide_mlp": true,
                             "intermediate_size": 48)"));
    for (const size_t i : {2, 3}) {
        const Attention a = attention(model, i), source = attention(model, i - 2);
        assert_int_equal(a.kv_layer, i - 2);
        assert_true(a.kv_group == source.kv_group && a.kv_plane == source.kv_plane);
        assert_true(!a.k && !a.v && !a.k_norm && !a.v_norm);
        assert_int_equal(model.layers[i].feed_forward()->width, 96);
        assert_int_equal(model.layers[i - 2].feed_forward()->width, 48);
    }
    assert_int_equal(model.kv_groups.size(), 2);
    assert_int_equal(model.kv_planes(), 1);
    must_fail(gemma4(R"("num_kv_shared_layers": 3)"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"num_kv_shared_layers", "layer 1"});
}

void full_layers_of_gemma_4_have_heads_of_their_own(void **) {
    const char *const spellings[] = {
        R"("attention_k_eq_v": true, "num_global_key_value_heads": 1)",
        R"("attention_k_eq_v": true, "per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 1},
           "3": {"head_dim": 32, "num_key_value_heads": 1}})",
    };
    for (const char *spelling : spellings) {
        const Model model = must_load(gemma4(spelling));
        const Attention windowed = attention(model, 0), full = attention(model, 1);
        assert_true(windowed.head_dim == 16 && windowed.kv_heads == 2);
        assert_true(full.head_dim == 32 && full.kv_heads == 1);
        assert_string_equal(windowed.v.values.name.c_str(),
                            "model.layers.0.self_attn.v_proj.weight");
        assert_string_equal(full.v.values.name.c_str(), "model.layers.1.self_attn.k_proj.weight");
    }
    must_fail(gemma4(R"("per_layer_config": {"1": {"head_dim": 32}})"), BATCHLLM_ERROR_UNSUPPORTED,
              {"per_layer_config"});
    must_fail(gemma4(R"("per_layer_config": {"1": {"window": 32}})"), BATCHLLM_ERROR_UNSUPPORTED,
              {"window"});
}

void a_tied_head_has_a_bias_of_its_own(void **) {
    Model model = must_load(llama(R"("tie_word_embeddings": true)"));
    add_bias(&model.head);
    int32_t embeddings = 0, biases = 0;
    for_each_tensor(model, [&](const Tensor &tensor) {
        embeddings += tensor.name == "model.embed_tokens.weight";
        biases += tensor.name == "lm_head.bias";
        assert_string_not_equal(tensor.name.c_str(), "lm_head.weight");
    });
    assert_int_equal(embeddings, 1);
    assert_int_equal(biases, 1);
}

void gemma_4_may_have_experts_beside_every_feed_forward(void **) {
    const std::string keys = R"("enable_moe_block": true, "num_experts": 6, "top_k_experts": 2,
        "moe_intermediate_size": 24, "intermediate_size": 48)";
    const Model model = must_load(gemma4(keys));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        const std::string prefix = "model.layers." + std::to_string(i) + ".";
        const Router &router = layer.experts()->router;
        assert_true(router.kind == RouterKind::softmax && router.normalised && router.chosen == 2);
        assert_true(router.scale == 1 && router.logits_scale == 0.125F);
        assert_true(router.weight.values.name == prefix + "router.proj.weight");
        assert_true(router.norm.kind == NormKind::rms);
        assert_true(router.norm.weight.name == prefix + "router.scale");
        assert_true(router.expert_scale.name == prefix + "router.per_expert_scale");
        assert_int_equal(router.expert_scale.rows, 6);
        const FeedForward &last = layer.experts()->each[5];
        assert_true(last.width == 24 && last.activation == Activation::gelu_tanh);
        assert_true(last.up.values.name == prefix + "experts.5.up_proj.weight");
        assert_int_equal(layer.feed_forward()->width, 48);
        assert_true(layer.feed_forward()->up.values.name == prefix + "mlp.up_proj.weight");
        for (const auto &[norm, name] :
             {std::pair(&layer.before_feed_forward, "pre_feedforward_layernorm"),
              std::pair(&layer.shared()->after, "post_feedforward_layernorm_1"),
              std::pair(&layer.experts()->before, "pre_feedforward_layernorm_2"),
              std::pair(&layer.experts()->after, "post_feedforward_layernorm_2"),
              std::pair(&layer.after_feed_forward, "post_feedforward_layernorm")}) {
            assert_true(norm->kind == NormKind::rms && norm->offset == 0);
            assert_true(norm->weight.name == prefix + name + ".weight");
        }
    }
    const Model dense = must_load(gemma4(R"("enable_moe_block": false, "num_experts": null)"));
    assert_true(dense.layers[0].experts() == nullptr);
}

// Their class has no defaults.
void the_experts_of_gemma_4_need_their_keys(void **) {
    const int32_t format = BATCHLLM_ERROR_MODEL_FORMAT;
    const auto fails = [&](const std::string &keys, std::vector<std::string> parts) {
        must_fail(gemma4(R"("enable_moe_block": true, )" + keys), format, std::move(parts));
    };
    fails(R"("top_k_experts": 2, "moe_intermediate_size": 24)", {"num_experts"});
    fails(R"("num_experts": 6, "moe_intermediate_size": 24)", {"top_k_experts"});
    fails(R"("num_experts": 6, "top_k_experts": 2)", {"moe_intermediate_size"});
    fails(R"("num_experts": 6, "top_k_experts": null, "moe_intermediate_size": 24)",
          {"top_k_experts", "null", "enable_moe_block"});
    fails(R"("num_experts": 6, "top_k_experts": 7, "moe_intermediate_size": 24)",
          {"top_k_experts", "there are 6 experts"});
    for (const char *many : {"2000", "4000000", "6.5", "\"6\""}) {
        fails(std::string(R"("num_experts": )") + many +
                  R"(, "top_k_experts": 2, "moe_intermediate_size": 24)",
              {"num_experts", many, "from 1 to 1024"});
    }
    fails(R"("num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 0)",
          {"moe_intermediate_size"});
}

void what_of_gemma_4_is_not_computed_is_refused_by_name(void **) {
    must_fail(gemma4(R"("use_bidirectional_attention": "all")"), BATCHLLM_ERROR_UNSUPPORTED,
              {"use_bidirectional_attention", "all"});
    must_load(gemma4(R"("use_bidirectional_attention": "vision")"));
    must_fail(gemma4(R"("rope_parameters": {"full_attention": {"rope_type": "default"}})"),
              BATCHLLM_ERROR_MODEL_FORMAT, {"sliding_attention"});
    must_fail(llama(R"("rope_parameters": {"rope_type": "proportional", "rope_theta": 10000.0})"),
              BATCHLLM_ERROR_UNSUPPORTED, {"rope_type", "proportional"});
}

// Neither is among transformers' models.
void mimo_and_pangu_are_known_decoders_by_other_names(void **) {
    const Model mimo = must_load(family("mimo", R"("attention_bias": true)"));
    assert_true(tensors_of(mimo) == tensors_of(must_load(family("qwen2", ""))));
    assert_true(std::find(mimo.passed_over.begin(), mimo.passed_over.end(), "model.mtp_layers.") !=
                mimo.passed_over.end());

    const Model pangu = must_load(family("PanguEmbedded", R"("bias": true, "rope_theta": 5e5)"));
    const Model llama_like =
        must_load(family("llama", R"("attention_bias": true, "rope_theta": 5e5)"));
    assert_true(tensors_of(pangu) != tensors_of(must_load(family("llama", ""))));
    assert_true(pangu.ropes == llama_like.ropes);
    assert_true(tensors_of(must_load(family("PanguEmbedded", R"("intermediate_size": 11008)"))) ==
                tensors_of(llama_like));
    assert_true(tensors_of(must_load(
                    family("PanguEmbedded", R"("intermediate_size": 11008, "bias": false)"))) ==
                tensors_of(must_load(family("llama", ""))));
}

void a_command_r_has_a_rope_everywhere_and_the_context_of_its_own_key(void **) {
    const Model model = must_load(family("cohere", R"("rope_theta": 8e6, "logit_scale": 0.5)"));
    RopeConfig rope;
    rope.theta = 8e6;
    assert_true(model.ropes.size() == 1 && model.ropes[0].pairs &&
                model.ropes[0].frequencies == rope_frequencies(rope, 16));
    for (const Layer &layer : model.layers) {
        assert_true(layer.parallel && layer.attention()->rope == 0 &&
                    layer.attention()->window == 0 && !layer.before_feed_forward);
        assert_true(layer.before_attention.kind == NormKind::layer && !layer.before_attention.bias);
    }
    assert_true(model.logits_scale == 0.5F && model.tied && model.max_positions == 256);
    assert_int_equal(must_load(family("cohere", R"("model_max_length": 1024)")).max_positions,
                     1024);
    must_load(family("cohere", R"("use_qk_norm": false)"));
    must_fail(family("cohere", R"("use_qk_norm": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"use_qk_norm", "each head"});
}

void every_fourth_layer_of_cwm_sees_everything_from_the_first_on(void **) {
    const Model model = must_load(R"({"model_type": "cwm", "hidden_size": 64,
        "num_attention_heads": 8, "vocab_size": 100, "num_hidden_layers": 6, "sliding_window": 32})");
    for (size_t i = 0; i < 6; ++i) {
        assert_int_equal(attention(model, i).window, i % 4 == 0 ? 0 : 32);
        assert_int_equal(attention(model, i).rope, 0);
    }
    assert_true(model.eos_tokens.empty()); // all of the class's are beyond this vocabulary
    RopeConfig rope;
    rope.theta = 1e6;
    rope.kind = RopeKind::llama3;
    rope.factor = 16;
    rope.low_freq_factor = 1;
    rope.high_freq_factor = 4;
    rope.original_max_positions = 8192;
    assert_true(model.ropes[0].frequencies == rope_frequencies(rope, 128));
    RopeConfig plain;
    plain.theta = 5e5;
    assert_true(
        must_load(
            family("cwm", R"("rope_parameters": {"rope_type": "default", "rope_theta": 5e5})"))
            .ropes[0]
            .frequencies == rope_frequencies(plain, 128));
    const Model listed = must_load(family("cwm", R"("layer_types": ["sliding_attention",
        "full_attention", "full_attention"], "mlp_bias": true)"));
    assert_true(attention(listed, 0).window == 8192 && attention(listed, 1).window == 0);
    assert_true(listed.layers[0].feed_forward()->down.bias && !attention(listed).q.bias);
}

void ministral_is_mistral_whose_layer_types_count(void **) {
    const Model model = must_load(family("ministral", R"("sliding_window": 32,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"])"));
    assert_true(attention(model, 0).window == 0 && attention(model, 1).window == 32 &&
                attention(model, 2).window == 32);
    assert_int_equal(attention(must_load(family("ministral", ""))).window, 4096);
    assert_true(tensors_of(model) == tensors_of(must_load(family("mistral", ""))));
}

void hyperclovax_is_granite_with_norms_after_the_sublayers(void **) {
    const Model model = must_load(family("hyperclovax", R"("logits_scaling": 0.125,
        "attention_multiplier": 0.25, "embedding_multiplier": 10, "residual_multiplier": 0.5)"));
    assert_true(model.logits_scale == 0.125F && model.embedding_scale == 10);
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        const std::string prefix = "model.layers." + std::to_string(i) + ".";
        assert_true(layer.residual_scale == 0.5F && attention(model, i).scale == 0.25);
        assert_true(layer.before_attention && layer.before_feed_forward);
        assert_true(layer.after_attention.weight.name == prefix + "post_norm1.weight");
        assert_true(layer.after_feed_forward.weight.name == prefix + "post_norm2.weight");
    }
    const Model plain =
        must_load(family("hyperclovax", R"("use_post_norm": false, "attention_multiplier": null)"));
    assert_true(!plain.layers[0].after_attention && !plain.layers[2].after_feed_forward);
    assert_true(attention(plain).scale == 0.25 && plain.logits_scale == 1); // heads of 16
}

void experts_of_qwen3_vl_are_transposed_stacks_whose_weights_sum_to_one(void **) {
    const Model model = must_load(R"({"model_type": "qwen3_vl_moe", "text_config": {)" +
                                  std::string(small) + R"(, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [1],
        "norm_topk_prob": false}})");
    assert_true(model.layers[1].experts() == nullptr && model.layers[1].feed_forward() != nullptr);
    for (const size_t i : {0, 2}) {
        const Experts &experts = *model.layers[i].experts();
        const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.";
        assert_true(experts.router.normalised && experts.router.chosen == 2);
        assert_true(experts.router.weight.values.name == prefix + "gate.weight");
        const FeedForward &last = experts.each[5];
        assert_true(last.up.values.name == prefix + "experts.gate_up_proj");
        assert_true(last.up.values.stored_transposed && last.down.values.stored_transposed);
        assert_true(last.gate.values.first_row == 5 * 80 &&
                    last.up.values.first_row == 5 * 80 + 40);
        assert_true(last.down.values.name == prefix + "experts.down_proj" &&
                    last.down.values.first_row == 5 * 64);
    }
    assert_true(attention(model).q_norm && !model.tied);
}

void k_exaone_has_experts_where_either_key_says(void **) {
    const std::string experts = R"("num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "num_shared_experts": 2, "sliding_window": 32)";
    const Model model = must_load(family("exaone_moe", experts));
    assert_true(model.layers[0].experts() == nullptr);
    for (const size_t i : {1, 2}) {
        const SharedExperts &both = *model.layers[i].shared();
        const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.";
        const Router &router = both.experts.router;
        assert_true(router.kind == RouterKind::sigmoid && router.normalised);
        assert_true(router.scale == 2.5F && router.chosen == 2 && both.shared.width == 48);
        assert_true(router.correction.name == prefix + "e_score_correction_bias");
        assert_true(both.shared.up.values.name == prefix + "shared_experts.up_proj.weight");
    }
    for (const Layer &layer : model.layers) {
        assert_true(layer.before_attention && layer.before_feed_forward && !layer.after_attention);
        assert_true(layer.attention()->window == 32 && layer.attention()->rope == 0);
    }
    const Model listed = must_load(
        family("exaone_moe", experts + R"(, "mlp_layer_types": ["sparse", "dense", "sparse"],
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window_pattern": "LLG")"));
    assert_true(listed.layers[0].experts() != nullptr && listed.layers[1].experts() == nullptr);
    assert_true(attention(listed, 2).window == 0 && attention(listed, 2).rope == -1);
    must_fail(family("exaone_moe", experts + R"(, "mlp_layer_types": ["dense", "dense", "none"])"),
              BATCHLLM_ERROR_UNSUPPORTED, {"mlp_layer_types[2]"});
}

void every_layer_of_solar_open_has_experts(void **) {
    const Model model = must_load(family("solar_open", R"("n_routed_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "attention_bias": true)"));
    for (const Layer &layer : model.layers) {
        assert_true(layer.experts()->each.size() == 6 && layer.shared()->shared.width == 24);
        assert_true(layer.experts()->router.normalised && layer.experts()->router.scale == 1);
        assert_true(layer.attention()->q.bias && !layer.attention()->o.bias);
        assert_true(!layer.attention()->q_norm && layer.attention()->head_dim == 128);
    }
    must_load(family("solar_open", R"("partial_rotary_factor": 1.0, "use_qk_norm": false)"));
    must_fail(family("solar_open", R"("use_qk_norm": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"use_qk_norm"});
    must_fail(family("solar_open", R"("partial_rotary_factor": 0.5)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"partial_rotary_factor"});
}

void experts_of_hy3_have_the_names_of_its_checkpoints(void **) {
    const std::string experts = R"("num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "router_scaling_factor": 1.5)";
    const Model model = must_load(family("hy_v3", experts));
    assert_true(model.layers[0].experts() == nullptr && attention(model).q_norm);
    for (const size_t i : {1, 2}) {
        const SharedExperts &both = *model.layers[i].shared();
        const Router &router = both.experts.router;
        const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.";
        assert_true(router.kind == RouterKind::sigmoid && router.normalised);
        assert_true(router.scale == 1.5F && router.chosen == 2);
        assert_true(router.weight.values.name == prefix + "router.gate.weight");
        assert_true(router.correction.name == prefix + "expert_bias");
        assert_true(both.shared.gate.values.name == prefix + "shared_mlp.gate_proj.weight");
        assert_true(both.experts.each[5].down.values.name == prefix + "experts.5.down_proj.weight");
    }
    assert_true(model.passed_over == std::vector<std::string>{"model.layers.3."});
    must_fail(family("hy_v3", experts + R"(, "mlp_bias": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"mlp_bias"});
}

void norms_of_nemotron_add_one_to_their_weight(void **) {
    const Model model = must_load(family("nemotron", R"("norm_eps": 0.01)"));
    for (const Layer &layer : model.layers) {
        for (const Norm *norm : {&layer.before_attention, &layer.before_feed_forward}) {
            assert_true(norm->kind == NormKind::layer && norm->offset == 1 && norm->bias);
            assert_true(norm->epsilon == 0.01F);
        }
        assert_true(!layer.feed_forward()->gate && !layer.feed_forward()->up.bias);
        assert_true(layer.feed_forward()->activation == Activation::relu_squared);
    }
    assert_true(model.final_norm.offset == 1 && model.ropes[0].dims() == 8); // of 16
    const Model biased = must_load(family(
        "nemotron", R"("attention_bias": true, "mlp_bias": true, "partial_rotary_factor": 1.0)"));
    assert_true(attention(biased).o.bias && biased.layers[0].feed_forward()->up.bias);
    assert_int_equal(biased.ropes[0].dims(), 16);
    // transformers' class has no number of key and value heads by default; this is all it could be.
    const Model plain = must_load(R"({"model_type": "nemotron"})");
    assert_true(plain.hidden == 6144 && attention(plain).kv_heads == 48 && plain.bos_token == 2);
    assert_true(plain.eos_tokens == std::vector<int32_t>{3} && plain.vocabulary == 256000);
    assert_true(plain.layers.size() == 32 && plain.max_positions == 4096 && !plain.tied);
    assert_int_equal(plain.layers[0].feed_forward()->width, 24576);
}

void phi_has_one_norm_a_layer_and_biases_everywhere(void **) {
    const Model model = must_load(family("phi", R"("partial_rotary_factor": 0.25,
        "intermediate_size": 40)"));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        const std::string prefix = "model.layers." + std::to_string(i) + ".";
        assert_true(layer.parallel && !layer.before_feed_forward);
        assert_true(layer.before_attention.kind == NormKind::layer && layer.before_attention.bias);
        const Attention &a = *layer.attention();
        const FeedForward &f = *layer.feed_forward();
        assert_true(a.q.bias && a.k.bias && a.v.bias && f.up.bias && !f.gate);
        assert_true(a.o.bias.name == prefix + "self_attn.dense.bias");
        assert_true(f.down.bias.name == prefix + "mlp.fc2.bias" && f.width == 40);
        assert_true(f.activation == Activation::gelu_tanh);
    }
    assert_true(model.head.bias.name == "lm_head.bias" && model.head.bias.rows == 100);
    assert_true(model.final_norm.bias.name == "model.final_layernorm.bias");
    assert_int_equal(model.ropes[0].dims(), 4); // of 16
    assert_int_equal(must_load(family("phi", "")).ropes[0].dims(), 8);
    must_load(family("phi", R"("qk_layernorm": false)"));
    must_fail(family("phi", R"("qk_layernorm": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"qk_layernorm"});
}

void internlm3_has_biases_under_keys_of_its_own(void **) {
    const Model plain = must_load(family("internlm3", R"("qkv_bias": false, "bias": false,
        "rope_theta": 5e7, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0})"));
    RopeConfig rope;
    rope.theta = 5e7;
    assert_true(turns_as(plain, rope)); // as long as no row is longer than the positions
    assert_true(!attention(plain).q.bias && !plain.layers[0].feed_forward()->up.bias);
    for (const char *keys :
         {R"("qkv_bias": true, "bias": true)", R"("attention_bias": true, "mlp_bias": true)"}) {
        const Model biased = must_load(family("internlm3", keys));
        for (const Layer &layer : biased.layers) {
            assert_true(layer.attention()->v.bias && layer.attention()->o.bias);
            assert_true(layer.feed_forward()->gate.bias && layer.feed_forward()->down.bias);
        }
    }
    const Model some = must_load(family("internlm3", R"("qkv_bias": true)"));
    assert_true(attention(some).k.bias && !attention(some).o.bias);
    for (const char *class_name : {"InternLM3ForCausalLM", "LlamaForCausalLM", "LlamaModel"}) {
        must_load(
            family("internlm3", R"("architectures": [")" + std::string(class_name) + R"("])"));
    }
    must_fail(family("internlm3", R"("architectures": ["MistralForCausalLM"])"),
              BATCHLLM_ERROR_UNSUPPORTED, {"InternLM3ForCausalLM"});
    must_fail(family("llama", R"("rope_scaling": {"rope_type": "dynamic", "factor": 6.0})"),
              BATCHLLM_ERROR_UNSUPPORTED, {"rope_type"});
}

void vaultgemma_is_gemma_2_without_norms_after_the_sublayers(void **) {
    const Model model = must_load(family("vaultgemma", R"("sliding_window": 32)"));
    const Model gemma = must_load(family("gemma2", R"("sliding_window": 32)"));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        assert_true(!layer.after_attention && !layer.after_feed_forward);
        assert_true(layer.before_attention.offset == 1 && layer.before_feed_forward.offset == 1);
        assert_true(layer.before_feed_forward.weight.name ==
                    gemma.layers[i].before_feed_forward.weight.name);
        assert_true(layer.attention()->softcap == 50 &&
                    layer.attention()->window == attention(gemma, i).window);
    }
    assert_true(model.logits_softcap == 30 && model.embedding_scale == 8 && model.tied);
}

void jais2_has_layer_norms_and_biases_unless_told(void **) {
    const Model model = must_load(family("jais2", R"("layer_norm_eps": 0.01)"));
    for (const Layer &layer : model.layers) {
        for (const Norm *norm : {&layer.before_attention, &layer.before_feed_forward}) {
            assert_true(norm->kind == NormKind::layer && norm->bias && norm->epsilon == 0.01F);
        }
        assert_true(layer.attention()->q.bias && layer.attention()->o.bias);
        assert_true(!layer.feed_forward()->gate && layer.feed_forward()->down.bias);
        assert_true(layer.feed_forward()->activation == Activation::relu_squared);
    }
    const Model plain = must_load(family("jais2", R"("attention_bias": false, "mlp_bias": false)"));
    assert_true(!attention(plain).q.bias && !plain.layers[0].feed_forward()->up.bias);
}

void gelu_of_gemma_is_its_approximation(void **) {
    const Model model = must_load(family("gemma", R"("hidden_act": "gelu", "head_dim": 40)"));
    for (const Layer &layer : model.layers) {
        assert_true(layer.feed_forward()->activation == Activation::gelu_tanh);
        assert_true(layer.before_feed_forward.offset == 1 && layer.before_attention.offset == 1);
        assert_true(!layer.after_attention && !layer.after_feed_forward);
        assert_true(layer.attention()->scale == 1 / std::sqrt(40.0));
        assert_int_equal(layer.attention()->head_dim, 40);
    }
    assert_true(model.embedding_scale == 8 && model.tied && model.final_norm.offset == 1);
    assert_true(model.layers[0].before_feed_forward.weight.name ==
                "model.layers.0.post_attention_layernorm.weight");
    must_fail(family("gemma", R"("use_bidirectional_attention": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"use_bidirectional_attention"});
}

void stablelm_has_one_norm_a_layer_if_parallel(void **) {
    const Model model = must_load(family("stablelm", R"("partial_rotary_factor": 0.5)"));
    assert_true(!model.layers[0].parallel && model.layers[0].before_feed_forward.bias);
    assert_true(!attention(model).q.bias && model.ropes[0].dims() == 8);
    const Model parallel =
        must_load(family("stablelm", R"("use_parallel_residual": true, "use_qkv_bias": true)"));
    for (const Layer &layer : parallel.layers) {
        assert_true(layer.parallel && !layer.before_feed_forward && layer.before_attention.bias);
        assert_true(layer.attention()->k.bias && !layer.attention()->o.bias);
        assert_true(layer.feed_forward()->gate && !layer.feed_forward()->gate.bias);
    }
    assert_int_equal(parallel.ropes[0].dims(), 4); // of 16
    must_fail(family("stablelm", R"("qk_layernorm": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"qk_layernorm", "each head"});
}

void falcon_7b_has_one_head_of_keys_in_a_tensor_with_the_queries(void **) {
    const auto falcon = [](const std::string &more) {
        return R"({"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4,
            "num_kv_heads": 4, "vocab_size": 100, "num_hidden_layers": 3)" +
               (more.empty() ? "" : ", " + more) + "}";
    };
    const Model model = must_load(falcon(R"("layer_norm_epsilon": 0.01)"));
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        const std::string prefix = "transformer.h." + std::to_string(i) + ".";
        const Attention &a = *layer.attention();
        for (const Weight *w : {&a.q, &a.k, &a.v}) {
            assert_true(w->values.name == prefix + "self_attention.query_key_value.weight");
            assert_int_equal(w->values.stored_rows, 96);
        }
        assert_true(a.kv_heads == 1 && a.k.values.first_row == 64 && a.v.values.first_row == 80);
        assert_true(layer.parallel && layer.before_attention.kind == NormKind::layer);
        assert_true(layer.before_attention.bias.name == prefix + "input_layernorm.bias");
        assert_true(layer.before_attention.epsilon == 0.01F && !layer.before_feed_forward);
        assert_true(layer.feed_forward()->width == 256 && !layer.feed_forward()->gate);
        assert_true(layer.feed_forward()->activation == Activation::gelu);
    }
    assert_true(model.tied && model.final_norm.bias.name == "transformer.ln_f.bias");
    assert_int_equal(must_load(falcon(R"("ffn_hidden_size": 72)")).layers[0].feed_forward()->width,
                     72);
    const Model plain = must_load(R"({"model_type": "falcon"})");
    assert_true(plain.hidden == 4544 && attention(plain).heads == 71 && plain.vocabulary == 65024);
    assert_true(plain.layers.size() == 32 && plain.max_positions == 2048 && plain.bos_token == 11);
    assert_true(plain.eos_tokens == std::vector<int32_t>{11} && plain.final_norm.epsilon == 1e-5F &&
                plain.layers[0].feed_forward()->width == 18176);
    for (const char *key : {"alibi", "new_decoder_architecture", "bias"}) {
        must_load(falcon('"' + std::string(key) + "\": false"));
        must_fail(falcon('"' + std::string(key) + "\": true"), BATCHLLM_ERROR_UNSUPPORTED, {key});
    }
    for (const char *key : {"multi_query", "parallel_attn"}) {
        must_load(falcon('"' + std::string(key) + "\": true"));
        must_fail(falcon('"' + std::string(key) + "\": false"), BATCHLLM_ERROR_UNSUPPORTED, {key});
    }
}

void exaone_3_has_its_published_keys_or_those_of_llama(void **) {
    const std::string sizes = R"({"model_type": "exaone", "hidden_size": 64, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, )";
    const Model model = must_load(sizes + R"("architectures": ["ExaoneForCausalLM"],
        "num_layers": 3, "layer_norm_epsilon": 0.01, "activation_function": "gelu"})");
    const Model written = must_load(sizes + R"("architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 3, "rms_norm_eps": 0.01, "hidden_act": "gelu"})");
    for (const Model *one : {&model, &written}) {
        assert_true(one->layers.size() == 3 && one->final_norm.epsilon == 0.01F);
        for (size_t i = 0; i < one->layers.size(); ++i) {
            const Layer &layer = one->layers[i];
            const std::string prefix = "transformer.h." + std::to_string(i) + ".";
            assert_true(layer.before_attention.weight.name == prefix + "ln_1.weight");
            assert_true(layer.before_feed_forward.weight.name == prefix + "ln_2.weight");
            assert_true(layer.before_feed_forward.epsilon == 0.01F);
            assert_true(attention(*one, i).o.values.name ==
                        prefix + "attn.attention.out_proj.weight");
            assert_true(layer.feed_forward()->up.values.name == prefix + "mlp.c_fc_1.weight");
            assert_true(layer.feed_forward()->activation == Activation::gelu);
        }
    }
    const Model plain = must_load(R"({"model_type": "exaone"})");
    assert_true(plain.hidden == 4096 && attention(plain).heads == 32 && !plain.tied);
    assert_true(attention(plain).kv_heads == 8 && plain.layers.size() == 32);
    assert_true(plain.vocabulary == 102400 && plain.max_positions == 4096 && plain.bos_token == 1);
    assert_true(plain.eos_tokens == std::vector<int32_t>{361} &&
                plain.final_norm.epsilon == 1e-5F &&
                plain.layers[0].feed_forward()->width == 14336);
    RopeConfig rope;
    rope.theta = 5e5;
    assert_true(turns_as(plain, rope));
}

void norms_of_olmo_have_no_weight(void **) {
    const Model model = must_load(family("olmo", R"("clip_qkv": null)"));
    for (const Layer &layer : model.layers) {
        for (const Norm *norm : {&layer.before_attention, &layer.before_feed_forward}) {
            assert_true(norm->kind == NormKind::layer && !norm->weight && !norm->bias);
            assert_true(norm->epsilon == 1e-5F);
        }
    }
    assert_true(model.final_norm && !model.final_norm.weight);
    must_fail(family("olmo", R"("clip_qkv": 8.0)"), BATCHLLM_ERROR_UNSUPPORTED, {"clip_qkv"});
    const Model plain = must_load(R"({"model_type": "olmo"})");
    assert_true(plain.hidden == 4096 && attention(plain).kv_heads == 32 && !plain.tied);
    assert_true(plain.vocabulary == 50304 && plain.max_positions == 2048 && plain.bos_token == -1);
    assert_true(plain.eos_tokens == std::vector<int32_t>{50279} && plain.layers.size() == 32);
    assert_int_equal(plain.layers[0].feed_forward()->width, 11008);
    assert_true(turns_as(plain, {}));
}

void helium_turns_pairs_and_adds_no_bias_to_the_output(void **) {
    const Model model =
        must_load(family("helium", R"("attention_bias": true, "mlp_bias": true, "head_dim": 16)"));
    assert_true(attention(model).q.bias && attention(model).v.bias && !attention(model).o.bias);
    assert_true(model.layers[0].feed_forward()->gate.bias && model.ropes[0].pairs);
}

void iquestcoder_refuses_what_llama_lacks(void **) {
    const Model model = must_load(family("iquestcoder", R"("rope_theta": 5e5, "clip_qkv": null,
        "use_sliding_window": false, "sliding_window": 128)"));
    assert_int_equal(attention(model).window, 0);
    must_fail(family("iquestcoder", R"("clip_qkv": 8.0)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"clip_qkv"});
    must_fail(family("iquestcoder", R"("use_sliding_window": true)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"use_sliding_window"});
}

void flex_olmo_is_olmoe_with_norms_after_the_sublayers(void **) {
    const std::string experts = R"("num_experts": 6, "num_experts_per_tok": 2)";
    const Model model = must_load(family("flex_olmo", experts));
    for (const Layer &layer : model.layers) {
        assert_true(!layer.before_attention && !layer.before_feed_forward);
        assert_true(layer.after_attention && layer.after_feed_forward);
        assert_true(layer.attention()->norm_whole && layer.attention()->k_norm);
        assert_true(layer.experts()->each.size() == 6 && !layer.experts()->router.normalised);
    }
    const Model plain = must_load(R"({"model_type": "flex_olmo"})");
    assert_true(plain.hidden == 4096 && attention(plain).kv_heads == 32 && !plain.tied);
    assert_true(plain.vocabulary == 100352 && plain.max_positions == 4096 && plain.bos_token == -1);
    assert_true(plain.eos_tokens == std::vector<int32_t>{100257} && plain.layers.size() == 32);
    assert_true(plain.final_norm.epsilon == 1e-6F);
    assert_true(plain.layers[0].experts()->each.size() == 7 &&
                plain.layers[0].experts()->router.chosen == 5 &&
                plain.layers[0].experts()->each[0].width == 11008);
    RopeConfig rope;
    rope.theta = 5e5;
    assert_true(turns_as(plain, rope));
}

void mellum_has_a_rope_and_experts_by_its_lists(void **) {
    const std::string experts = R"("num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "sliding_window": 32)";
    const Model plain = must_load(family("mellum", experts));
    for (size_t i = 0; i < plain.layers.size(); ++i) {
        assert_true(plain.layers[i].experts() != nullptr && attention(plain, i).window == 0);
        assert_true(plain.layers[i].experts()->router.normalised && attention(plain, i).q_norm);
    }
    const Model listed =
        must_load(family("mellum", experts + R"(, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"])"));
    assert_true(listed.layers[0].experts() == nullptr && listed.layers[2].experts() != nullptr);
    assert_int_equal(attention(listed, 1).window, 32);
    for (size_t i = 0; i < 3; ++i) {
        RopeConfig rope;
        rope.theta = i == 1 ? 10000 : 500000;
        assert_true(listed.ropes[static_cast<size_t>(attention(listed, i).rope)].frequencies ==
                    rope_frequencies(rope, 128));
    }
    assert_true(std::find(listed.passed_over.begin(), listed.passed_over.end(), "mtp.") !=
                listed.passed_over.end());
    const Model whole = must_load(R"({"model_type": "mellum"})");
    assert_true(whole.hidden == 2304 && attention(whole).heads == 32 && !whole.tied);
    assert_true(attention(whole).kv_heads == 4 && attention(whole).head_dim == 128);
    assert_true(whole.vocabulary == 98304 && whole.max_positions == 131072);
    assert_true(whole.layers.size() == 28 && whole.final_norm.epsilon == 1e-6F);
    assert_true(whole.bos_token == -1 && whole.eos_tokens.empty());
    const Experts &all = *whole.layers[0].experts();
    assert_true(all.each.size() == 64 && all.router.chosen == 8 && all.each[0].width == 896);
    must_fail(family("mellum", experts + R"(, "mlp_layer_types": ["dense", "sparse", "none"])"),
              BATCHLLM_ERROR_UNSUPPORTED, {"mlp_layer_types[2]"});
}

void youtu_has_latents_and_dense_layers(void **) {
    const std::string latents = R"("kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 24, "intermediate_size": 40)";
    for (const char *type : {"youtu", "youtu_llm"}) {
        const Model model = must_load(family(type, latents));
        for (const Layer &layer : model.layers) {
            assert_true(layer.attention()->latent.rank == 32 && layer.experts() == nullptr);
            assert_int_equal(layer.feed_forward()->width, 40);
        }
        assert_true(model.ropes[0].pairs && model.tied);
    }
    assert_false(
        must_load(family("youtu", latents + R"(, "rope_interleave": false)")).ropes[0].pairs);
    const Model plain = must_load(R"({"model_type": "youtu"})");
    const Latent &latent = attention(plain).latent;
    assert_true(plain.hidden == 2048 && attention(plain).heads == 16 && plain.tied);
    assert_true(plain.vocabulary == 128256 && plain.max_positions == 131072);
    assert_true(plain.layers.size() == 32 && plain.layers[0].feed_forward()->width == 6144);
    assert_true(plain.bos_token == 128000 && plain.eos_tokens == std::vector<int32_t>{128001});
    assert_true(latent.rank == 512 && latent.plain == 128 && latent.turned == 64);
    assert_true(latent.value_dim == 128 && latent.q_down.rows() == 1536);
    assert_true(plain.final_norm.epsilon == 1e-6F);
}

void factors_of_minicpm3_follow_from_its_sizes(void **) {
    const std::string latents = R"("kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8)";
    const Model model = must_load(family(
        "minicpm3", latents + R"(, "scale_emb": 6, "scale_depth": 0.9, "dim_model_base": 16)"));
    for (const Layer &layer : model.layers) {
        assert_true(layer.residual_scale == static_cast<float>(0.9 / std::sqrt(3.0)));
        assert_int_equal(layer.attention()->latent.value_dim, 16); // hidden / heads
    }
    assert_true(model.embedding_scale == 6 && model.logits_scale == 0.25F);
    assert_false(model.ropes[0].pairs);
    const Model none =
        must_load(family("minicpm3", latents + R"(, "scale_depth": null, "dim_model_base": null)"));
    assert_true(none.layers[0].residual_scale == 1 && none.logits_scale == 1);
    const Model plain = must_load(R"({"model_type": "minicpm3"})");
    const Latent &latent = attention(plain).latent;
    assert_true(plain.hidden == 2560 && attention(plain).heads == 40 && plain.tied);
    assert_true(plain.vocabulary == 73448 && plain.max_positions == 32768);
    assert_true(plain.layers.size() == 62 && plain.layers[0].feed_forward()->width == 6400);
    assert_true(plain.bos_token == 1 && plain.eos_tokens == std::vector<int32_t>{2});
    assert_true(latent.rank == 256 && latent.plain == 64 && latent.turned == 32);
    assert_true(latent.value_dim == 64 && latent.q_down.rows() == 768);
    assert_true(plain.final_norm.epsilon == 1e-5F && plain.embedding_scale == 12);
    assert_true(plain.layers[0].residual_scale == static_cast<float>(1.4 / std::sqrt(62.0)) &&
                plain.logits_scale == 0.1F);
}

void the_unified_gemma_4_has_neither_layer_inputs_nor_experts(void **) {
    const std::string keys = R"("head_dim": 16, "global_head_dim": 24, "sliding_window": 32,
        "attention_k_eq_v": true, "num_global_key_value_heads": 1, "enable_moe_block": true)";
    const Model model = must_load(family("gemma4_unified_text", keys));
    const Model whole = must_load(R"({"model_type": "gemma4_unified", "text_config": {)" +
                                  std::string(small) + ", " + keys + "}}");
    for (const Model *one : {&model, &whole}) {
        assert_true(!one->layer_inputs && !one->has_experts() && one->tied);
        assert_true(attention(*one).window == 32 && attention(*one, 2).window == 0);
        assert_true(attention(*one, 2).head_dim == 24 && attention(*one, 2).kv_heads == 1);
        assert_true(attention(*one, 2).v.values.name == attention(*one, 2).k.values.name);
        assert_true(one->layers[1].scalar.name == "model.layers.1.layer_scalar");
    }
    const std::vector<std::string> &skipped = whole.passed_over;
    for (const char *part : {"model.vision_embedder.", "model.embed_vision.", "embed_audio."}) {
        assert_true(std::find(skipped.begin(), skipped.end(), part) != skipped.end());
    }
    must_fail(family("gemma4_unified_text", R"("use_bidirectional_attention": "all")"),
              BATCHLLM_ERROR_UNSUPPORTED, {"use_bidirectional_attention"});
}

void sarvam_has_published_names_and_either_keys(void **) {
    const std::string rest = R"("num_experts_per_tok": 2, "moe_intermediate_size": 24)";
    const Model model = must_load(family("sarvam_moe", rest + R"(, "num_experts": 6,
        "num_shared_experts": 2, "use_qkv_bias": false,
        "architectures": ["SarvamMoEForCausalLM"])"));
    const Model written = must_load(family("sarvam_moe", rest + R"(, "n_routed_experts": 6,
        "n_shared_experts": 2, "attention_bias": false, "architectures": ["Glm4MoeForCausalLM"])"));
    for (const Model *one : {&model, &written}) {
        assert_true(one->embedding.name == "model.word_embeddings.weight");
        assert_true(one->layers[0].experts() == nullptr);
        for (const size_t i : {1, 2}) {
            const std::string prefix = "model.layers." + std::to_string(i) + ".";
            const SharedExperts &both = *one->layers[i].shared();
            assert_true(both.experts.each.size() == 6 && both.shared.width == 48);
            assert_true(both.experts.router.kind == RouterKind::sigmoid &&
                        both.experts.router.scale == 2.5F && both.experts.router.normalised);
            assert_true(both.experts.router.correction.name == prefix + "mlp.gate.expert_bias");
            const Attention &a = *one->layers[i].attention();
            assert_true(a.v.values.name == prefix + "attention.query_key_value.weight");
            assert_true(a.k.values.first_row == 256 && a.v.values.first_row == 384 &&
                        a.q.values.stored_rows == 512);
            assert_true(a.k_norm.weight.name == prefix + "attention.key_layernorm.weight");
            assert_true(a.o.values.name == prefix + "attention.dense.weight");
        }
    }
    for (const char *key : {"use_qkv_bias", "attention_bias"}) {
        must_fail(family("sarvam_moe", rest + R"(, "num_experts": 6, ")" + key + "\": true"),
                  BATCHLLM_ERROR_UNSUPPORTED, {key});
    }
    const Model unnormed = must_load(family("sarvam_moe", rest + R"(, "use_qk_norm": false)"));
    assert_true(!attention(unnormed).q_norm && !attention(unnormed).k_norm);
    const Model plain = must_load(R"({"model_type": "sarvam_moe"})");
    assert_true(plain.hidden == 4096 && attention(plain).heads == 64 && !plain.tied);
    assert_true(attention(plain).kv_heads == 4 && attention(plain).head_dim == 64);
    assert_true(plain.vocabulary == 262144 && plain.max_positions == 131072);
    assert_true(plain.layers.size() == 19 && plain.final_norm.epsilon == 1e-6F);
    assert_true(plain.bos_token == -1 && plain.eos_tokens == std::vector<int32_t>{1});
    const SharedExperts &all = *plain.layers[1].shared();
    assert_true(plain.layers[0].feed_forward()->width == 8192 && all.shared.width == 1024);
    assert_true(all.experts.each.size() == 128 && all.experts.router.chosen == 6);
    assert_true(all.experts.each[0].width == 1024 && all.experts.router.groups == 1);
    RopeConfig rope;
    rope.theta = 8e6;
    assert_true(turns_as(plain, rope));
}

void defaults_of_later_families_with_experts_are_those_of_transformers(void **) {
    struct Case {
        const char *type;
        int32_t vocabulary, hidden, width, heads, kv_heads, head_dim, positions;
        size_t layers, dense, experts;
        int32_t chosen, expert_width;
        float scale;
        double theta;
    };
    for (const Case &c : {
             Case{"exaone_moe", 102400, 4096, 16384, 32, 32, 128, 2048, 32, 1, 64, 8, 1024, 2.5F,
                  10000},
             Case{"hy_v3", 120832, 4096, 13312, 64, 8, 128, 131072, 80, 1, 192, 8, 1536, 2.826F,
                  11158840},
             Case{"solar_open", 196608, 4096, 0, 64, 8, 128, 131072, 48, 0, 128, 8, 1280, 1,
                  1000000},
         }) {
        const Model model = must_load(std::string(R"({"model_type": ")") + c.type + "\"}");
        assert_true(model.vocabulary == c.vocabulary && model.hidden == c.hidden);
        assert_true(model.layers.size() == c.layers && model.max_positions == c.positions);
        assert_true(model.final_norm.epsilon == 1e-5F && !model.tied);
        const Attention a = attention(model);
        assert_true(a.heads == c.heads && a.kv_heads == c.kv_heads && a.head_dim == c.head_dim);
        assert_int_equal(a.window, std::string(c.type) == "exaone_moe" ? 4096 : 0);
        RopeConfig rope;
        rope.theta = c.theta;
        assert_true(turns_as(model, rope));
        for (size_t i = 0; i < c.layers; ++i) {
            assert_true((model.layers[i].experts() != nullptr) == (i >= c.dense));
        }
        if (c.dense > 0) assert_int_equal(model.layers[0].feed_forward()->width, c.width);
        const SharedExperts &both = *model.layers.back().shared();
        assert_true(both.experts.each.size() == c.experts && both.shared.width == c.expert_width);
        assert_true(both.experts.each[0].width == c.expert_width);
        const Router &router = both.experts.router;
        assert_true(router.chosen == c.chosen && router.scale == c.scale && router.normalised);
        assert_true(router.groups == 1 && router.kind == RouterKind::sigmoid);
    }
}

void null_key_value_heads_are_as_many_as_heads(void **) {
    assert_int_equal(
        attention(must_load(R"({"model_type": "mistral", "num_key_value_heads": null})")).kv_heads,
        32);
    assert_int_equal(
        attention(must_load(R"({"model_type": "llama", "num_attention_heads": 8})")).kv_heads, 8);
}

void head_dim_need_not_be_hidden_over_heads(void **) {
    assert_int_equal(attention(must_load(llama(""))).head_dim, 16);
    assert_int_equal(attention(must_load(llama(R"("head_dim": null)"))).head_dim, 16);
    assert_int_equal(attention(must_load(llama(R"("head_dim": 80)"))).head_dim, 80);
    assert_int_equal(attention(must_load(family("qwen3", ""))).head_dim, 128);
    must_fail(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 2})",
              BATCHLLM_ERROR_MODEL_FORMAT, {"head_dim", "2048"});
}

void both_spellings_of_the_type_are_read(void **) {
    assert_true(must_load(llama(R"("torch_dtype": "bfloat16")")).dtype == DType::bf16);
    assert_true(must_load(llama(R"("dtype": "float16")")).dtype == DType::f16);
    assert_true(must_load(llama(R"("dtype": "float32", "torch_dtype": "float16")")).dtype ==
                DType::f32);
    must_fail(llama(R"("torch_dtype": "float64")"), BATCHLLM_ERROR_UNSUPPORTED,
              {"torch_dtype", "float64"});
}

void both_spellings_of_the_rope_keys_are_read(void **) {
    const char *const spellings[] = {
        R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
           "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
        R"("rope_theta": 500000, "rope_scaling": {"type": "llama3", "factor": 8,
           "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64})",
        R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
           "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
        R"("rope_theta": 500000.0, "rope_parameters": {"rope_theta": 500000.0, "type": "llama3",
           "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 64})",
    };
    for (const char *spelling : spellings) {
        assert_true(turns_as(must_load(llama(spelling)), {RopeKind::llama3, 500000, 8, 1, 4, 64}));
    }
    assert_true(turns_as(must_load(llama(R"("rope_scaling": {"type": "linear", "factor": 2.5})")),
                         {RopeKind::linear, 10000, 2.5}));
    assert_true(turns_as(must_load(llama(R"("rope_scaling": null, "rope_theta": 1e6)")),
                         {RopeKind::plain, 1e6}));
    assert_true(turns_as(
        must_load(llama(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "default"})")),
        {RopeKind::plain, 5e5}));
}

void the_original_length_falls_back_on_the_longest_request(void **) {
    const std::string scaling = R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0})";
    assert_true(turns_as(must_load(llama(scaling)), {RopeKind::llama3, 10000, 8, 1, 4, 256}));
    assert_true(turns_as(must_load(llama(scaling + R"(, "original_max_position_embeddings": 32)")),
                         {RopeKind::llama3, 10000, 8, 1, 4, 32}));
}

void rope_that_is_not_computed_is_refused_by_name(void **) {
    for (const char *type : {"dynamic", "su", "mrope", "proportional", ""}) {
        const std::string scaling =
            R"("rope_scaling": {"rope_type": ")" + std::string(type) + R"(", "factor": 2.0})";
        must_fail(llama(scaling), BATCHLLM_ERROR_UNSUPPORTED,
                  {"rope_scaling.rope_type", std::string(type)});
    }
    must_fail(llama(R"("rope_parameters": {"type": "ntk", "factor": 2.0})"),
              BATCHLLM_ERROR_UNSUPPORTED, {"rope_parameters.type", "ntk"});
    must_fail(llama(R"("partial_rotary_factor": 0.5)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"partial_rotary_factor", "0.5"});
    must_fail(llama(R"("rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25})"),
              BATCHLLM_ERROR_UNSUPPORTED, {"rope_parameters.partial_rotary_factor", "0.25"});
    must_fail(llama(R"("rope_parameters": {"full_attention": {"rope_theta": 1e4}})"),
              BATCHLLM_ERROR_UNSUPPORTED, {"rope_parameters.full_attention"});
}

// The scale of cosine and sine, as transformers infers it: 0.1 ln(factor) + 1, or a quotient of
// two.
void yarn_scales_cosine_and_sine(void **) {
    const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64)";
    const auto scale = [&](const std::string &more) {
        const Model model = must_load(llama(yarn + more + "}"));
        return static_cast<double>(model.ropes.at(0).scale);
    };
    const double grown = 0.1 * std::log(4.0) + 1;
    assert_true(std::fabs(scale("") - grown) < 1e-6);
    assert_true(std::fabs(scale(R"(, "mscale": 2)") - grown) < 1e-6);
    assert_true(std::fabs(scale(R"(, "mscale": 1, "mscale_all_dim": 1)") - 1) < 1e-6);
    assert_true(std::fabs(scale(R"(, "mscale": 2, "mscale_all_dim": 1)") -
                          (0.2 * std::log(4.0) + 1) / grown) < 1e-6);
    assert_true(std::fabs(scale(R"(, "attention_factor": 1.25)") - 1.25) < 1e-6);
    must_fail(llama(R"("rope_scaling": {"type": "yarn"})"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"rope_scaling.factor", "missing"});
}

void longrope_has_two_lists_of_factors(void **) {
    const std::string keys = R"("original_max_position_embeddings": 64, "rope_scaling": {
        "type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": )";
    Model model = must_load(family("phi3", keys + "[2, 2, 2, 2, 2, 2, 2, 2]}"));
    const std::vector<float> brief = model.ropes.at(0).frequencies;
    assert_true(brief == rope_frequencies({}, 16));
    choose_frequencies(64, &model);
    assert_true(model.ropes[0].frequencies == brief);
    choose_frequencies(65, &model);
    for (size_t i = 0; i < brief.size(); ++i) {
        assert_true(model.ropes[0].frequencies[i] == brief[i] / 2);
    }
    // 256 positions, made for 64.
    assert_true(std::fabs(static_cast<double>(model.ropes[0].scale) -
                          std::sqrt(1 + std::log(4.0) / std::log(64.0))) < 1e-6);
    must_fail(family("phi3", keys + "[2, 2]}"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"rope_scaling.long_factor", "8 numbers"});
    must_fail(family("phi3", keys + "[2, 2, 2, 2, 2, 2, 2, -1]}"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"rope_scaling.long_factor[7]", "-1"});
    // The names that this family used for it.
    assert_int_equal(must_load(family("phi3", R"("rope_scaling": {"type": "su",
        "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 1, 1, 1, 1, 1, 1, 1]})"))
                         .ropes[0]
                         .long_after,
                     4096);
}

void a_part_of_a_head_rotates_where_the_family_knows_it(void **) {
    assert_int_equal(
        must_load(family("phi3", R"("partial_rotary_factor": 0.75)")).ropes.at(0).dims(), 12);
    const Model glm = must_load(family("glm", R"("head_dim": 16)"));
    assert_int_equal(glm.ropes.at(0).dims(), 8);
    assert_true(glm.ropes[0].pairs);
    must_fail(family("phi3", R"("partial_rotary_factor": 0.2)"), BATCHLLM_ERROR_UNSUPPORTED,
              {"partial_rotary_factor", "0.2"});
    // Half of it, if the file says nothing.
    must_fail(family("glm", R"("head_dim": 18)"), BATCHLLM_ERROR_UNSUPPORTED, {"head_dim 18"});
}

void ropes_that_are_not_finite_are_refused(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    const std::string longrope = R"("rope_scaling": {"type": "longrope",
        "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 1, 1, 1, 1, 1, 1, 1])";
    must_fail(family("phi3", R"("original_max_position_embeddings": 1, )" + longrope + "}"), code,
              {"infinite"});
    must_load(family("phi3", R"("original_max_position_embeddings": 1, )" + longrope +
                                 R"(, "attention_factor": 1.5})"));
    must_fail(llama(R"("rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 4.0,
                       "original_max_position_embeddings": 256})"),
              code, {"infinite"});
}

void experts_of_all_layers_are_limited(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    const std::string layers = R"({"model_type": "mixtral", "num_hidden_layers": 4096)";
    must_fail(layers + R"(, "num_local_experts": 33})", code, {"num_local_experts", "4096 layers"});
    must_fail(R"({"model_type": "olmoe", "num_hidden_layers": 4096})", code,
              {"num_hidden_layers", "4096 layers"});
    assert_int_equal(must_load(R"({"model_type": "mixtral", "num_hidden_layers": 128,
                                   "num_local_experts": 128})")
                         .layers[127]
                         .experts()
                         ->each.size(),
                     128);
}

void more_experts_a_token_than_there_are_is_an_error_that_names_the_key(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    must_fail(family("qwen3_moe", R"("num_experts": 6, "num_experts_per_tok": 7)"), code,
              {"\"num_experts_per_tok\" is 7", "there are 6 experts"});
    must_fail(family("qwen3_moe", R"("num_experts": 6)"), code,
              {"num_experts_per_tok, which is not given, is 8", "there are 6 experts"});
}

// A checkpoint with a vision tower: top-level keys take precedence, and the tower's tensors are
// named.
void the_text_part_of_a_larger_checkpoint_is_described(void **) {
    const std::string text = R"("text_config": {"model_type": "ministral3", "head_dim": 16,
        "eos_token_id": 5, )" +
                             std::string(small) + "}";
    const Model model = must_load(R"({"model_type": "mistral3", "torch_dtype": "bfloat16",
        "eos_token_id": [7, 8], "tie_word_embeddings": false, "vision_config": {}, )" +
                                  text + "}");
    assert_true(model.dtype == DType::bf16 && model.dtype_stated);
    assert_true(model.eos_tokens == (std::vector<int32_t>{7, 8}));
    assert_false(model.tied);
    assert_true(attention(model).long_scale == 0.1F);
    assert_int_equal(attention(model).long_period, 16384);
    assert_true(must_load(R"({"model_type": "mistral3", )" + text + "}").tied);
}

void rope_keys_that_contradict_each_other_are_refused(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    must_fail(llama(R"("rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2})"),
              code, {"rope_scaling.type", "linear", "default"});
    must_fail(llama(R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5})"), code,
              {"rope_parameters.rope_theta"});
    must_fail(
        llama(R"("rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e5})"),
        code, {"rope_scaling", "rope_parameters"});
    must_fail(llama(R"("rope_scaling": {"type": "linear"})"), code, {"rope_scaling.factor"});
    must_fail(llama(R"("rope_scaling": {"type": "linear", "factor": 0.5})"), code,
              {"rope_scaling.factor", "0.5"});
    must_fail(llama(R"("rope_scaling": {"type": "linear", "factor": "2"})"), code,
              {"rope_scaling.factor", "\"2\""});
    must_fail(llama(R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4,
                       "high_freq_factor": 3})"),
              code, {"rope_scaling.high_freq_factor"});
    must_fail(llama(R"("rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4})"),
              code, {"rope_scaling.high_freq_factor", "missing"});
    must_fail(llama(R"("rope_scaling": "linear")"), code, {"rope_scaling", "object"});
    must_fail(llama(R"("rope_theta": 0)"), code, {"rope_theta"});
    must_fail(llama(R"("rope_theta": 1e300)"), code, {"rope_theta"});
}

void windows_follow_each_familys_rules(void **) {
    assert_int_equal(attention(must_load(family("mistral", ""))).window, 4096);
    assert_int_equal(attention(must_load(family("mistral", R"("sliding_window": 32)")), 0).window,
                     32);
    assert_int_equal(attention(must_load(family("mistral", R"("sliding_window": null)")), 0).window,
                     0);
    // A key that the class does not know has no effect.
    assert_int_equal(attention(must_load(llama(R"("sliding_window": 32)")), 0).window, 0);
    for (const char *type : {"qwen2", "qwen3"}) {
        assert_int_equal(attention(must_load(family(type, R"("sliding_window": 32)")), 2).window,
                         0);
        Model config = must_load(family(
            type, R"("sliding_window": 32, "use_sliding_window": true, "max_window_layers": 1)"));
        assert_int_equal(attention(config, 0).window, 0);
        assert_int_equal(attention(config, 1).window, 32);
        assert_int_equal(attention(config, 2).window, 32);
        // The default of max_window_layers, 28, is above all three layers.
        config = must_load(family(type, R"("sliding_window": 32, "use_sliding_window": true)"));
        assert_int_equal(attention(config, 2).window, 0);
        config = must_load(family(type, R"("sliding_window": null, "use_sliding_window": true,
                                           "max_window_layers": 0)"));
        assert_int_equal(attention(config, 2).window, 0);
        // layer_types applies, not max_window_layers.
        config = must_load(family(type, R"("sliding_window": 32, "use_sliding_window": true,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"])"));
        assert_int_equal(attention(config, 1).window, 0);
        assert_int_equal(attention(config, 2).window, 32);
        config = must_load(family(
            type, R"("layer_types": ["full_attention", "full_attention", "full_attention"])"));
        assert_int_equal(attention(config, 2).window, 0);
        config = must_load(family(type, R"("sliding_window": 32, "use_sliding_window": true,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"])"));
        assert_int_equal(attention(config, 0).window, 32);
        assert_int_equal(attention(config, 1).window, 0);
        assert_int_equal(attention(config, 2).window, 32);
        must_fail(family(type, R"("layer_types": ["full_attention", "full_attention",
                                                  "sliding_attention"])"),
                  BATCHLLM_ERROR_MODEL_FORMAT, {"layer_types[2]"});
        must_fail(family(type, R"("layer_types": ["full_attention"])"), BATCHLLM_ERROR_MODEL_FORMAT,
                  {"layer_types", "num_hidden_layers"});
        must_fail(family(type, R"("layer_types": ["full_attention", "linear_attention",
                                                  "full_attention"])"),
                  BATCHLLM_ERROR_UNSUPPORTED, {"layer_types[1]", "linear_attention"});
    }
}

// Layers with a window (W) and without (.), five to one as in Gemma 3, and other mixtures.
Model layers_of(const std::string &pattern, int32_t window, int32_t max_positions) {
    Model model;
    model.max_positions = max_positions;
    for (const char kind : pattern) {
        Layer layer;
        Attention &a = layer.mixer.emplace<Attention>();
        a.kv_heads = 8;
        a.head_dim = kind == 'b' ? 512 : 256;
        a.window = kind == 'W' ? window : 0;
        model.layers.push_back(layer);
    }
    place_keys_and_values(&model);
    return model;
}

void layers_of_one_kind_share_kv_groups_of_equal_pages(void **) {
    struct Case {
        std::string pattern;
        int32_t window, max_positions;
        size_t groups;
        int32_t planes;
    };
    const Case cases[] = {
        {times(".", 32), 0, 8192, 1, 32},                  // Llama 3 8B
        {times("W", 32), 4096, 32768, 1, 32},              // Mistral 7B v0.1
        {times("WW", 10), 4096, 4096, 1, 20},              // a window that no row outgrows is none
        {times(".W", 10), 4096, 4096, 1, 20},              // the same
        {times("WWWWW.", 8), 1024, 131072, 6, 8},          // Gemma 3 12B
        {times("WWWWW.", 10) + "WW", 1024, 131072, 13, 5}, // Gemma 3 27B: 52 and 10
        {times(".b", 4), 0, 8192, 2, 4},
    };
    for (const Case &c : cases) {
        const Model model = layers_of(c.pattern, c.window, c.max_positions);
        assert_int_equal(model.kv_groups.size(), c.groups);
        assert_int_equal(model.kv_planes(), c.planes);
        size_t placed = 0;
        for (size_t g = 0; g < model.kv_groups.size(); ++g) {
            const KvGroup &group = model.kv_groups[g];
            assert_in_range(group.layers.size(), 1, c.planes);
            for (size_t i = 0; i < group.layers.size(); ++i, ++placed) {
                const Attention &a =
                    *model.layers[static_cast<size_t>(group.layers[i])].attention();
                assert_int_equal(a.kv_group, g);
                assert_int_equal(a.kv_plane, i);
                assert_int_equal(group.window, a.window < c.max_positions ? a.window : 0);
            }
        }
        assert_int_equal(placed, model.layers.size());
    }
}

// Qwen2-MoE counts from the other end: even layers below max_window_layers have windows.
void no_layer_of_qwen2_moe_has_a_window_below_0(void **) {
    const std::string keys =
        R"("sliding_window": 32, "use_sliding_window": true, "max_window_layers": )";
    const auto windowed = [&](const char *below) {
        const Model model = must_load(family("qwen2_moe", keys + below));
        return std::ranges::count_if(model.layers,
                                     [](const Layer &l) { return l.attention()->window != 0; });
    };
    assert_int_equal(windowed("0"), 0);
    assert_int_equal(windowed("1"), 1);
    assert_int_equal(windowed("3"), 2);
}

void biases_follow_each_familys_rules(void **) {
    Layer layer = must_load(llama(R"("attention_bias": true, "mlp_bias": true)")).layers[1];
    assert_true(bool(layer.attention()->k.bias) && bool(layer.attention()->o.bias) &&
                bool(layer.feed_forward()->down.bias));
    layer = must_load(family("mistral", R"("attention_bias": true, "mlp_bias": true)")).layers[1];
    assert_false(bool(layer.attention()->k.bias) || bool(layer.attention()->o.bias) ||
                 bool(layer.feed_forward()->down.bias));
    layer = must_load(family("qwen2", R"("attention_bias": false)")).layers[1];
    assert_true(bool(layer.attention()->k.bias));
    assert_false(bool(layer.attention()->o.bias) || bool(layer.feed_forward()->down.bias) ||
                 bool(layer.attention()->q_norm));
    layer = must_load(family("qwen3", R"("attention_bias": true)")).layers[1];
    assert_true(bool(layer.attention()->k.bias) && bool(layer.attention()->o.bias) &&
                bool(layer.attention()->q_norm));
}

void eos_is_every_id_of_the_generation_config(void **) {
    const std::string config = llama(R"("eos_token_id": 5)");
    assert_true(must_load(config).eos_tokens == std::vector<int32_t>{5});
    assert_true(must_load(config, R"({"eos_token_id": [7, 9, 7]})").eos_tokens ==
                (std::vector<int32_t>{7, 9}));
    assert_true(must_load(config, R"({"eos_token_id": 8})").eos_tokens == std::vector<int32_t>{8});
    assert_true(must_load(config, R"({"eos_token_id": null})").eos_tokens ==
                std::vector<int32_t>{5});
    assert_true(must_load(config, "{}").eos_tokens == std::vector<int32_t>{5});
    assert_true(must_load(llama(R"("eos_token_id": [3, 4])")).eos_tokens ==
                (std::vector<int32_t>{3, 4}));
    assert_true(must_load(llama(R"("eos_token_id": null)")).eos_tokens.empty());
    assert_true(must_load(llama("")).eos_tokens == std::vector<int32_t>{2});
    must_fail(config, BATCHLLM_ERROR_MODEL_FORMAT,
              {"generation_config.json", "eos_token_id[1]", "100"},
              R"({"eos_token_id": [7, 100]})");
    must_fail(llama(R"("eos_token_id": -1)"), BATCHLLM_ERROR_MODEL_FORMAT, {"eos_token_id", "-1"});
    must_fail(config, BATCHLLM_ERROR_MODEL_FORMAT, {"generation_config.json"}, "[1]");
    must_fail(config, BATCHLLM_ERROR_MODEL_FORMAT, {"generation_config.json"}, "{");
}

std::string of_class(const char *name, const std::string &more) {
    return family("qwen3", std::string(R"("architectures": [")") + name + "\"]" + more);
}

void classes_say_what_stands_behind_the_last_norm(void **) {
    const Model base = must_load(of_class("Qwen3Model", R"(, "tie_word_embeddings": true)"));
    assert_false(bool(base.head) || bool(base.classifier) || base.tied);
    assert_true(bool(
        must_load(family("gemma3_text", R"("architectures": ["Gemma3TextModel"])")).layers.size()));

    const auto labels = [](const std::string &more) {
        return must_load(of_class("Qwen3ForSequenceClassification", more));
    };
    const Model two = labels("");
    assert_false(bool(two.head));
    assert_string_equal(two.classifier.values.name.c_str(), "score.weight");
    assert_int_equal(two.classifier.rows(), 2);
    assert_int_equal(two.classifier.columns(), 64);
    assert_string_equal(two.labels[1].c_str(), "LABEL_1");
    assert_true(two.label_kind == LabelKind::one_of);
    const Model one = labels(R"(, "id2label": {"0": "relevant"})");
    assert_int_equal(one.classifier.rows(), 1);
    assert_true(one.label_kind == LabelKind::several);
    assert_true(labels(R"(, "num_labels": 1, "problem_type": "regression")").label_kind ==
                LabelKind::value);
    const Model three = labels(R"(, "id2label": {"2": "c", "0": "a", "1": "b"},
                    "problem_type": "multi_label_classification")");
    assert_true(three.labels == (std::vector<std::string>{"a", "b", "c"}));
    assert_true(three.label_kind == LabelKind::several);

    const auto refused = [](const std::string &more, int32_t code, std::vector<std::string> parts) {
        must_fail(of_class("Qwen3ForSequenceClassification", more), code, std::move(parts));
    };
    refused(R"(, "id2label": {"1": "a"})", BATCHLLM_ERROR_MODEL_FORMAT, {"id2label.1"});
    refused(R"(, "id2label": {"0": "a", "x": "b"})", BATCHLLM_ERROR_MODEL_FORMAT, {"id2label.x"});
    refused(R"(, "id2label": {"00": "a", "1": "b"})", BATCHLLM_ERROR_MODEL_FORMAT, {"id2label.00"});
    refused(R"(, "id2label": {"-0": "a"})", BATCHLLM_ERROR_MODEL_FORMAT, {"id2label.-0"});
    refused(R"(, "id2label": {})", BATCHLLM_ERROR_MODEL_FORMAT, {"id2label"});
    refused(R"(, "problem_type": "ranking")", BATCHLLM_ERROR_UNSUPPORTED,
            {"problem_type", "ranking"});
}

void models_that_are_not_computed_are_refused_by_name(void **) {
    const int32_t code = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(R"({"model_type": "bloom"})", code, {"model_type", "bloom"});
    // Other families of layers with a state.
    for (const std::string type : {"jamba", "mamba2", "zamba2"}) {
        must_fail("{\"model_type\": \"" + type + "\"}", code,
                  {"model_type", type, "this version runs"});
    }
    must_fail(family("gemma2", R"("use_bidirectional_attention": true)"), code,
              {"use_bidirectional_attention", "true"});
    must_fail(R"({"model_type": "mistral3", "text_config": {"model_type": "qwen2"}})", code,
              {"text_config.model_type", "qwen2"});
    must_fail(R"({"model_type": "gemma3", "text_config": {"quantization_config": {"bits": 4}}})",
              code, {"text_config.quantization_config"});
    must_fail(family("gemma3_text", R"("rope_scaling": {"type": "linear", "factor": 8})"), code,
              {"rope_scaling.type", "linear"});
    must_fail(R"({"model_type": "gemma3"})", BATCHLLM_ERROR_MODEL_FORMAT, {"text_config"});
    must_fail(family("gemma3_text", R"("rope_parameters": {"rope_theta": 10000.0})"), code,
              {"rope_parameters.rope_theta"});
    must_fail(R"({"model_type": "llama", "architectures": ["LlamaForTokenClassification"]})", code,
              {"architectures[0]", "LlamaForTokenClassification",
               "only LlamaForCausalLM, LlamaForSequenceClassification and LlamaModel go with"});
    must_fail(R"({"model_type": "gemma3", "architectures": ["Gemma3Model"]})", code,
              {"only Gemma3ForConditionalGeneration goes with"});
    must_fail(family("gemma3_text", R"("architectures": ["Gemma3ForSequenceClassification"])"),
              code, {"Gemma3TextForSequenceClassification"});
    must_fail(R"({"model_type": "llama", "architectures": ["MistralForCausalLM"]})", code,
              {"architectures[0]", "MistralForCausalLM"});
    must_fail(llama(R"("hidden_act": "relu")"), code, {"hidden_act", "relu"});
    must_fail(llama(R"("quantization_config": {"quant_method": "bitsandbytes"})"), code,
              {"quantization_config"});
    must_fail(llama(R"("per_layer_config": {"0": {"head_dim": 8}})"), code, {"per_layer_config"});
    must_fail(llama(R"("is_encoder_decoder": true)"), code, {"is_encoder_decoder"});
    must_fail(llama(R"("is_causal": false)"), code, {"is_causal", "false"});
    must_fail(R"({"model_type": "gemma3", "text_config": {"is_causal": false}})", code,
              {"text_config.is_causal"});
    must_load(llama(R"("is_causal": true)"));
    must_fail(family("qwen3", R"("architectures": ["Qwen3Model", "Qwen3ForCausalLM"])"), code,
              {"architectures[1]", "Qwen3ForCausalLM"});
}

void values_out_of_range_are_refused_with_key_and_value(void **) {
    struct Case {
        const char *key;
        const char *value;
    };
    const Case cases[] = {
        {"vocab_size", "0"},
        {"vocab_size", "-1"},
        {"vocab_size", "16777217"},
        {"vocab_size", "100.5"},
        {"vocab_size", "\"100\""},
        {"vocab_size", "9223372036854775807"},
        {"vocab_size", "18446744073709551615"},
        {"vocab_size", "1e400"},
        {"hidden_size", "0"},
        {"hidden_size", "1000.5"},
        {"hidden_size", "2147483648"},
        {"hidden_size", "63"},
        {"intermediate_size", "-5"},
        {"num_hidden_layers", "0"},
        {"num_hidden_layers", "1000000"},
        {"num_attention_heads", "0"},
        {"num_attention_heads", "true"},
        {"num_key_value_heads", "3"},
        {"num_key_value_heads", "0"},
        {"num_key_value_heads", "8"},
        {"head_dim", "0"},
        {"head_dim", "15"},
        {"head_dim", "4096"},
        {"max_position_embeddings", "0"},
        {"rms_norm_eps", "-0.5"},
        {"rms_norm_eps", "2"},
        {"rms_norm_eps", "\"1e-6\""},
        {"tie_word_embeddings", "2"},
        {"attention_bias", "\"no\""},
        {"bos_token_id", "100"},
    };
    for (const Case &item : cases) {
        // The first of two equal keys is replaced.
        std::string config = llama(std::string("\"") + item.key + "\": " + item.value);
        const std::string key = std::string("\"") + item.key + "\"";
        const size_t first = config.find(key);
        if (config.find(key, first + 1) != std::string::npos) {
            config.replace(first, key.size(), "\"ignored\"");
        }
        must_fail(config, BATCHLLM_ERROR_MODEL_FORMAT, {item.key, item.value});
    }
}

void broken_json_is_refused(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    for (const char *text : {"", "{", "[]", "null", "{\"model_type\": \"llama\"} x",
                             "{\"model_type\": \"ll\xff\"}", "{\"a\": NaN}", "{\"a\": 01}"}) {
        must_fail(text, code, {});
    }
    must_fail("{}", code, {"model_type", "missing"});
    must_fail(R"({"model_type": 5})", code, {"model_type", "5"});
    must_fail(R"({"model_type": "llama", "architectures": []})", code, {"architectures"});
    must_fail(R"({"model_type": "llama", "architectures": "LlamaForCausalLM"})", code,
              {"architectures"});
    must_fail(std::string(5000, '['), code, {});
}

void a_key_that_stands_twice_is_refused_where_it_is_asked_for(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    must_fail(llama(R"("head_dim": 16, "head_dim": 32)"), code, {"\"head_dim\"", "twice"});
    // Of no use to anyone.
    must_load(llama(R"("a": [{"b": {"c": 1, "d": 2, "c": 3}}], "e": 1, "e": 1)"));
    // The same key once it is unescaped.
    must_fail(llama("\"head_dim\": 16, \"\\u0068ead_dim\": 16"), code, {"head_dim", "twice"});
    must_fail(llama(R"("rope_scaling": {"rope_type": "linear", "factor": 2, "factor": 4})"), code,
              {"rope_scaling.factor", "twice"});
}

void numbers_are_read_as_python_reads_them(void **) {
    const Model model = must_load(llama(
        R"("head_dim": 16.0, "tie_word_embeddings": 1, "limit": 1e400, "most": 123456789012345678901234)"));
    assert_true(attention(model).head_dim == 16 && model.tied);
    must_fail(llama(R"("head_dim": 123456789012345678901234)"), BATCHLLM_ERROR_MODEL_FORMAT,
              {"\"head_dim\" is 123456789012345678901234: must be a whole number"});
}

void text_of_the_file_cannot_break_out_of_an_error(void **) {
    const auto loaded = load(R"({"model_type": "a\nb\u001b[2J)" + std::string(1000, 'x') + "\"}");
    assert_false(loaded.ok());
    const std::string &message = loaded.status().message();
    assert_true(message.size() < 1200); // the families are named
    for (const char c : message) assert_true(static_cast<unsigned char>(c) >= 0x20);
}

void a_missing_file_is_named(void **) {
    const auto loaded = describe_model("/nonexistent");
    assert_int_equal(loaded.status().code(), BATCHLLM_ERROR_IO);
    assert_non_null(strstr(loaded.status().message().c_str(), "/nonexistent/config.json"));
}

void rope_frequencies_equal_those_of_transformers(void **) {
    auto document = JsonDocument::load("golden/rope.json", 1);
    assert_true(document.ok());
    int64_t compared = 0;
    int64_t off_by_one = 0;
    const JsonValue root = document->root();
    const auto items = *root.elements();
    for (const JsonValue &item : items) {
        RopeConfig rope;
        const std::string type = *item.at("rope_type")->string();
        rope.kind = type == "llama3"         ? RopeKind::llama3
                    : type == "yarn"         ? RopeKind::yarn
                    : type == "linear"       ? RopeKind::linear
                    : type == "proportional" ? RopeKind::proportional
                                             : RopeKind::plain;
        rope.theta = *item.at("rope_theta")->number(0, 1e18);
        rope.factor = *read_number(item, "factor", 1, 0, 1e6);
        rope.part = *read_number(item, "partial_rotary_factor", 1, 0, 1);
        if (type == "llama3") {
            rope.low_freq_factor = *item.at("low_freq_factor")->number(0, 1e6);
            rope.high_freq_factor = *item.at("high_freq_factor")->number(0, 1e6);
        }
        if (type == "yarn") {
            rope.beta_fast = *read_number(item, "beta_fast", 32, 0, 1e6);
            rope.beta_slow = *read_number(item, "beta_slow", 1, 0, 1e6);
            rope.truncate = *read_flag(item, "truncate", true);
        }
        if (const auto original = item.given("original_max_position_embeddings")) {
            rope.original_max_positions = *original->integer(1, 1 << 30);
        }
        const auto head_dim = static_cast<int32_t>(*item.at("head_dim")->integer(2, 1024));
        const auto bits = *item.at("bits")->elements();
        const std::vector<float> got = rope_frequencies(rope, head_dim);
        assert_int_equal(got.size(), bits.size());
        for (size_t i = 0; i < got.size(); ++i) {
            const int64_t expected = *bits[i].integer(0, UINT32_MAX);
            const int64_t distance = std::abs(int64_t{std::bit_cast<uint32_t>(got[i])} - expected);
            // The reference's own power function is off by one unit in the last place at times;
            // YaRN combines two of its results.
            if (distance > (rope.kind == RopeKind::yarn ? 2 : 1)) {
                fail_msg("head_dim %d, %s, pair %zu: %lld units apart", head_dim, type.c_str(), i,
                         static_cast<long long>(distance));
            }
            off_by_one += distance;
            ++compared;
        }
    }
    print_message("%lld frequencies, %lld of them one unit in the last place off\n",
                  static_cast<long long>(compared), static_cast<long long>(off_by_one));
    assert_true(compared > 2000);
    assert_true(off_by_one * 50 <= compared);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_have_the_defaults_of_transformers),
        cmocka_unit_test(layers_of_lfm2_convolve_or_attend_as_either_key_says),
        cmocka_unit_test(the_input_of_a_short_convolution_is_one_tensor),
        cmocka_unit_test(feed_forwards_of_lfm2_are_as_wide_as_its_keys_make_them),
        cmocka_unit_test(lfm2s_other_spellings_are_read),
        cmocka_unit_test(experts_of_lfm2_moe_follow_its_dense_layers),
        cmocka_unit_test(defaults_of_lfm2_are_those_of_transformers),
        cmocka_unit_test(an_lfm2_whose_keys_do_not_fit_is_refused_by_name),
        cmocka_unit_test(layer_types_of_a_hybrid_say_which_layers_have_a_delta_net),
        cmocka_unit_test(a_delta_nets_input_is_in_one_order_in_both_families),
        cmocka_unit_test(a_hybrid_whose_keys_do_not_fit_is_refused_by_name),
        cmocka_unit_test(defaults_of_hybrids_are_those_of_transformers),
        cmocka_unit_test(a_mamba_layers_parts_are_in_the_order_of_all_linear_attention),
        cmocka_unit_test(every_spelling_of_a_granite_4_is_read),
        cmocka_unit_test(defaults_of_a_granite_4_are_those_of_transformers),
        cmocka_unit_test(a_granite_4_whose_keys_do_not_fit_is_refused_by_name),
        cmocka_unit_test(layers_of_bamba_attend_where_its_list_says),
        cmocka_unit_test(a_layer_of_falcon_h1_is_mamba_with_attention_beside_it),
        cmocka_unit_test(layers_of_llama_4_are_in_chunks_where_they_have_a_rope),
        cmocka_unit_test(layers_of_kimi_linear_have_a_delta_net_or_latents),
        cmocka_unit_test(each_layer_of_a_nemotron_h_is_one_thing),
        cmocka_unit_test(every_spelling_of_a_nemotron_h_is_read),
        cmocka_unit_test(defaults_of_a_nemotron_h_are_those_of_transformers),
        cmocka_unit_test(a_nemotron_h_whose_keys_do_not_fit_is_refused_by_name),
        cmocka_unit_test(layers_of_gemma_4_share_keys_and_values_with_earlier_ones_of_their_kind),
        cmocka_unit_test(full_layers_of_gemma_4_have_heads_of_their_own),
        cmocka_unit_test(a_tied_head_has_a_bias_of_its_own),
        cmocka_unit_test(gemma_4_may_have_experts_beside_every_feed_forward),
        cmocka_unit_test(the_experts_of_gemma_4_need_their_keys),
        cmocka_unit_test(what_of_gemma_4_is_not_computed_is_refused_by_name),
        cmocka_unit_test(mimo_and_pangu_are_known_decoders_by_other_names),
        cmocka_unit_test(a_command_r_has_a_rope_everywhere_and_the_context_of_its_own_key),
        cmocka_unit_test(every_fourth_layer_of_cwm_sees_everything_from_the_first_on),
        cmocka_unit_test(ministral_is_mistral_whose_layer_types_count),
        cmocka_unit_test(hyperclovax_is_granite_with_norms_after_the_sublayers),
        cmocka_unit_test(experts_of_qwen3_vl_are_transposed_stacks_whose_weights_sum_to_one),
        cmocka_unit_test(k_exaone_has_experts_where_either_key_says),
        cmocka_unit_test(every_layer_of_solar_open_has_experts),
        cmocka_unit_test(experts_of_hy3_have_the_names_of_its_checkpoints),
        cmocka_unit_test(norms_of_nemotron_add_one_to_their_weight),
        cmocka_unit_test(sarvam_has_published_names_and_either_keys),
        cmocka_unit_test(phi_has_one_norm_a_layer_and_biases_everywhere),
        cmocka_unit_test(internlm3_has_biases_under_keys_of_its_own),
        cmocka_unit_test(vaultgemma_is_gemma_2_without_norms_after_the_sublayers),
        cmocka_unit_test(jais2_has_layer_norms_and_biases_unless_told),
        cmocka_unit_test(gelu_of_gemma_is_its_approximation),
        cmocka_unit_test(stablelm_has_one_norm_a_layer_if_parallel),
        cmocka_unit_test(falcon_7b_has_one_head_of_keys_in_a_tensor_with_the_queries),
        cmocka_unit_test(exaone_3_has_its_published_keys_or_those_of_llama),
        cmocka_unit_test(norms_of_olmo_have_no_weight),
        cmocka_unit_test(helium_turns_pairs_and_adds_no_bias_to_the_output),
        cmocka_unit_test(iquestcoder_refuses_what_llama_lacks),
        cmocka_unit_test(flex_olmo_is_olmoe_with_norms_after_the_sublayers),
        cmocka_unit_test(mellum_has_a_rope_and_experts_by_its_lists),
        cmocka_unit_test(youtu_has_latents_and_dense_layers),
        cmocka_unit_test(the_unified_gemma_4_has_neither_layer_inputs_nor_experts),
        cmocka_unit_test(factors_of_minicpm3_follow_from_its_sizes),
        cmocka_unit_test(defaults_of_later_families_with_experts_are_those_of_transformers),
        cmocka_unit_test(null_key_value_heads_are_as_many_as_heads),
        cmocka_unit_test(head_dim_need_not_be_hidden_over_heads),
        cmocka_unit_test(both_spellings_of_the_type_are_read),
        cmocka_unit_test(both_spellings_of_the_rope_keys_are_read),
        cmocka_unit_test(the_original_length_falls_back_on_the_longest_request),
        cmocka_unit_test(rope_that_is_not_computed_is_refused_by_name),
        cmocka_unit_test(yarn_scales_cosine_and_sine),
        cmocka_unit_test(longrope_has_two_lists_of_factors),
        cmocka_unit_test(a_part_of_a_head_rotates_where_the_family_knows_it),
        cmocka_unit_test(ropes_that_are_not_finite_are_refused),
        cmocka_unit_test(experts_of_all_layers_are_limited),
        cmocka_unit_test(more_experts_a_token_than_there_are_is_an_error_that_names_the_key),
        cmocka_unit_test(the_text_part_of_a_larger_checkpoint_is_described),
        cmocka_unit_test(rope_keys_that_contradict_each_other_are_refused),
        cmocka_unit_test(windows_follow_each_familys_rules),
        cmocka_unit_test(layers_of_one_kind_share_kv_groups_of_equal_pages),
        cmocka_unit_test(no_layer_of_qwen2_moe_has_a_window_below_0),
        cmocka_unit_test(biases_follow_each_familys_rules),
        cmocka_unit_test(eos_is_every_id_of_the_generation_config),
        cmocka_unit_test(classes_say_what_stands_behind_the_last_norm),
        cmocka_unit_test(models_that_are_not_computed_are_refused_by_name),
        cmocka_unit_test(values_out_of_range_are_refused_with_key_and_value),
        cmocka_unit_test(broken_json_is_refused),
        cmocka_unit_test(a_key_that_stands_twice_is_refused_where_it_is_asked_for),
        cmocka_unit_test(numbers_are_read_as_python_reads_them),
        cmocka_unit_test(text_of_the_file_cannot_break_out_of_an_error),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(rope_frequencies_equal_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
