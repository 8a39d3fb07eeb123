// Adapters' products on the device against float64, over types, ranks, parts of W, tiles and rows with and without adapters;
// and their bits, which are a row's own.
#include <optional>
#include <string>

#include "adapters/adapters.h"
#include "adapters/work.h"
#include "gated/adapted_activation.h"
#include "gated/gated.h"
#include "reference_layer.h"
#include "seed.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;
bool hopper = false;

// A product's shape. Heads: of A's columns, or of B's rows, `size` in `padded` places; 0: no heads.
struct Shape {
    DType element, y_type;
    int32_t columns;
    std::vector<int32_t> widths;             // of the parts, with padding
    int32_t column_heads = 0, row_heads = 0; // size; padded to 64
    Scaling scaling = Scaling::none;         // of x
    float alpha = 1;
    bool turns = false; // two parts take turns in y

    int32_t width() const {
        int32_t all = 0;
        for (const int32_t w : widths) all += w;
        return all;
    }
    std::string name() const {
        std::string text = std::string(dtype_name(element)) + " to " + dtype_name(y_type) + ", " +
                           std::to_string(columns) + " columns, parts of";
        for (const int32_t w : widths) text += " " + std::to_string(w);
        if (column_heads > 0) text += ", heads of columns";
        if (row_heads > 0) text += ", heads of rows";
        if (scaling != Scaling::none) text += ", e4m3";
        return text;
    }
};
constexpr int32_t kPadded = 64;

int32_t without_padding(int32_t places, int32_t size) {
    return size > 0 ? places / kPadded * size : places;
}

// One adapter's matrices, as in a file, and on the device.
struct Made {
    struct Part {
        int32_t rank = 0;
        float scale = 1;
        std::vector<float> a, b; // [rank, columns], [rows, rank], without padding
        bool shares = false;     // A with the part before
    };
    std::vector<Part> parts;
    DeviceMemory packed;
    AdapterEntry entry{};

    Made(Random &random, const Shape &s, const std::vector<int32_t> &ranks) {
        const int32_t columns = without_padding(s.columns, s.column_heads);
        const DType types[] = {DType::f32, DType::f16, DType::bf16};
        for (size_t p = 0; p < ranks.size(); ++p) {
            Part part;
            part.rank = ranks[p];
            part.scale = 0.25F * static_cast<float>(draw(random, 1, 12));
            part.shares = p > 0 && ranks[p] == ranks[p - 1] && draw(random, 0, 3) == 0;
            if (part.shares) part.scale = parts.back().scale;
            const float deviation = 1 / std::sqrt(static_cast<float>(columns));
            part.a = part.shares
                         ? parts.back().a
                         : normal(random, int64_t{part.rank} * columns, s.element, deviation);
            part.b = normal(random, int64_t{without_padding(s.widths[p], s.row_heads)} * part.rank,
                            s.element, 1 / std::sqrt(static_cast<float>(std::max(1, part.rank))));
            parts.push_back(std::move(part));
        }
        const int64_t element = dtype_bytes(s.element);
        int64_t bytes = 0;
        for (size_t p = 0; p < parts.size(); ++p) {
            const Part &part = parts[p];
            entry.parts[p] = {padded_rank(part.rank), entry.ranks, 0, part.scale};
            if (part.shares) {
                entry.parts[p].first = entry.parts[p - 1].first;
            } else {
                entry.ranks += padded_rank(part.rank);
            }
        }
        const int64_t of_a = int64_t{entry.ranks} * s.columns * element;
        bytes = of_a;
        for (size_t p = 0; p < parts.size(); ++p) {
            entry.parts[p].b_units = static_cast<int32_t>((bytes - of_a) / 16);
            bytes += packed_b_elements(s.widths[p], parts[p].rank) * element;
        }
        packed =
            upload(std::vector<uint8_t>(static_cast<size_t>(std::max<int64_t>(bytes, 16)), 255));
        entry.a = packed.data();
        entry.b = packed.data() + of_a;
        std::vector<Array> files;
        std::vector<AdapterPiece> pieces;
        for (size_t p = 0; p < parts.size(); ++p) {
            const Part &part = parts[p];
            if (part.rank == 0) continue;
            const DType type = s.element == DType::f32 ? DType::f32 : types[draw(random, 0, 2)];
            AdapterPiece piece{};
            // What is rounded to the element's type stays as it is in f32.
            piece.type = type == s.element ? type : DType::f32;
            piece.ranks = padded_rank(part.rank);
            piece.rank = part.rank;
            if (!part.shares) {
                files.emplace_back(part.a, piece.type);
                piece.from = files.back().data();
                piece.to = packed.data() + int64_t{entry.parts[p].first} * s.columns * element;
                piece.is_b = false;
                piece.places = s.columns;
                piece.from_places = without_padding(s.columns, s.column_heads);
                set_heads(&piece, s.column_heads, s.columns);
                pieces.push_back(piece);
            }
            files.emplace_back(part.b, piece.type);
            piece.from = files.back().data();
            piece.to = packed.data() + of_a + int64_t{entry.parts[p].b_units} * 16;
            piece.is_b = true;
            piece.places = packed_b_elements(s.widths[p], part.rank) / piece.ranks;
            piece.from_places = without_padding(s.widths[p], s.row_heads);
            set_heads(&piece, s.row_heads, static_cast<int32_t>(piece.places));
            pieces.push_back(piece);
        }
        const DeviceMemory there = upload(pieces);
        check(launch_adapter_pack(s.element, there.as<AdapterPiece>(),
                                  static_cast<int32_t>(pieces.size()), sms, nullptr));
        check(cudaDeviceSynchronize());
    }
    static void set_heads(AdapterPiece *piece, int32_t size, int32_t places) {
        piece->size = piece->stride = size > 0 ? size : places;
        piece->padded = size > 0 ? kPadded : places;
        piece->begin = 0;
    }
};

// How an adapter's rows are cut. mixed: every other adapter's in tiles of few rows, the others' in short ones.
enum class Tiles { low, tall, mixed };

// -> what AdapterLists::few is then.
int32_t cut(std::vector<AdapterTile> *tiles, Tiles kind, const AdapterEntry *entries) {
    std::vector<AdapterTile> few, others;
    for (const AdapterTile &tile : *tiles) {
        if (kind == Tiles::mixed && (tile.entries - entries) / 2 % 2 == 0) {
            for (int32_t i = 0; i < tile.count; i += kFewRows) {
                few.push_back({tile.entries, tile.begin + i, std::min(kFewRows, tile.count - i)});
            }
        } else if (kind == Tiles::tall && !others.empty() &&
                   others.back().entries == tile.entries &&
                   others.back().count + tile.count <= kTallTile) { // an adapter's tiles together
            others.back().count += tile.count;
        } else {
            others.push_back(tile);
        }
    }
    *tiles = few;
    tiles->insert(tiles->end(), others.begin(), others.end());
    return static_cast<int32_t>(few.size());
}

// x and y of so many rows, and what they are multiplied with.
struct Job {
    const Shape &s;
    std::vector<Made> adapters;
    std::vector<int32_t> slots; // of the rows
    std::vector<float> x, before;
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    DeviceMemory codes_there;
    Activation gating = Activation::silu;
    std::optional<Array> x_there, scales_there;
    DeviceMemory entries;
    int32_t most = 8, most_of_part = 0;

    int32_t rows() const { return static_cast<int32_t>(slots.size()); }
    int64_t groups() const { // of a row's columns, with a scale each
        return s.scaling == Scaling::rows ? 1 : scale_groups(s.columns);
    }

    Job(Random &random, const Shape &shape, const std::vector<std::vector<int32_t>> &ranks,
        std::vector<int32_t> of_rows)
        : s(shape), slots(std::move(of_rows)) {
        std::vector<AdapterEntry> all;
        for (const std::vector<int32_t> &own : ranks) {
            adapters.emplace_back(random, s, own);
            all.push_back({}); // of another product
            all.push_back(adapters.back().entry);
            most = std::max(most, adapters.back().entry.ranks);
            for (const AdapterPart &part : adapters.back().entry.parts) {
                most_of_part = std::max(most_of_part, part.rank);
            }
        }
        entries = upload(all);
        const int64_t count = int64_t{rows()} * s.columns;
        before = normal(random, int64_t{rows()} * s.width(), s.y_type);
        if (s.scaling == Scaling::none) {
            x = normal(random, count, s.element);
            x_there.emplace(x, s.element);
            return;
        }
        for (int64_t i = 0; i < groups() * rows(); ++i) {
            scales.push_back(0.01F * static_cast<float>(draw(random, 1, 9)));
        }
        for (int64_t i = 0; i < count; ++i) {
            const auto row = i / s.columns, column = i % s.columns;
            codes.push_back(static_cast<uint8_t>(draw(random, 0, 255)) & 0xbf);
            const auto group = groups() == 1 ? 0 : column / kScaleBlock;
            const auto at =
                s.scaling == Scaling::turns ? row * groups() + group : group * rows() + row;
            x.push_back(
                rounded(e4m3_to_float(codes.back()) * scales[static_cast<size_t>(at)], s.element));
        }
        codes_there = upload(codes);
        scales_there.emplace(scales, DType::f32);
    }

    enum class Ends {
        in_y,
        gated,    // what gate and up make, of W = 0
        activated // y's
    };
    // Of the rows that are `kept`.
    std::vector<float> run(const std::vector<bool> &kept, Tiles kind,
                           Ends ends = Ends::in_y) const {
        std::vector<int32_t> chosen = slots;
        for (size_t i = 0; i < chosen.size(); ++i) {
            if (!kept[i]) chosen[i] = -1;
        }
        AdapterLists lists;
        std::vector<const AdapterEntry *> of_slots;
        for (size_t i = 0; i < adapters.size(); ++i) {
            of_slots.push_back(entries.as<AdapterEntry>() + 2 * i);
        }
        lists.list(chosen, of_slots, true);
        const int32_t few = cut(&lists.tiles, kind, entries.as<AdapterEntry>());
        const auto all = static_cast<int32_t>(lists.tiles.size());
        const DeviceMemory there_rows = upload(lists.rows), there_tiles = upload(lists.tiles);
        const DeviceMemory counts = upload(std::vector<int32_t>{few, all - few});
        std::vector<float> of_y = before;
        for (size_t i = 0; s.turns && i < of_y.size(); ++i) {
            const size_t width = size_t(s.width()), part = i % width / (width / 2);
            const size_t column = i % (width / 2);
            of_y[i / width * width + column / kPartTurn * 2 * kPartTurn + part * kPartTurn +
                 column % kPartTurn] = before[i];
        }
        const Array y(of_y, s.y_type);
        const DeviceMemory of_rows = upload(lists.entries);
        const DeviceMemory block_counts = upload(lists.block_counts),
                           block_entries = upload(lists.block_entries);
        const int32_t stride = most + 8;
        const int32_t wide = adapter_range(s.columns, rows() % 3 == 0);
        const Array t(int64_t{(s.columns + wide - 1) / wide} * (rows() + 3) * stride, DType::f32);
        AdapterArguments a{};
        a.element = s.element;
        a.work = {counts.as<int32_t>() + 1,
                  there_tiles.as<AdapterTile>(),
                  there_rows.as<int32_t>(),
                  of_rows.as<const AdapterEntry *>(),
                  kind == Tiles::tall,
                  block_counts.as<int32_t>(),
                  block_entries.as<const AdapterEntry *>(),
                  counts.as<int32_t>(),
                  few > 0,
                  few < all};
        a.product = 1;
        a.most_ranks = most;
        a.most_of_part = most_of_part;
        a.x = s.scaling == Scaling::none ? x_there->data() : codes_there.data();
        a.columns = s.columns;
        a.range = wide;
        a.x_scales = s.scaling == Scaling::none ? nullptr : scales_there->floats();
        a.x_row_stride = s.scaling == Scaling::turns ? groups() : 1;
        a.x_group_stride = s.scaling == Scaling::blocks  ? rows()
                           : s.scaling == Scaling::turns ? 1
                                                         : 0;
        a.t = t.data();
        // Half of the jobs have t in ranges, as other devices do.
        a.whole = (ends == Ends::gated || rows() % 2 == 0) &&
                  adapter_sums_can_be_whole(s.element, hopper);
        a.t_rows = rows() + 3;
        a.t_stride = stride;
        a.y = y.data();
        a.y_type = s.y_type;
        a.width = s.width();
        a.parts = static_cast<int32_t>(s.widths.size());
        for (int32_t p = 0; p < a.parts; ++p) {
            a.first[p + 1] = a.first[p] + s.widths[static_cast<size_t>(p)];
        }
        a.alpha = s.alpha;
        a.turns = s.turns;
        check(launch_adapter_shrink(a, sms, nullptr));
        if (ends == Ends::activated) return activate(a);
        if (ends == Ends::gated) {
            const int32_t width = s.width() / 2;
            const Array zeros(std::vector<float>(size_t(s.width()) * size_t(s.columns)), s.element);
            const Array out(int64_t{rows()} * width, s.element);
            GatedArguments product{s.element,  Activation::silu, a.x,       zeros.data(),
                                   out.data(), rows(),           s.columns, width};
            product.adapters = &a;
            check(launch_gated_sm90(product, sms, nullptr));
            return out.read();
        }
        check(launch_adapter_expand(a, sms, nullptr));
        return y.read();
    }

    // 0 in rows that are left as they are. Where x is in e4m3, what is activated is, too.
    std::vector<float> activate(const AdapterArguments &a) const {
        const int32_t width = s.width() / 2;
        const auto count = size_t(rows()) * size_t(width);
        const Array out(int64_t{rows()} * width, s.element);
        const DeviceMemory of_rows = upload(std::vector<float>(size_t(rows()), 1));
        const DeviceMemory to_codes = upload(std::vector<uint8_t>(count, 0));
        const bool in_e4m3 = s.scaling != Scaling::none;
        void *const to = in_e4m3 ? static_cast<void *>(to_codes.data()) : out.data();
        check(cudaMemset(out.data(), 0, 2 * count));
        const ActivationArguments activation{s.element, gating, true,   a.y,
                                             nullptr,   to,     rows(), width};
        assert_true(takes_adapted_activation(a, activation, in_e4m3));
        check(launch_adapted_activation(a, activation, in_e4m3 ? of_rows.as<float>() : nullptr, sms,
                                        nullptr));
        if (!in_e4m3) return out.read();
        const auto codes_of_rows = download<uint8_t>(to_codes, count);
        const auto scales_of_rows = download<float>(of_rows, size_t(rows()));
        std::vector<float> got;
        for (size_t i = 0; i < count; ++i) {
            got.push_back(e4m3_to_float(codes_of_rows[i]) * scales_of_rows[i / size_t(width)]);
        }
        return got;
    }

    std::vector<double> wanted() const {
        std::vector<double> y(before.begin(), before.end());
        const int32_t columns = without_padding(s.columns, s.column_heads);
        const int32_t columns_size = s.column_heads > 0 ? s.column_heads : s.columns;
        const int32_t columns_padded = s.column_heads > 0 ? kPadded : s.columns;
        for (int32_t row = 0; row < rows(); ++row) {
            if (slots[size_t(row)] < 0) continue;
            int32_t first = 0;
            for (size_t p = 0; p < s.widths.size(); first += s.widths[p++]) {
                const Made::Part &part = adapters[size_t(slots[size_t(row)])].parts[p];
                const int32_t size = s.row_heads > 0 ? s.row_heads : s.widths[p];
                const int32_t padded = s.row_heads > 0 ? kPadded : s.widths[p];
                std::vector<double> t(size_t(part.rank));
                for (int32_t r = 0; r < part.rank; ++r) {
                    for (int32_t k = 0; k < columns; ++k) {
                        const int32_t place = k / columns_size * columns_padded + k % columns_size;
                        t[size_t(r)] += double(part.a[size_t(r * columns + k)]) *
                                        double(x[size_t(row) * size_t(s.columns) + size_t(place)]);
                    }
                }
                for (int32_t n = 0; n < without_padding(s.widths[p], s.row_heads); ++n) {
                    double sum = 0;
                    for (int32_t r = 0; r < part.rank; ++r) {
                        sum += t[size_t(r)] * double(part.b[size_t(n * part.rank + r)]);
                    }
                    const int32_t place = first + n / size * padded + n % size;
                    y[size_t(row) * size_t(s.width()) + size_t(place)] +=
                        double(s.alpha) * double(part.scale) * sum;
                }
            }
        }
        return y;
    }

    // Everything that holds of the job.
    void check_all(Random &random, const std::string &name) const {
        const DType worst = s.element == DType::f32 ? DType::f32 : s.element;
        const std::vector<bool> all(slots.size(), true);
        std::vector<bool> some(slots.size());
        for (size_t i = 0; i < some.size(); ++i) some[i] = draw(random, 0, 2) == 0;
        const auto width = size_t(s.width());
        for (const Tiles kind : {Tiles::low, Tiles::mixed}) {
            if (kind == Tiles::mixed && s.element == DType::f32) continue;
            const std::string text = name + (kind == Tiles::mixed ? ", tiles of few rows" : "");
            const std::vector<float> got = run(all, kind);
            assert_close(got, wanted(), tolerance(worst), text.c_str());
            const std::vector<float> fewer = run(some, kind);
            for (size_t row = 0; row < slots.size(); ++row) {
                const float *of_row = got.data() + row * width, *old = &before[row * width];
                if (slots[row] < 0 && std::memcmp(of_row, old, 4 * width) != 0) {
                    fail_msg("%s: row %zu without an adapter has changed", text.c_str(), row);
                }
                if (std::memcmp(&fewer[row * width], some[row] ? of_row : old, 4 * width) != 0) {
                    fail_msg("%s: row %zu has other bits in other company", text.c_str(), row);
                }
            }
        }
        assert_close(run(all, Tiles::tall), wanted(), tolerance(worst),
                     (name + ", tall tiles").c_str());
    }
};

std::vector<int32_t> draw_slots(Random &random, int32_t rows, int32_t adapters, bool runs) {
    std::vector<int32_t> slots;
    int64_t slot = 0, left = 0;
    for (int32_t i = 0; i < rows; ++i, --left) {
        if (left <= 0) {
            slot = draw(random, -1, adapters - 1);
            left = runs ? draw(random, 1, 200) : 1;
        }
        slots.push_back(static_cast<int32_t>(slot));
    }
    return slots;
}

void check_shape(Random &random, const Shape &s, int32_t most_rows = 300) {
    for (const bool runs : {false, true}) {
        const auto adapters = static_cast<int32_t>(draw(random, 1, runs ? 4 : 20));
        std::vector<std::vector<int32_t>> ranks;
        constexpr int32_t kinds[] = {0, 4, 8, 12, 16, 16, 24, 32, 40, 64, 128};
        for (int32_t i = 0; i < adapters; ++i) {
            std::vector<int32_t> own;
            const auto one = kinds[draw(random, 1, 10)];
            const bool each = draw(random, 0, 1) == 0;
            for (size_t p = 0; p < s.widths.size(); ++p) {
                own.push_back(each ? kinds[draw(random, 0, 10)] : one);
            }
            ranks.push_back(own);
        }
        const auto rows = static_cast<int32_t>(draw(random, 1, most_rows));
        const Job job(random, s, ranks, draw_slots(random, rows, adapters, runs));
        job.check_all(random, s.name() + ", " + std::to_string(rows) + " rows of " +
                                  std::to_string(adapters) +
                                  (runs ? " adapters in runs" : " adapters"));
    }
}

void products_are_the_references(void **) {
    Random random(seed_of_run());
    const std::pair<DType, DType> kinds[] = {{DType::bf16, DType::bf16},
                                             {DType::bf16, DType::f32},
                                             {DType::f16, DType::f16},
                                             {DType::f16, DType::f32},
                                             {DType::f32, DType::f32}};
    for (const auto &[element, y_type] : kinds) {
        check_shape(random, {element, y_type, 64, {64}});
        check_shape(random, {element, y_type, 40, {48, 8}});
        check_shape(random, {element, y_type, 256, {512, 128, 128, 256}});
        check_shape(random, {element, y_type, 896, {896, 128, 128}}, 120);
        check_shape(random, {element, y_type, 2056, {1032, 2048}}, 60);
        check_shape(random, {element, y_type, 4864, {896}}, 60);
        Shape scaled{element, y_type, 320, {264}};
        scaled.alpha = 0.25F;
        check_shape(random, scaled);
        Shape heads{element, y_type, 256, {256}};
        heads.column_heads = 48;
        check_shape(random, heads);
        heads = {element, y_type, 128, {256, 64, 64}};
        heads.row_heads = 40;
        check_shape(random, heads);
    }
}

// W with the adapter's change against float64.
void check_merge(Random &random, const Shape &s, const std::vector<int32_t> &ranks) {
    const Made made(random, s, ranks);
    const DeviceMemory entry = upload(std::vector<AdapterEntry>{made.entry});
    const std::vector<float> w = normal(random, int64_t{s.width()} * s.columns, s.element);
    const Array there(w, s.element), merged(int64_t{s.width()} * s.columns, s.element);
    AdapterMerge merge{s.element,
                       entry.as<AdapterEntry>(),
                       there.data(),
                       merged.data(),
                       s.width(),
                       s.columns,
                       int32_t(s.widths.size()),
                       {}};
    for (size_t p = 0; p < s.widths.size(); ++p) merge.first[p + 1] = merge.first[p] + s.widths[p];
    check(launch_adapter_merge(merge, nullptr));
    std::vector<double> wanted(w.begin(), w.end());
    for (size_t p = 0; p < s.widths.size(); ++p) {
        const Made::Part &part = made.parts[p];
        for (int32_t n = 0; n < s.widths[p]; ++n) {
            double *row = &wanted[size_t(merge.first[p] + n) * size_t(s.columns)];
            for (int32_t r = 0; r < part.rank; ++r) {
                const double b = double(part.scale) * double(part.b[size_t(n * part.rank + r)]);
                for (int32_t k = 0; k < s.columns; ++k) {
                    row[k] += b * double(part.a[size_t(r * s.columns + k)]);
                }
            }
        }
    }
    assert_close(merged.read(), wanted, tolerance(s.element), (s.name() + ", merged").c_str());
}

void a_merged_matrix_has_the_changes_of_all_parts(void **) {
    Random random(seed_of_run());
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
        check_merge(random, {type, type, 64, {64}}, {8});
        check_merge(random, {type, type, 2056, {48, 8, 16}}, {24, 0, 12});
        check_merge(random, {type, type, 256, {520, 128}}, {64, 128});
    }
    check_merge(random, {DType::f32, DType::f32, 64, {13, 20, 7}}, {4, 16, 8});
}

void x_in_e4m3_is_taken_with_its_scales(void **) {
    Random random(seed_of_run());
    for (const Scaling scaling : {Scaling::rows, Scaling::blocks, Scaling::turns}) {
        for (const DType element : {DType::bf16, DType::f16}) {
            Shape s{element, element, 256, {256, 64}};
            s.scaling = scaling;
            check_shape(random, s, 150);
            s.columns = 2304;
            check_shape(random, s, 60);
        }
    }
}

void each_row_has_an_adapter_of_its_own(void **) {
    Random random(seed_of_run());
    const Shape s{DType::bf16, DType::bf16, 512, {512, 128, 128}};
    std::vector<int32_t> slots(200);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>((i * 77) % 200);
    const Job job(random, s, std::vector<std::vector<int32_t>>(200, {8, 8, 8}), slots);
    job.check_all(random, "an adapter for each row");
}

// Of gate and up, whose W is 0: silu(gate) * up.
void check_gated(Job *job, const char *name) {
    std::fill(job->before.begin(), job->before.end(), 0.0F);
    const std::vector<double> sums = job->wanted();
    const auto width = size_t(job->s.width() / 2);
    std::vector<double> wanted;
    for (size_t i = 0; i < sums.size() / 2; ++i) {
        const double gate = sums[i / width * 2 * width + i % width];
        wanted.push_back(gate / (1 + std::exp(-gate)) *
                         sums[i / width * 2 * width + i % width + width]);
    }
    for (const Tiles kind : {Tiles::low, Tiles::mixed}) {
        assert_close(job->run(std::vector<bool>(job->slots.size(), true), kind, Job::Ends::gated),
                     wanted, 2 * tolerance(job->s.element), name);
    }
}

void gate_and_up_are_changed_before_the_activation(void **) {
    if (!hopper) skip();
    Random random(seed_of_run());
    for (const DType element : {DType::bf16, DType::f16}) {
        for (const int32_t rows :
             {1, 63, 300, 1501, 4700, 4701}) { // also in tiles that are not cut
            const Shape s{element, element, 128, {256, 256}};
            // Both parts in a stage, and one after the other.
            const int32_t most = rows % 2 == 0 ? 64 : 24;
            const std::vector<std::vector<int32_t>> ranks = {
                {16, 16}, {8, 24}, {0, most}, {most - 24, 12}, {4, 0}};
            Job job(random, s, ranks, draw_slots(random, rows, 5, rows > 100));
            check_gated(&job, "gate and up");
        }
    }
}

// A block of rows with an adapter each, after one that has none, and a part of one after that.
void a_stage_has_several_adapters(void **) {
    if (!hopper) skip();
    Random random(seed_of_run());
    for (const int32_t rank : {8, 16, 24}) {
        const Shape s{DType::bf16, DType::bf16, 128, {256, 256}};
        std::vector<int32_t> slots(300, -1);
        for (int32_t i = 0; i < 172; ++i) slots[size_t(128 + i)] = i * 77 % 172;
        Job job(random, s, std::vector<std::vector<int32_t>>(172, {rank, rank}), slots);
        check_gated(&job, "an adapter for each row");
    }
}

// Activated gates * up of the job's y, in rows that a launch does not leave as they are.
void check_activated(const Job &job, Tiles kind) {
    const bool in_e4m3 = job.s.scaling != Scaling::none;
    const auto rows = size_t(job.rows()), width = size_t(job.s.width() / 2);
    const std::vector<double> sums = job.wanted();
    const std::vector<float> got =
        job.run(std::vector<bool>(rows, true), kind, Job::Ends::activated);
    for (size_t row = 0; row < rows; ++row) {
        const int32_t slot = job.slots[row];
        const bool left = slot < 0 || (kind == Tiles::mixed && slot % 2 == 0);
        const double *gate = &sums[row * 2 * width], *up = gate + width;
        std::vector<double> of_row(width);
        double most = 0, gates = 0, ups = 0;
        for (size_t i = 0; !left && i < width; ++i) {
            of_row[i] = reference::gated(job.gating, gate[i], up[i]);
            most = std::max(most, std::abs(of_row[i]));
            gates = std::max(gates, std::abs(gate[i]));
            ups = std::max(ups, std::abs(up[i]));
        }
        for (size_t i = 0; i < width; ++i) {
            // What gate and up are off by goes with the greatest of their rows.
            const double activated = up[i] != 0 ? of_row[i] / up[i] : 0;
            double close = tolerance(job.s.element) *
                           (1.13 * gates * std::abs(up[i]) + ups * std::abs(activated));
            // Half of the last of e4m3's places, where the greatest is 448 and the smallest place 2^-9.
            if (in_e4m3) close += std::abs(of_row[i]) / 16 + most / 448 / 1024;
            const double other = double(got[row * width + i]);
            if (!(std::abs(other - of_row[i]) <= close)) {
                fail_msg("%s: row %zu of %zu, column %zu: %g, not %g", job.s.name().c_str(), row,
                         rows, i, other, of_row[i]);
            }
        }
    }
}

void gate_and_up_are_changed_in_the_activation(void **) {
    if (!hopper) skip();
    Random random(seed_of_run());
    for (const DType element : {DType::bf16, DType::f16}) {
        for (const int32_t width : {32, 288, 4096}) {
            for (const int kind : {0, 1, 2}) {
                Shape s{element, element, kind == 1 ? 2320 : 2304, {width, width}};
                s.scaling = kind == 1 ? Scaling::rows : Scaling::none;
                s.turns = kind == 2;
                // Of so many that CTAs have several tiles.
                const auto rows = static_cast<int32_t>(draw(random, 1, width == 288 ? 3000 : 400));
                Job job(random, s, {{16, 16}, {8, 24}, {0, 64}, {40, 0}, {0, 0}},
                        draw_slots(random, rows, 5, rows > 100));
                constexpr Activation kinds[] = {Activation::silu, Activation::gelu,
                                                Activation::gelu_tanh};
                job.gating = kinds[draw(random, 0, 2)];
                for (const Tiles tiles : {Tiles::low, Tiles::mixed, Tiles::tall}) {
                    check_activated(job, tiles);
                }
            }
        }
    }
}

// Each row with an adapter is in one tile, with others of the adapter, and those of few rows come first.
void lists_have_each_row_once(void **) {
    Random random(seed_of_run());
    for (int times = 0; times < 50; ++times) {
        const auto adapters = static_cast<int32_t>(draw(random, 1, 200));
        std::vector<AdapterEntry> entries(static_cast<size_t>(adapters));
        std::vector<const AdapterEntry *> of_slots;
        for (const AdapterEntry &entry : entries) of_slots.push_back(&entry);
        std::vector<int32_t> slots =
            draw_slots(random, static_cast<int32_t>(draw(random, 1, 600)), adapters, false);
        if (times % 2 == 0) slots.insert(slots.end(), 5000, 0);
        const bool short_alone = times % 5 == 4;
        AdapterLists lists;
        lists.list(slots, of_slots, short_alone);
        std::vector<int32_t> of_slot(static_cast<size_t>(adapters)), seen(slots.size());
        for (const int32_t slot : slots) {
            if (slot >= 0) ++of_slot[size_t(slot)];
        }
        const auto least = std::count_if(of_slot.begin(), of_slot.end(), [](int32_t count) {
            return count > 0 && count <= kFewRows;
        });
        assert_int_equal(lists.few, short_alone || least < 32 ? 0 : least);
        for (size_t i = 0; i < lists.tiles.size(); ++i) {
            const AdapterTile &tile = lists.tiles[i];
            const auto slot = static_cast<int32_t>(tile.entries - entries.data());
            const bool few = static_cast<int32_t>(i) < lists.few;
            assert_true(tile.count > 0);
            assert_true(tile.count <= (few ? kFewRows : lists.tall ? kTallTile : kShortTile));
            if (few) assert_int_equal(tile.count, of_slot[size_t(slot)]);
            for (int32_t place = tile.begin; place < tile.begin + tile.count; ++place) {
                const auto row = size_t(lists.rows[size_t(place)]);
                assert_int_equal(slots[row], slot);
                ++seen[row];
            }
        }
        for (size_t row = 0; row < slots.size(); ++row) {
            assert_int_equal(seen[row], slots[row] >= 0 ? 1 : 0);
            const int32_t count = slots[row] >= 0 ? of_slot[size_t(slots[row])] : 0;
            assert_int_equal(lists.in_others[row], count > (lists.few > 0 ? kFewRows : 0) ? 1 : 0);
        }
    }
}

void a_step_without_adapters_changes_nothing(void **) {
    Random random(seed_of_run());
    const Shape s{DType::bf16, DType::bf16, 512, {512}};
    const Job job(random, s, {{16}}, std::vector<int32_t>(50, -1));
    const std::vector<float> got = job.run(std::vector<bool>(50, true), Tiles::low);
    assert_memory_equal(got.data(), job.before.data(), 4 * got.size());
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    hopper = properties.major == 9;
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_references),
        cmocka_unit_test(a_merged_matrix_has_the_changes_of_all_parts),
        cmocka_unit_test(x_in_e4m3_is_taken_with_its_scales),
        cmocka_unit_test(each_row_has_an_adapter_of_its_own),
        cmocka_unit_test(gate_and_up_are_changed_before_the_activation),
        cmocka_unit_test(a_stage_has_several_adapters),
        cmocka_unit_test(gate_and_up_are_changed_in_the_activation),
        cmocka_unit_test(lists_have_each_row_once),
        cmocka_unit_test(a_step_without_adapters_changes_nothing),
    };
    return cmocka_run_group_tests_name("cuda_adapters", tests, nullptr, nullptr);
}
