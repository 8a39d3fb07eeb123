// What rows are read with, and their results written with: the loaded model as far as rows meet it.
// Texts and conversations -> tokens; parameter structs -> prepared parameters; specifications ->
// constraints; hidden states -> labels.
//
// Always: what it knows of the model does not change after take_model(), except that the
// vocabulary for constraints and the threads are made when first needed.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "constraint/constraint_maker.h"
#include "runtime/columns.h"
#include "runtime/embedding.h"
#include "runtime/options.h"
#include "runtime/picture_library.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace batchllm {

class RowReader {
  public:
    // Reads the model directory's tokenizer and chat template, if it has any.
    static Result<std::unique_ptr<RowReader>> open(const EngineOptions &options);
    // The model (null: none is known) as the backend of the first device computes it.
    Status take_model(std::unique_ptr<Model> model, const BackendInfo &info,
                      const EngineOptions &options);

    const Tokenizer *tokenizer() const { return tokenizer_.get(); } // null: tokens only
    std::shared_ptr<const Tokenizer> shared_tokenizer() const { return tokenizer_; }
    uint64_t tokenizer_fingerprint() const;
    int32_t vocabulary() const { return vocabulary_size_; }
    int64_t max_request_tokens() const { return max_request_tokens_; }
    bool scores_tokens() const { return model_ == nullptr || bool(model_->head); }
    std::span<const int32_t> eos_tokens() const { return eos_tokens_; }
    const std::optional<Classifier> &classifier() const { return classifier_; }
    const Model *model() const { return model_.get(); } // null: none is known
    // Rows may name the adapters of this library, and no other's.
    void take_adapters(const AdapterLibrary *library) { adapters_ = library; }
    // Null: not taken yet.
    PictureLibrary *pictures() const { return pictures_.get(); }
    void take_pictures(std::shared_ptr<PictureLibrary> pictures, const BackendInfo &info);
    // Why no row can have pictures; OK: they can.
    const Status &no_pictures() const { return no_pictures_; }
    ThreadPool &pool(); // for the tokenizer and masks

    Status need_tokenizer() const;
    Status encode_text(std::string_view text, const batchllm_params &params,
                       std::vector<int32_t> *tokens) const;
    // The row's pictures are at the places that the text or the conversation has for them; `held` gets
    // their sources.
    Status encode_text(std::string_view text, std::span<const PictureInput> pictures,
                       const batchllm_params &params, std::vector<int32_t> *tokens,
                       std::vector<SharedPicture> *held) const;
    Status encode_chat(std::string_view conversation, std::span<const PictureInput> pictures,
                       const batchllm_params &params, const std::tm &now,
                       std::vector<int32_t> *tokens, std::vector<SharedPicture> *held) const;

    // Fails with ROW_INVALID_PARAMETER.
    Result<std::shared_ptr<const PreparedParams>> read(const batchllm_params &params);
    // The same for rows that are scored, for which only the adapter matters.
    Result<std::shared_ptr<const PreparedParams>> read_scored(const batchllm_params &params) const;
    // Whether rows can be generated with what was read: stop strings need a tokenizer, and a
    // constraint must be one of this reader.
    Status check(const PreparedParams &params) const;
    // Any thread.
    Result<SpecifiedConstraint> make_constraint(const ConstraintSpecification &specification);

  private:
    RowReader() = default;
    Result<ModelTasks> tasks(const BackendInfo &info, std::string *note) const;
    Status check_adapter(const batchllm_params &params) const;

    std::string model_dir_;
    int32_t threads_ = 0;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::unique_ptr<const ChatTemplate> chat_; // null if tokenizer_ is
    std::unique_ptr<Model> model_;             // see LoadedModel::model
    std::vector<int32_t> eos_tokens_;
    std::optional<Classifier> classifier_;
    int32_t vocabulary_size_ = 0;
    int64_t max_request_tokens_ = 0;
    std::optional<ParamsReader> params_;
    const AdapterLibrary *adapters_ = nullptr;
    std::shared_ptr<PictureLibrary> pictures_;
    Status no_pictures_;
    std::unique_ptr<ThreadPool> pool_;
    mutable std::mutex vocabulary_mutex_;
    std::shared_ptr<const TokenVocabulary> vocabulary_; // for constraints
    ConstraintMaker constraints_;
};

} // namespace batchllm
