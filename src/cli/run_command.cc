// batchllm run: input rows -> windows -> the engine -> output rows.
#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <type_traits>

#include <xxhash.h>

#include "base/file.h"
#include "base/json_view.h"
#include "cli/job_mistakes.h"
#include "cli/json_text.h"
#include "cli/output_paths.h"
#include "cli/row.h"
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

// Whether rows may name an adapter by their model, as far as the first line shows: in the batch format.
Result<bool> names_by_model(const InputOptions &in) {
    if (in.prompt.used()) return false;
    ASSIGN_OR_RETURN(LineReader reader, LineReader::open(in.input, in.max_line_bytes, nullptr));
    Line line;
    do {
        ASSIGN_OR_RETURN(const bool more, reader.next(&line));
        if (!more) return false;
    } while (line.blank());
    JsonParser parser;
    JsonView root;
    const JsonFault fault = parser.parse(line.text, &root);
    return fault.kind == JsonFault::Kind::none && root.is_object() && is_batch_line(root);
}

// resumable: input and output are files.
Result<OptionParts> option_parts(const RunOptions &options, bool resumable) {
    OptionParts parts;
    const SamplingOptions &sampling = options.in.sampling;
    const auto add = [&](const std::string &name, const auto &value) {
        std::string text;
        append_json(&text, value);
        parts.names.push_back("option " + name);
        parts.values.push_back(std::move(text));
    };
    const auto add_list = [&](const std::string &name, const auto &values) {
        std::string text;
        using Item = typename std::decay_t<decltype(values)>::value_type;
        append_json_list(&text, std::span<const Item>(values));
        parts.names.push_back("option " + name);
        parts.values.push_back(std::move(text));
    };
    add("backend", std::string_view(options.engine.backend));
    add("backend-options", std::string_view(options.engine.backend_options));
    add("compute-type", std::string_view(options.engine.compute_type));
    add("max-request-tokens", options.engine.max_request_tokens);
    add("seed", options.seed);
    each_parameter([&](const auto &parameter) {
        using Kind = KindOf<decltype(parameter)>;
        const auto &value = sampling.*parameter.field;
        const bool listed = parameter.state == StateLists::always || value != parameter.initial;
        if (*parameter.option == '\0' || !listed) return true;
        // The option's name; of a flag, which may be switched off by its option, the flag's.
        std::string name = parameter.option + 2;
        if constexpr (std::is_same_v<Kind, kinds::Flag>) {
            name = parameter.name;
            std::replace(name.begin(), name.end(), '_', '-');
        }
        if constexpr (std::is_same_v<Kind, kinds::TaskName>) {
            add(name, static_cast<int32_t>(value));
        } else if constexpr (!is_list<decltype(parameter)>) {
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
        // A job without pictures has the same identity as before there were any.
        if (!options.in.prompt.image_column.empty()) {
            add("image-column", std::string_view(options.in.prompt.image_column));
        }
        if (!options.in.prompt.adapter_column.empty()) {
            add("adapter-column", std::string_view(options.in.prompt.adapter_column));
        }
    }
    ASSIGN_OR_RETURN(const auto adapters, identify_adapters(options.in.adapters));
    std::string names;
    for (const auto &[name, value] : adapters) {
        parts.names.push_back(name);
        parts.values.push_back(value);
        names.append(name).push_back('\0');
    }
    // A model that is no adapter's name has no effect: such rows would change if one of that name came before the job is resumed.
    if (resumable && !adapters.empty()) {
        ASSIGN_OR_RETURN(const bool by_model, names_by_model(options.in));
        if (by_model) {
            parts.names.push_back("names of adapters");
            parts.values.push_back(std::to_string(adapters.size()) + ", hash " + hash_text(names));
        }
    }
    if (!options.in.adapters.used.empty()) {
        add("use-adapter", std::string_view(options.in.adapters.used));
    }
    if (!options.in.images.empty()) {
        std::string folders;
        for (const std::string &folder : options.in.images) folders += folder + '\n';
        add("images", std::string_view(folders));
    }
    if (!options.in.columns.empty()) add_list("columns", options.in.columns);
    add("ignore-unknown-keys", options.in.ignore_unknown_keys);
    add("max-line-bytes", options.in.max_line_bytes);
    return parts;
}

std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> found;
    for (const std::string &text : texts) found.push_back(text.c_str());
    return found;
}

Result<OutputFile> open_output(const RunOptions &options, bool resumable) {
    if (options.resume && (options.output == "-" || descriptor_named(options.output) >= 0)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s: an open descriptor: --resume needs an output file",
                     options.output.c_str());
    }
    if (options.resume && !resumable) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "--resume needs an input file");
    }
    ASSIGN_OR_RETURN(const OptionParts parts, option_parts(options, resumable));
    const std::vector<const char *> names = pointers(parts.names);
    const std::vector<const char *> values = pointers(parts.values);
    batchllm_journal_options journal;
    batchllm_journal_options_init(&journal, sizeof journal);
    journal.output_path = options.output.c_str();
    journal.existing = options.force          ? BATCHLLM_JOURNAL_OVERWRITE
                       : options.retry_failed ? BATCHLLM_JOURNAL_RETRY
                       : options.resume       ? BATCHLLM_JOURNAL_RESUME
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
    const bool to_file = options.output != "-";
    const Status paths = check_output_paths(
        {options.in.input, options.in.model, options.in.adapters.directories(), read,
         to_file ? options.output + ".state" : "", to_file ? options.output + ".pictures" : ""},
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
