// While it lives, signals for this thread wait, but for those that its own instructions raise. For calls into code that
// uses the stack pointer for something else, as kernels of oneDNN do: whoever installed a handler without a stack of its
// own (SA_ONSTACK), be it this program, Python or a profiler, would have the handler's frame written into other memory.
#pragma once

#include <csignal>

namespace batchllm {

class HeldSignals {
  public:
    HeldSignals() {
        sigset_t held;
        sigfillset(&held);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
            sigdelset(&held, own);
        }
        pthread_sigmask(SIG_BLOCK, &held, &before_);
    }
    HeldSignals(const HeldSignals &) = delete;
    HeldSignals &operator=(const HeldSignals &) = delete;
    ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

} // namespace batchllm
