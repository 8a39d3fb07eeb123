// Shared by the tests of constraints in the engine: a model whose tokens have several letters,
// engines with it that have batches in flight, and rows with their answers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "constraint/handle.h"
#include "late_backend.h"
#include "runtime/engine.h" // before cmocka, whose fail() is a macro

#include "golden_files.h"
#include "testing.h"

namespace batchllm {

// ---- A model with a tokenizer whose tokens have several letters ----

inline constexpr int32_t model_eos = 281;

// The character that stands for a byte in a byte-level vocabulary.
inline std::string byte_name(int byte) {
    const auto printable = [](int b) {
        return (b >= 0x21 && b < 0x7F) || (b >= 0xA1 && b < 0xAD) || b >= 0xAE;
    };
    int code = byte;
    if (!printable(byte)) {
        code = 0x100;
        for (int other = 0; other < byte; ++other) code += printable(other) ? 0 : 1;
    }
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + '"';
}

inline std::string tokenizer_json(int32_t vocabulary) {
    const std::vector<std::pair<std::string, std::string>> merges = {
        {"n", "a"},   {"m", "e"},  {"na", "me"}, {"a", "g"},   {"ag", "e"}, {"\"", ":"},
        {"{", "\""},  {"\"", ","}, {"y", "e"},   {"ye", "s"},  {"n", "o"},  {"r", "e"},
        {"re", "d"},  {"b", "l"},  {"u", "e"},   {"bl", "ue"}, {"1", "2"},  {"t", "r"},
        {"tr", "ue"}, {"\"", "}"}, {"e", "d"},   {"g", "re"},  {"e", "n"},  {"gre", "en"},
    };
    std::string vocab, merge_list, added;
    for (int byte = 0; byte < 256; ++byte)
        vocab += quoted(byte_name(byte)) + ":" + std::to_string(byte) + ",";
    int32_t id = 256;
    for (const auto &[left, right] : merges) {
        vocab += quoted(left + right) + ":" + std::to_string(id++) + ",";
        merge_list += "[" + quoted(left) + "," + quoted(right) + "],";
    }
    vocab.pop_back();
    merge_list.pop_back();
    const auto add = [&](int32_t token, const std::string &text) {
        added += "{\"id\":" + std::to_string(token) + ",\"content\":" + quoted(text) +
                 ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                 "\"special\":true},";
    };
    for (const char *special : {"<s>", "</s>", "</think>"}) add(id++, special);
    while (id < vocabulary) add(id, "<unused-" + std::to_string(id) + ">"), ++id;
    added.pop_back();
    const std::string byte_level = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                   "\"trim_offsets\":true,\"use_regex\":true}";
    return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" + added +
           "],\"normalizer\":null,\"pre_tokenizer\":" + byte_level +
           ",\"post_processor\":null,\"decoder\":" + byte_level +
           ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
           "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
           "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{" +
           vocab + "},\"merges\":[" + merge_list + "]}}";
}

// Created once for all tests.
inline const std::string &model_directory() {
    static const TemporaryDirectory directory;
    static const bool made = [] {
        for (const char *name : {"config.json", "model.safetensors"})
            std::filesystem::copy_file(std::string("golden/llama_bias_f32/") + name,
                                       directory.file(name));
        directory.write("generation_config.json", "{\"eos_token_id\": 281}");
        directory.write("tokenizer.json", tokenizer_json(290));
        directory.write(
            "tokenizer_config.json",
            R"({"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"})");
        return true;
    }();
    assert_true(made);
    return directory.path();
}

// ---- Engines ----

struct Shape {
    const char *backend = "cpu";
    int32_t batches_in_flight = 1;
    int64_t kv_memory_bytes = int64_t{64} << 20;
    int64_t step_tokens = 0;
    int32_t feeds_but_one_in = 0;
    const char *sim_options = "";
    Drafts drafts = Drafts::off;
};

inline std::unique_ptr<Engine> make_engine(const Shape &shape, int64_t *fed_tokens = nullptr) {
    EngineOptions options;
    options.model_dir = model_directory();
    options.backend = shape.backend;
    options.drafts = shape.drafts;
    options.backend_options.kv_memory_bytes = shape.kv_memory_bytes;
    options.backend_options.step_tokens = shape.step_tokens;
    options.backend_options.threads = options.threads = 2;
    const bool late = std::string(shape.backend) == "cpu";
    if (late) {
        options.backend_options.compute_type = "f32";
    } else if (shape.batches_in_flight == 2) {
        options.backend_options.extra = {{"overlap", "1"}};
    }
    auto made = Engine::create(options, [&](const EngineOptions &of) -> Result<LoadedModel> {
        ASSIGN_OR_RETURN(LoadedModel loaded, load_model_and_backend(of));
        LateOptions how;
        how.batches_in_flight = shape.batches_in_flight;
        how.feeds_but_one_in = shape.feeds_but_one_in;
        how.fed_tokens = fed_tokens;
        if (late)
            loaded.backends[0] = std::make_unique<LateBackend>(std::move(loaded.backends[0]), how);
        return loaded;
    });
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return std::move(*made);
}

// ---- Rows ----

struct Answer {
    std::vector<int32_t> tokens;
    std::string text;
    int32_t finish = 0, status = 0;
    std::vector<float> logprobs;
    std::string error;
    bool operator==(const Answer &) const = default;
};
using AnswersByRow = std::map<std::pair<uint64_t, int32_t>, Answer>; // by tag and sample

inline AnswersByRow answers_of(const ResultBatch &results) {
    AnswersByRow all;
    for (int64_t i = 0; i < results.count; ++i) {
        Answer answer;
        answer.tokens.assign(results.tokens + results.token_offsets[i],
                             results.tokens + results.token_offsets[i + 1]);
        answer.text.assign(results.text + results.text_offsets[i],
                           results.text + results.text_offsets[i + 1]);
        answer.logprobs.assign(results.logprobs + results.logprob_offsets[i],
                               results.logprobs + results.logprob_offsets[i + 1]);
        answer.error.assign(results.errors + results.error_offsets[i],
                            results.errors + results.error_offsets[i + 1]);
        answer.finish = results.finish_reasons[i];
        answer.status = results.statuses[i];
        if (!all.emplace(std::pair(results.tags[i], results.samples[i]), answer).second)
            fail_msg("two results for row %d", int(results.tags[i]));
    }
    return all;
}

inline void add(Engine *engine, const std::string &prompt, uint64_t tag, batchllm_params params,
                const batchllm_constraint *constraint) {
    params.constraint = constraint;
    const int64_t offsets[2] = {0, static_cast<int64_t>(prompt.size())};
    const auto column = ParamsColumn::open(&params, 1, 1);
    assert_true(column.ok());
    assert_true((*engine->intake())->add_text({1, prompt.data(), offsets}, &tag, *column).ok());
}

inline batchllm_constraint handle_of(Engine *engine, const ConstraintSpecification &specification) {
    auto made = engine->make_constraint(specification);
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return {made->constraint, ""};
}

} // namespace batchllm
