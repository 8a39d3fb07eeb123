// What devices that work as one exchange: sums and bytes, in graphs too, and the end of those that wait for a rank that
// does not come. Needs two devices and NCCL; skipped (77) without. "time": how long sums take.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "device/device.h"
#include "elementwise/norm.h"
#include "ranks/rank_group.h"

// Last: they define macros with the names of members of the standard library.
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<RankGroup> make_group(bool peers = false) { // else NCCL's
    auto made = RankGroup::create({0, 1}, peers);
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    return std::move(made).value();
}

// Waits for the copy: streams that do not wait for the default one use what it writes.
Status put(void *to, const void *from, size_t bytes) {
    RETURN_IF_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return check_cuda(cudaDeviceSynchronize(), "numbers");
}

// A rank's numbers on its device.
struct Numbers {
    DeviceMemory memory;
    Stream stream;

    Status make(int32_t rank, const std::vector<float> &values) {
        RETURN_IF_CUDA(cudaSetDevice(rank));
        const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
        ASSIGN_OR_RETURN(memory, DeviceMemory::create(bytes, "numbers"));
        ASSIGN_OR_RETURN(stream, Stream::create());
        return put(memory.data(), values.data(), static_cast<size_t>(bytes));
    }
    Result<std::vector<float>> read() const {
        std::vector<float> values(static_cast<size_t>(memory.bytes()) / sizeof(float));
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        RETURN_IF_CUDA(cudaMemcpy(values.data(), memory.data(), static_cast<size_t>(memory.bytes()),
                                  cudaMemcpyDeviceToHost));
        return values;
    }
};

void assert_ok(const Status &status) {
    if (!status.ok()) fail_msg("%s", status.message().c_str());
}

// Twice launched, then replayed as a graph.
void sums_are_those_of_all_ranks(void **) {
    const auto group = make_group();
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{5} << 20}) {
        std::vector<std::vector<float>> got(2);
        assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
            std::vector<float> own(count);
            for (size_t i = 0; i < count; ++i) {
                own[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 1000);
            }
            Numbers numbers;
            RETURN_IF_ERROR(numbers.make(rank, own));
            RETURN_IF_ERROR(group->meet());
            const auto add = [&] {
                return group->sum(rank, numbers.memory.data(), static_cast<int64_t>(count),
                                  DType::f32, numbers.stream);
            };
            RETURN_IF_ERROR(add());
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t made = nullptr;
            RETURN_IF_CUDA(
                cudaStreamBeginCapture(numbers.stream, cudaStreamCaptureModeThreadLocal));
            RETURN_IF_ERROR(add());
            RETURN_IF_CUDA(cudaStreamEndCapture(numbers.stream, &graph));
            RETURN_IF_CUDA(cudaGraphInstantiate(&made, graph, 0));
            RETURN_IF_ERROR(group->meet());
            for (int i = 0; i < 3; ++i) RETURN_IF_CUDA(cudaGraphLaunch(made, numbers.stream));
            ASSIGN_OR_RETURN(got[static_cast<size_t>(rank)], numbers.read());
            cudaGraphExecDestroy(made);
            cudaGraphDestroy(graph);
            return group->meet();
        }));
        for (size_t i = 0; i < count; ++i) {
            const auto first = static_cast<float>(i * 7 % 1000);
            const auto second = static_cast<float>((i * 7 + 3) % 1000);
            for (const auto &own : got) assert_true(own[i] == 8 * (first + second));
        }
    }
}

void bytes_are_swapped(void **) {
    const auto group = make_group();
    std::vector<std::vector<float>> got(2);
    assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
        // The first half goes to the other, whose second half becomes what comes from there.
        const auto own = static_cast<float>(rank + 1);
        Numbers numbers;
        RETURN_IF_ERROR(numbers.make(rank, std::vector<float>(200, own)));
        RETURN_IF_ERROR(group->meet());
        std::vector<RankGroup::Bytes> to(2), from(2);
        to[static_cast<size_t>(1 - rank)] = {numbers.memory.data(), 400};
        from[static_cast<size_t>(1 - rank)] = {numbers.memory.data() + 400, 400};
        RETURN_IF_ERROR(group->swap(rank, to, from, numbers.stream));
        ASSIGN_OR_RETURN(got[static_cast<size_t>(rank)], numbers.read());
        return group->meet();
    }));
    for (size_t i = 0; i < 200; ++i) {
        assert_true(got[0][i] == (i < 100 ? 1 : 2));
        assert_true(got[1][i] == (i < 100 ? 2 : 1));
    }
}

// The residual stream of each rank: zero, then added to by sums of both, a buffer after the other. `launch` gets what
// enqueues one of them.
using Launch = std::function<Status(const std::function<Status()> &add, cudaStream_t stream)>;
Result<std::vector<float>> add_by_peers(RankGroup *group, int32_t rank, int64_t rows,
                                        int32_t hidden, const Launch &launch) {
    const int64_t count = rows * hidden;
    Numbers stream_of_rank;
    RETURN_IF_ERROR(stream_of_rank.make(rank, std::vector<float>(static_cast<size_t>(count), 0)));
    // Whatever else each asks for, signals are where the others write them.
    ASSIGN_OR_RETURN(const PeerBuffers *shared,
                     group->share_buffers(rank, {count * 4, rank * int64_t{70000}, 0, {}}));
    if (shared == nullptr) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "no access to each other's memory");
    }
    const PeerBuffers &peers = *shared;
    for (size_t turn = 0; turn < 2; ++turn) {
        std::vector<float> own(static_cast<size_t>(count));
        for (size_t i = 0; i < own.size(); ++i) {
            own[i] = static_cast<float>((i + 5 * static_cast<size_t>(rank) + 11 * turn) % 100);
        }
        RETURN_IF_ERROR(put(peers.own[turn], own.data(), own.size() * 4));
    }
    RETURN_IF_ERROR(group->meet());
    size_t turn = 0;
    const cudaStream_t stream = stream_of_rank.stream;
    const auto add = [&]() -> Status {
        AddNormArguments a{};
        a.element = a.stream_type = DType::f32;
        a.residual = stream_of_rank.memory.data();
        a.scale = 1;
        a.count = static_cast<int32_t>(rows);
        a.hidden = hidden;
        a.delta = peers.own[turn];
        a.peers = peers.sums[turn];
        turn ^= 1;
        RETURN_IF_CUDA(launch_signal(peers.signals, stream));
        return check_cuda(launch_add_norm(a, stream), "a sum");
    };
    RETURN_IF_ERROR(launch(add, stream));
    ASSIGN_OR_RETURN(std::vector<float> got, stream_of_rank.read());
    RETURN_IF_ERROR(group->meet());
    return got;
}

void peers_add_up_what_all_have_made(void **) {
    constexpr int32_t hidden = 1024, sums = 200;
    for (const int64_t rows : {1, 33, 3000}) {
        const auto group = make_group(true);
        std::vector<std::vector<float>> got(2);
        assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
            const Launch many = [&](const std::function<Status()> &add, cudaStream_t) -> Status {
                for (int32_t i = 0; i < sums; ++i) RETURN_IF_ERROR(add());
                return {};
            };
            ASSIGN_OR_RETURN(got[static_cast<size_t>(rank)],
                             add_by_peers(group.get(), rank, rows, hidden, many));
            return {};
        }));
        for (size_t i = 0; i < got[0].size(); ++i) {
            const auto of = [&](size_t first) { return static_cast<float>((i + first) % 100); };
            const float both = of(0) + of(5) + of(11) + of(16);
            assert_true(got[0][i] == sums / 2 * both && got[1][i] == got[0][i]);
        }
    }
}

// Of every type, of sizes that are no multiple of a load's, and in several pieces.
template <typename T> void sums_of(DType type, const std::function<T(int)> &number, bool eights) {
    const auto group = make_group(true);
    for (const int64_t count : {8, 1000, 100001, 1000000}) {
        const int64_t each = eights ? count / 8 * 8 : count;
        std::vector<std::vector<T>> got(2);
        assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
            RETURN_IF_CUDA(cudaSetDevice(rank));
            if (count == 8) {
                RETURN_IF_ERROR(group->share_buffers(rank, {512 << 10, 0, 0, {}}).status());
            }
            std::vector<T> own(static_cast<size_t>(each));
            for (size_t i = 0; i < own.size(); ++i) {
                own[i] = number(static_cast<int>(i % 100) + 3 * rank);
            }
            const auto bytes = own.size() * sizeof(T);
            ASSIGN_OR_RETURN(const DeviceMemory memory,
                             DeviceMemory::create(static_cast<int64_t>(bytes), "numbers"));
            ASSIGN_OR_RETURN(const Stream stream, Stream::create());
            RETURN_IF_ERROR(put(memory.data(), own.data(), bytes));
            RETURN_IF_ERROR(group->meet());
            if constexpr (std::is_same_v<T, int32_t>) {
                RETURN_IF_ERROR(group->sum(rank, memory.as<int32_t>(), each, stream));
            } else {
                RETURN_IF_ERROR(group->sum(rank, memory.data(), each, type, stream));
            }
            RETURN_IF_CUDA(cudaStreamSynchronize(stream));
            RETURN_IF_CUDA(cudaMemcpy(own.data(), memory.data(), bytes, cudaMemcpyDeviceToHost));
            got[static_cast<size_t>(rank)] = own;
            return group->meet();
        }));
        for (size_t i = 0; i < got[0].size(); ++i) {
            const T both = number(2 * static_cast<int>(i % 100) + 3);
            assert_true(got[0][i] == both && got[1][i] == both);
        }
    }
}

// The bits of a whole number below 256 in bf16.
uint16_t bf16_of(int number) {
    const auto wide = static_cast<float>(number);
    uint32_t bits = 0;
    std::memcpy(&bits, &wide, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

void peers_sum_every_type(void **) {
    sums_of<float>(
        DType::f32, [](int i) { return static_cast<float>(i); }, false);
    sums_of<int32_t>(
        DType::f32, [](int i) { return i * 1000003; }, false);
    sums_of<uint16_t>(DType::bf16, bf16_of, true);
}

void columns_of_all_ranks_are_put_together(void **) {
    constexpr int32_t rows = 5, columns = 5003, begin = 2504, padded = 2512, stride = 5008;
    const auto group = make_group(true);
    assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
        RETURN_IF_CUDA(cudaSetDevice(rank));
        ASSIGN_OR_RETURN(PeerBuffers *const peers,
                         group->share_buffers(rank, {1024, 0, rows * padded * 4, {}}));
        const int32_t own = rank == 0 ? begin : columns - begin, first = rank * begin;
        std::vector<float> made(rows * padded, -1);
        for (int32_t r = 0; r < rows; ++r) {
            for (int32_t c = 0; c < own; ++c) {
                made[static_cast<size_t>(r * padded + c)] =
                    static_cast<float>(r * columns + first + c);
            }
        }
        RETURN_IF_ERROR(put(peers->logits, made.data(), made.size() * 4));
        Numbers all;
        RETURN_IF_ERROR(all.make(rank, std::vector<float>(rows * stride, -1)));
        PeerColumns c;
        c.ranks = 2;
        c.rows = rows;
        c.to = all.memory.as<float>();
        c.stride = stride;
        for (int32_t r = 0; r < 2; ++r) {
            c.parts[static_cast<size_t>(r)] = {
                reinterpret_cast<const float *>(peers->of_rank(r, peers->logits)), padded,
                r * begin, r == 0 ? begin : columns - begin};
        }
        RETURN_IF_ERROR(group->meet());
        RETURN_IF_CUDA(launch_meeting(peers->signals, all.stream));
        RETURN_IF_CUDA(launch_put_together(c, all.stream));
        ASSIGN_OR_RETURN(const std::vector<float> got, all.read());
        for (int32_t i = 0; i < rows * columns; ++i) {
            const int32_t at = i / columns * stride + i % columns;
            if (got[static_cast<size_t>(at)] != static_cast<float>(i)) {
                return error(BATCHLLM_ERROR_INTERNAL, "number %d is %g", i,
                             static_cast<double>(got[static_cast<size_t>(at)]));
            }
        }
        return group->meet();
    }));
}

// One that fails on the host, and one that never comes.
void exchanges_that_wait_in_vain_end(void **) {
    const auto group = make_group();
    const auto start = Clock::now();
    const Status status = run_ranks(group.get(), [&](int32_t rank) -> Status {
        Numbers numbers;
        RETURN_IF_ERROR(numbers.make(rank, std::vector<float>(1 << 20, 1)));
        RETURN_IF_ERROR(group->meet());
        if (rank == 1) return error(BATCHLLM_ERROR_DEVICE, "lost");
        RETURN_IF_ERROR(
            group->sum(rank, numbers.memory.data(), 1 << 20, DType::f32, numbers.stream));
        return numbers.read().status();
    });
    // Nor do kernels that wait for it wait for ever.
    const auto peers = make_group(true);
    const Status second = run_ranks(peers.get(), [&](int32_t rank) -> Status {
        RETURN_IF_CUDA(cudaSetDevice(rank));
        ASSIGN_OR_RETURN(const PeerBuffers *buffers, peers->share_buffers(rank, {1024, 0, 0, {}}));
        ASSIGN_OR_RETURN(const Stream stream, Stream::create());
        RETURN_IF_ERROR(peers->meet());
        if (rank == 1) return error(BATCHLLM_ERROR_DEVICE, "lost");
        RETURN_IF_CUDA(launch_meeting(buffers->signals, stream));
        return check_cuda(cudaStreamSynchronize(stream), "waiting");
    });
    assert_string_equal(second.message().c_str(), "lost");
    assert_string_equal(status.message().c_str(), "lost");
    assert_true(Clock::now() - start < std::chrono::seconds(10));
    float one = 1;
    for (RankGroup *failed : {group.get(), peers.get()}) {
        assert_false(failed->sum(0, &one, 1, DType::f32, nullptr).ok());
        assert_false(failed->meet().ok());
    }
}

// NCCL keeps its communicators until graphs with its kernels are destroyed, which is after the failure is known.
void a_graph_that_lives_on_holds_up_no_failure(void **) {
    auto group = make_group();
    const auto start = Clock::now();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    const Status status = run_ranks(group.get(), [&](int32_t rank) -> Status {
        if (rank == 1) {
            RETURN_IF_ERROR(group->meet());
            return error(BATCHLLM_ERROR_DEVICE, "lost");
        }
        Numbers numbers;
        RETURN_IF_ERROR(numbers.make(rank, std::vector<float>(1 << 20, 1)));
        RETURN_IF_CUDA(cudaStreamBeginCapture(numbers.stream, cudaStreamCaptureModeThreadLocal));
        RETURN_IF_ERROR(
            group->sum(rank, numbers.memory.data(), 1 << 20, DType::f32, numbers.stream));
        RETURN_IF_CUDA(cudaStreamEndCapture(numbers.stream, &graph));
        RETURN_IF_CUDA(cudaGraphInstantiate(&made, graph, 0));
        RETURN_IF_CUDA(cudaGraphLaunch(made, numbers.stream));
        RETURN_IF_ERROR(group->meet());
        return numbers.read().status();
    });
    assert_string_equal(status.message().c_str(), "lost");
    assert_int_equal(cudaGraphExecDestroy(made), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    group.reset();
    assert_true(Clock::now() - start < std::chrono::seconds(10));
}

// Milliseconds of one of many sums in a graph, and bytes a second that each device sends.
void print_times() {
    const auto group = make_group();
    constexpr int repeats = 50;
    std::printf("sums in bf16, %d in a graph\n      bytes        us      GB/s\n", repeats);
    for (int64_t bytes = 4096; bytes <= int64_t{256} << 20; bytes *= 2) {
        float milliseconds = 0;
        assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
            Numbers numbers;
            RETURN_IF_ERROR(
                numbers.make(rank, std::vector<float>(static_cast<size_t>(bytes) / 4, 0)));
            RETURN_IF_ERROR(group->meet());
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t made = nullptr;
            RETURN_IF_CUDA(
                cudaStreamBeginCapture(numbers.stream, cudaStreamCaptureModeThreadLocal));
            for (int i = 0; i < repeats; ++i) {
                RETURN_IF_ERROR(group->sum(rank, numbers.memory.data(), bytes / 2, DType::bf16,
                                           numbers.stream));
            }
            RETURN_IF_CUDA(cudaStreamEndCapture(numbers.stream, &graph));
            RETURN_IF_CUDA(cudaGraphInstantiate(&made, graph, 0));
            ASSIGN_OR_RETURN(const Event begin, Event::create(true));
            ASSIGN_OR_RETURN(const Event end, Event::create(true));
            RETURN_IF_ERROR(group->meet());
            for (int i = 0; i < 2; ++i) {
                RETURN_IF_CUDA(cudaEventRecord(begin, numbers.stream));
                RETURN_IF_CUDA(cudaGraphLaunch(made, numbers.stream));
                RETURN_IF_CUDA(cudaEventRecord(end, numbers.stream));
            }
            RETURN_IF_CUDA(cudaStreamSynchronize(numbers.stream));
            if (rank == 0) RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
            RETURN_IF_ERROR(group->meet());
            cudaGraphExecDestroy(made);
            cudaGraphDestroy(graph);
            return group->meet();
        }));
        const double seconds = static_cast<double>(milliseconds) * 1e-3 / repeats;
        std::printf("%11lld %9.2f %9.1f\n", static_cast<long long>(bytes), seconds * 1e6,
                    static_cast<double>(bytes) / seconds * 1e-9);
        std::fflush(stdout);
    }
}

// The same by kernels that read the other's memory and add to the residual stream, in f32.
void print_times_of_peers() {
    constexpr int32_t hidden = 8192;
    std::printf("sums by peers in f32, with the addition\n      bytes        us      GB/s\n");
    for (int64_t rows = 1; rows <= 8192; rows *= 4) {
        const auto group = make_group(true);
        float milliseconds = 0;
        constexpr int repeats = 50;
        assert_ok(run_ranks(group.get(), [&](int32_t rank) -> Status {
            const Launch timed = [&](const std::function<Status()> &add,
                                     cudaStream_t stream) -> Status {
                cudaGraph_t graph = nullptr;
                cudaGraphExec_t made = nullptr;
                RETURN_IF_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                for (int i = 0; i < repeats; ++i) RETURN_IF_ERROR(add());
                RETURN_IF_CUDA(cudaStreamEndCapture(stream, &graph));
                RETURN_IF_CUDA(cudaGraphInstantiate(&made, graph, 0));
                ASSIGN_OR_RETURN(const Event begin, Event::create(true));
                ASSIGN_OR_RETURN(const Event end, Event::create(true));
                for (int i = 0; i < 2; ++i) {
                    RETURN_IF_CUDA(cudaEventRecord(begin, stream));
                    RETURN_IF_CUDA(cudaGraphLaunch(made, stream));
                    RETURN_IF_CUDA(cudaEventRecord(end, stream));
                }
                RETURN_IF_CUDA(cudaStreamSynchronize(stream));
                if (rank == 0) RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
                cudaGraphExecDestroy(made);
                cudaGraphDestroy(graph);
                return {};
            };
            return add_by_peers(group.get(), rank, rows, hidden, timed).status();
        }));
        const double seconds = static_cast<double>(milliseconds) * 1e-3 / repeats;
        const auto bytes = static_cast<double>(rows * hidden * 4);
        std::printf("%11.0f %9.2f %9.1f\n", bytes, seconds * 1e6, bytes / seconds * 1e-9);
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char **argv) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
        std::printf("skipped: %d devices\n", count);
        return 77;
    }
    if (const auto nccl = Nccl::load(); !nccl.ok()) {
        std::printf("skipped: %s\n", nccl.status().message().c_str());
        return 77;
    }
    if (argc > 1 && std::strcmp(argv[1], "time") == 0) {
        print_times();
        print_times_of_peers();
        return 0;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_all_ranks),
        cmocka_unit_test(bytes_are_swapped),
        cmocka_unit_test(peers_add_up_what_all_have_made),
        cmocka_unit_test(peers_sum_every_type),
        cmocka_unit_test(columns_of_all_ranks_are_put_together),
        cmocka_unit_test(exchanges_that_wait_in_vain_end),
        cmocka_unit_test(a_graph_that_lives_on_holds_up_no_failure),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
