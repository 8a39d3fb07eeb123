// Hidden states -> a row's vector, or its labels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/pooling.h"

namespace batchllm {

// *sum: the sum of the hidden states of `count` tokens. It becomes the vector and is shrunk to the
// vector's size.
void finish_embedding(const EmbeddingForm &form, int64_t count, std::vector<float> *sum);

struct LabelScores {
    std::vector<float> logits;        // [labels]
    std::vector<float> probabilities; // [labels]
};

// A model's classification head, in float32. Without weights (as with sim) all logits are 0.
class Classifier {
  public:
    // Does not keep a reference to the model.
    explicit Classifier(const Model &model);

    const std::vector<std::string> &labels() const { return labels_; }
    LabelScores scores(std::span<const float> hidden) const;

  private:
    std::vector<std::string> labels_;
    LabelKind kind_;
    std::vector<float> weight_; // [labels, hidden], or empty
};

} // namespace batchllm
