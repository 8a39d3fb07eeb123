// The C boundary: what every exported function goes through. Status -> int32_t and the thread's last
// error; exceptions -> a status; nothing is thrown past it.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include "base/status.h"
#include "runtime/columns.h"

namespace batchllm::api {

// The calling thread's last failure. It is kept in a fixed buffer, so that reporting an out-of-memory
// error allocates nothing; a longer text is cut between characters.
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

// The same for a function with an out parameter: *out is NULL unless it succeeds.
template <typename T, typename Body> int32_t guard_out(T **out, Body body) noexcept {
    if (out == nullptr) return set_last_error(BATCHLLM_ERROR_INVALID_ARGUMENT, "out is NULL");
    *out = nullptr;
    return guard(body);
}

inline Status need(const char *name, const void *pointer) {
    if (pointer != nullptr) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
}

// Checks a field to which a later version may give a meaning.
inline Status need_zero(const char *name, int32_t value) {
    if (value == 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %d: it must be 0", name, value);
}

// The caller's options over the defaults; null: the defaults.
template <typename Options>
Result<Options> over_defaults(const Options *options, const Options &defaults) {
    Options known = defaults;
    if (options != nullptr) {
        RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
    }
    return known;
}

// Writes as much of a struct as the caller knows: struct_size is the caller's and stays.
Status copy_out(const char *name, const void *from, size_t size, void *to);

// Fills the caller's struct from defaults; what lies beyond the library's own struct is set to 0.
void init_struct(const void *defaults, size_t size, void *to, size_t to_size) noexcept;

} // namespace batchllm::api
