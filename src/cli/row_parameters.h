// What the readers of rows share: errors with their codes, lists of tokens, and the sampling
// parameters, whose names are the same in both row formats.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_view.h"
#include "cli/row.h"
#include "cli/row_keys.h"

namespace batchllm::cli {

// A value or a key has the wrong type or form.
RowError format_error(std::string message);
// The value of a parameter cannot be used.
RowError parameter_error(std::string message);
// "key" must be `wanted`.
RowError type_error(std::string_view key, const char *wanted);
inline bool failed(const RowError &error) { return !error.code.empty(); }

// The token ids of a JSON list. An id that does not fit an int32 is not a token of any model.
RowError read_tokens(std::string_view key, JsonView value, std::vector<int32_t> *tokens);

// Reads the parameters that both row formats have, key by key.
class ParameterReader {
  public:
    explicit ParameterReader(std::shared_ptr<const SamplingOptions> defaults)
        : defaults_(std::move(defaults)) {}

    // Sets *known to whether the key names a parameter. null leaves the default.
    RowError read(std::string_view key, JsonView value, bool *known);

    // The row's key that constrains the output; empty: none does.
    std::string_view constraint_key() const {
        const bool constrains = !constraint_key_.empty() && own_->constraint_text.kind != 0;
        return constrains ? std::string_view(constraint_key_) : std::string_view();
    }
    Task task() const { return own_ == nullptr ? defaults_->task : own_->task; }
    // The row's parameters. Also creates the row's constraint, if there is a cache to create it
    // with, and finds its adapter, which is not loaded yet.
    RowError take(const RowReaderOptions &options, InputRow *row);
    // null leaves the default.
    RowError read_adapter(std::string_view key, JsonView value);
    // If `model` is the name of an adapter, the row has it, unless it names another by its own key.
    void read_model(const RowReaderOptions &options, const std::string &model);
    SamplingOptions &own() {
        if (own_ == nullptr) own_ = std::make_shared<SamplingOptions>(*defaults_);
        return *own_;
    }

  private:
    RowError read_constraint(ConstraintKey name, std::string_view key, JsonView value);
    RowError find_adapter(const RowReaderOptions &options);
    RowError make_constraint(ConstraintCache *constraints);

    std::shared_ptr<const SamplingOptions> defaults_;
    std::shared_ptr<SamplingOptions> own_;
    std::optional<bool> strict_;         // of a response_format
    std::string constraint_key_;         // the key that set the constraint
    std::optional<std::string> adapter_; // its name; "": the model as it is
};

} // namespace batchllm::cli
