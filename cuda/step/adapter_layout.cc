#include "step/adapter_layout.h"

#include <algorithm>
#include <cstring>

#include "backend/gpu/step_buffers.h"
#include "base/visit.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kAlign = 256;
int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t bytes_of(const Tensor &tensor) {
    return tensor.rows * tensor.columns * dtype_bytes(tensor.dtype);
}

// Whole: neither heads nor gates.
AdaptedPart whole(const Tensor &matrix, int64_t first) {
    const auto rows = static_cast<int32_t>(matrix.rows);
    return {&matrix, static_cast<int32_t>(first), rows, rows, rows, rows, 0};
}

AdaptedProduct make_product(int64_t columns, int64_t width, std::vector<AdaptedPart> parts) {
    AdaptedProduct made;
    made.columns = made.size = made.padded = static_cast<int32_t>(columns);
    made.width = static_cast<int32_t>(width);
    std::erase_if(parts, [](const AdaptedPart &part) { return !*part.matrix; });
    made.parts = std::move(parts);
    return made;
}

AdaptedProduct first_of(const Mixer &mixer, int64_t hidden) {
    std::vector<AdaptedPart> parts;
    std::visit(
        Visitor{[](const NoMixer &) {},
                [&](const Attention &a) {
                    if (a.latent) {
                        parts = {whole(a.first_q().values, 0),
                                 whole(a.latent.down.values, a.first_q().rows())};
                        return;
                    }
                    const auto padded = padded_head_dim(a.head_dim);
                    int32_t row = 0;
                    const auto add = [&](const Weight &w, int32_t heads, int32_t of_head,
                                         int32_t begin) {
                        parts.push_back({&w.values, row, heads * padded, a.head_dim, padded,
                                         of_head * a.head_dim, begin});
                        row += heads * padded;
                    };
                    const bool beside = a.gated && !a.gate; // each head's gate behind its query
                    const int32_t of_head = beside ? 2 : 1;
                    add(a.q, a.heads, of_head, 0);
                    if (a.kv_layer < 0) {
                        add(a.k, a.kv_heads, 1, 0);
                        add(a.v, a.kv_heads, 1, 0);
                    }
                    if (beside) add(a.q, a.heads, of_head, a.head_dim);
                    if (a.gate) add(a.gate, a.heads, 1, 0);
                },
                [&](const LinearAttention &linear) {
                    int64_t row = 0;
                    for (const Tensor &part : linear.input) {
                        parts.push_back(whole(part, row));
                        row += part.rows;
                    }
                },
                [&](const ShortConvolution &convolution) {
                    const int64_t channels = convolution.channels();
                    parts = {whole(convolution.b.values, 0), whole(convolution.c.values, channels),
                             whole(convolution.x.values, 2 * channels)};
                }},
        mixer);
    return make_product(hidden, first_rows(mixer), std::move(parts));
}

AdaptedProduct last_of(const Mixer &mixer, int64_t hidden) {
    return std::visit(
        Visitor{[](const NoMixer &) { return AdaptedProduct{}; },
                [&](const Attention &a) {
                    AdaptedProduct made =
                        make_product(last_columns(mixer), hidden, {whole(a.o.values, 0)});
                    if (a.latent) return made;
                    made.size = a.head_dim;
                    made.padded = padded_head_dim(a.head_dim);
                    return made;
                },
                [&](const auto &other) {
                    return make_product(last_columns(mixer), hidden, {whole(other.o.values, 0)});
                }},
        mixer);
}

AdaptedProduct router_of(const Layer &layer, int64_t hidden) {
    const Experts *experts = layer.experts();
    if (experts == nullptr) return {};
    const SharedExperts *both = layer.shared();
    const Tensor &router = experts->router.weight.values;
    const Tensor none;
    const bool gate = both != nullptr && both->gate;
    const int64_t rows = router.rows + (gate ? 1 : 0);
    return make_product(hidden, (rows + 15) / 16 * 16,
                        {whole(router, 0), whole(gate ? both->gate.values : none, router.rows)});
}

AdaptedProduct queries_of(const Mixer &mixer) {
    const auto *a = std::get_if<Attention>(&mixer);
    if (a == nullptr || !a->latent.q_down) return {};
    return make_product(a->q.columns(), a->q.rows(), {whole(a->q.values, 0)});
}

// Of what its first product made.
AdaptedProduct second_of(const ChannelDeltaNet &net, const Weight &weight) {
    return make_product(net.gate_rank, weight.rows(), {whole(weight.values, 0)});
}

bool follow_one_another(const AdaptedProduct &p) {
    int32_t end = 0;
    for (const AdaptedPart &part : p.parts) {
        if (part.first != end) return false;
        end += part.rows;
    }
    return true;
}

// In 16 bits parts begin at columns of y that are multiples of 8.
bool are_launched_apart(const AdaptedProduct &p, DType element) {
    return p.parts.size() <= kAdapterParts &&
           (element == DType::f32 ||
            std::all_of(p.parts.begin(), p.parts.end(),
                        [](const AdaptedPart &part) { return part.first % 8 == 0; }));
}

} // namespace

int32_t AdaptedProduct::firsts(int32_t (&first)[kAdapterParts + 1]) const {
    const int32_t count = together ? 1 : static_cast<int32_t>(parts.size());
    for (int32_t p = 0; p < count; ++p) first[p] = parts[static_cast<size_t>(p)].first;
    first[count] = (parts.back().first + parts.back().rows + 7) / 8 * 8;
    return count;
}

AdaptedModel::AdaptedModel(const Model &model, DType element)
    : element_(element), products_(model.layers.size() * kLayerProducts + 2),
      embedding_(model.layers.size() * kLayerProducts) {
    const int64_t hidden = model.hidden;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        const Layer &layer = model.layers[i];
        AdaptedProduct *to = &products_[i * kLayerProducts];
        to[static_cast<size_t>(LayerProduct::first)] = first_of(layer.mixer, hidden);
        to[static_cast<size_t>(LayerProduct::last)] = last_of(layer.mixer, hidden);
        to[static_cast<size_t>(LayerProduct::router)] = router_of(layer, hidden);
        to[static_cast<size_t>(LayerProduct::queries)] = queries_of(layer.mixer);
        if (const auto *net = std::get_if<ChannelDeltaNet>(&layer.mixer)) {
            to[static_cast<size_t>(LayerProduct::gates)] = second_of(*net, net->z);
            to[static_cast<size_t>(LayerProduct::decays)] = second_of(*net, net->a);
        }
        if (const FeedForward *f = layer.feed_forward()) {
            const int64_t up = f->gate ? f->width : 0;
            to[static_cast<size_t>(LayerProduct::gate_up)] = make_product(
                hidden, up + f->width, {whole(f->gate.values, 0), whole(f->up.values, up)});
            to[static_cast<size_t>(LayerProduct::down)] =
                make_product(f->width, hidden, {whole(f->down.values, 0)});
        }
    }
    AdaptedProduct &embedding = products_[embedding_];
    embedding = make_product(8, hidden, {}); // t has one range
    embedding.looked_up = model.vocabulary;
    embedding.parts = {whole(model.embedding, 0)};
    embedding.parts[0].rows = embedding.parts[0].size = embedding.parts[0].padded =
        embedding.parts[0].stride = model.hidden;
    products_[head()] = make_product(hidden, head_rows(model), {whole(model.head.values, 0)});
    for (size_t i = 0; i < products_.size(); ++i) products_[i].launch = i;
    for (const Layer &layer : model.layers) {
        experts_.push_back(products_.size());
        if (layer.experts() != nullptr) add_experts(*layer.experts(), model.hidden);
        experts_end_.push_back(products_.size());
    }
    for (size_t i = 0; i < products_.size(); ++i) {
        AdaptedProduct &p = products_[i];
        if (!follow_one_another(p)) p.parts.clear();
        p.together = !are_launched_apart(p, element);
        if (i == embedding_) continue;
        for (const AdaptedPart &part : p.parts) adapted_.insert(part.matrix);
    }
}

void AdaptedModel::add_experts(const Experts &experts, int32_t hidden) {
    const size_t first = products_.size();
    for (const FeedForward &f : experts.each) {
        const int64_t up = f.gate ? f.width : 0;
        products_.push_back(
            make_product(hidden, up + f.width, {whole(f.gate.values, 0), whole(f.up.values, up)}));
        products_.back().turns = bool(f.gate);
        products_.back().launch = first;
        products_.push_back(make_product(f.width, hidden, {whole(f.down.values, 0)}));
        products_.back().launch = first + 1;
    }
    for (size_t i = first; i < products_.size(); ++i) products_[i].rows = experts.router.chosen;
}

void AdaptedModel::exclude(size_t number) {
    for (const AdaptedPart &part : products_[number].parts) adapted_.erase(part.matrix);
    products_[number].parts.clear();
}

void AdaptedModel::exclude_experts(size_t layer, ExpertProduct product) {
    for (size_t i = of_experts(layer, product); i < experts_end_[layer]; i += kExpertProducts) {
        exclude(i);
    }
}

void AdaptedModel::limit_experts(size_t layer, ExpertProduct product, int32_t ranks) {
    for (size_t i = of_experts(layer, product); i < experts_end_[layer]; i += kExpertProducts) {
        products_[i].most_ranks = ranks;
    }
}

constexpr int64_t most_rank = 512; // of a part, as expand has room for

Status AdaptedModel::check(const Adapter &adapter) const {
    const auto check_rank = [](const std::string &name, const LowRank &change) -> Status {
        if (change.rank() <= most_rank) return {};
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: adapter of '%s': its rank is %lld; at most %lld is supported",
                     name.c_str(), static_cast<long long>(change.rank()),
                     static_cast<long long>(most_rank));
    };
    for (const auto &[matrix, change] : adapter.changes) {
        if (adapted_.count(matrix) == 0) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "cuda backend: adapters of '%s' are not supported", matrix->name.c_str());
        }
        RETURN_IF_ERROR(check_rank(matrix->name, change));
    }
    return check_rank("the embedding", adapter.embedding);
}

Result<AdapterLayout> AdaptedModel::layout(const Adapter &adapter) const {
    RETURN_IF_ERROR(check(adapter));
    const int64_t element = dtype_bytes(element_);
    AdapterLayout made;
    const auto changes = [&](const AdaptedProduct &p) {
        return std::any_of(p.parts.begin(), p.parts.end(), [&](const AdaptedPart &part) {
            return adapter.of(*part.matrix) != nullptr;
        });
    };
    const auto experts = products_.begin() + static_cast<std::ptrdiff_t>(embedding_) + 2;
    const bool changes_experts = std::any_of(experts, products_.end(), changes);
    const size_t products = changes_experts ? products_.size() : embedding_ + 2;
    made.entries.resize(products);
    made.entries[0].entries = static_cast<int32_t>(products);
    made.places.resize(products);
    made.bytes = align(static_cast<int64_t>(products * sizeof(AdapterEntry)));
    for (size_t number = 0; number < products; ++number) {
        const AdaptedProduct &p = products_[number];
        AdapterEntry &entry = made.entries[number];
        // The matrices of A, those of B; their places are known once all ranks are.
        std::vector<AdapterLayout::Piece> a_pieces, b_pieces;
        int64_t b_bytes = 0;
        for (size_t i = 0; i < p.parts.size(); ++i) {
            const AdaptedPart &part = p.parts[i];
            const LowRank *change =
                number == embedding_ ? &adapter.embedding : adapter.of(*part.matrix);
            if (change == nullptr || change->rank() == 0) continue;
            const int32_t ranks = padded_rank(change->rank());
            AdapterPart of_entry{ranks, entry.ranks, static_cast<int32_t>(b_bytes / 16),
                                 change->scale};
            AdapterPiece piece{};
            piece.ranks = ranks;
            piece.rank = static_cast<int32_t>(change->rank());
            const auto same =
                std::find_if(a_pieces.begin(), a_pieces.end(), [&](const auto &other) {
                    return other.from->data == change->a.data && other.piece.rank == piece.rank &&
                           other.scale == change->scale;
                });
            if (same != a_pieces.end()) {
                of_entry.first = static_cast<int32_t>(same->to);
            } else {
                piece.type = change->a.dtype;
                piece.is_b = false;
                piece.places = p.columns;
                piece.from_places = change->a.columns;
                piece.size = piece.stride = p.size;
                piece.padded = p.padded;
                if (p.looked_up > 0) { // a row for each token
                    piece.turned = true;
                    piece.ranks = piece.rank = p.looked_up;
                    piece.places = piece.padded = ranks;
                    piece.from_places = piece.size = piece.stride =
                        static_cast<int32_t>(change->rank());
                }
                a_pieces.push_back(
                    {&change->a, bytes_of(change->a), change->scale, piece, entry.ranks});
                entry.ranks += ranks;
                piece.turned = false;
                piece.ranks = ranks;
                piece.rank = static_cast<int32_t>(change->rank());
            }
            piece.type = change->b.dtype;
            piece.is_b = true;
            piece.places = packed_b_elements(part.rows, ranks) / ranks;
            piece.from_places = change->b.rows;
            piece.size = part.size;
            piece.padded = part.padded;
            piece.stride = part.stride;
            piece.begin = part.begin;
            if (p.together) {
                piece.places = part.rows;
                piece.to_row = part.first;
                piece.to_rank = of_entry.first;
                piece.factor = change->scale;
            } else {
                entry.parts[i] = of_entry;
            }
            b_pieces.push_back({&change->b, bytes_of(change->b), change->scale, piece, b_bytes});
            if (!p.together) b_bytes += packed_b_elements(part.rows, ranks) * element;
        }
        if (entry.ranks == 0) continue;
        if (p.most_ranks > 0 && entry.ranks > p.most_ranks) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "cuda backend: adapter of '%s' and others: their ranks are %d together; "
                         "of experts in fp8 with scales of blocks, and with reproducible, at most "
                         "%d are supported",
                         p.parts[0].matrix->name.c_str(), entry.ranks, p.most_ranks);
        }
        if (p.together) {
            if (entry.ranks > most_rank) {
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "cuda backend: adapter of '%s' and others: their ranks are %d "
                             "together; at most %lld are supported",
                             p.parts[0].matrix->name.c_str(), entry.ranks,
                             static_cast<long long>(most_rank));
            }
            for (AdapterLayout::Piece &piece : b_pieces) piece.piece.to_ranks = entry.ranks;
            entry.parts[0] = {entry.ranks, 0, 0, 1};
            b_bytes = packed_b_elements(p.parts.back().first + p.parts.back().rows, entry.ranks) *
                      element;
        }
        const int64_t a = made.bytes;
        const int64_t row = (p.looked_up > 0 ? p.looked_up : p.columns) * element;
        const int64_t b = align(a + entry.ranks * row);
        for (AdapterLayout::Piece &piece : a_pieces) {
            piece.to = a + piece.to * row;
            made.pieces.push_back(piece);
        }
        for (AdapterLayout::Piece &piece : b_pieces) {
            piece.to += b;
            made.pieces.push_back(piece);
        }
        if (p.together) made.zeros.emplace_back(b, b_bytes);
        made.places[number] = {a, b};
        made.bytes = align(b + b_bytes);
    }
    return made;
}

PieceBytes::PieceBytes(std::span<const AdapterLayout::Piece> pieces) : pieces_(pieces), begins_(1) {
    for (const AdapterLayout::Piece &piece : pieces) {
        begins_.push_back(begins_.back() + padded_piece(piece.bytes));
    }
}

// By rows, or where these follow one another the whole matrix as one.
void PieceBytes::copy(int64_t from, int64_t bytes, std::byte *to) const {
    const int64_t end = from + bytes;
    auto i = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), from) -
                                 begins_.begin() - 1);
    for (; i < pieces_.size() && begins_[i] < end; ++i) {
        const Tensor &tensor = *pieces_[i].from;
        const int64_t element = dtype_bytes(tensor.dtype);
        const bool whole = tensor.row_length() == tensor.columns;
        const int64_t row = (whole ? tensor.rows : 1) * tensor.columns * element;
        const int64_t stride = whole ? row : tensor.row_length() * element;
        const int64_t last = std::min(end - begins_[i], pieces_[i].bytes);
        for (int64_t at = std::max<int64_t>(from - begins_[i], 0); at < last;) {
            const int64_t in_row = at % row, count = std::min(row - in_row, last - at);
            std::memcpy(to + (begins_[i] + at - from), tensor.data + at / row * stride + in_row,
                        static_cast<size_t>(count));
            at += count;
        }
    }
}

} // namespace batchllm::cuda
