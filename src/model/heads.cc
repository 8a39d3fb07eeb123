#include "model/heads.h"

#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "model/config.h"

namespace batchllm {
namespace {

constexpr std::string_view text_suffix = "ForCausalLM";
constexpr std::string_view labels_suffix = "ForSequenceClassification";
constexpr std::string_view base_suffix = "Model";
constexpr int32_t most_labels = 1 << 20;

// "Llama" for LlamaForCausalLM; "Gemma3Text" for the text model beside a vision tower. Empty: the
// family has only the complete, generating model.
std::string stem_of(const Family &family) {
    std::string stem = family.class_name;
    if (!stem.ends_with(text_suffix)) return "";
    stem.resize(stem.size() - text_suffix.size());
    return std::string_view(family.model_type).ends_with("_text") ? stem + "Text" : stem;
}

// The number that a key of "id2label" spells, or -1. "00" is invalid: it would be a second 0.
int64_t label_number(std::string_view key) {
    int64_t number = -1;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), number);
    const bool whole = failure == std::errc() && end == key.data() + key.size();
    return whole && std::to_string(number) == key ? number : -1;
}

Status read_labels(const JsonValue &config, Model *model) {
    const auto names = config.given("id2label");
    if (!names) {
        ASSIGN_OR_RETURN(const int32_t count, read_count(config, "num_labels", 2, most_labels));
        for (int32_t i = 0; i < count; ++i) model->labels.push_back("LABEL_" + std::to_string(i));
        return {};
    }
    ASSIGN_OR_RETURN(const auto members, names->members());
    if (members.empty()) return names->fail("must name a label");
    model->labels.resize(members.size());
    // There are as many keys as numbers, all distinct, so each number occurs once.
    for (const auto &[key, value] : members) {
        const int64_t number = label_number(key);
        if (number < 0 || number >= static_cast<int64_t>(members.size())) {
            return value.fail("the keys must be the numbers from 0 to " +
                              std::to_string(members.size() - 1));
        }
        ASSIGN_OR_RETURN(model->labels[static_cast<size_t>(number)], value.string());
    }
    return {};
}

// A single label without a problem type either applies or does not, as in transformers' pipeline.
Status read_label_kind(const JsonValue &config, Model *model) {
    model->label_kind = model->labels.size() == 1 ? LabelKind::several : LabelKind::one_of;
    const auto type = config.given("problem_type");
    if (!type) return {};
    ASSIGN_OR_RETURN(const std::string name, type->string());
    if (name == "regression") {
        model->label_kind = LabelKind::value;
    } else if (name == "multi_label_classification") {
        model->label_kind = LabelKind::several;
    } else if (name != "single_label_classification") {
        return type->unsupported("only regression, single_label_classification and "
                                 "multi_label_classification are known");
    }
    return {};
}

} // namespace

std::optional<HeadKind> head_of_class(const Family &family, const std::string &class_name) {
    if (class_name == family.class_name) return HeadKind::text;
    const std::string stem = stem_of(family);
    if (stem.empty()) return std::nullopt;
    if (class_name == stem + std::string(labels_suffix)) return HeadKind::labels;
    if (class_name == stem + std::string(base_suffix)) return HeadKind::none;
    return std::nullopt;
}

std::string class_names(const Family &family) {
    const std::string stem = stem_of(family);
    if (stem.empty()) return std::string(family.class_name) + " goes";
    return std::string(family.class_name) + ", " + stem + std::string(labels_suffix) + " and " +
           stem + std::string(base_suffix) + " go";
}

std::string base_name(const std::string &name) {
    constexpr std::string_view prefix = "model.";
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

Status set_head(const JsonValue &config, const Family &family, HeadKind kind, Model *model) {
    if (!stem_of(family).empty()) {
        std::set<std::string> parts; // "embed_tokens.", "layers.", "norm."
        for_each_tensor(std::as_const(*model), [&](const Tensor &tensor) {
            const std::string name = base_name(tensor.name);
            if (name.size() < tensor.name.size()) parts.insert(name.substr(0, name.find('.') + 1));
        });
        for (const std::string &part : parts) model->renamed.push_back({part, "model." + part});
    }
    if (kind == HeadKind::text) return {};
    model->head = {};
    model->tied = false;
    model->passed_over.emplace_back("lm_head.");
    if (kind == HeadKind::none) return {};
    RETURN_IF_ERROR(read_labels(config, model));
    model->classifier =
        named_weight("score", static_cast<int64_t>(model->labels.size()), model->hidden);
    return read_label_kind(config, model);
}

} // namespace batchllm
