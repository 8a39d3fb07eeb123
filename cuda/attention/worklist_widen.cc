#include <algorithm>
#include <tuple>

#include "attention/worklist_builder.h"

namespace batchllm::cuda {

void WorklistBuilder::widen(Worklist *out) {
    std::vector<bool> wide(drafts_.size());
    for (size_t i = 0; i < drafts_.size(); ++i) wide[i] = is_wide(drafts_[i]);
    std::vector<Wanted> wanted;
    for (bool fewer = true; fewer;) {
        fewer = false;
        wanted = wanted_by(wide);
        place_widened(&wanted, out);
        for (size_t i = 0; i < drafts_.size(); ++i) {
            const auto there = [&](const Draft::Read &read) {
                return wanted[static_cast<size_t>(read.node)].place >= 0;
            };
            const auto &reads = drafts_[i].stretches;
            if (!wide[i] || std::all_of(reads.begin(), reads.end(), there)) continue;
            wide[i] = false;
            fewer = true;
        }
    }
    std::vector<Draft> drafts = std::move(drafts_);
    drafts_.clear();
    for (size_t i = 0; i < drafts.size(); ++i) {
        if (is_wide(drafts[i]) && !wide[i]) {
            halve(drafts[i]);
            continue;
        }
        for (Draft::Read &read : drafts[i].stretches) {
            const Wanted &of_node = wanted[static_cast<size_t>(read.node)];
            if (!wide[i]) break;
            read.stretch.page_begin = of_node.place + first_page_of(read) - of_node.first;
        }
        drafts_.push_back(std::move(drafts[i]));
    }
}

std::vector<WorklistBuilder::Wanted>
WorklistBuilder::wanted_by(const std::vector<bool> &wide) const {
    std::vector<Wanted> wanted(nodes_.size());
    for (size_t i = 0; i < drafts_.size(); ++i) {
        if (!wide[i]) continue;
        const auto saved_by = [&](const Draft::Read &read) {
            const int32_t keys = read.stretch.keys;
            return 2 * time_of(true, 1, keys) - time_of(true, drafts_[i].tokens.size(), keys);
        };
        double all = 0;
        for (const Draft::Read &read : drafts_[i].stretches) all += saved_by(read);
        for (const Draft::Read &read : drafts_[i].stretches) {
            Wanted &of_node = wanted[static_cast<size_t>(read.node)];
            const int32_t keys = read.stretch.keys, page = first_page_of(read);
            of_node.first = std::min(of_node.first, page);
            of_node.end = std::max(of_node.end, page + ceil_div(keys, kPageKeys));
            of_node.saved += saved_by(read);
            of_node.with_others += all;
        }
    }
    return wanted;
}

void WorklistBuilder::place_widened(std::vector<Wanted> *wanted, Worklist *out) const {
    out->widened.clear();
    double gain = 0; // in total, in SM time per KV head
    for (size_t n = 0; n < nodes_.size(); ++n) {
        Wanted &of_node = (*wanted)[n];
        const int32_t pages = of_node.pages();
        if (of_node.end == 0) continue;
        const double cost = pages * options_.widen_us * options_.head_dim / 128;
        const auto begin = static_cast<int32_t>(out->widened.size());
        // Items that read these pages, too, are cut if these are not widened.
        if (of_node.with_others <= cost || pages > options_.widened_room - begin) continue;
        gain += of_node.saved - cost;
        of_node.place = begin;
        for (int32_t page = of_node.first; page < of_node.end; ++page) {
            out->widened.push_back(nodes_[n].page_begin + page);
        }
    }
    if (gain * options_.kv_heads / options_.sms >= options_.widen_launch_us) return;
    out->widened.clear();
    for (Wanted &of_node : *wanted) of_node.place = -1;
}

void WorklistBuilder::halve(const Draft &draft) {
    const auto each = static_cast<size_t>(std::max(1, kNarrowRows / ratio_));
    for (const Draft::Read &read : draft.stretches) --reads_[static_cast<size_t>(read.node)];
    for (size_t first = 0; first < draft.tokens.size(); first += each) {
        const size_t count = std::min(each, draft.tokens.size() - first);
        const auto begin = draft.tokens.begin() + static_cast<ptrdiff_t>(first);
        Draft part;
        part.matrix = true;
        part.tokens.assign(begin, begin + static_cast<ptrdiff_t>(count));
        part.shift = draft.shift;
        part.edge = draft.edge;
        set_range(&part);
        for (Draft::Read read : draft.stretches) {
            read.stretch.keys =
                std::min(read.stretch.keys, part.max_position + 1 - read.stretch.start);
            if (read.stretch.keys <= 0) continue;
            ++reads_[static_cast<size_t>(read.node)];
            part.stretches.push_back(read);
        }
        clip(&part);
        drafts_.push_back(std::move(part));
    }
}

} // namespace batchllm::cuda
