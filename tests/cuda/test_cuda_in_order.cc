// Products in order (Linear::set_in_order): a row's results are the same bits whatever the number
// of rows and wherever the row is. Also, the check that finds such products detects a different
// order.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "linear/linear.h"
#include "linear/order_probe.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int64_t kMostRows = 640;

struct Shape {
    int64_t n, k;
};

Linear make_linear(DType element, const DeviceMemory &scratch, bool in_order,
                   TuningCache cache = {}) {
    auto linear = Linear::create(element, scratch.data(), scratch.bytes(), std::move(cache));
    check(linear.status());
    if (in_order) linear->set_in_order();
    return std::move(linear).value();
}

// y = alpha x W^T (+ y)
struct Sum {
    DType element, y_type;
    bool accumulate;
    float alpha;
};

void prepare(Linear *linear, const Shape &shape, const Sum &sum) {
    const Matrix like{nullptr, shape.n, shape.k, nullptr, Scaling::none};
    OrderProbe probe;
    probe.reserve({shape.n, shape.k, sum.element, sum.y_type, sum.accumulate, kMostRows});
    check(probe.allocate());
    check(linear->prepare_in_order(like, sum.y_type, sum.accumulate, sum.alpha, kMostRows, &probe,
                                   nullptr));
    check(cudaDeviceSynchronize());
}

// Counts elements whose bits differ from the row's among kMostRows others, over many numbers of
// rows and places.
int64_t count_other(const Sum &sum, const Shape &shape, bool tuned) {
    const auto [element, y_type, accumulate, alpha] = sum;
    const auto memory = zeroed_memory(kMostRows * shape.n * 4, "test");
    check(memory.status());
    const DeviceMemory none;
    Linear linear = make_linear(element, tuned ? *memory : none, true);
    prepare(&linear, shape, sum);
    Random random(kSeed + 90);
    const std::vector<float> x = normal(random, kMostRows * shape.k, element);
    const std::vector<float> start = normal(random, kMostRows * shape.n, y_type);
    const Array w(normal(random, shape.n * shape.k, element), element);
    const Matrix matrix{w.data(), shape.n, shape.k, nullptr, Scaling::none};
    const auto row_of = [](int64_t i, int64_t turn) { return (i * 7 + turn * 31) % kMostRows; };
    const auto run = [&](int64_t rows, int64_t turn) {
        std::vector<float> own, before;
        for (int64_t i = 0; i < kMostRows; ++i) {
            const auto at = static_cast<ptrdiff_t>(row_of(i, turn));
            own.insert(own.end(), x.begin() + at * shape.k, x.begin() + (at + 1) * shape.k);
            before.insert(before.end(), start.begin() + at * shape.n,
                          start.begin() + (at + 1) * shape.n);
        }
        const Array input(own, element), y(before, y_type);
        check(linear.run(matrix, Input(input.data()), rows, y.data(), sum.y_type, sum.accumulate,
                         nullptr, sum.alpha));
        return y.read();
    };
    std::vector<float> expected(static_cast<size_t>(kMostRows * shape.n));
    const std::vector<float> all = run(kMostRows, 0);
    for (int64_t i = 0; i < kMostRows; ++i) {
        std::copy_n(all.begin() + static_cast<ptrdiff_t>(i * shape.n), shape.n,
                    expected.begin() + static_cast<ptrdiff_t>(row_of(i, 0) * shape.n));
    }
    int64_t other = 0;
    const int64_t counts[] = {1, 5, 16, 17, 33, 64, 100, 129, 200, 257, 400, 513, 600};
    for (int64_t turn = 1; const int64_t rows : counts) {
        const std::vector<float> some = run(rows, turn);
        for (int64_t i = 0; i < rows * shape.n; ++i) {
            const int64_t at = row_of(i / shape.n, turn) * shape.n + i % shape.n;
            other += std::memcmp(&some[static_cast<size_t>(i)], &expected[static_cast<size_t>(at)],
                                 sizeof(float)) != 0;
        }
        ++turn;
    }
    return other;
}

void a_row_is_the_same_bits_among_any_number_of_rows(void **) {
    int wrong = 0;
    const Shape shapes[] = {{64, 64}, {192, 64}, {256, 64}, {64, 256}, {1024, 1024}, {5632, 1024}};
    for (const DType element : {DType::f32, DType::f16, DType::bf16}) {
        for (const Shape &shape : shapes) {
            const DType stream = element == DType::bf16 ? DType::bf16 : DType::f32;
            for (const Sum &sum :
                 {Sum{element, element, false, 1}, Sum{element, DType::f32, false, 1},
                  Sum{element, stream, true, 1}, Sum{element, DType::f32, true, 0.6F}}) {
                for (const bool tuned : {false, true}) {
                    const int64_t other = count_other(sum, shape, tuned);
                    if (other == 0) continue;
                    ++wrong;
                    print_message("%s to %s%s times %g [%lld, %lld]%s: %lld elements of other "
                                  "bits\n",
                                  dtype_name(element), dtype_name(sum.y_type),
                                  sum.accumulate ? ", added" : "", double(sum.alpha),
                                  static_cast<long long>(shape.n), static_cast<long long>(shape.k),
                                  tuned ? ", tuned" : "", static_cast<long long>(other));
                }
            }
        }
    }
    assert_int_equal(wrong, 0);
}

// cuBLASLt splits a product with few columns and long sums if it may.
void another_order_is_seen(void **) {
    const Shape shape{64, 16384};
    const DeviceMemory none;
    for (const DType element : {DType::f32, DType::f16, DType::bf16}) {
        OrderProbe probe;
        const ProbedProduct product{shape.n, shape.k, element, DType::f32, false, kMostRows};
        probe.reserve(product);
        check(probe.allocate());
        Linear in_order = make_linear(element, none, true), any = make_linear(element, none, false);
        const Matrix like{nullptr, shape.n, shape.k, nullptr, Scaling::none};
        check(in_order.prepare_in_order(like, DType::f32, false, 1, kMostRows, &probe, nullptr));
        check(probe.fill(product, nullptr));
        const Matrix w{probe.w(), shape.n, shape.k, nullptr, Scaling::none};
        const auto agrees = [&](Linear *linear) {
            check(probe.begin(16, nullptr));
            check(linear->run(w, Input(probe.x()), 16, probe.y(), DType::f32, false, nullptr));
            const Result<bool> same = probe.agrees(16, nullptr);
            check(same.status());
            return *same;
        };
        assert_true(agrees(&in_order));
        assert_false(agrees(&any));
    }
}

void what_was_not_prepared_is_an_error(void **) {
    const DeviceMemory none;
    Linear linear = make_linear(DType::bf16, none, true);
    const Shape shape{64, 64};
    prepare(&linear, shape, {DType::bf16, DType::bf16, false, 1});
    const Array w(std::vector<float>(64 * 64), DType::bf16), y(64 * 64, DType::f32);
    const Matrix matrix{w.data(), 64, 64, nullptr, Scaling::none};
    check(linear.run(matrix, Input(w.data()), 10, y.data(), DType::bf16, false, nullptr));
    const Status status =
        linear.run(matrix, Input(w.data()), 10, y.data(), DType::f32, false, nullptr);
    assert_int_equal(status.code(), BATCHLLM_ERROR_INTERNAL);
}

// Only for products added to y: otherwise alpha does not change the order.
void one_shape_with_two_alphas_is_refused(void **) {
    const DeviceMemory none;
    Linear linear = make_linear(DType::bf16, none, true);
    const Shape shape{64, 64};
    const Matrix like{nullptr, shape.n, shape.k, nullptr, Scaling::none};
    OrderProbe probe;
    probe.reserve({shape.n, shape.k, DType::bf16, DType::f32, true, kMostRows});
    check(probe.allocate());
    const auto prepared = [&](bool accumulate, float alpha) {
        return linear
            .prepare_in_order(like, DType::f32, accumulate, alpha, kMostRows, &probe, nullptr)
            .code();
    };
    for (const float alpha : {0.5F, 0.6F}) assert_int_equal(prepared(false, alpha), BATCHLLM_OK);
    for (int again = 0; again < 2; ++again) assert_int_equal(prepared(true, 0.6F), BATCHLLM_OK);
    assert_int_equal(prepared(true, 1), BATCHLLM_ERROR_UNSUPPORTED);
    const Array w(std::vector<float>(64 * 64), DType::bf16), y(64 * 64, DType::f32);
    const Matrix matrix{w.data(), shape.n, shape.k, nullptr, Scaling::none};
    const auto run = [&](float alpha) {
        return linear.run(matrix, w.data(), 10, y.data(), DType::f32, true, nullptr, alpha).code();
    };
    assert_int_equal(run(0.6F), BATCHLLM_OK);
    assert_int_equal(run(1), BATCHLLM_ERROR_INTERNAL);
    check(cudaDeviceSynchronize());
}

// Those that are tried: in other forms a candidate may sum in another order.
void choices_in_order_are_the_heuristics(void **) {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/choices.txt";
    std::string warning;
    const Shape shape{512, 1024};
    for (const DType element : {DType::f32, DType::bf16}) {
        const auto scratch = zeroed_memory(kMostRows * shape.n * 4, "test");
        check(scratch.status());
        Linear linear = make_linear(element, *scratch, true, TuningCache(path, "test", &warning));
        prepare(&linear, shape, {element, element, false, 1});
    } // saves them
    std::map<TuningKey, int32_t> choices;
    const auto text = read_file(path, size_t{1} << 20);
    check(text.status());
    assert_true(TuningCache::parse(*text, "test", &choices) && choices.size() > 10);
    for (const auto &[key, candidate] : choices) {
        assert_in_range(candidate, 0, TuningCache::kOfHeuristic - 1);
    }
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_bits_among_any_number_of_rows),
        cmocka_unit_test(another_order_is_seen),
        cmocka_unit_test(what_was_not_prepared_is_an_error),
        cmocka_unit_test(one_shape_with_two_alphas_is_refused),
        cmocka_unit_test(choices_in_order_are_the_heuristics),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
