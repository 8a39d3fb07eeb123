// The option kv_type, and the scales that keys and values in e4m3 are stored with.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/kv_scales.h"
#include "backend/kv_type.h"
#include "backend/sim/sim_options.h"
#include "backend/sim/step_cost.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

void must_say(const Status &status, int32_t code, const char *text) {
    assert_int_equal(status.code(), code);
    if (status.message().find(text) == std::string::npos) {
        fail_msg("\"%s\" does not say \"%s\"", status.message().c_str(), text);
    }
}

void a_type_is_read_or_refused_by_key_and_value(void **) {
    assert_true(read_kv_type("auto", DType::f16).value() == DType::f16);
    assert_true(read_kv_type("auto", DType::f32).value() == DType::f32);
    assert_true(read_kv_type("fp8", DType::bf16).value() == DType::e4m3);
    must_say(read_kv_type("fp8", DType::f32).status(), BATCHLLM_ERROR_INVALID_ARGUMENT,
             "kv_type=fp8: compute_type must be bf16 or f16");
    must_say(read_kv_type("e5m2", DType::bf16).status(), BATCHLLM_ERROR_INVALID_ARGUMENT,
             "kv_type=e5m2: auto or fp8");
    assert_string_equal(name_of_kv_type(DType::bf16).c_str(), "");
    assert_non_null(std::strstr(name_of_kv_type(DType::e4m3).c_str(), "fp8 (e4m3)"));
}

void the_cpu_keeps_keys_and_values_in_the_compute_type(void **) {
    const auto model = load_model("golden/qwen3_bf16").value();
    BackendOptions options;
    options.kv_memory_bytes = 16 << 20;
    options.compute_type = "f32";
    options.extra = {{"kv_type", "auto"}};
    assert_true(make_cpu_backend(*model, options).ok());
    options.extra = {{"kv_type", "fp8"}};
    must_say(make_cpu_backend(*model, options).status(), BATCHLLM_ERROR_UNSUPPORTED,
             "kv_type=fp8: the cpu backend");
    options.extra = {{"kv_type", "int8"}};
    must_say(make_cpu_backend(*model, options).status(), BATCHLLM_ERROR_INVALID_ARGUMENT,
             "kv_type=int8");
}

void simulated_pages_of_fp8_are_twice_as_many(void **) {
    const Model model = describe_model("golden/qwen3_bf16").value();
    const Model windowed = describe_model("golden/gemma3_text_bf16").value();
    for (const Model *of : {static_cast<const Model *>(nullptr), &model, &windowed}) {
        BackendOptions options;
        options.kv_memory_bytes = 64 << 20;
        const SimOptions wide = read_sim_options(of, options).value();
        options.extra = {{"kv_type", "fp8"}};
        const SimOptions narrow = read_sim_options(of, options).value();
        assert_int_equal(2 * narrow.slot_bytes, wide.slot_bytes);
        assert_true(narrow.pages / 2 == wide.pages); // except for the rest of a page
        assert_int_equal(2 * narrow.kv_groups[0].token_bytes, wide.kv_groups[0].token_bytes);
    }
    BackendOptions options;
    options.extra = {{"kv_type", "int4"}};
    must_say(read_sim_options(nullptr, options).status(), BATCHLLM_ERROR_INVALID_ARGUMENT,
             "kv_type=int4");
    options.extra = {{"kv_type", "fp8"}};
    options.compute_type = "f32";
    must_say(read_sim_options(nullptr, options).status(), BATCHLLM_ERROR_INVALID_ARGUMENT,
             "compute_type");
}

// Requests that decode separately read half of the bytes. Keys that many share take the same time
// to compute with, plus a little for being widened.
void attention_in_fp8_is_predicted_by_its_bytes(void **) {
    const DeviceCosts costs = named_device_costs("h200").value();
    const Model model = describe_model("golden/qwen3_bf16").value();
    const auto seconds = [&](int64_t bytes, bool shared) {
        TokenBatch batch;
        constexpr int32_t keys = 8192, rows = 512;
        if (shared) batch.nodes.push_back({-1, 0, keys, 0, 0, true});
        for (int32_t i = 0; i < rows; ++i) {
            const int32_t start = shared ? keys : 0;
            batch.nodes.push_back({shared ? 0 : -1, start, shared ? 1 : keys, i, 1, false});
            batch.tokens.push_back(1);
            batch.positions.push_back(keys);
        }
        return StepCost(costs, model, {.kv_bytes = bytes}).seconds(batch).attention;
    };
    const double launches = StepCost(costs, model).costs().attention_us * 1e-6 *
                            static_cast<double>(model.layers.size());
    assert_true(std::fabs((seconds(1, false) - launches) / (seconds(2, false) - launches) - 0.5) <
                1e-3);
    assert_true(seconds(1, true) > seconds(2, true));
    assert_true(seconds(1, true) < 1.1 * seconds(2, true));
}

// A single layer that owns its tensors.
class MadeLayer {
  public:
    MadeLayer() {
        model_.hidden = hidden;
        model_.layers.resize(1);
        Attention &a = model_.layers[0].mixer.emplace<Attention>();
        a.heads = 2 * kv_heads;
        a.kv_heads = kv_heads;
        a.head_dim = head_dim;
        a.k.values = matrix("k", kv_heads * head_dim, hidden, 0.02);
        a.v.values = matrix("v", kv_heads * head_dim, hidden, 0.7);
        Norm &norm = model_.layers[0].before_attention;
        norm.kind = NormKind::rms;
        norm.weight = matrix("norm", hidden, 1, 3);
    }
    Attention &attention() { return *model_.layers[0].attention(); }
    Layer &layer() { return model_.layers[0]; }
    const Model &model() const { return model_; }

    Tensor matrix(const char *name, int64_t rows, int64_t columns, double deviation) {
        std::normal_distribution<double> normal(0, deviation);
        values_.push_back(std::make_unique<std::vector<float>>());
        for (int64_t i = 0; i < rows * columns; ++i) {
            values_.back()->push_back(static_cast<float>(normal(random_)));
        }
        Tensor tensor;
        tensor.name = name;
        tensor.rows = rows;
        tensor.columns = columns;
        tensor.data = reinterpret_cast<const std::byte *>(values_.back()->data());
        return tensor;
    }
    std::mt19937_64 &random() { return random_; }

    static constexpr int64_t hidden = 96;
    static constexpr int32_t kv_heads = 3, head_dim = 32;

  private:
    Model model_;
    std::mt19937_64 random_{seed_of_run()};
    std::vector<std::unique_ptr<std::vector<float>>> values_;
};

bool is_power_of_two(float scale) {
    int exponent = 0;
    return std::frexp(scale, &exponent) == 0.5F;
}

// Root mean square of a head's elements for inputs with a root mean square of 1.
double measured(MadeLayer *made, const Weight &weight, int32_t head) {
    std::normal_distribution<double> normal;
    const std::vector<float> gain = [&] {
        std::vector<float> all(MadeLayer::hidden);
        read_rows(made->layer().before_attention.weight, 0, MadeLayer::hidden, DType::f32,
                  all.data());
        return all;
    }();
    std::vector<float> row(MadeLayer::hidden);
    double squares = 0;
    constexpr int inputs = 200;
    std::vector<double> input(MadeLayer::hidden);
    for (int n = 0; n < inputs; ++n) {
        for (size_t j = 0; j < input.size(); ++j) {
            input[j] = normal(made->random()) * static_cast<double>(gain[j]);
        }
        for (int32_t i = 0; i < MadeLayer::head_dim; ++i) {
            read_row(weight.values, head * MadeLayer::head_dim + i, row.data());
            double sum = 0;
            for (size_t j = 0; j < row.size(); ++j) sum += static_cast<double>(row[j]) * input[j];
            squares += sum * sum;
        }
    }
    return std::sqrt(squares / inputs / MadeLayer::head_dim);
}

void a_heads_scale_brings_its_elements_near_1(void **) {
    MadeLayer made;
    const std::vector<KvScales> scales = kv_scales(made.model(), 2);
    assert_int_equal(scales.size(), 1);
    for (int32_t head = 0; head < MadeLayer::kv_heads; ++head) {
        const auto h = static_cast<size_t>(head);
        for (const auto &[scale, weight] : {std::pair(scales[0].k[h], &made.attention().k),
                                            std::pair(scales[0].v[h], &made.attention().v)}) {
            assert_true(is_power_of_two(scale));
            const double size = measured(&made, *weight, head) / static_cast<double>(scale);
            if (size < 0.9 || size > 2.2) fail_msg("%g of head %d", size, int(head));
        }
    }
    // Biases count in full: keys of some models have large ones.
    Attention &a = made.attention();
    std::vector<float> bias(static_cast<size_t>(a.kv_size()), 0.0F);
    bias[MadeLayer::head_dim + 5] = -400;
    a.k.bias = a.k.values;
    a.k.bias.rows = a.kv_size();
    a.k.bias.columns = 1;
    a.k.bias.data = reinterpret_cast<const std::byte *>(bias.data());
    const KvScales biased = kv_scales(made.model(), 1)[0];
    assert_true(biased.k[0] == scales[0].k[0] && biased.k[2] == scales[0].k[2]);
    assert_true(biased.k[1] == 256 && biased.v == scales[0].v);
}

void behind_a_norm_its_weight_says_it(void **) {
    MadeLayer made;
    const std::vector<KvScales> before = kv_scales(made.model(), 1);
    std::vector<float> weight(MadeLayer::kv_heads * MadeLayer::head_dim, 5.0F);
    for (size_t i = 0; i < MadeLayer::head_dim; ++i) weight[i] = -40;
    Attention &a = made.attention();
    a.k_norm.kind = NormKind::rms;
    a.k_norm.weight = a.k.values;
    a.k_norm.weight.columns = 1;
    a.k_norm.weight.rows = MadeLayer::head_dim; // one for each head
    a.k_norm.weight.data = reinterpret_cast<const std::byte *>(weight.data());
    assert_true(kv_scales(made.model(), 1)[0].k == std::vector<float>(3, 32.0F));
    a.k_norm.offset = 38.5F; // -1.5
    assert_true(kv_scales(made.model(), 1)[0].k == std::vector<float>(3, 1.0F));
    a.k_norm.offset = 0;
    a.norm_whole = true;
    a.k_norm.weight.rows = static_cast<int64_t>(weight.size());
    const KvScales whole = kv_scales(made.model(), 1)[0];
    assert_true((whole.k == std::vector<float>{32, 4, 4}) && whole.v == before[0].v);
    a.v_norm.kind = NormKind::rms; // it has no weight
    assert_true(kv_scales(made.model(), 1)[0].v == std::vector<float>(3, 1.0F));
}

void the_checkpoints_scales_are_taken_as_they_are(void **) {
    MadeLayer made;
    made.attention().v_scales = {0.3F, 7, 1};
    const KvScales scales = kv_scales(made.model(), 1)[0];
    assert_true((scales.v == std::vector<float>{0.3F, 7, 1}));
    assert_true(is_power_of_two(scales.k[0]));
    for (const char *name : {"golden/llama_ct_tensor_fp8", "golden/llama_modelopt_fp8"}) {
        const auto model = load_model(name).value();
        for (const KvScales &of_layer : kv_scales(*model, 2)) {
            const auto heads = static_cast<size_t>(model->layers[0].attention()->kv_heads);
            assert_true(of_layer.k == std::vector<float>(heads, 0.0625F));
            assert_true(of_layer.v == of_layer.k);
        }
    }
}

void weights_of_zeros_and_numbers_beyond_all_have_a_scale_too(void **) {
    MadeLayer made;
    std::vector<float> zeros(MadeLayer::kv_heads * MadeLayer::head_dim * MadeLayer::hidden, 0.0F);
    std::vector<float> huge(zeros.size(), 3e38F);
    made.attention().k.values.data = reinterpret_cast<const std::byte *>(zeros.data());
    made.attention().v.values.data = reinterpret_cast<const std::byte *>(huge.data());
    const KvScales scales = kv_scales(made.model(), 1)[0];
    assert_true(scales.k == std::vector<float>(3, 1.0F));
    assert_true(scales.v[0] == 0x1p60F);
}

void latents_have_the_scale_of_their_larger_part(void **) {
    const auto model = load_model("golden/deepseek_v3_wide_bf16").value();
    Layer &layer = model->layers[0];
    const auto scale = [&] {
        const KvScales scales = kv_scales(*model, 1)[0];
        assert_true(scales.k.size() == 1 && scales.v == scales.k);
        return scales.k[0];
    };
    assert_true(scale() == 1);
    layer.attention()->latent.norm.offset = 39; // of weights around 1
    assert_true(scale() == 32);
    layer.before_attention.offset = 1e5F; // what the turned part is a product with
    assert_true(scale() > 1024);
}

// Each golden model, whatever the stored form of its key weights, including layers that attend to
// another layer's keys.
void every_model_has_scales(void **) {
    int32_t models = 0, borrowed = 0;
    for (const auto &entry : std::filesystem::directory_iterator("golden")) {
        if (!std::filesystem::exists(entry.path() / "config.json")) continue;
        ++models;
        const auto model = load_model(entry.path().string()).value();
        const std::vector<KvScales> scales = kv_scales(*model, 2);
        for (size_t i = 0; i < scales.size(); ++i) {
            const Attention *a = model->layers[i].attention();
            const size_t heads = a != nullptr ? static_cast<size_t>(a->kv_heads) : 0;
            assert_int_equal(scales[i].k.size(), heads);
            assert_int_equal(scales[i].v.size(), heads);
            for (const float scale : scales[i].k) {
                assert_true(is_power_of_two(scale) && scale > 1e-4F && scale < 1e4F);
            }
            assert_true(a == nullptr || !a->latent || scales[i].k == scales[i].v);
            borrowed += a != nullptr && a->kv_layer >= 0;
        }
    }
    assert_true(models > 60 && borrowed > 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_type_is_read_or_refused_by_key_and_value),
        cmocka_unit_test(the_cpu_keeps_keys_and_values_in_the_compute_type),
        cmocka_unit_test(simulated_pages_of_fp8_are_twice_as_many),
        cmocka_unit_test(attention_in_fp8_is_predicted_by_its_bytes),
        cmocka_unit_test(a_heads_scale_brings_its_elements_near_1),
        cmocka_unit_test(behind_a_norm_its_weight_says_it),
        cmocka_unit_test(the_checkpoints_scales_are_taken_as_they_are),
        cmocka_unit_test(weights_of_zeros_and_numbers_beyond_all_have_a_scale_too),
        cmocka_unit_test(latents_have_the_scale_of_their_larger_part),
        cmocka_unit_test(every_model_has_scales),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
