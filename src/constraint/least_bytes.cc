#include "constraint/least_bytes.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "constraint/index.h"

namespace batchllm {
namespace {

using GrammarKind = Grammar::Kind;

constexpr int64_t most = int64_t{1} << 40;
constexpr int64_t unknown = -1;

// Knuth's generalisation of Dijkstra's algorithm: nodes are settled in the order of their lengths,
// each once enough of its parts have been. What is settled later is never shorter, so a node's first
// length is its least.
class ShortestText {
  public:
    explicit ShortestText(const Grammar &grammar)
        : grammar_(grammar), length_(at(grammar.size()), unknown), used_by_(at(grammar.size())),
          open_(at(grammar.size())), wanting_(at(grammar.size())), offered_(at(grammar.size())) {}

    int64_t find() {
        for (NodeId id = 0; id < grammar_.size(); ++id) {
            collect_parts(id);
            if (open_[at(id)] == 0 && wanting_[at(id)] == 0) offer(id);
        }
        while (!queue_.empty()) {
            const auto [length, id] = queue_.top();
            queue_.pop();
            if (length_[at(id)] != unknown) continue;
            length_[at(id)] = length;
            if (id == grammar_.root()) return length;
            for (const auto &[user, needed] : used_by_[at(id)]) {
                if (needed) {
                    --open_[at(user)];
                } else if (wanting_[at(user)] > 0) {
                    wanting_[at(user)] = is_rest(id, user) ? 0 : wanting_[at(user)] - 1;
                }
                if (open_[at(user)] == 0 && wanting_[at(user)] == 0 && !offered_[at(user)]) {
                    offer(user);
                }
            }
        }
        return 0;
    }

  private:
    struct Use {
        NodeId user;
        bool needed; // the user has no text without this part
    };

    void use(NodeId user, NodeId part, bool needed) {
        if (part == kNoNode) return;
        used_by_[at(part)].push_back({user, needed});
        open_[at(user)] += needed ? 1 : 0;
    }

    void collect_parts(NodeId id) {
        const Grammar::Node &node = grammar_.node(id);
        if (node.kind == GrammarKind::repeat) {
            use(id, node.children[0], node.least > 0);
            use(id, node.separator, node.least > 1);
        } else if (node.kind == GrammarKind::members) {
            const Members &members = grammar_.members_of(node);
            int64_t wanting = members.least;
            for (const Members::Element &element : members.elements) {
                use(id, element.node, element.required);
                wanting -= element.required ? 1 : 0;
            }
            wanting_[at(id)] = std::max<int64_t>(wanting, 0);
            use(id, members.rest, false);
            use(id, members.separator, false);
        } else {
            for (const NodeId part : node.children) use(id, part, node.kind != GrammarKind::choice);
        }
    }

    // Whether the members of `user` beyond those named are of this kind.
    bool is_rest(NodeId part, NodeId user) const {
        const Grammar::Node &node = grammar_.node(user);
        return node.kind == GrammarKind::members && grammar_.members_of(node).rest == part;
    }

    // Puts a node into the queue with the length that its settled parts give it, if they do. Parts that
    // are settled later are no shorter, so a node's first length is its least.
    void offer(NodeId id) {
        const int64_t length = length_of(id);
        if (length == unknown) return;
        offered_[at(id)] = true;
        queue_.emplace(std::min(length, most), id);
    }

    int64_t length_of(NodeId id) const {
        const Grammar::Node &node = grammar_.node(id);
        switch (node.kind) {
        case GrammarKind::bytes:
            return static_cast<int64_t>(node.literal.size());
        case GrammarKind::terminal:
            return node.automaton.empty() ? unknown : node.automaton.least_bytes();
        case GrammarKind::sequence:
        case GrammarKind::reference: {
            int64_t sum = 0;
            for (const NodeId part : node.children) sum = std::min(sum + length_[at(part)], most);
            return sum;
        }
        case GrammarKind::choice: {
            int64_t least = unknown;
            for (const NodeId part : node.children) {
                // Parts are settled in order, so the first one found is the shortest.
                if (length_[at(part)] != unknown) least = length_[at(part)];
                if (least != unknown) break;
            }
            return least;
        }
        case GrammarKind::repeat:
            if (node.least == 0) return 0;
            return joined(times(node.least, length_[at(node.children[0])]), node.least,
                          node.separator);
        case GrammarKind::members:
            return length_of(grammar_.members_of(node));
        }
        return unknown;
    }

    int64_t length_of(const Members &members) const {
        int64_t sum = 0;
        int64_t count = 0;
        std::vector<int64_t> others;
        for (const Members::Element &element : members.elements) {
            const int64_t length = length_[at(element.node)];
            if (element.required) {
                sum = std::min(sum + length, most);
                ++count;
            } else if (length != unknown) {
                others.push_back(length);
            }
        }
        std::sort(others.begin(), others.end());
        const int64_t rest = members.rest == kNoNode ? unknown : length_[at(members.rest)];
        for (const int64_t other : others) {
            if (count >= members.least || (rest != unknown && rest < other)) break;
            sum = std::min(sum + other, most);
            ++count;
        }
        if (count < members.least) {
            if (rest == unknown) return unknown;
            sum = std::min(sum + times(members.least - count, rest), most);
            count = members.least;
        }
        return joined(sum, count, members.separator);
    }

    // With separators between `count` parts of that length in total.
    int64_t joined(int64_t parts, int64_t count, NodeId separator) const {
        if (count < 2 || separator == kNoNode) return parts;
        const int64_t between = length_[at(separator)];
        return between == unknown ? unknown : parts + times(count - 1, between);
    }

    static int64_t times(int64_t count, int64_t length) {
        int64_t product;
        return __builtin_mul_overflow(count, length, &product) ? most : std::min(product, most);
    }

    const Grammar &grammar_;
    std::vector<int64_t> length_;           // [nodes] settled, or unknown
    std::vector<std::vector<Use>> used_by_; // [nodes]
    std::vector<int64_t> open_;             // [nodes] parts that it needs and that are not settled
    std::vector<int64_t> wanting_; // [nodes] members: how many more of its optional parts it needs
    std::vector<bool> offered_;    // [nodes] has been in the queue
    using Offer = std::pair<int64_t, NodeId>;
    std::priority_queue<Offer, std::vector<Offer>, std::greater<>> queue_;
};

} // namespace

int64_t least_bytes(const Grammar &grammar) { return ShortestText(grammar).find(); }

} // namespace batchllm
