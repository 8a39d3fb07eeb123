// batchllm run: input rows -> windows -> the engine -> output rows.
#include "cli/commands.h"

#include <cstdio>
#include <span>

#include <xxhash.h>

#include "cli/job_mistakes.h"
#include "cli/json_text.h"
#include "cli/output_paths.h"
#include "cli/run_job.h"

namespace batchllm::cli {
namespace {

// Names and values of the command-line options that change results, for the state file. Options
// that only affect speed or memory are left out: a job may be resumed with more threads or another
// pool size.
struct OptionParts {
    std::vector<std::string> names;
    std::vector<std::string> values;
};

// A short stand-in for a text that is too long to show; differs for different texts.
std::string hash_text(std::string_view text) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
    return digits;
}

OptionParts option_parts(const RunOptions &options) {
    OptionParts parts;
    const SamplingOptions &sampling = options.in.sampling;
    const auto add = [&](const char *name, const auto &value) {
        std::string text;
        append_json(&text, value);
        parts.names.push_back(std::string("option ") + name);
        parts.values.push_back(std::move(text));
    };
    const auto add_list = [&](const char *name, const auto &values) {
        std::string text;
        using Item = typename std::decay_t<decltype(values)>::value_type;
        append_json_list(&text, std::span<const Item>(values));
        parts.names.push_back(std::string("option ") + name);
        parts.values.push_back(std::move(text));
    };
    add("backend", std::string_view(options.engine.backend));
    add("backend-options", std::string_view(options.engine.backend_options));
    add("compute-type", std::string_view(options.engine.compute_type));
    add("max-request-tokens", options.engine.max_request_tokens);
    add("seed", options.seed);
    add("max-tokens", sampling.max_tokens);
    add("temperature", sampling.temperature);
    add("top-p", sampling.top_p);
    add("min-p", sampling.min_p);
    add("top-k", sampling.top_k);
    add("repetition-penalty", sampling.repetition_penalty);
    add("presence-penalty", sampling.presence_penalty);
    add("frequency-penalty", sampling.frequency_penalty);
    add("n", sampling.samples);
    add("ignore-eos", sampling.ignore_eos);
    add("logprobs", sampling.logprobs);
    add("parse-special", sampling.parse_special);
    add("add-special", sampling.add_special);
    // Left out if it is the default, so that a job from before tasks existed can be resumed.
    if (sampling.task != BATCHLLM_TASK_GENERATE) add("task", sampling.task);
    if (sampling.pooling != BATCHLLM_POOLING_MODEL) add("pooling", sampling.pooling);
    if (sampling.normalize != 0) add("normalize", sampling.normalize);
    if (sampling.dimensions != 0) add("dimensions", sampling.dimensions);
    add_list("stop", sampling.stop_strings);
    add_list("stop-token", sampling.stop_tokens);
    if (sampling.min_tokens != 0) add("min-tokens", sampling.min_tokens);
    if (sampling.prompt_logprobs >= 0) add("prompt-logprobs", sampling.prompt_logprobs);
    if (!sampling.bad_words.empty()) add_list("bad-word", sampling.bad_words);
    if (options.engine.reproducible) add("reproducible", options.engine.reproducible);
    // A job without a constraint has the same identity as before constraints existed. How JSON is
    // written also matters for rows with their own schemas.
    if (sampling.constraint_text != ConstraintText()) {
        constexpr size_t longest = 200; // changes are shown to the user
        const std::string key = sampling.constraint_text.key();
        add("constraint",
            std::string_view(key.size() <= longest ? key
                                                   : std::to_string(sampling.constraint_text.kind) +
                                                         ":" + hash_text(key)));
    }
    if (options.in.prompt.used()) {
        add("template", std::string_view(*options.in.prompt.text));
        add("fields", options.in.prompt.fields);
        add("chat", options.in.prompt.chat);
        add("system", std::string_view(options.in.prompt.system));
    }
    add("ignore-unknown-keys", options.in.ignore_unknown_keys);
    add("max-line-bytes", options.in.max_line_bytes);
    return parts;
}

std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> found;
    for (const std::string &text : texts) found.push_back(text.c_str());
    return found;
}

// resumable: input and output are files.
Result<OutputFile> open_output(const RunOptions &options, bool resumable) {
    if (options.resume && !resumable && options.output != "-") {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "--resume needs an input file");
    }
    const OptionParts parts = option_parts(options);
    const std::vector<const char *> names = pointers(parts.names);
    const std::vector<const char *> values = pointers(parts.values);
    batchllm_journal_options journal;
    batchllm_journal_options_init(&journal, sizeof journal);
    journal.output_path = options.output.c_str();
    journal.existing = options.force    ? BATCHLLM_JOURNAL_OVERWRITE
                       : options.resume ? BATCHLLM_JOURNAL_RESUME
                                        : BATCHLLM_JOURNAL_REFUSE;
    journal.keep_state = resumable ? 1 : 0;
    journal.input_path = options.in.input == "-" ? "/dev/stdin" : options.in.input.c_str();
    if (!options.in.model.empty()) journal.model_dir = options.in.model.c_str();
    journal.part_names = names.data();
    journal.part_values = values.data();
    journal.part_count = static_cast<int64_t>(names.size());
    return OutputFile::open(journal);
}

std::string directory_name(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

} // namespace

int run_command(const RunOptions &options, const std::atomic<bool> &interrupted) try {
    const Status model_name = check_model_name(options.in.model);
    if (!model_name.ok()) return report(model_name.message());
    if (options.in.model.empty() && options.engine.backend != "sim") {
        return report("--model is missing: only --backend sim runs without a model");
    }
    // The input is opened before the output, so that a misspelt name does not leave an empty output
    // behind.
    Result<LineReader> input =
        LineReader::open(options.in.input, options.in.max_line_bytes, &interrupted);
    if (!input.ok()) return report(input.status().message());
    const NamedPath outputs[] = {{"--output", options.output},
                                 {"--stats", options.stats},
                                 {"--report", options.report},
                                 {"--save-plan", options.save_plan},
                                 {"--timeline", options.timeline}};
    std::vector<NamedPath> read = options.in.files;
    read.push_back({"--plan", options.save_plan == options.plan ? "" : options.plan});
    const Status paths =
        check_output_paths({options.in.input, options.in.model, read,
                            options.output == "-" ? "" : options.output + ".state"},
                           outputs);
    if (!paths.ok()) return report(paths.message());
    const bool resumable = input->regular() && options.in.input != "-" && options.output != "-";
    Result<OutputFile> output = open_output(options, resumable);
    if (!output.ok()) return report(output.status().message());

    const std::string model = options.in.model.empty() ? "sim" : directory_name(options.in.model);
    const OutputOptions output_options{model, output->info().created, {}};
    RunJob job(options, output_options, std::move(output).value(), &interrupted);
    const Status status = job.run(std::move(input).value());
    return job.finish(status);
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
