// Where an adapter's changes to a model's matrices belong among a step's products, and how an adapter is laid out on the
// device. Without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "adapters/adapters.h"
#include "base/status.h"
#include "model/adapter.h"
#include "model/model.h"

namespace batchllm::cuda {

// A layer's products that adapters change: of a layer with a shared expert, gate_up and down are its. queries: of latents, their
// second product; gates, decays: of a ChannelDeltaNet, z and a.
enum class LayerProduct : uint8_t { first, last, gate_up, down, router, queries, gates, decays };
inline constexpr size_t kLayerProducts = 8;
struct ProductPlace {
    size_t layer;
    LayerProduct product;
    size_t number() const { return layer * kLayerProducts + static_cast<size_t>(product); }
};
// Of each of a layer's experts.
enum class ExpertProduct : uint8_t { gate_up, down };
inline constexpr size_t kExpertProducts = 2;

// One of the model's matrices as part of W; places as AdapterPiece has them.
struct AdaptedPart {
    const Tensor *matrix;
    int32_t first, rows; // of W
    int32_t size, padded, stride, begin;
};
struct AdaptedProduct {
    int32_t columns = 0, size = 0, padded = 0; // of x; heads of columns
    int32_t width = 0;                         // of y
    std::vector<AdaptedPart> parts;            // one after another
    bool turns = false;                        // or by turns (AdapterArguments::turns)
    // Parts that the launches do not take one by one: they are one, with the ranks of all, and zeros in B where a row's matrix
    // has no part of them.
    bool together = false;
    int32_t rows = 1;       // of x and y, of a token: turns of an expert
    int32_t looked_up = 0;  // the embedding's: rows of A's transpose, a token each
    size_t launch = 0;      // the product whose launch it is in: of experts the first one's
    int32_t most_ranks = 0; // of an adapter, all parts together; 0: any

    int32_t range() const { return adapter_range(columns, rows > 1); } // AdapterArguments'
    // Where the launches' parts begin, and behind them the last one's end; how many there are.
    int32_t firsts(int32_t (&first)[kAdapterParts + 1]) const;
};

// An adapter on the device is its entries, one for each product (but for experts', if it changes none), then A and B of each.
struct AdapterLayout {
    struct Piece {
        const Tensor *from; // of the adapter
        int64_t bytes;      // that it has
        float scale;        // of the change that it is of
        AdapterPiece piece; // but for the addresses
        int64_t to;
    };
    int64_t bytes = 0;
    std::vector<AdapterEntry> entries; // a and b: to be made of the places
    std::vector<std::pair<int64_t, int64_t>> places;
    std::vector<Piece> pieces;
    std::vector<std::pair<int64_t, int64_t>> zeros; // where, and how many bytes, before the pieces
};

constexpr int64_t padded_piece(int64_t bytes) { return (bytes + 15) / 16 * 16; }
// The bytes of pieces' matrices one after another, each at a multiple of 16.
class PieceBytes {
  public:
    explicit PieceBytes(std::span<const AdapterLayout::Piece> pieces);

    int64_t bytes() const { return begins_.back(); }
    // Some of them, those between matrices aside. Any threads at a time.
    void copy(int64_t from, int64_t bytes, std::byte *to) const;

  private:
    std::span<const AdapterLayout::Piece> pieces_;
    std::vector<int64_t> begins_; // [pieces + 1]
};

class AdaptedModel {
  public:
    AdaptedModel(const Model &model, DType element);

    // By number: layers' products, the embedding, the head, those of experts.
    const AdaptedProduct &product(size_t number) const { return products_[number]; }
    size_t products() const { return products_.size(); }
    size_t embedding() const { return embedding_; }
    size_t head() const { return embedding_ + 1; }
    // Of the layer's first expert; those of others follow.
    size_t of_experts(size_t layer, ExpertProduct product) const {
        return experts_[layer] + static_cast<size_t>(product);
    }
    // The product's matrices have no adapters.
    void exclude(size_t number);
    void exclude_experts(size_t layer, ExpertProduct product);
    // Adapters with more ranks, all parts of an expert's product together, are refused.
    void limit_experts(size_t layer, ExpertProduct product, int32_t ranks);
    // UNSUPPORTED if the adapter changes what is in none of the products.
    Result<AdapterLayout> layout(const Adapter &adapter) const;
    // Floats of t for each row of a step, where W is changed with so many ranks.
    int64_t sums(size_t product, int64_t ranks) const {
        const AdaptedProduct &of = products_[product];
        return of.rows * ((of.columns + of.range() - 1) / of.range()) * ranks;
    }

  private:
    Status check(const Adapter &adapter) const;

    DType element_;
    void add_experts(const Experts &experts, int32_t hidden);

    std::vector<AdaptedProduct> products_;
    size_t embedding_;                           // [layers * kLayerProducts]
    std::vector<size_t> experts_, experts_end_;  // [layers] products
    std::unordered_set<const Tensor *> adapted_; // the matrices of all parts
};

} // namespace batchllm::cuda
