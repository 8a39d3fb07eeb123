// batchllm tokenize: {"text": ".."} lines on stdin -> {"tokens": [..]} lines on stdout, or back.
// There is one answer per line, in the order of the lines, as soon as the input pauses, so the
// program can be driven through two pipes.
#include "cli/commands.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include "cli/api.h"
#include "cli/conversation_text.h"
#include "cli/json_text.h"
#include "cli/line_json.h"
#include "cli/line_reader.h"
#include "cli/row_parameters.h"
#include "cli/row_pictures.h"

namespace batchllm::cli {
namespace {

constexpr size_t chunk_bytes = size_t{1} << 20;

struct Item {
    int64_t line = 0;
    std::string id; // JSON; empty: the line has no id
    RowError error; // code empty: none
    std::string text;
    bool is_chat = false; // text is a conversation's JSON
    std::vector<std::string> images;
    std::vector<int32_t> tokens;
    bool done = false; // it has its tokens
};

class ItemReader {
  public:
    explicit ItemReader(bool decode) : decode_(decode) {}

    Item read(const Line &line) {
        Item item;
        item.line = line.number;
        if (line.too_long) {
            item.error = {"ROW_LINE_TOO_LONG", "the line is longer than --max-line-bytes"};
            return item;
        }
        JsonView object;
        std::optional<LineId> own_id;
        item.error = parser_.parse(line.text, &object, &own_id);
        if (own_id.has_value()) item.id = own_id->id;
        if (!failed(item.error)) item.error = check_keys_differ(*object.members());
        if (!failed(item.error)) read_members(*object.members(), &item);
        return item;
    }

  private:
    void read_members(const JsonMembers &members, Item *item) const {
        const std::string_view wanted = decode_ ? "tokens" : "text";
        bool found = false;
        ConversationText conversation;
        for (const auto [key, value] : members) {
            if (key == "id") {
                if (item->id.empty()) item->id = value.text();
            } else if (key == wanted) {
                found = true;
                if (!(decode_ ? read_tokens(value, item) : read_text(value, item))) {
                    item->error = format_error(decode_ ? "\"tokens\" must be a list of token ids"
                                                       : "\"text\" must be a string");
                }
            } else if (!decode_ && conversation.take(key, value)) {
                continue;
            } else if (!decode_ && key == "images") {
                item->error = read_images(key, value, &item->images);
            } else if (!is_own_key(key)) {
                item->error = format_error("unknown key " + in_quotes(key));
            }
        }
        if (!item->error.code.empty()) return;
        if (conversation.has_messages() && !found) {
            item->is_chat = true;
            item->text = conversation.json();
        } else if (conversation.has_messages() || !conversation.other_key().empty()) {
            item->error = format_error("\"messages\" is given beside \"text\", or is missing");
        } else if (!found) {
            item->error = format_error(in_quotes(wanted) + " is missing");
        }
    }
    static bool read_text(JsonView value, Item *item) {
        const std::optional<std::string_view> text = value.string();
        if (!text.has_value()) return false;
        item->text = *text;
        return true;
    }
    static bool read_tokens(JsonView value, Item *item) {
        const std::optional<JsonItems> list = value.items();
        if (!list.has_value()) return false;
        item->tokens.clear();
        for (const JsonView entry : *list) {
            const std::optional<int64_t> token = entry.integer();
            if (!token.has_value() && !entry.is_integer()) return false;
            // No vocabulary has such a token, so the library reports -1 as unknown.
            const bool is_id = token.has_value() && *token >= 0 && *token <= INT32_MAX;
            item->tokens.push_back(is_id ? static_cast<int32_t>(*token) : -1);
        }
        return true;
    }

    bool decode_;
    LineParser parser_;
};

Status write_stdout(std::string_view text) {
    while (!text.empty()) {
        const ssize_t part = ::write(STDOUT_FILENO, text.data(), text.size());
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) {
            return error(BATCHLLM_ERROR_IO, "stdout: cannot write: %s", std::strerror(errno));
        }
        text.remove_prefix(static_cast<size_t>(part));
    }
    return {};
}

// The error for item i.
RowError column_error(const batchllm_column &column, int64_t i) {
    return {row_error_code(column.statuses[i]),
            std::string(column.errors + column.error_offsets[i],
                        column.errors + column.error_offsets[i + 1])};
}

// Turns the conversations among the items into text.
Status apply_chat_template(const batchllm_tokenizer *tokenizer, const TokenizeOptions &options,
                           std::vector<Item> *items) {
    std::vector<Item *> chats;
    std::string text;
    std::vector<int64_t> offsets = {0};
    for (Item &item : *items) {
        if (!item.is_chat || item.done) continue;
        chats.push_back(&item);
        text += item.text;
        offsets.push_back(static_cast<int64_t>(text.size()));
    }
    if (chats.empty()) return {};
    batchllm_column *raw = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_apply_chat_template(
        tokenizer, static_cast<int64_t>(chats.size()), text.data(), offsets.data(),
        options.no_parse_special ? BATCHLLM_CHAT_REFUSE_SPECIAL : 0u, options.threads, &raw)));
    const ColumnHandle column(raw);
    for (int64_t i = 0; i < column->count; ++i) {
        Item &item = *chats[static_cast<size_t>(i)];
        if (column->statuses[i] != BATCHLLM_OK) item.error = column_error(*column, i);
        item.text.assign(column->text + column->offsets[i], column->text + column->offsets[i + 1]);
    }
    return {};
}

// Encodes the valid items of this kind with their pictures: those that have some, and conversations, which
// may bring their own.
Status encode_pictures(batchllm_pictures *pictures, const TokenizeOptions &options, bool chat,
                       std::vector<Item> *items) {
    std::vector<Item *> wanted;
    std::string text, images;
    std::vector<int64_t> offsets = {0}, image_offsets = {0}, rows = {0};
    for (Item &item : *items) {
        if (!item.error.code.empty() || item.is_chat != chat || (!chat && item.images.empty()))
            continue;
        wanted.push_back(&item);
        text += item.text;
        offsets.push_back(static_cast<int64_t>(text.size()));
        for (const std::string &image : item.images) {
            images += image;
            image_offsets.push_back(static_cast<int64_t>(images.size()));
        }
        rows.push_back(static_cast<int64_t>(image_offsets.size()) - 1);
    }
    if (wanted.empty()) return {};
    const std::vector<uint8_t> kinds(image_offsets.size() - 1, BATCHLLM_PICTURE_NAME);
    batchllm_picture_column given{};
    given.struct_size = sizeof given;
    given.chat = chat ? 1 : 0;
    given.rows = rows.data();
    given.bytes = reinterpret_cast<const uint8_t *>(images.data());
    given.offsets = image_offsets.data();
    given.kinds = kinds.data();
    const uint32_t flags = (!options.no_special && !chat ? BATCHLLM_ENCODE_ADD_SPECIAL : 0u) |
                           (!options.no_parse_special ? BATCHLLM_ENCODE_PARSE_SPECIAL : 0u);
    batchllm_column *raw = nullptr;
    RETURN_IF_ERROR(call_status(
        batchllm_pictures_encode(pictures, static_cast<int64_t>(wanted.size()), text.data(),
                                 offsets.data(), &given, flags, options.threads, &raw)));
    const ColumnHandle column(raw);
    for (int64_t i = 0; i < column->count; ++i) {
        Item &item = *wanted[static_cast<size_t>(i)];
        item.done = true;
        if (column->statuses[i] != BATCHLLM_OK) item.error = column_error(*column, i);
        item.tokens.assign(column->tokens + column->offsets[i],
                           column->tokens + column->offsets[i + 1]);
    }
    return {};
}

// Encodes or decodes the valid items of this kind. If an item fails, that becomes its error.
Status convert(const batchllm_tokenizer *tokenizer, const TokenizeOptions &options, bool chat,
               std::vector<Item> *items) {
    std::vector<Item *> sound;
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets = {0};
    for (Item &item : *items) {
        if (!item.error.code.empty() || item.is_chat != chat || item.done) continue;
        sound.push_back(&item);
        text += item.text;
        tokens.insert(tokens.end(), item.tokens.begin(), item.tokens.end());
        offsets.push_back(static_cast<int64_t>(options.decode ? tokens.size() : text.size()));
    }
    if (sound.empty()) return {};
    const auto count = static_cast<int64_t>(sound.size());
    batchllm_column *raw = nullptr;
    if (options.decode) {
        const uint32_t flags = options.keep_special ? 0u : BATCHLLM_DECODE_SKIP_SPECIAL;
        RETURN_IF_ERROR(call_status(batchllm_tokenizer_decode(
            tokenizer, count, tokens.data(), offsets.data(), flags, options.threads, &raw)));
    } else {
        const bool adds = !options.no_special && !chat;
        const bool parses = !options.no_parse_special || chat;
        const uint32_t flags = (adds ? BATCHLLM_ENCODE_ADD_SPECIAL : 0u) |
                               (parses ? BATCHLLM_ENCODE_PARSE_SPECIAL : 0u);
        RETURN_IF_ERROR(call_status(batchllm_tokenizer_encode(
            tokenizer, count, text.data(), offsets.data(), flags, options.threads, &raw)));
    }
    const ColumnHandle column(raw);
    for (int64_t i = 0; i < count; ++i) {
        Item &item = *sound[static_cast<size_t>(i)];
        const int64_t begin = column->offsets[i], end = column->offsets[i + 1];
        if (column->statuses[i] != BATCHLLM_OK) {
            item.error = column_error(*column, i);
        } else if (options.decode) {
            item.text.assign(column->text + begin, static_cast<size_t>(end - begin));
        } else {
            item.tokens.assign(column->tokens + begin, column->tokens + end);
        }
    }
    return {};
}

void append_item(std::string *out, const Item &item, bool decode) {
    JsonObject object(out);
    if (!item.id.empty()) object.raw("id", item.id);
    if (!item.error.code.empty()) {
        object.key("error");
        JsonObject error(out);
        error.field("code", std::string_view(item.error.code))
            .field("message", std::string_view(item.error.message))
            .field("line", item.line);
        error.close();
    } else if (decode) {
        object.field("text", std::string_view(item.text));
    } else {
        object.key("tokens");
        append_json_list(out, std::span<const int32_t>(item.tokens));
    }
    object.close();
    *out += '\n';
}

Status tokenize(const TokenizeOptions &options, const std::atomic<bool> &interrupted,
                int64_t *failed) {
    batchllm_tokenizer *created = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_create(options.model.c_str(), &created)));
    const TokenizerHandle tokenizer(created);
    PicturesHandle pictures;
    if (!options.decode) {
        ASSIGN_OR_RETURN(pictures, open_pictures(options.model, "-", options.images));
    }
    ASSIGN_OR_RETURN(LineReader input, LineReader::open("-", options.max_line_bytes, &interrupted));
    ItemReader reader(options.decode);
    bool more = true;
    while (more && !interrupted.load()) {
        std::vector<Item> items;
        size_t bytes = 0;
        while (more && bytes < chunk_bytes) {
            Line line;
            ASSIGN_OR_RETURN(more, input.next(&line));
            if (!more) break;
            if (!line.blank()) items.push_back(reader.read(line));
            bytes += line.text.size() + 1;
            if (!input.line_buffered()) break;
        }
        if (items.empty()) continue;
        for (const bool chat : {false, true}) {
            if (pictures == nullptr) break;
            RETURN_IF_ERROR(encode_pictures(pictures.get(), options, chat, &items));
        }
        for (Item &item : items) {
            if (item.images.empty() || item.done || !item.error.code.empty()) continue;
            item.error = {row_error_code(BATCHLLM_ERROR_ROW_PICTURE),
                          "the row has pictures, and the model reads text alone"};
        }
        RETURN_IF_ERROR(apply_chat_template(tokenizer.get(), options, &items));
        for (const bool chat : {false, true}) {
            RETURN_IF_ERROR(convert(tokenizer.get(), options, chat, &items));
        }
        std::string out;
        for (const Item &item : items) {
            append_item(&out, item, options.decode);
            if (!item.error.code.empty()) ++*failed;
        }
        RETURN_IF_ERROR(write_stdout(out));
    }
    return {};
}

} // namespace

int tokenize_command(const TokenizeOptions &options, const std::atomic<bool> &interrupted) try {
    int64_t failed = 0;
    const Status status = tokenize(options, interrupted, &failed);
    if (!status.ok()) return report(status.message());
    if (interrupted.load()) return exit_interrupted;
    return failed > 0 ? exit_row_errors : exit_ok;
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
