// fp8 checkpoints: "quantization_config" -> which tensors have scales, and their layout; stored
// elements and scales -> weights. Whole models are compared in test_engine_golden.cc.
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/narrow_floats.h"
#include "model/model.h"
#include "model/quantization.h"
#include "model/scales.h"
#include "seed.h"
#include "stored_entries.h"

using namespace batchllm;

namespace {

// ---- The configuration ----------------------------------------------------------------------------

struct Read {
    Status status;
    std::shared_ptr<const Quantization> quantization;
};

Read read(const std::string &config) {
    auto document = JsonDocument::parse(config, "config.json", BATCHLLM_ERROR_MODEL_FORMAT);
    if (!document.ok()) fail_msg("%s\n%s", document.status().message().c_str(), config.c_str());
    auto quantization = Quantization::read(document->root());
    if (!quantization.ok()) return {quantization.status(), nullptr};
    return {{}, *quantization};
}

void must_refuse(const std::string &config, int32_t code, const std::vector<std::string> &parts) {
    const Read result = read(config);
    if (result.status.ok()) fail_msg("was accepted: %s", config.c_str());
    const std::string &message = result.status.message();
    if (result.status.code() != code) {
        fail_msg("code %d: %s", result.status.code(), message.c_str());
    }
    assert_true(message.find("config.json") != std::string::npos);
    for (const std::string &part : parts) {
        if (message.find(part) == std::string::npos) {
            fail_msg("\"%s\" lacks \"%s\"", message.c_str(), part.c_str());
        }
    }
}

std::string compressed(const std::string &weights, const std::string &more = "") {
    return R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
        "weights": {)" +
           weights + "}}}" + more + "}";
}

constexpr const char *channel = R"("num_bits": 8, "type": "float", "strategy": "channel")";

bool has(const Read &read, const char *module, ScaleKind kind, int64_t rows = 0,
         int64_t columns = 0) {
    if (!read.status.ok()) fail_msg("%s", read.status.message().c_str());
    const auto scheme = read.quantization->scheme_of(module);
    return scheme && scheme->kind == kind && scheme->block_rows == rows &&
           scheme->block_columns == columns;
}

bool left_out(const Read &read, const char *module) {
    if (!read.status.ok()) fail_msg("%s", read.status.message().c_str());
    return !read.quantization->scheme_of(module);
}

void each_format_says_what_a_scale_is_of(void **) {
    assert_true(has(read(compressed(channel)), "a", ScaleKind::channel));
    assert_true(has(read(compressed(R"("type": "float")")), "a", ScaleKind::tensor));
    assert_true(has(read(compressed(R"("type": "float", "strategy": "block", "num_bits": 8,
                                      "block_structure": [64, 128])")),
                    "a", ScaleKind::block, 64, 128));
    const std::string presets = R"({"quant_method": "compressed-tensors", "config_groups": {
        "FP8": ["a"], "FP8_DYNAMIC": ["b"], "FP8_BLOCK": ["c"]}})";
    assert_true(has(read(presets), "a", ScaleKind::tensor));
    assert_true(has(read(presets), "b", ScaleKind::channel));
    assert_true(has(read(presets), "c", ScaleKind::block, 128, 128));
    assert_true(left_out(read(presets), "d"));
    const std::string fp8 = R"({"quant_method": "fp8", "activation_scheme": "dynamic")";
    assert_true(
        has(read(fp8 + R"(, "weight_block_size": [128, 64]})"), "a", ScaleKind::block, 128, 64));
    assert_true(has(read(fp8 + R"(, "weight_block_size": null})"), "a", ScaleKind::tensor));
    assert_true(has(read(fp8 + "}"), "a", ScaleKind::block_or_tensor, 128, 128));
    const std::string modelopt = R"({"quant_method": "modelopt", "quant_algo": )";
    assert_true(has(read(modelopt + R"("FP8"})"), "a", ScaleKind::tensor));
    assert_true(has(read(modelopt + R"("FP8_PER_CHANNEL_PER_TOKEN"})"), "a", ScaleKind::channel));
    assert_true(has(read(modelopt + R"("FP8_PB_WO"})"), "a", ScaleKind::block, 128, 128));
    assert_true(has(read(R"({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8",
                             "exclude_modules": ["lm_head"]}})"),
                    "a", ScaleKind::tensor));
    assert_true(left_out(read(modelopt + R"(null, "kv_cache_quant_algo": "FP8"})"), "a"));
}

void modules_are_left_out_as_each_format_names_them(void **) {
    const Read ct =
        read(compressed(channel, R"(, "ignore": ["lm_head", "re:.*mlp.gate$", "re:visual"])"));
    for (const char *module : {"lm_head", "model.layers.3.mlp.gate", "visual.blocks.0.qkv"}) {
        assert_true(left_out(ct, module));
    }
    for (const char *module : {"model.lm_head", "model.layers.3.mlp.gate_proj", "a.visual"}) {
        assert_true(has(ct, module, ScaleKind::channel));
    }
    const Read fp8 = read(R"({"quant_method": "fp8", "weight_block_size": null,
                              "modules_to_not_convert": ["mlp.gate", "model.vision_tower", "lm_head"]})");
    for (const char *module : {"model.layers.3.mlp.gate", "model.vision_tower.a.b", "lm_head"}) {
        assert_true(left_out(fp8, module));
    }
    for (const char *module : {"model.layers.3.mlp.gate_proj", "model.vision_tower2", "mlp"}) {
        assert_true(has(fp8, module, ScaleKind::tensor));
    }
    const Read old = read(R"({"quant_method": "fp8", "ignored_layers": ["lm_head"]})");
    assert_true(left_out(old, "lm_head"));
    const Read wild = read(R"({"quant_method": "modelopt", "quant_algo": "FP8",
                               "ignore": ["lm_head", "model.layers.1.*", "*.ga?e", "a+b"]})");
    for (const char *module : {"lm_head", "model.layers.1.mlp.up_proj", "x.gate", "a+b"}) {
        assert_true(left_out(wild, module));
    }
    for (const char *module : {"model.layers.11.mlp.up_proj", "x.gates", "gate", "aab"}) {
        assert_true(has(wild, module, ScaleKind::tensor));
    }
}

void a_name_says_more_than_an_expression_and_that_more_than_a_class(void **) {
    const auto group = [](const char *target, const char *strategy) {
        return R"({"targets": [")" + std::string(target) +
               R"("], "weights": {"type": "float", "strategy": ")" + strategy +
               R"(", "block_structure": [2, 3]}})";
    };
    const Read all =
        read(R"({"quant_method": "compressed-tensors", "config_groups": {"a": )" +
             group("Linear", "tensor") + R"(, "b": )" + group("re:.*q_proj", "channel") +
             R"(, "c": )" + group("x.q_proj", "block") + "}}");
    assert_true(has(all, "x.q_proj", ScaleKind::block, 2, 3));
    assert_true(has(all, "y.q_proj", ScaleKind::channel));
    assert_true(has(all, "y.k_proj", ScaleKind::tensor));
}

void what_is_not_read_is_refused_by_key_and_value(void **) {
    const int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED, format = BATCHLLM_ERROR_MODEL_FORMAT;
    for (const char *method : {"aqlm", "hqq", "bitsandbytes", "fbgemm_fp8"}) {
        must_refuse(R"({"quant_method": ")" + std::string(method) + "\"}", unsupported,
                    {"quant_method", method});
    }
    must_refuse("{}", unsupported, {"quant_method"});
    must_refuse("[]", format, {"must be an object"});
    must_refuse(compressed(R"("type": "int")"), unsupported,
                {"config_groups.group_0.weights.type", "int"});
    must_refuse(compressed(""), unsupported, {"weights", "type is not given"});
    must_refuse(compressed(R"("type": "float", "num_bits": 6)"), unsupported, {"num_bits", "6"});
    must_refuse(compressed(R"("type": "int", "num_bits": 8)"), unsupported, {"type", "int"});
    must_refuse(compressed(R"("type": "float", "symmetric": false)"), unsupported,
                {"symmetric", "false"});
    must_refuse(compressed(R"("type": "float", "strategy": "group")"), unsupported,
                {"strategy", "group"});
    must_refuse(compressed(R"("type": "float", "dynamic": true)"), unsupported,
                {"dynamic", "true"});
    must_refuse(compressed(R"("type": "float", "actorder": "group")"), unsupported, {"actorder"});
    must_refuse(compressed(R"("type": "float", "strategy": "block")"), format, {"block_structure"});
    must_refuse(compressed(R"("type": "float", "strategy": "block", "block_structure": [0, 128])"),
                format, {"block_structure[0]", "0"});
    must_refuse(compressed(R"("type": "float", "strategy": "block", "block_structure": [128])"),
                format, {"block_structure"});
    must_refuse(compressed(channel, R"(, "format": "pack-quantized")"), unsupported,
                {"format", "pack-quantized"});
    must_refuse(compressed(channel, R"(, "format": "int-quantized")"), unsupported,
                {"format", "int-quantized"});
    must_refuse(compressed(channel, R"(, "sparsity_config": {"format": "sparse-24-bitmask"})"),
                unsupported, {"sparsity_config.format", "sparse-24-bitmask"});
    must_refuse(compressed(channel, R"(, "transform_config": {"config_groups": {}})"), unsupported,
                {"transform_config"});
    must_refuse(compressed(channel, R"(, "ignore": ["re:(a"])"), unsupported, {"ignore[0]", "(a"});
    must_refuse(compressed(channel, R"(, "ignore": [7])"), format, {"ignore[0]"});
    must_refuse(compressed(channel, R"(, "ignore": ["re:(a|b)*a(a|b){20}"])"), unsupported,
                {"ignore[0]", "(a|b){20}"});
    const std::string group = R"({"quant_method": "compressed-tensors", "config_groups": {"g": )";
    must_refuse(group + R"({"targets": ["Linear"]}}})", unsupported, {"config_groups.g"});
    must_refuse(group + R"({"targets": ["Linear"], "weights": {"type": "float"},
                            "input_activations": {"type": "int", "num_bits": 8}}}})",
                unsupported, {"config_groups.g.input_activations.type", "int"});
    must_refuse(group + R"({"targets": ["Linear"], "weights": {"type": "float"},
                            "output_activations": {"type": "float"}}}})",
                unsupported, {"config_groups.g.output_activations"});
    must_refuse(group + R"({"format": "nvfp4-pack-quantized", "targets": ["Linear"],
                            "weights": {"type": "float"}}}})",
                unsupported, {"config_groups.g.format", "nvfp4-pack-quantized"});
    must_refuse(group + R"({"targets": ["Linear"], "weights": {"type": "float", "num_bits": 4,
                            "strategy": "tensor_group", "group_size": 32}}}})",
                unsupported, {"config_groups.g.weights.group_size", "32", "NVFP4"});
    must_refuse(group + R"(["Linear"]}})", unsupported, {"config_groups.g", "presets"});
    must_refuse(group + R"(7}})", format, {"config_groups.g"});
    must_refuse(R"({"quant_method": "compressed-tensors", "config_groups": {}})", format,
                {"config_groups"});
    must_refuse(R"({"quant_method": "compressed-tensors"})", format, {"config_groups"});
    must_refuse(R"({"quant_method": "fp8", "fmt": "e5m2"})", unsupported, {"fmt", "e5m2"});
    must_refuse(R"({"quant_method": "fp8", "activation_scheme": "token"})", unsupported,
                {"activation_scheme", "token"});
    must_refuse(R"({"quant_method": "fp8", "weight_block_size": [128, -1]})", format,
                {"weight_block_size[1]", "-1"});
    must_refuse(R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})", unsupported,
                {"quant_algo", "W4A8_AWQ"});
    must_refuse(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})",
                unsupported, {"group_size", "32"});
    must_refuse(R"({"quant_method": "modelopt"})", format, {"quant_algo"});
    must_refuse(
        R"({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"})",
        unsupported, {"kv_cache_quant_algo", "NVFP4"});
    must_refuse(R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["[ab]*"]})",
                unsupported, {"ignore[0]", "[ab]*"});
}

// ---- Tensors --------------------------------------------------------------------------------------

constexpr int64_t hidden = 20, width = 14, kv_size = 6, q_size = 12;
const std::string layer = "model.layers.0.";

// Every byte except the two NaNs, in turn.
std::string eighths(int64_t count, uint32_t first) {
    std::string bytes;
    for (uint32_t i = 0; bytes.size() < static_cast<size_t>(count); ++i) {
        const auto byte = static_cast<uint8_t>(first + 37 * i);
        if ((byte & 0x7F) != 0x7F) bytes += static_cast<char>(byte);
    }
    return bytes;
}

Entry plain(std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return floats(std::move(shape), std::vector<float>(static_cast<size_t>(count), 0.5f));
}

// A Phi-3 of one layer: q, k and v in one tensor, gate and up in another, all four products in e4m3.
Entries phi3() {
    Entries entries;
    for (const char *name : {"model.embed_tokens.weight", "lm_head.weight"}) {
        entries[name] = plain({5, hidden});
    }
    entries["model.norm.weight"] = entries[layer + "input_layernorm.weight"] =
        entries[layer + "post_attention_layernorm.weight"] = plain({hidden});
    const auto quantized = [&](const std::string &name, int64_t rows, int64_t columns) {
        const auto first = static_cast<uint32_t>(entries.size());
        entries[layer + name + ".weight"] = {
            "F8_E4M3", {rows, columns}, eighths(rows * columns, first)};
    };
    quantized("self_attn.qkv_proj", q_size + 2 * kv_size, hidden);
    quantized("self_attn.o_proj", hidden, q_size);
    quantized("mlp.gate_up_proj", 2 * width, hidden);
    quantized("mlp.down_proj", hidden, width);
    return entries;
}

const char *const modules[] = {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                               "mlp.down_proj"};

// Adds scales for all of them, in blocks of rows x columns; 0: one for everything.
void add_scales(int64_t rows, int64_t columns, const char *ending, Entries *entries) {
    static const uint64_t seed = seed_of_run();
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> scale(0.01f, 0.3f);
    for (const char *module : modules) {
        const std::string name = layer + module;
        const std::vector<int64_t> shape = entries->at(name + ".weight").shape;
        const int64_t down = rows == 0 ? 1 : (shape[0] + rows - 1) / rows;
        const int64_t across = columns == 0 ? 1 : (shape[1] + columns - 1) / columns;
        std::vector<float> values(static_cast<size_t>(down * across));
        for (float &value : values) value = scale(random);
        (*entries)[name + ending] = floats({down, across}, values);
    }
}

Result<std::unique_ptr<Model>> load(const Entries &entries, const std::string &quantization,
                                    const char *modelopt = nullptr) {
    const TemporaryDirectory directory;
    directory.write("config.json",
                    R"({"model_type": "phi3", "hidden_size": 20, "intermediate_size": 14,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 5, "eos_token_id": 1,
        "num_hidden_layers": 1, "tie_word_embeddings": false)" +
                        (quantization.empty() ? "" : ", " + quantization) + "}");
    if (modelopt != nullptr) directory.write("hf_quant_config.json", modelopt);
    directory.write("model.safetensors", file_of(entries));
    return load_model(directory.path());
}

const std::string by_channel = R"("quantization_config": )" + compressed(channel);
const std::string by_tensor =
    R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"})";
const std::string by_block =
    R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 5]})";

// A byte's number by its definition, independent of the tested code.
double e4m3(uint8_t byte) {
    const int exponent = (byte >> 3) & 15, fraction = byte & 7;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return (byte & 0x80) != 0 ? -size : size;
}

// All rows of a tensor in float32 and bfloat16, against the stored bytes times the scale of their block.
void check_rows(const Tensor &tensor, const Entries &entries, int64_t rows, int64_t columns,
                const char *ending) {
    const Entry &stored = entries.at(tensor.name);
    const std::string module = tensor.name.substr(0, tensor.name.size() - std::strlen(".weight"));
    const Entry &scales = entries.at(module + ending);
    if (rows == 0) rows = stored.shape[0];
    if (columns == 0) columns = stored.shape[1];
    const int64_t across = (stored.shape[1] + columns - 1) / columns;
    assert_true(tensor.dtype == DType::e4m3);
    const auto n = static_cast<size_t>(tensor.rows * tensor.columns);
    std::vector<float> whole(n), row(static_cast<size_t>(tensor.columns));
    std::vector<uint16_t> halves(n);
    read_rows(tensor, 0, tensor.rows, DType::f32, whole.data());
    read_rows(tensor, 0, tensor.rows, DType::bf16, halves.data());
    for (int64_t r = 0; r < tensor.rows; ++r) {
        read_row(tensor, r, row.data());
        const int64_t in_file = tensor.first_row + r;
        for (int64_t c = 0; c < tensor.columns; ++c) {
            float scale = 0;
            std::memcpy(&scale, scales.bytes.data() + 4 * (in_file / rows * across + c / columns),
                        4);
            const auto byte = static_cast<uint8_t>(
                stored.bytes[static_cast<size_t>(in_file * tensor.columns + c)]);
            const auto expected = static_cast<float>(e4m3(byte) * static_cast<double>(scale));
            const auto i = static_cast<size_t>(r * tensor.columns + c);
            if (whole[i] != expected || row[static_cast<size_t>(c)] != expected) {
                fail_msg("%s: row %d, column %d is %g and not %g", tensor.name.c_str(), int(r),
                         int(c), static_cast<double>(whole[i]), static_cast<double>(expected));
            }
            assert_int_equal(halves[i], float_to_bfloat16(expected));
        }
    }
}

void elements_are_what_is_stored_times_the_scale_of_their_block(void **) {
    struct Case {
        const std::string *config;
        int64_t rows, columns;
        const char *ending;
    };
    for (const Case &c : {Case{&by_tensor, 0, 0, ".weight_scale"},
                          {&by_channel, 1, 0, ".weight_scale"},
                          {&by_block, 8, 5, ".weight_scale_inv"}}) {
        Entries entries = phi3();
        add_scales(c.rows, c.columns, c.ending, &entries);
        const auto loaded = load(entries, *c.config);
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        const Layer &got = (*loaded)->layers[0];
        const Attention &a = *got.attention();
        const FeedForward &f = *got.feed_forward();
        for (const Weight *w : {&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down}) {
            check_rows(w->values, entries, c.rows, c.columns, c.ending);
        }
        assert_true((*loaded)->embedding.dtype == DType::f32);
    }
}

void every_byte_is_the_number_that_it_stands_for(void **) {
    for (int byte = 0; byte < 256; ++byte) {
        const auto got = static_cast<double>(e4m3_to_float(static_cast<uint8_t>(byte)));
        if ((byte & 0x7F) == 0x7F) {
            assert_true(std::isnan(got));
        } else {
            assert_true(got == e4m3(static_cast<uint8_t>(byte)));
        }
    }
    assert_true(e4m3_to_float(0x7E) == kMostE4m3);
}

void scales_are_read_in_each_type_and_shape(void **) {
    const std::string name = layer + "mlp.down_proj.weight_scale";
    const auto bf16 = [](float x) { return float_to_bfloat16(x); };
    const uint16_t half = 0x3800; // 0.5 in float16
    const Entry entries_of_one[] = {
        floats({}, {0.5f}),
        floats({1}, {0.5f}),
        floats({1, 1}, {0.5f}),
        {"BF16", {1}, bytes_of(std::vector<uint16_t>{bf16(0.5f)})},
        {"F16", {1}, bytes_of(std::vector<uint16_t>{half})},
        {"F8_E8M0", {1}, "\x7E"},
    };
    for (const Entry &entry : entries_of_one) {
        Entries entries = phi3();
        add_scales(0, 0, ".weight_scale", &entries);
        entries[name] = entry;
        const auto loaded = load(entries, by_tensor);
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        const Tensor &down = (*loaded)->layers[0].feed_forward()->down.values;
        assert_true(down.scales.data[0] == 0.5f);
    }
    Entries entries = phi3();
    add_scales(1, 0, ".weight_scale", &entries);
    entries[name].shape = {hidden};
    assert_true(load(entries, by_channel).ok());
    // Blocks as written by ModelOpt.
    entries = phi3();
    add_scales(128, 128, ".weight_scale", &entries);
    entries[name].shape = {1, 1, 1, 1};
    assert_true(load(entries, R"("quantization_config": {"quant_method": "modelopt",
                                                         "quant_algo": "FP8_PB_WO"})")
                    .ok());
}

void must_fail(const Entries &entries, const std::string &quantization, int32_t code,
               const std::vector<std::string> &parts) {
    const auto loaded = load(entries, quantization);
    must_fail(loaded.status(), code, parts);
}

void a_scale_that_is_none_is_an_error_that_names_the_tensor(void **) {
    Entries whole = phi3();
    add_scales(1, 0, ".weight_scale", &whole);
    assert_true(load(whole, by_channel).ok());
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinite = std::numeric_limits<float>::infinity();
    for (const char *module : modules) {
        const std::string name = layer + module + ".weight_scale";
        for (const float wrong : {0.0f, -0.0f, -0.5f, nan, infinite, -infinite, 3e38f}) {
            Entries entries = whole;
            std::string &bytes = entries[name].bytes;
            std::memcpy(bytes.data() + bytes.size() - 4, &wrong, sizeof wrong);
            must_fail(entries, by_channel, BATCHLLM_ERROR_MODEL_FORMAT,
                      {name, "model.safetensors", "scale", "above 0"});
        }
        Entries entries = whole;
        entries.erase(name);
        must_fail(entries, by_channel, BATCHLLM_ERROR_MODEL_FORMAT, {name, "missing"});
        entries = whole;
        entries[name].type = "I32";
        must_fail(entries, by_channel, BATCHLLM_ERROR_UNSUPPORTED, {name, "I32"});
        entries = whole;
        const int64_t rows = entries[name].shape[0];
        for (const std::vector<int64_t> &shape :
             {std::vector<int64_t>{1, rows}, {rows, 1, 1}, {rows / 2, 2}}) {
            entries[name].shape = shape;
            must_fail(entries, by_channel, BATCHLLM_ERROR_MODEL_FORMAT,
                      {name, "shape", "[" + std::to_string(rows) + ", 1]"});
        }
        entries[name] = floats({1}, {0.5f}); // one per tensor, although channels have their own
        must_fail(entries, by_channel, BATCHLLM_ERROR_MODEL_FORMAT, {name, "shape", "[1]"});
    }
    Entries entries = phi3();
    add_scales(0, 0, ".weight_scale", &entries);
    entries[layer + "mlp.down_proj.weight_scale"] = {"F8_E8M0", {1}, "\xFF"};
    must_fail(entries, by_tensor, BATCHLLM_ERROR_MODEL_FORMAT,
              {"mlp.down_proj.weight_scale", "nan"});
}

void a_tensor_in_e4m3_must_be_one_that_the_configuration_quantises(void **) {
    Entries entries = phi3();
    add_scales(1, 0, ".weight_scale", &entries);
    const int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    must_fail(entries, "", unsupported, {"F8_E4M3", "no quantization_config"});
    must_fail(entries,
              R"("quantization_config": )" +
                  compressed(channel, R"(, "ignore": ["re:.*down_proj"])"),
              unsupported, {"mlp.down_proj.weight", "F8_E4M3", "leaves it out"});
    Entries other = entries;
    other[layer + "mlp.down_proj.weight"].type = "F8_E5M2";
    must_fail(other, by_channel, unsupported, {"mlp.down_proj.weight", "F8_E5M2"});
    // A matrix that stays in 16 or 32 bits has no scale: one that is present anyway is an error.
    other = entries;
    other[layer + "mlp.down_proj.weight"] = plain({hidden, width});
    must_fail(other, by_channel, unsupported, {"mlp.down_proj.weight_scale", "of no use"});
    other.erase(layer + "mlp.down_proj.weight_scale");
    assert_true(load(other, by_channel).ok());
    // A norm is not a matrix.
    other = entries;
    other["model.norm.weight"] = {"F8_E4M3", {hidden}, eighths(hidden, 0)};
    must_fail(other, by_channel, unsupported, {"model.norm.weight", "F8_E4M3"});
}

void scales_of_activations_are_passed_over(void **) {
    Entries entries = phi3();
    add_scales(0, 0, ".weight_scale", &entries);
    for (const char *name :
         {"mlp.down_proj.input_scale", "self_attn.q_scale", "self_attn.o_proj.activation_scale"}) {
        entries[layer + name] = floats({1}, {-1.0f});
    }
    const auto loaded = load(entries, by_tensor);
    if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
    Entries unquantized = entries;
    for (const char *module : modules) {
        const std::string name = layer + module;
        unquantized[name + ".weight"] = plain(unquantized[name + ".weight"].shape);
        unquantized.erase(name + ".weight_scale");
    }
    must_fail(unquantized, "", BATCHLLM_ERROR_UNSUPPORTED, {"input_scale", "of no use"});
}

const std::string kv_in_e4m3 = R"("quantization_config": {"quant_method": "modelopt",
    "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})";

void scales_of_keys_and_values_are_read_under_each_of_their_names(void **) {
    struct Case {
        const char *k, *v;
        float k_scale, v_scale; // scales that the model then has; 0: none
        const std::string &config;
    };
    const std::string floats8 =
        R"("quantization_config": )" +
        compressed(channel, R"(, "kv_cache_scheme": {"num_bits": 8, "type": "float"})");
    const std::string integers =
        R"("quantization_config": )" +
        compressed(channel, R"(, "kv_cache_scheme": {"num_bits": 8, "type": "int"})");
    for (const Case &c : {Case{"k_scale", "v_scale", 0.5f, 0.25f, by_channel},
                          {"k_scale", "v_scale", 0.5f, 0.25f, floats8},
                          {"k_scale", "v_scale", 0, 0, integers},
                          {"k_proj.k_scale", "v_proj.v_scale", 0.5f, 0.25f, by_tensor},
                          {"qkv_proj.k_scale", "qkv_proj.v_scale", 0.5f, 0.25f, by_tensor},
                          {"kv_scale", "kv_scale", 0.25f, 0.25f, by_tensor},
                          {"k_scale", "k_scale", 0.25f, 0, by_tensor},
                          {"k_scale", "k_scale", 0.25f, 1, kv_in_e4m3},
                          {"q_scale", "q_scale", 1, 1, kv_in_e4m3},
                          {"q_scale", "q_scale", 0, 0, by_tensor}}) {
        Entries entries = phi3();
        const bool channels = c.config.find("compressed") != std::string::npos;
        add_scales(channels ? 1 : 0, 0, ".weight_scale", &entries);
        entries[layer + "self_attn." + c.k] = floats({1}, {0.5f});
        entries[layer + "self_attn." + c.v] = floats({}, {0.25f});
        const auto loaded = load(entries, c.config);
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        const Attention &a = *(*loaded)->layers[0].attention();
        const auto wanted = [](float scale) {
            return scale == 0 ? std::vector<float>() : std::vector<float>{scale};
        };
        assert_true(a.k_scales == wanted(c.k_scale) && a.v_scales == wanted(c.v_scale));
    }
}

void scales_of_keys_and_values_are_one_or_of_each_head(void **) {
    const float two[] = {0.5f, 0.125f};
    const auto read = [&](const std::vector<int64_t> &shape, int64_t count, int32_t heads) {
        const StoredTensor stored{"k_scale", "F32", shape, 0, 4 * count};
        return read_kv_scales(stored, reinterpret_cast<const std::byte *>(two), heads, "a file");
    };
    for (const std::vector<int64_t> &shape : {std::vector<int64_t>{}, {1}, {1, 1}}) {
        assert_true(read(shape, 1, 3).value() == std::vector<float>(3, 0.5f));
    }
    for (const std::vector<int64_t> &shape : {std::vector<int64_t>{2}, {2, 1}, {2, 1, 1}}) {
        assert_true(read(shape, 2, 2).value() == std::vector<float>(two, two + 2));
    }
    for (const std::vector<int64_t> &shape : {std::vector<int64_t>{2}, {1, 2}, {2, 1}}) {
        must_fail(read(shape, 2, 4).status(), BATCHLLM_ERROR_MODEL_FORMAT,
                  {"a file", "k_scale", "[1] or [4]"});
    }
}

void a_scale_of_keys_or_values_that_is_none_is_an_error_that_names_the_tensor(void **) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinite = std::numeric_limits<float>::infinity();
    for (const char *name : {"self_attn.k_scale", "self_attn.v_proj.v_scale"}) {
        Entries whole = phi3();
        add_scales(0, 0, ".weight_scale", &whole);
        for (const float wrong : {0.0f, -1.0f, nan, infinite, 3e38f}) {
            whole[layer + name] = floats({1}, {wrong});
            must_fail(whole, by_tensor, BATCHLLM_ERROR_MODEL_FORMAT,
                      {layer + name, "model.safetensors", "above 0"});
        }
        whole[layer + name] = floats({2}, {1, 1});
        must_fail(whole, by_tensor, BATCHLLM_ERROR_MODEL_FORMAT, {layer + name, "shape", "[2]"});
        whole[layer + name] = {"I32", {1}, std::string(4, '\1')};
        must_fail(whole, by_tensor, BATCHLLM_ERROR_UNSUPPORTED, {layer + name, "I32"});
    }
}

void modelopts_own_file_counts_where_config_json_says_nothing(void **) {
    Entries entries = phi3();
    add_scales(0, 0, ".weight_scale", &entries);
    const char *own =
        R"({"producer": {}, "quantization": {"quant_algo": "FP8", "exclude_modules": []}})";
    assert_true(load(entries, "", own).ok());
    const char *other = R"({"quantization": {"quant_algo": "W4A8_AWQ"}})";
    assert_true(load(entries, by_tensor, other).ok());
    const auto refused = load(entries, "", other);
    assert_false(refused.ok());
    assert_true(refused.status().message().find("hf_quant_config.json") != std::string::npos);
    assert_true(refused.status().message().find("W4A8_AWQ") != std::string::npos);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(each_format_says_what_a_scale_is_of),
        cmocka_unit_test(modules_are_left_out_as_each_format_names_them),
        cmocka_unit_test(a_name_says_more_than_an_expression_and_that_more_than_a_class),
        cmocka_unit_test(what_is_not_read_is_refused_by_key_and_value),
        cmocka_unit_test(elements_are_what_is_stored_times_the_scale_of_their_block),
        cmocka_unit_test(every_byte_is_the_number_that_it_stands_for),
        cmocka_unit_test(scales_are_read_in_each_type_and_shape),
        cmocka_unit_test(a_scale_that_is_none_is_an_error_that_names_the_tensor),
        cmocka_unit_test(a_tensor_in_e4m3_must_be_one_that_the_configuration_quantises),
        cmocka_unit_test(scales_of_activations_are_passed_over),
        cmocka_unit_test(scales_of_keys_and_values_are_read_under_each_of_their_names),
        cmocka_unit_test(scales_of_keys_and_values_are_one_or_of_each_head),
        cmocka_unit_test(a_scale_of_keys_or_values_that_is_none_is_an_error_that_names_the_tensor),
        cmocka_unit_test(modelopts_own_file_counts_where_config_json_says_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
