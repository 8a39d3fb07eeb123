// The floor that bench/throughput counts for a batch, compared with sums by hand.
#include <cmath>
#include <vector>

#include "testing.h"
#include "throughput_floor.h"

using namespace batchllm;

namespace {

// 8 query heads and 2 KV heads of dimension 64. A query and a key: 2,048 flops; a key and its value
// with two-byte elements: 512 bytes. So the arithmetic of 33.3 queries per key takes as long as
// reading the key.
Model model_of(const std::vector<int32_t> &windows) {
    Model model;
    for (const int32_t window : windows) {
        Layer layer;
        Attention &attention = layer.mixer.emplace<Attention>();
        attention.heads = 8;
        attention.kv_heads = 2;
        attention.head_dim = 64;
        attention.window = window;
        model.layers.push_back(layer);
    }
    return model;
}
constexpr double kPair = 2048, kKey = 512;

constexpr double kBandwidth = 4.5e12;

// A prefix with `prefix` tokens, below which `rows` rows decode their own `own`-th token.
TokenBatch decoding(int32_t prefix, int32_t rows, int32_t own) {
    TokenBatch batch;
    batch.nodes.push_back({-1, 0, prefix, 0, 0, true});
    for (int32_t i = 0; i < rows; ++i) batch.nodes.push_back({0, prefix, own, i, 1, false});
    return batch;
}

void must_be(double is, double expected) {
    if (std::abs(is - expected) > 1e-9 * std::abs(expected)) {
        fail_msg("%.17g instead of %.17g", is, expected);
    }
}

void prompts_count_the_pairs_that_the_causal_mask_leaves(void **) {
    AttentionFloor floor(model_of({0, 0}), 2, kBandwidth);
    TokenBatch batch;
    batch.nodes.push_back({-1, 0, 4, 0, 4, true}); // 1 + 2 + 3 + 4
    batch.nodes.push_back({0, 4, 3, 4, 2, false}); // its second and third token: 6 + 7
    floor.add(batch);
    must_be(floor.flops, 2 * 23 * kPair);
    must_be(floor.bytes, 0);
    must_be(floor.seconds(), floor.flops / 600e12);
    must_be(floor.decode_excess, 0);
}

void a_window_limits_pairs_and_keys(void **) {
    AttentionFloor floor(model_of({3}), 2, kBandwidth);
    TokenBatch batch;
    batch.nodes.push_back({-1, 0, 5, 0, 5, false}); // 1 + 2 + 3 + 3 + 3
    batch.nodes.push_back({-1, 0, 9, 5, 1, false}); // three keys
    floor.add(batch);
    must_be(floor.flops, 12 * kPair);
    must_be(floor.bytes, 3 * kKey);
}

void rows_that_decode_behind_a_prefix_read_it_once(void **) {
    AttentionFloor floor(model_of({0}), 2, kBandwidth);
    floor.add(decoding(1000, 20, 10));
    must_be(floor.flops, 0);
    must_be(floor.bytes, (1000 + 20 * 10) * kKey);
    must_be(floor.seconds(), floor.bytes / kBandwidth);
    must_be(floor.decode_excess, 0); // 20 queries per key are bound by its bytes
}

void a_prefix_under_many_rows_is_bound_by_its_arithmetic(void **) {
    AttentionFloor floor(model_of({0, 0, 0}), 2, kBandwidth);
    floor.add(decoding(1000, 100, 10));
    must_be(floor.bytes, 3 * (1000 + 100 * 10) * kKey);
    const double excess = 3 * 1000 * (100 * kPair / 600e12 - kKey / kBandwidth);
    must_be(floor.decode_excess, excess);
    floor.add(decoding(1000, 100, 10)); // another step
    must_be(floor.decode_excess, 2 * excess);
}

// For each step and each prefix separately: idle time of one does not help another.
void the_greater_is_taken_prefix_by_prefix(void **) {
    AttentionFloor both(model_of({0}), 2, kBandwidth), wide(model_of({0}), 2, kBandwidth);
    TokenBatch batch = decoding(1000, 100, 10);
    wide.add(batch);
    const auto at = static_cast<int32_t>(batch.nodes.size());
    batch.nodes.push_back({-1, 0, 5000, 0, 0, true});
    batch.nodes.push_back({at, 5000, 10, 100, 1, false});
    both.add(batch);
    must_be(both.decode_excess, wide.decode_excess);
    must_be(both.bytes, wide.bytes + 5010 * kKey);
}

void rows_see_different_parts_of_a_prefix_through_a_window(void **) {
    AttentionFloor floor(model_of({100}), 2, kBandwidth);
    TokenBatch batch = decoding(1000, 60, 20); // 80 keys of the prefix each
    for (size_t n = 31; n < batch.nodes.size(); ++n) batch.nodes[n].length = 70; // 30 keys of it
    floor.add(batch);
    must_be(floor.bytes, (80 + 30 * 20 + 30 * 70) * kKey);
    must_be(floor.decode_excess, (30 * 80 + 30 * 30) * kPair / 600e12 - 80 * kKey / kBandwidth);
}

void keys_in_one_byte_take_half_the_time_to_read(void **) {
    AttentionFloor two(model_of({0}), 2, kBandwidth), one(model_of({0}), 1, kBandwidth);
    two.add(decoding(1000, 20, 10));
    one.add(decoding(1000, 20, 10));
    must_be(one.bytes, two.bytes / 2);
    must_be(one.decode_excess, 1000 * (20 * kPair / 600e12 - kKey / 2 / kBandwidth));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(prompts_count_the_pairs_that_the_causal_mask_leaves),
        cmocka_unit_test(a_window_limits_pairs_and_keys),
        cmocka_unit_test(rows_that_decode_behind_a_prefix_read_it_once),
        cmocka_unit_test(a_prefix_under_many_rows_is_bound_by_its_arithmetic),
        cmocka_unit_test(the_greater_is_taken_prefix_by_prefix),
        cmocka_unit_test(rows_see_different_parts_of_a_prefix_through_a_window),
        cmocka_unit_test(keys_in_one_byte_take_half_the_time_to_read),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
