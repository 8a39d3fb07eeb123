// The handle of an engine: batchllm.h's batchllm_engine.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "api/boundary.h"
#include "runtime/engine.h"

struct batchllm_engine {
    std::unique_ptr<batchllm::Engine> engine;
    mutable std::atomic<bool> in_use = false; // by a call that must not overlap with another
};

namespace batchllm::api {

// Marks the engine as in use by one call. An overlapping call, from another thread or from a log
// function, gets an error.
class EngineUse {
  public:
    static Result<EngineUse> begin(const batchllm_engine *engine) {
        RETURN_IF_ERROR(need("engine", engine));
        if (!engine->in_use.exchange(true, std::memory_order_acquire)) return EngineUse(engine);
        return error(BATCHLLM_ERROR_STATE,
                     "another call on this engine is under way: an engine serves one thread at a "
                     "time, and a log function must not use it");
    }
    EngineUse(EngineUse &&other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
    EngineUse &operator=(EngineUse &&) = delete;
    ~EngineUse() {
        if (engine_ != nullptr) end();
    }

    // During a callback, which may make calls itself or wait for a thread that does, and may throw.
    class Pause {
      public:
        explicit Pause(const EngineUse &use) : use_(use) { use_.end(); }
        Pause(const Pause &) = delete;
        Pause &operator=(const Pause &) = delete;
        ~Pause() {
            while (use_.engine_->in_use.exchange(true, std::memory_order_acquire))
                use_.engine_->in_use.wait(true);
        }

      private:
        const EngineUse &use_;
    };

  private:
    explicit EngineUse(const batchllm_engine *engine) : engine_(engine) {}
    void end() const {
        engine_->in_use.store(false, std::memory_order_release);
        engine_->in_use.notify_one();
    }
    const batchllm_engine *engine_;
};

} // namespace batchllm::api
