#include "text/chat_template.h"

#include <algorithm>
#include <ctime>

#include "base/file.h"
#include "base/printable.h"
#include "text/conversation.h"
#include "text/jinja/python_text.h"

namespace batchllm {
namespace {

constexpr size_t most_template_bytes = size_t{4} << 20;
constexpr char config_name[] = "tokenizer_config.json";
constexpr char tokens_name[] = "special_tokens_map.json";
constexpr char template_name[] = "chat_template.jinja";
constexpr char tool_template_name[] = "additional_chat_templates/tool_use.jinja";
constexpr char legacy_name[] = "chat_template.json";

Result<std::string> template_directory(const std::string &path) {
    ASSIGN_OR_RETURN(const bool of_directory, is_directory(path));
    if (of_directory) return path;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

// Cuts a rendered conversation that is to be continued, as transformers does.
Status cut_at_mark(std::string_view final_text, size_t begin, std::string *out) {
    const std::string_view rendered = std::string_view(*out).substr(begin);
    const std::string_view bare = jinja::right_strip(continue_mark);
    const size_t place = rendered.rfind(bare);
    if (place == std::string_view::npos ||
        jinja::find(rendered, jinja::strip(final_text)) == std::string_view::npos) {
        return error(
            BATCHLLM_ERROR_ROW_TEMPLATE,
            "continue_final_message: the template does not print the last message as it is");
    }
    std::string_view kept = rendered.substr(0, place);
    // The template has trimmed the message, so the text before its end is trimmed as well.
    if (!rendered.substr(place).starts_with(continue_mark)) kept = jinja::right_strip(kept);
    out->resize(begin + kept.size());
    return {};
}

// The text of a message's parts, one after another, as a template may print them.
Result<std::string> text_of_parts(const std::vector<JsonValue> &parts, bool stripped) {
    std::string all;
    for (const JsonValue &part : parts) {
        std::optional<JsonValue> text = part;
        if (part.is_object()) text = part.find("text");
        if (!text || !text->is_string()) continue;
        ASSIGN_OR_RETURN(const std::string one, text->string());
        all += stripped ? jinja::strip(one) : std::string_view(one);
    }
    return all;
}

// Fails if a string in the value spells a special token, or several parts of a message do together.
Status refuse_special(const JsonValue &value, const Tokenizer &tokenizer) {
    if (value.is_string()) {
        ASSIGN_OR_RETURN(const std::string text, value.string());
        const int32_t token = tokenizer.find_special(text);
        if (token < 0) return {};
        return value.fail("it spells special token " + std::to_string(token));
    }
    if (value.is_array()) {
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, value.elements());
        for (const JsonValue &item : items) RETURN_IF_ERROR(refuse_special(item, tokenizer));
        if (items.size() < 2) return {};
        for (const bool stripped : {false, true}) {
            ASSIGN_OR_RETURN(const std::string all, text_of_parts(items, stripped));
            const int32_t token = tokenizer.find_special(all);
            if (token < 0) continue;
            return value.fail("its parts together spell special token " + std::to_string(token));
        }
    }
    if (!value.is_object()) return {};
    ASSIGN_OR_RETURN(const auto members, value.members());
    for (const auto &[key, member] : members) {
        if (tokenizer.find_special(key) >= 0) return member.fail("its key spells a special token");
        RETURN_IF_ERROR(refuse_special(member, tokenizer));
    }
    return {};
}

} // namespace

std::tm local_time_now() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return local;
}

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::load(const std::string &path) {
    auto made = std::make_unique<ChatTemplate>();
    ASSIGN_OR_RETURN(const std::string directory, template_directory(path));
    made->problem_ = made->read_files(directory);
    if (is_failure_of_process(made->problem_.code())) return made->problem_;
    if (made->problem_.ok() && made->templates_.empty()) {
        made->problem_ =
            error(BATCHLLM_ERROR_ROW_TEMPLATE,
                  "the model has no chat template: there is none in %s, %s and %s of %s",
                  template_name, config_name, legacy_name, directory.c_str());
    }
    return std::unique_ptr<const ChatTemplate>(std::move(made));
}

std::unique_ptr<const ChatTemplate>
ChatTemplate::from_source(const std::string &name, std::string source, SpecialTokens tokens) {
    auto made = std::make_unique<ChatTemplate>();
    made->problem_ = made->add("default", name, std::move(source));
    made->special_tokens_ = std::move(tokens);
    return made;
}

Status ChatTemplate::read_files(const std::string &directory) {
    for (const auto &[name, file] :
         {std::pair("default", template_name), std::pair("tool_use", tool_template_name)}) {
        const std::string path = directory + "/" + file;
        ASSIGN_OR_RETURN(const bool there, file_exists(path));
        if (!there) continue;
        ASSIGN_OR_RETURN(std::string source, read_file(path, most_template_bytes));
        RETURN_IF_ERROR(add(name, path, std::move(source)));
    }
    RETURN_IF_ERROR(read_config(directory, templates_.empty()));
    const std::string legacy = directory + "/" + legacy_name;
    if (!templates_.empty()) return {};
    ASSIGN_OR_RETURN(const bool there, file_exists(legacy));
    if (!there) return {};
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(legacy, BATCHLLM_ERROR_ROW_TEMPLATE));
    ASSIGN_OR_RETURN(const JsonValue value, document.root().at("chat_template"));
    return read_template(value, legacy);
}

// Reads tokenizer_config.json, and special_tokens_map.json in the cases in which transformers reads it.
Status ChatTemplate::read_config(const std::string &directory, bool with_templates) {
    const std::string config = directory + "/" + config_name;
    bool complete = false;
    ASSIGN_OR_RETURN(const bool has_config, file_exists(config));
    if (has_config) {
        ASSIGN_OR_RETURN(const JsonDocument document,
                         JsonDocument::load(config, BATCHLLM_ERROR_ROW_TEMPLATE));
        const JsonValue root = document.root();
        RETURN_IF_ERROR(read_special_tokens(root));
        complete = root.find("added_tokens_decoder").has_value();
        const std::optional<JsonValue> value = root.given("chat_template");
        if (with_templates && value.has_value()) {
            RETURN_IF_ERROR(read_template(*value, config));
        }
    }
    const std::string tokens = directory + "/" + tokens_name;
    if (complete) return {};
    ASSIGN_OR_RETURN(const bool has_tokens, file_exists(tokens));
    if (!has_tokens) return {};
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::load(tokens, BATCHLLM_ERROR_ROW_TEMPLATE));
    return read_special_tokens(document.root());
}

// A template, or a list of templates with names.
Status ChatTemplate::read_template(const JsonValue &value, const std::string &file) {
    if (value.is_string()) {
        ASSIGN_OR_RETURN(std::string source, value.string());
        return add("default", file, std::move(source));
    }
    ASSIGN_OR_RETURN(const std::vector<JsonValue> entries, value.elements());
    for (const JsonValue &entry : entries) {
        ASSIGN_OR_RETURN(std::string name, entry.string("name"));
        ASSIGN_OR_RETURN(std::string source, entry.string("template"));
        // The others can only be chosen by name, which is not supported here.
        if (name != "default" && name != "tool_use") continue;
        RETURN_IF_ERROR(add(std::move(name), file, std::move(source)));
    }
    return {};
}

Status ChatTemplate::add(std::string name, std::string file, std::string source) {
    if (source.size() > most_template_bytes) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE, "%s: the chat template is longer than %zu bytes",
                     file.c_str(), most_template_bytes);
    }
    if (!is_utf8(source)) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE, "%s: the chat template is not valid UTF-8",
                     file.c_str());
    }
    Result<jinja::Template> compiled = jinja::Template::parse(source);
    if (!compiled.ok()) {
        return std::move(compiled).status().within(file + ": chat template \"" + name + "\"");
    }
    templates_.push_back(
        {std::move(name), std::move(file), std::move(source), std::move(compiled).value()});
    return {};
}

// Members "..._token", and those of an object "extra_special_tokens", which names further ones: a text, or an object
// with the text in "content".
Status ChatTemplate::read_special_tokens(const JsonValue &config) {
    const std::optional<JsonMembers> members = config.view().members();
    if (!members.has_value()) return config.fail("must be an object");
    std::vector<std::pair<std::string_view, JsonValue>> named;
    for (const auto [key, value] : *members) {
        if (key != "extra_special_tokens" && !key.ends_with("_token")) continue;
        ASSIGN_OR_RETURN(const JsonValue member, config.at(key));
        if (key.ends_with("_token")) {
            named.emplace_back(key, member);
        } else if (member.is_object()) {
            ASSIGN_OR_RETURN(const auto further, member.members());
            for (const auto &[name, token] : further) named.emplace_back(name, token);
        }
    }
    for (const auto &[key, member] : named) {
        JsonValue content = member;
        if (member.is_object()) {
            if (!member.find("content").has_value()) continue;
            ASSIGN_OR_RETURN(content, member.at("content"));
        }
        if (!content.is_string()) continue;
        ASSIGN_OR_RETURN(std::string text, content.string());
        std::erase_if(special_tokens_,
                      [&name = key](const auto &known) { return known.first == name; });
        special_tokens_.emplace_back(key, std::move(text));
    }
    return {};
}

Result<const ChatTemplate::Named *> ChatTemplate::choose(bool tools) const {
    const Named *chosen = nullptr;
    for (const Named &named : templates_) {
        if (named.name == "default" && chosen == nullptr) chosen = &named;
        if (named.name == "tool_use" && tools) chosen = &named;
    }
    if (chosen != nullptr) return chosen;
    return error(BATCHLLM_ERROR_ROW_TEMPLATE, "%s: there is no chat template named \"default\"",
                 templates_.front().file.c_str());
}

Status ChatTemplate::render(std::string_view text, const Options &options, std::string *out) const {
    RETURN_IF_ERROR(problem_);
    if (!is_utf8(text)) {
        return error(BATCHLLM_ERROR_ROW_INVALID_UTF8, "the conversation is not valid UTF-8");
    }
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse(text, "conversation", BATCHLLM_ERROR_ROW_TEMPLATE));
    const JsonValue root = document.root();
    if (options.refusing != nullptr) RETURN_IF_ERROR(refuse_special(root, *options.refusing));
    ASSIGN_OR_RETURN(const Named *const chosen, choose(has_tools(root)));
    jinja::Evaluator evaluator(jinja::limits_for(text.size()), options.now);
    ASSIGN_OR_RETURN(const Conversation conversation,
                     read_conversation(root, chosen->compiled.reads_content_parts(),
                                       options.pictures, &evaluator.heap()));
    const std::vector<std::string> &continued = conversation.continued;
    if (!continued.empty() &&
        std::none_of(continued.begin(), continued.end(), [chosen](const std::string &field) {
            return chosen->source.find(field) != std::string::npos;
        })) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE,
                     "continue_final_message: the chat template does not read \"%s\"",
                     continued.front().c_str());
    }
    evaluator.set("messages", conversation.messages);
    evaluator.set("tools", conversation.tools);
    evaluator.set("documents", conversation.documents);
    const bool prompts = conversation.continued.empty() &&
                         conversation.add_generation_prompt.value_or(options.add_generation_prompt);
    evaluator.set("add_generation_prompt", jinja::Value::boolean(prompts));
    for (const auto &[name, token] : special_tokens_) {
        evaluator.set(name, jinja::Value::string(token));
    }
    if (conversation.arguments.has_value()) {
        ASSIGN_OR_RETURN(const auto arguments, conversation.arguments->members());
        for (const auto &[name, argument] : arguments) {
            ASSIGN_OR_RETURN(const jinja::Value value,
                             jinja::to_value(&evaluator.heap(), argument.view()));
            evaluator.set(name, value);
        }
    }
    const size_t begin = out->size();
    Status status = chosen->compiled.render(&evaluator, out);
    if (!status.ok()) return std::move(status).within("chat template");
    if (conversation.continued.empty()) return {};
    status = cut_at_mark(conversation.final_text, begin, out);
    if (!status.ok()) out->resize(begin);
    return status;
}

} // namespace batchllm
