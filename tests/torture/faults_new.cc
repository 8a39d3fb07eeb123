// Operators new and delete under AddressSanitizer, whose own would bypass the failing malloc
// (faults.c) and its count of blocks.
#include <cstdlib>
#include <new>

extern "C" int faults_exempt_caller(const void *caller);
extern "C" void faults_set_new_caller(const void *caller);

namespace {

void *take(std::size_t size, std::size_t alignment, const void *caller) noexcept {
    if (size == 0) size = 1;
    const bool exempt = faults_exempt_caller(caller) != 0;
    if (exempt) faults_set_new_caller(caller);
    void *block =
        alignment == 0
            ? std::malloc(size)
            : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (exempt) faults_set_new_caller(nullptr);
    return block;
}

void *take_or_throw(std::size_t size, std::size_t alignment, const void *caller) {
    void *block = take(size, alignment, caller);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

} // namespace

#define HERE __builtin_return_address(0)
using Align = std::align_val_t;

void *operator new(std::size_t n) { return take_or_throw(n, 0, HERE); }
void *operator new[](std::size_t n) { return take_or_throw(n, 0, HERE); }
void *operator new(std::size_t n, Align a) { return take_or_throw(n, std::size_t(a), HERE); }
void *operator new[](std::size_t n, Align a) { return take_or_throw(n, std::size_t(a), HERE); }
void *operator new(std::size_t n, const std::nothrow_t &) noexcept { return take(n, 0, HERE); }
void *operator new[](std::size_t n, const std::nothrow_t &) noexcept { return take(n, 0, HERE); }
void operator delete(void *p) noexcept { std::free(p); }
void operator delete[](void *p) noexcept { std::free(p); }
void operator delete(void *p, std::size_t) noexcept { std::free(p); }
void operator delete[](void *p, std::size_t) noexcept { std::free(p); }
void operator delete(void *p, Align) noexcept { std::free(p); }
void operator delete[](void *p, Align) noexcept { std::free(p); }
void operator delete(void *p, std::size_t, Align) noexcept { std::free(p); }
void operator delete[](void *p, std::size_t, Align) noexcept { std::free(p); }
void operator delete(void *p, const std::nothrow_t &) noexcept { std::free(p); }
void operator delete[](void *p, const std::nothrow_t &) noexcept { std::free(p); }
