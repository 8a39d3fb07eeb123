// The product of gate and up with its activation on the device against float64, over random shapes, element types and
// activations; rows beyond the last are not written.
#include <cmath>
#include <string>

#include "gated/gated.h"
#include "seed.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

int sms = 0;

// A matrix of random elements: as the device holds it, and as numbers. Of e4m3 each row has a scale.
struct Drawn {
    std::vector<float> values; // without scales
    std::vector<float> scales; // or empty
    DeviceMemory memory, scales_memory;

    Drawn(Random &random, int64_t rows, int64_t columns, DType type, float deviation) {
        if (type != DType::e4m3) {
            values = normal(random, rows * columns, type, deviation);
            std::vector<uint16_t> raw;
            for (const float x : values) {
                uint32_t bits;
                std::memcpy(&bits, &x, 4);
                raw.push_back(type == DType::bf16 ? static_cast<uint16_t>(bits >> 16)
                                                  : float_to_float16(x));
            }
            memory = upload(raw);
            return;
        }
        std::vector<uint8_t> raw;
        for (int64_t i = 0; i < rows * columns; ++i) {
            auto byte = static_cast<uint8_t>(random() >> 8);
            if ((byte & 0x7F) > 0x58) byte ^= 0x40; // of moderate size
            raw.push_back(byte);
            values.push_back(kE4m3Floats[byte]);
        }
        // So that sums are about as large as in the other types.
        std::uniform_real_distribution<float> draw_scale(0.3F, 1.0F);
        for (int64_t i = 0; i < rows; ++i) scales.push_back(draw_scale(random) * deviation * 0.3F);
        memory = upload(raw);
        scales_memory = upload(scales);
    }
    double at(int64_t row, int64_t column, int64_t columns) const {
        const double x = double(values[static_cast<size_t>(row * columns + column)]);
        return scales.empty() ? x : x * double(scales[static_cast<size_t>(row)]);
    }
};

double activated(Activation kind, double x) {
    switch (kind) {
    case Activation::silu:
        return x / (1 + std::exp(-x));
    case Activation::gelu:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    default:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    }
}

struct Case {
    DType element, result;
    Activation kind;
    int64_t rows, columns, width;

    std::string name() const {
        return std::string(dtype_name(element)) + " to " + dtype_name(result) + ", activation " +
               std::to_string(static_cast<int>(kind)) + ", " + std::to_string(rows) + " rows of " +
               std::to_string(columns) + ", width " + std::to_string(width);
    }
};

// Looks at `looks` elements of the result, the last of all among them.
void compare(Random &random, const Case &c, int looks) {
    const std::string name = c.name();
    const float deviation = 1.0F / std::sqrt(static_cast<float>(c.columns));
    const Drawn x(random, c.rows, c.columns, c.element, 1);
    const Drawn w(random, 2 * c.width, c.columns, c.element, 1.5F * deviation);
    constexpr int64_t beyond = 3; // rows
    const Array y((c.rows + beyond) * c.width, c.result);
    const GatedArguments arguments{c.element,
                                   c.result,
                                   c.kind,
                                   x.memory.data(),
                                   w.memory.data(),
                                   x.scales_memory.as<float>(),
                                   w.scales_memory.as<float>(),
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
            const double of_x = x.at(row, k, c.columns);
            gate += of_x * w.at(column, k, c.columns);
            up += of_x * w.at(c.width + column, k, c.columns);
        }
        got.push_back(all[static_cast<size_t>(row * c.width + column)]);
        wanted.push_back(activated(c.kind, gate) * up);
    }
    for (size_t i = 0; i < all.size(); ++i) {
        const bool written = !std::isnan(all[i]);
        if (written != (static_cast<int64_t>(i) < c.rows * c.width)) {
            fail_msg("%s: element %zu is %swritten", name.c_str(), i, written ? "" : "not ");
        }
    }
    assert_close(got, wanted, c.result == DType::bf16 ? 4e-3 : 1e-3, name.c_str());
}

constexpr struct {
    DType element, result;
} kTypes[] = {{DType::bf16, DType::bf16},
              {DType::f16, DType::f16},
              {DType::e4m3, DType::bf16},
              {DType::e4m3, DType::f16}};

void products_of_any_shape_are_the_references(void **) {
    const uint64_t seed = seed_of_run();
    print_message("seed %llu\n", static_cast<unsigned long long>(seed));
    Random random(seed);
    for (const auto &types : kTypes) {
        for (int i = 0; i < 8; ++i) {
            const Case c{types.element,
                         types.result,
                         static_cast<Activation>(i % 3),
                         i < 4 ? draw(random, 1, 300) : draw(random, 1, 1500),
                         128 * draw(random, 1, 6) +
                             (types.element != DType::e4m3 ? 64 * (i % 2) : 0),
                         128 * draw(random, 1, 12)};
            compare(random, c, 2000);
        }
    }
}

// More tiles than the device has CTAs, more rows than follow one another.
void products_of_many_tiles_are_the_references(void **) {
    Random random(kSeed);
    for (const auto &types : kTypes) {
        compare(random, {types.element, types.result, Activation::silu, 4500, 256, 1280}, 4000);
    }
}

// The same rows are the same bits wherever they stand.
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
    check(launch_gated_sm90({DType::bf16, DType::bf16, Activation::silu, x.data(), w.data(),
                             nullptr, nullptr, y.data(), rows, columns, width},
                            sms, nullptr));
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
    };
    return cmocka_run_group_tests_name("cuda_gated", tests, nullptr, nullptr);
}
