#include "text/regex/tree.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/printable.h"
#include "text/regex/reader.h"
#include "text/unicode.h"

namespace batchllm {
namespace {

constexpr int32_t kDeepestGroups = 200;
constexpr size_t kLongestExpression = size_t{64} << 10;
constexpr int32_t most_counts = 16; // one after another

// Whether an odd number of \ stands before this place.
bool is_escaped(std::string_view text, size_t place) {
    const size_t before = text.find_last_not_of('\\', place - 1);
    return (place - 1 - before) % 2 == 1; // npos + 1 is 0
}

class RegexParser {
  public:
    RegexParser(std::string_view expression, const RegexOptions &options)
        : text_(expression),
          dialect_(options.dialect), flags_{options.ignore_case, options.dot_all} {}

    Result<RegexTree> parse() {
        if (text_.size() > kLongestExpression)
            return error(BATCHLLM_ERROR_UNSUPPORTED, "an expression of more than 64 KiB");
        if (!is_utf8(text_))
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the expression is not valid UTF-8");
        reader_ = RegexReader(text_);
        RETURN_IF_ERROR(leading_flags());
        ASSIGN_OR_RETURN(tree_.root, alternatives(0));
        if (!reader_.at_end()) return reader_.invalid("a ) without its (");
        return std::move(tree_);
    }

  private:
    using Kind = RegexNode::Kind;
    struct Flags {
        bool ignore_case;
        bool dot_all;
    };

    bool python() const { return dialect_ == RegexDialect::python; }
    bool oniguruma() const { return dialect_ == RegexDialect::oniguruma; }

    int32_t add(RegexNode node) {
        for (const int32_t child : node.children) {
            const RegexNode &below = tree_.nodes[static_cast<size_t>(child)];
            node.has_lookahead |= below.has_lookahead;
            node.looks_back |= below.looks_back;
        }
        tree_.nodes.push_back(std::move(node));
        return static_cast<int32_t>(tree_.nodes.size()) - 1;
    }

    int32_t characters(CodePointSet set) {
        set.normalize();
        const auto [place, fresh] =
            set_numbers_.emplace(std::move(set), static_cast<int32_t>(tree_.sets.size()));
        if (fresh) tree_.sets.push_back(place->first);
        return add({.kind = Kind::characters, .set = place->second});
    }

    Result<int32_t> character(uint32_t point, const RegexReader &start) {
        CodePointSet set{{point, point}};
        if (flags_.ignore_case) RETURN_IF_ERROR(fold(&set, start));
        return characters(std::move(set));
    }

    // Adds the other cases of each character. start: where the set is, for errors.
    Status fold(CodePointSet *set, const RegexReader &start) {
        set->normalize();
        if (oniguruma()) {
            const auto has = [set](uint32_t first, uint32_t last) {
                return !set->intersection(CodePointSet{{first, last}}).ranges().empty();
            };
            // Of a class that has them, it also takes several characters that one folds to.
            if (has(0x80, 0x10FFFF))
                return start.unsupported("(?i) of other characters than ASCII's");
            if (has('s', 's') || has('S', 'S')) set->add(0x17F, 0x17F);   // the long s
            if (has('k', 'k') || has('K', 'K')) set->add(0x212A, 0x212A); // the sign of kelvins
        }
        set->fold_ascii();
        return {};
    }

    // Whether one character, such as a ligature, folds to what both parts end and begin with.
    bool fold_together(int32_t part, int32_t next) const {
        constexpr std::string_view pairs[] = {"SS", "ST", "FF", "FI", "FL"};
        const char both[] = {letter_at(true, part), letter_at(false, next)};
        return std::find(std::begin(pairs), std::end(pairs), std::string_view(both, 2)) !=
               std::end(pairs);
    }

    // The letter that a part begins or ends with, in either case, as a capital. 0: none.
    char letter_at(bool end, int32_t part) const {
        const RegexNode &node = tree_.nodes[static_cast<size_t>(part)];
        const bool once = node.kind == Kind::repeat && node.least == 1 && node.greatest == 1;
        if (once || (node.kind == Kind::concat && !node.children.empty()))
            return letter_at(end, end ? node.children.back() : node.children[0]);
        if (node.kind != Kind::characters) return 0;
        const auto &ranges = tree_.sets[static_cast<size_t>(node.set)].ranges();
        if (ranges.size() < 2 || ranges[0].first < 'A' || ranges[0].first > 'Z') return 0;
        const uint32_t capital = ranges[0].first, small = capital | 0x20;
        const bool alone =
            ranges[0].second == capital && ranges[1] == CodePointSet::Range(small, small);
        return alone ? static_cast<char>(capital) : '\0';
    }

    int32_t assertion(RegexNode::Assertion what) {
        const bool back = what != RegexNode::Assertion::text_end;
        return add({.kind = Kind::assertion, .assertion = what, .looks_back = back});
    }

    // (?i) and the like, which hold for the whole expression.
    Status leading_flags() {
        while (reader_.rest().starts_with("(?")) {
            const size_t end = reader_.rest().find_first_not_of("aiLmsux", 2);
            if (end == std::string_view::npos || end == 2 || reader_.rest()[end] != ')') break;
            reader_.skip(2);
            while (reader_.peek() != ')') RETURN_IF_ERROR(flag(&flags_, true));
            reader_.skip(1);
        }
        return {};
    }

    Status flag(Flags *flags, bool on) {
        switch (reader_.peek()) {
        case 'i':
            flags->ignore_case = on;
            break;
        case 's':
            if (oniguruma()) return reader_.invalid("not a flag");
            flags->dot_all = on;
            break;
        case 'a':
            if (oniguruma())
                return reader_.unsupported("the flag a (\\w, \\d and \\s are Unicode's)");
            break; // \w, \d and \s are always ASCII
        case 'u':
            return reader_.unsupported("the flag u (\\w, \\d and \\s are ASCII's)");
        case 'm':
            if (!oniguruma()) return reader_.unsupported("the flag m (^ and $ at lines)");
            flags->dot_all = on;
            break;
        case 'x':
            return reader_.unsupported("the flag x (white space left out)");
        case 'L':
            return reader_.unsupported("the flag L (locale)");
        default:
            return reader_.invalid("not a flag");
        }
        reader_.skip(1);
        return {};
    }

    Result<int32_t> alternatives(int32_t depth) {
        if (depth > kDeepestGroups) return reader_.unsupported("groups more than 200 deep");
        std::vector<int32_t> branches;
        for (;;) {
            ASSIGN_OR_RETURN(const int32_t branch, sequence(depth));
            branches.push_back(branch);
            if (reader_.at_end() || reader_.peek() != '|') break;
            reader_.skip(1);
        }
        if (branches.size() == 1) return branches[0];
        return add({.kind = Kind::alternate, .children = std::move(branches)});
    }

    Result<int32_t> sequence(int32_t depth) {
        std::vector<int32_t> parts;
        while (!reader_.at_end() && reader_.peek() != '|' && reader_.peek() != ')') {
            const RegexReader start = reader_; // line and column are only counted for an error
            ASSIGN_OR_RETURN(int32_t part, item(depth));
            if (part < 0) continue; // a comment
            ASSIGN_OR_RETURN(part, repeated(part, start));
            if (oniguruma() && !parts.empty() && fold_together(parts.back(), part))
                return start.unsupported("(?i) of letters that one character stands for");
            parts.push_back(part);
        }
        if (parts.size() == 1) return parts[0];
        return add({.kind = Kind::concat, .children = std::move(parts)});
    }

    // Applies * + ? or a count to it.
    Result<int32_t> repeated(int32_t part, const RegexReader &start) {
        if (oniguruma()) return repeated_in_ruby(part);
        RegexReader::Count count;
        ASSIGN_OR_RETURN(const bool found, reader_.count(python(), &count));
        if (!found) return part;
        const RegexNode &node = tree_.nodes[static_cast<size_t>(part)];
        if (node.kind == Kind::assertion) return reader_.invalid("nothing to repeat");
        if (node.has_lookahead && !(count.least <= 1 && count.greatest == 1)) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "character %lld: a lookahead inside a repetition is not supported",
                         static_cast<long long>(start.position()));
        }
        const int32_t repeat = add({.kind = Kind::repeat,
                                    .children = {part},
                                    .least = count.least,
                                    .greatest = count.greatest});
        if (reader_.rest().starts_with("+"))
            return python() ? reader_.unsupported("a possessive count")
                            : reader_.invalid("nothing to repeat");
        if (reader_.rest().starts_with("?")) reader_.skip(1); // lazy: the same texts
        RegexReader::Count second;
        ASSIGN_OR_RETURN(const bool again, reader_.count(python(), &second));
        if (again) return reader_.invalid("a count after a count");
        return repeat;
    }

    // Counts may follow counts. A + after one in braces or a lazy one repeats the whole, and so does a ? after {n}.
    Result<int32_t> repeated_in_ruby(int32_t part) {
        for (int32_t counts = 0;; ++counts) {
            const bool braces = reader_.peek() == '{';
            RegexReader::Count count;
            ASSIGN_OR_RETURN(const bool found, reader_.count(true, &count));
            if (!found) return part;
            if (counts == most_counts) return reader_.unsupported("more than 16 counts in a row");
            if (tree_.nodes[static_cast<size_t>(part)].kind == Kind::assertion)
                return reader_.unsupported("a count of an assertion");
            const bool lazy = reader_.peek() == '?' && !count.single;
            part = add({.kind = Kind::repeat,
                        .children = {part},
                        .least = count.least,
                        .greatest = count.greatest,
                        .lazy = lazy});
            if (lazy) reader_.skip(1);
            if (!braces && !lazy && reader_.peek() == '+') {
                part = add({.kind = Kind::atomic, .children = {part}});
                reader_.skip(1);
            }
        }
    }

    // One atom. -1: a comment.
    Result<int32_t> item(int32_t depth) {
        const char c = reader_.peek();
        switch (c) {
        case '(':
            return group(depth);
        case '[':
            return bracket();
        case '\\':
            return escape();
        case '.':
            reader_.skip(1);
            return characters(dot());
        case '^':
            reader_.skip(1);
            return assertion(oniguruma() ? RegexNode::Assertion::line_start
                                         : RegexNode::Assertion::text_start);
        case '$':
            reader_.skip(1);
            return assertion(oniguruma() ? RegexNode::Assertion::line_end
                                         : RegexNode::Assertion::text_end);
        case '*':
        case '+':
        case '?':
            return reader_.invalid("nothing to repeat");
        case '{': {
            RegexReader::Count count;
            ASSIGN_OR_RETURN(const bool counts,
                             reader_.count(dialect_ != RegexDialect::ecma, &count));
            if (counts) return reader_.invalid("nothing to repeat");
            break;
        }
        default:
            break;
        }
        const RegexReader start = reader_;
        return character(reader_.take(), start);
    }

    CodePointSet dot() const {
        if (flags_.dot_all) return {{0, 0x10FFFF}};
        if (dialect_ != RegexDialect::ecma) return CodePointSet{{'\n', '\n'}}.inverse();
        return CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.inverse();
    }

    Result<int32_t> group(int32_t depth) {
        const RegexReader opening = reader_;
        reader_.skip(1);
        const Flags outer = flags_;
        bool lookahead = false;
        bool negative = false;
        bool atomic = false;
        if (reader_.rest().starts_with("?")) {
            reader_.skip(1);
            const std::string_view rest = reader_.rest();
            const auto starts = [rest](std::string_view what) { return rest.starts_with(what); };
            if (starts(":")) {
                reader_.skip(1);
            } else if (starts("=") || starts("!")) {
                lookahead = true;
                negative = starts("!");
                reader_.skip(1);
            } else if (starts("<=") || starts("<!")) {
                return opening.unsupported("lookbehind");
            } else if (starts("<") || starts("P<")) {
                RETURN_IF_ERROR(group_name());
            } else if (starts("P=")) {
                return opening.unsupported("a back-reference");
            } else if (starts("#") && dialect_ != RegexDialect::ecma) {
                size_t end = rest.find(')');
                // In Ruby's syntax \) does not end it.
                while (oniguruma() && end != std::string_view::npos && is_escaped(rest, end))
                    end = rest.find(')', end + 1);
                if (end == std::string_view::npos)
                    return opening.invalid("a comment without its )");
                reader_.skip(end + 1);
                return -1;
            } else if (starts(">")) {
                if (!oniguruma()) return opening.unsupported("an atomic group");
                atomic = true;
                reader_.skip(1);
            } else if (starts("(")) {
                return opening.unsupported("a condition");
            } else {
                RETURN_IF_ERROR(group_flags());
            }
        }
        ASSIGN_OR_RETURN(const int32_t body, alternatives(depth + 1));
        if (reader_.at_end()) return opening.invalid("a ( without its )");
        reader_.skip(1);
        flags_ = outer;
        if (atomic) return add({.kind = Kind::atomic, .children = {body}});
        if (!lookahead) return body_as_group(body);
        return add({.kind = Kind::lookahead,
                    .children = {body},
                    .negative = negative,
                    .position = opening.position(),
                    .has_lookahead = true});
    }

    // A group of one assertion may be repeated, unlike the assertion itself.
    int32_t body_as_group(int32_t body) {
        if (tree_.nodes[static_cast<size_t>(body)].kind != Kind::assertion) return body;
        return add({.kind = Kind::concat, .children = {body}});
    }

    Status group_name() {
        reader_.skip(reader_.rest().find('<') + 1);
        const size_t end = reader_.rest().find_first_of(">)");
        if (end == std::string_view::npos || end == 0 || reader_.rest()[end] != '>')
            return reader_.invalid("a group's name without its end");
        reader_.skip(end + 1);
        return {};
    }

    // The i, s, -i of (?i-s: ).
    Status group_flags() {
        bool on = true;
        bool any = false;
        while (!reader_.at_end() && reader_.peek() != ':') {
            if (reader_.peek() == ')' && any)
                return oniguruma()
                           ? reader_.unsupported("flags for the rest of a group")
                           : reader_.invalid("flags for the whole that are not at its start");
            if (reader_.peek() == '-' && on) {
                on = false;
                reader_.skip(1);
                continue;
            }
            RETURN_IF_ERROR(flag(&flags_, on));
            any = true;
        }
        if (reader_.at_end()) return reader_.invalid("a ( without its )");
        reader_.skip(1);
        return {};
    }

    Result<int32_t> escape() {
        const RegexReader start = reader_;
        reader_.skip(1);
        if (reader_.at_end()) return start.invalid("a \\ at the end");
        const char c = reader_.peek();
        if (c == 'b' || c == 'B') {
            reader_.skip(1);
            return assertion(c == 'b' ? RegexNode::Assertion::word_boundary
                                      : RegexNode::Assertion::no_word_boundary);
        }
        if (dialect_ != RegexDialect::ecma && (c == 'A' || c == 'Z' || (c == 'z' && oniguruma()))) {
            reader_.skip(1);
            return assertion(c == 'A'                  ? RegexNode::Assertion::text_start
                             : c == 'Z' && oniguruma() ? RegexNode::Assertion::text_before_line_end
                                                       : RegexNode::Assertion::text_end);
        }
        reader_ = start;
        RegexReader::Escape found;
        RETURN_IF_ERROR(reader_.escape(dialect_, false, &found));
        if (!found.is_set) return character(found.point, start);
        if (flags_.ignore_case && found.fold) RETURN_IF_ERROR(fold(&found.set, start));
        return characters(std::move(found.set));
    }

    Result<int32_t> bracket() {
        if (oniguruma()) {
            ASSIGN_OR_RETURN(CodePointSet set, class_in_ruby(0));
            return characters(std::move(set));
        }
        const RegexReader start = reader_;
        reader_.skip(1);
        bool negative = false;
        if (reader_.rest().starts_with("^")) {
            negative = true;
            reader_.skip(1);
        }
        CodePointSet set;
        bool first = true;
        for (;; first = false) {
            if (reader_.at_end()) return start.invalid("a [ without its ]");
            if (reader_.peek() == ']' && !(first && python())) break;
            ASSIGN_OR_RETURN(const RegexReader::Escape low, class_item());
            if (low.is_set) {
                // In ECMAScript's lenient form, the - in [\w-.] is a literal.
                if (range_follows() && python()) return reader_.invalid("a range from a class");
                set.add(low.set);
                continue;
            }
            uint32_t high = low.point;
            if (range_follows()) {
                reader_.skip(1);
                ASSIGN_OR_RETURN(const RegexReader::Escape upper, class_item());
                if (upper.is_set) {
                    if (python()) return reader_.invalid("a range to a class");
                    set.add(low.point, low.point);
                    set.add('-', '-');
                    set.add(upper.set);
                    continue;
                }
                high = upper.point;
                if (high < low.point) return reader_.invalid("a range that ends before its start");
            }
            set.add(low.point, high);
        }
        reader_.skip(1);
        set.normalize();
        if (flags_.ignore_case) set.fold_ascii();
        return characters(negative ? set.inverse() : std::move(set));
    }

    // A class from its [ on, with those in it and what they have in common.
    Result<CodePointSet> class_in_ruby(int32_t depth) {
        const RegexReader start = reader_;
        if (depth > kDeepestGroups) return start.unsupported("classes more than 200 deep");
        if (depth > 0 && reader_.rest().starts_with("[:"))
            return start.unsupported("a POSIX bracket");
        reader_.skip(1);
        const bool negative = reader_.peek() == '^';
        if (negative) reader_.skip(1);
        CodePointSet common{{0, 0x10FFFF}}, set;
        bool any = false; // anything since the [ or the last &&
        for (;; any = true) {
            if (reader_.at_end()) return start.invalid("a [ without its ]");
            const bool ends = reader_.peek() == ']';
            if (ends || reader_.rest().starts_with("&&")) {
                if (!any) return reader_.unsupported("an empty class");
                set.normalize();
                common = common.intersection(set);
                reader_.skip(ends ? 1 : 2);
                if (ends && depth == 0 && flags_.ignore_case) RETURN_IF_ERROR(fold(&common, start));
                if (ends) return negative ? common.inverse() : std::move(common);
                set = {};
                if (reader_.peek() == ']' || reader_.rest().starts_with("&&"))
                    return reader_.unsupported("an empty class");
                if (reader_.at_end()) return start.invalid("a [ without its ]");
            }
            RETURN_IF_ERROR(add_class_item(depth, &set));
        }
    }

    // A character, a range or a set. A - beside a set, or at the end, is a character.
    Status add_class_item(int32_t depth, CodePointSet *set) {
        if (reader_.peek() == '[') {
            ASSIGN_OR_RETURN(const CodePointSet inner, class_in_ruby(depth + 1));
            set->add(inner);
            return {};
        }
        ASSIGN_OR_RETURN(const RegexReader::Escape low, class_item());
        if (low.is_set) {
            set->add(low.set);
            if (range_follows()) return reader_.unsupported("a range from a class");
            return {};
        }
        uint32_t high = low.point;
        if (range_follows()) {
            reader_.skip(1);
            if (reader_.peek() == '[') return reader_.unsupported("a range to a class");
            ASSIGN_OR_RETURN(const RegexReader::Escape upper, class_item());
            if (upper.is_set) return reader_.unsupported("a range to a class");
            high = upper.point;
            if (high < low.point) return reader_.invalid("a range that ends before its start");
        }
        set->add(low.point, high);
        return {};
    }

    bool range_follows() const {
        const std::string_view rest = reader_.rest();
        return rest.size() > 1 && rest[0] == '-' && rest[1] != ']' &&
               !(oniguruma() && rest.substr(1).starts_with("&&"));
    }

    Result<RegexReader::Escape> class_item() {
        RegexReader::Escape found;
        if (reader_.peek() == '\\')
            RETURN_IF_ERROR(reader_.escape(dialect_, true, &found));
        else
            found.point = reader_.take();
        return found;
    }

    std::string_view text_;
    RegexDialect dialect_;
    Flags flags_;
    RegexReader reader_;
    RegexTree tree_;
    std::map<CodePointSet, int32_t> set_numbers_;
};

} // namespace

Result<RegexTree> parse_regex(std::string_view expression, const RegexOptions &options) {
    return RegexParser(expression, options).parse();
}

} // namespace batchllm
