// The CUDA backend's errors on machines that it cannot run on, and the kernels that it chooses
// where it can. This depends only on what the driver reports, so no device is needed.
#include <cstring>
#include <functional>
#include <string>

#include "attention/family.h"
#include "backend_options.h"
#include "golden_files.h"
#include "layer_kinds.h"
#include "model/parts.h"
#include "step/adapter_layout.h"
#include "step/forward_options.h"
#include "step/products.h"
#include "step/supported.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

DeviceFacts good() {
    DeviceFacts facts;
    facts.driver = 13000;
    facts.count = 2;
    facts.device = 1;
    facts.name = "Some GPU";
    facts.major = 8;
    return facts;
}

void assert_refused(const DeviceFacts &facts, const char *text) {
    const Status status = check_device(facts);
    assert_int_equal(status.code(), BATCHLLM_ERROR_BACKEND_UNAVAILABLE);
    if (status.message().find(text) == std::string::npos) {
        fail_msg("\"%s\" does not say \"%s\"", status.message().c_str(), text);
    }
}

void devices_that_cannot_run_it_are_refused_by_name(void **) {
    assert_true(check_device(good()).ok());
    DeviceFacts facts = good();
    facts.driver = 0;
    assert_refused(facts, "no NVIDIA driver");
    facts = good();
    facts.driver = 12080;
    assert_refused(facts, "CUDA up to 12.8, this library needs 13.0");
    facts = good();
    facts.counted = cudaErrorInsufficientDriver;
    assert_refused(facts, "the driver knows");
    facts = good();
    facts.counted = cudaErrorNoDevice;
    assert_refused(facts, "no device is visible");
    facts = good();
    facts.counted = cudaErrorSystemNotReady;
    assert_refused(facts, cudaGetErrorString(cudaErrorSystemNotReady));
    facts = good();
    facts.device = 2;
    assert_refused(facts, "device 2 of 2 is not there");
    facts = good();
    facts.asked = cudaErrorUnknown;
    assert_refused(facts, "device 1: ");
    facts = good();
    facts.major = 7;
    facts.minor = 5;
    assert_refused(facts, "device 1 (Some GPU) has compute capability 7.5");
}

const char *name_of(const char *asked, int major, int minor) {
    const AttentionFamily *family = find_attention(asked, major, minor);
    return family != nullptr ? family->name : "none";
}

void devices_take_the_kernels_of_their_capability(void **) {
    assert_string_equal(name_of("auto", 8, 0), "sm80");
    assert_string_equal(name_of("auto", 8, 6), "sm80");
    assert_string_equal(name_of("auto", 8, 9), "sm80");
    assert_string_equal(name_of("auto", 9, 0), "sm90");
    assert_string_equal(name_of("auto", 10, 0), "sm80"); // sm_90a code runs only on 9.0
    assert_string_equal(name_of("auto", 12, 1), "sm80");
    assert_string_equal(name_of("sm80", 9, 0), "sm80");
    assert_string_equal(name_of("sm80_small", 8, 6), "sm80_small");
    assert_string_equal(name_of("sm90", 8, 0), "none");
    assert_string_equal(name_of("sm90", 10, 0), "none");
    assert_string_equal(name_of("auto", 7, 5), "none");
    assert_string_equal(name_of("sm75", 9, 0), "none");
    assert_string_equal(name_of("", 9, 0), "none");
}

void a_machine_without_a_driver_is_told(void **) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver != 0) skip();
    const auto opened = open_device(0);
    assert_false(opened.ok());
    assert_int_equal(opened.status().code(), BATCHLLM_ERROR_BACKEND_UNAVAILABLE);
    assert_non_null(std::strstr(opened.status().message().c_str(), "no NVIDIA driver"));
}

void a_failed_allocation_is_out_of_memory_and_a_lost_device_is_a_device_error(void **) {
    assert_int_equal(check_cuda(cudaErrorMemoryAllocation, "x").code(),
                     BATCHLLM_ERROR_OUT_OF_MEMORY);
    for (const cudaError_t lost :
         {cudaErrorIllegalAddress, cudaErrorECCUncorrectable, cudaErrorDevicesUnavailable}) {
        const Status status = check_cuda(lost, "a step");
        assert_int_equal(status.code(), BATCHLLM_ERROR_DEVICE);
        assert_non_null(std::strstr(status.message().c_str(), cudaGetErrorString(lost)));
        assert_non_null(std::strstr(status.message().c_str(), "a step"));
    }
    assert_true(check_cuda(cudaSuccess, "x").ok());
}

void quantising_is_refused_where_it_cannot_be(void **) {
    cudaDeviceProp device{};
    std::strcpy(device.name, "Some GPU");
    device.major = 8;
    device.multiProcessorCount = 100;
    Model model;
    model.dtype = DType::bf16;
    BackendOptions options;
    const auto read = [&](const char *quantize, int minor, const char *type) {
        device.minor = minor;
        options.compute_type = type;
        options.extra = {{"quantize", quantize}};
        return read_options(model, options, device);
    };
    assert_true(read("fp8", 9, "auto")->forward.quantize == Quantize::fp8);
    assert_true(read("none", 0, "auto")->forward.quantize == Quantize::none);
    assert_true(read("stored", 0, "f32")->forward.quantize == Quantize::stored);
    const struct {
        const char *quantize;
        int minor;
        const char *type, *text;
        int32_t code;
    } refused[] = {
        {"fp8", 6, "auto", "Some GPU has compute capability 8.6", BATCHLLM_ERROR_UNSUPPORTED},
        {"fp8", 9, "f32", "compute_type must be bf16 or f16", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"int4", 9, "auto", "quantize=int4: none, stored or fp8", BATCHLLM_ERROR_INVALID_ARGUMENT},
    };
    for (const auto &x : refused) {
        const Status status = read(x.quantize, x.minor, x.type).status();
        assert_int_equal(status.code(), x.code);
        if (status.message().find(x.text) == std::string::npos) {
            fail_msg("\"%s\" does not say \"%s\"", status.message().c_str(), x.text);
        }
    }
}

void keys_and_values_are_in_fp8_where_they_can_be(void **) {
    cudaDeviceProp device{};
    device.major = 8;
    device.multiProcessorCount = 100;
    Model model;
    model.dtype = DType::f16;
    BackendOptions options;
    const auto read = [&](const char *kv_type, const char *type) {
        options.compute_type = type;
        options.extra = {{"kv_type", kv_type}};
        return read_options(model, options, device);
    };
    assert_true(read("fp8", "auto")->forward.kv_type() == DType::e4m3);
    assert_true(read("auto", "auto")->forward.kv_type() == DType::f16);
    assert_true(read("auto", "f32")->forward.kv_type() == DType::f32);
    const Status in_f32 = read("fp8", "f32").status(), unknown = read("e5m2", "auto").status();
    assert_int_equal(in_f32.code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(in_f32.message().c_str(), "kv_type=fp8: compute_type must be"));
    assert_int_equal(unknown.code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(unknown.message().c_str(), "kv_type=e5m2: auto or fp8"));
}

Model model_of(int32_t hidden, int32_t width, int32_t heads) {
    Model model;
    model.hidden = hidden;
    model.max_positions = 131072;
    model.layers.resize(1);
    Layer &layer = model.layers[0];
    Attention &attention = layer.mixer.emplace<Attention>();
    attention.heads = heads;
    attention.kv_heads = heads / 4;
    attention.head_dim = 128;
    FeedForward &feed_forward = layer.feed.emplace<FeedForward>();
    feed_forward.width = width;
    feed_forward.gate.values.rows = width;
    return model;
}

void steps_are_as_large_as_memory_suggests(void **) {
    Model dense = model_of(4096, 14336, 32);
    const Model small = model_of(256, 1024, 4);
    Model sparse = model_of(2048, 0, 32);
    sparse.layers[0].feed.emplace<Experts>().each.resize(128);
    ForwardOptions options;
    options.element = options.residual = DType::bf16;
    const auto steps = [&](const Model &model, int64_t gib) {
        return step_tokens_by_memory(model, options, gib << 30);
    };
    assert_int_equal(steps(dense, 140), 16384);
    assert_int_equal(steps(dense, 79), 8192);
    assert_int_equal(steps(dense, 24), 4096);
    assert_int_equal(steps(dense, 8), 4096); // the minimum, whatever its buffers take
    assert_int_equal(steps(sparse, 140), 8192);
    assert_int_equal(steps(sparse, 24), 8192);
    assert_int_equal(steps(small, 24), 16384);
    options.attention.reproducible = true; // more partials
    assert_int_equal(steps(dense, 140), 4096);
    options.attention.reproducible = false;
    options.element = options.residual = DType::f32;
    assert_int_equal(steps(dense, 140), 8192);
    options.element = options.residual = DType::bf16;
    dense.layers.resize(32, dense.layers[0]);
    dense.layer_inputs.width = 2048;
    assert_int_equal(steps(dense, 140), 8192);
    dense.layer_inputs.width = 0;
    dense.layers.resize(1);
    assert_int_equal(steps(dense, 140), 16384);
    dense.layers.resize(2);
    DeltaNet &net = dense.layers[1].mixer.emplace<DeltaNet>();
    net.key_heads = net.value_heads = 64;
    net.key_dim = net.value_dim = 128;
    assert_int_equal(steps(dense, 140), 8192);
}

// Options that are read last count too.
void steps_follow_from_all_options(void **) {
    const Model model = model_of(4096, 14336, 32);
    cudaDeviceProp device{};
    device.major = 9;
    device.multiProcessorCount = 100;
    // Just enough.
    device.totalGlobalMem = static_cast<size_t>(36 * step_buffers(model, {}, 16384).growing());
    BackendOptions options;
    options.compute_type = "bf16";
    const auto steps = [&](const char *key, const char *value) {
        options.extra = {{key, value}};
        return read_options(model, options, device)->forward.step_tokens;
    };
    assert_int_equal(steps("residual", "element"), 16384);
    assert_int_equal(steps("residual", "f32"), 8192);
    assert_int_equal(steps("quantize", "fp8"), 8192);
    assert_int_equal(steps("quantize", "none"), 16384);
    // A scale of each row before each of the products.
    device.totalGlobalMem += static_cast<size_t>(36 * 16384 * 3 * 4);
    assert_int_equal(steps("quantize", "fp8"), 16384);
    device.totalGlobalMem -= 36;
    assert_int_equal(steps("quantize", "fp8"), 8192);
    options.step_tokens = 3000;
    assert_int_equal(steps("quantize", "none"), 3000);
}

void activations_are_within_products_on_the_capability_that_has_them(void **) {
    Model model;
    model.dtype = DType::bf16;
    cudaDeviceProp device{};
    device.multiProcessorCount = 100;
    const auto have = [&](int major, int minor, BackendOptions options = {}) {
        device.major = major;
        device.minor = minor;
        return read_options(model, options, device)->forward.has_gated_products();
    };
    assert_true(have(9, 0));
    assert_false(have(8, 0) || have(8, 9) || have(10, 0));
    BackendOptions options;
    options.reproducible = true;
    assert_false(have(9, 0, options));
    options.reproducible = false;
    options.extra = {{"gated_product", "0"}};
    assert_false(have(9, 0, options));
    options.extra = {{"attention", "sm80"}};
    assert_false(have(9, 0, options));
    options.extra.clear();
    options.compute_type = "f32";
    assert_false(have(9, 0, options));
    options.compute_type = "f16";
    assert_true(have(9, 0, options));
}

void what_the_cpu_alone_computes_is_refused_by_name(void **) {
    const char *const reasons[] = {"a short convolution ", "a short convolution ",
                                   "a delta net that decays by channel with sizes"};
    const std::vector<LayerKind> kinds = cpu_layer_kinds();
    assert_int_equal(kinds.size(), std::size(reasons));
    for (size_t i = 0; i < kinds.size(); ++i) {
        const Status status = check_supported(kinds[i].make());
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        if (status.message().find(reasons[i]) == std::string::npos) {
            fail_msg("%s: %s", kinds[i].name.c_str(), status.message().c_str());
        }
    }
    for (const LayerKind &kind : layer_kinds()) {
        const Status status = check_supported(kind.make());
        if (!status.ok()) fail_msg("%s: %s", kind.name.c_str(), status.message().c_str());
    }
    for (const LayerKind &kind : latent_layer_kinds()) {
        assert_true(check_supported(kind.make()).ok());
    }
}

void mixers_side_by_side_have_one_norm_before_them(void **) {
    const auto refuses = [](const std::function<void(std::vector<Layer> *)> &change,
                            const char *what) {
        Model model = kinds::side_by_side(false);
        assert_true(check_supported(model).ok());
        change(&model.layers);
        const Status status = check_supported(model);
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        if (std::strstr(status.message().c_str(), what) == nullptr) {
            fail_msg("%s", status.message().c_str());
        }
    };
    using Layers = std::vector<Layer>;
    refuses([](Layers *all) { all->erase(all->begin()); }, "layer 0: a mixer beside none");
    refuses([](Layers *all) { (*all)[1].parallel = true; }, "layer 1: a mixer beside none");
    refuses([](Layers *all) { (*all)[1].before_attention = (*all)[0].before_attention; },
            "layer 1: a mixer beside another with a norm of its own before it");
    const char *other = "layer 1: a mixer beside a layer other than";
    refuses([](Layers *all) { (*all)[0].before_attention = {}; }, other);
    refuses([](Layers *all) { (*all)[0].feed = (*all)[1].feed; }, other);
    const auto three = [](Layers *all) {
        Layer more = (*all)[1];
        more.feed = NoFeed();
        all->insert(all->begin() + 1, more);
    };
    refuses(three, "layer 2: a mixer beside a layer other than");
}

void golden_models_for_cuda_are_supported(void **) {
    for (const Golden &golden : golden_on_cuda()) {
        const Result<Model> model = describe_model(golden.directory);
        const Status status = model.ok() ? check_supported(*model) : model.status();
        if (!status.ok()) fail_msg("%s: %s", golden.directory.c_str(), status.message().c_str());
    }
}

void parts_of_a_delta_net_that_decays_by_channel_are_supported(void **) {
    const Result<Model> model = describe_model("golden/kimi_linear_f16");
    assert_true(model.ok());
    for (int32_t rank = 0; rank < 2; ++rank) {
        const auto part = part_of(*model, rank, 2);
        const Status status = part.ok() ? check_supported(**part) : part.status();
        if (!status.ok()) fail_msg("%s", status.message().c_str());
    }
}

// Of the whole model, and of a rank's part: there what makes gates of a few numbers has fewer rows.
void adapters_of_gates_by_channel_have_products_of_their_own(void **) {
    const Result<Model> model = describe_model("golden/kimi_linear_f16");
    assert_true(model.ok());
    const auto part = part_of(*model, 1, 2);
    assert_true(part.ok());
    constexpr size_t layer = 1;
    const auto &whole = std::get<ChannelDeltaNet>(model->layers[layer].mixer);
    Adapter adapter;
    for (const Tensor *matrix : {&whole.input[3], &whole.z.values, &whole.a.values}) {
        LowRank &change = adapter.changes[matrix];
        change.a.rows = change.b.columns = 8;
        change.a.columns = matrix->columns;
        change.b.rows = matrix->rows;
    }
    const auto check = [&](const Model &of, const Adapter &changes, int64_t ranks) {
        const AdaptedModel adapted(of, DType::bf16);
        const auto layout = adapted.layout(changes);
        if (!layout.ok()) fail_msg("%s", layout.status().message().c_str());
        for (const LayerProduct product :
             {LayerProduct::first, LayerProduct::gates, LayerProduct::decays}) {
            const size_t number = ProductPlace{layer, product}.number();
            assert_int_equal(layout->entries[number].ranks, 8);
            if (product == LayerProduct::first) continue;
            const AdaptedProduct &of_gates = adapted.product(number);
            assert_int_equal(of_gates.columns, whole.gate_rank);
            assert_int_equal(of_gates.width, whole.values_size() / ranks);
        }
    };
    check(*model, adapter, 1);
    check(**part, part_of(adapter, *model, **part), 2);
}

void what_no_model_has_of_lone_layers_and_squared_relus_is_refused(void **) {
    const auto refuses = [](const std::function<void(Model *)> &change, const char *what) {
        Model model = kinds::lone();
        change(&model);
        const Status status = check_supported(model);
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        if (std::strstr(status.message().c_str(), what) == nullptr) {
            fail_msg("%s", status.message().c_str());
        }
    };
    const char *lone = "layer 0: a mixer or a feed-forward alone beside";
    refuses([](Model *model) { model->layer_inputs.width = 8; }, lone);
    refuses([](Model *model) { model->layers[0].scalar = kinds::tensor(1, 1); }, lone);
    refuses([](Model *model) { model->layers[0].parallel = true; }, lone);
    const auto of_experts = [&](const std::function<void(FeedForward *)> &change,
                                const char *what) {
        const auto all = [&](Model *model) {
            for (FeedForward &expert : model->layers[3].experts()->each) change(&expert);
        };
        refuses(all, what);
    };
    of_experts([](FeedForward *f) { f->gate = f->up; }, "layer 3: a squared ReLU (relu2) of");
    of_experts([](FeedForward *f) { f->activation = Activation::silu; },
               "layer 3: experts without a gate other than with relu2");
    refuses(
        [](Model *model) {
            model->layers[3].experts()->each[5].gate = model->layers[1].feed_forward()->up;
        },
        "layer 3: experts of which some have a gate");
    refuses([](Model *model) { model->layers[1].feed_forward()->width = 12; },
            "layer 1: hidden_size");
}

void what_no_model_has_of_norms_around_experts_is_refused(void **) {
    const auto refuses = [](const std::function<void(Layer *)> &change, const char *what) {
        Model model = kinds::changed(kinds::gemma4(false), kinds::share_normed_experts);
        assert_true(check_supported(model).ok());
        change(&model.layers[1]);
        const Status status = check_supported(model);
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        if (std::strstr(status.message().c_str(), what) == nullptr) {
            fail_msg("%s", status.message().c_str());
        }
    };
    refuses([](Layer *layer) { layer->parallel = true; },
            "layer 1: a norm before experts in a parallel block");
    refuses([](Layer *layer) { layer->feed = Experts(*layer->experts()); },
            "layer 1: a norm after experts without a feed-forward");
    const auto gate = [](Layer *layer) {
        std::get<SharedExperts>(layer->feed).gate.values = kinds::tensor(1, 136);
    };
    refuses(gate, "layer 1: norms after experts and after a shared expert with a gate");
    refuses(
        [&](Layer *layer) {
            gate(layer);
            layer->experts()->after = Norm();
        },
        "layer 1: norms after experts and after a shared expert with a gate");
}

void a_feed_forward_is_checked_behind_every_mixer(void **) {
    const auto refuses = [](Model model) {
        assert_true(check_supported(model).ok());
        model.layers[0].feed_forward()->activation = Activation::clamped_swiglu;
        const Status status = check_supported(model);
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        assert_string_equal(status.message().c_str(),
                            "cuda backend: layer 0: a clamped SwiGLU outside experts");
    };
    refuses(kinds::plain());
    refuses(kinds::hybrid(true, 2, 4));
    refuses(kinds::convolution(true, 3, 136, false));
    refuses(kinds::state_space(1, 6, 128, 64, true));
}

void state_space_layers_that_no_kernel_takes_are_refused_by_name(void **) {
    const auto refused = [](const Model &model, const std::string &what) {
        const Status status = check_supported(model);
        assert_int_equal(status.code(), BATCHLLM_ERROR_UNSUPPORTED);
        const std::string wanted = "cuda backend: layer 0: a state-space layer" + what;
        assert_string_equal(status.message().c_str(), wanted.c_str());
    };
    const auto taken = [] { return kinds::state_space(2, 6, 256, 128, true); };
    assert_true(check_supported(taken()).ok());
    refused(kinds::state_space(1, 6, 264, 64, true), " with a state of more than 256");
    refused(kinds::state_space(1, 6, 128, 136, true), " with heads of more than 128");
    refused(kinds::state_space(1, 4, 128, 62, true), " with heads of no multiple of 4");
    refused(kinds::state_space(1, 3, 128, 20, true), " with values of no multiple of 8");
    const auto changed = [&](const auto &change) {
        Model model = taken();
        change(&std::get<Mamba2>(model.layers[0].mixer));
        return model;
    };
    refused(changed([](Mamba2 *space) { space->width = 5; }),
            "'s convolution over more than 4 tokens");
    refused(changed([](Mamba2 *space) { space->norm_parts = 4; }),
            "'s norm of each head, or of parts that divide heads");
    refused(changed([](Mamba2 *space) { space->norm.kind = NormKind::layer; }),
            "'s norm other than RMSNorm with a weight");
}

// As a device's memory is estimated before anything is loaded.
void weights_are_counted_as_they_are_loaded(void **) {
    const auto bytes_of = [](const Model &model, Quantize quantize) {
        ForwardOptions options;
        options.quantize = quantize;
        LoadOptions load = load_options(model, options, size_t{1} << 40);
        load.takes = [](int64_t rows, int64_t columns, Scaling scaling, bool) {
            return Products::may_take(DType::bf16, rows, columns, scaling);
        };
        const auto bytes = loaded_bytes(model, load);
        if (!bytes.ok()) fail_msg("%s", bytes.status().message().c_str());
        return *bytes;
    };
    struct Case {
        const char *name;
        bool smaller_as_stored; // than in 16 bits
    };
    for (const Case &c : {Case{"llama3_gqa_sharded_bf16", false}, Case{"qwen3_moe_bf16", false},
                          Case{"phi3_ct_channel_fp8", true}, Case{"llama_awq", true},
                          Case{"llama_ct_mxfp4", true}}) {
        const auto model = load_model(std::string("golden/") + c.name);
        assert_true(model.ok());
        const int64_t wide = bytes_of(**model, Quantize::none);
        const int64_t stored = bytes_of(**model, Quantize::stored);
        const int64_t fp8 = bytes_of(**model, Quantize::fp8);
        print_message("%s: %d, as stored %d, in fp8 %d bytes\n", c.name, int(wide), int(stored),
                      int(fp8));
        assert_true((stored < wide) == c.smaller_as_stored);
        assert_true(fp8 < wide);
        const auto first = part_of(**model, 0, 2), second = part_of(**model, 1, 2);
        assert_true(first.ok() && second.ok());
        const int64_t parts =
            bytes_of(**first, Quantize::none) + bytes_of(**second, Quantize::none);
        assert_true(parts > wide && bytes_of(**first, Quantize::none) < wide);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(devices_that_cannot_run_it_are_refused_by_name),
        cmocka_unit_test(devices_take_the_kernels_of_their_capability),
        cmocka_unit_test(quantising_is_refused_where_it_cannot_be),
        cmocka_unit_test(steps_are_as_large_as_memory_suggests),
        cmocka_unit_test(steps_follow_from_all_options),
        cmocka_unit_test(activations_are_within_products_on_the_capability_that_has_them),
        cmocka_unit_test(keys_and_values_are_in_fp8_where_they_can_be),
        cmocka_unit_test(what_the_cpu_alone_computes_is_refused_by_name),
        cmocka_unit_test(mixers_side_by_side_have_one_norm_before_them),
        cmocka_unit_test(golden_models_for_cuda_are_supported),
        cmocka_unit_test(parts_of_a_delta_net_that_decays_by_channel_are_supported),
        cmocka_unit_test(adapters_of_gates_by_channel_have_products_of_their_own),
        cmocka_unit_test(what_no_model_has_of_lone_layers_and_squared_relus_is_refused),
        cmocka_unit_test(what_no_model_has_of_norms_around_experts_is_refused),
        cmocka_unit_test(a_feed_forward_is_checked_behind_every_mixer),
        cmocka_unit_test(state_space_layers_that_no_kernel_takes_are_refused_by_name),
        cmocka_unit_test(weights_are_counted_as_they_are_loaded),
        cmocka_unit_test(a_machine_without_a_driver_is_told),
        cmocka_unit_test(a_failed_allocation_is_out_of_memory_and_a_lost_device_is_a_device_error),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
