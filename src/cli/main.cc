// The batchllm program: reads the command line, sets up signals, calls a command.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <new>
#include <unistd.h>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void on_signal(int) { interrupted.store(true, std::memory_order_relaxed); }

// The first SIGINT or SIGTERM lets the command finish its step; the second ends the program. The output
// can be resumed even then. A SIGINT that the parent ignores, as a script's shell does for background jobs, stays ignored.
void handle_signals() {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    struct sigaction before = {};
    if (::sigaction(SIGINT, nullptr, &before) != 0 || before.sa_handler != SIG_IGN) {
        ::sigaction(SIGINT, &action, nullptr);
    }
    ::sigaction(SIGTERM, &action, nullptr);
    // A closed pipe, or a file at its size limit, fails the write instead of ending the program.
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);
}

// Before the initialisers of the shared libraries, which take milliseconds: a signal during them
// would end the program as if it had no handlers.
[[gnu::used, gnu::section(".preinit_array")]] void (*const before_initialisers)() = handle_signals;

// If descriptor 0, 1 or 2 is closed at the start (by a daemon or cron), the first file to be opened
// would get its number, and printed text would end up in that file. So /dev/null takes its place,
// opened so that reading from stdin and writing to stdout and stderr fail as before.
bool keep_standard_descriptors() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

} // namespace

int main(int argc, char **argv) try {
    if (!keep_standard_descriptors()) return batchllm::cli::exit_fatal;
    return batchllm::cli::run_command_line(argc, argv, interrupted);
} catch (...) {
    return batchllm::cli::report_exception();
}

namespace batchllm::cli {

int report(const std::string &message) {
    std::fprintf(stderr, "batchllm: %s\n", message.c_str());
    return exit_fatal;
}

int report_exception() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        std::fputs("batchllm: out of memory\n", stderr);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "batchllm: a fault of the program: %s\n", failure.what());
    } catch (...) {
        std::fputs("batchllm: a fault of the program\n", stderr);
    }
    return exit_fatal;
}

} // namespace batchllm::cli
