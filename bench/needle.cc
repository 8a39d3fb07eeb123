// A needle in a long context: attention alone, with keys and values in bf16 and in e4m3, against float64.
//
//     needle [seed]      about 15 s; status 1 if a kernel's own sums are off by more than 1 %
//
// Among 2,000 to 30,000 keys, one matches a query a little better than three others
// (needle_sums.h), at random places. For every form of the kernels, this prints how far the result
// is from float64's, both on the numbers before they were rounded to e4m3 and on the stored ones,
// which leaves only the error of the sums; and how often the result has most of the needle's code.
// The last rows are products in fp8, with queries and weights rounded too, summed in the tensor
// cores' own precision over all keys or over 128 of them at a time: this is the error that widening
// avoids.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "attention/family.h"
#include "attention/worklist_by_position.h"
#include "base/thread_pool.h"
#include "device_arrays.h"
#include "needle_sums.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int32_t kResults = kQueries * kHeads;
constexpr int32_t kEmulated = 64; // query heads computed as products in fp8

using Outputs = std::vector<std::vector<double>>; // [query heads, kDim]

Outputs attend_all(const NeedleTask &task, Sums sums, bool stored, ThreadPool *threads) {
    Outputs all(static_cast<size_t>(sums == Sums::exact ? kResults : kEmulated));
    threads->parallel_for(static_cast<int64_t>(all.size()), [&](int64_t i, int32_t) {
        // If not all of them, then some of each head.
        const int64_t step = kResults / static_cast<int64_t>(all.size());
        const auto which = static_cast<int32_t>(i * step + i % step);
        all[static_cast<size_t>(i)] = attend(task, which / kHeads, which % kHeads, sums, stored);
    });
    return all;
}

int32_t index_of(size_t i, size_t count) {
    const size_t step = kResults / count;
    return static_cast<int32_t>(i * step + i % step);
}

// The root mean square error, relative to the reference.
double error(const Outputs &got, const Outputs &wanted) {
    double wrong = 0, all = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const auto &reference = wanted[static_cast<size_t>(index_of(i, got.size()))];
        for (size_t d = 0; d < kDim; ++d) {
            wrong += std::pow(got[i][d] - reference[d], 2);
            all += std::pow(reference[d], 2);
        }
    }
    return std::sqrt(wrong / all);
}

struct References {
    Outputs before, stored;
};

void print_line(const NeedleTask &task, const std::string &name, const Outputs &got,
                const References &references, bool in_e4m3) {
    int32_t right = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const auto at = static_cast<size_t>(index_of(i, got.size()));
        right += retrieved(task, got[i].data()) == task.codes[at];
    }
    const Outputs &own = in_e4m3 ? references.stored : references.before;
    std::printf("  %-44s off by %6.3f %%, of the sums %6.3f %%; retrieved %5.1f %%\n", name.c_str(),
                100 * error(got, references.before), 100 * error(got, own),
                100.0 * right / static_cast<double>(got.size()));
}

// Queries read keys separately, together (widening e4m3 while reading, or pages before), or in
// reproducible mode.
enum class Way : uint8_t { alone, together, widened, by_row };
constexpr const char *kWays[] = {"each alone", "together", "widened before", "reproducible"};

// The task on the device.
class Launches {
  public:
    Launches(const NeedleTask &task, bool in_e4m3) : in_e4m3_(in_e4m3) {
        pages_ = (task.keys + kPageKeys - 1) / kPageKeys + kQueries;
        std::vector<int32_t> numbers;
        for (int32_t i = 0; i < pages_; ++i) numbers.push_back((i * 7 + 3) % pages_);
        // In any order, each once.
        std::mt19937_64 random(5);
        std::shuffle(numbers.begin(), numbers.end(), random);
        numbers_ = upload(numbers);
        const size_t bytes = in_e4m3 ? 1 : 2;
        const int64_t page = kv_page_bytes(kKvHeads, kDim, static_cast<int32_t>(bytes));
        std::vector<uint8_t> pool(static_cast<size_t>(pages_ * page));
        const auto put = [&](int32_t key, int32_t column, int32_t in_page) {
            for (int32_t head = 0; head < kKvHeads; ++head) {
                for (int32_t part = 0; part < 2; ++part) { // keys, values
                    for (int32_t d = 0; d < kDim; ++d) {
                        const size_t from = task.place(head, key) + static_cast<size_t>(d);
                        const int64_t block =
                            (int64_t{numbers[static_cast<size_t>(column)]} * kKvHeads + head) * 2 +
                            part;
                        const auto to = static_cast<size_t>(
                            block * kPageKeys * kDim +
                            place_in_block(in_page, d, static_cast<int32_t>(bytes)));
                        if (in_e4m3) {
                            pool[to] = (part == 0 ? task.k_bytes : task.v_bytes)[from];
                        } else {
                            const uint16_t x =
                                float_to_bfloat16((part == 0 ? task.k : task.v)[from]);
                            std::memcpy(pool.data() + 2 * to, &x, 2);
                        }
                    }
                }
            }
        };
        for (int32_t key = 0; key < task.keys; ++key) put(key, key / kPageKeys, key % kPageKeys);
        nodes_.push_back({-1, 0, task.keys, 0, 0, 0});
        for (int32_t i = 0; i < kQueries; ++i) {
            put(task.keys + i, pages_ - kQueries + i, 0);
            nodes_.push_back({0, task.keys, 1, i, 1, pages_ - kQueries + i});
        }
        pool_ = upload(pool);
        std::vector<uint16_t> q;
        for (const float x : task.q) q.push_back(float_to_bfloat16(x));
        q_ = upload(q);
        k_scale_ = upload(task.k_scale);
        v_scale_ = upload(task.v_scale);
        out_ = require(zeroed_memory(int64_t{2} * kResults * kDim, "results"));
        wide_ = require(zeroed_memory(pages_ * kv_page_bytes(kKvHeads, kDim, 2), "wide pages"));
        counters_ = require(zeroed_memory((kQueries * kKvHeads + 4) * 4, "counters"));
    }

    Outputs run(const AttentionFamily &family, Way way, int32_t sms, int64_t *widened) const {
        const bool by_row = way == Way::by_row;
        WorklistOptions options;
        options.heads = kHeads;
        options.kv_heads = kKvHeads;
        options.head_dim = kDim;
        options.sms = sms;
        options.kv_bytes = in_e4m3_ ? 1 : 2;
        options.widened_room = pages_;
        family.set_costs(&options);
        options.share = options.always_share = way != Way::alone;
        if (way == Way::widened) options.widen_us = options.widen_launch_us = 0;
        if (way == Way::together) options.widened_room = 0;
        Worklist list;
        (by_row ? build_worklist_by_position : build_worklist)(nodes_, kQueries, options, &list);
        *widened = static_cast<int64_t>(list.widened.size());
        const DeviceMemory items = upload(list.items), rows = upload(list.rows),
                           partials = upload(list.partials), merged = upload(list.merged),
                           wide_pages = upload(list.widened);
        const int64_t slots = std::max(list.slots, 1);
        const DeviceMemory partial_out =
                               require(zeroed_memory(slots * kHeads * kDim * 4, "partials")),
                           partial_lse = require(zeroed_memory(slots * kHeads * 4, "partials"));
        AttentionArguments a{};
        a.type = AttentionType::bf16;
        a.heads = kHeads;
        a.kv_heads = kKvHeads;
        a.head_dim = kDim;
        a.scale = static_cast<float>(kScoreScale);
        a.q = q_.data();
        a.q_stride = a.out_stride = kHeads * kDim;
        a.out = out_.data();
        a.kv = pool_.data();
        a.pages = numbers_.as<int32_t>();
        a.items = items.as<AttentionItem>();
        a.matrix_items = list.matrix_items;
        a.stream_items = list.stream_items;
        a.matrix_ctas = list.matrix_ctas;
        a.matrix_by_head = list.matrix_by_head;
        a.rows = rows.as<AttentionRow>();
        a.partials = partials.as<PartialRange>();
        a.merged = merged.as<int32_t>();
        a.merged_count = static_cast<int32_t>(list.merged.size());
        a.partial_out = partial_out.as<float>();
        a.partial_lse = partial_lse.as<float>();
        a.arrivals = counters_.as<int32_t>();
        a.queues = a.arrivals + kQueries * kKvHeads;
        a.by_row = by_row ? 1 : 0;
        a.kv_e4m3 = in_e4m3_ ? 1 : 0;
        a.widened_count = static_cast<int32_t>(list.widened.size());
        a.widened = wide_pages.as<int32_t>();
        a.wide = wide_.data();
        a.k_scale = k_scale_.as<float>();
        a.v_scale = v_scale_.as<float>();
        if (a.widened_count > 0) require(launch_widen(a, sms, nullptr));
        require(family.launch(a, sms, nullptr));
        std::vector<uint16_t> out(static_cast<size_t>(kResults * kDim));
        require(cudaMemcpy(out.data(), out_.data(), out.size() * 2, cudaMemcpyDeviceToHost));
        Outputs all(kResults, std::vector<double>(kDim));
        for (size_t i = 0; i < out.size(); ++i) {
            all[i / kDim][i % kDim] = double{bfloat16_to_float(out[i])};
        }
        return all;
    }

  private:
    bool in_e4m3_;
    int32_t pages_ = 0;
    std::vector<AttentionNode> nodes_;
    DeviceMemory numbers_, pool_, q_, out_, wide_, counters_, k_scale_, v_scale_;
};

// Whether the kernels' own sums are right.
bool run_length(int32_t keys, uint64_t seed, const cudaDeviceProp &device, ThreadPool *threads) {
    const NeedleTask task(keys, seed);
    const References references{attend_all(task, Sums::exact, false, threads),
                                attend_all(task, Sums::exact, true, threads)};
    std::printf("%d keys, %d query heads\n", keys, kResults);
    print_line(task, "float64", references.before, references, false);
    print_line(task, "float64, keys and values in e4m3", references.stored, references, true);
    bool good = true;
    const Launches wide(task, false), narrow(task, true);
    for (const char *name : {"sm80", "sm90"}) {
        const AttentionFamily *family = find_attention(name, device.major, device.minor);
        if (family == nullptr) continue;
        for (const bool in_e4m3 : {false, true}) {
            const Launches &launches = in_e4m3 ? narrow : wide;
            for (const Way way : {Way::alone, Way::together, Way::widened, Way::by_row}) {
                int64_t widened = 0;
                const Outputs got =
                    launches.run(*family, way, device.multiProcessorCount, &widened);
                if (way == Way::widened && widened == 0) continue; // no pages are widened
                const std::string text = std::string(name) + (in_e4m3 ? ", e4m3, " : ", bf16, ") +
                                         kWays[static_cast<size_t>(way)];
                print_line(task, text, got, references, in_e4m3);
                const double own = error(got, in_e4m3 ? references.stored : references.before);
                good &= own < 0.01; // false for NaN
            }
        }
    }
    for (const Sums sums : {Sums::one_level, Sums::two_levels}) {
        const char *name = sums == Sums::one_level ? "fp8 products, one sum (emulated)"
                                                   : "fp8 products, 128 keys a sum (emulated)";
        print_line(task, name, attend_all(task, sums, true, threads), references, true);
    }
    return good;
}

} // namespace

int main(int count, char **values) {
    const uint64_t seed = count > 1 ? std::strtoull(values[1], nullptr, 10) : 1;
    cudaDeviceProp device{};
    require(cudaGetDeviceProperties(&device, 0));
    ThreadPool threads(0);
    bool good = true;
    for (const int32_t keys : {2000, 8000, 30000}) {
        good &= run_length(keys, seed, device, &threads);
    }
    std::printf("%s, seed %llu: %s\n", device.name, static_cast<unsigned long long>(seed),
                good ? "right" : "WRONG");
    return good ? 0 : 1;
}
