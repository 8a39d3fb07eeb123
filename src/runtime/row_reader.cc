#include "runtime/row_reader.h"

#include <cinttypes>

#include "base/file.h"

namespace batchllm {
namespace {

// The longest request if no model states one: that of the shape that `sim` then uses.
constexpr int64_t default_max_request_tokens = 8192;

} // namespace

Result<std::unique_ptr<RowReader>> RowReader::open(const EngineOptions &options) {
    std::unique_ptr<RowReader> reader(new RowReader);
    reader->model_dir_ = options.model_dir;
    reader->threads_ = options.threads;
    reader->no_pictures_ = Status(BATCHLLM_ERROR_ROW_PICTURE, "the engine has no pictures");
    if (options.model_dir.empty()) return reader;
    ASSIGN_OR_RETURN(const bool reads_text, file_exists(options.model_dir + "/tokenizer.json"));
    if (!reads_text) return reader;
    ASSIGN_OR_RETURN(reader->tokenizer_, Tokenizer::load(options.model_dir));
    const std::string &note = reader->tokenizer_->note();
    if (!note.empty()) options.log(BATCHLLM_LOG_INFO, note);
    ASSIGN_OR_RETURN(reader->chat_, ChatTemplate::load(options.model_dir));
    return reader;
}

Status RowReader::take_model(std::unique_ptr<Model> model, const BackendInfo &info,
                             const EngineOptions &options) {
    model_ = std::move(model);
    max_request_tokens_ = default_max_request_tokens;
    if (model_ != nullptr) {
        max_request_tokens_ = model_->max_positions;
        eos_tokens_ = model_->eos_tokens;
        if (options.max_request_tokens > max_request_tokens_) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "max_request_tokens is %" PRId64 ", but the model in %s has %" PRId64
                         " positions",
                         options.max_request_tokens, model_dir_.c_str(), max_request_tokens_);
        }
        if (model_->classifier) classifier_.emplace(*model_);
    }
    if (options.max_request_tokens > 0) max_request_tokens_ = options.max_request_tokens;
    if (info.eos_token >= 0) eos_tokens_.push_back(info.eos_token);
    vocabulary_size_ = info.vocabulary;
    std::string note;
    ASSIGN_OR_RETURN(ModelTasks offered, tasks(info, &note));
    if (!note.empty()) options.log(BATCHLLM_LOG_INFO, note);
    params_.emplace(std::move(offered));
    return {};
}

Result<ModelTasks> RowReader::tasks(const BackendInfo &info, std::string *note) const {
    ModelTasks tasks;
    tasks.vocabulary = info.vocabulary;
    tasks.hidden = info.hidden;
    tasks.eos_tokens = eos_tokens_;
    tasks.tokenizer = tokenizer_;
    if (model_ == nullptr) return tasks;
    tasks.text = bool(model_->head);
    tasks.labels = classifier_.has_value();
    // A model whose directory requires an unsupported kind of vector can still do everything else.
    Result<EmbeddingForm> form = read_embedding_form(model_dir_, info.hidden, note);
    if (is_failure_of_process(form.status().code())) return form.status();
    tasks.form_status = form.status();
    if (form.ok()) tasks.form = *form;
    return tasks;
}

uint64_t RowReader::tokenizer_fingerprint() const {
    return tokenizer_ == nullptr ? 0 : tokenizer_->fingerprint();
}

ThreadPool &RowReader::pool() {
    if (pool_ == nullptr) pool_ = std::make_unique<ThreadPool>(threads_);
    return *pool_;
}

Status RowReader::need_tokenizer() const {
    if (tokenizer_ != nullptr) return {};
    return error(BATCHLLM_ERROR_STATE,
                 model_dir_.empty()
                     ? "the engine has no tokenizer: it was made without model_dir%s; give it a "
                       "model, or rows of token ids"
                     : "the engine has no tokenizer: no tokenizer.json in %s; rows of token ids "
                       "need none",
                 model_dir_.c_str());
}

Status RowReader::encode_text(std::string_view text, const batchllm_params &params,
                              std::vector<int32_t> *tokens) const {
    return tokenizer_->encode(text, {params.add_special != 0, params.parse_special != 0}, tokens);
}

void RowReader::take_pictures(std::shared_ptr<PictureLibrary> pictures, const BackendInfo &info) {
    pictures_ = std::move(pictures);
    no_pictures_ = pictures_->problem();
    if (!no_pictures_.ok()) return;
    if (model_ == nullptr || model_->tower == nullptr) {
        const bool says_why = model_ != nullptr && !model_->no_tower.empty();
        no_pictures_ = error(BATCHLLM_ERROR_ROW_PICTURE,
                             "the model in %s reads no pictures here%s%s", model_dir_.c_str(),
                             says_why ? ": " : "", says_why ? model_->no_tower.c_str() : "");
        return;
    }
    if (info.picture_slots == 0) {
        no_pictures_ = error(BATCHLLM_ERROR_ROW_PICTURE, "the %s backend computes no pictures%s%s",
                             info.name.c_str(), info.no_pictures.empty() ? "" : ": ",
                             info.no_pictures.c_str());
        return;
    }
    no_pictures_ = pictures_->check_tower(*model_->tower);
}

Status RowReader::encode_text(std::string_view text, std::span<const PictureInput> pictures,
                              const batchllm_params &params, std::vector<int32_t> *tokens,
                              std::vector<SharedPicture> *held) const {
    if (pictures_ == nullptr || !pictures.empty()) RETURN_IF_ERROR(no_pictures_);
    return pictures_->encode(*tokenizer_, text, pictures,
                             {params.add_special != 0, params.parse_special != 0}, tokens, held);
}

Status RowReader::encode_chat(std::string_view conversation, std::span<const PictureInput> pictures,
                              const batchllm_params &params, const std::tm &now,
                              std::vector<int32_t> *tokens,
                              std::vector<SharedPicture> *held) const {
    const Tokenizer *refusing = params.parse_special == 0 ? tokenizer_.get() : nullptr;
    return encode_conversation(*chat_, {true, refusing, now}, *tokenizer_, pictures_.get(),
                               no_pictures_, conversation, pictures, tokens, held);
}

Status RowReader::check_adapter(const batchllm_params &params) const {
    if (params.adapter == nullptr || params.adapter->source->library.get() == adapters_) return {};
    return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                 "adapter was loaded for another engine: it changes another model");
}

Result<std::shared_ptr<const PreparedParams>> RowReader::read(const batchllm_params &params) {
    RETURN_IF_ERROR(check_adapter(params));
    return params_->read(params);
}

Result<std::shared_ptr<const PreparedParams>>
RowReader::read_scored(const batchllm_params &params) const {
    RETURN_IF_ERROR(check_adapter(params));
    auto read = std::make_shared<PreparedParams>();
    read->set_adapter(params);
    return std::shared_ptr<const PreparedParams>(std::move(read));
}

Status RowReader::check(const PreparedParams &params) const {
    if (!params.stop_strings.empty() && tokenizer_ == nullptr) {
        return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                     "stop_strings need a tokenizer, and the engine has none");
    }
    if (params.constraint == nullptr) return {};
    const std::lock_guard lock(vocabulary_mutex_);
    if (&params.constraint->vocabulary() == vocabulary_.get()) return {};
    return error(BATCHLLM_ERROR_ROW_INVALID_PARAMETER,
                 "constraint was made for another engine: its tokens are another model's");
}

Result<SpecifiedConstraint>
RowReader::make_constraint(const ConstraintSpecification &specification) {
    RETURN_IF_ERROR(need_tokenizer());
    std::shared_ptr<const TokenVocabulary> vocabulary;
    {
        const std::lock_guard lock(vocabulary_mutex_);
        if (vocabulary_ == nullptr) {
            ASSIGN_OR_RETURN(vocabulary_,
                             TokenVocabulary::make(*tokenizer_, eos_tokens_, vocabulary_size_));
        }
        vocabulary = vocabulary_;
    }
    return constraints_.make(specification, std::move(vocabulary));
}

} // namespace batchllm
