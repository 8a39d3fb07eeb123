// The step itself, fused and in every type, against float64: for layers of every kind, from the
// embedding through norms, attention, feed-forward and additions to the logits.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/family.h"
#include "layer_kinds.h"
#include "reference_layer.h"
#include "step/forward.h"
#include "step/supported.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

// Two requests that continue one prefix.
constexpr int32_t kPrefix = 70, kOwn[] = {5, 9};
constexpr int32_t kGroupPages = 24; // per KV group
constexpr int32_t kSlots = 4;       // state slots: the prefix's, the requests', and one more

std::string only;    // main's argument: part of the names of kinds to run
int64_t widened = 0; // steps whose first layers read widened pages

struct Setting {
    DType element, residual;
    const AttentionFamily *family;
    bool graphs;
    bool kv_e4m3 = false;
    int32_t step_tokens = 128;
    bool gated_product = true;
};

// Steps of one model, one after another.
class Steps {
  public:
    Steps(const Model &model, const Setting &setting) {
        ForwardOptions options;
        options.element = setting.element;
        options.residual = setting.residual;
        options.kv_e4m3 = setting.kv_e4m3;
        options.step_tokens = setting.step_tokens;
        options.gated_product = setting.gated_product;
        options.tune = false;
        options.tuning_cache = "none";
        options.attention.family = setting.family;
        if (std::string(setting.family->name) == "sm90") {
            options.experts = GroupedKernel::sm90;
        }
        cudaDeviceProp properties{};
        check(cudaGetDeviceProperties(&properties, 0));
        options.attention.sms = properties.multiProcessorCount;
        options.graphs = setting.graphs;
        options.threads = 2;
        auto made = Forward::create(model, options);
        check(made.status());
        forward_ = std::move(made).value();
        kv_groups_ = static_cast<int32_t>(model.kv_groups.size());
        check(forward_->parts().kv.take_pages(kGroupPages * kv_groups_));
        if (forward_->parts().states.slot_bytes() > 0)
            check(forward_->parts().states.take_slots(kSlots));
        check(staging_.reserve(1 << 20));
        vocabulary_ = static_cast<size_t>(model.vocabulary);
    }

    // Logits of the wanted tokens, ascending.
    std::vector<std::vector<float>> run(TokenBatch batch, std::vector<int32_t> wanted) {
        for (int32_t g = 1; g < kv_groups_; ++g) { // the same on separate pages for each KV group
            batch.pages.push_back(batch.pages[0]);
            for (int32_t &page : batch.pages.back().list) page += kGroupPages * g;
        }
        const auto count = static_cast<int64_t>(wanted.size());
        staging_.clear();
        check(forward_->stage(batch, wanted, count, &staging_));
        check(staging_.send(nullptr));
        // Capturing needs a separate stream.
        check(cudaDeviceSynchronize());
        if (!stream_) {
            auto made = Stream::create();
            check(made.status());
            stream_ = std::make_unique<Stream>(std::move(made).value());
        }
        check(forward_->run(staging_, *stream_));
        widened += !forward_->parts().attention.worklist().widened.empty();
        std::vector<std::vector<float>> rows;
        if (count > 0) check(forward_->head().compute_logits(0, count, *stream_));
        check(cudaDeviceSynchronize());
        for (int64_t i = 0; i < count; ++i) {
            rows.emplace_back(vocabulary_);
            check(cudaMemcpy(rows.back().data(),
                             forward_->head().logits() + i * forward_->head().logits_stride(),
                             vocabulary_ * sizeof(float), cudaMemcpyDeviceToHost));
        }
        return rows;
    }

    int64_t replayed() const { return forward_->graphs().replayed(); }
    // Of the last step: tokens that attend to latents in the plain form.
    int32_t plain() const {
        const StepAttention &step = forward_->parts().attention;
        return step.tokens() - step.first_plain();
    }

  private:
    std::unique_ptr<Forward> forward_;
    Staging staging_;
    std::unique_ptr<Stream> stream_;
    size_t vocabulary_ = 0;
    int32_t kv_groups_ = 1;
};

// The two requests' tokens, prefix included, and one more each.
std::vector<std::vector<int32_t>> make_rows(Random &random, int32_t vocabulary) {
    std::vector<int32_t> prefix;
    for (int32_t i = 0; i < kPrefix; ++i) {
        prefix.push_back(static_cast<int32_t>(draw(random, 0, vocabulary - 1)));
    }
    std::vector<std::vector<int32_t>> rows;
    for (const int32_t own : kOwn) {
        rows.push_back(prefix);
        for (int32_t i = 0; i < own + 1; ++i) {
            rows.back().push_back(static_cast<int32_t>(draw(random, 0, vocabulary - 1)));
        }
    }
    return rows;
}

// The prefix in pages 3 and 1; its last `computed` tokens are in the batch.
TokenBatch with_prefix(const std::vector<int32_t> &row, int32_t computed) {
    TokenBatch batch;
    for (int32_t i = kPrefix - computed; i < kPrefix; ++i) {
        batch.tokens.push_back(row[static_cast<size_t>(i)]);
        batch.positions.push_back(i);
    }
    batch.nodes.push_back({-1, 0, kPrefix, 0, computed, true, 0});
    batch.pages = {{{3, 1}, {{0, 0}}}};
    return batch;
}

// The newest node's only page.
void add_page(TokenBatch *batch, int32_t page) {
    GroupPages &group = batch->pages[0];
    group.nodes.push_back({static_cast<int32_t>(group.list.size()), 0});
    group.list.push_back(page);
}

// Own tokens [first, last) of each request, after the prefix, in page 5 or 0.
TokenBatch with_own(const std::vector<std::vector<int32_t>> &rows,
                    const std::vector<int32_t> &first, const std::vector<int32_t> &last) {
    TokenBatch batch = with_prefix(rows[0], 0);
    for (size_t r = 0; r < rows.size(); ++r) {
        const auto begin = static_cast<int32_t>(batch.tokens.size());
        for (int32_t i = first[r]; i < last[r]; ++i) {
            batch.tokens.push_back(rows[r][static_cast<size_t>(kPrefix + i)]);
            batch.positions.push_back(kPrefix + i);
        }
        batch.nodes.push_back(
            {0, kPrefix, last[r], begin, last[r] - first[r], false, static_cast<int32_t>(r) + 1});
        add_page(&batch, r == 0 ? 5 : 0);
    }
    return batch;
}

// The rounding errors of layers are independent, so they add up like a random walk, with the square
// root of the number of layers. The figures are for two layers, as in most kinds.
double limit_of(const Setting &setting, const Model &model) {
    const double deeper = std::sqrt(std::max(1.0, static_cast<double>(model.layers.size()) / 2));
    if (setting.element == DType::f32) return 2e-5 * deeper;
    // Earlier roundings move some elements to their other neighbour in e4m3, 6 or 12 % away: in
    // bf16 about one in twenty.
    if (setting.kv_e4m3) return (setting.element == DType::bf16 ? 6e-2 : 3e-2) * deeper;
    // A delta net's norm makes a head's small result, with its rounding error, as large as any
    // other.
    const bool delta =
        std::any_of(model.layers.begin(), model.layers.end(),
                    [](const Layer &layer) { return layer.linear_attention() != nullptr; });
    return (setting.element == DType::bf16 ? (delta ? 4e-2 : 2e-2) : 3e-3) * deeper;
}

double error_of(const std::vector<float> &got, const reference::Row &wanted) {
    double wrong = 0, all = 1e-30;
    for (size_t i = 0; i < wanted.size(); ++i) {
        wrong += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
        all += wanted[i] * wanted[i];
    }
    return std::sqrt(wrong / all);
}

// chooses: a rounding may change a token's experts, and its result by as much as they differ. This
// is rare: with four rows or more, three quarters must be as close as any other.
void compare(const std::vector<std::vector<float>> &got, const std::vector<reference::Row> &wanted,
             double limit, bool chooses, const std::string &what) {
    assert_int_equal(got.size(), wanted.size());
    if (chooses) {
        std::vector<double> errors;
        for (size_t i = 0; i < got.size(); ++i) errors.push_back(error_of(got[i], wanted[i]));
        std::sort(errors.begin(), errors.end());
        const double most = errors[errors.size() - 1 - errors.size() / 4];
        if (!(errors.back() < 0.5) || (errors.size() >= 4 && !(most <= limit))) {
            fail_msg("%s: errors up to %g, of three quarters of the rows up to %g (limit %g)",
                     what.c_str(), errors.back(), most, limit);
        }
        return;
    }
    for (size_t i = 0; i < got.size(); ++i) {
        const double wrong = error_of(got[i], wanted[i]);
        if (wrong > limit / 2) print_message("%s, row %d: %.2g\n", what.c_str(), int(i), wrong);
        const std::string row = what + ", row " + std::to_string(i);
        assert_close(got[i], wanted[i], limit, row.c_str());
    }
}

// A prefix alone, with no logits; two requests' own tokens at once, logits of some; a token of each.
void run_kind(const LayerKind &kind, const Setting &setting, const std::string &name) {
    Random random(kSeed);
    Model model = kind.make();
    place_keys_and_values(&model);
    const auto memory =
        reference::fill(&model, kSeed + 1, [&](float x) { return rounded(x, setting.element); });
    const auto rows = make_rows(random, model.vocabulary);
    std::vector<reference::Rows> wanted;
    std::vector<KvScales> scales;
    if (setting.kv_e4m3) scales = kv_scales(model, 1);
    for (const auto &row : rows) wanted.push_back(reference::logits(model, row, scales));
    const auto row = [&](size_t r, int32_t own) {
        return wanted[r][static_cast<size_t>(kPrefix + own)];
    };
    const double limit = limit_of(setting, model);
    const bool chooses = setting.element != DType::f32 && model.has_experts();

    Steps steps(model, setting);
    assert_int_equal(steps.run(with_prefix(rows[0], kPrefix), {}).size(), 0);
    const std::string what = kind.name + ", " + name;
    const bool states = model.state_size() > 0;
    // Many rows at once, also from a graph.
    for (int round = 0; round < 3 && setting.graphs && !states; ++round) {
        compare(steps.run(with_prefix(rows[0], kPrefix), {kPrefix - 1}), {row(0, -1)}, limit,
                chooses, what + ", the prefix again");
    }
    // Own tokens come first each time, because repeating a token would change a state again.
    for (int round = 0; round < (setting.graphs ? 3 : 1); ++round) {
        compare(steps.run(with_own(rows, {0, 0}, {kOwn[0], kOwn[1]}), {1, 4, 13}),
                {row(0, 1), row(0, 4), row(1, 8)}, limit, chooses, what + ", own tokens");
        compare(steps.run(with_own(rows, {kOwn[0], kOwn[1]}, {kOwn[0] + 1, kOwn[1] + 1}), {0, 1}),
                {row(0, kOwn[0]), row(1, kOwn[1])}, limit, chooses, what + ", a token each");
    }
    // All tokens in one step, with their prefix computed beside them.
    TokenBatch whole = with_prefix(rows[0], kPrefix);
    whole.nodes.push_back({0, kPrefix, 2, kPrefix, 2, false, 3});
    add_page(&whole, 6);
    std::vector<int32_t> all;
    for (int32_t i = 0; i < kPrefix + 2; ++i) all.push_back(i);
    for (int32_t i = 0; i < 2; ++i) {
        whole.tokens.push_back(rows[0][static_cast<size_t>(kPrefix + i)]);
        whole.positions.push_back(kPrefix + i);
    }
    compare(steps.run(whole, all), {wanted[0].begin(), wanted[0].begin() + kPrefix + 2}, limit,
            chooses, what + ", all tokens");
    assert_int_equal(steps.replayed() > 0, setting.graphs);
}

// Like the family, but pages are widened wherever possible.
const AttentionFamily *widening(const AttentionFamily &family) {
    static AttentionFamily changed;
    static void (*set_costs)(WorklistOptions *);
    changed = family;
    set_costs = family.set_costs;
    changed.set_costs = [](WorklistOptions *options) {
        set_costs(options);
        options->widen_us = options->widen_launch_us = 0;
    };
    return &changed;
}

void run_kinds(DType element, DType residual, const char *family, bool graphs, bool kv_e4m3 = false,
               bool widens = false) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    const AttentionFamily *found = find_attention(family, properties.major, properties.minor);
    if (found == nullptr) {
        print_message("%s does not run here\n", family);
        return;
    }
    if (widens) found = widening(*found);
    const std::string name = std::string(dtype_name(element)) + ", residual " +
                             dtype_name(residual) + ", " + family +
                             (kv_e4m3 ? ", keys and values in e4m3" : "");
    std::vector<LayerKind> all = layer_kinds();
    const std::vector<LayerKind> latents = latent_layer_kinds();
    all.insert(all.end(), latents.begin(), latents.end());
    for (const LayerKind &kind : all) {
        if (kind.name.find(only) == std::string::npos) continue;
        check(check_supported(kind.make()));
        run_kind(kind, {element, residual, found, graphs, kv_e4m3}, name);
    }
}

void f32_is_the_reference(void **) { run_kinds(DType::f32, DType::f32, "auto", false); }

void bf16_is_the_reference(void **) {
    for (const char *family : {"sm80", "sm80_small", "sm90"}) {
        run_kinds(DType::bf16, DType::bf16, family, false);
    }
    run_kinds(DType::bf16, DType::f32, "auto", false);
}

void f16_is_the_reference(void **) {
    for (const char *family : {"sm80", "sm90"}) {
        run_kinds(DType::f16, DType::f32, family, false);
    }
}

void keys_and_values_in_e4m3_are_the_rounded_references(void **) {
    for (const char *family : {"sm80", "sm80_small", "sm90"}) {
        run_kinds(DType::f16, DType::f32, family, false, true);
    }
    run_kinds(DType::bf16, DType::bf16, "auto", true, true);
}

void widened_keys_and_values_are_the_rounded_references(void **) {
    widened = 0;
    run_kinds(DType::f16, DType::f32, "sm90", false, true, true);
    const int64_t launched = widened;
    run_kinds(DType::f16, DType::f32, "sm90", true, true, true);
    print_message("%lld steps with widened pages, %lld of them without graphs\n",
                  static_cast<long long>(widened), static_cast<long long>(launched));
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    const bool runs = find_attention("sm90", properties.major, properties.minor) != nullptr;
    assert_true(!runs || !only.empty() || (launched > 0 && widened > 2 * launched));
}

void graphs_replay_every_kind(void **) { run_kinds(DType::bf16, DType::bf16, "auto", true); }

// A prompt in one step with more rows than the gated product needs, not a multiple of its tiles.
// Run twice with the product, the second time from a graph, and once without: all match the
// reference, and different bits show that the product was used.
void steps_of_many_tokens_are_the_reference(void **) {
    constexpr int32_t count = 1100;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    const bool hopper = find_attention("sm90", properties.major, properties.minor) != nullptr;
    const AttentionFamily *family = find_attention("auto", properties.major, properties.minor);
    for (const DType element : {DType::bf16, DType::f16}) {
        Random random(kSeed);
        Model model = kinds::plain(4, 2, 64, 128, 256);
        place_keys_and_values(&model);
        const auto memory =
            reference::fill(&model, kSeed + 1, [&](float x) { return rounded(x, element); });
        TokenBatch batch;
        for (int32_t i = 0; i < count; ++i) {
            batch.tokens.push_back(static_cast<int32_t>(draw(random, 0, model.vocabulary - 1)));
            batch.positions.push_back(i);
        }
        batch.nodes.push_back({-1, 0, count, 0, count, false});
        batch.pages = {{{}, {{0, 0}}}};
        for (int32_t i = 0; i * kPageKeys < count; ++i) batch.pages[0].list.push_back(i);
        const std::vector<int32_t> wanted = {0, 127, 128, 640, 1023, 1024, count - 1};
        const reference::Rows all = reference::logits(model, batch.tokens, {});
        reference::Rows some;
        for (const int32_t i : wanted) some.push_back(all[static_cast<size_t>(i)]);
        std::vector<std::vector<float>> got[2];
        for (const bool gated : {false, true}) {
            const Setting setting{element, DType::f32, family, true, false, 1200, gated};
            Steps steps(model, setting);
            for (int round = 0; round < 3; ++round) {
                got[gated] = steps.run(batch, wanted);
                compare(got[gated], some, limit_of(setting, model), false,
                        std::string(dtype_name(element)) + (gated ? ", gated" : ", apart"));
            }
            assert_true(steps.replayed() > 0);
        }
        assert_true((got[0] != got[1]) == hopper);
    }
}

// A request's token, then a prefix and two prompts that continue it, in one step: the last three in the plain form.
void prompts_attend_to_latents_in_the_plain_form(void **) {
    constexpr int32_t kBefore = 70, kShared = 300, kOne = 401, kOther = 203;
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    const AttentionFamily *family = find_attention("sm90", properties.major, properties.minor);
    if (family == nullptr) return;
    struct Case {
        DType element;
        int32_t q_rank, plain, value;
        bool kv_e4m3 = false;
    };
    for (const Case &c :
         {Case{DType::bf16, 72, 192, 256}, Case{DType::f16, 0, 128, 128},
          Case{DType::bf16, 72, 128, 128}, Case{DType::f16, 72, 192, 256},
          Case{DType::bf16, 72, 192, 256, true}, Case{DType::f16, 0, 128, 128, true}}) {
        Random random(kSeed);
        Model model = kinds::latents(4, 512, 64, c.q_rank, true, c.plain, c.value);
        if (c.q_rank == 0) model.ropes[0].pairs = false;
        place_keys_and_values(&model);
        const auto memory =
            reference::fill(&model, kSeed + 1, [&](float x) { return rounded(x, c.element); });
        std::vector<KvScales> scales;
        if (c.kv_e4m3) scales = kv_scales(model, 1);
        std::vector<int32_t> tokens[4]; // before, shared, own of one and of the other
        for (size_t i = 0; i < 4; ++i) {
            const int32_t count[] = {kBefore + 1, kShared, kOne, kOther};
            for (int32_t t = 0; t < count[i]; ++t) {
                tokens[i].push_back(static_cast<int32_t>(draw(random, 0, model.vocabulary - 1)));
            }
        }
        const Setting setting{c.element, DType::f32, family, true, c.kv_e4m3, 1024};
        Steps steps(model, setting);
        TokenBatch first, second;
        first.tokens.assign(tokens[0].begin(), tokens[0].end() - 1);
        for (int32_t i = 0; i < kBefore; ++i) first.positions.push_back(i);
        first.nodes.push_back({-1, 0, kBefore, 0, kBefore, false});
        first.pages = {{{3, 1}, {{0, 0}}}};
        steps.run(first, {});
        assert_int_equal(steps.plain(), 0);
        const auto add = [&](int32_t parent, int32_t start, int32_t from, size_t which) {
            const auto begin = static_cast<int32_t>(second.tokens.size());
            const auto count = static_cast<int32_t>(tokens[which].size());
            for (int32_t i = from; i < count; ++i) {
                second.tokens.push_back(tokens[which][static_cast<size_t>(i)]);
                second.positions.push_back(start + i);
            }
            second.nodes.push_back({parent, start, count, begin, count - from, which == 1});
        };
        add(-1, 0, kBefore, 0);
        add(-1, 0, 0, 1);
        add(1, kShared, 0, 2);
        add(1, kShared, 0, 3);
        second.pages = {{{3, 1, 4, 9, 2, 23, 5, 6, 0, 11, 7, 8, 20, 12, 10, 15, 16, 17},
                         {{0, 0}, {2, 0}, {7, 0}, {14, 0}}}};
        const int32_t one = 1 + kShared, other = one + kOne;
        const auto got =
            steps.run(second, {0, 1, one - 1, one, other - 1, other, other + kOther - 1});
        assert_int_equal(steps.plain(), kShared + kOne + kOther);
        reference::Rows wanted;
        const reference::Rows before = reference::logits(model, tokens[0], scales);
        wanted.push_back(before.back());
        for (const size_t which : {2, 3}) {
            std::vector<int32_t> row = tokens[1];
            row.insert(row.end(), tokens[which].begin(), tokens[which].end());
            const reference::Rows all = reference::logits(model, row, scales);
            if (which == 2) {
                wanted.push_back(all[0]);
                wanted.push_back(all[kShared - 1]);
            }
            wanted.push_back(all[kShared]);
            wanted.push_back(all.back());
        }
        compare(got, wanted, limit_of(setting, model), false,
                std::string(dtype_name(c.element)) + ", plain form" +
                    (c.kv_e4m3 ? ", in e4m3" : ""));
    }
}

} // namespace

int main(int argc, char **argv) {
    if (const int code = skipped()) return code;
    if (argc > 1) only = argv[1];
    const CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_the_reference),
        cmocka_unit_test(bf16_is_the_reference),
        cmocka_unit_test(f16_is_the_reference),
        cmocka_unit_test(graphs_replay_every_kind),
        cmocka_unit_test(keys_and_values_in_e4m3_are_the_rounded_references),
        cmocka_unit_test(widened_keys_and_values_are_the_rounded_references),
        cmocka_unit_test(steps_of_many_tokens_are_the_reference),
        cmocka_unit_test(prompts_attend_to_latents_in_the_plain_form),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
