#include "attention_time.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "attention_setup.h"

namespace batchllm::cuda {
namespace {

// Median microseconds of a launch, or of two: the matrix queue's items and then the stream queue's.
double time_us(const AttentionSetup &setup, bool fused) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    const int launches = std::max(8, setup.copies());
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) {
        AttentionArguments a = setup.arguments();
        a.kv =
            static_cast<const uint8_t *>(a.kv) + setup.source().pool_bytes() * (i % setup.copies());
        if (fused) {
            setup.launch(a, setup.sms(), stream);
        } else {
            AttentionArguments part = a;
            part.stream_items = 0;
            part.matrix_ctas = setup.sms();
            if (a.stream_items > 0) part.merged_count = 0;
            setup.launch(part, setup.sms(), stream);
            part = a;
            part.items += a.matrix_items;
            part.matrix_items = 0;
            part.matrix_ctas = 0;
            part.widened_count = 0;
            setup.launch(part, setup.sms(), stream);
        }
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int run = 0; run < 8; ++run) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (run > 1) times.push_back(ms * 1000 / static_cast<float>(launches));
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2];
}

} // namespace

void AttentionTimer::print_header() const {
    std::printf("%-47s %8s %6s %6s |%8s%8s%8s%8s%8s%8s | %s\n",
                "case, 32/8 heads of 128 unless R CH L P", "us", "TB/s", "TFLOP", "together",
                "apart", "to best", "unfused", "FA3", "cascade", "items");
}

void AttentionTimer::time(const std::string &group, AttentionCase c, double peer, double cascade) {
    c.shuffle(1);
    if (c.name.find(only_) == std::string::npos) return;
    if (of_type_) time_stored(group, c, peer, cascade);
    c.shape.e4m3 = true;
    c.name += ", e4m3";
    if (e4m3_) time_stored(group, c, peer, cascade);
}

void AttentionTimer::time_stored(const std::string &group, const AttentionCase &c, double peer,
                                 double cascade) {
    const int64_t pool_bytes = c.pool_bytes();
    const int64_t enough = int64_t(600) << 20;
    const int copies = pool_bytes > 2 * enough
                           ? 1
                           : static_cast<int>(std::clamp<int64_t>(enough / pool_bytes + 1, 2, 64));
    AttentionSetup setup(family_, c, copies, 7);
    setup.use(Sharing::chosen);
    const int matrix = setup.worklist().matrix_items, stream = setup.worklist().stream_items;
    const size_t widened = setup.worklist().widened.size(); // pages
    const double chosen = time_us(setup, true);
    const bool mixed = matrix > 0 && stream > 0;
    const double unfused = mixed ? time_us(setup, false) : chosen;
    bool prefixes = false;
    for (const AttentionNode &node : c.nodes) prefixes |= node.parent >= 0;
    double together = chosen, apart = chosen;
    if (prefixes) {
        setup.use(Sharing::together);
        together = time_us(setup, true);
        setup.use(Sharing::apart);
        apart = time_us(setup, true);
    }
    const double ratio = chosen / std::min(together, apart);
    std::printf("%-5s%-42s %8.1f %6.2f %6.1f |", group.c_str(), c.name.c_str(), chosen,
                bytes_moved(c) / chosen * 1e-6, flops(c) / chosen * 1e-6);
    auto column = [](bool there, double value, const char *format) {
        if (there) {
            std::printf(format, value);
        } else {
            std::printf("%8s", "");
        }
    };
    column(prefixes, together, "%8.1f");
    column(prefixes, apart, "%8.1f");
    column(prefixes, ratio, "%8.2f");
    column(mixed, unfused, "%8.1f");
    column(peer > 0, peer, "%8.1f");
    column(cascade > 0, cascade, "%8.1f");
    std::printf(" | %d + %d", matrix, stream);
    if (c.shape.e4m3) std::printf(", %zu widened", widened);
    std::printf("\n");
    std::fflush(stdout);
    ++cases_;
    if (ratio > 1.03) ++slower_;
    if (ratio > worst_) {
        worst_ = ratio;
        worst_name_ = group + " " + c.name;
    }
    const double best = peer > 0 && cascade > 0 ? std::min(peer, cascade) : std::max(peer, cascade);
    if (best > 0) {
        ++peers_;
        beaten_ += chosen < best;
    }
}

void AttentionTimer::print_summary() const {
    std::printf(
        "%d cases; chosen over the better of together and apart: worst %.2f (%s), above 1.03: "
        "%d; faster than the best peer: %d of %d\n",
        cases_, worst_, worst_name_.c_str(), slower_, beaten_, peers_);
}

} // namespace batchllm::cuda
