#include "text/regex/matcher.h"

#include <algorithm>
#include <utility>

namespace batchllm {

// Makes a matcher's steps from an expression's tree, from the end backwards: each part is made with what follows it.
class RegexProgram {
  public:
    using Step = RegexMatcher::Step;

    explicit RegexProgram(RegexMatcher *out) : steps_(out->steps_), out_(out) {}

    Status make(RegexTree tree) {
        const bool boundaries =
            std::any_of(tree.nodes.begin(), tree.nodes.end(), [](const RegexNode &node) {
                return node.assertion == RegexNode::Assertion::word_boundary ||
                       node.assertion == RegexNode::Assertion::no_word_boundary;
            });
        if (boundaries) {
            ASSIGN_OR_RETURN(const RegexTree words,
                             parse_regex("\\w", {.dialect = RegexDialect::oniguruma}));
            tree.sets.push_back(words.sets[0]);
        }
        if (tree.sets.size() > most_sets) return too_large();
        out_->word_ = static_cast<uint8_t>(tree.sets.size() - 1); // unused without them
        out_->make_sets(tree.sets);
        tree_ = std::move(tree);
        steps_.push_back({}); // the match, which every part that stands alone ends with
        ASSIGN_OR_RETURN(out_->start_, add(tree_.root, 0));
        seen_.assign(steps_.size(), false);
        out_->may_be_empty_ = out_->any_first_ = find_first(out_->start_);
        return {};
    }

  private:
    static constexpr size_t most_steps = 1024, most_sets = 64;

    static Status too_large() {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "the expression is too large");
    }

    const RegexNode &node(int32_t id) const { return tree_.nodes[static_cast<size_t>(id)]; }

    Result<int32_t> step(Step made) {
        if (steps_.size() == most_steps) return too_large();
        if (made.kind == Step::Kind::choice || made.kind == Step::Kind::run)
            made.mark = out_->marks_++;
        steps_.push_back(made);
        return static_cast<int32_t>(steps_.size()) - 1;
    }

    Result<int32_t> choice(int32_t next, int32_t other) {
        return step({.kind = Step::Kind::choice, .next = next, .other = other});
    }

    // The steps of a part that is followed by those from `next` on.
    Result<int32_t> add(int32_t id, int32_t next) {
        const RegexNode &here = node(id);
        switch (here.kind) {
        case RegexNode::Kind::characters:
            return step({.kind = Step::Kind::one, .set = set_of(here), .next = next});
        case RegexNode::Kind::concat:
            for (auto child = here.children.rbegin(); child != here.children.rend(); ++child) {
                ASSIGN_OR_RETURN(next, add(*child, next));
            }
            return next;
        case RegexNode::Kind::alternate: {
            ASSIGN_OR_RETURN(int32_t entry, add(here.children.back(), next));
            for (size_t i = here.children.size() - 1; i-- > 0;) {
                ASSIGN_OR_RETURN(const int32_t first, add(here.children[i], next));
                ASSIGN_OR_RETURN(entry, choice(first, entry));
            }
            return entry;
        }
        case RegexNode::Kind::repeat:
            return add_repeat(here, false, next);
        case RegexNode::Kind::assertion:
            return step({.kind = Step::Kind::assertion, .assertion = here.assertion, .next = next});
        case RegexNode::Kind::lookahead: {
            const RegexNode &seen = node(here.children[0]);
            if (seen.kind == RegexNode::Kind::characters) {
                return step({.kind = Step::Kind::beside,
                             .set = set_of(seen),
                             .negative = here.negative,
                             .next = next});
            }
            ASSIGN_OR_RETURN(const int32_t other, add(here.children[0], 0));
            return step({.kind = Step::Kind::look,
                         .negative = here.negative,
                         .next = next,
                         .other = other});
        }
        case RegexNode::Kind::atomic: {
            const RegexNode &kept = node(here.children[0]);
            if (is_run(kept) && !kept.lazy) return add_repeat(kept, true, next);
            ASSIGN_OR_RETURN(const int32_t other, add(here.children[0], 0));
            return step({.kind = Step::Kind::atomic, .next = next, .other = other});
        }
        }
        return error(BATCHLLM_ERROR_INTERNAL, "an expression's part of no kind");
    }

    static uint8_t set_of(const RegexNode &node) { return static_cast<uint8_t>(node.set); }

    bool is_run(const RegexNode &here) const {
        return here.kind == RegexNode::Kind::repeat &&
               node(here.children[0]).kind == RegexNode::Kind::characters;
    }

    Result<int32_t> add_repeat(const RegexNode &here, bool possessive, int32_t next) {
        const int32_t child = here.children[0];
        const bool unbounded = here.greatest == RegexNode::unbounded;
        if (is_run(here)) {
            return step({.kind = Step::Kind::run,
                         .set = set_of(node(child)),
                         .lazy = here.lazy,
                         .possessive = possessive,
                         .least = static_cast<int32_t>(here.least),
                         .most = static_cast<int32_t>(here.greatest),
                         .next = next});
        }
        // Oniguruma ends the loop after an empty round or goes on, by the size of its code.
        const bool counts = here.least > 1 || here.greatest > 1;
        if (counts && may_be_empty(child)) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "a count of what may match the empty text is not supported");
        }
        int32_t entry = next;
        int64_t copies = here.least;
        if (unbounded) {
            ASSIGN_OR_RETURN(const int32_t loop, choice(next, next));
            int32_t end = loop, first = loop;
            if (may_be_empty(child)) {
                const int32_t number = out_->loops_++;
                ASSIGN_OR_RETURN(
                    end,
                    step({.kind = Step::Kind::again, .next = loop, .other = next, .mark = number}));
                ASSIGN_OR_RETURN(const int32_t body, add(child, end));
                ASSIGN_OR_RETURN(first,
                                 step({.kind = Step::Kind::enter, .next = body, .mark = number}));
            } else {
                ASSIGN_OR_RETURN(first, add(child, end));
            }
            Step &turn = steps_[static_cast<size_t>(loop)];
            (here.lazy ? turn.other : turn.next) = first;
            // The first round of one or more is a round as well.
            entry = copies == 1 ? first : loop;
            if (copies == 1) copies = 0;
        }
        for (int64_t i = here.least; i < here.greatest; ++i) {
            ASSIGN_OR_RETURN(const int32_t once, add(child, entry));
            ASSIGN_OR_RETURN(entry, here.lazy ? choice(next, once) : choice(once, next));
        }
        for (int64_t i = 0; i < copies; ++i) {
            const int32_t after = entry;
            ASSIGN_OR_RETURN(entry, add(child, after));
            if (entry == after) break; // it is empty
        }
        return entry;
    }

    bool may_be_empty(int32_t id) const {
        const RegexNode &here = node(id);
        const auto empty = [this](int32_t child) { return may_be_empty(child); };
        switch (here.kind) {
        case RegexNode::Kind::characters:
            return false;
        case RegexNode::Kind::alternate:
            return std::any_of(here.children.begin(), here.children.end(), empty);
        case RegexNode::Kind::repeat:
            return here.least == 0 || empty(here.children[0]);
        case RegexNode::Kind::concat:
        case RegexNode::Kind::atomic:
            return std::all_of(here.children.begin(), here.children.end(), empty);
        case RegexNode::Kind::assertion:
        case RegexNode::Kind::lookahead:
            break;
        }
        return true;
    }

    // Adds to first_ the sets of characters that may come first from a step on. Returns whether the match
    // may end before any.
    bool find_first(int32_t at) {
        if (at == 0) return true;
        if (seen_[static_cast<size_t>(at)]) return false;
        seen_[static_cast<size_t>(at)] = true;
        const Step &here = steps_[static_cast<size_t>(at)];
        switch (here.kind) {
        case Step::Kind::match:
            return true;
        case Step::Kind::one:
        case Step::Kind::run:
            out_->first_ |= uint64_t{1} << here.set;
            return here.kind == Step::Kind::run && here.least == 0 && find_first(here.next);
        case Step::Kind::choice:
        case Step::Kind::again: {
            const bool one = find_first(here.next);
            return find_first(here.other) || one;
        }
        case Step::Kind::enter:
        case Step::Kind::assertion:
        case Step::Kind::beside:
        case Step::Kind::look:
            return find_first(here.next);
        case Step::Kind::atomic:
            return find_first(here.other) && find_first(here.next);
        }
        return true;
    }

    std::vector<Step> &steps_;
    RegexMatcher *out_;
    RegexTree tree_;
    std::vector<bool> seen_;
};

namespace {

// Where a run or a choice can go on otherwise, or where the round of a loop began before the one that step enters.
struct Alternative {
    int32_t step;
    int32_t count;     // of a lazy run: the characters that it has
    const char *at;    // where a run ends, or where a choice or a round was
    const char *least; // of a greedy run: its earliest end
};

// What has failed, as bits: for each place of the text those of all runs and choices. Filled once that pays.
struct Memory {
    bool on = false;
    int64_t turns = 0; // back
    std::vector<uint64_t> seen;
};

// Kept by each thread, since searches are short and many.
struct Scratch {
    std::vector<Alternative> alternatives;
    std::vector<const char *> rounds; // where each loop's round began
    std::vector<Memory> memories;     // by the depth of lookaheads and atomic groups
};

// Gives back what a long search has taken, when it ends.
class GivenBack {
  public:
    explicit GivenBack(Scratch *scratch) : scratch_(scratch) {}
    ~GivenBack() {
        constexpr size_t kept_alternatives = size_t{1} << 16, kept_words = size_t{1} << 16;
        bool large = scratch_->alternatives.capacity() > kept_alternatives;
        for (const Memory &memory : scratch_->memories)
            large |= memory.seen.capacity() > kept_words;
        if (large) *scratch_ = Scratch();
    }

  private:
    Scratch *scratch_;
};

} // namespace

// A search from a place on: attempts to match at one place after another.
class RegexSearch {
  public:
    using Step = RegexMatcher::Step;

    RegexSearch(const RegexMatcher &matcher, std::string_view text, size_t from, Scratch *scratch)
        : matcher_(matcher), begin_(text.data()), end_(text.data() + text.size()),
          from_(text.data() + from), farthest_(from_), scratch_(*scratch) {
        scratch_.alternatives.clear();
        scratch_.rounds.resize(static_cast<size_t>(matcher.loops_));
        for (Memory &memory : scratch_.memories) {
            memory.on = false;
            memory.turns = 0;
            memory.seen.clear();
        }
    }

    // The end of the match that starts at p with this step; null: none.
    const char *run(int32_t at, const char *p) {
        if (scratch_.memories.size() == depth_) scratch_.memories.emplace_back();
        const size_t depth = depth_++, alternatives = scratch_.alternatives.size();
        const size_t first = first_word(p);
        bool goes = true;
        while (goes && at != 0) {
            if (!go(depth, &at, &p)) goes = back(depth, alternatives, &at, &p);
        }
        scratch_.alternatives.resize(alternatives);
        std::vector<uint64_t> &seen = scratch_.memories[depth].seen;
        if (goes && first < seen.size()) seen.resize(first); // not all from here on has failed
        depth_ = depth;
        return goes ? p : nullptr;
    }

    // The end of the run of characters of the set.
    const char *run_end(uint8_t set, const char *p) const {
        while (take(set, &p)) {}
        return p;
    }

  private:
    bool take(uint8_t set, const char **p) const {
        if (*p == end_) return false;
        int32_t length;
        if ((matcher_.sets_at(*p, &length) >> set & 1) == 0) return false;
        *p += length;
        return true;
    }

    bool in(uint8_t set, const char *p) const { return take(set, &p); }

    size_t words_of_a_place() const { return (static_cast<size_t>(matcher_.marks_) + 63) / 64; }
    size_t first_word(const char *p) const {
        return static_cast<size_t>(p - from_) * words_of_a_place();
    }

    // False if the step has been tried at this place before, and so has failed, whatever led to it.
    bool first_visit(std::vector<uint64_t> *seen, int32_t mark, const char *p) const {
        const size_t words = words_of_a_place(), first = first_word(p);
        if (first + words > seen->size()) seen->resize(first + words, 0);
        uint64_t &word = (*seen)[first + static_cast<size_t>(mark) / 64];
        const uint64_t bit = uint64_t{1} << (mark % 64);
        if ((word & bit) != 0) return false;
        word |= bit;
        return true;
    }

    // Takes a step; false if it fails.
    bool go(size_t depth, int32_t *at, const char **p) {
        const Step &step = matcher_.steps_[static_cast<size_t>(*at)];
        const bool chooses = step.kind == Step::Kind::choice || step.kind == Step::Kind::run;
        Memory &memory = scratch_.memories[depth];
        if (memory.on && chooses && !first_visit(&memory.seen, step.mark, *p)) return false;
        bool holds = true;
        int32_t next = step.next;
        switch (step.kind) {
        case Step::Kind::match:
            break;
        case Step::Kind::one:
            holds = take(step.set, p);
            break;
        case Step::Kind::run:
            holds = go_along(step, *at, p);
            break;
        case Step::Kind::choice:
            scratch_.alternatives.push_back({*at, 0, *p, nullptr});
            break;
        case Step::Kind::enter:
            scratch_.alternatives.push_back({*at, 0, round(step), nullptr});
            round(step) = *p;
            break;
        case Step::Kind::again:
            if (round(step) == *p) next = step.other;
            break;
        case Step::Kind::assertion:
            holds = stands(step.assertion, *p);
            break;
        case Step::Kind::beside:
            holds = in(step.set, *p) != step.negative;
            break;
        case Step::Kind::look:
            holds = (run(step.other, *p) != nullptr) != step.negative;
            break;
        case Step::Kind::atomic:
            *p = run(step.other, *p);
            holds = *p != nullptr;
            break;
        }
        *at = next;
        return holds;
    }

    const char *&round(const Step &step) { return scratch_.rounds[static_cast<size_t>(step.mark)]; }

    bool go_along(const Step &step, int32_t at, const char **p) {
        int32_t count = 0;
        while (count < step.least && take(step.set, p)) ++count;
        if (count < step.least) return false;
        if (step.lazy) {
            if (step.most < 0 || count < step.most)
                scratch_.alternatives.push_back({at, count, *p, nullptr});
            return true;
        }
        const char *const least = *p;
        while ((step.most < 0 || count < step.most) && take(step.set, p)) ++count;
        if (*p != least && !step.possessive)
            scratch_.alternatives.push_back({at, count, *p, least});
        return true;
    }

    // Returns to where something else can be tried; false: nowhere. outer: how many alternatives are not this run's.
    bool back(size_t depth, size_t outer, int32_t *at, const char **p) {
        std::vector<Alternative> &alternatives = scratch_.alternatives;
        Memory &memory = scratch_.memories[depth];
        while (alternatives.size() > outer) {
            Alternative &last = alternatives.back();
            const Step &step = matcher_.steps_[static_cast<size_t>(last.step)];
            if (step.kind == Step::Kind::enter) {
                round(step) = last.at;
                alternatives.pop_back();
                continue;
            }
            farthest_ = std::max(farthest_, last.at);
            // Most expressions turn back about once for each character.
            if (++memory.turns > 1000 + 8 * (farthest_ - from_)) memory.on = true;
            *p = last.at;
            *at = step.next;
            if (step.kind == Step::Kind::choice) {
                *at = step.other;
                alternatives.pop_back();
                return true;
            }
            if (!step.lazy) {
                last.at = *p = utf8_previous(*p);
                if (last.at == last.least) alternatives.pop_back();
                return true;
            }
            if ((step.most >= 0 && last.count == step.most) || !take(step.set, p)) {
                alternatives.pop_back();
                continue;
            }
            last.at = *p;
            ++last.count;
            return true;
        }
        return false;
    }

    bool stands(RegexNode::Assertion assertion, const char *p) const {
        using Assertion = RegexNode::Assertion;
        switch (assertion) {
        case Assertion::none:
            return true;
        case Assertion::text_start:
            return p == begin_;
        case Assertion::text_end:
            return p == end_;
        case Assertion::line_start:
            return p == begin_ || (p != end_ && p[-1] == '\n');
        case Assertion::line_end:
            return p == end_ || *p == '\n';
        case Assertion::text_before_line_end:
            return p == end_ || (*p == '\n' && p + 1 == end_);
        case Assertion::word_boundary:
        case Assertion::no_word_boundary: {
            const bool before = p != begin_ && in(matcher_.word_, utf8_previous(p));
            const bool after = in(matcher_.word_, p);
            return (before != after) == (assertion == Assertion::word_boundary);
        }
        }
        return false;
    }

    const RegexMatcher &matcher_;
    const char *begin_, *end_;
    const char *from_, *farthest_;
    Scratch &scratch_;
    size_t depth_ = 0;
};

void RegexMatcher::make_sets(const std::vector<CodePointSet> &sets) {
    std::vector<uint64_t> all(0x110000, 0);
    for (size_t i = 0; i < sets.size(); ++i) {
        for (const auto &[first, last] : sets[i].ranges()) {
            for (uint32_t point = first; point <= last; ++point) all[point] |= uint64_t{1} << i;
        }
    }
    std::copy_n(all.begin(), ascii_.size(), ascii_.begin());
    sets_ = CodePointTable(all);
}

Result<RegexMatcher> RegexMatcher::make(std::string_view expression) {
    RegexMatcher matcher;
    ASSIGN_OR_RETURN(RegexTree tree, parse_regex(expression, {.dialect = RegexDialect::oniguruma}));
    RETURN_IF_ERROR(RegexProgram(&matcher).make(std::move(tree)));
    return matcher;
}

std::optional<RegexMatcher::Match> RegexMatcher::find(std::string_view text, size_t from) const {
    static thread_local Scratch scratch;
    const GivenBack given_back(&scratch);
    RegexSearch search(*this, text, from, &scratch);
    const char *const begin = text.data(), *const end = begin + text.size();
    const Step &start = steps_[static_cast<size_t>(start_)];
    for (const char *p = begin + from;;) {
        if (!any_first_) {
            int32_t length;
            while (p != end && (sets_at(p, &length) & first_) == 0) p += length;
            if (p == end) return std::nullopt;
        }
        const char *const found = search.run(start_, p);
        if (found != nullptr && (found != p || p != begin + from))
            return Match{static_cast<size_t>(p - begin), static_cast<size_t>(found - begin)};
        if (p == end) return std::nullopt;
        // What a run fails with at all of its ends, it also fails with if it starts later.
        const bool runs =
            found == nullptr && start.kind == Step::Kind::run && start.most < 0 && start.least <= 1;
        const char *const after = runs ? search.run_end(start.set, p) : p;
        p = after != p ? after : p + utf8_length(*p);
    }
}

} // namespace batchllm
