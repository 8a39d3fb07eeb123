// Columns as the caller holds them: borrowed, and checked once before anything is read through them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "model/pooling.h"
#include "sample/sampling.h"
#include "sample/stop.h"
#include "text/tokenizer.h"

namespace batchllm {

// n items in one buffer; item i is [offsets[i], offsets[i + 1]).
template <typename T> struct Column {
    int64_t n = 0;
    const T *items = nullptr;
    const int64_t *offsets = nullptr; // [n + 1]

    std::span<const T> operator[](int64_t i) const {
        if (items == nullptr) return {}; // every item is empty, and offsets may begin anywhere
        return {items + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
    }
};

// Checks n + 1 offsets into a buffer: n >= 0, no null pointer where something is to be read, the
// first offset not negative, none below the one before it. Errors name the argument (INVALID_ARGUMENT).
Status check_column(const char *items_name, const void *items, const char *offsets_name,
                    const int64_t *offsets, int64_t n);

// Sampling parameters for n rows: none, one struct for all, or n structs that lie struct_size apart.
class ParamsColumn {
  public:
    ParamsColumn() = default; // defaults for all rows
    static Result<ParamsColumn> open(const batchllm_params *params, int64_t count, int64_t rows);

    // Whether row i has the same struct as row i - 1.
    bool same_as_before(int64_t i) const { return i > 0 && count_ <= 1; }
    // Row i's struct, completed: fields that the caller does not know hold their defaults.
    Result<batchllm_params> at(int64_t i) const;

  private:
    const std::byte *first_ = nullptr;
    uint32_t stride_ = 0;
    int64_t count_ = 0;
};

// The C struct's defaults, without a null check: batchllm_params_init of a whole struct.
batchllm_params default_params();

// Whether a caller can have compiled a struct of this size: whole words, and not too many. This
// refuses most values of a struct_size that was never set, before anything is read or written past
// the struct's end, and no pointer is ever cut in two.
bool possible_struct_size(uint32_t size);

// Copies the caller's struct over the defaults; an older caller's is shorter. A field that a newer
// caller has set beyond the library's own struct is UNSUPPORTED.
Status copy_known(const char *name, const void *from, void *to, size_t size);

// Parameters of rows that are not scored, with what is derived from them once for all rows that share
// them. Unless the task is to generate, the sampling parameters are the defaults.
struct PreparedParams : SamplingParams {
    Task task = Task::generate;
    EmbeddingForm form;                       // embed
    std::unique_ptr<const StopStrings> stops; // null: no stop strings
    uint64_t salt = 0; // what the rows' keys and values depend on besides tokens: so far nothing
};

// What rows may ask of a model.
struct ModelTasks {
    int32_t vocabulary = 0;
    std::vector<int32_t> eos_tokens;
    std::shared_ptr<const Tokenizer> tokenizer; // null: none
    int32_t hidden = 0;
    bool text = true;    // it has a head for text
    bool labels = false; // it has one for labels
    EmbeddingForm form;  // as its directory states it
    Status form_status;  // why the directory states none
};

// Parameter structs -> parameters, shared between rows that ask for the same.
class ParamsReader {
  public:
    explicit ParamsReader(ModelTasks model) : model_(std::move(model)) {}
    // Fails with ROW_INVALID_PARAMETER.
    Result<std::shared_ptr<const PreparedParams>> read(const batchllm_params &params);

  private:
    Status read_task(const batchllm_params &params, PreparedParams *read) const;
    Status read_forbidden(SamplingParams *read) const;
    Result<EmbeddingForm> read_form(const batchllm_params &params) const;

    static constexpr size_t remembered = 8;
    ModelTasks model_;
    std::vector<std::shared_ptr<const PreparedParams>> recent_; // most recent last
};

// Whether two greedy rows of equal tokens get the same result. Compares everything that changes what is
// generated, where it stops or what is reported, but not the number of samples, the seed and the
// parameters of sampling.
bool same_greedy_result(const PreparedParams &a, const PreparedParams &b);

} // namespace batchllm
