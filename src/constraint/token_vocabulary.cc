#include "constraint/token_vocabulary.h"

#include <algorithm>
#include <utility>

#include "constraint/index.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

// Each class contains the previous ones. The last has the characters that need no escape in a JSON string, without DEL.
const std::vector<Ranges> &slice_classes() {
    static const std::vector<Ranges> classes = {
        {{'a', 'z'}},
        {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}},
        {{' ', '!'}, {'#', '['}, {']', '~'}, {0x80, 0x10FFFF}},
    };
    return classes;
}

int32_t character_count(std::string_view text) {
    return static_cast<int32_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return !utf8_continues(c); }));
}

} // namespace

void TokenTrie::build(std::vector<std::pair<std::string_view, int32_t>> tokens) {
    std::sort(tokens.begin(), tokens.end());
    // Tokens [begin, end) share their first `depth` bytes, which lead to the node.
    struct Range {
        int32_t node;
        size_t begin, end, depth;
    };
    std::vector<Node> nodes{{0, 0, 0, 0}};
    std::vector<std::pair<size_t, size_t>> spelled{{0, 0}}; // [nodes] tokens that end there
    std::vector<Range> open{{0, 0, tokens.size(), 0}};
    while (!open.empty()) {
        const Range range = open.back();
        open.pop_back();
        size_t place = range.begin;
        while (place < range.end && tokens[place].first.size() == range.depth) ++place;
        spelled[at(range.node)] = {range.begin, place};
        nodes[at(range.node)].children = static_cast<int32_t>(nodes.size());
        const size_t first_open = open.size();
        while (place < range.end) {
            const char byte = tokens[place].first[range.depth];
            const size_t begin = place;
            while (place < range.end && tokens[place].first[range.depth] == byte) ++place;
            open.push_back({static_cast<int32_t>(nodes.size()), begin, place, range.depth + 1});
            nodes.push_back({0, 0, 0, static_cast<uint8_t>(byte)});
            spelled.emplace_back();
            ++nodes[at(range.node)].child_count;
        }
        // The first child's children come next in memory.
        std::reverse(open.begin() + static_cast<ptrdiff_t>(first_open), open.end());
    }
    nodes_ = std::move(nodes);
    token_ids_.clear();
    for (size_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].tokens = static_cast<int32_t>(token_ids_.size());
        for (size_t token = spelled[i].first; token < spelled[i].second; ++token)
            token_ids_.push_back(tokens[token].second);
    }
    nodes_.push_back({0, static_cast<int32_t>(token_ids_.size()), 0, 0});
}

Result<std::shared_ptr<const TokenVocabulary>>
TokenVocabulary::make(const Tokenizer &tokenizer, std::span<const int32_t> eos_ids, int32_t size) {
    std::vector<std::string> tokens;
    std::vector<uint8_t> special;
    FirstSpellings first;
    if (size == 0) size = tokenizer.vocabulary();
    for (int32_t token = 0; token < std::min(size, tokenizer.vocabulary()); ++token) {
        auto bytes = tokenizer.token_bytes(token);
        if (!bytes) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "constraints need a tokenizer whose decoder puts nothing between tokens");
        }
        auto as_first = tokenizer.first_token_bytes(token);
        if (as_first && *as_first != *bytes) first.emplace_back(token, std::move(*as_first));
        tokens.push_back(std::move(*bytes));
        special.push_back(tokenizer.is_special(token) ? 1 : 0);
    }
    tokens.resize(at(size));
    special.resize(at(size), 0);
    return make(std::move(tokens), special, eos_ids, std::move(first));
}

Result<std::shared_ptr<const TokenVocabulary>>
TokenVocabulary::make(std::vector<std::string> tokens, std::span<const uint8_t> special,
                      std::span<const int32_t> eos_ids, FirstSpellings first) {
    std::shared_ptr<TokenVocabulary> made(new TokenVocabulary);
    made->first_ = std::move(first);
    made->tokens_ = std::move(tokens);
    made->special_.assign(special.begin(), special.end());
    if (made->special_.size() != made->tokens_.size())
        return error(BATCHLLM_ERROR_INTERNAL, "a vocabulary whose lists differ in length");
    for (const int32_t id : eos_ids)
        if (id >= 0 && id < made->size()) made->eos_ids_.push_back(id);
    std::sort(made->eos_ids_.begin(), made->eos_ids_.end());
    made->eos_ids_.erase(std::unique(made->eos_ids_.begin(), made->eos_ids_.end()),
                         made->eos_ids_.end());
    made->sort_tokens();
    return std::shared_ptr<const TokenVocabulary>(std::move(made));
}

bool TokenVocabulary::is_eos(int32_t token) const {
    return std::binary_search(eos_ids_.begin(), eos_ids_.end(), token);
}

std::string_view TokenVocabulary::first_bytes(int32_t token) const {
    const auto place =
        std::lower_bound(first_.begin(), first_.end(), token,
                         [](const auto &entry, int32_t id) { return entry.first < id; });
    return place != first_.end() && place->first == token ? std::string_view(place->second)
                                                          : bytes(token);
}

// Puts each token into its trie and counts the slices.
void TokenVocabulary::sort_tokens() {
    using Tokens = std::vector<std::pair<std::string_view, int32_t>>;
    std::vector<Tokens> of_slice(slice_classes().size());
    Tokens others;
    Tokens long_tokens;
    slices_.resize(slice_classes().size());
    for (size_t i = 0; i < slices_.size(); ++i) {
        Budget budget; // enough for three small classes
        const auto one = Automaton::code_points(slice_classes()[i], &budget);
        slices_[i].characters = repeat(*one, 0, Automaton::kUnbounded, &budget).value();
        slices_[i].up_to.assign(TokenSlice::kMostCharacters + 1,
                                std::vector<uint32_t>(at(words()), 0));
        slices_[i].counts.assign(TokenSlice::kMostCharacters + 1, 0);
    }
    for (int32_t token = 0; token < size(); ++token) {
        const std::string_view text = bytes(token);
        if (text.size() == 1 && !is_special(token) && !is_eos(token))
            single_bytes_[static_cast<uint8_t>(text[0])] = true;
        const bool usable = !text.empty() && text.size() <= TokenTrie::kLongestToken;
        if (!usable || is_special(token) || is_eos(token)) continue;
        longest_ = std::max(longest_, text.size());
        if (text.size() > kLongestOrdinary) {
            long_tokens.emplace_back(text, token);
            continue;
        }
        size_t slice = 0;
        while (slice < slices_.size() && !slices_[slice].characters.matches(text)) ++slice;
        const int32_t characters = character_count(text);
        if (slice == slices_.size()) {
            others.emplace_back(text, token);
            continue;
        }
        of_slice[slice].emplace_back(text, token);
        for (int32_t n = characters; n <= TokenSlice::kMostCharacters; ++n) {
            slices_[slice].up_to[at(n)][at(token / 32)] |= uint32_t{1} << (token % 32);
            ++slices_[slice].counts[at(n)];
        }
    }
    for (size_t i = 0; i < slices_.size(); ++i) slices_[i].trie.build(std::move(of_slice[i]));
    others_.build(std::move(others));
    long_tokens_.build(std::move(long_tokens));
}

} // namespace batchllm
