// The batchllm program: reads the command line, sets up signals, calls a command.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "cli/command_line.h"
#include "cli/commands.h"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void on_signal(int) { interrupted.store(true, std::memory_order_relaxed); }

// The first SIGINT or SIGTERM lets the command finish its step; the second ends the program, whose
// output can be resumed even then.
void handle_signals() {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    // A closed pipe or a file at its size limit is an error of the write, not the end.
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);
}

} // namespace

int main(int argc, char **argv) {
    handle_signals();
    return batchllm::cli::run_command_line(argc, argv, interrupted);
}

namespace batchllm::cli {

int report(const std::string &message) {
    std::fprintf(stderr, "batchllm: %s\n", message.c_str());
    return exit_fatal;
}

} // namespace batchllm::cli
