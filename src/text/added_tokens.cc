#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace batchllm {
namespace {

// Start of the spaces that end text[from, to).
size_t spaces_before(const UnicodeClasses &classes, std::string_view text, size_t from, size_t to) {
    while (to > from) {
        const char *previous = utf8_previous(text.data() + to);
        int32_t length = 0;
        if ((classes.of(utf8_decode(previous, &length)) & kSpace) == 0) break;
        to = static_cast<size_t>(previous - text.data());
    }
    return std::max(from, to);
}

size_t spaces_after(const UnicodeClasses &classes, std::string_view text, size_t from) {
    while (from < text.size()) {
        int32_t length = 0;
        if ((classes.of(utf8_decode(text.data() + from, &length)) & kSpace) == 0) break;
        from += static_cast<size_t>(length);
    }
    return from;
}

bool is_single_word(const UnicodeClasses &classes, std::string_view text, size_t begin,
                    size_t end) {
    int32_t length = 0;
    if (begin > 0) {
        const uint32_t before = utf8_decode(utf8_previous(text.data() + begin), &length);
        if ((classes.of(before) & kWord) != 0) return false;
    }
    if (end == text.size()) return true;
    return (classes.of(utf8_decode(text.data() + end, &length)) & kWord) == 0;
}

} // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken> &tokens, bool normalized)
    : tokens_(tokens), classes_(unicode_classes()), nodes_(1), root_(256, -1) {
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].normalized != normalized) continue;
        any_ = true;
        const std::string &pattern = tokens[i].pattern;
        starts_[static_cast<unsigned char>(pattern[0])] = true;
        int32_t node = 0;
        for (const char byte : pattern) {
            int32_t next = child(node, byte);
            if (next < 0) {
                next = static_cast<int32_t>(nodes_.size());
                nodes_.push_back({-1, -1, nodes_[static_cast<size_t>(node)].first_child, byte});
                nodes_[static_cast<size_t>(node)].first_child = next;
                if (node == 0) root_[static_cast<unsigned char>(byte)] = next;
            }
            node = next;
        }
        nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(i);
    }
}

int32_t AddedTokenFinder::child(int32_t node, char byte) const {
    if (node == 0) return root_[static_cast<unsigned char>(byte)];
    int32_t next = nodes_[static_cast<size_t>(node)].first_child;
    while (next >= 0 && nodes_[static_cast<size_t>(next)].byte != byte) {
        next = nodes_[static_cast<size_t>(next)].next_sibling;
    }
    return next;
}

int32_t AddedTokenFinder::longest_at(std::string_view text, size_t begin) const {
    int32_t found = -1;
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
        node = child(node, text[i]);
        if (node < 0) break;
        if (nodes_[static_cast<size_t>(node)].token >= 0) {
            found = nodes_[static_cast<size_t>(node)].token;
        }
    }
    return found;
}

void AddedTokenFinder::find(std::string_view text, bool parse_special,
                            std::vector<AddedPiece> *pieces) const {
    pieces->clear();
    size_t done = 0; // end of the last piece
    size_t i = 0;
    while (any_ && i < text.size()) {
        if (!starts_[static_cast<unsigned char>(text[i])]) {
            ++i;
            continue;
        }
        const int32_t index = longest_at(text, i);
        if (index < 0) {
            ++i;
            continue;
        }
        const AddedToken &token = tokens_[static_cast<size_t>(index)];
        size_t begin = i;
        size_t end = i + token.pattern.size();
        i = end;
        if (token.special && !parse_special) continue;
        if (token.single_word && !is_single_word(classes_, text, begin, end)) continue;
        if (token.left_strip) {
            begin = std::max(spaces_before(classes_, text, std::min(done, begin), begin), done);
        }
        if (token.right_strip) end = spaces_after(classes_, text, end);
        if (done < begin) pieces->push_back({done, begin, -1});
        // A token inside the spaces that the previous token stripped does not count.
        if (begin < end) pieces->push_back({begin, end, token.id});
        done = end;
    }
    if (done != text.size()) pieces->push_back({done, text.size(), -1});
}

} // namespace batchllm
