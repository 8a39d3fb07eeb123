#include "cli/option_kinds.h"

#include <cstdio>
#include <optional>

#include "cli/size_text.h"

namespace batchllm::cli {
namespace {

std::string names_of(const std::map<std::string, int32_t> &names) {
    std::string text;
    for (const auto &entry : names) text += (text.empty() ? "" : "|") + entry.first;
    return text;
}

std::string range_text(float least, float most, bool least_excluded) {
    char text[80];
    const char *relation = least_excluded ? "more than" : "at least";
    if (most > 1e30f) {
        std::snprintf(text, sizeof text, "must be %s %g", relation, static_cast<double>(least));
    } else if (most < 1 && most > 0.999f) {
        std::snprintf(text, sizeof text, "must be %s %g and less than 1", relation,
                      static_cast<double>(least));
    } else {
        std::snprintf(text, sizeof text, "must be %s %g and at most %g", relation,
                      static_cast<double>(least), static_cast<double>(most));
    }
    return text;
}

} // namespace

void add_named(CLI::App *app, const std::string &name, int32_t *value,
               const std::map<std::string, int32_t> &names, const std::string &help) {
    app->add_option_function<std::string>(
           name,
           [value, &names, name](const std::string &text) {
               const auto entry = names.find(text);
               if (entry == names.end()) {
                   throw CLI::ValidationError(name, "must be one of " + names_of(names));
               }
               *value = entry->second;
           },
           help)
        ->type_name(names_of(names));
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

void add_number(CLI::App *app, const std::string &name, float *value, float least, float most,
                bool least_excluded, const std::string &help) {
    app->add_option_function<float>(
           name,
           [=](const float &number) {
               if (!(number >= least && number <= most) || (least_excluded && number == least)) {
                   throw CLI::ValidationError(name, range_text(least, most, least_excluded));
               }
               *value = number;
           },
           help)
        ->type_name("NUMBER");
}

void add_whole(CLI::App *app, const std::string &name, int32_t *value, int32_t least,
               const std::string &help) {
    app->add_option(name, *value, help)
        ->check(CLI::Range(least, INT32_MAX).description(""))
        ->type_name("N");
}

} // namespace batchllm::cli
