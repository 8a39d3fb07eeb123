// Columns in the caller's memory: borrowed, and checked once before anything is read through them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "model/pooling.h"
#include "runtime/adapter_library.h"
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
        if (items == nullptr) return {}; // every item is empty, and offsets may start anywhere
        return {items + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
    }
};

// Checks n + 1 offsets into a buffer: n >= 0, no null pointer to data that would be read, the first
// offset not negative, offsets never decreasing. Errors name the argument (INVALID_ARGUMENT).
Status check_column(const char *items_name, const void *items, const char *offsets_name,
                    const int64_t *offsets, int64_t n);

// Sampling parameters for n rows: none, one struct for all rows, or n structs at a stride of
// struct_size.
class ParamsColumn {
  public:
    ParamsColumn() = default; // defaults for all rows
    static Result<ParamsColumn> open(const batchllm_params *params, int64_t count, int64_t rows);

    // Whether row i has the same struct as row i - 1.
    bool same_as_before(int64_t i) const { return i > 0 && count_ <= 1; }
    // Row i's struct, completed: fields that the caller does not know have their defaults.
    Result<batchllm_params> at(int64_t i) const;

  private:
    const std::byte *first_ = nullptr;
    uint32_t stride_ = 0;
    int64_t count_ = 0;
};

// Whether a caller can have compiled a struct of this size: a whole number of words, and not too
// many. This catches most uninitialised values of struct_size before anything past the struct's end
// is read or written, and guarantees that no pointer is cut in two.
bool possible_struct_size(uint32_t size);

// Copies the caller's struct, which may be shorter (an older caller), over the defaults. If a newer
// caller has set a field beyond the library's own struct, the error is UNSUPPORTED.
Status copy_known(const char *name, const void *from, void *to, size_t size);

// The parameters of rows that are not scored, with everything derived from them once for all rows
// that share them.
struct PreparedParams : SamplingParams {
    EmbeddingForm form;                           // embed: what the parameters and the model say
    std::unique_ptr<const StopStrings> stops;     // null: there are none
    std::shared_ptr<const AdapterSource> adapter; // null: none
    uint64_t salt = 0; // what the rows' keys and values depend on besides tokens: the adapter's

    void set_adapter(const batchllm_params &params);
};

// What a model offers to rows.
struct ModelTasks {
    int32_t vocabulary = 0;
    std::vector<int32_t> eos_tokens;
    std::shared_ptr<const Tokenizer> tokenizer; // null: none
    int32_t hidden = 0;
    bool text = true;    // it has a language-model head
    bool labels = false; // it has a classification head
    EmbeddingForm form;  // as the model directory states it
    Status form_status;  // why the directory states no form
};

// Parameter structs -> parameters, shared between rows that have the same ones.
class ParamsReader {
  public:
    explicit ParamsReader(ModelTasks model) : model_(std::move(model)) {}
    // Fails with ROW_INVALID_PARAMETER.
    Result<std::shared_ptr<const PreparedParams>> read(const batchllm_params &params);

  private:
    Status read_task(const batchllm_params &params, PreparedParams *read) const;
    Status read_forbidden(SamplingParams *read) const;
    Status read_form(PreparedParams *read) const;

    static constexpr size_t remembered = 8;
    ModelTasks model_;
    std::vector<std::shared_ptr<const PreparedParams>> recent_; // most recent last
};

// Whether two greedy rows with equal tokens get the same answer.
bool same_greedy_result(const PreparedParams &a, const PreparedParams &b);

} // namespace batchllm
