#include "backend/cpu/linear.h"

#include <dnnl.hpp>

#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

// oneDNN as Debian builds it runs on OpenMP. Weak, so that a oneDNN of another kind links too.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int threads);
__attribute__((weak)) int omp_get_max_threads(void);
}

namespace batchllm::cpu {
namespace {

// While it lives, oneDNN calls of this thread run on this thread alone.
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

// Throws std::bad_alloc where so many bytes are not to be had. oneDNN reads through a null pointer when its
// own small allocations fail: memory that is short is found out here, just before a call of it.
void need_memory(size_t bytes) {
    void *probe = std::malloc(bytes);
    asm volatile("" : "+r"(probe)); // not to be left out
    if (probe == nullptr) throw std::bad_alloc();
    std::free(probe);
}

constexpr size_t kExecuteBytes = size_t{32} << 10; // for a call with a primitive that exists
constexpr size_t kCreateBytes = size_t{1} << 20;   // for making one

Status onednn_error(const dnnl::error &failure, int32_t code = BATCHLLM_ERROR_DEVICE) {
    if (failure.status == dnnl_out_of_memory) code = BATCHLLM_ERROR_OUT_OF_MEMORY;
    return error(code, "cpu backend: oneDNN: %s", failure.what());
}

dnnl::memory::data_type dnnl_type(DType type) {
    return type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory::desc input, weights, output, scratchpad;
};

int64_t round_block(int64_t rows) {
    for (int64_t size : {1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112}) {
        if (rows <= size) return size;
    }
    return kBlockRows;
}

} // namespace

struct Linear::Impl {
    DType compute;
    ThreadPool *pool;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    std::vector<dnnl::stream> streams; // [threads]
    std::vector<Buffer> tiles;         // [threads] of kBlockRows * the widest slice floats
    std::vector<Buffer> scratchpads;   // [threads]
    std::map<std::tuple<int64_t, int64_t, int64_t>, Primitive> primitives; // by M, N, K

    // Not thread-safe: called before the tasks start.
    const Primitive &primitive(int64_t m, int64_t n, int64_t k) {
        const auto key = std::make_tuple(m, n, k);
        const auto found = primitives.find(key);
        if (found != primitives.end()) return found->second;
        need_memory(kCreateBytes);
        using Desc = dnnl::memory::desc;
        using Tag = dnnl::memory::format_tag;
        // The layout of the weights is the one that oneDNN prefers for blocks of 64 rows, whatever
        // the rows of this call.
        const auto type = dnnl_type(compute);
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        const auto make = [&](int64_t rows, const Desc &weights) {
            return dnnl::matmul::primitive_desc(
                dnnl::matmul::desc(Desc({rows, k}, type, Tag::ab), weights,
                                   Desc({rows, n}, dnnl::memory::data_type::f32, Tag::ab)),
                attributes, engine);
        };
        const Desc weights = make(64, Desc({k, n}, type, Tag::any)).weights_desc();
        const auto chosen = make(m, weights);
        Primitive made{dnnl::matmul(chosen), chosen.src_desc(), chosen.weights_desc(),
                       chosen.dst_desc(), chosen.scratchpad_desc()};
        return primitives.emplace(key, std::move(made)).first->second;
    }

    Status reserve(const Primitive &made) {
        for (size_t t = 0; t < scratchpads.size(); ++t) {
            RETURN_IF_ERROR(scratchpads[t].reserve(static_cast<int64_t>(made.scratchpad.get_size()),
                                                   "a matrix product's scratchpad"));
            RETURN_IF_ERROR(tiles[t].reserve(static_cast<int64_t>(made.output.get_size()),
                                             "a tile of a matrix product"));
        }
        return {};
    }
};

Linear::Linear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Linear::~Linear() = default;

Result<std::unique_ptr<Linear>> Linear::create(DType compute, ThreadPool *pool) {
    try {
        need_memory(kCreateBytes);
        auto impl = std::make_unique<Impl>();
        impl->compute = compute;
        impl->pool = pool;
        for (int32_t t = 0; t < pool->size(); ++t) impl->streams.emplace_back(impl->engine);
        impl->tiles.resize(static_cast<size_t>(pool->size()));
        impl->scratchpads.resize(static_cast<size_t>(pool->size()));
        return std::unique_ptr<Linear>(new Linear(std::move(impl)));
    } catch (const dnnl::error &failure) {
        return onednn_error(failure, BATCHLLM_ERROR_BACKEND_UNAVAILABLE);
    }
}

int64_t Linear::rounded_rows(int64_t rows) {
    const int64_t whole = rows / kBlockRows * kBlockRows;
    return whole + (rows > whole ? round_block(rows - whole) : 0);
}

Result<PackedMatrix> Linear::pack(std::span<const Tensor> tensors, bool interleaved) {
    Impl &impl = *impl_;
    const OneThread one_thread;
    PackedMatrix matrix;
    matrix.interleaved = interleaved;
    matrix.columns = tensors[0].columns;
    for (const Tensor &tensor : tensors) matrix.rows += tensor.rows;

    // As wide as gives each thread a few slices to take; oneDNN pads slices to multiples of 64.
    matrix.slice_width = 256;
    while (matrix.slice_width > 64 &&
           (matrix.rows + matrix.slice_width - 1) / matrix.slice_width < 4 * impl.pool->size()) {
        matrix.slice_width -= 64;
    }
    matrix.slices = (matrix.rows + matrix.slice_width - 1) / matrix.slice_width;

    try {
        const Primitive &full = impl.primitive(64, matrix.width(0), matrix.columns);
        const Primitive &last = impl.primitive(64, matrix.width(matrix.slices - 1), matrix.columns);
        matrix.slice_bytes = static_cast<int64_t>((full.weights.get_size() + 63) / 64 * 64);
        ASSIGN_OR_RETURN(matrix.data,
                         Buffer::create(matrix.slices * matrix.slice_bytes, "the packed weights"));
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
                for (const Tensor &tensor : tensors) {
                    read_rows(tensor, first / 2, width / 2, impl.compute, out);
                    out += width / 2 * row_bytes;
                }
            } else {
                int64_t left = width;
                for (const Tensor &tensor : tensors) {
                    if (left > 0 && first < tensor.rows) {
                        const int64_t take = std::min(left, tensor.rows - first);
                        read_rows(tensor, first, take, impl.compute, out);
                        out += take * row_bytes;
                        left -= take;
                        first = 0;
                    } else {
                        first -= std::min(first, tensor.rows);
                    }
                }
            }
            need_memory(kCreateBytes);
            const Primitive &made = slice + 1 == matrix.slices ? last : full;
            const dnnl::memory::desc plain({matrix.columns, width}, dnnl_type(impl.compute),
                                           dnnl::memory::dims{1, matrix.columns});
            dnnl::memory from(plain, impl.engine, rows[static_cast<size_t>(thread)].data());
            dnnl::memory to(made.weights, impl.engine,
                            matrix.data.data() + slice * matrix.slice_bytes);
            dnnl::stream &stream = impl.streams[static_cast<size_t>(thread)];
            dnnl::reorder(from, to).execute(stream, from, to);
            stream.wait();
        };
        impl.pool->parallel_for(matrix.slices, pack_slice);
    } catch (const dnnl::error &failure) {
        return onednn_error(failure);
    }
    return matrix;
}

Status Linear::run(const PackedMatrix &matrix, const void *x, int64_t rows,
                   const std::function<void(const Tile &)> &tile_done) {
    Impl &impl = *impl_;
    if (rows <= 0) return {};
    const OneThread one_thread;
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    // [last block of rows?][last slice?]
    std::array<std::array<const Primitive *, 2>, 2> made{};
    try {
        const int64_t last_rows = round_block(rows - (blocks - 1) * kBlockRows);
        for (int last = 0; last < 2; ++last) {
            if (last == 0 && blocks == 1) continue;
            const int64_t m = last == 1 ? last_rows : kBlockRows;
            made[last][0] = &impl.primitive(m, matrix.width(0), matrix.columns);
            made[last][1] = &impl.primitive(m, matrix.width(matrix.slices - 1), matrix.columns);
            RETURN_IF_ERROR(impl.reserve(*made[last][0]));
            RETURN_IF_ERROR(impl.reserve(*made[last][1]));
        }
    } catch (const dnnl::error &failure) {
        return onednn_error(failure);
    }

    const auto task = [&](int64_t index, int32_t thread) {
        const OneThread one;
        const int64_t slice = index / blocks;
        const int64_t block = index % blocks;
        const Primitive &primitive = *made[block + 1 == blocks][slice + 1 == matrix.slices];
        const size_t t = static_cast<size_t>(thread);
        // oneDNN does not write to its input; its interface only lacks the const.
        std::byte *input = static_cast<std::byte *>(const_cast<void *>(x)) +
                           block * kBlockRows * matrix.columns * dtype_bytes(impl.compute);
        need_memory(kExecuteBytes);
        const dnnl::memory from(primitive.input, impl.engine, input);
        const dnnl::memory weights(primitive.weights, impl.engine,
                                   matrix.data.data() + slice * matrix.slice_bytes);
        const dnnl::memory to(primitive.output, impl.engine, impl.tiles[t].data());
        const dnnl::memory scratchpad(primitive.scratchpad, impl.engine,
                                      impl.scratchpads[t].data());
        primitive.matmul.execute(impl.streams[t], {{DNNL_ARG_SRC, from},
                                                   {DNNL_ARG_WEIGHTS, weights},
                                                   {DNNL_ARG_DST, to},
                                                   {DNNL_ARG_SCRATCHPAD, scratchpad}});
        const int64_t row = block * kBlockRows;
        tile_done({impl.tiles[t].floats(), row, std::min(kBlockRows, rows - row), slice,
                   slice * matrix.slice_width, matrix.width(slice), thread});
    };
    try {
        impl.pool->parallel_for(matrix.slices * blocks, task);
    } catch (const dnnl::error &failure) {
        return onednn_error(failure);
    }
    return {};
}

} // namespace batchllm::cpu
