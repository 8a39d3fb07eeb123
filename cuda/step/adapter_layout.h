// Where an adapter's changes to a model's matrices belong among a step's products, and how an adapter is laid out on the
// device. Without a device.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "adapters/adapters.h"
#include "base/status.h"
#include "model/adapter.h"
#include "model/model.h"

namespace batchllm::cuda {

// A layer's products that adapters change: of a layer with a shared expert, the last two are its.
enum class LayerProduct : uint8_t { first, last, gate_up, down };
inline constexpr size_t kLayerProducts = 4;
struct ProductPlace {
    size_t layer;
    LayerProduct product;
    size_t number() const { return layer * kLayerProducts + static_cast<size_t>(product); }
};

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
};

// An adapter on the device is its entries, one for each product, then A and B of each.
struct AdapterLayout {
    struct Piece {
        const Tensor *from; // of the adapter
        int64_t bytes;      // that it has
        AdapterPiece piece; // but for the addresses
        int64_t to;
    };
    int64_t bytes = 0;
    std::vector<AdapterEntry> entries; // a and b: to be made of the places
    std::vector<std::pair<int64_t, int64_t>> places;
    std::vector<Piece> pieces;
};

class AdaptedModel {
  public:
    AdaptedModel(const Model &model, DType element);

    const AdaptedProduct &product(ProductPlace place) const { return products_[place.number()]; }
    size_t products() const { return products_.size(); }
    // Its matrices have no adapters.
    void exclude(ProductPlace place);
    // UNSUPPORTED if the adapter changes what is in none of the products.
    Result<AdapterLayout> layout(const Adapter &adapter) const;
    // Floats of t for each row of a step, where W is changed with so many ranks.
    int64_t sums(size_t product, int64_t ranks) const {
        return adapter_ranges(products_[product].columns) * ranks;
    }

  private:
    Status check(const Adapter &adapter) const;

    DType element_;
    std::vector<AdaptedProduct> products_;       // [layers * kLayerProducts]
    std::unordered_set<const Tensor *> adapted_; // the matrices of all parts
};

} // namespace batchllm::cuda
