#include "sample/stop.h"

#include <algorithm>

namespace batchllm {

StopStrings::StopStrings(std::span<const std::string> strings)
    : strings_(strings.begin(), strings.end()) {
    first_byte_.fill(false);
    nodes_.push_back(Node{0, 0, 0, 0, {}});
    for (size_t i = 0; i < strings_.size(); ++i) {
        int32_t node = 0;
        for (const char byte : strings_[i]) {
            int32_t next = edge(node, byte);
            if (next < 0) {
                next = static_cast<int32_t>(nodes_.size());
                const int32_t depth = nodes_[static_cast<size_t>(node)].depth + 1;
                nodes_.push_back(Node{static_cast<int32_t>(i), depth, 0, 0, {}});
                auto &edges = nodes_[static_cast<size_t>(node)].next;
                const std::pair<char, int32_t> added(byte, next);
                edges.insert(std::lower_bound(edges.begin(), edges.end(), added), added);
            }
            node = next;
        }
        nodes_[static_cast<size_t>(node)].match = nodes_[static_cast<size_t>(node)].depth;
        first_byte_[static_cast<unsigned char>(strings_[i].front())] = true;
    }
    // Breadth first: a fallback is shorter, so it is complete before the node that needs it.
    std::vector<int32_t> queue{0};
    for (size_t head = 0; head < queue.size(); ++head) {
        const int32_t node = queue[head];
        for (const auto &[byte, child] : nodes_[static_cast<size_t>(node)].next) {
            Node &target = nodes_[static_cast<size_t>(child)];
            if (node != 0) {
                target.fallback = advance(nodes_[static_cast<size_t>(node)].fallback, byte);
            }
            if (target.match == 0) {
                target.match = nodes_[static_cast<size_t>(target.fallback)].match;
            }
            queue.push_back(child);
        }
    }
}

int32_t StopStrings::edge(int32_t node, char byte) const {
    const auto &edges = nodes_[static_cast<size_t>(node)].next;
    const auto found =
        std::lower_bound(edges.begin(), edges.end(), std::pair<char, int32_t>(byte, 0));
    return found != edges.end() && found->first == byte ? found->second : -1;
}

int32_t StopStrings::advance(int32_t node, char byte) const {
    while (true) {
        const int32_t next = edge(node, byte);
        if (next >= 0) return next;
        if (node == 0) return 0;
        node = nodes_[static_cast<size_t>(node)].fallback;
    }
}

bool StopScanner::push(std::string_view piece, std::string *text) {
    if (found_) return true;
    if (strings_->empty()) {
        text->append(piece);
        return false;
    }
    for (size_t i = 0; i < piece.size(); ++i) {
        if (node_ == 0) {
            size_t end = i;
            while (end < piece.size() &&
                   !strings_->first_byte_[static_cast<unsigned char>(piece[end])]) {
                ++end;
            }
            text->append(piece.substr(i, end - i));
            i = end;
            if (i == piece.size()) break;
        }
        const StopStrings::Node &before = strings_->nodes_[static_cast<size_t>(node_)];
        node_ = strings_->advance(node_, piece[i]);
        const StopStrings::Node &after = strings_->nodes_[static_cast<size_t>(node_)];
        // The `before.depth` bytes that were held back begin a stop string. With this byte,
        // whatever is not in the new beginning (or in the stop string found) may be shown.
        const int32_t keep = after.match > 0 ? after.match : after.depth;
        const int32_t shown = before.depth + 1 - keep;
        if (shown > 0) {
            const std::string &held = strings_->strings_[static_cast<size_t>(before.string)];
            text->append(held, 0, static_cast<size_t>(std::min(shown, before.depth)));
            if (shown > before.depth) *text += piece[i];
        }
        if (after.match > 0) {
            found_ = true;
            return true;
        }
    }
    return false;
}

void StopScanner::finish(std::string *text) {
    if (found_ || node_ == 0) return;
    const StopStrings::Node &node = strings_->nodes_[static_cast<size_t>(node_)];
    text->append(strings_->strings_[static_cast<size_t>(node.string)], 0,
                 static_cast<size_t>(node.depth));
    node_ = 0;
}

int64_t StopScanner::held() const {
    return found_ ? 0 : strings_->nodes_[static_cast<size_t>(node_)].depth;
}

} // namespace batchllm
