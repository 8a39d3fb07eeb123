#include "model/pooling.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/printable.h"

namespace batchllm {
namespace {

bool contains(std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// A file with an object; none: there is no file.
Result<std::optional<JsonDocument>> load_object(const std::string &path) {
    ASSIGN_OR_RETURN(const bool there, file_exists(path));
    if (!there) return std::optional<JsonDocument>();
    ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    if (!document.root().is_object()) return document.root().fail("must be an object");
    return std::optional(std::move(document));
}

// "Pooling" for "sentence_transformers.models.Pooling", whatever module the class is in.
std::string class_of(const std::string &type) {
    const size_t dot = type.rfind('.');
    return dot == std::string::npos ? type : type.substr(dot + 1);
}

std::optional<Pooling> pooling_of(std::string_view mode) {
    if (mode == "lasttoken") return Pooling::last;
    if (mode == "mean") return Pooling::mean;
    if (mode == "cls") return Pooling::first;
    return std::nullopt;
}

// Reads "pooling_mode", or the flags "pooling_mode_cls_token" and so on, exactly one of which must
// be true.
Result<Pooling> read_mode(const JsonValue &config) {
    if (const auto mode = config.given("pooling_mode")) {
        ASSIGN_OR_RETURN(const std::string name, mode->string());
        if (const auto pooling = pooling_of(name)) return *pooling;
        return mode->unsupported("only cls, mean and lasttoken are supported");
    }
    std::optional<Pooling> found;
    ASSIGN_OR_RETURN(const auto members, config.members());
    constexpr std::string_view prefix = "pooling_mode_";
    for (const auto &[key, value] : members) {
        if (!key.starts_with(prefix)) continue;
        ASSIGN_OR_RETURN(const bool chosen, value.boolean());
        if (!chosen) continue;
        std::string mode(key.substr(prefix.size()));
        if (mode == "cls_token") mode = "cls";
        if (mode == "mean_tokens") mode = "mean";
        const auto pooling = pooling_of(mode);
        if (!pooling) {
            return value.unsupported("only the last token's, the mean and the first token's are");
        }
        if (found) return value.unsupported("only one mode of pooling is supported");
        found = pooling;
    }
    if (!found) return config.fail("names no mode of pooling");
    return *found;
}

Result<Pooling> read_pooling(const std::string &path, int32_t hidden) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    const JsonValue config = document.root();
    if (!config.is_object()) return config.fail("must be an object");
    ASSIGN_OR_RETURN(const auto members, config.members());
    for (const auto &[key, value] : members) {
        constexpr std::string_view known[] = {"word_embedding_dimension", "embedding_dimension",
                                              "include_prompt"};
        if (key.starts_with("pooling_mode") || contains(known, key)) continue;
        return value.unsupported("the key is not known");
    }
    ASSIGN_OR_RETURN(const Pooling pooling, read_mode(config));
    for (const char *key : {"word_embedding_dimension", "embedding_dimension"}) {
        const auto dimension = config.given(key);
        if (!dimension) continue;
        ASSIGN_OR_RETURN(const int64_t stated, dimension->integer(1, 1 << 24));
        if (stated != hidden) {
            return dimension->fail("the model's hidden_size is " + std::to_string(hidden));
        }
    }
    ASSIGN_OR_RETURN(const bool whole, config.boolean_or("include_prompt", true));
    if (!whole && pooling != Pooling::last) {
        return config.at("include_prompt")
            ->unsupported("a prompt's tokens cannot be left out of the pooling");
    }
    return pooling;
}

// A key whose only value that changes nothing is this one.
Status need(const JsonValue &object, const char *key, std::string_view only) {
    const auto given = object.given(key);
    if (!given) return {};
    if (given->is_string()) {
        ASSIGN_OR_RETURN(const std::string value, given->string());
        if (value == only) return {};
    }
    return given->unsupported("only " + in_quotes(only) + " is supported");
}

// What sentence-transformers passes on to transformers, of which only that is left aside that changes no vector.
Status check_passed_on(const JsonValue &config, const char *key) {
    constexpr std::string_view harmless[] = {
        "attn_implementation", "device_map",  "dtype",    "low_cpu_mem_usage",
        "padding_side",        "torch_dtype", "use_fast", "trust_remote_code"};
    const auto given = config.given(key);
    if (!given) return {};
    ASSIGN_OR_RETURN(const auto members, given->members());
    for (const auto &[name, value] : members) {
        if (value.is_null() || contains(harmless, name)) continue;
        return value.unsupported("it is not passed on to the model or the tokenizer");
    }
    return {};
}

// Rejects what the module Transformer would do that is not done here. Adds to *note what is left to the caller.
Status check_transformer(const std::string &path, std::string *note) {
    ASSIGN_OR_RETURN(const auto document, load_object(path));
    if (!document) return {};
    const JsonValue config = document->root();
    RETURN_IF_ERROR(config.only_keys({"max_seq_length", "do_lower_case", "transformer_task",
                                      "modality_config", "module_output_name", "unpad_inputs",
                                      "model_args", "model_kwargs", "config_args", "config_kwargs",
                                      "tokenizer_args", "processor_kwargs", "processing_kwargs"}));
    ASSIGN_OR_RETURN(const bool lower, config.boolean_or("do_lower_case", false));
    if (lower) return config.at("do_lower_case")->unsupported("texts are not put into lower case");
    RETURN_IF_ERROR(need(config, "transformer_task", "feature-extraction"));
    RETURN_IF_ERROR(need(config, "module_output_name", "token_embeddings"));
    if (const auto modalities = config.given("modality_config")) {
        if (const auto text = modalities->given("text")) {
            RETURN_IF_ERROR(need(*text, "method", "forward"));
            RETURN_IF_ERROR(need(*text, "method_output_name", "last_hidden_state"));
        }
    }
    for (const char *key : {"model_args", "model_kwargs", "config_args", "config_kwargs",
                            "tokenizer_args", "processor_kwargs", "processing_kwargs"}) {
        RETURN_IF_ERROR(check_passed_on(config, key));
    }
    if (config.given("max_seq_length")) *note = path + ": rows are not cut at \"max_seq_length\"";
    return {};
}

// What applies to all vectors.
Status check_defaults(const std::string &path, std::string *note) {
    ASSIGN_OR_RETURN(const auto document, load_object(path));
    if (!document) return {};
    const JsonValue config = document->root();
    if (const auto dimensions = config.given("truncate_dim"))
        return dimensions->unsupported("vectors are cut by \"dimensions\" of a row");
    if (config.given("default_prompt_name")) {
        *note += (note->empty() ? "" : "; ") + path +
                 ": the prompt of \"default_prompt_name\" is not put before rows";
    }
    return {};
}

// Code in the model's directory, as embedding models have it whose attention looks ahead.
Status check_code(const std::string &path) {
    ASSIGN_OR_RETURN(const auto document, load_object(path));
    if (!document) return {};
    const auto map = document->root().given("auto_map");
    const auto own = map ? map->given("AutoModel") : std::nullopt;
    if (!own) return {};
    return own->unsupported(
        "code of the model's own, which may make attention look ahead, is not run");
}

// The folder of a module, which must be inside that of the model.
Result<std::string> read_folder(const JsonValue &module) {
    ASSIGN_OR_RETURN(const JsonValue path, module.at("path"));
    ASSIGN_OR_RETURN(std::string folder, path.string());
    if (folder.empty() || folder.front() == '/' || folder.find("..") != std::string::npos ||
        folder.find('\0') != std::string::npos) {
        return path.fail("must be a folder in the model's directory");
    }
    return folder;
}

Status check_normalize(const std::string &path) {
    ASSIGN_OR_RETURN(const auto document, load_object(path));
    if (!document) return {};
    const JsonValue config = document->root();
    RETURN_IF_ERROR(config.only_keys({"module_input_name", "module_output_name"}));
    RETURN_IF_ERROR(need(config, "module_input_name", "sentence_embedding"));
    return need(config, "module_output_name", "sentence_embedding");
}

Result<EmbeddingForm> read_modules(const JsonValue &root, const std::string &model_dir,
                                   int32_t hidden) {
    ASSIGN_OR_RETURN(const auto modules, root.elements());
    EmbeddingForm form;
    bool pooled = false;
    for (size_t i = 0; i < modules.size(); ++i) {
        ASSIGN_OR_RETURN(const JsonValue type, modules[i].at("type"));
        ASSIGN_OR_RETURN(const std::string name, type.string());
        const std::string kind = class_of(name);
        if (!name.starts_with("sentence_transformers."))
            return type.unsupported("classes of sentence_transformers alone are");
        if ((i == 0) != (kind == "Transformer")) {
            return type.unsupported("only Transformer, Pooling and Normalize, in this order, are");
        }
        if (kind == "Transformer") continue;
        if (kind == "Pooling" && !pooled && !form.normalize) {
            ASSIGN_OR_RETURN(const std::string folder, read_folder(modules[i]));
            ASSIGN_OR_RETURN(form.pooling,
                             read_pooling(model_dir + "/" + folder + "/config.json", hidden));
            pooled = true;
        } else if (kind == "Normalize") {
            ASSIGN_OR_RETURN(const std::string folder, read_folder(modules[i]));
            RETURN_IF_ERROR(check_normalize(model_dir + "/" + folder + "/config.json"));
            form.normalize = true;
        } else {
            return type.unsupported("only Transformer, Pooling and Normalize, in this order, are");
        }
    }
    if (!pooled) return root.unsupported("a model without a module of pooling is not");
    return form;
}

} // namespace

Result<EmbeddingForm> read_embedding_form(const std::string &model_dir, int32_t hidden,
                                          std::string *note) {
    const std::string path = model_dir + "/modules.json";
    ASSIGN_OR_RETURN(const bool given, file_exists(path));
    if (!given) return EmbeddingForm{};
    RETURN_IF_ERROR(check_transformer(model_dir + "/sentence_bert_config.json", note));
    RETURN_IF_ERROR(check_defaults(model_dir + "/config_sentence_transformers.json", note));
    RETURN_IF_ERROR(check_code(model_dir + "/config.json"));
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    return read_modules(document.root(), model_dir, hidden);
}

std::vector<std::string> embedding_files(const std::string &model_dir) {
    std::vector<std::string> files = {"modules.json", "1_Pooling/config.json"};
    const std::string path = model_dir + "/modules.json";
    const Result<bool> given = file_exists(path);
    if (!given.ok() || !*given) return files;
    files.insert(files.end(), {"sentence_bert_config.json", "config_sentence_transformers.json"});
    const auto document = JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT);
    if (!document.ok()) return files;
    const auto modules = document->root().elements();
    if (!modules.ok()) return files;
    for (const JsonValue &module : *modules) {
        const auto folder = read_folder(module);
        if (!folder.ok()) continue;
        const std::string file = *folder + "/config.json";
        if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
    }
    return files;
}

} // namespace batchllm
