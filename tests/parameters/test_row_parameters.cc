// The table of a row's parameters, and what is derived from it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "changed_parameters.h"
#include "runtime/columns.h"
#include "testing.h"

using namespace batchllm;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

void must_refuse(const batchllm_params &params, const std::string &name) {
    const auto read = read_parameters(params, 100);
    if (read.ok()) fail_msg("%s was accepted", name.c_str());
    assert_int_equal(read.status().code(), BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    if (read.status().message().find(name) == std::string::npos) {
        fail_msg("\"%s\" lacks \"%s\"", read.status().message().c_str(), name.c_str());
    }
}

void parameters_are_copied(void **) {
    batchllm_params params = default_params();
    const int32_t stops[] = {0, 99};
    const char *strings[] = {"\n\n", "\xc3\xa9nd"};
    const int32_t tokens[] = {5, 6};
    const float values[] = {-infinity, 2.5F};
    params.temperature = 0.7F;
    params.top_k = 40;
    params.seed = UINT64_MAX;
    params.ignore_eos = 7;
    params.parse_special = 0;
    params.stop_tokens = stops;
    params.stop_token_count = 2;
    params.stop_strings = strings;
    params.stop_string_count = 2;
    params.bias_tokens = tokens;
    params.bias_values = values;
    params.bias_count = 2;
    const auto read = read_parameters(params, 100);
    assert_true(read.ok());
    assert_true(read->temperature == 0.7F && read->top_k == 40 && read->seed == UINT64_MAX);
    assert_true(read->ignore_eos && !read->parse_special && read->add_special);
    assert_true(read->stop_tokens == (std::vector<int32_t>{0, 99}));
    assert_true(read->stop_strings == (std::vector<std::string>{"\n\n", "\xc3\xa9nd"}));
    assert_int_equal(read->bias.size(), 2);
    assert_true(read->bias[1].first == 6 && read->bias[1].second == 2.5F);
}

void parameters_out_of_range_are_refused_by_name(void **) {
    const auto refuse_float = [](float batchllm_params::*field, const char *name,
                                 std::initializer_list<float> values) {
        for (const float value : values) {
            batchllm_params params = default_params();
            params.*field = value;
            must_refuse(params, name);
        }
    };
    const auto refuse_int = [](int32_t batchllm_params::*field, const char *name,
                               std::initializer_list<int32_t> values) {
        for (const int32_t value : values) {
            batchllm_params params = default_params();
            params.*field = value;
            must_refuse(params, name);
        }
    };
    refuse_float(&batchllm_params::temperature, "temperature",
                 {-0.1F, infinity, -infinity, not_a_number});
    refuse_float(&batchllm_params::top_p, "top_p", {0, -1, 1.01F, infinity, not_a_number});
    refuse_float(&batchllm_params::min_p, "min_p", {-0.1F, 1, infinity, not_a_number});
    refuse_float(&batchllm_params::repetition_penalty, "repetition_penalty",
                 {0, -1, infinity, not_a_number});
    refuse_float(&batchllm_params::presence_penalty, "presence_penalty",
                 {-2.1F, 2.1F, infinity, not_a_number});
    refuse_float(&batchllm_params::frequency_penalty, "frequency_penalty",
                 {-2.1F, 2.1F, -infinity, not_a_number});
    refuse_int(&batchllm_params::max_tokens, "max_tokens", {0, -1, INT32_MIN});
    refuse_int(&batchllm_params::top_k, "top_k", {-2, INT32_MIN});
    refuse_int(&batchllm_params::min_tokens, "min_tokens", {-1, 129, INT32_MIN});
    refuse_int(&batchllm_params::prompt_logprobs, "prompt_logprobs", {-2, 21});
    refuse_int(&batchllm_params::samples, "samples", {0, -1, 65537, INT32_MAX});
    refuse_int(&batchllm_params::logprobs, "logprobs", {-2, 21, INT32_MAX});
}

void bad_lists_are_refused_by_name(void **) {
    const int32_t good_token[] = {1};
    const int32_t high_token[] = {1, 100};
    const int32_t low_token[] = {-1};
    const float bad_value[] = {infinity};
    const float nan_value[] = {not_a_number};
    const char *empty[] = {"a", ""};
    const char *null_string[] = {nullptr};
    const char *broken[] = {"a\xff"};
    const std::string huge(static_cast<size_t>(stop_bytes_limit) / 2 + 1, 'a');
    const char *too_long[] = {huge.c_str(), huge.c_str()};

    const auto stop = [](const int32_t *tokens, int64_t count, const char *name) {
        batchllm_params params = default_params();
        params.stop_tokens = tokens;
        params.stop_token_count = count;
        must_refuse(params, name);
    };
    stop(high_token, 2, "stop_tokens[1] is 100");
    stop(low_token, 1, "stop_tokens[0] is -1");
    stop(nullptr, 1, "stop_tokens");
    stop(good_token, -1, "stop_token_count");
    stop(good_token, INT64_MAX, "stop_token_count");
    const auto strings = [](const char *const *items, int64_t count, const char *name) {
        batchllm_params params = default_params();
        params.stop_strings = items;
        params.stop_string_count = count;
        must_refuse(params, name);
    };
    strings(empty, 2, "stop_strings[1] is empty");
    strings(null_string, 1, "stop_strings[0] is NULL");
    strings(nullptr, 1, "stop_strings");
    strings(broken, 1, "stop_strings[0] is not valid UTF-8");
    strings(too_long, 2, "stop_strings");
    strings(empty, -5, "stop_string_count");
    const auto bias = [](const int32_t *tokens, const float *values, int64_t count,
                         const char *name) {
        batchllm_params params = default_params();
        params.bias_tokens = tokens;
        params.bias_values = values;
        params.bias_count = count;
        must_refuse(params, name);
    };
    bias(good_token, bad_value, 1, "bias_values[0] (logit_bias of token");
    bias(good_token, nan_value, 1, "bias_values[0]");
    bias(good_token, nullptr, 1, "bias_values");
    bias(nullptr, bad_value, 1, "bias_tokens");
    bias(low_token, bad_value, 1, "bias_tokens[0]");
    bias(good_token, bad_value, -1, "bias_count");
}

// A caller compiled against a shorter struct: every length, in memory of exactly that length.
void nothing_beyond_the_callers_struct_is_read(void **) {
    batchllm_params params = default_params();
    params.max_tokens = 3;
    params.temperature = 0.5F;
    params.seed = 42;
    params.stop_token_count = -1; // an error if it is read
    for (uint32_t size = 0; size <= sizeof params; ++size) {
        params.struct_size = size;
        // So that a sanitizer detects any read beyond its end.
        const size_t stored = std::max<size_t>(size, sizeof params.struct_size);
        const auto bytes = std::make_unique<std::byte[]>(stored);
        std::memcpy(bytes.get(), &params, stored);
        const auto column =
            ParamsColumn::open(reinterpret_cast<const batchllm_params *>(bytes.get()), 1, 1);
        assert_true(column.ok() == possible_struct_size(size));
        if (!column.ok()) continue;
        const auto read = read_parameters(*column->at(0), 100);
        assert_true(read.ok() == (size < offsetof(batchllm_params, stop_token_count) + 8));
        if (!read.ok()) continue;
        const auto has = [&](const auto &field) {
            return reinterpret_cast<const char *>(&field + 1) <=
                   reinterpret_cast<const char *>(&params) + size;
        };
        assert_int_equal(read->max_tokens, has(params.max_tokens) ? 3 : 128);
        assert_true(read->temperature == (has(params.temperature) ? 0.5F : 0.0F));
        assert_int_equal(read->seed, has(params.seed) ? 42 : 0);
        assert_true(read->top_p == 1 && read->samples == 1 && read->logprobs == -1);
    }
}

void defaults_are_a_row_that_sets_nothing(void **) {
    const auto read = read_parameters(default_params(), 100);
    assert_true(read.ok() && *read == RowParameters());
}

// Every field of the C struct is a row of the table; what is not is named here.
void the_table_has_every_field_of_the_struct(void **) {
    static const batchllm_params params{};
    using Span = std::pair<size_t, size_t>; // offset, end
    const auto span = [](const auto &field) {
        const size_t offset = static_cast<size_t>(reinterpret_cast<const char *>(&field) -
                                                  reinterpret_cast<const char *>(&params));
        return Span(offset, offset + sizeof field);
    };
    std::vector<Span> fields;
    each_parameter([&](const auto &parameter) {
        if constexpr (is_list<decltype(parameter)>) {
            fields.push_back(span(params.*parameter.items));
            fields.push_back(span(params.*parameter.count));
        } else {
            fields.push_back(span(params.*parameter.c_field));
        }
        return true;
    });
    fields.push_back(span(params.struct_size));
    fields.push_back(span(params.bias_values)); // the second array of `bias`
    fields.push_back(span(params.constraint));  // handles
    fields.push_back(span(params.adapter));
    std::sort(fields.begin(), fields.end());
    size_t end = 0;
    for (const auto &[begin, next] : fields) {
        const size_t size = next - begin;
        if (begin != (end + size - 1) / size * size) {
            fail_msg("the field at byte %zu of batchllm_params is not in row_parameters.inc", end);
        }
        end = next;
    }
    assert_true(end + alignof(batchllm_params) > sizeof params);
}

void names_and_keys_are_all_different(void **) {
    std::vector<std::string> names;
    each_parameter([&](const auto &parameter) {
        names.push_back(std::string("name ") + parameter.name);
        names.push_back(std::string("key ") + parameter.key);
        if (*parameter.option != '\0') names.push_back(parameter.option);
        return true;
    });
    std::sort(names.begin(), names.end());
    assert_true(std::adjacent_find(names.begin(), names.end()) == names.end());
}

// A view of a row reads back as the row, whichever parameter is set.
void every_parameter_goes_through_the_c_struct(void **) {
    each_parameter([](const auto &parameter) {
        const RowParameters row = with_another_value(parameter);
        assert_true(row.*parameter.field != RowParameters().*parameter.field);
        ParameterViews views;
        const auto read = read_parameters(view_parameters(row, &views), 100);
        if (!read.ok()) fail_msg("%s", read.status().message().c_str());
        if (!(*read == row)) fail_msg("%s is lost", parameter.name);
        return true;
    });
}

// What has no effect on a row is neither read nor checked; what makes vectors is an error of a row
// that has none.
void only_parameters_of_the_rows_task_are_read(void **) {
    batchllm_params params = default_params();
    params.temperature = -1;
    params.stop_token_count = -1;
    params.add_special = 0;
    params.pooling = BATCHLLM_POOLING_MEAN;
    must_refuse(params, "temperature is -1: must be 0 or a positive number");
    params.task = BATCHLLM_TASK_EMBED;
    const auto embedded_row = read_parameters(params, 100);
    assert_true(embedded_row.ok() && embedded_row->temperature == 0 && !embedded_row->add_special);
    assert_int_equal(embedded_row->pooling, BATCHLLM_POOLING_MEAN);
    params.task = BATCHLLM_TASK_CLASSIFY;
    must_refuse(params, "pooling is for embedded rows");
    params.pooling = 0;
    assert_true(read_parameters(params, 100).ok());
    for (const int32_t task : {-1, 3, INT32_MAX}) {
        params.task = task;
        must_refuse(params, "must be 0 to 2");
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_copied),
        cmocka_unit_test(parameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(bad_lists_are_refused_by_name),
        cmocka_unit_test(nothing_beyond_the_callers_struct_is_read),
        cmocka_unit_test(defaults_are_a_row_that_sets_nothing),
        cmocka_unit_test(the_table_has_every_field_of_the_struct),
        cmocka_unit_test(names_and_keys_are_all_different),
        cmocka_unit_test(every_parameter_goes_through_the_c_struct),
        cmocka_unit_test(only_parameters_of_the_rows_task_are_read),
    };
    return cmocka_run_group_tests_name("row_parameters", tests, nullptr, nullptr);
}
