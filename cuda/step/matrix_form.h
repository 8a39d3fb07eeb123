// How the device holds a matrix that is made of tensors of the checkpoint: which of the tensors' own scales
// the products can multiply in as they are, and those scales in the products' layout. Without CUDA, so that
// it is tested anywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backend/gpu/packed_fit.h"
#include "linear/scaling.h"
#include "model/model.h"

namespace batchllm::cuda {

// Where a tensor's rows and columns go, and what becomes of its elements: ConvertArguments.
struct Placing {
    int64_t row_group = 1, row_group_out = 1, column_group = 1, column_group_out = 1;
    float scale = 1, offset = 0;
    bool swizzled = false; // experts' alone

    int64_t row(int64_t of_tensor) const {
        return of_tensor / row_group * row_group_out + of_tensor % row_group;
    }
    bool moves() const { return row_group != row_group_out || column_group != column_group_out; }
};

using MatrixPart = std::pair<const Tensor *, int64_t>; // and its first row in the whole
bool has_any(const std::vector<MatrixPart> &parts);    // of those that a model may not have

// What a matrix is made of. Tensors that the model does not have are no part of it.
struct MatrixSource {
    int64_t rows, columns; // with padding
    std::vector<MatrixPart> parts;
    Placing placing;
};

// The queries' tensor of a layer, whose heads are padded to `padded` rows: where each head's gate stands beside its
// query, the queries first, and the gates from row `gates` of the whole on.
class SplitQueries {
  public:
    // gate: of Attention::gate, or absent.
    SplitQueries(const Tensor &tensor, const Tensor &gate, const Attention &attention,
                 int64_t padded, int64_t gates);
    // And others; they lead to this object.
    std::vector<MatrixPart> parts(std::vector<MatrixPart> others) const;

  private:
    std::vector<std::pair<Tensor, int64_t>> all_;
};

// The matrices that begin and end a layer's mixer, of first_rows() and last_columns(); without one they are empty.
class MixerMatrices {
  public:
    MixerMatrices(const Mixer &mixer, int64_t hidden);
    MixerMatrices(const MixerMatrices &) = delete;
    MixerMatrices &operator=(const MixerMatrices &) = delete;

    MatrixSource first, last;

  private:
    std::optional<SplitQueries> queries_; // parts of `first` point into it
};

// A short convolution's filter as its kernel takes it: a vector of f32, [width, channels], the newest token's last.
class TurnedFilter {
  public:
    // filter: [channels, width]; reads: else `tensor` has a shape but no data.
    TurnedFilter(const Tensor &filter, bool reads);
    TurnedFilter(const TurnedFilter &) = delete;
    TurnedFilter &operator=(const TurnedFilter &) = delete;

    Tensor tensor;

  private:
    std::vector<float> values_;
};

// The convolution of linear attention, with places for `width` tokens: those before the ones that it sees count for
// nothing. And its biases.
std::vector<MatrixPart> convolution_parts(const LinearAttention &delta, int64_t width);
std::vector<MatrixPart> bias_parts(const LinearAttention &delta);

// How the device keeps a matrix: in four bits, in e4m3, or else in the compute type.
struct MatrixForm {
    Scaling scaling = Scaling::none;
    bool own = false; // elements and scales of the checkpoint
    std::optional<Packing> packing = {};
};

// Where a part's rows go in a packed matrix: r to first + r / run * stride + r % run (PackSource).
struct PackedPlace {
    int64_t first = 0, run = 1, stride = 1;

    int64_t row(int64_t r) const { return first + r / run * stride + r % run; }
};
// turns: of gate and up, eight rows each.
PackedPlace packed_place(const MatrixSource &source, const MatrixPart &part, bool turns);
// nvfp4: Packing::factors.
std::vector<float> packed_factors(const MatrixSource &source, bool turns);

// packed_fit(), and where the parts go. Rows of the packed matrix are a multiple of 8.
PackedFit packed_fit(const Model &model, const MatrixSource &source, DType element);

// Some part is in e4m3; in e4m3 or in four bits.
bool is_stored_in_e4m3(const MatrixSource &source);
bool is_stored_quantised(const MatrixSource &source);

// The scaling with which the parts' elements and scales can be used as they are. none: some part is not e4m3,
// or parts have scales of other kinds.
Scaling own_scaling(const MatrixSource &source);

// Of such a matrix, as Matrix::scales has them. Those of padding are 1.
std::vector<float> own_scales(const MatrixSource &source, Scaling scaling);

// How many floats that is.
int64_t scale_count(int64_t rows, int64_t columns, Scaling scaling);

// The matrices of a layer's experts, which are of one shape: each a tensor, or two whose rows take turns, eight each
// (experts/grouped.h).
struct ExpertMatrix {
    struct Parts {
        const Tensor *first, *second; // second: or null
    };
    int64_t rows, columns; // of one
    std::vector<Parts> experts;

    // Of one of them; the second tensor's rows after the first one's.
    MatrixSource source(size_t expert) const;
};

// Of all of a layer's experts: gate and up in turns, or without a gate up alone, down, and their biases in the same order.
struct ExpertMatrices {
    ExpertMatrix gate_up, down;
    std::vector<MatrixPart> gate_up_bias, down_bias;
    Placing of_gate_up_bias;

    ExpertMatrices(const Experts &experts, int64_t hidden);
    bool biased() const { return has_any(gate_up_bias) || has_any(down_bias); }
};

// As of MatrixSource, of all experts together.
PackedFit packed_fit(const Model &model, const ExpertMatrix &matrix, DType element);
Scaling own_scaling(const ExpertMatrix &matrix);
std::vector<float> expert_scales(const ExpertMatrix &matrix, Scaling scaling); // GroupedScales::w
int64_t expert_scale_count(const ExpertMatrix &matrix, Scaling scaling);

} // namespace batchllm::cuda
