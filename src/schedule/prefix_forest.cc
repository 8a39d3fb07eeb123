#include "schedule/prefix_forest.h"

#include <algorithm>

namespace batchllm {

int32_t PrefixForest::add(int32_t parent, int32_t end) {
    int32_t slot;
    if (free_slots_.empty()) {
        slot = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        // So that a prefix can always be released.
        free_slots_.reserve(nodes_.capacity());
        idle_.reserve(nodes_.capacity());
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
    }
    const int32_t start = parent < 0 ? 0 : at(parent).start + at(parent).length;
    ScheduledPrefix &node = at(slot);
    PageTable pages = std::move(node.pages); // keeps its memory
    node = ScheduledPrefix{};
    node.pages = std::move(pages);
    node.parent = parent;
    node.start = start;
    node.length = end - start;
    node.order = created_++;
    tokens_left_ += node.length;
    if (parent >= 0) add_pending(parent);
    return slot;
}

int32_t PrefixForest::of_plan(std::span<const PlanPrefix> prefixes, int32_t number) {
    if (node_of_.size() < prefixes.size()) node_of_.resize(prefixes.size(), -1);
    chain_.clear();
    for (; number >= 0 && !has(number); number = prefixes[static_cast<size_t>(number)].parent)
        chain_.push_back(number);
    int32_t node = number < 0 ? -1 : node_of_[static_cast<size_t>(number)];
    for (auto i = chain_.rbegin(); i != chain_.rend(); ++i) {
        node = add(node, prefixes[static_cast<size_t>(*i)].length);
        at(node).number = *i;
        node_of_[static_cast<size_t>(*i)] = node;
    }
    return node;
}

bool PrefixForest::has(int32_t number) const {
    return static_cast<size_t>(number) < node_of_.size() &&
           node_of_[static_cast<size_t>(number)] >= 0;
}

void PrefixForest::keep(int32_t number) {
    if (!has(number)) return;
    const int32_t node = node_of_[static_cast<size_t>(number)];
    if (at(node).kept) return;
    at(node).kept = true;
    add_pending(node);
}

void PrefixForest::stop_keeping(int32_t number) {
    if (!has(number)) return;
    const int32_t node = node_of_[static_cast<size_t>(number)];
    if (!at(node).kept) return;
    at(node).kept = false;
    remove_pending(node);
}

void PrefixForest::begin_plan() {
    for (size_t number = 0; number < node_of_.size(); ++number)
        stop_keeping(static_cast<int32_t>(number));
    for (const int32_t node : node_of_)
        if (node >= 0) at(node).number = -1;
    node_of_.clear();
}

void PrefixForest::remove_pending(int32_t node) {
    while (node >= 0 && --at(node).pending == 0) {
        if (at(node).resident) evict(node);
        tokens_left_ -= at(node).length - at(node).highest;
        if (at(node).number >= 0) node_of_[static_cast<size_t>(at(node).number)] = -1;
        free_slots_.push_back(node);
        node = at(node).parent;
    }
}

void PrefixForest::hold(int32_t node) {
    while (node >= 0) {
        ScheduledPrefix &prefix = at(node);
        if (prefix.live++ > 0) return;
        live_pages_ += pool_->pages_kept(prefix.length);
        live_prefixes_ += 1;
        if (prefix.idle) {
            prefix.idle = false;
            idle_.erase(std::find(idle_.begin(), idle_.end(), node));
        }
        if (prefix.resident) return; // its parent is held already
        prefix.resident = true;
        node = prefix.parent;
    }
}

int32_t PrefixForest::release(int32_t node) {
    int32_t cancelled = 0;
    while (node >= 0) {
        ScheduledPrefix &prefix = at(node);
        if (--prefix.live > 0) break;
        live_pages_ -= pool_->pages_kept(prefix.length);
        live_prefixes_ -= 1;
        cancelled += prefix.chunk;
        prefix.chunk = 0;
        if (prefix.computed > 0) {
            prefix.idle = true;
            idle_.push_back(node);
            break;
        }
        pool_->give(&prefix.pages);
        prefix.resident = false;
        node = prefix.parent;
    }
    return cancelled;
}

void PrefixForest::evict(int32_t node) {
    ScheduledPrefix &prefix = at(node);
    if (prefix.idle) {
        prefix.idle = false;
        idle_.erase(std::find(idle_.begin(), idle_.end(), node));
    }
    pool_->give(&prefix.pages);
    prefix.computed = 0;
    prefix.resident = false;
    // A parent's chunk is never cancelled here: chunks are scheduled from the root down, and a
    // prefix with anything computed or scheduled below it is complete.
    if (prefix.parent >= 0) release(prefix.parent);
}

bool PrefixForest::evict_idle() {
    if (idle_.empty()) return false;
    evict(*std::max_element(idle_.begin(), idle_.end(),
                            [this](int32_t a, int32_t b) { return at(a).order < at(b).order; }));
    return true;
}

int64_t PrefixForest::pages_to_hold(int32_t node) const {
    int64_t pages = 0;
    for (; node >= 0 && at(node).live == 0; node = at(node).parent) {
        pages += pool_->pages_kept(at(node).length);
        if (at(node).resident) break;
    }
    return pages;
}

int32_t PrefixForest::once_computed(int32_t node) const {
    int32_t end = at(node).start + at(node).highest;
    for (node = at(node).parent; node >= 0; node = at(node).parent) {
        if (at(node).highest < at(node).length) end = at(node).start + at(node).highest;
    }
    return end;
}

int64_t PrefixForest::prefixes_to_hold(int32_t node) const {
    int64_t prefixes = 0;
    for (; node >= 0 && at(node).live == 0; node = at(node).parent) {
        prefixes += 1;
        if (at(node).resident) break;
    }
    return prefixes;
}

void PrefixForest::finish_chunk(int32_t node) {
    ScheduledPrefix &prefix = at(node);
    prefix.computed += prefix.chunk;
    prefix.chunk = 0;
    pool_->slide(&prefix.pages, prefix.computed);
    if (prefix.computed > prefix.highest) {
        tokens_left_ -= prefix.computed - prefix.highest;
        prefix.highest = prefix.computed;
    }
}

} // namespace batchllm
