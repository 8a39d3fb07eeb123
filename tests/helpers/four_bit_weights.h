// Random four-bit matrices as checkpoints mean them, and their weights in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/narrow_floats.h"
#include "four_bits/pack.h"

namespace batchllm::cuda {

struct FourBitWeights {
    PackedForm form;
    int32_t rows, columns, group_columns, groups;
    std::vector<uint8_t> codes, zeros, scale_bytes;
    std::vector<float> scales;
    std::vector<int32_t> order;

    // group: 0: all columns. scale_type: of int4's scales.
    FourBitWeights(std::mt19937_64 &random, PackedForm of, int32_t r, int32_t c, int32_t group,
                   DType scale_type, bool ordered)
        : form(of), rows(r), columns(c), group_columns(group > 0 ? group : c),
          groups((c + group_columns - 1) / group_columns) {
        const auto cells = static_cast<size_t>(rows) * static_cast<size_t>(groups);
        codes.resize(static_cast<size_t>(rows) * static_cast<size_t>(columns / 2));
        for (uint8_t &code : codes) code = static_cast<uint8_t>(random());
        const float size = 1 / std::sqrt(static_cast<float>(columns));
        if (is_int4(form)) {
            std::uniform_real_distribution<float> uniform(0.1F * size, 0.3F * size);
            for (size_t i = 0; i < cells; ++i) {
                const float scale = uniform(random) * (random() % 16 == 0 ? -1.0F : 1.0F);
                const uint16_t half =
                    scale_type == DType::bf16 ? float_to_bfloat16(scale) : float_to_float16(scale);
                scales.push_back(scale_type == DType::bf16 ? bfloat16_to_float(half)
                                                           : float16_to_float(half));
                zeros.push_back(static_cast<uint8_t>(random() % 16));
            }
            if (ordered) {
                order.resize(static_cast<size_t>(columns));
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), random);
            }
        } else if (form == PackedForm::mxfp4) {
            const int32_t middle = 126 + static_cast<int32_t>(std::floor(std::log2(size)));
            for (size_t i = 0; i < cells; ++i) {
                scale_bytes.push_back(
                    static_cast<uint8_t>(middle - 2 + static_cast<int32_t>(random() % 4)));
            }
        } else { // all of e4m3 but NaN, 0 and negative ones too
            for (size_t i = 0; i < cells; ++i) {
                uint8_t byte = static_cast<uint8_t>(random());
                if ((byte & 0x7f) == 0x7f || (byte & 0x40) != 0)
                    byte &= 0x8f; // small ones are as many
                scale_bytes.push_back(byte);
            }
        }
    }

    PackSource source() const {
        PackSource s{};
        s.codes = codes.data();
        s.scales = scales.empty() ? nullptr : scales.data();
        s.zeros = zeros.empty() ? nullptr : zeros.data();
        s.scale_bytes = scale_bytes.empty() ? nullptr : scale_bytes.data();
        s.order = order.empty() ? nullptr : order.data();
        s.rows = rows;
        s.columns = columns;
        s.groups = groups;
        s.group_columns = group_columns;
        s.step = 1;
        s.run = s.stride = 8;
        s.power = form == PackedForm::mxfp4 ? power() : 0;
        return s;
    }
    int32_t power() const {
        if (form == PackedForm::nvfp4) return kNvfp4Power;
        if (form != PackedForm::mxfp4) return 0;
        return mxfp4_power(*std::max_element(scale_bytes.begin(), scale_bytes.end()));
    }
    bool has_lower_parts(DType element) const {
        return std::any_of(scales.begin(), scales.end(), [&](float scale) {
            return element_value(element, element_bits(element, scale)) != scale;
        });
    }
    // Of a packed column; in f32 as checkpoints' weights are expanded, exact but for int4 with scales in float32.
    float value(int32_t r, int32_t c) const {
        static constexpr float e2m1[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
        const int32_t from = order.empty() ? c : order[static_cast<size_t>(c)];
        const uint8_t byte = codes[static_cast<size_t>(int64_t{r} * (columns / 2) + from / 2)];
        const uint32_t code = byte >> from % 2 * 4 & 15u;
        const auto at = static_cast<size_t>(int64_t{r} * groups + c / group_columns);
        if (is_int4(form)) {
            return (static_cast<float>(code) - static_cast<float>(zeros[at])) * scales[at];
        }
        const float magnitude = (code & 8) != 0 ? -e2m1[code & 7] : e2m1[code & 7];
        return magnitude * (form == PackedForm::mxfp4 ? e8m0_to_float(scale_bytes[at])
                                                      : e4m3_to_float(scale_bytes[at]));
    }
};

inline std::string form_name(PackedForm form) {
    static const char *const names[] = {"int4 by 128", "int4 by 32", "mxfp4", "nvfp4"};
    return names[static_cast<size_t>(form)];
}

inline constexpr PackedForm kForms[] = {PackedForm::int4_128, PackedForm::int4_32,
                                        PackedForm::mxfp4, PackedForm::nvfp4};

// Whole columns (0), or those that a form's checkpoints have.
inline int32_t group_of(PackedForm form, int32_t columns) {
    return form == PackedForm::int4_128 ? (columns % 128 == 0 ? 128 : 0) : scale_columns(form);
}

} // namespace batchllm::cuda
