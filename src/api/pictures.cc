// batchllm_pictures_*: the pictures of rows.
#include "api/pictures.h"

#include <cinttypes>

#include "api/boundary.h"
#include "api/convert_column.h"
#include "api/engine.h"
#include "base/file.h"

using namespace batchllm;
using api::ColumnBatch;
using api::guard;
using api::guard_out;
using api::need;

namespace batchllm::api {

Result<PictureColumns> read_pictures(const batchllm_picture_column *column, int64_t n) {
    PictureColumns read;
    if (column == nullptr) return read;
    batchllm_picture_column known{};
    RETURN_IF_ERROR(copy_known("column", column, &known, sizeof known));
    read.chat = known.chat != 0;
    if (known.rows == nullptr || n == 0) return read;
    // The rows' offsets count pictures, so no buffer can be null.
    RETURN_IF_ERROR(check_column("column->offsets", &n, "column->rows", known.rows, n));
    const int64_t pictures = known.rows[n];
    RETURN_IF_ERROR(
        check_column("column->bytes", known.bytes, "column->offsets", known.offsets, pictures));
    for (int64_t i = 0; known.kinds != nullptr && i < pictures; ++i) {
        if (known.kinds[i] <= BATCHLLM_PICTURE_NAME) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "column->kinds[%" PRId64 "] is %d", i,
                     known.kinds[i]);
    }
    read.items = {pictures, reinterpret_cast<const std::byte *>(known.bytes), known.offsets};
    read.rows = known.rows;
    read.kinds = known.kinds;
    return read;
}

} // namespace batchllm::api

extern "C" {

void batchllm_pictures_options_init(batchllm_pictures_options *options, size_t struct_size) {
    const batchllm_pictures_options defaults{};
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_pictures_create(const batchllm_pictures_options *options,
                                 batchllm_pictures **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("options", options));
        ASSIGN_OR_RETURN(const batchllm_pictures_options known,
                         api::over_defaults(options, batchllm_pictures_options{}));
        RETURN_IF_ERROR(api::need_zero("options->reserved", known.reserved));
        RETURN_IF_ERROR(need("options->model_dir", known.model_dir));
        if (known.folder_count < 0) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "folder_count is %" PRId64 ": it cannot be negative", known.folder_count);
        }
        std::vector<std::string> folders;
        for (int64_t i = 0; i < known.folder_count; ++i) {
            RETURN_IF_ERROR(need("folders", known.folders));
            RETURN_IF_ERROR(need("a folder", known.folders[i]));
            folders.emplace_back(known.folders[i]);
        }
        auto handle = std::make_unique<batchllm_pictures>();
        ASSIGN_OR_RETURN(handle->tokenizer, Tokenizer::load(known.model_dir));
        ASSIGN_OR_RETURN(handle->chat, ChatTemplate::load(known.model_dir));
        ASSIGN_OR_RETURN(handle->library,
                         PictureLibrary::open(known.model_dir, handle->tokenizer.get(), folders));
        *out = handle.release();
        return {};
    });
}

void batchllm_pictures_destroy(batchllm_pictures *pictures) { delete pictures; }

int32_t batchllm_pictures_encode(batchllm_pictures *pictures, int64_t n, const char *text,
                                 const int64_t *offsets, const batchllm_picture_column *column,
                                 uint32_t flags, int32_t threads, batchllm_column **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("pictures", pictures));
        RETURN_IF_ERROR(check_column("text", text, "offsets", offsets, n));
        RETURN_IF_ERROR(
            api::check_flags(flags, BATCHLLM_ENCODE_ADD_SPECIAL | BATCHLLM_ENCODE_PARSE_SPECIAL));
        RETURN_IF_ERROR(api::check_threads(threads));
        ASSIGN_OR_RETURN(const PictureColumns given, api::read_pictures(column, n));
        const EncodeOptions options{(flags & BATCHLLM_ENCODE_ADD_SPECIAL) != 0,
                                    (flags & BATCHLLM_ENCODE_PARSE_SPECIAL) != 0};
        const Tokenizer &tokenizer = *pictures->tokenizer;
        const ChatTemplate::Options chat{true, options.parse_special ? nullptr : &tokenizer,
                                         local_time_now()};
        PictureLibrary &library = *pictures->library;
        const Column<char> texts{n, text, offsets};
        std::mutex mutex; // of held
        std::vector<SharedPicture> held;
        ASSIGN_OR_RETURN(
            auto batch,
            api::convert_column(n, threads, &ColumnBatch::all_tokens,
                                [&](int64_t i, std::vector<int32_t> *tokens) -> Status {
                                    std::vector<PictureInput> inputs;
                                    given.of_row(i, &inputs);
                                    std::vector<SharedPicture> own;
                                    const std::string_view item(texts[i].data(), texts[i].size());
                                    if (given.chat) {
                                        RETURN_IF_ERROR(encode_conversation(
                                            *pictures->chat, chat, tokenizer, &library,
                                            library.problem(), item, inputs, tokens, &own));
                                    } else {
                                        RETURN_IF_ERROR(library.encode(tokenizer, item, inputs,
                                                                       options, tokens, &own));
                                    }
                                    const std::lock_guard lock(mutex);
                                    held.insert(held.end(), own.begin(), own.end());
                                    return {};
                                }));
        batch->held = std::make_shared<std::vector<SharedPicture>>(std::move(held));
        batch->tokens = batch->all_tokens.data();
        *out = batch.release();
        return {};
    });
}

int32_t batchllm_add_pictures(batchllm_engine *engine, int64_t n, const char *text,
                              const int64_t *offsets, const batchllm_picture_column *column,
                              const uint64_t *tags, const batchllm_params *params,
                              int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const api::EngineUse use, api::EngineUse::begin(engine));
        RETURN_IF_ERROR(check_column("text", text, "offsets", offsets, n));
        ASSIGN_OR_RETURN(const PictureColumns pictures, api::read_pictures(column, n));
        ASSIGN_OR_RETURN(const ParamsColumn read, ParamsColumn::open(params, params_count, n));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_pictures({n, text, offsets}, pictures, tags, read);
    });
}

} // extern "C"
