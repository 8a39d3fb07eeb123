// One token batch through the model on the device, up to the logits of the tokens that want them.
//
// What a step needs is in its parts (parts.h). What runs it: its products (products.h), the residual stream between
// sublayers (residual.h), the two halves of a layer (mixers.h, feeds.h), the head (output_head.h), and graphs that replay
// steps of one shape. Forward ties them: it walks the layers.
//
// A layer is: norm, QKV, rope and KV write, attention, O, norm, gate and up, activation, down; or half of that, or with
// another mixer. After the last layer's attention only the wanted tokens go on. What the experts of a layer make is a delta
// too, beside which the shared expert's stands.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "device/staging.h"
#include "step/feeds.h"
#include "step/graphs.h"
#include "step/mixers.h"
#include "step/output_head.h"
#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"
#include "step/tower.h"

namespace batchllm::cuda {

class Forward {
  public:
    static Result<std::unique_ptr<Forward>> create(const Model &model,
                                                   const ForwardOptions &options);

    // Host: adds the batch to the staging buffer. wanted: tokens whose logits are wanted, ascending. rows: of logits.
    Status stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                 Staging *staging) {
        return parts_.stage(batch, wanted, rows, staging);
    }
    // Device: enqueues everything up to the last layer's result. The staged batch has been sent.
    Status run(const Staging &staging, cudaStream_t stream);
    // Null: no pictures are computed.
    StepTower *tower() { return tower_.get(); }
    // Why, of a model with a tower.
    const std::string &no_pictures() const { return no_pictures_; }
    // What is made of that.
    OutputHead &head() { return head_; }

    // Times and chooses the algorithms of all products, which is otherwise done as they come.
    Status prepare(cudaStream_t stream);
    // The products alone, on whatever the buffers hold: for measuring their rate.
    Status run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream);

    StepParts &parts() { return parts_; }
    const Graphs &graphs() const { return graphs_; }
    // The type of elements, and what the products are in.
    std::string compute_type() const;
    // Something that people should know, or "".
    const std::string &warning() const { return warning_; }

  private:
    Forward(const Model &model, const ForwardOptions &options, Products products);
    Status load();
    Status make_tower(const Model &model);
    Status launch(cudaStream_t stream);
    Status adapt_embedding(const StepRows &rows, cudaStream_t stream);
    Status layer(size_t index, cudaStream_t stream);
    // Whether products are timed in the staged step, because the steps of its range of rows are many.
    bool timing_is_due();
    void set_timing(); // so; graphs with products whose algorithms are chosen again are dropped
    // Numbers of rows of products in the layers of such a step; some may be none's.
    std::vector<int64_t> layer_rows(int64_t tokens, int64_t wanted) const;
    // The graph of the staged step's launches; null: it has none yet, or cannot have one.
    Graph *captured(cudaStream_t stream);

    StepParts parts_;
    Products products_;
    ResidualStream residual_;
    Graphs graphs_;
    Mixers mixers_;
    Feeds feeds_;
    OutputHead head_;
    std::unique_ptr<StepTower> tower_;
    std::string warning_, no_pictures_;
    std::unordered_map<int64_t, int64_t> steps_, wanted_steps_; // by tuned_rows()
};

} // namespace batchllm::cuda
