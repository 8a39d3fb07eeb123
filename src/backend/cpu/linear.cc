#include "backend/cpu/linear.h"

#include <dnnl.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <mutex>
#include <new>
#include <random>
#include <span>
#include <string>
#include <sys/mman.h>

#include "base/held_signals.h"
#include "base/narrow_floats.h"

// Debian's oneDNN runs on OpenMP. Weak symbols, so that other builds of oneDNN link too.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int threads);
__attribute__((weak)) int omp_get_max_threads(void);
}

namespace batchllm::cpu {
namespace {

// While it lives, oneDNN calls of this thread use this thread alone.
class OneThread {
  public:
    OneThread() {
        if (omp_get_max_threads == nullptr || omp_set_num_threads == nullptr) return;
        before_ = omp_get_max_threads();
        if (before_ != 1) omp_set_num_threads(1);
    }
    OneThread(const OneThread &) = delete;
    OneThread &operator=(const OneThread &) = delete;
    ~OneThread() {
        if (before_ > 1) omp_set_num_threads(before_);
    }

  private:
    int before_ = 0;
};

// Throws std::bad_alloc if this much memory is not available. oneDNN reads through a null pointer
// when its own small allocations fail, so a shortage is detected here, just before calling it.
void need_memory(size_t bytes) {
    void *probe = std::malloc(bytes);
    asm volatile("" : "+r"(probe)); // keeps the compiler from removing it
    if (probe == nullptr) throw std::bad_alloc();
    std::free(probe);
}

constexpr size_t kExecuteBytes = size_t{32} << 10; // for a call with a primitive that exists
constexpr size_t kCreateBytes = size_t{1} << 20;   // for creating one
// For its code, of which oneDNN maps 256 KiB for each kernel, in several threads at once.
constexpr size_t kCodeBytes = size_t{16} << 20;
// The first product in f32 makes the code of all on processors with AVX2 alone.
constexpr size_t kFirstCodeBytes = size_t{48} << 20;

// The heap may have room that the address space does not have.
void need_memory_to_create(size_t code_bytes = kCodeBytes) {
    need_memory(kCreateBytes);
    void *probe = ::mmap(nullptr, code_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED) throw std::bad_alloc();
    ::munmap(probe, code_bytes);
}

// An exception from oneDNN passes glibc's pthread_once, which loads the unwinder for that and ends the process where no
// memory is left to do so. This loads it before.
void load_unwinder() {
    void *frame = nullptr;
    (void)::backtrace(&frame, 1);
}

// Before a primitive is created. One thread at a time creates one, so that others do not take the
// memory that was just found.
[[nodiscard]] std::unique_lock<std::mutex> begin_creating() {
    static std::mutex creating;
    std::unique_lock lock(creating);
    need_memory_to_create();
    return lock;
}

// oneDNN's cache keeps what it began for a primitive for which memory ran out: whoever asks for the same one later, in this
// process, gets an error or reads freed memory. Each Linear keeps its primitives itself.
void have_no_cache() {
    if (dnnl::get_primitive_cache_capacity() != 0) dnnl::set_primitive_cache_capacity(0);
}

// How many threads a matrix is divided for if their actual number must not matter.
constexpr int32_t kThreadsOfAny = 16;

// Of the exception that is being handled; throws it again if it is no failure of oneDNN.
Status onednn_failure(int32_t code = BATCHLLM_ERROR_DEVICE) {
    try {
        throw;
    } catch (const dnnl::error &failure) {
        if (failure.status == dnnl_out_of_memory) code = BATCHLLM_ERROR_OUT_OF_MEMORY;
        return error(code, "cpu backend: oneDNN: %s", failure.what());
    }
}

dnnl::memory::data_type dnnl_type(DType type) {
    return type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory::desc input, weights, output, scratchpad;
    std::string kernel; // oneDNN's name for what computes it
};

// Puts a slice of a matrix, [N, K], into the layout of primitives, whose padding is zero.
struct Packing {
    dnnl::reorder reorder;
    dnnl::memory::desc plain, packed, scratchpad;
};

// Possible rows per block, ascending.
constexpr std::array<int64_t, 16> kSizes = {1,  2,  4,  8,  12, 16, 24,  32,
                                            40, 48, 56, 64, 80, 96, 112, kBlockRows};
using Sizes = std::vector<int64_t>;
// How many rows a size is tried with at least, in each order of them.
constexpr int64_t kTriedRows = 32;

int64_t round_block(int64_t rows, std::span<const int64_t> sizes) {
    return *std::lower_bound(sizes.begin(), sizes.end(), rows);
}

// Fills with elements of magnitude about 1, random but always the same.
void fill_at_random(DType type, int64_t count, std::byte *out) {
    std::minstd_rand random(1);
    for (int64_t i = 0; i < count; ++i) {
        const float x = static_cast<float>(random()) / static_cast<float>(random.max()) * 2 - 1;
        if (type == DType::f32) {
            std::memcpy(out + i * 4, &x, 4);
        } else {
            const uint16_t bits = float_to_bfloat16(x);
            std::memcpy(out + i * 2, &bits, 2);
        }
    }
}

} // namespace

struct Linear::Impl {
    DType compute;
    ThreadPool *pool;
    bool reproducible;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    std::vector<dnnl::stream> streams; // [threads]
    std::atomic<bool> has_executed = false;
    std::vector<Buffer> tiles;       // [threads] kBlockRows * the widest slice, floats
    std::vector<Buffer> scratchpads; // [threads]
    std::map<std::tuple<int64_t, int64_t, int64_t>, Primitive> primitives; // by M, N, K
    std::map<std::tuple<int64_t, int64_t>, Packing> packings;              // by N, K
    LowRankProducts low_rank;
    std::map<std::tuple<int64_t, int64_t>, Sizes> sizes; // by N, K, for shapes that may not use all
                                                         // sizes

    static dnnl::primitive_attr own_scratchpad() {
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        return attributes;
    }

    // Not thread-safe: call before the tasks start.
    const Primitive &primitive(int64_t m, int64_t n, int64_t k) {
        const auto key = std::make_tuple(m, n, k);
        const auto found = primitives.find(key);
        if (found != primitives.end()) return found->second;
        const std::unique_lock lock = begin_creating();
        using Desc = dnnl::memory::desc;
        using Tag = dnnl::memory::format_tag;
        // The weights have the layout that oneDNN prefers for blocks of 64 rows, whatever the
        // number of rows in this call.
        const auto type = dnnl_type(compute);
        const auto make = [&](int64_t rows, const Desc &weights) {
            return dnnl::matmul::primitive_desc(
                dnnl::matmul::desc(Desc({rows, k}, type, Tag::ab), weights,
                                   Desc({rows, n}, dnnl::memory::data_type::f32, Tag::ab)),
                own_scratchpad(), engine);
        };
        const Desc weights = make(64, Desc({k, n}, type, Tag::any)).weights_desc();
        const auto chosen = make(m, weights);
        Primitive made{dnnl::matmul(chosen), chosen.src_desc(),        chosen.weights_desc(),
                       chosen.dst_desc(),    chosen.scratchpad_desc(), chosen.impl_info_str()};
        return primitives.emplace(key, std::move(made)).first->second;
    }

    // Not thread-safe either.
    const Packing &packing(int64_t n, int64_t k) {
        const auto key = std::make_tuple(n, k);
        const auto found = packings.find(key);
        if (found != packings.end()) return found->second;
        const Primitive &product = primitive(64, n, k);
        const std::unique_lock lock = begin_creating();
        const dnnl::memory::desc plain({k, n}, dnnl_type(compute), dnnl::memory::dims{1, k});
        const dnnl::reorder::primitive_desc chosen(engine, plain, engine, product.weights,
                                                   own_scratchpad());
        Packing made{dnnl::reorder(chosen), plain, product.weights, chosen.scratchpad_desc()};
        return packings.emplace(key, std::move(made)).first->second;
    }

    void pack(const Packing &made, std::byte *plain, std::byte *packed, size_t thread) {
        need_memory(kExecuteBytes);
        const dnnl::memory from(made.plain, engine, plain);
        const dnnl::memory to(made.packed, engine, packed);
        const dnnl::memory scratchpad(made.scratchpad, engine, scratchpads[thread].data());
        const HeldSignals held;
        made.reorder.execute(
            streams[thread],
            {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratchpad}});
        streams[thread].wait();
    }

    std::span<const int64_t> sizes_of(int64_t n, int64_t k) const {
        if (!reproducible) return kSizes;
        return sizes.at({n, k});
    }

    void execute(const Primitive &made, std::byte *input, std::byte *matrix, size_t thread) {
        if (has_executed) {
            need_memory(kExecuteBytes);
        } else {
            need_memory_to_create(kFirstCodeBytes);
        }
        const dnnl::memory from(made.input, engine, input);
        const dnnl::memory weights(made.weights, engine, matrix);
        const dnnl::memory to(made.output, engine, tiles[thread].data());
        const dnnl::memory scratchpad(made.scratchpad, engine, scratchpads[thread].data());
        const HeldSignals held;
        made.matmul.execute(streams[thread], {{DNNL_ARG_SRC, from},
                                              {DNNL_ARG_WEIGHTS, weights},
                                              {DNNL_ARG_DST, to},
                                              {DNNL_ARG_SCRATCHPAD, scratchpad}});
        if (!has_executed) has_executed = true;
    }

    // [n, k], packed.
    Result<Buffer> pack_at_random(int64_t n, int64_t k) {
        ASSIGN_OR_RETURN(const Buffer plain,
                         Buffer::create(n * k * dtype_bytes(compute), "weights to try"));
        fill_at_random(compute, n * k, plain.data());
        const Packing &made = packing(n, k);
        RETURN_IF_ERROR(reserve_scratchpads(made.scratchpad));
        ASSIGN_OR_RETURN(Buffer packed, Buffer::create(static_cast<int64_t>(made.packed.get_size()),
                                                       "weights to try"));
        pack(made, plain.data(), packed.data(), 0);
        return packed;
    }

    // Finds the sizes that give a row the same bits in every place and among any others, namely those that agree with the
    // largest of them. Many rows are tried: of a matrix with one row of weights, each gives one number, and numbers that are
    // added up in two orders are often the same. So often that other kernels, as those with and without AMX, are not tried.
    Status find_sizes(int64_t n, int64_t k) {
        Sizes &found = sizes[{n, k}];
        if (!found.empty()) return {};
        const int64_t row_bytes = k * dtype_bytes(compute);
        ASSIGN_OR_RETURN(const Buffer weights, pack_at_random(n, k));
        // The rows from the first on; from the last; the first one everywhere.
        std::array<Buffer, 3> inputs;
        for (Buffer &input : inputs) {
            ASSIGN_OR_RETURN(input, Buffer::create(kBlockRows * row_bytes, "rows to try"));
        }
        fill_at_random(compute, kBlockRows * k, inputs[0].data());
        for (int64_t r = 0; r < kBlockRows; ++r) {
            std::memcpy(inputs[1].data() + (kBlockRows - 1 - r) * row_bytes,
                        inputs[0].data() + r * row_bytes, static_cast<size_t>(row_bytes));
            std::memcpy(inputs[2].data() + r * row_bytes, inputs[0].data(),
                        static_cast<size_t>(row_bytes));
        }
        std::vector<std::vector<float>> expected(kBlockRows); // of each row; none: not known yet
        for (auto size = kSizes.rbegin(); size != kSizes.rend(); ++size) {
            const Primitive &made = primitive(*size, n, k);
            if (!found.empty() && made.kernel != primitive(found.front(), n, k).kernel) continue;
            RETURN_IF_ERROR(reserve(made));
            const int64_t tried = std::max(*size, kTriedRows);
            bool equal = true;
            for (size_t order = 0; order < inputs.size(); ++order) {
                for (int64_t block = 0; block < tried && equal; block += *size) {
                    const int64_t at = std::min(block, kBlockRows - *size);
                    const int64_t first = order == 1 ? kBlockRows - *size - at : at;
                    execute(made, inputs[order].data() + first * row_bytes, weights.data(), 0);
                    streams[0].wait();
                    for (int64_t r = 0; r < *size; ++r) {
                        const int64_t place = first + r;
                        const int64_t row = order == 0   ? place
                                            : order == 1 ? kBlockRows - 1 - place
                                                         : 0;
                        std::vector<float> &known = expected[static_cast<size_t>(row)];
                        const float *got = tiles[0].floats() + r * n;
                        if (known.empty()) known.assign(got, got + n);
                        equal = equal && std::memcmp(got, known.data(),
                                                     static_cast<size_t>(n) * sizeof(float)) == 0;
                    }
                }
            }
            if (equal) found.push_back(*size);
            if (found.empty()) expected.assign(kBlockRows, {});
        }
        std::reverse(found.begin(), found.end());
        if (!found.empty()) return {};
        return error(
            BATCHLLM_ERROR_UNSUPPORTED,
            "reproducible: on this processor oneDNN's %s products of %lld by %lld depend on "
            "the row's place",
            dtype_name(compute), static_cast<long long>(n), static_cast<long long>(k));
    }

    Status reserve_scratchpads(const dnnl::memory::desc &scratchpad) {
        for (Buffer &own : scratchpads) {
            RETURN_IF_ERROR(own.reserve(static_cast<int64_t>(scratchpad.get_size()),
                                        "a matrix product's scratchpad"));
        }
        return {};
    }

    Status reserve(const Primitive &made) {
        RETURN_IF_ERROR(reserve_scratchpads(made.scratchpad));
        for (Buffer &tile : tiles) {
            RETURN_IF_ERROR(tile.reserve(static_cast<int64_t>(made.output.get_size()),
                                         "a tile of a matrix product"));
        }
        return {};
    }
};

Linear::Linear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Linear::~Linear() = default;

Result<std::unique_ptr<Linear>> Linear::create(DType compute, ThreadPool *pool, bool reproducible,
                                               const Kernels *kernels) {
    try {
        load_unwinder();
        need_memory_to_create();
        have_no_cache();
        auto impl = std::make_unique<Impl>();
        impl->compute = compute;
        impl->pool = pool;
        impl->reproducible = reproducible;
        impl->low_rank.use(kernels, pool);
        for (int32_t t = 0; t < pool->size(); ++t) impl->streams.emplace_back(impl->engine);
        impl->tiles.resize(static_cast<size_t>(pool->size()));
        impl->scratchpads.resize(static_cast<size_t>(pool->size()));
        return std::unique_ptr<Linear>(new Linear(std::move(impl)));
    } catch (...) {
        return onednn_failure(BATCHLLM_ERROR_BACKEND_UNAVAILABLE);
    }
}

int64_t Linear::rounded_rows(int64_t rows) {
    return rows + kBlockRows - 1; // the last block starts before `rows`
}

Result<PackedMatrix> Linear::pack(std::span<const Tensor *const> tensors, bool interleaved) {
    Impl &impl = *impl_;
    const OneThread one_thread;
    PackedMatrix matrix;
    matrix.interleaved = interleaved;
    matrix.columns = tensors[0]->columns;
    for (const Tensor *tensor : tensors) matrix.rows += tensor->rows;
    matrix.tensors.assign(tensors.begin(), tensors.end());

    // Wide enough that each thread gets a few slices; oneDNN pads slices to multiples of 64.
    const int32_t threads = impl.reproducible ? kThreadsOfAny : impl.pool->size();
    matrix.slice_width = 256;
    while (matrix.slice_width > 64 &&
           (matrix.rows + matrix.slice_width - 1) / matrix.slice_width < 4 * threads) {
        matrix.slice_width -= 64;
    }
    matrix.slices = (matrix.rows + matrix.slice_width - 1) / matrix.slice_width;

    try {
        if (impl.reproducible) {
            RETURN_IF_ERROR(impl.find_sizes(matrix.width(0), matrix.columns));
            RETURN_IF_ERROR(impl.find_sizes(matrix.width(matrix.slices - 1), matrix.columns));
        }
        const Packing &full = impl.packing(matrix.width(0), matrix.columns);
        const Packing &last = impl.packing(matrix.width(matrix.slices - 1), matrix.columns);
        for (const Packing *made : {&full, &last}) {
            RETURN_IF_ERROR(impl.reserve_scratchpads(made->scratchpad));
        }
        matrix.slice_bytes = static_cast<int64_t>((full.packed.get_size() + 63) / 64 * 64);
        ASSIGN_OR_RETURN(matrix.data,
                         Buffer::create(matrix.slices * matrix.slice_bytes, "the packed weights"));
        packed_bytes_ += matrix.slices * matrix.slice_bytes;
        std::vector<Buffer> rows(static_cast<size_t>(impl.pool->size()));
        for (Buffer &buffer : rows) {
            ASSIGN_OR_RETURN(buffer, Buffer::create(matrix.slice_width * matrix.columns *
                                                        dtype_bytes(impl.compute),
                                                    "weights to be packed"));
        }
        const auto pack_slice = [&](int64_t slice, int32_t thread) {
            const OneThread one;
            std::byte *out = rows[static_cast<size_t>(thread)].data();
            const int64_t row_bytes = matrix.columns * dtype_bytes(impl.compute);
            const int64_t width = matrix.width(slice);
            int64_t first = slice * matrix.slice_width;
            if (interleaved) {
                for (const Tensor *tensor : tensors) {
                    read_rows(*tensor, first / 2, width / 2, impl.compute, out);
                    out += width / 2 * row_bytes;
                }
            } else {
                int64_t left = width;
                for (const Tensor *tensor : tensors) {
                    if (left > 0 && first < tensor->rows) {
                        const int64_t take = std::min(left, tensor->rows - first);
                        read_rows(*tensor, first, take, impl.compute, out);
                        out += take * row_bytes;
                        left -= take;
                        first = 0;
                    } else {
                        first -= std::min(first, tensor->rows);
                    }
                }
            }
            impl.pack(slice + 1 == matrix.slices ? last : full,
                      rows[static_cast<size_t>(thread)].data(),
                      matrix.data.data() + slice * matrix.slice_bytes, static_cast<size_t>(thread));
        };
        impl.pool->parallel_for(matrix.slices, pack_slice);
    } catch (...) {
        return onednn_failure();
    }
    return matrix;
}

Status Linear::run(const PackedMatrix &matrix, const void *x, int64_t rows,
                   const std::function<void(const Tile &)> &tile_done) {
    Impl &impl = *impl_;
    if (rows <= 0) return {};
    const OneThread one_thread;
    const std::array<int64_t, 2> widths{matrix.width(0), matrix.width(matrix.slices - 1)};
    // [last slice?][last block of rows?]
    std::array<std::array<const Primitive *, 2>, 2> made{};
    std::array<int64_t, 2> block_rows{}; // [last slice?]
    std::array<int64_t, 2> blocks{};
    try {
        for (size_t last = 0; last < 2; ++last) {
            const std::span<const int64_t> sizes = impl.sizes_of(widths[last], matrix.columns);
            block_rows[last] = sizes.back();
            blocks[last] = (rows + sizes.back() - 1) / sizes.back();
            const int64_t left = rows - (blocks[last] - 1) * sizes.back();
            const std::array<int64_t, 2> rows_of{sizes.back(), round_block(left, sizes)};
            for (size_t end = blocks[last] == 1 ? 1 : 0; end < 2; ++end) {
                made[last][end] = &impl.primitive(rows_of[end], widths[last], matrix.columns);
                RETURN_IF_ERROR(impl.reserve(*made[last][end]));
            }
        }
    } catch (...) {
        return onednn_failure();
    }

    const bool changed =
        !adapters_.empty() && impl.low_rank.shrink({matrix.tensors, matrix.interleaved}, adapters_,
                                                   static_cast<const std::byte *>(x), rows);
    const int64_t in_last_slice = blocks[1];
    const int64_t tasks = (matrix.slices - 1) * blocks[0] + in_last_slice;
    const auto task = [&](int64_t index, int32_t thread) {
        const OneThread one;
        const bool last = index >= tasks - in_last_slice;
        const int64_t slice = last ? matrix.slices - 1 : index / blocks[0];
        const int64_t block = index - slice * blocks[0];
        const int64_t row = block * block_rows[last];
        // oneDNN does not write to its input; its interface only lacks the const.
        std::byte *input = static_cast<std::byte *>(const_cast<void *>(x)) +
                           row * matrix.columns * dtype_bytes(impl.compute);
        const auto t = static_cast<size_t>(thread);
        impl.execute(*made[last][block + 1 == blocks[last]], input,
                     matrix.data.data() + slice * matrix.slice_bytes, t);
        const Tile tile{impl.tiles[t].floats(),
                        row,
                        std::min(block_rows[last], rows - row),
                        slice,
                        slice * matrix.slice_width,
                        matrix.width(slice),
                        thread};
        if (changed) {
            impl.low_rank.expand({tile.row, tile.rows, tile.column, tile.width},
                                 impl.tiles[t].floats());
        }
        tile_done(tile);
    };
    try {
        impl.pool->parallel_for(tasks, task);
    } catch (...) {
        return onednn_failure();
    }
    return {};
}

} // namespace batchllm::cpu
