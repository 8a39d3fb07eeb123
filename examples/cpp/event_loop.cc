// An engine on a thread of its own: it hands out results as they finish, while the program's main thread goes
// on, and cancels a row that is not wanted any more. Usage: event_loop MODEL_DIRECTORY
#include <condition_variable>
#include <exception>
#include <iostream>
#include <mutex>
#include <queue>
#include <thread>

#include <batchllm/handles.h>

using batchllm::check;
using batchllm::Engine;
using batchllm::make;
using batchllm::Results;

namespace {

// What the engine's thread has finished and the main thread has not seen.
class Inbox {
  public:
    void push(Results results) {
        const std::lock_guard lock(mutex_);
        waiting_.push(std::move(results));
        changed_.notify_one();
    }
    void close(std::exception_ptr fault) {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        fault_ = fault;
        changed_.notify_one();
    }
    // Null at the end.
    Results next() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
        if (waiting_.empty()) {
            if (fault_) std::rethrow_exception(fault_);
            return nullptr;
        }
        Results results = std::move(waiting_.front());
        waiting_.pop();
        return results;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::queue<Results> waiting_;
    bool closed_ = false;
    std::exception_ptr fault_;
};

void run(const Engine &engine, Inbox *inbox) {
    std::exception_ptr fault;
    try {
        batchllm_progress progress{};
        progress.struct_size = sizeof progress;
        do {
            check(batchllm_step(engine.get(), &progress));
            Results results = make(batchllm_poll, engine.get(), 0);
            if (results->count > 0) inbox->push(std::move(results));
        } while (progress.rows_waiting + progress.rows_running > 0);
    } catch (...) {
        fault = std::current_exception();
    }
    inbox->close(fault);
}

const char *name_of(int32_t finish_reason) {
    switch (finish_reason) {
    case BATCHLLM_FINISH_CANCELLED:
        return "cancelled";
    case BATCHLLM_FINISH_ERROR:
        return "failed";
    default:
        return "done";
    }
}

} // namespace

int main(int argc, char **argv) try {
    auto options = batchllm::init(batchllm_engine_options_init);
    options.model_dir = argc > 1 ? argv[1] : ".";
    const Engine engine = make(batchllm_engine_create, &options);
    auto params = batchllm::init(batchllm_params_init);
    params.ignore_eos = 1;
    for (uint64_t tag = 0; tag < 4; ++tag) {
        params.max_tokens = tag == 2 ? 2000 : 8; // row 2 would go on for long
        check(batchllm_add_prompt(engine.get(), "Once upon a time", -1, tag, &params));
    }

    Inbox inbox;
    std::jthread worker(run, std::cref(engine), &inbox);
    while (const Results results = inbox.next()) {
        for (int64_t i = 0; i < results->count; ++i)
            std::cout << "row " << results->tags[i] << ' ' << name_of(results->finish_reasons[i])
                      << '\n';
        check(batchllm_cancel(engine.get(), 2)); // from any thread
    }
    return 0;
} catch (const std::exception &fault) {
    std::cerr << fault.what() << '\n';
    return 1;
}
