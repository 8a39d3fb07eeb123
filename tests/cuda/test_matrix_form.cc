// Which matrices in e4m3 keep the checkpoint's scales, where those scales go, and which tensors a
// mixer's matrices are made from. Needs no CUDA.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "backend/gpu/scaled_fit.h"
#include "model/four_bits.h"
#include "step/matrix_form.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

// Tensors in e4m3 whose scales are all different.
class Tensors {
  public:
    const Tensor *add(int64_t rows, int64_t columns, int64_t block_rows, int64_t block_columns,
                      int64_t stored_rows = 0, int64_t first_row = 0) {
        Tensor tensor;
        tensor.dtype = DType::e4m3;
        tensor.rows = rows;
        tensor.columns = columns;
        tensor.stored_rows = stored_rows;
        tensor.first_row = first_row;
        Scales &scales = tensor.scales;
        scales.block_rows = block_rows;
        scales.block_columns = block_columns;
        scales.per_row = (columns + block_columns - 1) / block_columns;
        const int64_t all = stored_rows > 0 ? stored_rows : rows;
        const int64_t count = (all + block_rows - 1) / block_rows * scales.per_row;
        std::vector<float> &values = scales_.emplace_back();
        for (int64_t i = 0; i < count; ++i) values.push_back(next_ += 1);
        scales.data = values.data();
        return &tensors_.emplace_back(tensor);
    }
    const Tensor *none() { return &tensors_.emplace_back(); }
    const Tensor *of(DType type, int64_t rows, int64_t columns) {
        Tensor tensor;
        tensor.dtype = type;
        tensor.rows = rows;
        tensor.columns = columns;
        return &tensors_.emplace_back(tensor);
    }

  private:
    std::deque<Tensor> tensors_;
    std::deque<std::vector<float>> scales_;
    float next_ = 1;
};

const Placing kAsTheyAre;

void scales_of_tensors_and_channels_become_scales_of_rows(void **) {
    Tensors tensors;
    const Tensor *q = tensors.add(32, 64, 32, 64); // one scale per tensor
    const Tensor *k = tensors.add(16, 64, 1, 64);  // one scale per channel
    const Tensor *v = tensors.add(16, 64, 16, 64);
    const MatrixSource source{64, 64, {{q, 0}, {k, 32}, {v, 48}}, kAsTheyAre};
    assert_true(own_scaling(source) == Scaling::rows);
    const std::vector<float> scales = own_scales(source, Scaling::rows);
    assert_int_equal(scales.size(), 64);
    for (size_t r = 0; r < 64; ++r) {
        const float wanted = r < 32   ? q->scales.data[0]
                             : r < 48 ? k->scales.data[r - 32]
                                      : v->scales.data[0];
        assert_true(scales[r] == wanted);
    }
}

void padded_heads_and_parts_of_a_stored_tensor_keep_their_scales(void **) {
    Tensors tensors;
    // Rows 20 to 40 of a stored tensor with 60; heads of 10 padded to 16.
    const Tensor *k = tensors.add(20, 64, 1, 64, 60, 20);
    const MatrixSource source{32, 64, {{k, 0}}, {10, 16, 1, 1}};
    assert_true(own_scaling(source) == Scaling::rows);
    const std::vector<float> scales = own_scales(source, Scaling::rows);
    for (size_t r = 0; r < 32; ++r) {
        const size_t head = r / 16, in_head = r % 16;
        const float wanted = in_head < 10 ? k->scales.data[20 + head * 10 + in_head] : 1.0F;
        assert_true(scales[r] == wanted);
    }
}

void blocks_stay_blocks_where_parts_begin_on_them(void **) {
    Tensors tensors;
    const Tensor *gate = tensors.add(256, 640, 128, 128);
    const Tensor *up = tensors.add(208, 640, 128, 128); // its last blocks are partial
    const MatrixSource source{464, 640, {{gate, 0}, {up, 256}}, kAsTheyAre};
    assert_true(own_scaling(source) == Scaling::blocks);
    const std::vector<float> scales = own_scales(source, Scaling::blocks);
    constexpr size_t stride = 8; // five blocks, rounded up to fours
    assert_int_equal(block_scale_stride(640), stride);
    assert_int_equal(scales.size(), 4 * stride);
    for (size_t row = 0; row < 4; ++row) {
        const Tensor *tensor = row < 2 ? gate : up;
        for (size_t b = 0; b < 5; ++b) {
            assert_true(scales[row * stride + b] == tensor->scales.data[row % 2 * 5 + b]);
        }
    }
    // The second half of a fused tensor also begins on a block.
    const Tensor *half = tensors.add(128, 256, 128, 128, 256, 128);
    const MatrixSource second{128, 256, {{half, 0}}, kAsTheyAre};
    assert_true(own_scaling(second) == Scaling::blocks);
    assert_true(own_scales(second, Scaling::blocks)[1] == half->scales.data[3]);
    // A single block of columns is a scale per row.
    const Tensor *narrow = tensors.add(160, 128, 128, 128);
    const MatrixSource rows{160, 128, {{narrow, 0}}, kAsTheyAre};
    assert_true(own_scaling(rows) == Scaling::rows);
    assert_true(own_scales(rows, Scaling::rows)[127] == narrow->scales.data[0]);
    assert_true(own_scales(rows, Scaling::rows)[128] == narrow->scales.data[1]);
}

void what_the_products_cannot_multiply_is_left(void **) {
    Tensors tensors;
    const Tensor *rows = tensors.add(32, 64, 1, 64);
    const auto scaling = [](int64_t all, int64_t columns, std::vector<MatrixPart> parts,
                            Placing placing = {}) {
        return own_scaling({all, columns, std::move(parts), placing});
    };
    assert_true(scaling(32, 64, {{rows, 0}}) == Scaling::rows);
    assert_true(scaling(32, 64, {{rows, 0}, {tensors.none(), 32}}) == Scaling::rows);
    // One part is in 16 bits, or there are no parts.
    assert_true(scaling(64, 64, {{rows, 0}, {tensors.of(DType::bf16, 32, 64), 32}}) ==
                Scaling::none);
    assert_true(scaling(64, 64, {{tensors.none(), 0}}) == Scaling::none);
    // Not multiples of 16.
    assert_true(scaling(40, 64, {{tensors.add(40, 64, 1, 64), 0}}) == Scaling::none);
    assert_true(scaling(32, 72, {{tensors.add(32, 72, 1, 72), 0}}) == Scaling::none);
    // Blocks: of another size, beginning inside a block, with columns that are not a multiple of
    // 128, moved apart.
    const Tensor *blocks = tensors.add(256, 256, 128, 128);
    assert_true(scaling(256, 256, {{blocks, 0}}) == Scaling::blocks);
    assert_true(scaling(256, 256, {{tensors.add(256, 256, 64, 128), 0}}) == Scaling::none);
    assert_true(scaling(320, 256, {{tensors.add(64, 256, 128, 128), 0}, {blocks, 64}}) ==
                Scaling::none);
    assert_true(scaling(64, 256, {{tensors.add(64, 256, 128, 128, 192, 64), 0}}) == Scaling::none);
    assert_true(scaling(256, 144, {{tensors.add(256, 144, 128, 128), 0}}) == Scaling::none);
    assert_true(scaling(512, 256, {{blocks, 0}}, {64, 128, 1, 1}) == Scaling::none);
    assert_true(scaling(256, 512, {{blocks, 0}}, {1, 1, 64, 128}) == Scaling::none);
    // Blocks beside rows.
    assert_true(scaling(384, 256, {{blocks, 0}, {tensors.add(128, 256, 1, 256), 256}}) ==
                Scaling::none);
}

// quantize=fp8 quantises again those of a checkpoint's matrices that have fewer than 16 bits, and
// no others.
void a_matrix_is_stored_quantised_if_a_part_is(void **) {
    Tensors tensors;
    const Tensor *e4m3 = tensors.add(32, 64, 1, 64), *u4 = tensors.of(DType::u4, 32, 64);
    const Tensor *bf16 = tensors.of(DType::bf16, 32, 64), *none = tensors.none();
    const auto source = [](std::vector<const Tensor *> parts) {
        MatrixSource made{32 * static_cast<int64_t>(parts.size()), 64, {}, {}};
        for (const Tensor *part : parts) {
            made.parts.emplace_back(part, 32 * static_cast<int64_t>(made.parts.size()));
        }
        return made;
    };
    struct Case {
        std::vector<const Tensor *> parts;
        bool in_e4m3, quantised;
    };
    for (const Case &c :
         {Case{{e4m3}, true, true}, Case{{u4}, false, true}, Case{{bf16}, false, false},
          Case{{tensors.of(DType::f16, 32, 64), tensors.of(DType::f32, 32, 64)}, false, false},
          Case{{none}, false, false}, Case{{none, u4}, false, true}, Case{{bf16, u4}, false, true},
          Case{{bf16, none, e4m3}, true, true}, Case{{u4, e4m3}, true, true},
          Case{{}, false, false}}) {
        assert_int_equal(is_stored_in_e4m3(source(c.parts)), c.in_e4m3);
        assert_int_equal(is_stored_quantised(source(c.parts)), c.quantised);
    }
    // Its elements do not have the type of the products.
    assert_true(own_scaling(source({u4})) == Scaling::none);
    assert_true(own_scaling(source({e4m3, u4})) == Scaling::none);
    // For an expert, either part counts.
    const ExpertMatrix experts{64, 64, {{bf16, u4}, {bf16, bf16}, {u4, nullptr}}};
    assert_true(is_stored_quantised(experts.source(0)));
    assert_false(is_stored_quantised(experts.source(1)));
    assert_true(is_stored_quantised(experts.source(2)));
}

// What of a matrix decides whether it stays in four bits, and how.
void a_matrix_stays_in_four_bits_if_all_parts_can(void **) {
    FourBits facts;
    facts.group_columns = 128;
    facts.scale_type = DType::f16;
    const Model model;
    std::deque<Tensor> tensors;
    const auto tensor = [&](const FourBits &of, int64_t columns = 256) {
        Tensor made;
        made.dtype = DType::u4;
        made.rows = 32;
        made.columns = columns;
        made.four_bits = std::make_shared<const FourBits>(of);
        return &tensors.emplace_back(made);
    };
    const auto fit = [&](const FourBits &of, DType element, int64_t columns = 256) {
        return packed_fit(model, MatrixSource{32, columns, {{tensor(of, columns), 0}}, {}},
                          element);
    };
    const auto form = [&](int64_t group, int64_t columns = 256) {
        FourBits of = facts;
        of.group_columns = group;
        const PackedFit fits = fit(of, DType::bf16, columns);
        assert_true(fits.packing.has_value());
        return fits.packing->form;
    };
    assert_true(form(128) == PackedForm::int4_128 && form(256) == PackedForm::int4_128);
    assert_true(form(64) == PackedForm::int4_32 && form(32) == PackedForm::int4_32);
    assert_true(form(200, 200) == PackedForm::int4_128); // a scale for all
    assert_true(fit(facts, DType::bf16).packing->split && !fit(facts, DType::f16).packing->split);
    assert_true(!fit(facts, DType::f32).packing && fit(facts, DType::f32).refusal == nullptr);
    const auto refused = [&](FourBits of, DType element, const char *why, int64_t columns = 256) {
        const PackedFit got = fit(of, element, columns);
        assert_false(got.packing.has_value());
        assert_non_null(std::strstr(got.refusal, why));
    };
    FourBits other = facts;
    other.group_columns = 48;
    refused(other, DType::bf16, "multiples of 32");
    other = facts;
    other.columns = 256;
    std::vector<int32_t> groups(256);
    for (int32_t c = 0; c < 256; ++c) groups[static_cast<size_t>(c)] = c % 2;
    other.group_of = reinterpret_cast<const std::byte *>(groups.data());
    assert_true(fit(other, DType::bf16).packing->ordered);
    const std::vector<int32_t> order = column_order(other);
    assert_true(order[0] == 0 && order[1] == 2 && order[127] == 254 && order[128] == 1);
    const Tensor *ordered = tensor(other);
    assert_false(packed_fit(model, ExpertMatrix{64, 256, {{ordered, ordered}}}, DType::bf16)
                     .packing.has_value());
    std::vector<int32_t> otherwise(groups.rbegin(), groups.rend());
    FourBits reverse = other;
    reverse.group_of = reinterpret_cast<const std::byte *>(otherwise.data());
    const MatrixSource apart{64, 256, {{ordered, 0}, {tensor(reverse), 32}}, {}};
    assert_non_null(std::strstr(packed_fit(model, apart, DType::bf16).refusal, "g_idx"));
    groups[1] = 0; // 129 and 127 columns
    refused(other, DType::bf16, "g_idx");
    other = facts;
    other.scale_type = DType::f32;
    refused(other, DType::bf16, "f32");
    other.scale_type = DType::bf16;
    assert_false(fit(other, DType::bf16).packing->split);
    refused(other, DType::f16, "f16");
    refused(facts, DType::bf16, "multiple of 8", 252);
    FourBits floats;
    floats.kind = FourBitKind::mxfp4;
    floats.group_columns = 32;
    floats.largest_power = 128;
    assert_true(fit(floats, DType::bf16).packing->form == PackedForm::mxfp4);
    refused(floats, DType::f16, "bf16");
    floats.largest_power = 129;
    refused(floats, DType::bf16, "above 2");
    // Several parts, and where they go.
    const Tensor *q = tensor(facts), *k = tensor(facts), *mx = tensor(floats);
    Tensors stored;
    const Tensor *bf16 = stored.of(DType::bf16, 32, 256), *none = stored.none();
    const auto parts = [&](std::vector<MatrixPart> all, Placing placing = {}) {
        return packed_fit(model, MatrixSource{64, 256, std::move(all), placing}, DType::bf16);
    };
    assert_true(parts({{q, 0}, {k, 32}, {none, 64}}).packing.has_value());
    assert_non_null(std::strstr(parts({{q, 0}, {bf16, 32}}).refusal, "not in four bits"));
    assert_non_null(std::strstr(parts({{q, 0}, {mx, 32}}).refusal, "different formats"));
    assert_null(parts({{bf16, 0}, {none, 32}}).refusal);
    assert_true(parts({{q, 0}, {k, 32}}, {16, 64, 1, 1}).packing.has_value());
    assert_non_null(std::strstr(parts({{q, 0}}, {1, 1, 16, 64}).refusal, "padded"));
    const MatrixSource both{64, 256, {{q, 0}, {k, 32}}, {}};
    const PackedPlace up = packed_place(both, both.parts[1], true);
    assert_true(up.row(0) == 8 && up.row(7) == 15 && up.row(8) == 24);
    assert_int_equal(packed_place(both, both.parts[1], false).row(9), 41);
    assert_true(packed_fit(model, ExpertMatrix{64, 256, {{q, k}, {k, q}}}, DType::bf16)
                    .packing.has_value());
    assert_false(packed_fit(model, ExpertMatrix{64, 256, {{q, k}, {k, bf16}}}, DType::bf16)
                     .packing.has_value());
}

// Each head's rows of queries, then of its gate: queries come before keys and values, gates after
// them.
void gates_of_queries_are_rows_of_their_own(void **) {
    Attention attention;
    attention.heads = 3;
    attention.head_dim = 24;
    attention.gated = true;
    const std::vector<std::byte> data(3 * 2 * 24 * 10 * 2);
    Tensor q;
    q.dtype = DType::bf16;
    q.data = data.data();
    q.rows = 3 * 2 * 24;
    q.columns = 10;
    q.first_row = 7;
    const Tensor k = q;
    const SplitQueries split(q, {}, attention, 64, 1000);
    const std::vector<MatrixPart> parts = split.parts({{&k, 192}});
    assert_int_equal(parts.size(), 7);
    assert_true(parts[0].first == &k && parts[0].second == 192);
    for (int64_t h = 0; h < 3; ++h) {
        for (const int64_t gate : {0, 1}) {
            const auto &[tensor, first] = parts[static_cast<size_t>(1 + 2 * h + gate)];
            const int64_t row = (2 * h + gate) * 24;
            assert_int_equal(first, gate * 1000 + h * 64);
            assert_int_equal(tensor->rows, 24);
            assert_int_equal(tensor->first_row, 7 + row);
            assert_true(tensor->data == q.data + row * 10 * 2);
        }
    }
    attention.gated = false;
    const SplitQueries whole(q, {}, attention, 64, 1000);
    const std::vector<MatrixPart> same = whole.parts({});
    assert_int_equal(same.size(), 1);
    assert_true(same[0].first->rows == q.rows && same[0].second == 0);
}

Tensor shaped(int64_t rows, int64_t columns) {
    Tensor tensor;
    tensor.rows = rows;
    tensor.columns = columns;
    return tensor;
}

void a_short_convolutions_b_c_and_x_are_one_matrix(void **) {
    Mixer made = ShortConvolution();
    auto &convolution = std::get<ShortConvolution>(made);
    convolution.width = 3;
    for (Weight *part : {&convolution.b, &convolution.c, &convolution.x}) {
        part->values = shaped(24, 40);
    }
    convolution.o.values = shaped(40, 24);
    const MixerMatrices mixer(made, 40);
    assert_int_equal(mixer.first.rows, 80); // rounded up to a multiple of 16
    assert_int_equal(mixer.first.columns, 40);
    assert_true(mixer.first.parts == (std::vector<MatrixPart>{{&convolution.b.values, 0},
                                                              {&convolution.c.values, 24},
                                                              {&convolution.x.values, 48}}));
    assert_int_equal(mixer.last.rows, 40);
    assert_int_equal(mixer.last.columns, 24);
    assert_true(mixer.last.parts == (std::vector<MatrixPart>{{&convolution.o.values, 0}}));
}

void a_short_convolutions_filter_is_turned_over(void **) {
    const uint16_t bf16[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0}; // 1 to 6
    Tensor filter = shaped(2, 3);
    filter.dtype = DType::bf16;
    filter.data = reinterpret_cast<const std::byte *>(bf16);
    const TurnedFilter turned(filter, true);
    assert_true(turned.tensor.dtype == DType::f32);
    assert_int_equal(turned.tensor.rows, 6);
    assert_int_equal(turned.tensor.columns, 1);
    const float wanted[] = {1, 4, 2, 5, 3, 6};
    assert_memory_equal(turned.tensor.data, wanted, sizeof wanted);
    assert_int_equal(TurnedFilter(filter, false).tensor.rows, 6);
    assert_null(TurnedFilter(filter, false).tensor.data);
}

// For q, k and v, each over three tokens, in rows of four.
void a_narrow_convolution_leaves_the_earliest_places(void **) {
    Mamba2 space;
    space.width = 3;
    for (const int64_t rows : {8, 8, 24}) {
        space.convolution.push_back({shaped(rows, 3), shaped(rows, 1)});
    }
    const std::vector<MatrixPart> parts = convolution_parts(space, 4), biases = bias_parts(space);
    const int64_t channels[] = {0, 8, 16};
    assert_int_equal(parts.size(), 3);
    assert_int_equal(biases.size(), 3);
    for (size_t i = 0; i < 3; ++i) {
        assert_true(parts[i] == MatrixPart(&space.convolution[i].values, 4 * channels[i] + 1));
        assert_true(biases[i] == MatrixPart(&space.convolution[i].bias, channels[i]));
    }
}

// [experts], each with alternating rows of gate and up.
void scales_of_experts_are_in_the_order_of_their_rows(void **) {
    Tensors tensors;
    const ExpertMatrix gated{
        64,
        48,
        {{tensors.add(32, 48, 1, 48), tensors.add(32, 48, 1, 48)},
         {tensors.add(32, 48, 32, 48), tensors.add(32, 48, 1, 48)}}}; // one scale per tensor, too
    assert_true(own_scaling(gated) == Scaling::rows);
    const std::vector<float> scales = expert_scales(gated, Scaling::rows);
    assert_int_equal(scales.size(), 128);
    assert_int_equal(expert_scale_count(gated, Scaling::rows), 128);
    for (size_t i = 0; i < scales.size(); ++i) {
        const size_t row = i % 64, of_part = row / 16 * 8 + row % 8;
        const auto &[gate, up] = gated.experts[i / 64];
        const Tensor *part = row / 8 % 2 == 0 ? gate : up;
        assert_true(scales[i] == part->scales.data[part->scales.block_rows == 1 ? of_part : 0]);
    }
    const ExpertMatrix down{32, 48, {{tensors.add(32, 48, 1, 48), nullptr}}};
    assert_true(own_scaling(down) == Scaling::rows);
    assert_true(expert_scales(down, Scaling::rows)[17] == down.experts[0].first->scales.data[17]);
}

void blocks_of_experts_are_those_of_gate_and_up(void **) {
    Tensors tensors;
    // Gate and up in one tensor for all experts, as in stacked checkpoints.
    const auto half = [&](int64_t first) { return tensors.add(256, 384, 128, 128, 1024, first); };
    const ExpertMatrix gated{512, 384, {{half(0), half(256)}, {half(512), half(768)}}};
    assert_true(own_scaling(gated) == Scaling::blocks);
    const std::vector<float> scales = expert_scales(gated, Scaling::blocks);
    assert_int_equal(scales.size(), 2 * 3 * 4 * 2);
    assert_int_equal(expert_scale_count(gated, Scaling::blocks), scales.size());
    for (size_t i = 0; i < scales.size(); ++i) {
        // [experts][blocks of columns][128 rows, half of each part's][gate, up]
        const size_t part = i % 2, down = i / 2 % 4, across = i / 8 % 3, expert = i / 24;
        const auto &[gate, up] = gated.experts[expert];
        const Tensor *tensor = part == 0 ? gate : up;
        const size_t first = static_cast<size_t>(tensor->first_row) / 128;
        assert_true(scales[i] == tensor->scales.data[(first + down / 2) * 3 + across]);
    }
    const ExpertMatrix down{256, 384, {{tensors.add(256, 384, 128, 128), nullptr}}};
    const std::vector<float> plain = expert_scales(down, Scaling::blocks);
    assert_int_equal(plain.size(), 2 * 6);
    for (size_t i = 0; i < plain.size(); ++i) {
        assert_true(plain[i] == down.experts[0].first->scales.data[i / 2 % 2 * 3 + i / 4]);
    }
}

void experts_have_one_kind_of_scales(void **) {
    Tensors tensors;
    const Tensor *blocks = tensors.add(128, 256, 128, 128), *rows = tensors.add(128, 256, 1, 256);
    assert_true(own_scaling(ExpertMatrix{128, 256, {{blocks, nullptr}, {blocks, nullptr}}}) ==
                Scaling::blocks);
    assert_true(own_scaling(ExpertMatrix{128, 256, {{blocks, nullptr}, {rows, nullptr}}}) ==
                Scaling::none);
    assert_true(own_scaling(ExpertMatrix{256, 256, {{blocks, rows}}}) == Scaling::none);
    // Rows that alternate in the file must be rearranged.
    Tensor apart = *rows;
    apart.row_step = 2;
    assert_true(own_scaling(ExpertMatrix{128, 256, {{&apart, nullptr}}}) == Scaling::none);
}

// Gate and up alternate, with their biases; without a gate, up is unchanged.
void experts_have_gate_and_up_or_up_alone(void **) {
    Tensors tensors;
    Experts experts;
    for (int e = 0; e < 2; ++e) {
        FeedForward &each = experts.each.emplace_back();
        each.width = 24;
        for (Weight *w : {&each.gate, &each.up, &each.down}) {
            w->values =
                *tensors.of(DType::bf16, w == &each.down ? 40 : 24, w == &each.down ? 24 : 40);
            w->bias = *tensors.of(DType::f32, w->rows(), 1);
        }
    }
    const FeedForward &last = experts.each[1];
    const ExpertMatrices both(experts, 40);
    assert_true(both.gate_up.rows == 48 && both.gate_up.columns == 40 && both.biased());
    assert_true(both.gate_up.experts[1].first == &last.gate.values &&
                both.gate_up.experts[1].second == &last.up.values);
    assert_true(both.gate_up_bias.size() == 4 &&
                both.gate_up_bias[2] == MatrixPart(&last.gate.bias, 48) &&
                both.gate_up_bias[3] == MatrixPart(&last.up.bias, 56));
    assert_true(both.of_gate_up_bias.row(9) == 17);
    for (FeedForward &each : experts.each) each.gate = {};
    const ExpertMatrices alone(experts, 40);
    assert_true(alone.gate_up.rows == 24 && alone.gate_up.columns == 40);
    assert_true(alone.gate_up.experts[1].first == &last.up.values &&
                alone.gate_up.experts[1].second == nullptr);
    assert_true(alone.gate_up_bias.size() == 2 &&
                alone.gate_up_bias[1] == MatrixPart(&last.up.bias, 24));
    assert_true(alone.of_gate_up_bias.row(9) == 9);
    for (const ExpertMatrices *of : {&both, &alone}) {
        assert_true(of->down.rows == 40 && of->down.columns == 24 &&
                    of->down.experts[1].first == &last.down.values &&
                    of->down_bias[1] == MatrixPart(&last.down.bias, 40));
    }
    for (FeedForward &each : experts.each) each.up.bias = each.down.bias = {};
    assert_false(ExpertMatrices(experts, 40).biased());
}

// What predictions expect of a description is what the loaded weights' scales allow. (Of qwen2_ct_naive_fp8 it is not: its
// configuration names modules by an expression that fits one of the names that they may have in files, not all.)
void layers_are_described_as_their_scales_allow(void **) {
    int scaled = 0, not_scaled = 0;
    for (const char *name :
         {"llama_ct_tensor_fp8", "phi3_ct_channel_fp8", "llama_ct_block_fp8", "qwen3_block_fp8",
          "deepseek_v3_block_fp8", "phi3_block_fp8", "qwen3_moe_block_fp8",
          "qwen3_moe_wide_block_fp8", "qwen3_moe_channel_fp8", "ministral3_tensor_fp8",
          "mistral_static_fp8", "llama_modelopt_fp8", "nemotron_h_modelopt_fp8",
          "mixtral_modelopt_fp8", "llama4_modelopt_fp8", "llama3_gqa_sharded_bf16"}) {
        const std::string directory = std::string("golden/") + name;
        const Model described = describe_model(directory).value();
        const auto loaded = load_model(directory);
        assert_true(loaded.ok());
        for (size_t i = 0; i < described.layers.size(); ++i) {
            const Layer &layer = (*loaded)->layers[i];
            const ScaledLayer expected = scaled_layer(described, i, Quantize::stored);
            const auto compare = [&](const MatrixSource &source, bool wanted, const char *which) {
                const bool own = source.rows > 0 && own_scaling(source) != Scaling::none;
                if (own != wanted) fail_msg("%s: layer %d: %s: %d", name, int(i), which, own);
                ++(own ? scaled : not_scaled);
            };
            const int64_t hidden = described.hidden;
            const MixerMatrices mixer(layer.mixer, hidden);
            compare(mixer.first, expected.first, "first");
            compare(mixer.last, expected.last, "last");
            if (const Experts *experts = layer.experts()) {
                const ExpertMatrices each(*experts, hidden);
                const bool own = own_scaling(each.gate_up) != Scaling::none &&
                                 own_scaling(each.down) != Scaling::none &&
                                 experts->each[0].activation == Activation::silu &&
                                 hidden % 128 == 0 && experts->each[0].width % 128 == 0;
                if (own != expected.experts)
                    fail_msg("%s: layer %d: experts: %d", name, int(i), own);
                ++(own ? scaled : not_scaled);
            } else if (const FeedForward *f = layer.feed_forward()) {
                const int64_t up = f->gate.rows();
                compare(
                    {up + f->up.rows(), hidden, {{&f->gate.values, 0}, {&f->up.values, up}}, {}},
                    expected.gate_up, "gate and up");
                compare({hidden, f->width, {{&f->down.values, 0}}, {}}, expected.down, "down");
            }
        }
    }
    assert_true(scaled > 20 && not_scaled > 20);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(scales_of_tensors_and_channels_become_scales_of_rows),
        cmocka_unit_test(padded_heads_and_parts_of_a_stored_tensor_keep_their_scales),
        cmocka_unit_test(layers_are_described_as_their_scales_allow),
        cmocka_unit_test(blocks_stay_blocks_where_parts_begin_on_them),
        cmocka_unit_test(what_the_products_cannot_multiply_is_left),
        cmocka_unit_test(a_matrix_is_stored_quantised_if_a_part_is),
        cmocka_unit_test(a_matrix_stays_in_four_bits_if_all_parts_can),
        cmocka_unit_test(gates_of_queries_are_rows_of_their_own),
        cmocka_unit_test(a_short_convolutions_b_c_and_x_are_one_matrix),
        cmocka_unit_test(a_short_convolutions_filter_is_turned_over),
        cmocka_unit_test(a_narrow_convolution_leaves_the_earliest_places),
        cmocka_unit_test(scales_of_experts_are_in_the_order_of_their_rows),
        cmocka_unit_test(blocks_of_experts_are_those_of_gate_and_up),
        cmocka_unit_test(experts_have_one_kind_of_scales),
        cmocka_unit_test(experts_have_gate_and_up_or_up_alone),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
