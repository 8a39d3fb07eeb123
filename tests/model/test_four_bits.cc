// Checkpoints in four bits: each form's configuration in config.json; codes, scales and zero points
// -> weights; and invalid files. Whole models are compared in test_engine_golden.cc.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/narrow_floats.h"
#include "model/four_bits.h"
#include "seed.h"
#include "stored_entries.h"

using namespace batchllm;

namespace {

constexpr int32_t format_error = BATCHLLM_ERROR_MODEL_FORMAT;
constexpr int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;

uint64_t the_seed() {
    static const uint64_t seed = seed_of_run();
    return seed;
}

Entry plain(std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return floats(std::move(shape), std::vector<float>(static_cast<size_t>(count), 0.5f));
}

// ---- Matrices -------------------------------------------------------------------------------------

enum class Form { awq, gptq_v1, gptq_v2, gptq_symmetric, packed, packed_asymmetric, mxfp4, nvfp4 };
constexpr float nvfp4_global = 4; // elements are divided by it

bool is_symmetric(Form form) { return form == Form::gptq_symmetric || form == Form::packed; }

// A matrix before it is packed.
struct Matrix {
    int64_t rows, columns, groups;
    std::vector<int> codes;    // [rows][columns]
    std::vector<int> zeros;    // [rows][groups]
    std::vector<float> scales; // [rows][groups], exact in float16 and bfloat16
    std::vector<int32_t> group_of;

    double value(Form form, int64_t row, int64_t column) const {
        const int code = codes[static_cast<size_t>(row * columns + column)];
        const auto at = static_cast<size_t>(row * groups + group_of[static_cast<size_t>(column)]);
        if (form < Form::mxfp4) return double{scales[at]} * (code - zeros[at]);
        constexpr double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const double number = code < 8 ? sizes[code] : -sizes[code - 8];
        return double{scales[at]} * number / (form == Form::nvfp4 ? double{nvfp4_global} : 1);
    }
};

Matrix make_matrix(Form form, int64_t rows, int64_t columns, int64_t group, bool any_order,
                   std::mt19937_64 *random) {
    Matrix m{rows, columns, (columns + group - 1) / group, {}, {}, {}, {}};
    std::uniform_int_distribution<int> code(0, 15), exponent(-6, 4);
    for (int64_t i = 0; i < rows * columns; ++i) m.codes.push_back(code(*random));
    for (int64_t i = 0; i < rows * m.groups; ++i) {
        m.zeros.push_back(is_symmetric(form) ? 8 : code(*random));
        const float size = std::ldexp(1.0f, exponent(*random));
        m.scales.push_back(form >= Form::mxfp4 ? size
                                               : size * static_cast<float>(1 + code(*random)));
    }
    for (int64_t c = 0; c < columns; ++c) m.group_of.push_back(static_cast<int32_t>(c / group));
    if (any_order) std::shuffle(m.group_of.begin(), m.group_of.end(), *random);
    return m;
}

template <typename At> Entry words(int64_t rows, int64_t columns, const At &at) {
    std::vector<uint32_t> out;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) out.push_back(at(r, c));
    }
    return {"I32", {rows, columns}, bytes_of(out)};
}

// Eight numbers in a word; element i is in the four bits place[i].
template <typename At> uint32_t word_of(const At &at, const int *place = nullptr) {
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) {
        word |= static_cast<uint32_t>(at(i)) << (4 * (place != nullptr ? place[i] : i));
    }
    return word;
}

Entry scales_of(const Matrix &m, bool by_group) {
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < m.rows * m.groups; ++i) {
        const int64_t at = by_group ? i % m.rows * m.groups + i / m.rows : i;
        out.push_back(float_to_bfloat16(m.scales[static_cast<size_t>(at)]));
    }
    return {"BF16", by_group ? std::vector{m.groups, m.rows} : std::vector{m.rows, m.groups},
            bytes_of(out)};
}

Entry groups_of(const Matrix &m) { return {"I32", {m.columns}, bytes_of(m.group_of)}; }

void add_words(Form form, const Matrix &m, const std::string &module, Entries *entries) {
    const auto code = [&](int64_t r, int64_t c) { return m.codes[r * m.columns + c]; };
    const auto zero = [&](int64_t r, int64_t g) { return m.zeros[r * m.groups + g]; };
    constexpr int order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const bool awq = form == Form::awq;
    (*entries)[module + ".scales"] = scales_of(m, true);
    (*entries)[module + ".qzeros"] = words(m.groups, m.rows / 8, [&](int64_t g, int64_t r) {
        const uint32_t word =
            word_of([&](int i) { return zero(8 * r + i, g); }, awq ? order : nullptr);
        return form == Form::gptq_v1 || form == Form::gptq_symmetric ? word - 0x11111111 : word;
    });
    if (awq) {
        (*entries)[module + ".qweight"] = words(m.columns, m.rows / 8, [&](int64_t c, int64_t r) {
            return word_of([&](int i) { return code(8 * r + i, c); }, order);
        });
        return;
    }
    (*entries)[module + ".g_idx"] = groups_of(m);
    (*entries)[module + ".qweight"] = words(m.columns / 8, m.rows, [&](int64_t c, int64_t r) {
        return word_of([&](int i) { return code(r, 8 * c + i); });
    });
}

void add_packed(Form form, const Matrix &m, bool any_order, const std::string &module,
                Entries *entries) {
    const auto code = [&](int64_t r, int64_t c) {
        return c < m.columns ? m.codes[r * m.columns + c] : 5; // padding
    };
    if (form >= Form::mxfp4) {
        std::string bytes, powers;
        for (int64_t i = 0; i < m.rows * m.columns; i += 2) {
            bytes += static_cast<char>(m.codes[i] | m.codes[i + 1] << 4);
        }
        (*entries)[module + ".weight_packed"] = {"U8", {m.rows, m.columns / 2}, bytes};
        if (form == Form::nvfp4) {
            for (const float scale : m.scales) {
                powers += static_cast<char>((7 + std::ilogb(scale)) << 3);
            }
            (*entries)[module + ".weight_scale"] = {"F8_E4M3", {m.rows, m.groups}, powers};
            (*entries)[module + ".weight_global_scale"] = floats({1}, {nvfp4_global});
            (*entries)[module + ".input_global_scale"] = floats({1}, {1});
            return;
        }
        for (const float scale : m.scales) powers += static_cast<char>(127 + std::ilogb(scale));
        (*entries)[module + ".weight_scale"] = {"U8", {m.rows, m.groups}, powers};
        return;
    }
    (*entries)[module + ".weight_packed"] =
        words(m.rows, (m.columns + 7) / 8, [&](int64_t r, int64_t c) {
            return word_of([&](int i) { return code(r, 8 * c + i); });
        });
    (*entries)[module + ".weight_scale"] = scales_of(m, false);
    (*entries)[module + ".weight_shape"] = {
        "I64", {2}, bytes_of(std::vector<int64_t>{m.rows, m.columns})};
    if (any_order) (*entries)[module + ".weight_g_idx"] = groups_of(m);
    if (is_symmetric(form)) return;
    (*entries)[module + ".weight_zero_point"] =
        words((m.rows + 7) / 8, m.groups, [&](int64_t r, int64_t g) {
            return word_of([&](int i) {
                return 8 * r + i < m.rows ? m.zeros[(8 * r + i) * m.groups + g] : 3;
            });
        });
}

// ---- A model of one layer -------------------------------------------------------------------------

const std::string layer = "model.layers.0.";

// Sizes that are multiples of eight; for compressed-tensors, sizes that are not.
struct Sizes {
    int64_t hidden, width, q_size, kv_size, head_dim, group;
};
constexpr Sizes even{96, 40, 32, 16, 16, 32}, odd{76, 46, 36, 18, 18, 20},
    mx{96, 64, 32, 16, 16, 32}, nv{96, 48, 32, 16, 16, 16};

struct Checkpoint4 {
    Form form;
    Sizes sizes;
    Entries entries;
    std::map<std::string, Matrix> matrices; // by module
    std::string config;                     // quantization_config
};

std::string compressed(const std::string &weights) {
    return R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
        "weights": {"num_bits": 4, )" +
           weights + R"(}}}, "ignore": ["lm_head"]})";
}

std::string config_of(Form form, int64_t group, bool any_order) {
    const std::string size = R"("group_size": )" + std::to_string(group);
    switch (form) {
    case Form::awq:
        return R"({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": true, )" +
               size + "}";
    case Form::gptq_v1:
    case Form::gptq_v2:
    case Form::gptq_symmetric:
        return R"({"quant_method": "gptq", "bits": 4, "desc_act": )" +
               std::string(any_order ? "true" : "false") + R"(, "sym": )" +
               (form == Form::gptq_symmetric ? "true" : "false") + R"(, "checkpoint_format": ")" +
               (form == Form::gptq_v2 ? "gptq_v2" : "gptq") + "\", " + size + "}";
    case Form::packed:
    case Form::packed_asymmetric:
        return compressed(R"("type": "int", "strategy": "group", "symmetric": )" +
                          std::string(form == Form::packed ? "true, " : "false, ") + size);
    case Form::mxfp4:
        return compressed(R"("type": "float", "strategy": "group", )" + size);
    case Form::nvfp4:
        return compressed(R"("type": "float", "strategy": "tensor_group", )" + size);
    }
    return "";
}

Checkpoint4 make_checkpoint(Form form, const Sizes &sizes, bool any_order) {
    Checkpoint4 made{form, sizes, {}, {}, config_of(form, sizes.group, any_order)};
    std::mt19937_64 random(the_seed());
    Entries &entries = made.entries;
    for (const char *name : {"model.embed_tokens.weight", "lm_head.weight"}) {
        entries[name] = plain({5, sizes.hidden});
    }
    entries["model.norm.weight"] = entries[layer + "input_layernorm.weight"] =
        entries[layer + "post_attention_layernorm.weight"] = plain({sizes.hidden});
    const auto add = [&](const std::string &name, int64_t rows, int64_t columns) {
        const std::string module = layer + name;
        const Matrix matrix = make_matrix(form, rows, columns, sizes.group, any_order, &random);
        if (form <= Form::gptq_symmetric) {
            add_words(form, matrix, module, &entries);
        } else {
            add_packed(form, matrix, any_order, module, &entries);
        }
        made.matrices.emplace(module, matrix);
    };
    add("self_attn.qkv_proj", sizes.q_size + 2 * sizes.kv_size, sizes.hidden);
    add("self_attn.o_proj", sizes.hidden, sizes.q_size);
    add("mlp.gate_up_proj", 2 * sizes.width, sizes.hidden);
    add("mlp.down_proj", sizes.hidden, sizes.width);
    return made;
}

Result<std::unique_ptr<Model>> load(const Checkpoint4 &from) {
    const TemporaryDirectory directory;
    const auto number = [](const char *key, int64_t value) {
        return std::string(", \"") + key + "\": " + std::to_string(value);
    };
    directory.write(
        "config.json",
        R"({"model_type": "phi3", "vocab_size": 5, "eos_token_id": 1, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": false)" +
            number("hidden_size", from.sizes.hidden) +
            number("intermediate_size", from.sizes.width) +
            number("head_dim", from.sizes.head_dim) + ", \"quantization_config\": " + from.config +
            "}");
    directory.write("model.safetensors", file_of(from.entries));
    return load_model(directory.path());
}

// Checks a tensor in f32, in bf16, and from a row in the middle.
void check_tensor(const Tensor &tensor, const std::function<double(int64_t, int64_t)> &value) {
    const auto n = static_cast<size_t>(tensor.rows * tensor.columns);
    std::vector<float> whole(n), rest(n);
    std::vector<uint16_t> halves(n);
    read_rows(tensor, 0, tensor.rows, DType::f32, whole.data());
    read_rows(tensor, 0, tensor.rows, DType::bf16, halves.data());
    const int64_t first = tensor.rows / 3;
    read_rows(tensor, first, tensor.rows - first, DType::f32, rest.data() + first * tensor.columns);
    for (int64_t r = 0; r < tensor.rows; ++r) {
        for (int64_t c = 0; c < tensor.columns; ++c) {
            const auto i = static_cast<size_t>(r * tensor.columns + c);
            const auto expected = static_cast<float>(value(r, c));
            if (whole[i] != expected || (r >= first && rest[i] != expected)) {
                fail_msg("%s: row %d, column %d is %g and not %g", tensor.name.c_str(), int(r),
                         int(c), double(whole[i]), double(expected));
            }
            assert_int_equal(halves[i], float_to_bfloat16(expected));
        }
    }
}

// Checks that the parts, as backends that keep four bits read them, make up the elements.
void check_parts(const Tensor &tensor) {
    const FourBits &from = *tensor.four_bits;
    const auto facts = four_bit_facts(Model(), tensor);
    assert_true(facts.has_value() && facts->group_columns == from.group_columns);
    assert_int_equal(facts->any_order, from.group_of != nullptr);
    if (tensor.columns % 8 != 0 || from.group_of != nullptr) return;
    const auto size = [&](int64_t columns) { return static_cast<size_t>(tensor.rows * columns); };
    std::vector<float> whole(size(tensor.columns)), scales(size(from.groups));
    std::vector<uint8_t> codes(size(tensor.columns / 2)), zeros(size(from.groups)),
        bytes(size(from.groups));
    read_rows(tensor, 0, tensor.rows, DType::f32, whole.data());
    const int64_t cut = tensor.rows / 3; // rows in two parts
    for (const auto &[begin, count] :
         {std::pair(int64_t{0}, cut), std::pair(cut, tensor.rows - cut)}) {
        read_codes(tensor, begin, count, codes.data() + begin * tensor.columns / 2);
        if (from.kind == FourBitKind::int4) {
            read_scales_and_zeros(tensor, begin, count, scales.data() + begin * from.groups,
                                  zeros.data() + begin * from.groups);
        } else {
            read_scale_bytes(tensor, begin, count, bytes.data() + begin * from.groups);
        }
    }
    std::vector<uint8_t> at_once(codes.size());
    read_codes(tensor, 0, tensor.rows, at_once.data());
    assert_true(at_once == codes);
    constexpr float sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int64_t r = 0; r < tensor.rows; ++r) {
        for (int64_t c = 0; c < tensor.columns; ++c) {
            const auto i = static_cast<size_t>(r * tensor.columns + c);
            const auto g = static_cast<size_t>(r * from.groups + c / from.group_columns);
            const int code = codes[i / 2] >> (c % 2 * 4) & 15;
            const float number = code < 8 ? sizes[code] : -sizes[code - 8];
            const float made =
                from.kind == FourBitKind::int4    ? static_cast<float>(code - zeros[g]) * scales[g]
                : from.kind == FourBitKind::mxfp4 ? std::ldexp(number, bytes[g] - 127)
                                                  : number * e4m3_to_float(bytes[g]) * from.factor;
            assert_true(made == whole[i]);
            if (from.kind == FourBitKind::mxfp4) assert_true(bytes[g] <= facts->largest_power);
        }
    }
}

void check_model(const Checkpoint4 &from) {
    const auto loaded = load(from);
    if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
    const Layer &got = (*loaded)->layers[0];
    const Attention &a = *got.attention();
    const FeedForward &f = *got.feed_forward();
    for (const Weight *w : {&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down}) {
        const Tensor &tensor = w->values;
        assert_true(tensor.dtype == DType::u4);
        assert_false(tensor.as_stored());
        const std::string module =
            tensor.name.substr(0, tensor.name.size() - std::strlen(".weight"));
        const Matrix &matrix = from.matrices.at(module);
        check_tensor(tensor, [&](int64_t r, int64_t c) {
            return matrix.value(from.form, tensor.first_row + r, c);
        });
        check_parts(tensor);
    }
}

// All forms, with groups of columns in order and not in order.
std::vector<Checkpoint4> all_forms() {
    std::vector<Checkpoint4> all;
    for (const Form form : {Form::awq, Form::gptq_v1, Form::gptq_v2, Form::gptq_symmetric,
                            Form::packed, Form::packed_asymmetric, Form::mxfp4, Form::nvfp4}) {
        const bool compressed = form == Form::packed || form == Form::packed_asymmetric;
        all.push_back(make_checkpoint(form,
                                      form == Form::mxfp4   ? mx
                                      : form == Form::nvfp4 ? nv
                                      : compressed          ? odd
                                                            : even,
                                      false));
        if (form == Form::awq || form >= Form::mxfp4) continue;
        all.push_back(make_checkpoint(form, compressed ? odd : even, true));
    }
    return all;
}

void elements_are_codes_less_zero_points_times_scales_in_every_form(void **) {
    for (const Checkpoint4 &from : all_forms()) check_model(from);
}

void a_scale_may_be_of_a_whole_row(void **) {
    Sizes sizes = even;
    sizes.group = 1 << 20; // larger than a row
    Checkpoint4 awq = make_checkpoint(Form::awq, sizes, false);
    awq.config = R"({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "version": "GEMM"})";
    check_model(awq);
    sizes = odd;
    sizes.group = 1 << 20;
    Checkpoint4 channel = make_checkpoint(Form::packed_asymmetric, sizes, false);
    channel.config = compressed(R"("strategy": "channel", "symmetric": false)");
    check_model(channel);
}

void presets_and_formats_of_compressed_tensors_are_known(void **) {
    Sizes sizes = even;
    sizes.group = 128;
    Checkpoint4 preset = make_checkpoint(Form::packed_asymmetric, sizes, false);
    preset.config = R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                        "config_groups": {"W4A16_ASYM": ["Linear"]}, "ignore": ["lm_head"]})";
    check_model(preset);
    preset = make_checkpoint(Form::packed, sizes, false);
    preset.config =
        R"({"quant_method": "compressed-tensors", "config_groups": {"W4A16": ["Linear"]}})";
    check_model(preset);
}

// Files that claim the first version but have the zero points of the second, and the reverse.
void symmetric_gptq_has_the_middle_for_zero_whatever_version_it_says(void **) {
    for (const uint32_t stored : {0x77777777U, 0x88888888U}) {
        for (const char *version : {"gptq", "gptq_v2"}) {
            Checkpoint4 from = make_checkpoint(Form::gptq_symmetric, even, false);
            for (auto &[name, entry] : from.entries) {
                if (!name.ends_with(".qzeros")) continue;
                entry.bytes = bytes_of(std::vector<uint32_t>(entry.bytes.size() / 4, stored));
            }
            from.config = R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
                              "checkpoint_format": ")" +
                          std::string(version) + "\"}";
            check_model(from);
        }
    }
}

void groups_of_minus_one_are_in_order_in_compressed_tensors(void **) {
    Checkpoint4 from = make_checkpoint(Form::packed, odd, false);
    for (const auto &[module, matrix] : from.matrices) {
        from.entries[module + ".weight_g_idx"] = {
            "I32",
            {matrix.columns},
            bytes_of(std::vector<int32_t>(static_cast<size_t>(matrix.columns), -1))};
    }
    check_model(from);
}

// ---- Errors --------------------------------------------------------------------------------

void every_tensor_of_a_matrix_must_be_there_of_its_type_and_shape(void **) {
    for (const Checkpoint4 &whole : all_forms()) {
        for (const auto &[name, entry] : whole.entries) {
            if (!name.starts_with(layer + "self_attn.qkv_proj")) continue;
            if (name.ends_with(".input_global_scale")) continue; // not used
            const bool optional = name.ends_with("shape") || name.ends_with("g_idx");
            Checkpoint4 from = whole;
            from.entries.erase(name);
            const bool elements = name.ends_with(".qweight") || name.ends_with(".weight_packed");
            if (!optional || from.config.find(R"("desc_act": true)") != std::string::npos) {
                must_fail(load(from).status(), format_error,
                          {elements ? layer + "self_attn.qkv_proj.weight" : name, "missing",
                           "model.safetensors"});
            }
            from = whole;
            from.entries[name].type = entry.type == "F32"       ? "I32"
                                      : entry.type == "I32"     ? "F32"
                                      : entry.type == "I64"     ? "F64"
                                      : entry.type == "U8"      ? "I8"
                                      : entry.type == "F8_E4M3" ? "I8"
                                                                : "I16";
            must_fail(load(from).status(), unsupported, {name, "type", from.entries[name].type});
            for (const bool flat : {true, false}) {
                from = whole;
                std::vector<int64_t> &shape = from.entries[name].shape;
                if (flat) {
                    int64_t count = 1;
                    for (const int64_t extent : shape) count *= extent;
                    shape = {count, 1};
                } else {
                    shape.push_back(1);
                }
                must_fail(load(from).status(), format_error,
                          {name, "shape", "quantization_config"});
            }
        }
    }
}

void a_group_size_that_is_not_the_files_is_an_error_of_shape(void **) {
    for (Checkpoint4 from : all_forms()) {
        if (from.form >= Form::mxfp4) continue;
        from.config = config_of(from.form, from.sizes.group / 2, false);
        must_fail(load(from).status(), format_error, {"qkv_proj.", "scale", "shape"});
    }
}

void a_column_of_no_group_is_an_error_that_names_it(void **) {
    for (const Form form : {Form::gptq_v1, Form::gptq_symmetric, Form::packed}) {
        const Checkpoint4 whole = make_checkpoint(form, form == Form::packed ? odd : even, true);
        const std::string name =
            layer + "mlp.down_proj" + (form == Form::packed ? ".weight_g_idx" : ".g_idx");
        const int32_t groups =
            static_cast<int32_t>(whole.matrices.at(layer + "mlp.down_proj").groups);
        for (const int32_t wrong : {groups, -2, -1, INT32_MAX, INT32_MIN}) {
            if (wrong == -1 && form == Form::packed) continue;
            Checkpoint4 from = whole;
            std::memcpy(from.entries[name].bytes.data() + 4 * 3, &wrong, sizeof wrong);
            must_fail(load(from).status(), format_error,
                      {name, "column 3", "group " + std::to_string(wrong)});
        }
    }
}

void scales_that_are_none_are_errors_that_name_the_tensor(void **) {
    const float infinite = std::numeric_limits<float>::infinity();
    for (const Checkpoint4 &whole : all_forms()) {
        for (const auto &[name, entry] : whole.entries) {
            if (name.ends_with(".weight_global_scale")) {
                for (const float wrong : {0.0F, -1.0F, std::nanf(""), infinite, 1e-38F}) {
                    Checkpoint4 from = whole;
                    from.entries[name] = floats({1}, {wrong});
                    must_fail(load(from).status(), format_error, {name, "above 0 and finite"});
                }
            }
            if (!name.ends_with(".scales") && !name.ends_with(".weight_scale")) continue;
            if (whole.form == Form::nvfp4) {
                for (const char wrong : {'\x7f', '\xff'}) {
                    Checkpoint4 from = whole;
                    from.entries[name].bytes.back() = wrong;
                    must_fail(load(from).status(), format_error, {name, "scale", "a number"});
                }
                continue;
            }
            if (whole.form == Form::mxfp4) {
                for (const uint8_t wrong : {uint8_t{255}, uint8_t{254}, uint8_t{253}}) {
                    Checkpoint4 from = whole;
                    from.entries[name].bytes.back() = static_cast<char>(wrong);
                    must_fail(load(from).status(), format_error, {name, "scale", "2^125"});
                }
                continue;
            }
            for (const float wrong : {0.0f, -0.0f, std::nanf(""), infinite, -infinite, 3e38f}) {
                Checkpoint4 from = whole;
                const uint16_t half = float_to_bfloat16(wrong);
                std::string &bytes = from.entries[name].bytes;
                std::memcpy(bytes.data() + bytes.size() - 2, &half, sizeof half);
                must_fail(load(from).status(), format_error, {name, "scale", "finite"});
            }
        }
    }
}

void sizes_that_do_not_pack_are_refused(void **) {
    Sizes sizes = even;
    sizes.width = 36; // rows of gate and up: 72; columns of down: 36
    must_fail(load(make_checkpoint(Form::gptq_v2, sizes, false)).status(), unsupported,
              {"mlp.down_proj.qweight", "36 columns"});
    sizes = even;
    sizes.width = 42; // 84 rows
    must_fail(load(make_checkpoint(Form::awq, sizes, false)).status(), unsupported,
              {"mlp.gate_up_proj.qweight", "84 rows"});
    sizes = mx;
    sizes.width = 40;
    must_fail(load(make_checkpoint(Form::mxfp4, sizes, false)).status(), unsupported,
              {"mlp.down_proj.weight_packed", "40 columns", "32"});
    sizes.group = 16;
    must_fail(load(make_checkpoint(Form::nvfp4, sizes, false)).status(), unsupported,
              {"mlp.down_proj.weight_packed", "40 columns", "16"});
}

void a_shape_that_the_file_says_must_be_the_models(void **) {
    Checkpoint4 from = make_checkpoint(Form::packed, odd, false);
    const std::string name = layer + "mlp.down_proj.weight_shape";
    from.entries[name].bytes = bytes_of(std::vector<int64_t>{odd.hidden, odd.width + 1});
    must_fail(load(from).status(), format_error, {name, "[76, 47]", "[76, 46]"});
}

void a_bias_beside_gptq_is_passed_over_if_it_is_zero(void **) {
    Checkpoint4 from = make_checkpoint(Form::gptq_v1, even, false);
    Entry &bias = from.entries[layer + "mlp.down_proj.bias"];
    bias = floats({even.hidden}, std::vector<float>(even.hidden));
    check_model(from);
    bias = floats({even.hidden}, std::vector<float>(even.hidden, 1e-30f));
    must_fail(load(from).status(), unsupported, {"mlp.down_proj.bias", "of no use"});
}

void tensors_of_another_form_than_the_configuration_says_are_no_weights(void **) {
    Checkpoint4 from = make_checkpoint(Form::awq, even, false);
    from.config = config_of(Form::packed, 32, false);
    must_fail(load(from).status(), format_error, {"self_attn.qkv_proj.weight", "missing"});
    from = make_checkpoint(Form::packed, even, false);
    from.config = R"({"quant_method": "fp8", "weight_block_size": null})";
    must_fail(load(from).status(), format_error, {"self_attn.qkv_proj.weight", "missing"});
    // If a matrix is present in both forms, the plain one is used and the other is left over.
    from = make_checkpoint(Form::gptq_v1, even, false);
    from.entries[layer + "mlp.down_proj.weight"] = plain({even.hidden, even.width});
    must_fail(load(from).status(), unsupported, {"mlp.down_proj.g_idx", "of no use"});
    // Excluded by the configuration, but packed anyway.
    from = make_checkpoint(Form::packed, even, false);
    from.config.replace(from.config.find("lm_head"), 7, "re:.*down_proj");
    must_fail(load(from).status(), format_error, {"mlp.down_proj.weight", "missing"});
}

void what_is_not_read_is_refused_by_key_and_value(void **) {
    const auto refuse = [](const std::string &config, std::vector<std::string> parts) {
        auto document = JsonDocument::parse(config, "config.json", format_error);
        assert_true(document.ok());
        parts.emplace_back("config.json");
        must_fail(Quantization::read(document->root()).status(), unsupported, parts);
    };
    refuse(R"({"quant_method": "awq", "bits": 3})", {"bits", "3"});
    refuse(R"({"quant_method": "awq", "version": "gemv"})", {"version", "gemv"});
    refuse(R"({"quant_method": "awq", "zero_point": false})", {"zero_point", "false"});
    refuse(R"({"quant_method": "awq", "backend": "llm-awq"})", {"backend", "llm-awq"});
    refuse(R"({"quant_method": "gptq", "bits": 8})", {"bits", "8"});
    refuse(R"({"quant_method": "gptq", "checkpoint_format": "marlin"})",
           {"checkpoint_format", "marlin"});
    refuse(R"({"quant_method": "gptq", "format": "bitblas"})", {"format", "bitblas"});
    refuse(R"({"quant_method": "gptq", "dynamic": {"-:lm_head": {}, "+:.*down.*": {"bits": 8}}})",
           {"dynamic.+:.*down.*"});
    refuse(compressed(R"("type": "int", "strategy": "block")"), {"strategy", "block"});
    refuse(compressed(R"("type": "int", "strategy": "tensor")"), {"strategy", "tensor"});
    refuse(compressed(R"("type": "int", "strategy": "channel", "dynamic": true)"), {"dynamic"});
    refuse(compressed(R"("type": "int", "strategy": "tensor_group", "group_size": 16)"),
           {"strategy", "tensor_group"});
    refuse(compressed(R"("type": "float", "strategy": "tensor_group", "group_size": 32)"),
           {"group_size", "NVFP4"});
    refuse(compressed(R"("type": "float", "strategy": "group", "group_size": 16)"),
           {"group_size", "16"});
    refuse(compressed(R"("type": "float", "strategy": "group", "symmetric": false)"),
           {"symmetric"});
    std::string other = compressed(R"("type": "int", "strategy": "channel")");
    other.insert(1, R"("format": "float-quantized", )");
    refuse(other, {"format", "float-quantized"});
    const auto document = JsonDocument::parse(
        R"({"quant_method": "gptq", "bits": 4, "group_size": 0})", "config.json", format_error);
    must_fail(Quantization::read(document->root()).status(), format_error, {"group_size", "0"});
}

// ---- Experts stored together ----------------------------------------------------------------------

constexpr int64_t experts = 3, gpt_hidden = 32, gpt_width = 64;

Entries gpt_oss(const std::vector<Matrix> &gate_up, const std::vector<Matrix> &down, bool mxfp4) {
    Entries entries;
    for (const char *name : {"model.embed_tokens.weight", "lm_head.weight"}) {
        entries[name] = plain({5, gpt_hidden});
    }
    entries["model.norm.weight"] = entries[layer + "input_layernorm.weight"] =
        entries[layer + "post_attention_layernorm.weight"] = plain({gpt_hidden});
    for (const char *name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        entries[layer + "self_attn." + name + ".weight"] = plain({32, 32});
        entries[layer + "self_attn." + name + ".bias"] = plain({32});
    }
    entries[layer + "self_attn.sinks"] = plain({2});
    entries[layer + "mlp.router.weight"] = plain({experts, gpt_hidden});
    entries[layer + "mlp.router.bias"] = plain({experts});
    std::vector<float> numbers;
    for (int i = 0; i < experts * 2 * gpt_width; ++i) numbers.push_back(static_cast<float>(i));
    const std::string prefix = layer + "mlp.experts.";
    entries[prefix + "gate_up_proj_bias"] = floats({experts, 2 * gpt_width}, numbers);
    numbers.resize(experts * gpt_hidden);
    entries[prefix + "down_proj_bias"] = floats({experts, gpt_hidden}, numbers);
    for (const auto &[name, stack] : {std::pair{"gate_up_proj", &gate_up}, {"down_proj", &down}}) {
        const Matrix &first = stack->front();
        std::string blocks, powers;
        std::vector<float> transposed;
        for (const Matrix &matrix : *stack) {
            Entries one;
            add_packed(Form::mxfp4, matrix, false, "m", &one);
            blocks += one["m.weight_packed"].bytes;
            powers += one["m.weight_scale"].bytes;
            for (int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
                transposed.push_back(static_cast<float>(
                    matrix.value(Form::mxfp4, i % matrix.rows, i / matrix.rows)));
            }
        }
        if (mxfp4) {
            entries[prefix + name + "_blocks"] = {
                "U8", {experts, first.rows, first.columns / 32, 16}, blocks};
            entries[prefix + name + "_scales"] = {
                "U8", {experts, first.rows, first.columns / 32}, powers};
        } else {
            entries[prefix + name] = floats({experts, first.columns, first.rows}, transposed);
        }
    }
    return entries;
}

Result<std::unique_ptr<Model>> load_gpt_oss(const Entries &entries, const std::string &more) {
    const TemporaryDirectory directory;
    directory.write(
        "config.json",
        R"({"model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 5,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1,
        "num_local_experts": 3, "num_experts_per_tok": 2, "rope_theta": 150000, "rope_scaling": null,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000})" +
            more + "}");
    directory.write("model.safetensors", file_of(entries));
    return load_model(directory.path());
}

constexpr const char *mxfp4_config = R"(, "quantization_config": {"quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn"]})";

struct Stacks {
    std::vector<Matrix> gate_up, down;
};

Stacks make_stacks() {
    std::mt19937_64 random(the_seed());
    Stacks stacks;
    for (int64_t e = 0; e < experts; ++e) {
        stacks.gate_up.push_back(
            make_matrix(Form::mxfp4, 2 * gpt_width, gpt_hidden, 32, false, &random));
        stacks.down.push_back(make_matrix(Form::mxfp4, gpt_hidden, gpt_width, 32, false, &random));
    }
    return stacks;
}

void experts_are_read_out_of_a_stack_gate_and_up_by_turns(void **) {
    const Stacks stacks = make_stacks();
    for (const bool mxfp4 : {true, false}) {
        const auto loaded =
            load_gpt_oss(gpt_oss(stacks.gate_up, stacks.down, mxfp4), mxfp4 ? mxfp4_config : "");
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        const Experts &got = *(*loaded)->layers[0].experts();
        assert_int_equal(got.each.size(), experts);
        for (int64_t e = 0; e < experts; ++e) {
            const FeedForward &f = got.each[static_cast<size_t>(e)];
            const Matrix &both = stacks.gate_up[static_cast<size_t>(e)];
            const Matrix &down = stacks.down[static_cast<size_t>(e)];
            const auto of = [](const Matrix &m, int64_t step, int64_t first) {
                return [&m, step, first](int64_t r, int64_t c) {
                    return m.value(Form::mxfp4, first + r * step, c);
                };
            };
            check_tensor(f.gate.values, of(both, 2, 0));
            check_tensor(f.up.values, of(both, 2, 1));
            check_tensor(f.down.values, of(down, 1, 0));
            const auto bias = [&](int64_t stored, int64_t first, int64_t step) {
                return [=](int64_t r, int64_t) {
                    return static_cast<double>(e * stored + first + r * step);
                };
            };
            check_tensor(f.gate.bias, bias(2 * gpt_width, 0, 2));
            check_tensor(f.up.bias, bias(2 * gpt_width, 1, 2));
            check_tensor(f.down.bias, bias(gpt_hidden, 0, 1));
        }
    }
}

void experts_in_mxfp4_are_held_to_their_shapes_and_scales(void **) {
    const Stacks stacks = make_stacks();
    const Entries whole = gpt_oss(stacks.gate_up, stacks.down, true);
    const std::string prefix = layer + "mlp.experts.";
    must_fail(load_gpt_oss(whole, "").status(), format_error, {prefix + "gate_up_proj", "missing"});
    for (const std::string name : {"gate_up_proj", "down_proj"}) {
        Entries entries = whole;
        entries.erase(prefix + name + "_scales");
        must_fail(load_gpt_oss(entries, mxfp4_config).status(), format_error,
                  {prefix + name + "_scales", "missing"});
        for (const char *part : {"_scales", "_blocks"}) {
            entries = whole;
            std::swap(entries[prefix + name + part].shape[0],
                      entries[prefix + name + part].shape[1]);
            must_fail(load_gpt_oss(entries, mxfp4_config).status(), format_error,
                      {prefix + name + part, "shape"});
            entries = whole;
            entries[prefix + name + part].type = "I8";
            must_fail(load_gpt_oss(entries, mxfp4_config).status(), unsupported,
                      {prefix + name + part, "I8"});
        }
        entries = whole;
        entries[prefix + name + "_scales"].bytes.back() = '\xFF';
        must_fail(load_gpt_oss(entries, mxfp4_config).status(), format_error,
                  {prefix + name + "_scales", "nan"});
        entries = whole;
        entries.erase(prefix + name + "_bias");
        must_fail(load_gpt_oss(entries, mxfp4_config).status(), format_error,
                  {prefix + name + "_bias", "missing"});
    }
    must_fail(load_gpt_oss(whole, std::string(mxfp4_config) + R"(, "swiglu_limit": 5.0)").status(),
              unsupported, {"swiglu_limit", "5"});
}

// The names of a model's text part begin otherwise in the files than where they are looked up.
void a_part_that_is_missing_is_named_as_it_would_be_in_the_file(void **) {
    // With as many heads as make them square, o_proj can be read as q_proj, the first matrix.
    const Sizes square{96, 40, 96, 96, 16, 32};
    const Checkpoint4 made = make_checkpoint(Form::awq, square, false);
    for (const std::string start : {"language_model.model.", "model.language_model."}) {
        Entries entries;
        for (const auto &[name, entry] : made.entries) {
            if (!name.starts_with("model.")) continue;
            std::string in_file = start + name.substr(std::string("model.").size());
            const size_t at = in_file.find("o_proj");
            if (at != std::string::npos) in_file.replace(at, 1, "q");
            entries[in_file] = entry;
        }
        const std::string part = start + "layers.0.self_attn.q_proj.scales";
        assert_int_equal(entries.erase(part), 1);
        const TemporaryDirectory directory;
        directory.write("config.json", R"({"model_type": "mistral3", "quantization_config": )" +
                                           made.config + R"(, "text_config": {
            "model_type": "mistral", "vocab_size": 5, "eos_token_id": 1, "num_hidden_layers": 1,
            "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16, "hidden_size": 96,
            "intermediate_size": 40, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}})");
        directory.write("model.safetensors", file_of(entries));
        must_fail(load_model(directory.path()).status(), format_error,
                  {"tensor " + part + " is missing", "model.safetensors"});
    }
}

// ModelOpt's stacks of experts in NVFP4: codes and scales, rows by columns, give the elements, also of some columns.
void stacks_in_nvfp4_are_read_in_parts_and_whole(void **) {
    const auto model = load_model("golden/llama4_modelopt_nvfp4");
    assert_true(model.ok());
    constexpr double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    int stacked = 0;
    for_each_tensor(**model, [&](const Tensor &tensor) {
        if (tensor.dtype != DType::u4 || tensor.stored_stack == 0) return;
        ++stacked;
        for (const Tensor &part :
             {tensor, rows_of(tensor, 3, 17), columns_of(tensor, 16, tensor.columns - 16)}) {
            const auto n = static_cast<size_t>(part.rows * part.columns);
            std::vector<float> whole(n);
            read_rows(part, 0, part.rows, DType::f32, whole.data());
            const Groups groups = groups_of(part);
            std::vector<uint8_t> codes(n / 2),
                scales(static_cast<size_t>(part.rows * groups.count));
            read_codes(part, 0, part.rows, codes.data());
            read_scale_bytes(part, 0, part.rows, scales.data());
            for (size_t i = 0; i < n; ++i) {
                const uint8_t code = codes[i / 2] >> 4 * (i % 2) & 15;
                const float scale = e4m3_to_float(scales[i / 16]);
                const double size = e2m1[code & 7] * double(scale) * double(part.four_bits->factor);
                assert_true(std::abs(double(whole[i]) - (code > 7 ? -size : size)) <= 1e-6 * size);
            }
        }
    });
    assert_int_equal(stacked,
                     2 * 3 * 5 * 2 / 2 * 2); // of four layers: five experts, gate, up and down
}

// One byte of the header is another: a part that is not there, or of another shape.
void stacks_of_modelopt_are_held_to_their_parts(void **) {
    const auto load = [](const char *golden, const std::string &from, const std::string &to) {
        const std::string source = std::string("golden/") + golden + "/";
        const TemporaryDirectory directory;
        for (const char *name : {"config.json", "hf_quant_config.json", "model.safetensors"}) {
            std::string text = read_file(source + name, 1 << 20).value();
            const size_t at = text.find(from);
            if (std::strcmp(name, "model.safetensors") == 0) {
                assert_true(at != std::string::npos);
                text.replace(at, from.size(), to);
            }
            directory.write(name, text);
        }
        return load_model(directory.path()).status();
    };
    const std::string stack = "layers.1.feed_forward.experts.";
    for (const char *golden : {"llama4_modelopt_fp8", "llama4_modelopt_nvfp4"}) {
        must_fail(
            load(golden, stack + "down_proj_weight_scale\"", stack + "down_proj_weight_scalE\""),
            format_error, {stack + "down_proj_weight_scale", "missing"});
    }
    must_fail(load("llama4_modelopt_nvfp4", stack + "gate_up_proj_weight_scale_2",
                   stack + "gate_up_proj_weight_scale_3"),
              format_error, {stack + "gate_up_proj_weight_scale_2", "missing"});
    must_fail(load("llama4_modelopt_nvfp4", "[5,4,96]", "[5,96,4]"), format_error,
              {"experts.gate_up_proj_weight_scale", "[5, 96, 4]", "[5, 4, 96]"});
}

// One scale for each expert of a stack, and shapes that are neither that nor one for all.
void experts_of_a_stack_in_fp8_may_have_scales_of_their_own(void **) {
    constexpr int64_t count_of = 3, width = 4, hidden = 6;
    const auto load = [&](const std::vector<int64_t> &shape, std::unique_ptr<Model> *out) {
        const TemporaryDirectory directory;
        directory.write("config.json", R"({"model_type": "llama4_text", "hidden_size": 6,
            "intermediate_size": 4, "intermediate_size_mlp": 4, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 5,
            "num_local_experts": 3, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "eos_token_id": 1, "tie_word_embeddings": true,
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})");
        Entries entries;
        const auto plain = [&](const std::string &name, std::vector<int64_t> sizes) {
            int64_t count = 1;
            for (const int64_t size : sizes) count *= size;
            entries[name] = {"BF16", sizes, std::string(static_cast<size_t>(2 * count), '\0')};
        };
        const std::string own = "model.layers.0.";
        plain("model.embed_tokens.weight", {5, hidden});
        for (const char *norm : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                                 "model.layers.0.post_attention_layernorm.weight"}) {
            plain(norm, {hidden});
        }
        for (const char *name : {"q_proj", "k_proj", "v_proj"}) {
            plain(own + "self_attn." + name + ".weight", {2, hidden});
        }
        plain(own + "self_attn.o_proj.weight", {hidden, 2});
        plain(own + "feed_forward.router.weight", {count_of, hidden});
        for (const char *name : {"gate_proj", "up_proj"}) {
            plain(own + "feed_forward.shared_expert." + name + ".weight", {width, hidden});
        }
        plain(own + "feed_forward.shared_expert.down_proj.weight", {hidden, width});
        const auto stack = [&](const char *name, int64_t rows, int64_t columns) {
            const std::string whole = own + "feed_forward.experts." + name;
            entries[whole] = {"F8_E4M3",
                              {count_of, columns, rows},
                              std::string(static_cast<size_t>(count_of * rows * columns), '\x38')};
            std::vector<float> scales;
            int64_t count = 1;
            for (const int64_t size : shape) count *= size;
            for (int64_t i = 0; i < count; ++i) scales.push_back(0.5F * static_cast<float>(i + 1));
            std::string bytes(scales.size() * 4, '\0');
            std::memcpy(bytes.data(), scales.data(), bytes.size());
            entries[whole + "_weight_scale"] = {"F32", shape, bytes};
        };
        stack("gate_up_proj", 2 * width, hidden);
        stack("down_proj", hidden, width);
        directory.write("model.safetensors", file_of(entries));
        auto loaded = load_model(directory.path());
        if (loaded.ok() && out != nullptr) *out = std::move(loaded).value();
        return loaded.status();
    };
    std::unique_ptr<Model> model;
    for (const std::vector<int64_t> &shape :
         {std::vector<int64_t>{}, {1}, {count_of}, {count_of, 1}, {count_of, 1, 1}}) {
        const Status status = load(shape, &model);
        if (!status.ok()) fail_msg("%s", status.message().c_str());
        const std::vector<FeedForward> &each = model->layers[0].experts()->each;
        const bool one = shape.empty() || shape[0] == 1;
        for (size_t e = 0; e < each.size(); ++e) {
            for (const Weight *weight : {&each[e].gate, &each[e].up, &each[e].down}) {
                std::vector<float> row(static_cast<size_t>(weight->columns()));
                for (int64_t r = 0; r < weight->rows(); ++r) {
                    read_row(weight->values, r, row.data()); // 0x38 is 1
                    for (const float x : row) assert_true(x == (one ? 0.5F : 0.5F * float(e + 1)));
                }
            }
        }
    }
    for (const std::vector<int64_t> &shape :
         {std::vector<int64_t>{4}, {count_of, count_of}, {1, count_of}}) {
        must_fail(load(shape, nullptr), format_error,
                  {"_proj_weight_scale", "scales of 3 experts are [] or [3]"});
    }
}

// What a description says without the files is what the files have, where the configuration says it at all.
void descriptions_know_what_is_in_four_bits(void **) {
    for (const char *name : {"llama_awq", "llama_gptq_sym", "llama_ct_mxfp4", "llama_ct_nvfp4",
                             "gpt_oss_mxfp4", "qwen3_moe_gptq", "qwen3_moe_modelopt_nvfp4",
                             "llama4_modelopt_nvfp4", "qwen3_ct_packed_asym"}) {
        const std::string directory = std::string("golden/") + name;
        const auto described = describe_model(directory);
        const auto loaded = load_model(directory);
        assert_true(described.ok() && loaded.ok());
        std::map<std::string, std::optional<FourBitFacts>> known;
        for_each_tensor(*described, [&](const Tensor &tensor) {
            known[tensor.name] = four_bit_facts(*described, tensor);
        });
        size_t packed = 0;
        for_each_tensor(**loaded, [&](const Tensor &tensor) {
            if (tensor.columns == 1) return;
            const auto own = four_bit_facts(**loaded, tensor);
            const auto before = known.find(tensor.name);
            if (before == known.end()) return; // experts that are stacked in the file
            packed += own.has_value();
            const bool router = tensor.name.ends_with(".gate.weight");
            if (own.has_value() != before->second.has_value() && !router) {
                fail_msg("%s: %s: %d", name, tensor.name.c_str(), own.has_value());
            }
            if (!own || !before->second) return;
            assert_true(own->kind == before->second->kind);
            assert_true(own->scale_type == before->second->scale_type);
            assert_int_equal(own->group_columns, before->second->group_columns);
        });
        assert_true(packed > 0);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_codes_less_zero_points_times_scales_in_every_form),
        cmocka_unit_test(a_scale_may_be_of_a_whole_row),
        cmocka_unit_test(presets_and_formats_of_compressed_tensors_are_known),
        cmocka_unit_test(symmetric_gptq_has_the_middle_for_zero_whatever_version_it_says),
        cmocka_unit_test(groups_of_minus_one_are_in_order_in_compressed_tensors),
        cmocka_unit_test(every_tensor_of_a_matrix_must_be_there_of_its_type_and_shape),
        cmocka_unit_test(a_group_size_that_is_not_the_files_is_an_error_of_shape),
        cmocka_unit_test(a_column_of_no_group_is_an_error_that_names_it),
        cmocka_unit_test(scales_that_are_none_are_errors_that_name_the_tensor),
        cmocka_unit_test(sizes_that_do_not_pack_are_refused),
        cmocka_unit_test(a_shape_that_the_file_says_must_be_the_models),
        cmocka_unit_test(a_bias_beside_gptq_is_passed_over_if_it_is_zero),
        cmocka_unit_test(tensors_of_another_form_than_the_configuration_says_are_no_weights),
        cmocka_unit_test(what_is_not_read_is_refused_by_key_and_value),
        cmocka_unit_test(experts_are_read_out_of_a_stack_gate_and_up_by_turns),
        cmocka_unit_test(experts_in_mxfp4_are_held_to_their_shapes_and_scales),
        cmocka_unit_test(a_part_that_is_missing_is_named_as_it_would_be_in_the_file),
        cmocka_unit_test(descriptions_know_what_is_in_four_bits),
        cmocka_unit_test(stacks_in_nvfp4_are_read_in_parts_and_whole),
        cmocka_unit_test(stacks_of_modelopt_are_held_to_their_parts),
        cmocka_unit_test(experts_of_a_stack_in_fp8_may_have_scales_of_their_own),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
