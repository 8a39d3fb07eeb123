#include "text/conversation.h"

#include <algorithm>
#include <array>

#include "text/jinja/template.h"

namespace batchllm {
namespace {

using jinja::Dict;
using jinja::Heap;
using jinja::Value;

// Types of parts that are not text, which a template cannot turn into text. Templates recognise an image by the
// part's type, or by a member of that name.
constexpr std::array<std::string_view, 9> media_types = {"image",     "image_url",   "input_image",
                                                         "video",     "video_url",   "audio",
                                                         "audio_url", "input_audio", "file"};

// The texts of a content's parts as one; fails for parts that are not text.
Result<std::string> join_parts(const std::vector<JsonValue> &parts) {
    std::string joined;
    for (size_t i = 0; i < parts.size(); ++i) {
        ASSIGN_OR_RETURN(const JsonValue type, parts[i].at("type"));
        ASSIGN_OR_RETURN(const std::string name, type.string());
        if (name != "text") return type.fail("this template takes parts of type \"text\" alone");
        ASSIGN_OR_RETURN(const std::string part, parts[i].string("text"));
        if (i > 0) joined += '\n';
        joined += part;
    }
    return joined;
}

Status refuse_media(const JsonValue &part) {
    if (!part.is_object()) return {};
    const std::optional<JsonValue> type = part.find("type");
    const bool typed = type.has_value() && type->is_string();
    if (typed) {
        ASSIGN_OR_RETURN(const std::string name, type->string());
        if (std::find(media_types.begin(), media_types.end(), name) != media_types.end()) {
            return type->fail("parts of this type are not supported");
        }
    }
    for (const std::string_view media : media_types) {
        if (typed && media == "file") continue; // a part of another type may name a file
        if (const auto member = part.given(media)) {
            return member->fail("parts with such a member are not supported");
        }
    }
    return {};
}

using Pictures = std::vector<std::optional<std::string>>;

// Whether the part is a picture, as OpenAI's and transformers' conversations write one.
bool is_picture(const JsonValue &part) {
    if (!part.is_object()) return false;
    const std::optional<std::string_view> type =
        part.view().find("type").has_value() ? part.view().find("type")->string() : std::nullopt;
    if (type.has_value()) {
        return *type == "image" || *type == "image_url" || *type == "input_image";
    }
    return part.given("image").has_value() || part.given("image_url").has_value();
}

// The path or URL of a picture; none: the part has none.
Result<std::optional<std::string>> picture_name(const JsonValue &part) {
    std::optional<std::string> name;
    for (const std::string_view key : {"image_url", "image", "url", "path", "base64"}) {
        std::optional<JsonValue> value = part.given(key);
        if (!value.has_value()) continue;
        if (name.has_value()) return value->fail("the part names another picture already");
        if (value->is_object()) {
            ASSIGN_OR_RETURN(value, value->at("url"));
        }
        ASSIGN_OR_RETURN(std::string text, value->string());
        name = key == "base64" ? "data:;base64," + text : std::move(text);
    }
    return name;
}

Result<Value> read_parts(const std::vector<JsonValue> &parts, Pictures *pictures, Heap *heap) {
    std::vector<Value> items;
    for (const JsonValue &part : parts) {
        Value item;
        if (is_picture(part)) {
            ASSIGN_OR_RETURN(std::optional<std::string> name, picture_name(part));
            pictures->push_back(std::move(name));
            auto dict = std::make_unique<Dict>();
            dict->set(Value::string("type"), Value::string("image"));
            ASSIGN_OR_RETURN(item, heap->dict(std::move(dict)));
        } else {
            RETURN_IF_ERROR(refuse_media(part));
            ASSIGN_OR_RETURN(item, jinja::to_value(heap, part.view()));
        }
        items.push_back(item);
    }
    return heap->sequence(jinja::SequenceType::list, std::move(items));
}

Result<Value> read_content(const JsonValue &content, bool with_parts, Pictures *pictures,
                           Heap *heap) {
    if (!content.is_array()) {
        if (content.is_string() || content.is_object() || content.is_null()) {
            RETURN_IF_ERROR(refuse_media(content));
            return jinja::to_value(heap, content.view());
        }
        return content.fail("must be a string, a list of parts, an object or null");
    }
    ASSIGN_OR_RETURN(const std::vector<JsonValue> parts, content.elements());
    if (with_parts && pictures != nullptr && std::any_of(parts.begin(), parts.end(), is_picture)) {
        return read_parts(parts, pictures, heap);
    }
    for (const JsonValue &part : parts) RETURN_IF_ERROR(refuse_media(part));
    if (with_parts) return jinja::to_value(heap, content.view());
    ASSIGN_OR_RETURN(std::string joined, join_parts(parts));
    return heap->string(std::move(joined));
}

// Names of a message's reasoning, the first of which most templates read.
constexpr std::array<std::string_view, 3> reasoning_names = {"reasoning_content", "thinking",
                                                             "reasoning"};

// Gives a message's reasoning the names that templates read, in transformers' order.
std::unique_ptr<Dict> with_reasoning_names(std::unique_ptr<Dict> message) {
    const Value *reasoning = nullptr;
    for (const std::string_view name : reasoning_names) {
        if (reasoning == nullptr) reasoning = message->find(name);
    }
    if (reasoning == nullptr) return message;
    auto named = std::make_unique<Dict>();
    named->set(Value::string("thinking"), *reasoning);
    for (const auto &[key, value] : message->items) named->set(key, value);
    named->set(Value::string("reasoning_content"), *reasoning);
    return named;
}

// A message as it is given, without members that are null, as transformers passes it on.
Result<std::unique_ptr<Dict>> read_message(const JsonValue &message, bool with_parts,
                                           Pictures *pictures, Heap *heap) {
    ASSIGN_OR_RETURN(const auto members, message.members());
    ASSIGN_OR_RETURN(const JsonValue role, message.at("role"));
    RETURN_IF_ERROR(role.string().status());
    auto dict = std::make_unique<Dict>();
    for (const auto &[key, member] : members) {
        if (member.is_null()) continue;
        Value value;
        if (key == "content") {
            ASSIGN_OR_RETURN(value, read_content(member, with_parts, pictures, heap));
        } else {
            ASSIGN_OR_RETURN(value, jinja::to_value(heap, member.view()));
        }
        dict->set(Value::string(key), value);
    }
    return with_reasoning_names(std::move(dict));
}

Result<Value> marked(const Value &text, Heap *heap) {
    return heap->string(std::string(text.text()) + std::string(continue_mark));
}

// The parts, with the mark appended to the last one that has text.
Result<Value> mark_parts(const std::vector<Value> &parts, Conversation *conversation, Heap *heap) {
    std::vector<Value> marked_parts = parts;
    for (auto part = marked_parts.rbegin(); part != marked_parts.rend(); ++part) {
        if (part->is(jinja::Kind::string) && part->text().find("text") == std::string_view::npos) {
            continue;
        }
        if (!part->is(jinja::Kind::dict)) break;
        auto dict = std::make_unique<Dict>();
        for (const auto &[key, value] : part->dict().items) dict->set(key, value);
        const Value *text = dict->find("text");
        if (text == nullptr) continue;
        if (!text->is(jinja::Kind::string)) break;
        conversation->final_text = text->text();
        ASSIGN_OR_RETURN(const Value with_mark, marked(*text, heap));
        dict->set(Value::string("text"), with_mark);
        ASSIGN_OR_RETURN(*part, heap->dict(std::move(dict)));
        return heap->sequence(jinja::SequenceType::list, std::move(marked_parts));
    }
    return error(BATCHLLM_ERROR_ROW_TEMPLATE,
                 "continue_final_message: the last message has no text to go on with");
}

Status mark_message(Dict *message, Conversation *conversation, Heap *heap) {
    const std::string field = conversation->continued.front();
    const Value *found = message->find(field);
    if (found == nullptr) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE,
                     "continue_final_message: the last message has no \"%s\"", field.c_str());
    }
    const Value original = *found;
    if (std::find(reasoning_names.begin(), reasoning_names.end(), field) != reasoning_names.end()) {
        for (const std::string_view name : reasoning_names) {
            const Value *same = message->find(name);
            if (name != field && same != nullptr && jinja::equal(*same, original)) {
                conversation->continued.emplace_back(name);
            }
        }
    }
    Value with_mark;
    if (original.is_sequence(jinja::SequenceType::list)) {
        ASSIGN_OR_RETURN(with_mark, mark_parts(original.sequence().items, conversation, heap));
    } else if (original.is(jinja::Kind::string)) {
        conversation->final_text = original.text();
        ASSIGN_OR_RETURN(with_mark, marked(original, heap));
    } else {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE,
                     "continue_final_message: the last message's \"%s\" is no text", field.c_str());
    }
    for (const std::string &name : conversation->continued) {
        message->set(Value::string(name), with_mark); // the keys that are there remain
    }
    return {};
}

Status read_messages(const JsonValue &value, bool with_parts, Pictures *pictures,
                     Conversation *conversation, Heap *heap) {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> messages, value.elements());
    if (messages.empty()) return value.fail("a conversation needs at least one message");
    std::vector<Value> items;
    for (size_t i = 0; i < messages.size(); ++i) {
        ASSIGN_OR_RETURN(std::unique_ptr<Dict> message,
                         read_message(messages[i], with_parts, pictures, heap));
        if (i + 1 == messages.size() && !conversation->continued.empty()) {
            RETURN_IF_ERROR(mark_message(message.get(), conversation, heap));
        }
        ASSIGN_OR_RETURN(const Value made, heap->dict(std::move(message)));
        items.push_back(made);
    }
    ASSIGN_OR_RETURN(conversation->messages,
                     heap->sequence(jinja::SequenceType::list, std::move(items)));
    return {};
}

// A list of objects, or null.
Result<Value> read_objects(const JsonValue &value, Heap *heap) {
    if (value.is_null()) return Value::none();
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, value.elements());
    for (const JsonValue &item : items) {
        if (!item.is_object()) return item.fail("must be an object");
    }
    return jinja::to_value(heap, value.view());
}

Status read_continued(const JsonValue &value, Conversation *conversation) {
    if (value.is_null()) return {};
    if (value.is_string()) {
        ASSIGN_OR_RETURN(std::string field, value.string());
        if (field.empty()) return value.fail("must name a field of the message");
        conversation->continued = {std::move(field)};
        return {};
    }
    ASSIGN_OR_RETURN(const bool continues, value.boolean());
    if (continues) conversation->continued = {"content"};
    return {};
}

Status check_arguments(const JsonValue &value) {
    ASSIGN_OR_RETURN(const auto members, value.members());
    for (const auto &[key, member] : members) {
        if (key != "messages" && key != "tools" && key != "documents" &&
            key != "add_generation_prompt" && key != "continue_final_message" &&
            key != "chat_template") {
            continue;
        }
        return member.fail("stands beside \"chat_template_kwargs\", not in it");
    }
    return {};
}

} // namespace

bool has_tools(const JsonValue &root) { return root.given("tools").has_value(); }

Result<Conversation> read_conversation(const JsonValue &root, bool with_parts, Pictures *pictures,
                                       Heap *heap) {
    Conversation conversation;
    if (root.is_array()) {
        RETURN_IF_ERROR(read_messages(root, with_parts, pictures, &conversation, heap));
        return conversation;
    }
    if (!root.is_object()) {
        return root.fail("must be a list of messages, or an object with \"messages\"");
    }
    ASSIGN_OR_RETURN(const auto members, root.members());
    for (const auto &[key, value] : members) {
        if (key == "messages") {
            continue;
        } else if (key == "tools") {
            ASSIGN_OR_RETURN(conversation.tools, read_objects(value, heap));
        } else if (key == "documents") {
            ASSIGN_OR_RETURN(conversation.documents, read_objects(value, heap));
        } else if (key == "add_generation_prompt") {
            if (value.is_null()) continue;
            ASSIGN_OR_RETURN(conversation.add_generation_prompt, value.boolean());
        } else if (key == "continue_final_message") {
            RETURN_IF_ERROR(read_continued(value, &conversation));
        } else if (key == "chat_template_kwargs") {
            if (value.is_null()) continue;
            RETURN_IF_ERROR(check_arguments(value));
            conversation.arguments = value;
        } else {
            return value.fail("the key is not known");
        }
    }
    if (!conversation.continued.empty() && conversation.add_generation_prompt.value_or(false)) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE,
                     "add_generation_prompt and continue_final_message exclude each other");
    }
    ASSIGN_OR_RETURN(const JsonValue messages, root.at("messages"));
    RETURN_IF_ERROR(read_messages(messages, with_parts, pictures, &conversation, heap));
    return conversation;
}

} // namespace batchllm
