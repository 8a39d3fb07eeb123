#include "cli/sampling_options.h"

#include <functional>
#include <map>
#include <span>

#include "cli/option_files.h"
#include "cli/option_kinds.h"
#include "cli/row_keys.h"

namespace batchllm::cli {
namespace {

std::map<std::string, int32_t> by_name(std::span<const ParameterName> names) {
    std::map<std::string, int32_t> out;
    for (const ParameterName &name : names) out.emplace(name.name, name.value);
    return out;
}
const std::map<std::string, int32_t> task_options = by_name(task_names);
const std::map<std::string, int32_t> pooling_options = by_name(pooling_names);

void add_task(CLI::App *app, SamplingOptions *sampling) {
    add_named(app, "--task", &sampling->task, task_options,
              "the kind of result of each row (generate)");
    add_named(app, "--pooling", &sampling->pooling, pooling_options,
              "for embedded rows (as the model's files say)");
    app->add_flag_callback(
        "--normalize", [sampling] { sampling->normalize = 1; },
        "vectors of length 1 (as the model's files say)");
    app->add_flag_callback(
           "--no-normalize", [sampling] { sampling->normalize = -1; }, "vectors as they are")
        ->excludes("--normalize");
    add_whole(app, "--dimensions", &sampling->dimensions, 1,
              "keep this many dimensions of each vector");
}

// An option that may be given several times and must not be empty.
void add_texts(CLI::App *app, const std::string &name, std::vector<std::string> *texts,
               const std::string &help) {
    app->add_option_function<std::vector<std::string>>(
           name,
           [name, texts](const std::vector<std::string> &given) {
               for (const std::string &text : given) {
                   if (text.empty()) throw CLI::ValidationError(name, "is empty");
               }
               *texts = given;
           },
           help)
        ->type_name("TEXT")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_logprobs(CLI::App *app, const std::string &name, int32_t *field, const std::string &help) {
    app->add_option_function<std::string>(
           name,
           [name, field](const std::string &text) {
               int32_t count = 0;
               if (!text.empty() && text != "{}" &&
                   (!CLI::detail::lexical_cast(text, count) || count < 0 || count > 20)) {
                   throw CLI::ValidationError(name, "must be 0 to 20");
               }
               *field = count;
           },
           help)
        ->expected(0, 1)
        ->type_name("[N]");
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

void add_tokenizing(CLI::App *app, SamplingOptions *sampling) {
    app->add_flag_callback(
        "--no-special", [sampling] { sampling->add_special = false; },
        "do not add the tokenizer's BOS and the like");
    app->add_flag_callback(
        "--no-parse-special", [sampling] { sampling->parse_special = false; },
        "special tokens written in prompts are plain text: for untrusted text");
}

void add_sampling(CLI::App *app, SamplingOptions *sampling) {
    CLI::App *defaults =
        app->add_option_group("Defaults for rows", "a row's own keys take precedence");
    add_whole(defaults, "--max-tokens", &sampling->max_tokens, 1,
              "maximum tokens to generate (128)");
    add_number(defaults, "--temperature", &sampling->temperature, 0, 3.4e38f, false,
               "0 is greedy (0)");
    add_number(defaults, "--top-p", &sampling->top_p, 0, 1, true, "nucleus sampling (1: off)");
    add_number(defaults, "--min-p", &sampling->min_p, 0, 0.99999994f, false, "(0: off)");
    add_whole(defaults, "--top-k", &sampling->top_k, -1, "(0 or -1: off)");
    add_number(defaults, "--repetition-penalty", &sampling->repetition_penalty, 0, 3.4e38f, true,
               "(1: off)");
    add_number(defaults, "--presence-penalty", &sampling->presence_penalty, -2, 2, false, "(0)");
    add_number(defaults, "--frequency-penalty", &sampling->frequency_penalty, -2, 2, false, "(0)");
    add_whole(defaults, "--n", &sampling->samples, 1, "results per row (1)");
    add_texts(defaults, "--stop", &sampling->stop_strings,
              "text that ends a row; may be given several times");
    defaults->add_option("--stop-token", sampling->stop_tokens, "token id that ends a row")
        ->type_name("ID")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    defaults->add_flag("--ignore-eos", sampling->ignore_eos, "the model's EOS does not end a row");
    add_logprobs(defaults, "--logprobs", &sampling->logprobs,
                 "log-probabilities of the chosen tokens, and of the N likeliest");
    add_logprobs(defaults, "--prompt-logprobs", &sampling->prompt_logprobs,
                 "the same for the prompt's tokens; such rows share no prefix");
    add_whole(defaults, "--min-tokens", &sampling->min_tokens, 0,
              "neither EOS nor a stop ends a row before this many (0)");
    add_texts(defaults, "--bad-word", &sampling->bad_words,
              "text that is not generated; may be given several times");
    add_tokenizing(defaults, sampling);
    add_task(defaults, sampling);
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
