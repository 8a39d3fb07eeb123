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
        if (flags_.ignore_case) RETURN_IF_ERROR(fold(&set, false, start));
        return characters(std::move(set));
    }

    // Adds the other cases of each character. property: the set is \p{..} or the like, which has all letters that have
    // cases or none; of others, Oniguruma also takes several characters that one folds to. start: where it is, for errors.
    Status fold(CodePointSet *set, bool property, const RegexReader &start) {
        set->normalize();
        if (oniguruma()) {
            const CodePointSet beyond_ascii{{0x80, 0x10FFFF}};
            const CodePointSet cased = unicode_property("LC")->intersection(beyond_ascii);
            const CodePointSet touched = set->intersection(property ? cased : beyond_ascii);
            if (!touched.ranges().empty() && !(property && touched == cased))
                return start.unsupported("(?i) of other characters than ASCII's");
            const auto has = [set](uint32_t point) {
                return !set->intersection(CodePointSet{{point, point}}).ranges().empty();
            };
            if (has('s') || has('S')) set->add(0x17F, 0x17F);   // the long s
            if (has('k') || has('K')) set->add(0x212A, 0x212A); // the sign of kelvins
        }
        set->fold_ascii();
        return {};
    }

    // Two letters that one character folds to, such as that of a ligature.
    static bool fold_together(char first, char second) {
        constexpr std::string_view pairs[] = {"ss", "st", "ff", "fi", "fl"};
        const char both[] = {static_cast<char>(first | 0x20), static_cast<char>(second | 0x20)};
        return std::find(std::begin(pairs), std::end(pairs), std::string_view(both, 2)) !=
               std::end(pairs);
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
            const std::string_view rest = reader_.rest();
            if (oniguruma() && flags_.ignore_case && rest.size() > 1 &&
                fold_together(rest[0], rest[1]))
                return start.unsupported("(?i) of letters that one character stands for");
            ASSIGN_OR_RETURN(int32_t part, item(depth));
            if (part < 0) continue; // a comment
            ASSIGN_OR_RETURN(part, repeated(part, start));
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

    // Counts may follow counts. Of those in braces a + repeats the whole, and so does a ? if they give one number.
    Result<int32_t> repeated_in_ruby(int32_t part) {
        for (;;) {
            const bool braces = reader_.peek() == '{';
            RegexReader::Count count;
            ASSIGN_OR_RETURN(const bool found, reader_.count(true, &count));
            if (!found) return part;
            if (tree_.nodes[static_cast<size_t>(part)].kind == Kind::assertion)
                return reader_.unsupported("a count of an assertion");
            const bool lazy = reader_.peek() == '?' && !(braces && count.least == count.greatest);
            part = add({.kind = Kind::repeat,
                        .children = {part},
                        .least = count.least,
                        .greatest = count.greatest,
                        .lazy = lazy});
            if (lazy) reader_.skip(1);
            if (!braces && reader_.peek() == '+') {
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
                const size_t end = rest.find(')');
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
        if (flags_.ignore_case && found.fold) RETURN_IF_ERROR(fold(&found.set, true, start));
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
        if (reader_.rest().starts_with("[:")) return start.unsupported("a POSIX bracket");
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
                if (flags_.ignore_case) RETURN_IF_ERROR(fold(&set, false, start));
                set.normalize();
                common = common.intersection(set);
                reader_.skip(ends ? 1 : 2);
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
        return reader_.rest().size() > 1 && reader_.peek() == '-' && reader_.rest()[1] != ']';
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
