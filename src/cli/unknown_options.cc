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

// The options that begin with it, if they are few; otherwise the one that is spelled most like it.
std::vector<std::string> meant_by(const std::string &given, const std::vector<std::string> &names) {
    constexpr size_t few = 3;
    constexpr size_t telling = 4; // "--xx"
    std::vector<std::string> longer;
    for (const std::string &name : names) {
        if (name.starts_with(given)) longer.push_back(name);
    }
    if (given.size() >= telling && !longer.empty() && longer.size() <= few) return longer;
    size_t best_distance = 3;
    std::vector<std::string> best;
    for (const std::string &name : names) {
        const size_t distance = edit_distance(given, name);
        if (distance >= best_distance || distance * 3 > name.size()) continue;
        best_distance = distance;
        best = {name};
    }
    return best;
}

std::string describe(const std::string &argument, const CLI::App &command) {
    const std::string given = argument.substr(0, argument.find('='));
    std::string names;
    for (const std::string &name : meant_by(given, option_names(command))) {
        names.append(names.empty() ? "" : " or ").append(name);
    }
    std::string message = "unknown option " + given;
    if (!names.empty()) message += " (did you mean " + names + "?)";
    return message + "; " + where_options_are(command);
}

} // namespace

std::string where_options_are(const CLI::App &command) {
    return "batchllm " + command.get_name() + " --help lists the options";
}

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
