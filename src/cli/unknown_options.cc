#include "cli/unknown_options.h"

#include <vector>

#include "cli/row_keys.h"

namespace batchllm::cli {
namespace {

// Includes options in option groups, which are unnamed subcommands in CLI11.
std::vector<std::string> option_names(const CLI::App &command) {
    std::vector<std::string> names;
    for (const CLI::Option *option : command.get_options()) {
        for (const std::string &name : option->get_lnames()) names.push_back("--" + name);
    }
    const auto is_group = [](const CLI::App *sub) { return sub->get_name().empty(); };
    for (const CLI::App *group : command.get_subcommands(is_group)) {
        for (std::string &name : option_names(*group)) names.push_back(std::move(name));
    }
    return names;
}

std::string describe(const std::string &argument, const CLI::App &command) {
    const std::string given = argument.substr(0, argument.find('='));
    std::string message = "unknown option " + given;
    size_t best_distance = 3;
    std::string best;
    for (const std::string &name : option_names(command)) {
        const size_t distance = edit_distance(given, name);
        if (distance >= best_distance || distance * 3 > name.size()) continue;
        best_distance = distance;
        best = name;
    }
    if (!best.empty()) message += " (did you mean " + best + "?)";
    return message + "; batchllm " + command.get_name() + " --help lists the options";
}

} // namespace

std::string unknown_option(const CLI::App &app) {
    for (const CLI::App *command : app.get_subcommands()) {
        for (const std::string &argument : command->remaining(true)) {
            const bool option = argument.size() > 1 && argument[0] == '-' &&
                                (argument[1] < '0' || argument[1] > '9');
            if (option) return describe(argument, *command);
        }
    }
    return {};
}

} // namespace batchllm::cli
