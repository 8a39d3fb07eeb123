// Errors as values. A Status is OK or a code with a text that names the file, key or row at fault.
// The codes are the public ones of include/batchllm.h, so the C boundary passes them on unchanged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "batchllm.h"

namespace batchllm {

class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(int32_t code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const { return code_ == BATCHLLM_OK; }
    int32_t code() const { return code_; }
    const std::string &message() const { return message_; }

    // The same error with "context: " put before its text.
    Status within(const std::string &context) && {
        if (!ok()) message_ = context + ": " + message_;
        return std::move(*this);
    }

  private:
    int32_t code_ = BATCHLLM_OK;
    std::string message_;
};

// Whether an error's code means that the process or the machine failed (memory, a file, a device)
// and the rows are not to blame. Such an error never becomes a row's result, because a retry may
// succeed.
constexpr bool is_failure_of_process(int32_t code) {
    return code == BATCHLLM_ERROR_OUT_OF_MEMORY || code == BATCHLLM_ERROR_IO ||
           code == BATCHLLM_ERROR_DEVICE;
}

// A T, or the error that explains why there is none.
template <typename T> class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}
    Result(Status status) : status_(std::move(status)) {}

    bool ok() const { return value_.has_value(); }
    const Status &status() const & { return status_; }
    Status status() && { return std::move(status_); }
    T &value() & { return *value_; }
    const T &value() const & { return *value_; }
    T value() && { return std::move(*value_); }
    T *operator->() { return &*value_; }
    const T *operator->() const { return &*value_; }
    T &operator*() & { return *value_; }
    const T &operator*() const & { return *value_; }

  private:
    Status status_;
    std::optional<T> value_;
};

// printf-style constructor: error(BATCHLLM_ERROR_IO, "%s: %s", path, strerror(errno)).
Status error(int32_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

} // namespace batchllm

#define BATCHLLM_CONCAT_(a, b) a##b
#define BATCHLLM_CONCAT(a, b) BATCHLLM_CONCAT_(a, b)

// Returns from the enclosing function when the expression is an error.
#define RETURN_IF_ERROR(expression)                                                                \
    do {                                                                                           \
        ::batchllm::Status status_ = (expression);                                                 \
        if (!status_.ok()) return status_;                                                         \
    } while (0)

// ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
#define ASSIGN_OR_RETURN(declaration, expression)                                                  \
    ASSIGN_OR_RETURN_(BATCHLLM_CONCAT(result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_(result, declaration, expression)                                         \
    auto result = (expression);                                                                    \
    if (!result.ok()) return std::move(result).status();                                           \
    declaration = std::move(result).value()
