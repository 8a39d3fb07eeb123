// The kernels between a layer's products: microseconds per launch, the bytes per second that must
// move, and that rate relative to a copy. Launches are replayed from a graph, one after another,
// each on memory that the previous ones have not touched, so that nothing comes from L2. The last
// column is the time of a copy of as many bytes, launched in the same way.
//
//     elementwise                     Mistral-7B's shape, 64 to 8,192 rows
//     elementwise --hidden 8192 --width 28672 --heads 64
//     elementwise --rows 512          only this number of rows
//     elementwise --only e4m3         kernels with this in their names
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "device_arrays.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "elementwise/quantize.h"
#include "elementwise/rope.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int64_t kArena = int64_t{3} << 30; // bytes; several times L2
constexpr int32_t kVocabulary = 32000, kMostRows = 8192;

// Memory of which each launch gets the next part; after the last part it starts over.
class Arena {
  public:
    explicit Arena(uint64_t seed) : memory_(noise(kArena / 2, seed, 1)) {}
    void *next(int64_t bytes) {
        bytes = (bytes + 1023) / 1024 * 1024;
        if (at_ + bytes > kArena) at_ = 0;
        at_ += bytes;
        return memory_.data() + (at_ - bytes);
    }

  private:
    DeviceMemory memory_;
    int64_t at_ = 0;
};

struct Shape {
    int32_t hidden = 4096, width = 14336, heads = 32, kv_heads = 8, head_dim = 128;
};

struct Kernel {
    std::string name;
    int64_t bytes; // bytes that a row must move
    std::function<cudaError_t(int32_t rows, cudaStream_t stream)> launch;
};

class Bench {
  public:
    explicit Bench(const Shape &shape) : s_(shape), in_(1), out_(2) {
        weights_ = require(DeviceMemory::create(int64_t{s_.hidden} * 4, "weights"));
        require(launch_random(weights_.data(), DType::f32, s_.hidden, 1, 0.1F, 3, nullptr));
        const int64_t angles = int64_t{kMostRows} * s_.head_dim;
        angles_ = require(DeviceMemory::create(angles * 4, "angles"));
        require(launch_random(angles_.data(), DType::f32, angles, 0, 0.7F, 4, nullptr));
        scales_ = require(DeviceMemory::create(
            int64_t{kMostRows} * (1 + std::max(s_.width, s_.hidden) / kScaleGroup) * 4, "scales"));
        std::vector<int32_t> numbers(kMostRows);
        std::iota(numbers.begin(), numbers.end(), 0);
        slots_ = upload(numbers);
        std::mt19937_64 random(5);
        for (int32_t &token : numbers) token = static_cast<int32_t>(random() % kVocabulary);
        tokens_ = upload(numbers);
        table_ = noise(int64_t{kVocabulary} * s_.hidden, 6, 1);
    }

    std::vector<Kernel> kernels() {
        const int64_t h = s_.hidden, w = s_.width, q = int64_t{s_.heads} * s_.head_dim;
        const int64_t qkv = q + int64_t{2} * s_.kv_heads * s_.head_dim;
        std::vector<Kernel> all;
        const struct {
            const char *name;
            DType to;
            bool groups;
        } outputs[] = {{"", DType::bf16, false},
                       {" to e4m3", DType::e4m3, false},
                       {" to e4m3, groups", DType::e4m3, true}};
        for (const auto &o : outputs) {
            const int64_t size = dtype_bytes(o.to);
            const std::string to = o.name;
            all.push_back({"norm" + to, h * (2 + size), [=, this](int32_t n, cudaStream_t stream) {
                               return launch_rms_norm({o.to, DType::bf16, in_.next(2 * n * h),
                                                       nullptr, weights_.as<float>(), 1e-5F,
                                                       out_.next(size * n * h), n, s_.hidden,
                                                       scales(n, o.groups)},
                                                      stream);
                           }});
        }
        for (const auto &o : outputs) {
            const int64_t size = dtype_bytes(o.to);
            all.push_back({std::string("sum and norm") + o.name, h * (6 + size),
                           [=, this](int32_t n, cudaStream_t stream) {
                               AddNormArguments a{};
                               a.element = o.to;
                               a.stream_type = DType::bf16;
                               a.residual = in_.next(2 * n * h);
                               a.delta = in_.next(2 * n * h);
                               a.scale = 1;
                               a.next = {NormKind::rms, weights_.as<float>(), nullptr, 1e-5F};
                               a.out = out_.next(size * n * h);
                               a.count = n;
                               a.hidden = s_.hidden;
                               a.scales = scales(n, o.groups);
                               return launch_add_norm(a, stream);
                           }});
        }
        for (const auto &o : outputs) {
            const int64_t size = dtype_bytes(o.to);
            all.push_back({std::string("SwiGLU") + o.name, w * (4 + size),
                           [=, this](int32_t n, cudaStream_t stream) {
                               const ActivationArguments a{
                                   DType::bf16, Activation::silu,        true, in_.next(4 * n * w),
                                   nullptr,     out_.next(size * n * w), n,    s_.width};
                               return o.to == DType::e4m3
                                          ? launch_activation_e4m3(a, scales(n, o.groups), stream)
                                          : launch_activation(a, stream);
                           }});
        }
        for (const bool groups : {false, true}) {
            all.push_back({groups ? "rows to e4m3, groups" : "rows to e4m3", 3 * q,
                           [=, this](int32_t n, cudaStream_t stream) {
                               return launch_quantize_rows({DType::bf16, in_.next(2 * n * q),
                                                            out_.next(n * q), scales(n, groups), n,
                                                            static_cast<int32_t>(q)},
                                                           stream);
                           }});
        }
        for (const bool part : {false, true}) { // whether only part of a head's elements rotate
            const int32_t dims = part ? s_.head_dim / 2 : s_.head_dim;
            all.push_back({part ? "rope of half a head, KV" : "rope, KV", 4 * qkv + 4 * dims,
                           [=, this](int32_t n, cudaStream_t stream) {
                               RopeArguments a{};
                               a.element = DType::bf16;
                               a.qkv = in_.next(2 * n * qkv);
                               a.table = angles_.as<float2>();
                               a.dims = dims;
                               a.head_dim = a.padded_dim = s_.head_dim;
                               a.slots = slots_.as<int32_t>();
                               const int64_t pages = (n + kPageKeys - 1) / kPageKeys;
                               a.kv = out_.next(pages * kPageKeys * 2 * (qkv - q));
                               a.tokens = n;
                               a.heads = s_.heads;
                               a.kv_heads = s_.kv_heads;
                               return launch_rope(a, stream);
                           }});
        }
        all.push_back({"gate", 6 * q, [=, this](int32_t n, cudaStream_t stream) {
                           return launch_gate({DType::bf16, in_.next(2 * n * q),
                                               in_.next(2 * n * q), nullptr, q, n,
                                               static_cast<int32_t>(q)},
                                              stream);
                       }});
        all.push_back({"embedding", 4 * h, [=, this](int32_t n, cudaStream_t stream) {
                           return launch_embed(DType::bf16, DType::bf16, table_.data(),
                                               tokens_.as<int32_t>(), nullptr, n, s_.hidden, 1,
                                               out_.next(2 * n * h), stream);
                       }});
        return all;
    }

    // Microseconds per launch.
    double time(int32_t rows, const Kernel &kernel) {
        return time(rows * kernel.bytes,
                    [&](cudaStream_t stream) { require(kernel.launch(rows, stream)); });
    }
    // The time of a copy that reads and writes this many bytes in total.
    double time_copy(int64_t bytes) {
        return time(bytes, [&](cudaStream_t stream) {
            require(cudaMemcpyAsync(out_.next(bytes / 2), in_.next(bytes / 2),
                                    static_cast<size_t>(bytes / 2), cudaMemcpyDeviceToDevice,
                                    stream));
        });
    }

  private:
    RowScales scales(int64_t rows, bool groups) const {
        return {scales_.as<float>(), groups ? rows : 0};
    }

    template <typename Launch> double time(int64_t bytes, const Launch &launch) {
        const auto times = static_cast<int>(std::clamp<int64_t>(kArena / bytes, 5, 300));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < times; ++i) launch(stream_);
        require(cudaStreamEndCapture(stream_, &graph));
        require(cudaGraphInstantiate(&exec, graph, 0));
        std::vector<double> took;
        for (int i = 0; i < 6; ++i) {
            require(cudaEventRecord(begin_, stream_));
            require(cudaGraphLaunch(exec, stream_));
            require(cudaEventRecord(end_, stream_));
            require(cudaEventSynchronize(end_));
            float milliseconds = 0;
            require(cudaEventElapsedTime(&milliseconds, begin_, end_));
            if (i > 0) took.push_back(1e3 * static_cast<double>(milliseconds) / times);
        }
        require(cudaGraphExecDestroy(exec));
        require(cudaGraphDestroy(graph));
        std::sort(took.begin(), took.end());
        return took[took.size() / 2];
    }

    Shape s_;
    Arena in_, out_;
    DeviceMemory weights_, angles_, scales_, slots_, tokens_, table_;
    Stream stream_ = require(Stream::create());
    Event begin_ = require(Event::create(true)), end_ = require(Event::create(true));
};

} // namespace

int main(int count, char **values) {
    Shape shape;
    std::vector<int32_t> steps = {64, 256, 1024, 4096, kMostRows};
    const char *only = "";
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = values[i];
        const int32_t value = std::atoi(values[i + 1]);
        if (name == "--hidden") shape.hidden = value;
        if (name == "--width") shape.width = value;
        if (name == "--heads") shape.heads = value;
        if (name == "--kv-heads") shape.kv_heads = value;
        if (name == "--head-dim") shape.head_dim = value;
        if (name == "--rows") steps = {std::clamp(value, 1, kMostRows)};
        if (name == "--only") only = values[i + 1];
    }
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, 0));
    for (int i = 0; i < 20; ++i) copy_rate(); // until the clock has settled
    const double copied = copy_rate();
    std::printf("%s, copies at %.2f TB/s\n", properties.name, copied * 1e-12);
    Bench bench(shape);
    for (const int32_t rows : steps) {
        std::printf("\n%d rows%*s us     TB/s   of a copy   a copy of as many bytes, us\n", rows,
                    rows < 100    ? 25
                    : rows < 1000 ? 24
                                  : 23,
                    "");
        for (const Kernel &kernel : bench.kernels()) {
            if (kernel.name.find(only) == std::string::npos) continue;
            const double took = bench.time(rows, kernel);
            const auto bytes = static_cast<double>(rows * kernel.bytes);
            std::printf("%-28s %7.1f  %7.2f   %6.1f %%   %7.1f\n", kernel.name.c_str(), took,
                        bytes / took * 1e-6, 100 * bytes / took * 1e6 / copied,
                        bench.time_copy(rows * kernel.bytes));
        }
    }
    return 0;
}
