// Safetensors files, valid and hostile, and model directories made of them.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>

#include "model/model.h"
#include "model/safetensors.h"
#include "model/tower.h"
#include "testing.h"

using namespace batchllm;

namespace {

std::string with_length(uint64_t length, std::string_view header, std::string_view data) {
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i));
    file += header;
    file += data;
    return file;
}

std::string file_of(std::string_view header, size_t data_bytes) {
    return with_length(header.size(), header, std::string(data_bytes, 'x'));
}

Result<std::vector<StoredTensor>> parse(const std::string &file) {
    // In a block of exactly its size, so that a sanitizer detects any read beyond it.
    const std::vector<std::byte> bytes(reinterpret_cast<const std::byte *>(file.data()),
                                       reinterpret_cast<const std::byte *>(file.data()) +
                                           file.size());
    return parse_safetensors(bytes, "weights.safetensors");
}

void must_parse(const std::string &file, size_t tensors) {
    const auto parsed = parse(file);
    if (!parsed.ok()) fail_msg("%s\n%s", parsed.status().message().c_str(), file.c_str() + 8);
    assert_int_equal(parsed->size(), tensors);
}

void must_refuse(const std::string &file, const char *because) {
    const auto parsed = parse(file);
    if (parsed.ok()) fail_msg("was accepted: %.300s", file.c_str() + 8);
    const std::string &message = parsed.status().message();
    assert_int_equal(parsed.status().code(), BATCHLLM_ERROR_MODEL_FORMAT);
    if (message.find("weights.safetensors") == std::string::npos ||
        message.find(because) == std::string::npos) {
        fail_msg("\"%s\" lacks \"%s\"", message.c_str(), because);
    }
    for (const char c : message) assert_true(static_cast<unsigned char>(c) >= 0x20);
}

void tensors_come_in_the_order_of_their_bytes(void **) {
    const auto parsed =
        parse(file_of(R"({"b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]},)"
                      R"("__metadata__":{"format":"pt"},)"
                      R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}   )",
                      22));
    assert_true(parsed.ok());
    assert_int_equal(parsed->size(), 2);
    const StoredTensor &a = (*parsed)[0];
    const StoredTensor &b = (*parsed)[1];
    assert_string_equal(a.name.c_str(), "a");
    assert_string_equal(a.type.c_str(), "F32");
    assert_true(a.shape == (std::vector<int64_t>{2, 2}));
    assert_int_equal(a.bytes, 16);
    assert_string_equal(b.name.c_str(), "b");
    assert_int_equal(b.offset, a.offset + 16);
    assert_int_equal(b.bytes, 6);
}

void what_the_format_allows_is_read(void **) {
    must_parse(file_of("{}", 0), 0);
    must_parse(file_of("{}                    ", 0), 0);
    must_parse(file_of(R"({"__metadata__":{}})", 0), 0);
    // A scalar, empty tensors at either end, an offset that is not aligned for any type.
    must_parse(file_of(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8), 1);
    must_parse(file_of(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                       R"("s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                       R"("g":{"dtype":"F32","shape":[5,0],"data_offsets":[5,5]}})",
                       5),
               4);
    must_parse(file_of(R"({"n":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})", 3), 1);
    must_parse(
        file_of("{\"\\u00e9\\n\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1), 1);
}

// One tensor "t" with these three values, in a file with this many bytes of data.
std::string one(const std::string &dtype, const std::string &shape, const std::string &offsets,
                size_t data_bytes) {
    std::string header = R"({"t":{"dtype":)";
    header += dtype;
    header += R"(,"shape":)";
    header += shape;
    header += R"(,"data_offsets":)";
    header += offsets;
    header += "}}";
    return file_of(header, data_bytes);
}

void hostile_lengths_are_refused(void **) {
    must_refuse("", "too short");
    must_refuse(std::string(7, '\0'), "too short");
    must_refuse(with_length(0, "", ""), "'{'");
    must_refuse(with_length(1, "", ""), "ends after 0");
    must_refuse(with_length(3, "{}", ""), "ends after 2");
    for (const uint64_t length :
         {uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 63U}) {
        must_refuse(with_length(length, "{}", ""), "not a safetensors file");
    }
    must_refuse("<!DOCTYPE html><html></html>", "not a safetensors file");
    must_refuse("version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS");
    const std::string begin = with_length(100'000'001, "{}", "");
    const auto parsed = parse_safetensors(std::as_bytes(std::span(begin)), size_t{1} << 30U, "w");
    assert_false(parsed.ok());
    assert_non_null(std::strstr(parsed.status().message().c_str(), "more than the"));
    must_refuse(with_length(2, "{} ", ""), "end after 0 of 1");
}

void hostile_headers_are_refused(void **) {
    struct Case {
        const char *header;
        const char *because;
    };
    const Case cases[] = {
        {" {}", "'{'"},
        {"\xef\xbb\xbf{}", "'{'"},
        {"[]", "'{'"},
        {"null", "'{'"},
        {"{}\n", "'}'"},
        {"{}\t", "'}'"},
        {"{} x", "'}'"},
        {"{", "'}'"},
        {"{} {}", "JSON"},
        {"{}}", "JSON"},
        {"{\"a\":}", "JSON"},
        {"{\"a\xff\":{}}", "JSON"},
        {"{\"a\":{},}", "JSON"},
        {"{'a':1}", "JSON"},
        {R"({"t":1})", "must be an object"},
        {R"({"t":null})", "must be an object"},
        {R"({"t":[]})", "must be an object"},
        {R"({"t":{}})", "dtype"},
        {R"({"t":{"dtype":"F32"}})", "shape"},
        {R"({"t":{"dtype":"F32","shape":[]}})", "data_offsets"},
        {R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"more":1}})", "more"},
        {R"({"__metadata__":[]})", "__metadata__"},
        {R"({"__metadata__":{"a":1}})", "strings"},
        {R"({"__metadata__":{"a":{"b":"c"}}})", "strings"},
        {R"({"__metadata__":{"a":"1","a":"2"}})", "twice"},
        {R"({"__metadata__":{},"__metadata__":{}})", "twice"},
        {R"({"t":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})", "twice"},
        {R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
             "\u0074":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
         "twice"},
    };
    for (const Case &item : cases) must_refuse(file_of(item.header, 0), item.because);
    std::string deep = R"({"t":)";
    deep += std::string(100000, '[');
    must_refuse(file_of(deep + "}", 0), "JSON");
}

void hostile_types_and_shapes_are_refused(void **) {
    must_refuse(one("\"F33\"", "[1]", "[0,4]", 4), "unknown element type");
    must_refuse(one("\"f32\"", "[1]", "[0,4]", 4), "unknown element type");
    must_refuse(one("\"\"", "[1]", "[0,4]", 4), "unknown element type");
    must_refuse(one("32", "[1]", "[0,4]", 4), "must be a string");
    must_refuse(one("null", "[1]", "[0,4]", 4), "must be a string");
    for (const char *extent : {"-1", "1.0", "1e0", "\"1\"", "null", "true", "[1]",
                               "9223372036854775808", "18446744073709551615"}) {
        must_refuse(one("\"F32\"", std::string("[") + extent + "]", "[0,4]", 4), "t.shape[0]");
    }
    must_refuse(one("\"F32\"", "1", "[0,4]", 4), "must be a list");
    must_refuse(one("\"F32\"", "{}", "[0,4]", 4), "must be a list");
    // Products that wrap around to the correct number.
    must_refuse(one("\"F32\"", "[4294967296,4294967296]", "[0,0]", 0), "too large");
    must_refuse(one("\"F32\"", "[4611686018427387904,4]", "[0,0]", 0), "too large");
    must_refuse(one("\"U8\"", "[9223372036854775807]", "[0,0]", 0), "too large");
    must_refuse(one("\"U8\"", "[2305843009213693952]", "[0,0]", 0), "too large");
    must_refuse(one("\"F4\"", "[3]", "[0,1]", 1), "whole bytes");
    must_refuse(one("\"F6_E2M3\"", "[2]", "[0,1]", 1), "whole bytes");
}

void hostile_offsets_are_refused(void **) {
    must_refuse(one("\"F32\"", "[1]", "[0]", 4), "begin and an end");
    must_refuse(one("\"F32\"", "[1]", "[0,4,8]", 4), "begin and an end");
    must_refuse(one("\"F32\"", "[1]", "4", 4), "must be a list");
    must_refuse(one("\"F32\"", "[1]", "[-4,0]", 4), "data_offsets[0]");
    must_refuse(one("\"F32\"", "[1]", "[4,0]", 4), "data_offsets[1]");
    must_refuse(one("\"F32\"", "[1]", "[0,5]", 4), "5 bytes where type and shape need 4");
    must_refuse(one("\"F32\"", "[1]", "[0,18446744073709551615]", 4), "data_offsets[1]");
    must_refuse(one("\"F32\"", "[1]", "[0,4.0]", 4), "data_offsets[1]");
    must_refuse(one("\"F32\"", "[1]", "[0,3]", 4), "3 bytes where type and shape need 4");
    must_refuse(one("\"F32\"", "[1]", "[0,8]", 8), "8 bytes where type and shape need 4");
    must_refuse(one("\"F32\"", "[1]", "[1,5]", 5), "a hole");
    must_refuse(one("\"F32\"", "[1]", "[0,4]", 5), "end after 4 of 5");
    must_refuse(one("\"F32\"", "[0]", "[1,1]", 1), "a hole");
    const auto two = [](const char *first, const char *second, size_t bytes) {
        std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)";
        header += first;
        header += R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)";
        header += second;
        header += "}}";
        return file_of(header, bytes);
    };
    must_parse(two("[4,8]", "[0,4]", 8), 2);
    must_refuse(two("[0,4]", "[0,4]", 4), "overlap");
    must_refuse(two("[0,4]", "[3,7]", 7), "overlap");
    must_refuse(two("[0,4]", "[5,9]", 9), "a hole");
    must_refuse(two("[0,4]", "[8,12]", 12), "a hole");
}

void a_file_cut_anywhere_is_refused(void **) {
    const std::string whole =
        file_of(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})", 6);
    must_parse(whole, 1);
    for (size_t length = 0; length < whole.size(); ++length) {
        must_refuse(whole.substr(0, length), "");
    }
    must_refuse(whole + "x", "of 7");
    must_refuse(whole.substr(0, whole.size() - 1),
                "\"a.data_offsets\" is [0,6]: the file is cut short: it holds 5 bytes of tensors");
    // The first missing tensor in the order of the header.
    const std::string three = file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                                      R"("c":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                                      6);
    must_refuse(three.substr(0, three.size() - 3), "\"b.data_offsets\" is [2,4]: the file is cut");
}

// ---- Model directories ---------------------------------------------------------------------------

constexpr const char *config = R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 6,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5, "num_hidden_layers": 1,
    "tie_word_embeddings": %s})";

struct Entry {
    std::string name;
    std::vector<int64_t> shape;
    std::string type = "F32";
    char fill = 'x';
};

std::vector<Entry> tiny_model() {
    const std::string layer = "model.layers.0.";
    return {{"model.embed_tokens.weight", {5, 4}},
            {"lm_head.weight", {5, 4}},
            {"model.norm.weight", {4}},
            {layer + "input_layernorm.weight", {4}},
            {layer + "post_attention_layernorm.weight", {4}},
            {layer + "self_attn.q_proj.weight", {4, 4}},
            {layer + "self_attn.k_proj.weight", {2, 4}},
            {layer + "self_attn.v_proj.weight", {2, 4}},
            {layer + "self_attn.o_proj.weight", {4, 4}},
            {layer + "mlp.gate_proj.weight", {6, 4}},
            {layer + "mlp.up_proj.weight", {6, 4}},
            {layer + "mlp.down_proj.weight", {4, 6}}};
}

std::string safetensors_of(const std::vector<Entry> &entries) {
    std::string header = "{";
    std::string data;
    for (const Entry &entry : entries) {
        size_t bytes = entry.type == "F32" ? 4 : entry.type == "I8" ? 1 : 2;
        std::string shape;
        for (const int64_t extent : entry.shape) {
            bytes *= static_cast<size_t>(extent);
            if (!shape.empty()) shape += ',';
            shape += std::to_string(extent);
        }
        if (header.size() > 1) header += ',';
        header += "\"" + entry.name + R"(":{"dtype":")" + entry.type + R"(","shape":[)" + shape +
                  R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
                  std::to_string(data.size() + bytes) + "]}";
        data += std::string(bytes, entry.fill);
    }
    header += "}";
    return with_length(header.size(), header, data);
}

void write_config(const TemporaryDirectory &directory, bool tied) {
    char text[512];
    std::snprintf(text, sizeof text, config, tied ? "true" : "false");
    directory.write("config.json", text);
}

Result<std::unique_ptr<Model>> load_of(const std::vector<Entry> &entries, bool tied) {
    const TemporaryDirectory directory;
    write_config(directory, tied);
    directory.write("model.safetensors", safetensors_of(entries));
    return load_model(directory.path()); // mapped files remain valid after they are removed
}

// Checks that loading fails with an error that contains each of the parts.
void must_fail(const Result<std::unique_ptr<Model>> &loaded, int32_t code,
               const std::vector<std::string> &parts) {
    if (loaded.ok()) fail_msg("was accepted, should name %s", parts[0].c_str());
    const std::string &message = loaded.status().message();
    for (const std::string &part : parts) {
        if (message.find(part) == std::string::npos) {
            fail_msg("\"%s\" lacks \"%s\"", message.c_str(), part.c_str());
        }
    }
    if (loaded.status().code() != code)
        fail_msg("code %d: %s", loaded.status().code(), message.c_str());
}

Entry &named(std::vector<Entry> *entries, const std::string &name) {
    return *std::find_if(entries->begin(), entries->end(),
                         [&](const Entry &entry) { return entry.name == name; });
}

void a_models_tensors_are_views_into_its_file(void **) {
    const auto loaded = load_of(tiny_model(), false);
    assert_true(loaded.ok());
    const Model &model = **loaded;
    assert_int_equal(model.bytes->files.size(), 1);
    assert_int_equal(model.embedding.rows, 5);
    assert_int_equal(model.embedding.columns, 4);
    assert_int_equal(model.layers[0].feed_forward()->down.columns(), 6);
    assert_true(model.head.values.data == model.embedding.data + model.embedding.bytes());
    assert_int_equal(model.weight_bytes(),
                     static_cast<int64_t>(4 * (20 + 20 + 4 + 4 + 4 + 16 + 8 + 8 + 16 + 72)));
    assert_true(model.dtype == DType::f32); // not stated: that of the file
    assert_false(static_cast<bool>(model.layers[0].attention()->q.bias));
}

void each_missing_tensor_is_named(void **) {
    const auto entries = tiny_model();
    for (size_t i = 0; i < entries.size(); ++i) {
        auto fewer = entries;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
        must_fail(load_of(fewer, false), BATCHLLM_ERROR_MODEL_FORMAT,
                  {entries[i].name, "missing", "model.safetensors"});
    }
}

void a_shape_that_does_not_fit_the_config_is_refused(void **) {
    const auto entries = tiny_model();
    for (const Entry &entry : entries) {
        auto changed = entries;
        Entry &target = named(&changed, entry.name);
        target.shape[0] += 1;
        must_fail(load_of(changed, false), BATCHLLM_ERROR_MODEL_FORMAT, {entry.name, "shape"});
        target.shape = entry.shape;
        target.shape.push_back(1);     // the same bytes, one more dimension
        if (entry.shape.size() == 1) { // a vector, as Kimi Linear stores some
            assert_true(load_of(changed, false).ok());
            target.shape[0] -= 1;
        }
        must_fail(load_of(changed, false), BATCHLLM_ERROR_MODEL_FORMAT, {entry.name, "shape"});
    }
    auto transposed = entries;
    named(&transposed, "model.layers.0.mlp.down_proj.weight").shape = {6, 4};
    must_fail(load_of(transposed, false), BATCHLLM_ERROR_MODEL_FORMAT,
              {"down_proj", "[6, 4]", "[4, 6]"});
}

void a_key_that_decides_shapes_and_is_absent_is_named(void **) {
    const TemporaryDirectory directory;
    write_config(directory, false);
    directory.write("model.safetensors", safetensors_of(tiny_model()));
    std::string text;
    {
        std::ifstream file(directory.file("config.json"));
        text.assign(std::istreambuf_iterator<char>(file), {});
    }
    const std::string key = "\"num_key_value_heads\"";
    const size_t at = text.find(key);
    assert_true(at != std::string::npos);
    text.replace(at, key.size(), "\"no_such_key\"");
    directory.write("config.json", text);
    must_fail(load_model(directory.path()), BATCHLLM_ERROR_MODEL_FORMAT,
              {"k_proj", "[2, 4]", "[4, 4]", "config.json has no", "num_key_value_heads"});
}

void a_type_that_is_no_weight_is_refused(void **) {
    auto entries = tiny_model();
    named(&entries, "model.norm.weight").type = "I8";
    must_fail(load_of(entries, false), BATCHLLM_ERROR_UNSUPPORTED, {"model.norm.weight", "I8"});
    named(&entries, "model.norm.weight").type = "F16";
    named(&entries, "lm_head.weight").type = "BF16";
    const auto mixed = load_of(entries, false);
    assert_true(mixed.ok());
    assert_true((*mixed)->final_norm.weight.dtype == DType::f16);
    assert_true((*mixed)->head.values.dtype == DType::bf16);
}

void tensors_of_no_use_are_refused_but_for_rotary_frequencies(void **) {
    auto entries = tiny_model();
    entries.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}});
    assert_true(load_of(entries, false).ok());
    for (const char *name : {"model.layers.0.self_attn.q_proj.bias",
                             "model.layers.1.mlp.up_proj.weight", "lm_head.bias", "extra"}) {
        auto more = entries;
        more.push_back({name, {4}});
        must_fail(load_of(more, false), BATCHLLM_ERROR_UNSUPPORTED, {name});
    }
}

// As embedding models are published: with the class of the whole model, but the tensors of the base
// model.
void a_model_saved_without_its_head_loads(void **) {
    auto entries = tiny_model();
    for (Entry &entry : entries) {
        if (entry.name.starts_with("model.")) entry.name.erase(0, 6);
    }
    auto loaded = load_of(entries, false); // has its head anyway
    assert_true(loaded.ok());
    assert_true(bool((*loaded)->head));
    entries.erase(entries.begin() + 1);
    loaded = load_of(entries, false);
    assert_true(loaded.ok());
    assert_false(bool((*loaded)->head));
    loaded = load_of(entries, true);
    assert_true(loaded.ok());
    assert_true((*loaded)->head.values.data == (*loaded)->embedding.data);
    auto whole = tiny_model(); // with another class, a missing head is an error
    whole.erase(whole.begin() + 1);
    must_fail(load_of(whole, false), BATCHLLM_ERROR_MODEL_FORMAT, {"lm_head.weight", "missing"});
}

void tied_embeddings_follow_transformers(void **) {
    const std::string embedding = "model.embed_tokens.weight";
    auto entries = tiny_model();
    auto loaded = load_of(entries, true); // both, and equal
    assert_true(loaded.ok());
    assert_true((*loaded)->tied);
    assert_true((*loaded)->head.values.data == (*loaded)->embedding.data);

    named(&entries, "lm_head.weight").fill = 'y'; // both, and different
    loaded = load_of(entries, true);
    assert_true(loaded.ok());
    assert_false((*loaded)->tied);
    assert_true(*(*loaded)->head.values.data == std::byte{'y'});

    for (const char *gone : {"lm_head.weight", "model.embed_tokens.weight"}) { // one of them
        auto fewer = tiny_model();
        fewer.erase(std::find_if(fewer.begin(), fewer.end(),
                                 [&](const Entry &entry) { return entry.name == gone; }));
        loaded = load_of(fewer, true);
        assert_true(loaded.ok());
        assert_true((*loaded)->tied);
        assert_true((*loaded)->head.values.data == (*loaded)->embedding.data);
    }
    auto neither = tiny_model();
    neither.erase(neither.begin(), neither.begin() + 2);
    must_fail(load_of(neither, true), BATCHLLM_ERROR_MODEL_FORMAT, {embedding, "missing"});
}

// ---- Shards --------------------------------------------------------------------------------------

constexpr const char *first_shard = "model-00001-of-00002.safetensors";
constexpr const char *second_shard = "model-00002-of-00002.safetensors";

// Splits the tiny model in two, lets `change` modify the parts and the index, and loads it.
struct Sharded {
    std::vector<Entry> first, second;
    std::vector<std::pair<std::string, std::string>> map; // tensor, shard
};

Result<std::unique_ptr<Model>> load_sharded(const std::function<void(Sharded *)> &change) {
    const TemporaryDirectory directory;
    write_config(directory, false);
    Sharded parts;
    for (const Entry &entry : tiny_model()) {
        const bool in_first = parts.first.size() < 5;
        (in_first ? parts.first : parts.second).push_back(entry);
        parts.map.emplace_back(entry.name, in_first ? first_shard : second_shard);
    }
    change(&parts);
    directory.write(first_shard, safetensors_of(parts.first));
    directory.write(second_shard, safetensors_of(parts.second));
    std::string index = R"({"metadata": {"total_size": 1}, "weight_map": {)";
    for (size_t i = 0; i < parts.map.size(); ++i) {
        if (i > 0) index += ',';
        index += "\"" + parts.map[i].first + "\": \"" + parts.map[i].second + "\"";
    }
    directory.write("model.safetensors.index.json", index + "}}");
    return load_model(directory.path());
}

void shards_make_one_model(void **) {
    const auto loaded = load_sharded([](Sharded *) {});
    assert_true(loaded.ok());
    assert_int_equal((*loaded)->bytes->files.size(), 2);
    // Old checkpoints contain rotary frequencies that no index lists.
    assert_true(load_sharded([](Sharded *parts) {
                    parts->second.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}});
                }).ok());
}

void shards_and_index_must_agree(void **) {
    const int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    must_fail(load_sharded([](Sharded *parts) { parts->second.push_back(parts->first[0]); }), code,
              {"model.embed_tokens.weight", first_shard, second_shard});
    must_fail(load_sharded([](Sharded *parts) { parts->map[0].second = second_shard; }), code,
              {"model.embed_tokens.weight", second_shard, "index.json"});
    must_fail(load_sharded([](Sharded *parts) { parts->second.pop_back(); }), code,
              {"down_proj", "index.json"});
    must_fail(load_sharded([](Sharded *parts) { parts->map.pop_back(); }), code,
              {"down_proj", "index.json"});
    must_fail(load_sharded([](Sharded *parts) { parts->map.push_back(parts->map[0]); }), code,
              {"model.embed_tokens.weight", "twice"});
    must_fail(load_sharded([](Sharded *parts) { parts->map.clear(); }), code, {"weight_map"});
}

void a_shard_outside_the_directory_is_refused(void **) {
    for (const char *name :
         {"../model.safetensors", "/etc/model.safetensors", "..", ".", "", "a/b.safetensors",
          "a\\\\b.safetensors", "..safetensors", ".safetensors", "model.bin",
          "a\\u0000.safetensors", "./a.safetensors"}) {
        must_fail(load_sharded([&](Sharded *parts) { parts->map[0].second = name; }),
                  BATCHLLM_ERROR_MODEL_FORMAT, {"weight_map.model.embed_tokens.weight"});
    }
    must_fail(load_sharded([&](Sharded *parts) { parts->map[0].second = "absent.safetensors"; }),
              BATCHLLM_ERROR_IO, {"absent.safetensors"});
}

void a_directory_without_weights_is_an_error_that_says_so(void **) {
    const TemporaryDirectory directory;
    write_config(directory, false);
    must_fail(load_model(directory.path()), BATCHLLM_ERROR_MODEL_FORMAT,
              {directory.path(), "model.safetensors"});
    directory.write("pytorch_model.bin", "x");
    must_fail(load_model(directory.path()), BATCHLLM_ERROR_MODEL_FORMAT, {"pytorch_model.bin"});
    std::filesystem::create_directory(directory.file("model.safetensors"));
    must_fail(load_model(directory.path()), BATCHLLM_ERROR_IO, {"not a regular file"});
}

void golden_models_load(void **) {
    int32_t models = 0;
    for (const auto &entry : std::filesystem::directory_iterator("golden")) {
        if (!std::filesystem::exists(entry.path() / "config.json")) continue;
        const auto loaded = load_model(entry.path().string());
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        assert_true((*loaded)->weight_bytes() > 50000);
        ++models;
    }
    assert_true(models >= 11);
}

std::string read_text(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// A golden model with a vision tower, with some tensor names replaced by others of the same length.
Result<std::unique_ptr<Model>> load_renamed(std::string_view from, std::string_view to,
                                            const std::string &name = "gemma3_vision_bf16") {
    const TemporaryDirectory directory;
    const std::string golden = "golden/" + name + "/";
    std::string bytes = read_text(golden + "model.safetensors");
    for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
        bytes.replace(at, from.size(), to);
    }
    directory.write("config.json", read_text(golden + "config.json"));
    directory.write("model.safetensors", bytes);
    return load_model(directory.path());
}

void a_vision_tower_is_passed_over_and_nothing_else(void **) {
    const auto published = load_renamed("none of these", "none of those");
    assert_true(published.ok());
    assert_string_equal((*published)->embedding.name.c_str(), "model.embed_tokens.weight");
    // As transformers 5 names them in memory.
    assert_true(load_renamed("language_model.model.", "model.language_model.").ok());
    must_fail(load_renamed("vision_tower.", "vision_towel."), BATCHLLM_ERROR_UNSUPPORTED,
              {"vision_towel.", "of no use"});
    // Errors have the name in the file, not the one used for the look-up.
    must_fail(load_renamed("language_model.model.norm.", "language_model.model.norn."),
              BATCHLLM_ERROR_MODEL_FORMAT, {"tensor language_model.model.norm.weight is missing"});
    must_fail(load_renamed("\"dtype\":\"BF16\"", "\"dtype\":\"I16\" "), BATCHLLM_ERROR_UNSUPPORTED,
              {"tensor language_model.model.embed_tokens.weight is of type I16"});
}

// What is wrong with a tower is no error: the model keeps its text, and knows why it has no tower.
void a_tower_is_loaded_or_the_text_alone(void **) {
    const auto without = [](const Result<std::unique_ptr<Model>> &loaded, const char *why) {
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
        assert_null((*loaded)->tower.get());
        if ((*loaded)->no_tower.find(why) == std::string::npos) {
            fail_msg("%s: not %s", (*loaded)->no_tower.c_str(), why);
        }
    };
    const std::string name = "qwen3_5_pictures";
    const auto whole = load_renamed("none of these", "none of those", name);
    assert_true(whole.ok() && (*whole)->tower != nullptr);
    assert_string_equal((*whole)->no_tower.c_str(), "");
    size_t tensors = 0;
    for_each_tensor(*(*whole)->tower, [&](const Tensor &tensor) {
        assert_non_null(tensor.data);
        assert_true(tensor.name.starts_with("visual."));
        ++tensors;
    });
    assert_true(tensors > 40);
    without(load_renamed("model.visual.", "mtp.xxxxxxxx.", name),
            "has no tensors of a vision tower");
    without(load_renamed("visual.merger.norm.bias", "visual.merger.norn.bias", name),
            "tensor model.visual.merger.norm.bias is missing");
    // A convolution of another size; and a bias that no part of the tower has.
    without(load_renamed("\"shape\":[32,3,2,8,8]", "\"shape\":[96,2,8,8]  ", name),
            "has shape [96, 2, 8, 8]");
    without(load_renamed("visual.merger.norm.bias", "visual.merger.nor_.bias", name), "is missing");
    without(load_model("golden/qwen3_vl_bf16"), "image token");
    without(load_model("golden/qwen2_vl_bf16"), "");
}

void a_key_that_is_there_by_its_other_name_is_not_called_absent(void **) {
    const TemporaryDirectory directory;
    const std::string golden = "golden/lfm2_bf16/";
    std::string text = read_text(golden + "config.json");
    const size_t at = text.find("\"block_ff_dim\": ");
    assert_true(at != std::string::npos);
    text.replace(text.find("100", at), 3, "900");
    directory.write("config.json", text);
    directory.write("model.safetensors", read_text(golden + "model.safetensors"));
    const auto loaded = load_model(directory.path());
    must_fail(loaded, BATCHLLM_ERROR_MODEL_FORMAT, {"feed_forward", "shape"});
    assert_null(std::strstr(loaded.status().message().c_str(), "intermediate_size"));
}

// The tensors of a base model have no "model." prefix (in Nemotron-H no "backbone.").
void the_tensors_of_any_familys_base_model_are_found(void **) {
    for (const std::string name :
         {"bamba_bf16", "gemma4_text_bf16", "lfm2_bf16", "nemotron_h_bf16"}) {
        const std::string golden = "golden/" + name + "/";
        const std::string bytes = read_text(golden + "model.safetensors");
        uint64_t length = 0;
        std::memcpy(&length, bytes.data(), sizeof length);
        std::string header = bytes.substr(sizeof length, length);
        for (const std::string prefix : {"\"model.", "\"backbone."}) {
            for (size_t at = header.find(prefix); at != std::string::npos;
                 at = header.find(prefix, at)) {
                header.replace(at, prefix.size(), "\"");
            }
        }
        const TemporaryDirectory directory;
        directory.write("config.json", read_text(golden + "config.json"));
        directory.write("model.safetensors",
                        with_length(header.size(), header, bytes.substr(sizeof length + length)));
        const auto loaded = load_model(directory.path());
        if (!loaded.ok()) fail_msg("%s", loaded.status().message().c_str());
    }
}

// A base model's names begin with the layer, so the part that is missing is not "model.layers..".
void a_missing_part_of_four_bits_has_the_name_that_it_would_have_in_the_file(void **) {
    const std::string golden = "golden/llama_awq/";
    const std::string bytes = read_text(golden + "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    std::string header = bytes.substr(sizeof length, length);
    const auto replace = [&](const std::string &from, const std::string &to) {
        for (size_t at = 0; (at = header.find(from, at)) != std::string::npos; at += to.size())
            header.replace(at, from.size(), to);
    };
    replace("\"model.", "\"");
    replace("0.mlp.up_proj.qzeros", "0.mlp.up_proj.nzeros");
    const TemporaryDirectory directory;
    directory.write("config.json", read_text(golden + "config.json"));
    directory.write("model.safetensors",
                    with_length(header.size(), header, bytes.substr(sizeof length + length)));
    must_fail(load_model(directory.path()), BATCHLLM_ERROR_MODEL_FORMAT,
              {"model.safetensors: tensor layers.0.mlp.up_proj.qzeros is missing"});
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_the_order_of_their_bytes),
        cmocka_unit_test(what_the_format_allows_is_read),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_types_and_shapes_are_refused),
        cmocka_unit_test(hostile_offsets_are_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_models_tensors_are_views_into_its_file),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(a_vision_tower_is_passed_over_and_nothing_else),
        cmocka_unit_test(a_tower_is_loaded_or_the_text_alone),
        cmocka_unit_test(a_shape_that_does_not_fit_the_config_is_refused),
        cmocka_unit_test(a_key_that_decides_shapes_and_is_absent_is_named),
        cmocka_unit_test(a_type_that_is_no_weight_is_refused),
        cmocka_unit_test(tensors_of_no_use_are_refused_but_for_rotary_frequencies),
        cmocka_unit_test(a_model_saved_without_its_head_loads),
        cmocka_unit_test(tied_embeddings_follow_transformers),
        cmocka_unit_test(shards_make_one_model),
        cmocka_unit_test(shards_and_index_must_agree),
        cmocka_unit_test(a_shard_outside_the_directory_is_refused),
        cmocka_unit_test(a_directory_without_weights_is_an_error_that_says_so),
        cmocka_unit_test(golden_models_load),
        cmocka_unit_test(a_key_that_is_there_by_its_other_name_is_not_called_absent),
        cmocka_unit_test(a_missing_part_of_four_bits_has_the_name_that_it_would_have_in_the_file),
        cmocka_unit_test(the_tensors_of_any_familys_base_model_are_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
