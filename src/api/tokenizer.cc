// batchllm_tokenizer_*: text to tokens and back, a column at a time.
#include "api/tokenizer.h"

#include "api/boundary.h"
#include "api/convert_column.h"

using namespace batchllm;
using api::check_flags;
using api::check_threads;
using api::ColumnBatch;
using api::convert_column;
using api::guard;
using api::guard_out;
using api::need;

extern "C" {

int32_t batchllm_tokenizer_create(const char *path, batchllm_tokenizer **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("path", path));
        auto handle = std::make_unique<batchllm_tokenizer>();
        ASSIGN_OR_RETURN(handle->tokenizer, Tokenizer::load(path));
        ASSIGN_OR_RETURN(handle->chat, ChatTemplate::load(path));
        *out = handle.release();
        return {};
    });
}

void batchllm_tokenizer_destroy(batchllm_tokenizer *tokenizer) { delete tokenizer; }

uint64_t batchllm_tokenizer_fingerprint(const batchllm_tokenizer *tokenizer) {
    return tokenizer == nullptr ? 0 : tokenizer->tokenizer->fingerprint();
}

int64_t batchllm_tokenizer_vocabulary(const batchllm_tokenizer *tokenizer) {
    return tokenizer == nullptr ? 0 : tokenizer->tokenizer->vocabulary();
}

int32_t batchllm_tokenizer_encode(const batchllm_tokenizer *tokenizer, int64_t n, const char *text,
                                  const int64_t *offsets, uint32_t flags, int32_t threads,
                                  batchllm_column **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("tokenizer", tokenizer));
        RETURN_IF_ERROR(check_column("text", text, "offsets", offsets, n));
        RETURN_IF_ERROR(
            check_flags(flags, BATCHLLM_ENCODE_ADD_SPECIAL | BATCHLLM_ENCODE_PARSE_SPECIAL));
        RETURN_IF_ERROR(check_threads(threads));
        const EncodeOptions options{(flags & BATCHLLM_ENCODE_ADD_SPECIAL) != 0,
                                    (flags & BATCHLLM_ENCODE_PARSE_SPECIAL) != 0};
        const Column<char> column{n, text, offsets};
        ASSIGN_OR_RETURN(auto batch,
                         convert_column(n, threads, &ColumnBatch::all_tokens,
                                        [&](int64_t i, std::vector<int32_t> *tokens) {
                                            const std::span<const char> item = column[i];
                                            return tokenizer->tokenizer->encode(
                                                {item.data(), item.size()}, options, tokens);
                                        }));
        batch->tokens = batch->all_tokens.data();
        *out = batch.release();
        return {};
    });
}

int32_t batchllm_tokenizer_decode(const batchllm_tokenizer *tokenizer, int64_t n,
                                  const int32_t *tokens, const int64_t *offsets, uint32_t flags,
                                  int32_t threads, batchllm_column **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("tokenizer", tokenizer));
        RETURN_IF_ERROR(check_column("tokens", tokens, "offsets", offsets, n));
        RETURN_IF_ERROR(check_flags(flags, BATCHLLM_DECODE_SKIP_SPECIAL));
        RETURN_IF_ERROR(check_threads(threads));
        const bool skip_special = (flags & BATCHLLM_DECODE_SKIP_SPECIAL) != 0;
        const Column<int32_t> column{n, tokens, offsets};
        ASSIGN_OR_RETURN(
            auto batch,
            convert_column(
                n, threads, &ColumnBatch::all_text, [&](int64_t i, std::string *text) -> Status {
                    ASSIGN_OR_RETURN(*text, tokenizer->tokenizer->decode(column[i], skip_special));
                    return {};
                }));
        batch->text = batch->all_text.data();
        *out = batch.release();
        return {};
    });
}

int32_t batchllm_tokenizer_apply_chat_template(const batchllm_tokenizer *tokenizer, int64_t n,
                                               const char *conversations, const int64_t *offsets,
                                               uint32_t flags, int32_t threads,
                                               batchllm_column **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("tokenizer", tokenizer));
        RETURN_IF_ERROR(check_column("conversations", conversations, "offsets", offsets, n));
        RETURN_IF_ERROR(
            check_flags(flags, BATCHLLM_CHAT_NO_GENERATION_PROMPT | BATCHLLM_CHAT_REFUSE_SPECIAL));
        RETURN_IF_ERROR(check_threads(threads));
        const bool prompts = (flags & BATCHLLM_CHAT_NO_GENERATION_PROMPT) == 0;
        const Tokenizer *refusing =
            (flags & BATCHLLM_CHAT_REFUSE_SPECIAL) != 0 ? tokenizer->tokenizer.get() : nullptr;
        const std::tm now = local_time_now();
        const Column<char> column{n, conversations, offsets};
        ASSIGN_OR_RETURN(
            auto batch,
            convert_column(n, threads, &ColumnBatch::all_text, [&](int64_t i, std::string *text) {
                const std::span<const char> item = column[i];
                return tokenizer->chat->render({item.data(), item.size()}, {prompts, refusing, now},
                                               text);
            }));
        batch->text = batch->all_text.data();
        *out = batch.release();
        return {};
    });
}

void batchllm_column_free(batchllm_column *column) { delete static_cast<ColumnBatch *>(column); }

} // extern "C"
