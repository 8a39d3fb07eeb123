#include "runtime/embedding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace batchllm {
namespace {

// Prevents a division by zero, in the same way as torch.nn.functional.normalize.
constexpr double least_norm = 1e-12;

double length_of(std::span<const float> values) {
    double squares = 0;
    for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
    return std::sqrt(squares);
}

float sigmoid(float x) { return static_cast<float>(1 / (1 + std::exp(-static_cast<double>(x)))); }

std::vector<float> softmax(const std::vector<float> &logits) {
    const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit) - most);
    std::vector<float> shares;
    for (const float logit : logits) {
        shares.push_back(static_cast<float>(std::exp(static_cast<double>(logit) - most) / total));
    }
    return shares;
}

} // namespace

void finish_embedding(const EmbeddingForm &form, int64_t count, std::vector<float> *sum) {
    std::vector<float> &values = *sum;
    if (form.dimensions > 0) values.resize(static_cast<size_t>(form.dimensions));
    values.shrink_to_fit();
    double divisor = static_cast<double>(count);
    if (form.normalize) divisor = std::max(length_of(values), least_norm * divisor);
    for (float &x : values) x = static_cast<float>(static_cast<double>(x) / divisor);
}

Classifier::Classifier(const Model &model) : labels_(model.labels), kind_(model.label_kind) {
    const Tensor &from = model.classifier.values;
    if (from.data == nullptr) return;
    weight_.resize(static_cast<size_t>(from.rows * from.columns));
    for (int64_t row = 0; row < from.rows; ++row) {
        read_row(from, row, weight_.data() + row * from.columns);
    }
}

LabelScores Classifier::scores(std::span<const float> hidden) const {
    LabelScores scores;
    scores.logits.assign(labels_.size(), 0.0F);
    for (size_t i = 0; i < labels_.size() && !weight_.empty(); ++i) {
        const auto row = weight_.begin() + static_cast<std::ptrdiff_t>(i * hidden.size());
        scores.logits[i] =
            static_cast<float>(std::inner_product(hidden.begin(), hidden.end(), row, 0.0));
    }
    scores.probabilities = scores.logits;
    if (kind_ == LabelKind::one_of) {
        scores.probabilities = softmax(scores.logits);
    } else if (kind_ == LabelKind::several) {
        for (float &x : scores.probabilities) x = sigmoid(x);
    }
    return scores;
}

} // namespace batchllm
