#include "report/icicle.h"

#include <algorithm>
#include <array>

#include "base/display.h"
#include "report/markup.h"

namespace batchllm {
namespace {

constexpr double width = 1000;
constexpr double band = 46; // height of a level
constexpr double gap = 1.5;
constexpr double least_width = 4; // of a prefix that is drawn separately
constexpr int most_levels = 7;
constexpr int64_t least_length = 8; // tokens of a node that branches
constexpr size_t most_cells = 700;
constexpr size_t most_listed = 8;
constexpr int listed_columns = 110;
constexpr double column_width = 6.9; // of a character in the cells' font
constexpr size_t shown_numbers = 8;
constexpr size_t most_label = 400; // bytes: no cell shows more

std::string token_numbers(const std::vector<int32_t> &tokens) {
    std::string text = "[";
    for (size_t i = 0; i < std::min(tokens.size(), shown_numbers); ++i) {
        if (i > 0) text += ' ';
        text += std::to_string(tokens[i]);
    }
    return text + (tokens.size() > shown_numbers ? " ..]" : "]");
}

// A node as it is drawn, merged with nodes above it that are too short for a level of their own.
struct Branch {
    const SharingNode *node;
    std::string words; // of those
    std::vector<int32_t> tokens;
};

std::string label_of(const Branch &branch) {
    const SharingNode &node = *branch.node;
    if (!node.words.empty()) return branch.words + node.words;
    if (node.tokens.empty()) return "prefix";
    std::vector<int32_t> tokens = branch.tokens;
    tokens.insert(tokens.end(), node.tokens.begin(), node.tokens.end());
    return token_numbers(tokens);
}

// How many rows each computed token of the node serves.
double reuse(const SharingNode &node) {
    return static_cast<double>(node.rows) / static_cast<double>(std::max<int64_t>(1, node.times));
}

int shade(double reuse) {
    return reuse < 1.5 ? 0 : reuse < 4 ? 1 : reuse < 16 ? 2 : reuse < 64 ? 3 : 4;
}

std::string plural(int64_t count, const char *what) {
    return format_count(count) + " " + what + (count == 1 ? "" : "s");
}

class Icicle {
  public:
    explicit Icicle(const SharingTree &tree)
        : tree_(tree), rows_(static_cast<double>(tree.root().rows)) {}

    std::string draw() {
        const SharingNode &root = tree_.root();
        if (root.rows == 0 || root.groups == 0) return "";
        cell({0, width, 0}, "root", escaped_within("all rows", 40), plural(root.rows, "row"),
             plural(root.rows, "row"));
        children(root, {0, width, 1});
        const double height = (levels_ + 1) * (band + gap) - gap;
        return "<svg class=\"icicle\" viewBox=\"0 0 " + coordinate(width) + " " +
               coordinate(height) + "\" role=\"img\" aria-label=\"Prefixes that rows share\">" +
               out_ + "</svg>" + legend();
    }

    // The token ranges whose sharing saves most.
    std::string list() {
        std::vector<Branch> found;
        collect(tree_.root(), &found);
        std::stable_sort(found.begin(), found.end(), [](const Branch &a, const Branch &b) {
            return saved(*a.node) > saved(*b.node);
        });
        if (found.size() > most_listed) found.resize(most_listed);
        if (found.empty()) return "";
        std::string out =
            "<h3>What saves most</h3>\n<table class=\"groups\"><thead><tr><th>begins with</th><th "
            "class=\"n\">tokens</th><th class=\"n\">rows</th><th class=\"n\">computed, "
            "times</th><th "
            "class=\"n\">tokens saved</th></tr></thead><tbody>";
        for (const Branch &branch : found) {
            const SharingNode &node = *branch.node;
            out += "<tr><td class=\"words\">" + escaped_within(label_of(branch), listed_columns);
            for (const int64_t figure : {node.length, node.rows, node.times, saved(node)}) {
                out += "</td><td class=\"n\">" + format_count(figure);
            }
            out += "</td></tr>\n";
        }
        return out + "</tbody></table>";
    }

  private:
    static int64_t saved(const SharingNode &node) { return node.length * (node.rows - node.times); }

    // Collects all branches below a node. Branches one level apart are drawn together.
    void collect(const SharingNode &node, std::vector<Branch> *out) const {
        std::vector<Branch> below;
        int64_t rest_rows = 0, rest_groups = 0;
        add_branches({&node, "", {}}, &below, &rest_rows, &rest_groups);
        for (Branch &branch : below) {
            const SharingNode &next = *branch.node;
            if (saved(next) > 0) out->push_back(std::move(branch));
            collect(next, out);
        }
    }

    struct Place {
        double left, right;
        int level;
        double wide() const { return right - left; }
    };

    void cell(const Place &place, const char *kind, const std::string &label,
              const std::string &figures, const std::string &title) {
        ++cells_;
        levels_ = std::max(levels_, place.level);
        const double wide = std::max(0.5, place.wide() - gap);
        const std::string size =
            "\" width=\"" + coordinate(wide) + "\" height=\"" + coordinate(band) + "\"";
        // A nested svg clips its text.
        out_ += "<svg x=\"" + coordinate(place.left) + "\" y=\"" +
                coordinate(place.level * (band + gap)) + size + " class=\"" + kind + "\"><title>" +
                title + "</title><rect width=\"" + coordinate(wide) + "\" height=\"" +
                coordinate(band) + "\" rx=\"2\"/>";
        if (!label.empty()) out_ += "<text x=\"7\" y=\"19\">" + label + "</text>";
        if (wide > column_width * static_cast<double>(figures.size()) + 10) {
            out_ += "<text x=\"7\" y=\"36\" class=\"figures\">" + figures + "</text>";
        }
        out_ += "</svg>\n";
    }

    void prefix_cell(const Branch &branch, const Place &place) {
        const SharingNode &node = *branch.node;
        const std::string label = label_of(branch);
        const std::string kind = "s" + std::to_string(shade(reuse(node)));
        const auto columns = static_cast<int>((place.wide() - 14) / column_width);
        const std::string figures = plural(node.length, "token") + " x " + plural(node.rows, "row");
        std::string title = escaped_within(label, 160) + "\n" + plural(node.length, "token") +
                            ", begun with by " + plural(node.rows, "row") + ", computed " +
                            (node.times == 1 ? "once" : format_count(node.times) + " times");
        if (node.ending_rows > 0) {
            title += "\nown tokens behind it: " +
                     fixed(static_cast<double>(node.ending_tokens) /
                               static_cast<double>(node.ending_rows),
                           1) +
                     " a row, for " + plural(node.ending_rows, "row");
        }
        cell(place, kind.c_str(), columns < 4 ? "" : escaped_within(label, columns), figures,
             title);
    }

    // The branches below this one. A short node that branches is replaced by its branches.
    void add_branches(const Branch &above, std::vector<Branch> *out, int64_t *rest_rows,
                      int64_t *rest_groups) const {
        for (const int32_t index : above.node->children) {
            const SharingNode &node = tree_.node(index);
            Branch branch{&node, above.words, above.tokens};
            if (node.length >= least_length || node.children.empty()) {
                out->push_back(std::move(branch));
                continue;
            }
            if (branch.words.size() < most_label) branch.words += node.words;
            if (branch.tokens.size() <= shown_numbers) {
                branch.tokens.insert(branch.tokens.end(), node.tokens.begin(), node.tokens.end());
            }
            *rest_rows += node.rest_rows;
            *rest_groups += node.rest_groups;
            add_branches(branch, out, rest_rows, rest_groups);
        }
    }

    // Draws what is below a node: its children, most rows first. Children that are too many or too
    // narrow are merged into one, if that is visible. Nothing is drawn for rows that share no more.
    void children(const SharingNode &node, const Place &place) {
        if (place.level >= most_levels) return;
        int64_t rest_rows = node.rest_rows, rest_groups = node.rest_groups;
        std::vector<Branch> order;
        add_branches({&node, "", {}}, &order, &rest_rows, &rest_groups);
        std::stable_sort(order.begin(), order.end(), [](const Branch &a, const Branch &b) {
            return a.node->rows > b.node->rows;
        });
        double left = place.left;
        for (const Branch &branch : order) {
            const SharingNode &below = *branch.node;
            const double wide = width * static_cast<double>(below.rows) / rows_;
            if (wide < least_width || cells_ >= most_cells) {
                rest_rows += below.rows;
                rest_groups += below.groups;
                continue;
            }
            const Place at = {left, left + wide, place.level};
            prefix_cell(branch, at);
            children(below, {at.left, at.right, place.level + 1});
            left += wide;
        }
        if (const double wide = width * static_cast<double>(rest_rows) / rows_;
            wide >= least_width) {
            const std::string all = plural(rest_groups, left > place.left ? "more group" : "group");
            const auto columns = static_cast<int>((wide - 14) / column_width);
            cell({left, left + wide, place.level}, "rest",
                 columns < 4 ? "" : escaped_within(all, columns), plural(rest_rows, "row"),
                 all + ", " + plural(rest_rows, "row") + ": too many to draw");
            left += wide;
        }
        if (&node == &tree_.root() && node.ending_rows > 0) {
            const double wide = width * static_cast<double>(node.ending_rows) / rows_;
            const auto columns = static_cast<int>((wide - 14) / column_width);
            const std::string all = plural(node.ending_rows, "row") + " that share nothing";
            cell({left, left + wide, place.level}, "alone",
                 columns < 4 ? "" : escaped_within("nothing shared", columns),
                 plural(node.ending_rows, "row"), all);
        }
    }

    static std::string legend() {
        constexpr std::array<const char *, 5> names = {"1 row", "2 to 3", "4 to 15", "16 to 63",
                                                       "64 and more"};
        std::string out = "<p class=\"legend\">Rows served by each computed token:";
        for (size_t i = 0; i < names.size(); ++i) {
            out += " <span><i class=\"k" + std::to_string(i) + "\"></i>" + names[i] + "</span>";
        }
        return out + "</p>";
    }

    const SharingTree &tree_;
    double rows_;
    std::string out_;
    size_t cells_ = 0;
    int levels_ = 0;
};

} // namespace

std::string draw_icicle(const SharingTree &tree) { return Icicle(tree).draw(); }

std::string list_prefixes(const SharingTree &tree) { return Icicle(tree).list(); }

} // namespace batchllm
