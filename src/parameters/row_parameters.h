// What a caller may ask for a row: the parameters of batchllm_params, as row_parameters.inc lists
// them, in a struct that owns its arrays.
//
// Everything that is done with every parameter goes through each_parameter(), so that a new row of
// the table takes part in it: nothing else repeats the list.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "batchllm.h"

namespace batchllm {

// What a row of the data set asks for: what a request computes from its tokens. The first three are
// numbered as BATCHLLM_TASK_.
enum class Task : int32_t {
    generate, // a token, sampled from the logits
    embed,    // the hidden state, after the last norm
    classify, // also the hidden state: the runtime computes the small classification head
    score,    // log-probabilities of given tokens
};
constexpr bool embedded(Task task) { return task == Task::embed || task == Task::classify; }

// Kinds of parameters: how a value is held in C++. How it is written in JSON, as an option and in
// each binding is said there, for each kind.
namespace kinds {

struct Whole { // a whole number
    using Type = int32_t;
};
struct Number {
    using Type = float;
};
struct Flag { // nonzero in C
    using Type = bool;
};
struct Choice { // 1: yes, -1: no, 0: neither was said
    using Type = int32_t;
};
struct Seed {
    using Type = uint64_t;
};
struct Likeliest { // how many of the likeliest tokens to list; -1: no log-probabilities at all
    using Type = int32_t;
};
struct TaskName {
    using Type = Task;
};
struct PoolingName { // BATCHLLM_POOLING_
    using Type = int32_t;
};
struct Tokens {
    using Type = std::vector<int32_t>;
    struct View {};
};
struct Texts {
    using Type = std::vector<std::string>;
    using View = std::vector<const char *>;
};
struct Biases { // tokens, and what is added to their logits
    using Type = std::vector<std::pair<int32_t, float>>;
    struct View {
        std::vector<int32_t> tokens;
        std::vector<float> values;
    };
};
} // namespace kinds

// batchllm_params that owns its arrays, without the constraint.
struct RowParameters {
#define PARAMETER(name, kind, initial, ...) kinds::kind::Type name = initial;
#define LIST(name, kind, ...) kinds::kind::Type name;
#include "parameters/row_parameters.inc"

    bool operator==(const RowParameters &) const = default;
};

// The columns of the table.
enum class Affects : uint8_t { answer, drawing, number, prompt };
enum class RowsWith : uint8_t { generated, embedded, any };
enum class StateLists : uint8_t { always, if_set };

constexpr bool has_effect(RowsWith rows, Task task) {
    return rows == RowsWith::any ||
           task == (rows == RowsWith::generated ? Task::generate : Task::embed);
}

// What a view of the parameters for C points to besides them.
struct ParameterViews {
#define LIST(name, kind, ...) kinds::kind::View name;
#include "parameters/row_parameters.inc"
};

// A row of the table.
struct ParameterFacts {
    const char *name;
    Affects affects;
    RowsWith rows;
    StateLists state;
    const char *key, *option, *help;
};
template <typename K, typename C> struct Parameter : ParameterFacts {
    using Kind = K;
    using Type = typename Kind::Type;
    static constexpr bool list = false;
    Type RowParameters::*field;
    C batchllm_params::*c_field;
    Type initial;
    bool (*valid)(const Type &value);
    const char *range;
};
template <typename K, typename C> struct ListParameter : ParameterFacts {
    using Kind = K;
    using Type = typename Kind::Type;
    static constexpr bool list = true;
    Type RowParameters::*field;
    typename Kind::View ParameterViews::*view;
    C batchllm_params::*items;
    int64_t batchllm_params::*count;
    const char *items_name, *count_name;
    Type initial = {};
};

// Of what each_parameter() passes.
template <typename P> using KindOf = typename std::remove_cvref_t<P>::Kind;
template <typename P> inline constexpr bool is_list = std::remove_cvref_t<P>::list;

// Calls f(parameter) for each row of the table, in its order, until f returns false. Returns whether
// it never did.
template <typename F> bool each_parameter(F f) {
    [[maybe_unused]] constexpr float infinite = HUGE_VALF;
    return true
#define PARAMETER(name, kind, initial, valid, range, affects, rows, state, key, option, help, ...) \
    &&f(Parameter<kinds::kind, decltype(batchllm_params::name)>{                                   \
        {#name, Affects::affects, RowsWith::rows, StateLists::state, key, option, help},           \
        &RowParameters::name,                                                                      \
        &batchllm_params::name,                                                                    \
        initial,                                                                                   \
        []([[maybe_unused]] const kinds::kind::Type &value) { return valid; },                     \
        range})
#define LIST(name, kind, items, count, affects, rows, state, key, option, help, ...)               \
    &&f(ListParameter<kinds::kind, decltype(batchllm_params::items)>{                              \
        {#name, Affects::affects, RowsWith::rows, StateLists::state, key, option, help},           \
        &RowParameters::name,                                                                      \
        &ParameterViews::name,                                                                     \
        &batchllm_params::items,                                                                   \
        &batchllm_params::count,                                                                   \
        #items,                                                                                    \
        #count})
#include "parameters/row_parameters.inc"
        ;
}

// Limit on the bytes of all texts of a list together.
inline constexpr int64_t stop_bytes_limit = 1 << 16;

// The C struct's defaults: batchllm_params_init of a whole struct, without a null check.
batchllm_params default_params();

// Reads the parameters that have an effect on rows with this task; the others keep their defaults.
// params: complete. Checks ranges and conflicts: an error names the field and its value
// (BATCHLLM_ERROR_ROW_INVALID_PARAMETER). Token ids must be below vocabulary. A bias of -infinity
// bans its token.
Result<RowParameters> read_parameters(const batchllm_params &params, int32_t vocabulary);

// For the library. views must live as long as what is returned.
batchllm_params view_parameters(const RowParameters &row, ParameterViews *views);

// Whether two greedy rows with equal prompts have the same answer, as far as these parameters say.
bool same_greedy_answer(const RowParameters &a, const RowParameters &b);

} // namespace batchllm
