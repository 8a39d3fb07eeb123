// While a guard exists, an exception that leaves a noexcept function ends the program in the same
// way as one that reaches main(): with a message on stderr and an exit code.
#pragma once

#include <cstdlib>
#include <exception>

#include "cli/commands.h"

namespace batchllm::cli {

class TerminateGuard {
  public:
    TerminateGuard()
        : before_(std::set_terminate([]() noexcept { std::_Exit(report_exception()); })) {}
    TerminateGuard(const TerminateGuard &) = delete;
    TerminateGuard &operator=(const TerminateGuard &) = delete;
    ~TerminateGuard() { std::set_terminate(before_); }

  private:
    std::terminate_handler before_;
};

} // namespace batchllm::cli
