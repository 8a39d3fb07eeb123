// Adapters' products (cuda/adapters) beside the base's: microseconds of shrink and expand for each product of a layer, the
// rate of the bytes that they move (x, y, A, B and t once), and cuBLASLt's product in bf16. Of gate and up also the
// product with the activation, which adds them in its epilogue.
//
//     adapters                             Mistral-7B's layer: steps of many kinds
//     adapters --rows 4096 --adapters 2 --rank 16 --single 300 --seconds 0.1
//                                          single: so many of the rows have an adapter of their own each, beside those
//     --e4m3 1                             x is in e4m3, with a scale a row
//
// Launches take turns with as many copies of A and B as do not fit into L2.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "adapters/adapters.h"
#include "adapters/work.h"
#include "device_arrays.h"
#include "gated/adapted_activation.h"
#include "gated/gated.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Step {
    int32_t rows, adapters, rank, single = 0;

    int32_t all_adapters() const { return adapters + single; }
    int32_t slot(int32_t row) const {
        if (row < single) return adapters + row;
        return static_cast<int32_t>(int64_t{row - single} * adapters / (rows - single));
    }
};
struct Product {
    const char *name;
    int32_t columns;
    std::vector<int32_t> widths;
    bool adds; // the base's product adds to y

    int32_t width() const {
        int32_t all = 0;
        for (const int32_t w : widths) all += w;
        return all;
    }
};
const Product kProducts[] = {{"qkv", 4096, {4096, 1024, 1024}, false},
                             {"o", 4096, {4096}, true},
                             {"gate/up", 4096, {14336, 14336}, false},
                             {"down", 14336, {4096}, true}};

int sms = 1;
bool hopper = false, e4m3 = false;
double seconds = 0.05;

DeviceMemory room(int64_t bytes) { return require(DeviceMemory::create(bytes, "a buffer")); }

double time_of(const std::function<void()> &call) {
    const double each = 1e-3 * static_cast<double>(time_launches(3, call));
    const int times = std::clamp(static_cast<int>(seconds / (each + 1e-7)), 3, 5000);
    return 1e3 * static_cast<double>(time_launches(times, call));
}

// After expand or with it.
void time_activation(const AdapterArguments &a, int32_t rows) {
    const int32_t width = a.width / 2;
    const DeviceMemory out = room(2 * int64_t{rows} * width), scales = room(4 * int64_t{rows});
    float *const of_rows = e4m3 ? scales.as<float>() : nullptr;
    const ActivationArguments activation{DType::bf16, Activation::silu, true, a.y,
                                         nullptr,     out.data(),       rows, width};
    const double alone = time_of([&] {
        require(e4m3 ? launch_activation_e4m3(activation, {of_rows}, nullptr)
                     : launch_activation(activation, nullptr));
    });
    const double adapted =
        time_of([&] { require(launch_adapted_activation(a, activation, of_rows, sms, nullptr)); });
    std::printf("  the activation: %.1f us, with adapters %.1f\n", alone, adapted);
}

// Adds to sums: shrink, expand, base.
void time_product(const Product &p, const Step &s, Linear *linear, double *sums) {
    const auto parts = static_cast<int32_t>(p.widths.size());
    const int32_t width = p.width(), ranks = parts * padded_rank(s.rank);
    const int64_t of_a = int64_t{ranks} * p.columns;
    int64_t of_b = 0;
    AdapterEntry entry{};
    entry.ranks = ranks;
    for (int32_t i = 0; i < parts; ++i) {
        entry.parts[i] = {padded_rank(s.rank), i * padded_rank(s.rank),
                          static_cast<int32_t>(of_b / 8), 2};
        of_b += packed_b_elements(p.widths[static_cast<size_t>(i)], s.rank);
    }
    constexpr int64_t beyond_l2 = int64_t{256} << 20;
    const int64_t of_adapters = 2 * (of_a + of_b) * s.all_adapters();
    const auto copies = static_cast<int32_t>(std::min<int64_t>(beyond_l2 / of_adapters + 1, 64));
    const DeviceMemory x = noise(padded_rows(s.rows) * p.columns, 1, 1),
                       codes = noise_in_e4m3(padded_rows(s.rows), p.columns, 1, 1),
                       scales = upload(std::vector<float>(size_t(s.rows), 0.01F)),
                       y = noise(padded_rows(s.rows) * width, 2, 1),
                       w = noise(int64_t{width} * p.columns, 3, 0.02F),
                       ab = noise(of_adapters / 2 * copies, 4, 0.02F);
    std::vector<AdapterEntry> entries;
    for (int32_t i = 0; i < s.all_adapters() * copies; ++i) {
        entry.a = ab.data() + i * (of_a + of_b) * 2;
        entry.b = static_cast<const std::byte *>(entry.a) + of_a * 2;
        entries.push_back(entry);
    }
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < s.rows; ++i) slots.push_back(s.slot(i));
    const DeviceMemory there = upload(entries);
    std::vector<const AdapterEntry *> of_slots;
    for (int32_t i = 0; i < s.all_adapters(); ++i)
        of_slots.push_back(there.as<AdapterEntry>() + int64_t{i} * copies);
    AdapterLists lists;
    lists.list(slots, of_slots, false);
    const DeviceMemory block_counts = upload(lists.block_counts),
                       block_entries = upload(lists.block_entries);
    const DeviceMemory of_rows = upload(lists.entries), tiles = upload(lists.tiles),
                       rows = upload(lists.rows),
                       counts = upload(std::vector<int32_t>{
                           lists.few, static_cast<int32_t>(lists.tiles.size()) - lists.few});
    const int32_t wide = adapter_range(p.columns), ranges = (p.columns + wide - 1) / wide;
    const DeviceMemory t = room(int64_t{4} * ranges * s.rows * ranks);
    AdapterArguments a{};
    a.element = DType::bf16;
    a.work = {counts.as<int32_t>() + 1,
              tiles.as<AdapterTile>(),
              rows.as<int32_t>(),
              of_rows.as<const AdapterEntry *>(),
              lists.tall,
              block_counts.as<int32_t>(),
              block_entries.as<const AdapterEntry *>(),
              counts.as<int32_t>(),
              lists.few > 0,
              lists.few < static_cast<int32_t>(lists.tiles.size())};
    a.most_ranks = ranks;
    a.most_of_part = padded_rank(s.rank);
    a.x = e4m3 ? codes.data() : x.data();
    a.x_scales = e4m3 ? scales.as<float>() : nullptr;
    a.x_row_stride = 1;
    a.columns = p.columns;
    a.range = wide;
    a.t = t.data();
    a.whole = adapter_sums_are_whole(a.element, hopper, lists.tall, parts == 2 && !e4m3);
    a.t_rows = s.rows;
    a.t_stride = ranks;
    a.y = y.data();
    a.y_type = DType::bf16;
    a.width = width;
    a.parts = parts;
    for (int32_t i = 0; i < parts; ++i) {
        a.first[i + 1] = a.first[i] + p.widths[static_cast<size_t>(i)];
    }
    a.alpha = 1e-6F; // y stays finite
    const auto turn = [&] { a.product = (a.product + 1) % copies; };
    const double shrink = time_of([&] {
        turn();
        require(launch_adapter_shrink(a, sms, nullptr));
    });
    const double expand = time_of([&] {
        turn();
        require(launch_adapter_expand(a, sms, nullptr));
    });
    const Matrix matrix{w.data(), width, p.columns};
    linear->set_scratch(y.data(), y.bytes());
    const double base = time_of([&] {
        require(linear->run(matrix, x.data(), s.rows, y.data(), DType::bf16, p.adds, nullptr,
                            p.adds ? 1e-6F : 1));
    });
    if (hopper && !e4m3 && parts == 2 && s.rows >= 256 && takes_gated_adapters(a)) {
        const DeviceMemory out = room(padded_rows(s.rows) * width);
        GatedArguments gated{DType::bf16, Activation::silu, x.data(),  w.data(), out.data(),
                             s.rows,      p.columns,        width / 2, nullptr};
        const auto product = [&] {
            turn();
            require(launch_gated_sm90(gated, sms, nullptr));
        };
        const double without = time_of(product);
        gated.adapters = &a;
        std::printf("  gate/up and the activation in one launch: %.1f us, with adapters %.1f\n",
                    without, time_of(product));
    }
    if (hopper && parts == 2 && a.work.has_others) time_activation(a, s.rows);
    const double t_bytes = (a.whole ? 2.0 : 4.0 * ranges) * s.rows * ranks;
    const double of_shrink = (e4m3 ? 1.0 : 2.0) * s.rows * p.columns +
                             2.0 * static_cast<double>(of_a) * s.all_adapters() + t_bytes;
    const double of_expand =
        4.0 * s.rows * width + 2.0 * static_cast<double>(of_b) * s.all_adapters() + t_bytes;
    std::printf("  %-8s | %8.1f %5.2f | %8.1f %5.2f | %8.1f | %5.1f\n", p.name, shrink,
                of_shrink / shrink * 1e-6, expand, of_expand / expand * 1e-6, base,
                100 * (shrink + expand) / base);
    std::fflush(stdout);
    sums[0] += shrink, sums[1] += expand, sums[2] += base;
}

void time_step(const Step &s, Linear *linear) {
    std::printf("%d rows, %d adapters of rank %d, and %d of a row each\n"
                "  product  | shrink us TB/s | expand us TB/s  | base us  | %% more\n",
                s.rows, s.adapters, s.rank, s.single);
    double sums[3] = {};
    for (const Product &p : kProducts) time_product(p, s, linear, sums);
    std::printf("  layer    | %8.1f       | %8.1f       | %8.1f | %5.1f\n", sums[0], sums[1],
                sums[2], 100 * (sums[0] + sums[1]) / sums[2]);
}

} // namespace

int main(int count, char **values) {
    Step own{0, 1, 16};
    for (int i = 1; i < count; i += 2) {
        const std::string name = values[i];
        const double value = i + 1 < count ? std::atof(values[i + 1]) : 0;
        if (!(value > 0)) {
            std::fprintf(stderr, "the options are at the top of bench/adapters.cc\n");
            return 2;
        }
        if (name == "--rows") own.rows = static_cast<int32_t>(value);
        if (name == "--adapters") own.adapters = static_cast<int32_t>(value);
        if (name == "--rank") own.rank = static_cast<int32_t>(value);
        if (name == "--single") own.single = static_cast<int32_t>(value);
        if (name == "--e4m3") e4m3 = true;
        if (name == "--seconds") seconds = value;
    }
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < 8) {
        std::printf("skipped: no device of compute capability 8.0 or later\n");
        return 77;
    }
    sms = properties.multiProcessorCount;
    hopper = properties.major == 9;
    Linear linear = require(Linear::create(DType::bf16, nullptr, 0, TuningCache()));
    if (own.rows > 0) {
        time_step(own, &linear);
        return 0;
    }
    for (const Step &step :
         {Step{4096, 1, 16}, Step{4096, 2, 16}, Step{16384, 4, 16}, Step{4096, 1, 64},
          Step{64, 1, 16}, Step{256, 4, 16}, Step{1024, 16, 16}, Step{1024, 64, 16},
          Step{64, 64, 8}, Step{256, 256, 8}, Step{1000, 1000, 8}, Step{8192, 4, 8, 300}}) {
        time_step(step, &linear);
    }
    return 0;
}
