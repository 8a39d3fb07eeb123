// The CUDA backend's attention worklists: made by the host alone, so no device is needed.
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention_family.h"
#include "testing.h"

using namespace batchllm::cuda;

namespace {

struct Request {
    int32_t keys;
    int32_t tokens; // of the batch: its last keys
};

const std::vector<Request> kChunk = {{12288, 1024}};
const std::vector<Request> kDecodes(80, {12288, 1});

std::vector<Request> both(std::vector<Request> requests, const std::vector<Request> &others) {
    requests.insert(requests.end(), others.begin(), others.end());
    return requests;
}

void build(const std::vector<Request> &requests, Worklist *list) {
    std::vector<AttentionNode> nodes;
    int32_t tokens = 0, pages = 0;
    for (const Request &request : requests) {
        nodes.push_back({-1, 0, request.keys, tokens, request.tokens, pages});
        tokens += request.tokens;
        pages += (request.keys + kPageKeys - 1) / kPageKeys;
    }
    WorklistOptions options;
    options.heads = 32;
    options.kv_heads = 8;
    options.head_dim = 128;
    build_worklist(nodes, tokens, options, list);
}

template <typename T> bool same(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool same(const Worklist &a, const Worklist &b) {
    return a.matrix_items == b.matrix_items && a.stream_items == b.stream_items &&
           a.matrix_ctas == b.matrix_ctas && a.matrix_by_head == b.matrix_by_head &&
           a.slots == b.slots && same(a.items, b.items) && same(a.rows, b.rows) &&
           same(a.partials, b.partials) && same(a.merged, b.merged);
}

// Of a batch with both kinds of jobs: do its matrix jobs go by head? -1: it has one kind alone.
int by_head(const std::vector<Request> &requests) {
    Worklist list;
    build(requests, &list);
    return list.matrix_items > 0 && list.stream_items > 0 ? list.matrix_by_head : -1;
}

void long_matrix_jobs_beside_streams_go_by_head(void **) {
    assert_int_equal(by_head(both(kChunk, kDecodes)), 1);
    assert_int_equal(by_head(both({{2048, 2048}}, kDecodes)), 0);
}

// The engine keeps a worklist from step to step.
void nothing_of_the_step_before_stays_in_a_worklist(void **) {
    const std::vector<Request> batches[] = {kChunk, kDecodes, both(kChunk, kDecodes)};
    int different = 0;
    for (int before = 0; before < 3; ++before) {
        for (int now = 0; now < 3; ++now) {
            Worklist fresh, used;
            build(batches[now], &fresh);
            build(batches[before], &used);
            build(batches[now], &used);
            if (same(used, fresh)) continue;
            print_message("batch %d after %d\n", now, before);
            ++different;
        }
    }
    assert_int_equal(different, 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(long_matrix_jobs_beside_streams_go_by_head),
        cmocka_unit_test(nothing_of_the_step_before_stays_in_a_worklist),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
