#include "table/prompt_template.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/printable.h"

namespace batchllm {
namespace {

constexpr int32_t bad_template = BATCHLLM_ERROR_INVALID_ARGUMENT;

bool blank(std::string_view text) { return text.find_first_not_of(" \t") == std::string::npos; }

Status two_fields(const std::string &first, const std::string &second) {
    return error(bad_template,
                 "template: \"%s\" and \"%s\" are in one line: fields that may be moved have a "
                 "line each",
                 first.c_str(), second.c_str());
}

} // namespace

Result<PromptTemplate> PromptTemplate::parse(std::string_view text) {
    PromptTemplate read;
    std::unordered_map<std::string_view, int32_t> numbers;
    TemplatePart part;
    for (size_t at = 0; at < text.size();) {
        const size_t brace = std::min(text.find_first_of("{}", at), text.size());
        part.text.append(text.substr(at, brace - at));
        if (brace == text.size()) break;
        if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
            part.text += text[brace];
            at = brace + 2;
            continue;
        }
        if (text[brace] == '}') {
            return error(bad_template,
                         "template: a } without its { at byte %zu (}} writes a brace)", brace);
        }
        const size_t end = text.find_first_of("{}\n", brace + 1);
        if (end == std::string_view::npos || text[end] != '}') {
            return error(bad_template,
                         "template: a { without its } at byte %zu ({{ writes a brace)", brace);
        }
        const std::string_view name = text.substr(brace + 1, end - brace - 1);
        if (name.empty()) {
            return error(bad_template, "template: {} at byte %zu names no field ({{}} writes it)",
                         brace);
        }
        const auto [known, added] = numbers.emplace(name, static_cast<int32_t>(numbers.size()));
        if (added) read.fields.emplace_back(name);
        part.field = known->second;
        read.parts.push_back(std::exchange(part, {}));
        at = end + 1;
    }
    if (read.fields.empty()) {
        return error(bad_template,
                     "template: it has no field, such as {text}: every prompt would be equal");
    }
    read.parts.push_back(std::move(part));
    return read;
}

Result<MovableTemplate> MovableTemplate::of(const PromptTemplate &parsed) {
    MovableTemplate movable;
    std::vector<char> seen(parsed.fields.size(), 0);
    std::string before = parsed.parts.front().text;
    const size_t first_line = before.rfind('\n');
    if (first_line != std::string::npos) {
        movable.head = before.substr(0, first_line + 1);
        before.erase(0, first_line + 1);
    }
    for (size_t i = 0; i + 1 < parsed.parts.size(); ++i) {
        const int32_t field = parsed.parts[i].field;
        const std::string &name = parsed.fields[static_cast<size_t>(field)];
        if (std::exchange(seen[static_cast<size_t>(field)], 1) != 0) {
            return error(bad_template,
                         "template: \"%s\" is in two lines: fields that may be moved have one",
                         name.c_str());
        }
        FieldLine line{blank(before) ? name + ": " : before, {}, field};
        const std::string &behind = parsed.parts[i + 1].text;
        const bool last = i + 2 == parsed.parts.size();
        const size_t end = std::min(behind.find('\n'), behind.size());
        line.after = behind.substr(0, end);
        if (last) {
            movable.tail = behind.substr(end);
        } else if (end == behind.size()) {
            return two_fields(name, parsed.fields[static_cast<size_t>(parsed.parts[i + 1].field)]);
        } else if (behind.find('\n', end + 1) != std::string::npos) {
            return error(bad_template,
                         "template: a line without a field stands between \"%s\" and \"%s\": what "
                         "all rows have goes before or behind the fields that may be moved",
                         name.c_str(),
                         parsed.fields[static_cast<size_t>(parsed.parts[i + 1].field)].c_str());
        } else {
            before = behind.substr(end + 1);
        }
        movable.lines.push_back(std::move(line));
    }
    return movable;
}

PromptTemplate MovableTemplate::in_order(const PromptTemplate &parsed,
                                         std::span<const int32_t> order) const {
    PromptTemplate moved{parsed.fields, {}};
    std::string text = head;
    for (const int32_t field : order) {
        const auto line = std::find_if(lines.begin(), lines.end(),
                                       [&](const FieldLine &one) { return one.field == field; });
        if (!moved.parts.empty()) text += '\n';
        moved.parts.push_back({text + line->before, field});
        text = line->after;
    }
    moved.parts.push_back({text + tail, -1});
    return moved;
}

} // namespace batchllm
