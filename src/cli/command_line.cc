#include "cli/command_line.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/option_files.h"
#include "cli/option_kinds.h"
#include "cli/result_keys.h"
#include "cli/sampling_options.h"
#include "cli/size_text.h"
#include "cli/terminate_guard.h"
#include "cli/unknown_options.h"

namespace batchllm::cli {
namespace {

const std::map<std::string, int32_t> enlarge_names = {{"none", BATCHLLM_ENLARGE_NONE},
                                                      {"optimal", BATCHLLM_ENLARGE_OPTIMAL},
                                                      {"paper", BATCHLLM_ENLARGE_PAPER}};
const std::map<std::string, int32_t> level_names = {{"auto", 0}, {"1", 1}, {"2", 2}};
const std::map<std::string, int32_t> fields_names = {{"given", BATCHLLM_FIELDS_GIVEN},
                                                     {"reorder", BATCHLLM_FIELDS_REORDER}};
const std::map<std::string, int32_t> log_names = {{"error", BATCHLLM_LOG_ERROR},
                                                  {"warning", BATCHLLM_LOG_WARNING},
                                                  {"info", BATCHLLM_LOG_INFO},
                                                  {"debug", BATCHLLM_LOG_DEBUG}};

void add_template(CLI::App *app, TemplateOptions *prompt, std::vector<NamedPath> *read) {
    CLI::App *table =
        app->add_option_group("Rows as columns", "prompts made from the values of each line");
    CLI::Option *text =
        table
            ->add_option_function<std::string>(
                "--template", [prompt](const std::string &given) { prompt->text = given; },
                "the prompt; {key} is the line's value of that key, {{ and }} are braces")
            ->type_name("TEXT");
    table
        ->add_option_function<std::string>(
            "--template-file",
            [prompt, read](const std::string &path) {
                prompt->text = option_text("--template-file", path, read);
            },
            "the same from a file, including its last line feed")
        ->type_name("FILE")
        ->excludes(text);
    add_named(table, "--fields", &prompt->fields, fields_names,
              "reorder: each row's fields in the order in which rows share most (given)");
    table->add_flag("--chat", prompt->chat,
                    "the prompt is the user's message, in the model's chat template");
    table->add_option("--system", prompt->system, "with --chat: the system message")
        ->type_name("TEXT");
    table
        ->add_option("--image-column", prompt->image_column,
                     "with --template: the key of a line's picture, or list of them; with --chat "
                     "they come before the prompt, else it has the model's placeholder for each")
        ->type_name("KEY");
    table
        ->add_option(
            "--adapter-column", prompt->adapter_column,
            "with --template: the key that names a line's adapter; null: that of --use-adapter")
        ->type_name("KEY");
}

void add_adapters(CLI::App *app, AdapterOptions *options) {
    CLI::App *group = app->add_option_group("Adapters", "LoRAs that rows name");
    group
        ->add_option_function<std::vector<std::string>>(
            "--adapter",
            [options](const std::vector<std::string> &given) {
                for (const std::string &text : given) {
                    const size_t equals = text.find('=');
                    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
                        throw CLI::ValidationError("--adapter", "\"" + text + "\" is not NAME=DIR");
                    }
                    const std::string name = text.substr(0, equals);
                    for (const auto &[other, path] : options->named) {
                        if (other == name) {
                            throw CLI::ValidationError("--adapter",
                                                       "\"" + name + "\" is given twice");
                        }
                    }
                    options->named.emplace_back(name, text.substr(equals + 1));
                }
            },
            "rows may name this adapter, a directory as PEFT writes it; may be given several times")
        ->type_name("NAME=DIR");
    group
        ->add_option("--adapters", options->directory,
                     "rows may name each directory in this one that holds an adapter")
        ->type_name("DIR");
    group->add_option("--use-adapter", options->used, "the adapter of rows that name none")
        ->type_name("NAME");
}

// An empty name is usually an unset shell variable.
CLI::Option *named_file(CLI::Option *option) {
    return option->type_name("FILE")->check([](const std::string &path) {
        return path.empty() ? std::string("no file is named") : std::string();
    });
}

void add_columns(CLI::App *app, std::vector<std::string> *columns) {
    app->add_option_function<std::string>(
           "--columns",
           [columns](const std::string &given) {
               for (size_t begin = 0; begin <= given.size();) {
                   const size_t end = std::min(given.find(',', begin), given.size());
                   const std::string name = given.substr(begin, end - begin);
                   begin = end + 1;
                   const auto fail = [&](const char *what) {
                       throw CLI::ValidationError("--columns", "\"" + name + "\" " + what);
                   };
                   if (name.empty()) fail("names no key");
                   if (std::find(result_key::all.begin(), result_key::all.end(), name) !=
                       result_key::all.end()) {
                       fail("is a key of the results");
                   }
                   if (std::find(columns->begin(), columns->end(), name) != columns->end()) {
                       fail("is named twice");
                   }
                   columns->push_back(name);
               }
           },
           "keys of the rows that their results have too")
        ->type_name("A,B");
}

void add_input(CLI::App *app, InputOptions *options) {
    named_file(
        app->add_option("--input,-i", options->input, "rows, one JSON object per line; - is stdin"))
        ->required();
    add_columns(app, &options->columns);
    app->add_flag("--ignore-unknown-keys", options->ignore_unknown_keys,
                  "ignore unknown keys of rows instead of reporting an error");
    add_size(app, "--max-line-bytes", &options->max_line_bytes, 1,
             "a longer input line is an error of its row (256MiB)");
    add_whole(app, "--threads", &options->threads, 0, "CPU threads (every core)");
    add_named(app, "--enlarge", &options->enlarge, enlarge_names,
              "how shared prefixes are chosen (optimal)");
    app->add_flag_callback(
           "--no-sharing", [options] { options->enlarge = BATCHLLM_ENLARGE_NONE; },
           "compute every prompt separately")
        ->excludes("--enlarge");
    add_named(app, "--levels", &options->levels, level_names,
              "1: each shared prefix stands alone; 2: prefixes share common prefixes of their own; "
              "auto: where that pays (auto)");
    app->add_option(
           "--images", options->images,
           "rows may name pictures in this folder and below it; may be given several times "
           "(the input's folder)")
        ->type_name("DIR");
    add_adapters(app, &options->adapters);
    add_template(app, &options->prompt, &options->files);
}

void add_report(CLI::App *app, std::string *path) {
    app->add_option("--report", *path, "an HTML page that shows what was shared and done")
        ->type_name("FILE");
}

CLI::App *add_run(CLI::App *app, RunOptions *options) {
    CLI::App *run = app->add_subcommand("run", "run rows through a model");
    add_input(run, &options->in);
    named_file(run->add_option("--output,-o", options->output,
                               "result lines, as rows finish; - is stdout"))
        ->required();
    run->add_option("--model,-m", options->in.model, "Hugging Face model directory")
        ->type_name("DIR");
    CLI::Option *resume =
        run->add_flag("--resume", options->resume, "continue an interrupted output");
    run->add_flag("--retry-failed", options->retry_failed,
                  "with --resume: run rows again whose lines have an error")
        ->needs(resume);
    run->add_flag("--force", options->force, "overwrite an existing output")->excludes(resume);
    add_engine(run, &options->engine);
    add_prediction(run, &options->prediction);
    add_unsigned(run, "--seed", &options->seed, "mixed into every row's random numbers (0)");
    add_size(run, "--window-tokens", &options->window_tokens, 1,
             "prompt tokens read, planned and kept in memory at a time (32M)");
    add_size(run, "--window-rows", &options->window_rows, 1, "rows at a time (256K)");
    run->add_option("--plan", options->plan, "plan file to take groups from")->type_name("FILE");
    run->add_option("--save-plan", options->save_plan, "write the plan that was used")
        ->type_name("FILE");
    run->add_option("--timeline", options->timeline, "CSV with a line for each step")
        ->type_name("FILE");
    run->add_option("--stats", options->stats, "statistics of the job as JSON")->type_name("FILE");
    add_report(run, &options->report);
    run->add_option("--progress", options->progress, "on stderr (auto)")
        ->check(CLI::IsMember({"auto", "bar", "lines", "json", "none"}).description(""))
        ->type_name("auto|bar|lines|json|none");
    add_named(run, "--log", &options->log_level, log_names,
              "the least important messages to show (warning)");
    add_sampling(run, &options->in.sampling);
    add_constraints(run, &options->in.sampling.constraint_text, &options->in.files);
    return run;
}

CLI::App *add_plan(CLI::App *app, PlanCommandOptions *options) {
    CLI::App *plan = app->add_subcommand("plan", "find what rows share, without running them");
    add_input(plan, &options->in);
    plan->add_option("--output,-o", options->output, "plan file")->required()->type_name("FILE");
    plan->add_option("--model,-m", options->in.model,
                     "model directory or tokenizer.json; needed for rows of text")
        ->type_name("DIR");
    plan->add_option("--previous", options->previous,
                     "plan of an earlier version of the rows: unchanged rows keep their groups")
        ->type_name("FILE");
    add_engine(plan, &options->engine);
    add_prediction(plan, &options->prediction);
    plan->add_flag("--self-contained", options->self_contained,
                   "store the rows' tokens in the plan");
    plan->add_option("--stats", options->stats, "statistics of the plan as JSON")
        ->type_name("FILE");
    add_report(plan, &options->report);
    add_planning(plan, &options->in.sampling);
    return plan;
}

CLI::App *add_inspect(CLI::App *app, InspectOptions *options) {
    CLI::App *inspect = app->add_subcommand("inspect", "show what a plan file holds");
    inspect->add_option("plan", options->path, "plan file")->required()->type_name("FILE");
    inspect->add_flag("--json", options->json, "as JSON");
    inspect->add_option("--groups", options->groups, "how many groups to list (10)")
        ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""))
        ->type_name("N");
    return inspect;
}

CLI::App *add_tokenize(CLI::App *app, TokenizeOptions *options) {
    CLI::App *tokenize = app->add_subcommand(
        "tokenize", "{\"text\": ..} lines on stdin to {\"tokens\": [..]} lines on stdout");
    tokenize->add_option("--model,-m", options->model, "model directory or tokenizer.json")
        ->required()
        ->type_name("DIR");
    tokenize->add_flag("--no-special", options->no_special,
                       "do not add the tokenizer's BOS and the like");
    tokenize->add_flag("--no-parse-special", options->no_parse_special,
                       "treat special tokens in the text as plain text");
    tokenize->add_flag("--decode", options->decode, "tokens to text, without special tokens");
    tokenize->add_flag("--keep-special", options->keep_special,
                       "with --decode: keep special tokens in the text");
    tokenize
        ->add_option(
            "--images", options->images,
            "lines may name pictures in this folder and below it; may be given several times")
        ->type_name("DIR");
    add_whole(tokenize, "--threads", &options->threads, 0, "CPU threads (every core)");
    add_size(tokenize, "--max-line-bytes", &options->max_line_bytes, 1,
             "a longer line is an error (256MiB)");
    return tokenize;
}

CLI::App *add_demo(CLI::App *app, DemoOptions *options) {
    CLI::App *demo =
        app->add_subcommand("demo", "run a small model, installed with the program, on 300 rows");
    demo->add_option("--backend", options->backend, "auto, cpu or cuda (auto)")->type_name("NAME");
    return demo;
}

// Shown at the end of --help.
void add_examples(CLI::App *app, CLI::App *run, CLI::App *plan, CLI::App *inspect,
                  CLI::App *tokenize) {
    const std::string job = "  batchllm run --model ./model --input rows.jsonl --output out.jsonl";
    const std::string plans =
        "  batchllm plan --model ./model --input rows.jsonl --output rows.plan";
    app->footer("Examples:\n" + job + " --max-tokens 64\n" + plans +
                " --device h200\n"
                "  batchllm run --help\n"
                "Parquet, CSV and Arrow files: python -m batchllm run --help");
    run->footer("Examples:\n" + job + " --report job.html\n" + job + " --resume\n" + job +
                " --template \"Review: {text} Answer:\"\n" + job +
                " --choices yes --choices no\n"
                "An input line: {\"id\": \"a\", \"prompt\": \"The capital of France is\"}");
    plan->footer("Examples:\n" + plans + "\n" + plans + " --device h200 --max-tokens 100\n" +
                 plans + " --previous old.plan");
    inspect->footer("Examples:\n  batchllm inspect rows.plan\n"
                    "  batchllm inspect rows.plan --json --groups 100");
    tokenize->footer(
        "Examples:\n  echo '{\"text\": \"a text\"}' | batchllm tokenize --model ./model\n"
        "  echo '{\"tokens\": [1, 2]}' | batchllm tokenize --model ./model --decode");
}

// "" for other failures. CLI11 says "--seed: At Most 1 required but received 2".
std::string given_twice(const CLI::ParseError &failure) {
    const std::string text = failure.what();
    const size_t name = text.find(": At Most 1 required");
    return name == std::string::npos ? "" : text.substr(0, name) + " is given more than once";
}

constexpr const char *commands = "there are run, plan, inspect, tokenize and demo";

// What is wrong, and where to read on. first: the first argument, or "-".
std::string failure_text(const CLI::ParseError &failure, const CLI::App &app,
                         const std::string &first) {
    const std::vector<CLI::App *> given = app.get_subcommands();
    if (given.empty()) {
        const bool option = first.size() > 1;
        return (option ? "unknown option " + first : std::string("no command is given")) + ": " +
               commands;
    }
    const std::string twice = given_twice(failure);
    return (twice.empty() ? failure.what() : twice) + "; " + where_options_are(*given.front());
}

std::string version_text() {
    const uint32_t version = batchllm_version();
    return "batchllm " + std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 0xFF) +
           "." + std::to_string(version & 0xFF);
}

} // namespace

int run_command_line(int argc, char **argv, const std::atomic<bool> &interrupted) {
    // CLI11 copies names and arguments in functions that it declares noexcept.
    std::optional<TerminateGuard> guard(std::in_place);
    CLI::App app("Runs a language model over a whole data set at once.", "batchllm");
    app.set_version_flag("--version", version_text());
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    RunOptions run_options;
    PlanCommandOptions plan_options;
    InspectOptions inspect_options;
    TokenizeOptions tokenize_options;
    DemoOptions demo_options;
    CLI::App *run = add_run(&app, &run_options);
    CLI::App *plan = add_plan(&app, &plan_options);
    CLI::App *inspect = add_inspect(&app, &inspect_options);
    CLI::App *tokenize = add_tokenize(&app, &tokenize_options);
    CLI::App *demo = add_demo(&app, &demo_options);
    add_examples(&app, run, plan, inspect, tokenize);
    const std::string first = argc > 1 ? argv[1] : "-";
    if (first[0] != '-' && first != "run" && first != "plan" && first != "inspect" &&
        first != "tokenize" && first != "demo") {
        return report(std::string("no command \"").append(first) + "\": " + commands);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &failure) {
        // A missing option is often a misspelt one.
        const bool failed = failure.get_exit_code() != 0;
        const std::string unknown =
            failed && given_twice(failure).empty() ? unknown_option(app) : std::string();
        if (!unknown.empty()) return report(unknown);
        if (failed) return report(failure_text(failure, app, first));
        app.exit(failure); // prints what --help and --version ask for
        return exit_ok;
    }
    for (const InputOptions *in : {&run_options.in, &plan_options.in}) {
        const TemplateOptions &prompt = in->prompt;
        if (!prompt.used() && (prompt.reorder() || prompt.chat || !prompt.system.empty() ||
                               !prompt.image_column.empty() || !prompt.adapter_column.empty())) {
            return report("--fields, --chat, --system, --image-column and --adapter-column need a "
                          "--template");
        }
        const AdapterOptions &adapters = in->adapters;
        if (prompt.used() && prompt.adapter_column.empty() && adapters.used.empty() &&
            !(adapters.named.empty() && adapters.directory.empty())) {
            return report("with a --template, --adapter-column says which key names a line's "
                          "adapter, or --use-adapter names one for all lines");
        }
    }
    // With a backend, the plan is made for that backend's device.
    if (plan->count("--backend") > 0 && plan_options.prediction.device.empty()) {
        plan_options.prediction.device = "here";
    }
    guard.reset();
    for (EngineChoice *choice : {&run_options.engine, &plan_options.engine}) {
        for (const auto &[key, value] :
             {std::pair("quantize=", &choice->quantize), std::pair("kv_type=", &choice->kv_type),
              std::pair("tensor_parallel=", &choice->tensor_parallel),
              std::pair("drafts=", &choice->drafts)}) {
            if (value->empty()) continue;
            std::string &extra = choice->backend_options;
            extra.append(extra.empty() ? "" : ",").append(key).append(*value);
        }
    }
    if (app.got_subcommand(run)) return run_command(run_options, interrupted);
    if (app.got_subcommand(plan)) return plan_command(plan_options, interrupted);
    if (app.got_subcommand(inspect)) return inspect_command(inspect_options);
    if (app.got_subcommand(tokenize)) return tokenize_command(tokenize_options, interrupted);
    if (app.got_subcommand(demo)) return demo_command(demo_options, interrupted);
    return exit_fatal;
}

} // namespace batchllm::cli
