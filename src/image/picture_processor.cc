#include "image/picture_processor.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "image/picture_family.h"

namespace batchllm {
namespace {

struct ProcessorFamily {
    std::string_view model_type; // of config.json
    std::string_view processor;  // image_processor_type, without "Fast" at its end
    MadeProcessor (*make)(const ProcessorFiles &);
};
constexpr ProcessorFamily families[] = {
    {"qwen2_vl", "Qwen2VLImageProcessor", make_qwen_processor},
    {"qwen2_5_vl", "Qwen2VLImageProcessor", make_qwen_processor},
    {"qwen2_5_vl", "Qwen2_5_VLImageProcessor", make_qwen_processor},
    {"qwen3_vl", "Qwen2VLImageProcessor", make_qwen_processor},
    {"qwen3_vl_moe", "Qwen2VLImageProcessor", make_qwen_processor},
    {"qwen3_5", "Qwen2VLImageProcessor", make_qwen_processor},
    {"qwen3_5_moe", "Qwen2VLImageProcessor", make_qwen_processor},
    {"gemma3", "Gemma3ImageProcessor", make_gemma3_processor},
    {"gemma4", "Gemma4ImageProcessor", make_gemma4_processor},
    {"mistral3", "PixtralImageProcessor", make_pixtral_processor},
};

const ProcessorFamily *find_family(std::string_view model_type, std::string_view processor) {
    if (processor.ends_with("Fast")) processor.remove_suffix(4);
    for (const ProcessorFamily &family : families) {
        if (family.model_type == model_type && family.processor == processor) return &family;
    }
    return nullptr;
}

// Empty: there is no such file.
Result<std::optional<JsonDocument>> load(const std::string &path) {
    ASSIGN_OR_RETURN(const bool exists, file_exists(path));
    if (!exists) return std::optional<JsonDocument>();
    ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::load(path, BATCHLLM_ERROR_MODEL_FORMAT));
    return std::optional<JsonDocument>(std::move(document));
}

} // namespace

Result<std::unique_ptr<const PictureProcessor>>
PictureProcessor::make(const std::string &model_dir, const Tokenizer *tokenizer,
                       const PictureLimits &limits) {
    ASSIGN_OR_RETURN(const auto config, load(model_dir + "/config.json"));
    if (!config || !config->root().given("vision_config")) {
        return std::unique_ptr<const PictureProcessor>();
    }
    const std::string processor_path = model_dir + "/processor_config.json";
    const std::string picture_path = model_dir + "/preprocessor_config.json";
    ASSIGN_OR_RETURN(const auto processor, load(processor_path));
    ASSIGN_OR_RETURN(const auto picture, load(picture_path));
    std::optional<JsonValue> settings;
    if (processor) settings = processor->root().given("image_processor");
    if (!settings && picture) settings = picture->root();
    if (!settings) {
        return error(
            BATCHLLM_ERROR_MODEL_FORMAT,
            "%s: no such file, nor \"image_processor\" in %s: how this model wants pictures "
            "prepared is unknown",
            picture_path.c_str(), processor_path.c_str());
    }
    ASSIGN_OR_RETURN(const std::string model_type, config->root().string("model_type"));
    ASSIGN_OR_RETURN(const JsonValue kind, settings->at("image_processor_type"));
    ASSIGN_OR_RETURN(const std::string kind_name, kind.string());
    const ProcessorFamily *family = find_family(model_type, kind_name);
    if (family == nullptr) {
        return kind.unsupported("pictures of a model of type " + printable(model_type) +
                                " by this processor");
    }
    std::optional<JsonValue> outer;
    if (processor) outer = processor->root();
    return family->make({config->root(), outer, *settings, tokenizer, limits});
}

} // namespace batchllm
