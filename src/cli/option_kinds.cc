#include "cli/option_kinds.h"

#include <charconv>
#include <optional>
#include <utility>

#include "cli/size_text.h"

namespace batchllm::cli {
namespace {

std::string all_names(const std::map<std::string, int32_t> &names) {
    std::string text;
    for (const auto &entry : names) text += (text.empty() ? "" : "|") + entry.first;
    return text;
}

} // namespace

void add_named(CLI::App *app, const std::string &name, std::map<std::string, int32_t> names,
               std::function<void(int32_t)> set, const std::string &help) {
    const std::string all = all_names(names);
    app->add_option_function<std::string>(
           name,
           [names = std::move(names), set = std::move(set), all, name](const std::string &text) {
               const auto entry = names.find(text);
               if (entry == names.end()) {
                   throw CLI::ValidationError(name, "must be one of " + all);
               }
               set(entry->second);
           },
           help)
        ->type_name(all);
}

void add_size(CLI::App *app, const std::string &name, int64_t *value, int64_t least,
              const std::string &help) {
    app->add_option_function<std::string>(
           name,
           [value, name, least](const std::string &text) {
               const std::optional<int64_t> size = parse_size(text);
               if (!size) {
                   throw CLI::ValidationError(name, "\"" + text + "\" is not a size such as 2GiB");
               }
               if (*size < least) {
                   throw CLI::ValidationError(name, "must be at least " + std::to_string(least));
               }
               *value = *size;
           },
           help)
        ->type_name("SIZE");
}

void add_whole(CLI::App *app, const std::string &name, int32_t *value, int32_t least,
               const std::string &help) {
    app->add_option(name, *value, help)
        ->check(CLI::Range(least, INT32_MAX).description(""))
        ->type_name("N");
}

void add_unsigned(CLI::App *app, const std::string &name, uint64_t *value,
                  const std::string &help) {
    app->add_option_function<std::string>(
           name,
           [value, name](const std::string &text) { // CLI11 takes the largest for larger ones
               const char *end = text.data() + text.size();
               const auto [rest, failure] = std::from_chars(text.data(), end, *value);
               if (failure == std::errc() && rest == end) return;
               throw CLI::ValidationError(name, "\"" + text +
                                                    "\" is not a whole number from 0 to "
                                                    "18446744073709551615");
           },
           help)
        ->type_name("UINT");
}

} // namespace batchllm::cli
