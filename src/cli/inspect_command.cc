// batchllm inspect: a plan file -> its contents.
#include <algorithm>
#include <cstdio>

#include "base/display.h"
#include "cli/api.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/plan_text.h"

namespace batchllm::cli {
namespace {

struct GroupSummary {
    int64_t group; // number in scheduling order
    int64_t prefix_tokens;
    int64_t common_prefix_tokens;
    int64_t rows;
    int64_t first_row; // smallest row number
    int64_t saved() const { return prefix_tokens * (rows - 1); }
};

// The `count` groups that save most, in descending order.
Result<std::vector<GroupSummary>> largest_groups(const batchllm_plan *plan, int64_t count) {
    std::vector<GroupSummary> groups;
    const auto more = [](const GroupSummary &a, const GroupSummary &b) {
        return a.saved() != b.saved() ? a.saved() > b.saved() : a.group < b.group;
    };
    for (int64_t i = 0; i < batchllm_plan_group_count(plan); ++i) {
        batchllm_plan_group_info info = {};
        info.struct_size = sizeof info;
        RETURN_IF_ERROR(call_status(batchllm_plan_group(plan, i, &info)));
        if (info.prefix_tokens == 0 || info.row_count == 0) continue;
        groups.push_back({i, info.prefix_tokens, info.common_prefix_tokens, info.row_count,
                          *std::min_element(info.rows, info.rows + info.row_count)});
    }
    const auto kept = std::min(static_cast<size_t>(count), groups.size());
    std::partial_sort(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(kept),
                      groups.end(), more);
    groups.resize(kept);
    return groups;
}

Status inspect(const InspectOptions &options) {
    batchllm_plan *loaded = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_plan_load(options.path.c_str(), &loaded)));
    const PlanHandle plan(loaded);
    ASSIGN_OR_RETURN(const batchllm_plan_stats stats, plan_stats(loaded));
    ASSIGN_OR_RETURN(const std::vector<GroupSummary> groups,
                     largest_groups(loaded, options.groups));
    ASSIGN_OR_RETURN(const batchllm_plan_advice advice, plan_advice(loaded));
    std::string text;
    if (options.json) {
        JsonObject object(&text);
        append_plan_stats(&object, stats);
        if (advice.kind != BATCHLLM_ADVICE_NONE) object.field("advice", advice.text);
        object.key("largest_groups");
        text += '[';
        for (size_t i = 0; i < groups.size(); ++i) {
            if (i > 0) text += ',';
            JsonObject group(&text);
            group.field("group", groups[i].group)
                .field("prefix_tokens", groups[i].prefix_tokens)
                .field("common_prefix_tokens", groups[i].common_prefix_tokens)
                .field("rows", groups[i].rows)
                .field("first_row", groups[i].first_row)
                .field("saved_tokens", groups[i].saved());
            group.close();
        }
        text += ']';
        object.close();
        text += '\n';
    } else {
        text = describe(stats);
        if (advice.kind != BATCHLLM_ADVICE_NONE) {
            text += "advice          " + std::string(advice.text) + "\n";
        }
        if (!groups.empty()) text += "\nlargest savings      rows   prefix  first row\n";
        for (const GroupSummary &group : groups) {
            char line[128];
            std::snprintf(line, sizeof line, "%15s %9s %8s %10s\n",
                          format_count(group.saved()).c_str(), format_count(group.rows).c_str(),
                          format_count(group.prefix_tokens).c_str(),
                          format_count(group.first_row).c_str());
            text += line;
        }
    }
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
        return error(BATCHLLM_ERROR_IO, "stdout: cannot write");
    }
    return {};
}

} // namespace

int inspect_command(const InspectOptions &options) try {
    const Status status = inspect(options);
    return status.ok() ? exit_ok : report(status.message());
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
