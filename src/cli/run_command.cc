// batchllm run: input rows -> windows -> the engine -> output rows.
#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <span>
#include <type_traits>

#include "cli/job_mistakes.h"
#include "cli/json_text.h"
#include "cli/output_paths.h"
#include "cli/run_job.h"

namespace batchllm::cli {
namespace {

// The command-line options that change results, for the state file.
void add_option_parts(JobIdentity *identity, const RunOptions &options) {
    const SamplingOptions &sampling = options.in.sampling;
    const auto add = [&](const std::string &name, const auto &value) {
        std::string text;
        append_json(&text, value);
        identity->add("option " + name, text);
    };
    const auto add_list = [&](const std::string &name, const auto &values) {
        std::string text;
        using Item = typename std::decay_t<decltype(values)>::value_type;
        append_json_list(&text, std::span<const Item>(values));
        identity->add("option " + name, text);
    };
    add("backend", std::string_view(options.engine.backend));
    add("backend-options", std::string_view(options.engine.backend_options));
    add("compute-type", std::string_view(options.engine.compute_type));
    add("max-request-tokens", options.engine.max_request_tokens);
    add("seed", options.seed);
    each_parameter([&](const auto &parameter) {
        using Kind = typename std::decay_t<decltype(parameter)>::Kind;
        const auto &value = sampling.*parameter.field;
        const bool listed = parameter.state == StateLists::always || value != parameter.initial;
        if (*parameter.option == '\0' || !listed) return true;
        // The option's name; of one that switches a flag off, the flag's.
        std::string name = parameter.option + 2;
        if (name.starts_with("no-")) {
            name = parameter.name;
            std::replace(name.begin(), name.end(), '_', '-');
        }
        if constexpr (std::is_same_v<Kind, kinds::TaskName>) {
            add(name, static_cast<int32_t>(value));
        } else if constexpr (!parameter.is_list) {
            add(name, value);
        } else if constexpr (!std::is_same_v<Kind, kinds::Biases>) { // which have no option
            add_list(name, value);
        }
        return true;
    });
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
}

// Everything that changes results. Options that only affect speed or memory are left out: a job may
// be resumed with more threads or another pool size.
Status identify(const RunOptions &options, JobIdentity *identity) {
    identity->created = static_cast<int64_t>(std::time(nullptr));
    if (options.in.model.empty()) {
        identity->add("model config.json", "none");
    } else {
        RETURN_IF_ERROR(add_model_parts(identity, options.in.model));
    }
    RETURN_IF_ERROR(add_input_parts(identity, options.in.input));
    add_option_parts(identity, options);
    return {};
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
    JobIdentity identity;
    const bool resumable = input->regular() && options.in.input != "-" && options.output != "-";
    if (resumable) {
        const Status status = identify(options, &identity);
        if (!status.ok()) return report(status.message());
    } else {
        identity.created = static_cast<int64_t>(std::time(nullptr));
    }
    const ExistingOutput existing = options.force    ? ExistingOutput::overwrite
                                    : options.resume ? ExistingOutput::resume
                                                     : ExistingOutput::refuse;
    Result<OutputFile> output = OutputFile::open(options.output, options.in.input, existing,
                                                 resumable ? &identity : nullptr);
    if (!output.ok()) return report(output.status().message());

    const std::string model = options.in.model.empty() ? "sim" : directory_name(options.in.model);
    RunJob job(options, OutputOptions{model, identity.created, {}}, std::move(output).value(),
               &interrupted);
    const Status status = job.run(std::move(input).value());
    return job.finish(status);
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
