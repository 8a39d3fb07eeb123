#include "model/pooling.h"

#include <optional>
#include <string_view>

#include "base/file.h"
#include "base/json.h"

namespace batchllm {
namespace {

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

// Rejects options of the module Transformer that change a text before the tokenizer sees it: they
// are not implemented.
Status check_texts(const std::string &path) {
    ASSIGN_OR_RETURN(const bool given, file_exists(path));
    if (!given) return {};
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    const JsonValue config = document.root();
    if (!config.is_object()) return config.fail("must be an object");
    ASSIGN_OR_RETURN(const bool lower, config.boolean_or("do_lower_case", false));
    if (!lower) return {};
    return config.at("do_lower_case")->unsupported("texts are not put into lower case");
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

Result<EmbeddingForm> read_modules(const JsonValue &root, const std::string &model_dir,
                                   int32_t hidden) {
    ASSIGN_OR_RETURN(const auto modules, root.elements());
    EmbeddingForm form;
    bool pooled = false;
    for (size_t i = 0; i < modules.size(); ++i) {
        ASSIGN_OR_RETURN(const JsonValue type, modules[i].at("type"));
        ASSIGN_OR_RETURN(const std::string name, type.string());
        const std::string kind = class_of(name);
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
            form.normalize = true;
        } else {
            return type.unsupported("only Transformer, Pooling and Normalize, in this order, are");
        }
    }
    if (!pooled) return root.unsupported("a model without a module of pooling is not");
    return form;
}

} // namespace

Result<EmbeddingForm> read_embedding_form(const std::string &model_dir, int32_t hidden) {
    const std::string path = model_dir + "/modules.json";
    ASSIGN_OR_RETURN(const bool given, file_exists(path));
    if (!given) return EmbeddingForm{};
    RETURN_IF_ERROR(check_texts(model_dir + "/sentence_bert_config.json"));
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    return read_modules(document.root(), model_dir, hidden);
}

} // namespace batchllm
