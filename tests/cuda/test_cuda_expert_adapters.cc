// Grouped products that add what adapters do to their turns, before bias and activation, against the same on the host in double
// precision; and the lists of tiles' adapters that they go by.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "seed.h"

#include "cuda_expert_adapters.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int32_t sms = 1;

std::vector<double> reference(const Product &p, const Inputs &in, const Adapted &adapted) {
    std::vector<double> out, y(static_cast<size_t>(p.rows));
    for (size_t turn = 0; turn < in.row_of.size(); ++turn) {
        const float *x = in.x.data() + int64_t{in.row_of[turn]} * p.columns;
        const int32_t expert = in.expert_of[turn];
        for (int32_t r = 0; r < p.rows; ++r) {
            const float *w = in.w.data() + (int64_t{expert} * p.rows + r) * p.columns;
            double sum = p.biased ? double(in.bias[size_t(expert * p.rows + r)]) : 0;
            for (int32_t c = 0; c < p.columns; ++c) sum += double(x[c]) * double(w[c]);
            y[size_t(r)] = sum + change_of(p, adapted, turn, expert, r);
        }
        push_result(p, y, &out);
    }
    return out;
}

void check_product(const Product &p, int32_t adapters, int32_t most_rank, uint64_t seed) {
    for (const DType type : {DType::bf16, DType::f16}) {
        Random random(seed);
        const Inputs in = product_inputs(random, p, type);
        const Adapted adapted = made_up(random, p, in, type, adapters, most_rank);
        const auto place = static_cast<int32_t>(draw(random, 0, 1));
        const ListedAdapters listed(p, in, adapted, type, place);
        const auto turns = static_cast<int64_t>(in.row_of.size());
        const ProductLists lists(p, in);
        const Array x(in.x, type), w(in_panels(in.w, p, type), type), bias(in.bias, DType::f32);
        const auto multiply = [&](GroupedAdapters of) {
            const Array y(turns * part_rows(p), type);
            GroupedArguments a = lists.arguments;
            a.element = type;
            a.x = x.data();
            a.w = w.data();
            a.bias = p.biased ? bias.floats() : nullptr;
            a.y = y.data();
            a.adapters = of;
            check(launch_grouped_sm90(a, sms, nullptr));
            return y.read();
        };
        const auto run = [&](std::optional<int32_t> alone) {
            return multiply(listed.list(alone, sms));
        };
        const std::string name = std::string(dtype_name(type)) + ", " + std::to_string(adapters) +
                                 " adapters, seed " + std::to_string(seed) + ", " + shape_name(p);
        const auto width = static_cast<size_t>(part_rows(p));
        const std::vector<float> got = run({});
        assert_near(got, reference(p, in, adapted), width, type == DType::bf16 ? 6e-3 : 1.5e-3,
                    name);
        require_own_bits(random, adapted, listed, sms, got, multiply, name);
    }
}

void changes_are_added_before_all_else(void **) {
    uint64_t seed = seed_of_run();
    for (const auto &[rows, columns] : std::vector<std::pair<int32_t, int32_t>>{
             {16, 8}, {80, 24}, {144, 136}, {256, 64}, {528, 200}, {640, 320}}) {
        for (const bool gated : {true, false}) {
            for (const auto &[adapters, rank] : std::vector<std::pair<int32_t, int32_t>>{
                     {1, 8}, {2, 16}, {5, 64}, {40, 24}, {150, 8}}) {
                Random random(++seed);
                Product p{static_cast<int32_t>(kRagged.size()),
                          rows,
                          columns,
                          gated,
                          static_cast<Activation>(draw(random, 0, 3)),
                          kRagged,
                          draw(random, 0, 1) == 1,
                          draw(random, 0, 1) == 1,
                          draw(random, 0, 1) == 1};
                if (int64_t{rows} * columns > 30000) { // what the host takes long for
                    for (int32_t &count : p.counts) count = count > 150 ? 140 : count;
                }
                check_product(p, adapters, rank, seed);
            }
        }
    }
}

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9 || properties.minor != 0) {
        std::printf("SKIP: no compute capability 9.0\n");
        return 77;
    }
    sms = properties.multiProcessorCount;
    const CMUnitTest tests[] = {cmocka_unit_test(changes_are_added_before_all_else)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
