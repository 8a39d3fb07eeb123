// config.json and generation_config.json -> the description of a model.
#include <algorithm>

#include "model/config.h"
#include "model/families/families.h"
#include "model/heads.h"
#include "model/quantization.h"

namespace batchllm {
namespace {

struct FoundFamily {
    const Family *family;
    HeadKind head;
    bool of_whole = false; // the class is that of the whole model around the text model
};

const Family *family_of(std::string_view model_type) {
    const auto families = known_families();
    const auto family = std::find_if(families.begin(), families.end(), [&](const Family &known) {
        return model_type == known.model_type;
    });
    return family == families.end() ? nullptr : &*family;
}

std::string family_names() {
    std::string names;
    const auto families = known_families();
    for (const Family &family : families) {
        if (&family != family_of(family.model_type)) continue; // another class of it
        if (!names.empty()) names += &family == &families.back() ? " and " : ", ";
        names += family.model_type;
    }
    return names;
}

// A model_type may have several rows, which differ in their classes.
std::optional<HeadKind> head_of(const Family &first, const std::string &class_name) {
    for (const Family &family : known_families()) {
        if (std::string_view(family.model_type) != first.model_type) continue;
        if (const auto head = head_of_class(family, class_name)) return head;
    }
    return std::nullopt;
}

// The config of a text model that was taken out of its whole model often keeps the whole's class.
bool is_class_of_whole(const Family &family, const std::string &class_name) {
    constexpr std::string_view suffix = "_text";
    std::string_view name = family.model_type;
    if (!name.ends_with(suffix)) return false;
    name.remove_suffix(suffix.size());
    const Family *const whole = family_of(name);
    return whole != nullptr && class_name == whole->class_name;
}

Result<FoundFamily> find_family(const JsonValue &config) {
    ASSIGN_OR_RETURN(const JsonValue type, config.at("model_type"));
    ASSIGN_OR_RETURN(const std::string name, type.string());
    const Family *const family = family_of(name);
    if (family == nullptr) return type.unsupported("this version runs " + family_names());
    FoundFamily found{family, HeadKind::text};
    if (const auto classes = config.given("architectures")) {
        ASSIGN_OR_RETURN(const auto list, classes->elements());
        for (const JsonValue &item : list) {
            ASSIGN_OR_RETURN(const std::string class_name, item.string());
            auto head = head_of(*family, class_name);
            if (!head.has_value() && is_class_of_whole(*family, class_name)) {
                head = HeadKind::text;
                found.of_whole = true;
            }
            if (!head.has_value()) {
                return item.unsupported("only " + class_names(*family) + " with model_type " +
                                        family->model_type);
            }
            if (&item != &list.front() && *head != found.head) {
                return item.unsupported("the class before it has another head");
            }
            found.head = *head;
        }
        if (list.empty()) return classes->fail("must name a class");
    }
    return found;
}

// Under its usual key, or under that of older compressed-tensors checkpoints.
Status read_quantization(const JsonValue &config, Model *model) {
    auto value = config.given("quantization_config");
    if (!value) value = config.given("compression_config");
    if (!value) return {};
    ASSIGN_OR_RETURN(model->quantization, Quantization::read(*value));
    return {};
}

Status refuse_unsupported(const JsonValue &config) {
    if (const auto value = config.given("is_encoder_decoder")) {
        ASSIGN_OR_RETURN(const bool yes, value->boolean());
        if (yes) return value->unsupported("only decoders are supported");
    }
    if (const auto value = config.given("is_causal")) {
        ASSIGN_OR_RETURN(const bool yes, value->boolean());
        if (!yes) return value->unsupported("only causal attention is supported");
    }
    return {};
}

} // namespace

Status describe_text_part(const JsonValue &config,
                          Status (*describe)(const JsonValue &config, Model *model), bool tied,
                          Model *model) {
    ASSIGN_OR_RETURN(const JsonValue text, config.at("text_config"));
    if (!text.is_object()) return text.fail("must be an object");
    RETURN_IF_ERROR(refuse_unsupported(text));
    RETURN_IF_ERROR(read_quantization(text, model));
    RETURN_IF_ERROR(describe(text, model));
    RETURN_IF_ERROR(read_dtype(config, model));
    ASSIGN_OR_RETURN(model->tied, read_flag(config, "tie_word_embeddings", tied));
    if (const auto eos = config.given("eos_token_id")) {
        model->eos_tokens.clear();
        RETURN_IF_ERROR(read_tokens(*eos, model->vocabulary, &model->eos_tokens));
    }
    pass_over_vision(model);
    return {};
}

void pass_over_vision(Model *model) {
    model->renamed = {{"language_model.model.", "model."},
                      {"language_model.lm_head.", "lm_head."},
                      {"model.language_model.", "model."}};
    for (const char *part : {"vision_tower.", "multi_modal_projector.", "visual."}) {
        pass_over(part, model);
    }
}

void pass_over(const std::string &part, Model *model) {
    model->passed_over.push_back(part);
    model->passed_over.push_back("model." + part);
}

namespace {

Result<Model> describe(const JsonValue &config) {
    if (!config.is_object()) return config.fail("must be an object");
    ASSIGN_OR_RETURN(const FoundFamily found, find_family(config));
    RETURN_IF_ERROR(refuse_unsupported(config));
    Model model;
    RETURN_IF_ERROR(read_quantization(config, &model));
    RETURN_IF_ERROR(found.family->describe(config, &model));
    if (found.of_whole) pass_over_vision(&model);
    RETURN_IF_ERROR(set_head(config, *found.family, found.head, &model));
    place_keys_and_values(&model);
    return model;
}

// The tokens that end a row, if generation_config.json names them.
Status read_generation_config(const std::string &path, Model *model) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    if (!document.root().is_object()) return document.root().fail("must be an object");
    const auto eos = document.root().given("eos_token_id");
    if (!eos) return {};
    model->eos_tokens.clear();
    return read_tokens(*eos, model->vocabulary, &model->eos_tokens);
}

} // namespace

namespace {

// ModelOpt's file, for checkpoints whose config.json does not describe the quantisation.
Status read_quantization_file(const std::string &path, Model *model) {
    if (model->quantization != nullptr) return {};
    ASSIGN_OR_RETURN(const bool given, file_exists(path));
    if (!given) return {};
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    ASSIGN_OR_RETURN(model->quantization, Quantization::read_modelopt(document.root()));
    return {};
}

} // namespace

Result<Model> describe_config(const std::string &text, const std::string &file) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse_of_python(text, file, BATCHLLM_ERROR_MODEL_FORMAT));
    return describe(document.root());
}

Result<Model> describe_model(const std::string &model_dir) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(model_dir + "/config.json", BATCHLLM_ERROR_MODEL_FORMAT));
    ASSIGN_OR_RETURN(Model model, describe(document.root()));
    model.directory = model_dir;
    RETURN_IF_ERROR(read_quantization_file(model_dir + "/hf_quant_config.json", &model));
    const std::string path = model_dir + "/generation_config.json";
    ASSIGN_OR_RETURN(const bool given, file_exists(path));
    if (given) RETURN_IF_ERROR(read_generation_config(path, &model));
    return model;
}

} // namespace batchllm
