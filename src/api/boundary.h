// The C boundary, which every exported function goes through. It turns a Status into an int32_t
// plus the thread's last error, and exceptions into a status; no exception escapes it.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include "base/status.h"
#include "runtime/columns.h"

namespace batchllm::api {

// The calling thread's last failure, kept in a fixed buffer so that reporting an out-of-memory
// error allocates nothing. A longer text is cut between characters.
int32_t set_last_error(int32_t status, std::string_view text) noexcept;
int32_t set_last_error(const Status &status) noexcept;
const char *last_error() noexcept;

// Runs body, a function that returns a Status.
template <typename Body> int32_t guard(Body body) noexcept {
    try {
        const Status status = body();
        return status.ok() ? BATCHLLM_OK : set_last_error(status);
    } catch (const std::bad_alloc &) {
        return set_last_error(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        return set_last_error(BATCHLLM_ERROR_INTERNAL, fault.what());
    } catch (...) {
        return set_last_error(BATCHLLM_ERROR_INTERNAL, "an unknown exception");
    }
}

// The same for a function with an out parameter: *out is NULL on failure.
template <typename T, typename Body> int32_t guard_out(T **out, Body body) noexcept {
    if (out == nullptr) return set_last_error(BATCHLLM_ERROR_INVALID_ARGUMENT, "out is NULL");
    *out = nullptr;
    return guard(body);
}

inline Status need(const char *name, const void *pointer) {
    if (pointer != nullptr) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
}

// Requires a reserved field, which a later version may give a meaning, to be 0.
inline Status need_zero(const char *name, int32_t value) {
    if (value == 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %d: it must be 0", name, value);
}

// The defaults, overwritten by the caller's options. NULL: the defaults.
template <typename Options>
Result<Options> over_defaults(const Options *options, const Options &defaults) {
    Options known = defaults;
    if (options != nullptr) {
        RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
    }
    return known;
}

// Writes the part of the struct that the caller knows. Its struct_size is left unchanged.
Status copy_out(const char *name, const void *from, size_t size, void *to);

// Fills the caller's struct with the defaults and zeroes the bytes beyond the library's own struct.
void init_struct(const void *defaults, size_t size, void *to, size_t to_size) noexcept;

} // namespace batchllm::api
