// The product of gate and up with its activation on the device against float64, over random shapes, element types and
// activations; rows beyond the last one are not written.
#include <cmath>
#include <string>

#include "gated/gated.h"
#include "reference_layer.h"
#include "seed.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int sms = 0;

struct Case {
    DType element;
    Activation kind;
    int64_t rows, columns, width;

    std::string name() const {
        return std::string(dtype_name(element)) + ", activation " +
               std::to_string(static_cast<int>(kind)) + ", " + std::to_string(rows) + " rows of " +
               std::to_string(columns) + ", width " + std::to_string(width);
    }
};

// Checks `looks` elements of the result, including the very last.
void compare(Random &random, const Case &c, int looks) {
    const std::string name = c.name();
    const float deviation = 1.0F / std::sqrt(static_cast<float>(c.columns));
    const auto x = normal(random, c.rows * c.columns, c.element);
    const auto w = normal(random, 2 * c.width * c.columns, c.element, 1.5F * deviation);
    const Array x_there(x, c.element), w_there(w, c.element);
    constexpr int64_t beyond = 3; // rows
    const Array y((c.rows + beyond) * c.width, c.element);
    const GatedArguments arguments{c.element,
                                   c.kind,
                                   x_there.data(),
                                   w_there.data(),
                                   y.data(),
                                   static_cast<int32_t>(c.rows),
                                   static_cast<int32_t>(c.columns),
                                   static_cast<int32_t>(c.width)};
    check(launch_gated_sm90(arguments, sms, nullptr));
    const std::vector<float> all = y.read();
    std::vector<float> got;
    std::vector<double> wanted;
    for (int i = 0; i < looks; ++i) {
        const int64_t row = i == 0 ? c.rows - 1 : draw(random, 0, c.rows - 1);
        const int64_t column = i == 0 ? c.width - 1 : draw(random, 0, c.width - 1);
        double gate = 0, up = 0;
        for (int64_t k = 0; k < c.columns; ++k) {
            const auto at = [&](const std::vector<float> &matrix, int64_t of_row) {
                return double(matrix[static_cast<size_t>(of_row * c.columns + k)]);
            };
            gate += at(x, row) * at(w, column);
            up += at(x, row) * at(w, c.width + column);
        }
        got.push_back(all[static_cast<size_t>(row * c.width + column)]);
        wanted.push_back(reference::gated(c.kind, gate, up));
    }
    for (size_t i = 0; i < all.size(); ++i) {
        const bool written = !std::isnan(all[i]);
        if (written != (static_cast<int64_t>(i) < c.rows * c.width)) {
            fail_msg("%s: element %zu is %swritten", name.c_str(), i, written ? "" : "not ");
        }
    }
    assert_close(got, wanted, c.element == DType::bf16 ? 4e-3 : 1e-3, name.c_str());
}

void products_of_any_shape_are_the_references(void **) {
    Random random(seed_of_run());
    for (const DType type : {DType::bf16, DType::f16}) {
        for (int i = 0; i < 8; ++i) {
            compare(random,
                    {type, static_cast<Activation>(i % 3), draw(random, 1, i < 4 ? 300 : 1500),
                     64 * draw(random, 1, 12), 128 * draw(random, 1, 12)},
                    2000);
        }
    }
}

// More tiles than the device has CTAs, and more rows than are computed in sequence. With the second
// width, few tiles are left for the last turn, so that one launch has whole tiles and halves.
void products_of_many_tiles_are_the_references(void **) {
    Random random(kSeed);
    for (const DType type : {DType::bf16, DType::f16}) {
        for (const int64_t width : {1280, 512}) {
            compare(random, {type, Activation::silu, 4500, 256, width}, 4000);
        }
    }
}

void what_is_not_there_is_refused(void **) {
    const auto refused = [](DType type, Activation kind, int32_t columns, int32_t width) {
        const int64_t nothing[2] = {};
        return launch_gated_sm90({type, kind, nothing, nothing, nullptr, 1, columns, width}, sms,
                                 nullptr) == cudaErrorInvalidValue;
    };
    assert_true(refused(DType::f32, Activation::silu, 128, 128));
    assert_true(refused(DType::bf16, Activation::clamped_swiglu, 128, 128));
    assert_true(refused(DType::bf16, Activation::silu, 96, 128));
    assert_true(refused(DType::bf16, Activation::silu, 128, 192));
}

// The same rows give the same bits wherever they are.
void a_row_does_not_depend_on_its_place(void **) {
    Random random(kSeed + 1);
    constexpr int64_t rows = 700, columns = 512, width = 384;
    const auto values = normal(random, columns, DType::bf16);
    std::vector<float> repeated;
    for (int64_t i = 0; i < rows; ++i) {
        repeated.insert(repeated.end(), values.begin(), values.end());
    }
    const Array x(repeated, DType::bf16);
    const Array w(normal(random, 2 * width * columns, DType::bf16, 0.05F), DType::bf16);
    const Array y(rows * width, DType::bf16);
    check(launch_gated_sm90(
        {DType::bf16, Activation::silu, x.data(), w.data(), y.data(), rows, columns, width}, sms,
        nullptr));
    const std::vector<float> got = y.read();
    for (size_t i = 0; i < got.size(); ++i) assert_true(got[i] == got[i % width]);
}

} // namespace

int main() {
    if (const int code = skipped(); code != 0) return code;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9 || properties.minor != 0) {
        std::printf("skipped: no device of compute capability 9.0\n");
        return 77;
    }
    sms = properties.multiProcessorCount;
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_of_any_shape_are_the_references),
        cmocka_unit_test(products_of_many_tiles_are_the_references),
        cmocka_unit_test(a_row_does_not_depend_on_its_place),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests_name("cuda_gated", tests, nullptr, nullptr);
}
