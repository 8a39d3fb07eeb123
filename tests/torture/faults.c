/* See faults.h. Allocates no memory itself, and runs in any thread. */
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

static const char *const kind_names[FAULT_KINDS] = {
    "alloc",  "open", "read",     "write", "short",  "map",   "sync",
    "rename", "lock", "truncate", "stat",  "unlink", "thread"};

enum { FAIL_ONCE, FAIL_FOREVER, DIE, DIE_TORN, WAIT };

static struct {
    unsigned kinds;
    long at;
    int how;
    const char *wait_for;
    const char *count_path;
    const char *stacks_path;
    int by_stack;   /* call stacks are compared: */
    uint64_t stack; /* the first call with this one gets the number `at` */
    int trace;
    int inodes; /* the last number given; 0: a file keeps its own */
} plan = {0, 0, FAIL_ONCE, NULL, NULL, NULL, 0, 0, -1, 0};
static long calls, failed, live_blocks;
static int paused;

const char *fault_name(unsigned kind) {
    for (int i = 0; i < FAULT_KINDS; ++i)
        if (kind == 1u << i) return kind_names[i];
    return "?";
}

void faults_begin(unsigned kinds, long k, int forever) {
    __atomic_store_n(&plan.kinds, 0, __ATOMIC_SEQ_CST);
    plan.at = k;
    plan.how = forever ? FAIL_FOREVER : FAIL_ONCE;
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&failed, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&plan.kinds, kinds, __ATOMIC_SEQ_CST);
}

void faults_pause(int pause) { __atomic_store_n(&paused, pause, __ATOMIC_SEQ_CST); }

long faults_end(void) {
    __atomic_store_n(&plan.kinds, 0, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

long faults_failed(void) { return __atomic_load_n(&failed, __ATOMIC_SEQ_CST); }
long faults_live_blocks(void) { return __atomic_load_n(&live_blocks, __ATOMIC_SEQ_CST); }

static void die(void) { syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); }

static void touch(const char *path, const char *suffix) {
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    const long fd = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT, 0600);
    if (fd >= 0) syscall(SYS_close, fd);
}

/* ---- Code that is exempt ---- */

/* Code that ends the process itself if it gets no memory, and that this project cannot fix:
 * Debian's oneDNN reads through a null pointer, the OpenMP run time below it calls exit, libc
 * aborts if it cannot register a thread's destructors. (The library allocates memory just before it
 * calls oneDNN: backend/cpu/linear.cc.) */
typedef struct {
    uintptr_t begin, end;
    int loader;
    int products; /* oneDNN and OpenMP */
} Code;
static Code exempt[8];
static int exempt_count;

static const Code *exempt_code(const void *caller) {
    for (int i = 0; i < exempt_count; ++i)
        if ((uintptr_t)caller >= exempt[i].begin && (uintptr_t)caller < exempt[i].end)
            return &exempt[i];
    return NULL;
}

static int note_exempt(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    if (!strstr(info->dlpi_name, "libgomp") && !strstr(info->dlpi_name, "libdnnl") &&
        !strstr(info->dlpi_name, "/ld-linux") && !strstr(info->dlpi_name, "libc.so"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && exempt_count < 8; ++i) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        exempt[exempt_count].loader = strstr(info->dlpi_name, "/ld-linux") != NULL;
        exempt[exempt_count].products =
            strstr(info->dlpi_name, "libgomp") || strstr(info->dlpi_name, "libdnnl");
        exempt[exempt_count].begin = info->dlpi_addr + part->p_vaddr;
        exempt[exempt_count++].end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
    }
    return 0;
}

/* ---- Call stacks ---- */

/* A stack is a number that is the same in every run of a program: a hash of the positions of its
 * frames in the files that they are loaded from. Only the innermost frames count: a loop or a
 * recursion further out makes no new stack. */
enum { STACK_FRAMES = 24, MOST_MODULES = 64, STACK_SLOTS = 1 << 16 };

static struct { uintptr_t begin, end; } modules[MOST_MODULES];
static int module_count;

static struct {
    uint64_t stack; /* 0: free */
    long calls;
} stacks[STACK_SLOTS];

static int note_module(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum && module_count < MOST_MODULES; ++i) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        modules[module_count].begin = info->dlpi_addr + part->p_vaddr;
        modules[module_count++].end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
    }
    return 0;
}

typedef struct {
    uint64_t hash;
    int frames;
    int exempt; /* oneDNN is further out: for example, its own string grows in libstdc++ */
} Stack;

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *to) {
    Stack *stack = to;
    const uintptr_t at = _Unwind_GetIP(context);
    const Code *code = exempt_code((const void *)at);
    if (code && code->products) stack->exempt = 1;
    for (int i = 0; i < module_count; ++i) {
        if (at < modules[i].begin || at >= modules[i].end) continue;
        stack->hash = (stack->hash ^ ((uint64_t)i << 48 ^ (at - modules[i].begin))) *
                      UINT64_C(0x9e3779b97f4a7c15);
        stack->hash ^= stack->hash >> 29;
        break;
    }
    return ++stack->frames < STACK_FRAMES ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

/* The current stack; 0: it is exempt. */
static uint64_t stack_here(void) {
    Stack stack = {1, 0, 0};
    _Unwind_Backtrace(add_frame, &stack);
    if (stack.exempt) return 0;
    return stack.hash ? stack.hash : 1;
}

static void note_stack(uint64_t stack) {
    for (size_t i = stack % STACK_SLOTS, tried = 0; tried < STACK_SLOTS; ++tried) {
        uint64_t found = 0;
        if (__atomic_compare_exchange_n(&stacks[i].stack, &found, stack, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST) ||
            found == stack) {
            __atomic_add_fetch(&stacks[i].calls, 1, __ATOMIC_RELAXED);
            return;
        }
        i = (i + 1) % STACK_SLOTS;
    }
}

static void write_stacks(void) {
    const long fd =
        syscall(SYS_openat, AT_FDCWD, plan.stacks_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t i = 0; fd >= 0 && i < STACK_SLOTS; ++i) {
        if (stacks[i].stack == 0) continue;
        char line[64];
        const int length = snprintf(line, sizeof line, "%016llx %ld\n",
                                    (unsigned long long)stacks[i].stack, stacks[i].calls);
        syscall(SYS_write, fd, line, (size_t)length);
    }
    if (fd >= 0) syscall(SYS_close, fd);
}

/* The number of the call that fails; 0: none yet. One function with one call, since its own frame
 * is part of a stack. */
static __attribute__((noinline)) long number_by_stack(long call) {
    const uint64_t stack = stack_here();
    if (plan.stacks_path && stack) note_stack(stack);
    long at = __atomic_load_n(&plan.at, __ATOMIC_SEQ_CST);
    if (stack && stack == plan.stack && at == 0 &&
        __atomic_compare_exchange_n(&plan.at, &at, call, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        at = call;
    return at;
}

/* Whether this call must fail. It may not return at all. */
static int fails(unsigned kind) {
    if ((__atomic_load_n(&plan.kinds, __ATOMIC_RELAXED) & kind) == 0) return 0;
    if (__atomic_load_n(&paused, __ATOMIC_RELAXED)) return 0;
    const long call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    const long at = plan.by_stack ? number_by_stack(call) : plan.at;
    if (at == 0 || call < at || (call > at && plan.how != FAIL_FOREVER)) return 0;
    if (plan.how == DIE) die();
    if (plan.how == WAIT) {
        touch(plan.wait_for, ".here");
        while (syscall(SYS_faccessat, AT_FDCWD, plan.wait_for, F_OK) != 0) usleep(1000);
        return 0;
    }
    if (kind == FAULT_ALLOC && !stack_here()) return 0;
    __atomic_add_fetch(&failed, 1, __ATOMIC_SEQ_CST);
    return 1;
}

/* ---- Memory ---- */

/* The allocator behind: libc's, or AddressSanitizer's. */
#ifdef FAULTS_UNDER_ASAN
#define BEHIND(name) __interceptor_##name
#else
#define BEHIND(name) __libc_##name
#endif
void *BEHIND(malloc)(size_t);
void *BEHIND(calloc)(size_t, size_t);
void *BEHIND(realloc)(void *, size_t);
void *BEHIND(memalign)(size_t, size_t);
void BEHIND(free)(void *);

#ifdef FAULTS_UNDER_ASAN
void __lsan_ignore_object(const void *);
int BEHIND(pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
#endif

int faults_exempt_caller(const void *caller);
void faults_set_new_caller(const void *caller);

static int refuses(const void *caller) {
    if ((__atomic_load_n(&plan.kinds, __ATOMIC_RELAXED) & FAULT_ALLOC) == 0) return 0;
    if (faults_exempt_caller(caller)) return 0;
    if (!fails(FAULT_ALLOC)) return 0;
    errno = ENOMEM;
    return 1;
}

/* C++'s operator new, so that its caller is known. */
static __thread const void *new_caller;

static const void *caller_or(const void *caller) { return new_caller ? new_caller : caller; }

static void *counted(void *block, const void *caller) {
    if (block) __atomic_add_fetch(&live_blocks, 1, __ATOMIC_RELAXED);
#ifdef FAULTS_UNDER_ASAN
    /* The loader keeps per-thread memory where leak detection does not look. */
    const Code *code = block ? exempt_code(caller) : NULL;
    if (code && code->loader) __lsan_ignore_object(block);
#else
    (void)caller;
#endif
    return block;
}

#define CALLER caller_or(__builtin_return_address(0))
void *malloc(size_t size) { return refuses(CALLER) ? NULL : counted(BEHIND(malloc)(size), CALLER); }
void *calloc(size_t count, size_t size) {
    return refuses(CALLER) ? NULL : counted(BEHIND(calloc)(count, size), CALLER);
}
void *realloc(void *block, size_t size) {
    if (refuses(CALLER)) return NULL;
    void *moved = BEHIND(realloc)(block, size);
    if (!block) return counted(moved, CALLER);
    if (!moved && size == 0) __atomic_sub_fetch(&live_blocks, 1, __ATOMIC_RELAXED);
    return moved;
}
void *memalign(size_t alignment, size_t size) {
    return refuses(CALLER) ? NULL : counted(BEHIND(memalign)(alignment, size), CALLER);
}
void *aligned_alloc(size_t alignment, size_t size) {
    return refuses(CALLER) ? NULL : counted(BEHIND(memalign)(alignment, size), CALLER);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    if (refuses(CALLER)) return ENOMEM;
    void *block = counted(BEHIND(memalign)(alignment, size), CALLER);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}
void free(void *block) {
    if (block) __atomic_sub_fetch(&live_blocks, 1, __ATOMIC_RELAXED);
    BEHIND(free)(block);
}
#ifndef FAULTS_UNDER_ASAN /* whose operators bypass malloc: faults_new.cc */
#define NEW(name, parameters, arguments)                                                           \
    void *name parameters {                                                                        \
        static void *(*real)parameters;                                                            \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                      \
        if (!exempt_code(__builtin_return_address(0))) return real arguments;                      \
        new_caller = __builtin_return_address(0);                                                  \
        void *block = real arguments;                                                              \
        new_caller = NULL;                                                                         \
        return block;                                                                              \
    }
/* operator new(size_t), new[](size_t), and both with an alignment. */
void *_Znwm(size_t);
void *_Znam(size_t);
void *_ZnwmSt11align_val_t(size_t, size_t);
void *_ZnamSt11align_val_t(size_t, size_t);
NEW(_Znwm, (size_t size), (size))
NEW(_Znam, (size_t size), (size))
NEW(_ZnwmSt11align_val_t, (size_t size, size_t alignment), (size, alignment))
NEW(_ZnamSt11align_val_t, (size_t size, size_t alignment), (size, alignment))
#endif

int faults_exempt_caller(const void *caller) { return exempt_code(caller) != NULL; }
void faults_set_new_caller(const void *caller) { new_caller = caller; }

/* ---- Files ---- */

/* libc's own function of a name. */
#define REAL(result, name, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

#define FAIL(code, result)                                                                         \
    do {                                                                                           \
        errno = (code);                                                                            \
        return (result);                                                                           \
    } while (0)

/* The trace: records of "KIND FD OFFSET BYTES PATH\n", for a write followed by its bytes. A path is
 * that of the descriptor; for a rename, the old one, a tab and the new one. */
static void trace(const char *kind, int fd, long offset, const void *data, size_t bytes,
                  const char *path) {
    if (plan.trace < 0) return;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char link[64], name[4096];
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(link, name, sizeof name - 1);
        name[length < 0 ? 0 : length] = '\0';
        path = name;
    }
    char head[8400];
    const int length =
        snprintf(head, sizeof head, "%s %d %ld %zu %s\n", kind, fd, offset, bytes, path);
    pthread_mutex_lock(&lock);
    syscall(SYS_write, plan.trace, head, (size_t)length);
    if (data) syscall(SYS_write, plan.trace, data, bytes);
    pthread_mutex_unlock(&lock);
}

static int traced_open(const char *path, int flags, int fd) {
    if (plan.trace >= 0 && fd >= 0 && (flags & O_CREAT) != 0) trace("create", fd, 0, NULL, 0, NULL);
    (void)path;
    return fd;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(int, #name, const char *, int, ...);                                                  \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        const mode_t mode = (flags & O_CREAT) ? va_arg(more, mode_t) : 0;                          \
        va_end(more);                                                                              \
        if (fails(FAULT_OPEN)) FAIL(EIO, -1);                                                      \
        return traced_open(path, flags, real(path, flags, mode));                                  \
    }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                                                \
    FILE *name(const char *path, const char *mode) {                                               \
        REAL(FILE *, #name, const char *, const char *);                                           \
        if (fails(FAULT_OPEN)) FAIL(EIO, NULL);                                                    \
        return real(path, mode);                                                                   \
    }
FOPEN(fopen)
FOPEN(fopen64)

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    if (fails(FAULT_OPEN)) FAIL(EIO, NULL);
    return real(path);
}

#define READDIR(name, type)                                                                        \
    struct type *name(DIR *handle) {                                                               \
        REAL(struct type *, #name, DIR *);                                                         \
        if (fails(FAULT_READ)) FAIL(EIO, NULL);                                                    \
        return real(handle);                                                                       \
    }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

ssize_t read(int fd, void *to, size_t bytes) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (fd > 2 && fails(FAULT_READ)) FAIL(EIO, -1);
    return real(fd, to, bytes);
}

#define PREAD(name)                                                                                \
    ssize_t name(int fd, void *to, size_t bytes, off_t offset) {                                   \
        REAL(ssize_t, #name, int, void *, size_t, off_t);                                          \
        if (fails(FAULT_READ)) FAIL(EIO, -1);                                                      \
        return real(fd, to, bytes, offset);                                                        \
    }
PREAD(pread)
PREAD(pread64)

/* After a write that is cut short, the next one fails. */
static __thread int no_space;

ssize_t write(int fd, const void *from, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fd <= 2) return real(fd, from, bytes);
    if (plan.how == DIE_TORN && (plan.kinds & FAULT_WRITE) && calls + 1 == plan.at) {
        real(fd, from, bytes / 2);
        die();
    }
    if (no_space) {
        no_space = 0;
        FAIL(ENOSPC, -1);
    }
    if (fails(FAULT_WRITE)) FAIL(ENOSPC, -1);
    if (fails(FAULT_SHORT)) {
        no_space = 1;
        if (bytes < 2) FAIL(ENOSPC, -1);
        --bytes;
    }
    const off_t offset = plan.trace >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    const ssize_t written = real(fd, from, bytes);
    if (written > 0) trace("write", fd, offset, from, (size_t)written, NULL);
    return written;
}

#define MAP(name)                                                                                  \
    void *name(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {          \
        REAL(void *, #name, void *, size_t, int, int, int, off_t);                                 \
        if (fd >= 0 && fails(FAULT_MAP)) FAIL(ENOMEM, MAP_FAILED);                                 \
        return real(at, bytes, protection, flags, fd, offset);                                     \
    }
MAP(mmap)
MAP(mmap64)

#define ON_FD(name, kind)                                                                          \
    int name(int fd) {                                                                             \
        REAL(int, #name, int);                                                                     \
        if (fails(kind)) FAIL(EIO, -1);                                                            \
        const int result = real(fd);                                                               \
        if (result == 0) trace("sync", fd, 0, NULL, 0, NULL);                                      \
        return result;                                                                             \
    }
ON_FD(fsync, FAULT_SYNC)
ON_FD(fdatasync, FAULT_SYNC)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (fails(FAULT_RENAME)) FAIL(EIO, -1);
    const int result = real(from, to);
    if (result == 0 && plan.trace >= 0) {
        char both[8192];
        snprintf(both, sizeof both, "%s\t%s", from, to);
        trace("rename", -1, 0, NULL, 0, both);
    }
    return result;
}

int flock(int fd, int operation) {
    REAL(int, "flock", int, int);
    if (fails(FAULT_LOCK)) FAIL(ENOLCK, -1);
    return real(fd, operation);
}

#define TRUNCATE(name)                                                                             \
    int name(int fd, off_t bytes) {                                                                \
        REAL(int, #name, int, off_t);                                                              \
        if (fails(FAULT_TRUNCATE)) FAIL(EIO, -1);                                                  \
        const int result = real(fd, bytes);                                                        \
        if (result == 0) trace("truncate", fd, bytes, NULL, 0, NULL);                              \
        return result;                                                                             \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define STAT(name, argument, type)                                                                 \
    int name(argument what, struct type *info) {                                                   \
        REAL(int, #name, argument, struct type *);                                                 \
        if (fails(FAULT_STAT)) FAIL(EIO, -1);                                                      \
        const int result = real(what, info);                                                       \
        if (plan.inodes && result == 0 && S_ISREG(info->st_mode))                                  \
            info->st_ino = (unsigned)__atomic_add_fetch(&plan.inodes, 1, __ATOMIC_RELAXED);        \
        return result;                                                                             \
    }
STAT(stat, const char *, stat)
STAT(stat64, const char *, stat64)
STAT(lstat, const char *, stat)
STAT(lstat64, const char *, stat64)
STAT(fstat, int, stat)
STAT(fstat64, int, stat64)

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    if (fails(FAULT_UNLINK)) FAIL(EIO, -1);
    const int result = real(path);
    if (result == 0) trace("unlink", -1, 0, NULL, 0, path);
    return result;
}

/* ---- Threads ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
#ifdef FAULTS_UNDER_ASAN /* which must know about every thread */
    int (*const real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        BEHIND(pthread_create);
#else
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
#endif
    if (fails(FAULT_THREAD)) return EAGAIN;
    return real(thread, attributes, start, argument);
}

/* ---- The environment ---- */

__attribute__((constructor)) static void read_environment(void) {
    dl_iterate_phdr(note_exempt, NULL);
    /* simdjson examines the processor at its first use, and ends the process if it gets no memory
     * for that. This project cannot fix that, so it is done before calls fail. */
    int (*validate_utf8)(const char *, size_t);
    *(void **)&validate_utf8 = dlsym(RTLD_DEFAULT, "_ZN8simdjson13validate_utf8EPKcm");
    if (validate_utf8) validate_utf8("a", 1);
    dl_iterate_phdr(note_module, NULL);
    plan.count_path = getenv("BATCHLLM_FAULTS_COUNT");
    plan.stacks_path = getenv("BATCHLLM_FAULTS_STACKS");
    plan.by_stack = plan.stacks_path != NULL;
    if (getenv("BATCHLLM_FAULTS_INODES")) plan.inodes = 1;
    const char *trace_path = getenv("BATCHLLM_FAULTS_TRACE");
    if (trace_path)
        plan.trace = (int)syscall(SYS_openat, AT_FDCWD, trace_path,
                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const char *wanted = getenv("BATCHLLM_FAULTS");
    if (!wanted) return;
    unsigned kinds = 0;
    const char *end = strchr(wanted, ':');
    for (const char *name = wanted; end && name < end; name += strcspn(name, "+:") + 1)
        for (int i = 0; i < FAULT_KINDS; ++i)
            if (strlen(kind_names[i]) == strcspn(name, "+:") &&
                strncmp(name, kind_names[i], strlen(kind_names[i])) == 0)
                kinds |= 1u << i;
    if (!kinds) abort();
    char *how;
    if (end[1] == '@')
        plan.by_stack = 1, plan.stack = strtoull(end + 2, &how, 16);
    else
        plan.at = strtol(end + 1, &how, 10);
    if (strcmp(how, ":once") == 0)
        plan.how = FAIL_ONCE;
    else if (strcmp(how, ":forever") == 0)
        plan.how = FAIL_FOREVER;
    else if (strcmp(how, ":kill") == 0)
        plan.how = DIE;
    else if (strcmp(how, ":torn") == 0)
        plan.how = DIE_TORN;
    else if (strncmp(how, ":wait=", 6) == 0) {
        plan.how = WAIT;
        plan.wait_for = how + 6;
    } else
        abort();
    plan.kinds = kinds;
}

__attribute__((destructor)) static void write_count(void) {
    if (plan.stacks_path) write_stacks();
    if (!plan.count_path) return;
    char text[32];
    const int length = snprintf(text, sizeof text, "%ld %ld\n", faults_end(), faults_failed());
    const long fd =
        syscall(SYS_openat, AT_FDCWD, plan.count_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return;
    syscall(SYS_write, fd, text, (size_t)length);
    syscall(SYS_close, fd);
}
