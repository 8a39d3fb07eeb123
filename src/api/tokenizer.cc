// batchllm_tokenizer_*: text to tokens and back, a column at a time.
#include "api/tokenizer.h"

#include <algorithm>
#include <cinttypes>
#include <new>

#include "api/boundary.h"
#include "api/column.h"
#include "base/thread_pool.h"

using namespace batchllm;
using api::ColumnBatch;
using api::guard;
using api::guard_out;
using api::need;

namespace {

Status check_flags(uint32_t flags, uint32_t known) {
    if ((flags & ~known) == 0) return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED, "flags has bits %#" PRIx32 " that are not known",
                 flags & ~known);
}

Status check_threads(int32_t threads) {
    if (threads >= 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "threads is %d: it cannot be negative", threads);
}

// No more threads than items, and none for a single item.
int32_t threads_for(int64_t items, int32_t threads) {
    if (items <= 1) return 1;
    const auto most = static_cast<int32_t>(std::min<int64_t>(items, ThreadPool::most_threads));
    return threads == 0 ? std::min(most, ThreadPool::available()) : std::min(threads, most);
}

// Runs convert(i, &item) -> Status for n items on threads, in blocks, and joins the items. An item that
// fails is empty and has its status.
template <typename Item, typename Convert> std::unique_ptr<ColumnBatch>
convert_column(int64_t n, int32_t threads, Item ColumnBatch::*joined, Convert convert) {
    constexpr int64_t block_items = 4096;
    auto batch = std::make_unique<ColumnBatch>();
    batch->all_offsets.reserve(static_cast<size_t>(n) + 1);
    batch->all_offsets.push_back(0);
    batch->all_statuses.assign(static_cast<size_t>(n), BATCHLLM_OK);
    batch->all_error_offsets.reserve(static_cast<size_t>(n) + 1);
    batch->all_error_offsets.push_back(0);
    ThreadPool pool(threads_for(n, threads));
    std::vector<Item> block(static_cast<size_t>(std::min(block_items, n)));
    std::vector<std::string> errors(block.size());
    for (int64_t begin = 0; begin < n; begin += block_items) {
        const int64_t count = std::min(block_items, n - begin);
        pool.parallel_for(count, [&](int64_t i, int32_t) {
            Item &item = block[static_cast<size_t>(i)];
            std::string &error = errors[static_cast<size_t>(i)];
            item.clear();
            error.clear();
            const Status status = convert(begin + i, &item);
            if (status.ok()) return;
            // A failure of the whole call, not of the item.
            if (status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
            item.clear();
            error = status.message();
            batch->all_statuses[static_cast<size_t>(begin + i)] = status.code();
        });
        Item &all = *batch.*joined;
        for (int64_t i = 0; i < count; ++i) {
            const Item &item = block[static_cast<size_t>(i)];
            all.insert(all.end(), item.begin(), item.end());
            batch->all_offsets.push_back(static_cast<int64_t>(all.size()));
            batch->all_errors += errors[static_cast<size_t>(i)];
            batch->all_error_offsets.push_back(static_cast<int64_t>(batch->all_errors.size()));
        }
    }
    batch->struct_size = sizeof(batchllm_column);
    batch->reserved = 0;
    batch->count = n;
    batch->offsets = batch->all_offsets.data();
    batch->statuses = batch->all_statuses.data();
    batch->error_offsets = batch->all_error_offsets.data();
    batch->errors = batch->all_errors.data();
    batch->tokens = nullptr;
    batch->text = nullptr;
    return batch;
}

} // namespace

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
        auto batch = convert_column(
            n, threads, &ColumnBatch::all_tokens, [&](int64_t i, std::vector<int32_t> *tokens) {
                const std::span<const char> item = column[i];
                return tokenizer->tokenizer->encode({item.data(), item.size()}, options, tokens);
            });
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
        auto batch = convert_column(
            n, threads, &ColumnBatch::all_text, [&](int64_t i, std::string *text) -> Status {
                ASSIGN_OR_RETURN(*text, tokenizer->tokenizer->decode(column[i], skip_special));
                return {};
            });
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
        auto batch =
            convert_column(n, threads, &ColumnBatch::all_text, [&](int64_t i, std::string *text) {
                const std::span<const char> item = column[i];
                return tokenizer->chat->render({item.data(), item.size()}, {prompts, refusing, now},
                                               text);
            });
        batch->text = batch->all_text.data();
        *out = batch.release();
        return {};
    });
}

void batchllm_column_free(batchllm_column *column) { delete static_cast<ColumnBatch *>(column); }

} // extern "C"
