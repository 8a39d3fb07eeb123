#include "cli/sampling_options.h"

#include <functional>
#include <map>

#include "cli/option_files.h"
#include "cli/option_kinds.h"
#include "cli/row_keys.h"

namespace batchllm::cli {
namespace {

// An option for each kind of parameter. All say what is wrong with a value that they reject.

// T: how the value is read from the command line.
template <typename T, typename P>
void add_value(CLI::App *app, const P &parameter, const char *type, typename P::Type *field) {
    app->add_option_function<T>(
           parameter.option,
           [parameter, field](const T &given) {
               if (!parameter.valid(given)) {
                   throw CLI::ValidationError(parameter.option,
                                              std::string("must be ") + parameter.range);
               }
               *field = given;
           },
           parameter.help)
        ->type_name(type);
}

template <typename P>
void add_option(kinds::Whole, CLI::App *app, const P &parameter, int32_t *field) {
    add_value<int32_t>(app, parameter, "N", field);
}

template <typename P>
void add_option(kinds::Number, CLI::App *app, const P &parameter, float *field) {
    add_value<float>(app, parameter, "NUMBER", field);
}

template <typename P> void add_option(kinds::Flag, CLI::App *app, const P &parameter, bool *field) {
    app->add_flag_callback(
        parameter.option, [on = !parameter.initial, field] { *field = on; }, parameter.help);
}

template <typename P>
void add_option(kinds::Choice, CLI::App *app, const P &parameter, int32_t *field) {
    const std::string on = parameter.option, off = "--no-" + on.substr(2);
    app->add_flag_callback(
        on, [field] { *field = 1; }, parameter.help);
    app->add_flag_callback(
           off, [field] { *field = -1; }, "the opposite of " + on)
        ->excludes(on);
}

template <typename P>
void add_option(kinds::Likeliest, CLI::App *app, const P &parameter, int32_t *field) {
    app->add_option_function<std::string>(
           parameter.option,
           [parameter, field](const std::string &text) {
               int32_t count = 0;
               if (!text.empty() && text != "{}" &&
                   (!CLI::detail::lexical_cast(text, count) || count < 0 ||
                    !parameter.valid(count))) {
                   throw CLI::ValidationError(parameter.option, "must be 0 to 20");
               }
               *field = count;
           },
           parameter.help)
        ->expected(0, 1)
        ->type_name("[N]");
}

template <typename Kind, typename P>
requires requires { names_of(Kind()); }
void add_option(Kind kind, CLI::App *app, const P &parameter, typename Kind::Type *field) {
    std::map<std::string, int32_t> values;
    for (const ParameterName &name : names_of(kind)) values.emplace(name.name, name.value);
    add_named(
        app, parameter.option, std::move(values),
        [field](int32_t value) { *field = static_cast<typename Kind::Type>(value); },
        parameter.help);
}

template <typename P>
void add_option(kinds::Tokens, CLI::App *app, const P &list, std::vector<int32_t> *field) {
    app->add_option(list.option, *field, list.help)
        ->type_name("ID")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

template <typename P>
void add_option(kinds::Texts, CLI::App *app, const P &list, std::vector<std::string> *field) {
    app->add_option_function<std::vector<std::string>>(
           list.option,
           [option = list.option, field](const std::vector<std::string> &given) {
               for (const std::string &text : given) {
                   if (text.empty()) throw CLI::ValidationError(option, "is empty");
               }
               *field = given;
           },
           list.help)
        ->type_name("TEXT")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// Only in JSON.
template <typename P, typename T> void add_option(kinds::Seed, CLI::App *, const P &, T *) {}
template <typename P, typename T> void add_option(kinds::Biases, CLI::App *, const P &, T *) {}

// The options of the parameters for which wanted(parameter).
template <typename Wanted>
void add_parameters(CLI::App *app, SamplingOptions *sampling, Wanted wanted) {
    each_parameter([&](const auto &parameter) {
        using Kind = KindOf<decltype(parameter)>;
        if (*parameter.option != '\0' && wanted(parameter)) {
            add_option(Kind(), app, parameter, &(sampling->*parameter.field));
        }
        return true;
    });
}

// An option whose value, or the file that it names, becomes the run's constraint.
void add_constraint(CLI::App *app, const char *name, const char *type, const char *text,
                    ConstraintText *constraint, std::vector<NamedPath> *read,
                    std::function<int32_t(const std::string &)> kind) {
    const bool file = std::string_view(type) == "FILE";
    app->add_option_function<std::string>(
           name,
           [=](const std::string &value) {
               constraint->kind = kind(value);
               constraint->text = file ? option_text(name, value, read) : value;
           },
           text)
        ->type_name(type);
}

} // namespace

void add_sampling(CLI::App *app, SamplingOptions *sampling) {
    CLI::App *defaults =
        app->add_option_group("Defaults for rows", "a row's own keys take precedence");
    add_parameters(defaults, sampling, [](const ParameterFacts &) { return true; });
}

void add_planning(CLI::App *app, SamplingOptions *sampling) {
    add_parameters(app, sampling, [](const ParameterFacts &facts) {
        return facts.affects == Affects::prompt || facts.name == std::string_view("max_tokens");
    });
}

void add_constraints(CLI::App *app, ConstraintText *constraint, std::vector<NamedPath> *read) {
    CLI::App *kinds = app->add_option_group("What the output of rows must look like",
                                            "a row's own keys take precedence");
    const auto always = [](int32_t kind) { return [kind](const std::string &) { return kind; }; };
    CLI::App *one = kinds->add_option_group("One of");
    add_constraint(one, "--json-schema", "FILE", "JSON of this schema", constraint, read,
                   always(BATCHLLM_CONSTRAINT_JSON_SCHEMA));
    add_constraint(one, "--regex", "EXPRESSION", "text that matches it as a whole", constraint,
                   read, always(BATCHLLM_CONSTRAINT_REGEX));
    add_constraint(one, "--grammar", "FILE", "a text of this grammar: Lark in a .lark, else GBNF",
                   constraint, read, [](const std::string &path) {
                       return path.ends_with(".lark") ? BATCHLLM_CONSTRAINT_LARK
                                                      : BATCHLLM_CONSTRAINT_GBNF;
                   });
    one->add_option_function<std::vector<std::string>>(
           "--choices",
           [constraint](const std::vector<std::string> &choices) {
               constraint->kind = BATCHLLM_CONSTRAINT_CHOICES;
               constraint->choices = choices;
           },
           "one of these; may be given several times")
        ->type_name("TEXT")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    one->require_option(0, 1);
    kinds
        ->add_option("--start-after", constraint->start_after,
                     "only after this text, such as </think>")
        ->type_name("TEXT");
    kinds->add_flag("--flexible-whitespace", constraint->flexible_whitespace,
                    "JSON may have spaces and line ends");
    kinds->add_flag("--any-member-order", constraint->any_member_order,
                    "members of JSON objects in any order");
    kinds->add_flag("--any-numbers", constraint->any_numbers,
                    "JSON numbers may be 12.0 for 12, and have exponents");
    kinds->add_flag("--loose-schema", constraint->loose,
                    "ignore what a schema requires but cannot be enforced, with a warning");
}

} // namespace batchllm::cli
