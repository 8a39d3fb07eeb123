// batchllm run: input rows -> windows -> the engine -> output rows.
#include "cli/commands.h"

#include <cstdio>
#include <ctime>

#include "cli/output_paths.h"
#include "cli/run_job.h"

namespace batchllm::cli {
namespace {

// Everything that changes what the rows' results are. What only changes speed or memory does not
// count: a job may be resumed with more threads or on another pool.
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
    // The input is opened first: a misspelt name must not leave an empty output behind.
    Result<LineReader> input =
        LineReader::open(options.in.input, options.in.max_line_bytes, &interrupted);
    if (!input.ok()) return report(input.status().message());
    const NamedPath outputs[] = {{"--output", options.output},
                                 {"--stats", options.stats},
                                 {"--report", options.report},
                                 {"--save-plan", options.save_plan},
                                 {"--timeline", options.timeline}};
    const Status paths = check_output_paths(options.in.input, outputs);
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
