// constraint [DOCUMENTS [VOCABULARY]]: how long constraints take to make, and token masks to fill.
// One thread; times are processor time, so that other programs have little effect. VOCABULARY: a
// file in tiktoken's format, "base64 rank" per line; without it, 128,000 synthetic tokens.
//
// Each grammar is compiled from scratch. Then documents that it accepts, cut into tokens longest
// first, are followed token by token, and each call of allowed() is timed. "all": every token of
// every document; a state seen before already has its mask, as in a job. "new": only the calls that
// made a mask, which is the cost of a cold cache, including the states made on the way. "first":
// every token of the first document only. "advance": the time of advance() per token.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "constraint/constraint.h"
#include "constraint/regex.h"
#include "constraint_vocabulary.h"

using namespace batchllm;

namespace {

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Random texts, the same on every machine.
class Writer {
  public:
    size_t pick(size_t n) { return random_() % n; }

    std::string words(size_t count) {
        static const char *const known[] = {"the",          "order",        "arrived",
                                            "late",         "and",          "box",
                                            "was",          "damaged",      "please",
                                            "refund",       "customer",     "support",
                                            "Berlin",       "Z\u00FCrich",  "caf\u00E9",
                                            "invoice",      "2024",         "number",
                                            "quality",      "excellent",    "would",
                                            "recommend",    "to",           "anyone",
                                            "looking",      "for",          "a",
                                            "reliable",     "machine",      "that",
                                            "lasts",        "\u6771\u4EAC", "management",
                                            "responsible",  "information",  "delivery",
                                            "(see",         "above)",       "it's",
                                            "C++",          "not",          "good",
                                            "\\\"fine\\\"", "line\\nbreak", "e.g.",
                                            "10%",          "\u2014",       "international",
                                            "shipping,",    "thanks!"};
        std::string text;
        for (size_t i = 0; i < count; ++i) {
            if (i > 0) text += ' ';
            text += known[pick(std::size(known))];
        }
        return text;
    }
    std::string string(size_t count) { return '"' + words(count) + '"'; }
    std::string letters(size_t count, const std::string &from) {
        std::string text;
        while (text.size() < count) text += from[pick(from.size())];
        return text;
    }
    std::string number() {
        return std::to_string(pick(1000)) + (pick(2) == 0 ? "." + letters(2, "0123456789") : "");
    }
    std::string one_of(const std::vector<std::string> &values) {
        return values[pick(values.size())];
    }

    std::string record() {
        std::string text = "{\"name\": " + string(2) + ", \"age\": " + std::to_string(pick(90));
        if (pick(2) == 0)
            text +=
                ", \"email\": \"" + letters(8, "abcdefgh.") + "@" + letters(6, "xyzklm") + ".com\"";
        text += ", \"address\": {\"street\": " + string(3) + ", \"city\": \"Berlin\"";
        if (pick(2) == 0) text += ", \"postcode\": \"" + letters(5, "0123456789") + "\"";
        text += "}, \"tags\": [";
        for (size_t i = 0, n = pick(4); i < n; ++i) {
            text += i > 0 ? ", " : "";
            text += one_of({"\"urgent\"", "\"billing\"", "\"technical\"", "\"other\""});
        }
        text += "]";
        if (pick(2) == 0) text += ", \"score\": " + number();
        return text + ", \"summary\": " + string(10 + pick(20)) +
               ", \"sentiment\": " + one_of({"\"positive\"", "\"negative\"", "\"neutral\""}) + "}";
    }
    std::string value(int32_t depth) {
        const size_t kind = pick(depth > 0 ? 6 : 3);
        if (kind == 0) return number();
        if (kind == 1) return one_of({"true", "false", "null"});
        if (kind == 2) return string(1 + pick(8));
        const bool object = kind < 5;
        std::string text = object ? "{\n  " : "[";
        for (size_t i = 0, n = 1 + pick(4); i < n; ++i) {
            if (i > 0) text += object ? ",\n  " : ", ";
            if (object) text += string(1) + ": ";
            text += value(depth - 1);
        }
        return text + (object ? "\n}" : "]");
    }
    std::string identifier() {
        std::string text = letters(3, "ABCDEF") + "-" + letters(4 + pick(5), "0123456789");
        if (pick(2) == 0) text += " (the late order)";
        return text;
    }

  private:
    std::mt19937_64 random_{20261120};
};

struct Case {
    const char *name;
    Grammar grammar;
    std::string (*text)(Writer *);
};

// The parts of a JSON document.
class JsonParts {
  public:
    explicit JsonParts(Grammar *grammar) : grammar_(*grammar) {
        character_ = expression(R"re([^"\\\x00-\x1f\x7f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))re");
    }
    NodeId expression(const char *text) {
        Budget budget;
        return grammar_.terminal(compile_regex(text, {}, &budget).value());
    }
    NodeId string() {
        return expression(R"re("(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")re");
    }
    NodeId string(int64_t least, int64_t greatest) {
        return grammar_.sequence({grammar_.bytes("\""),
                                  grammar_.repeat(character_, least, greatest),
                                  grammar_.bytes("\"")});
    }
    NodeId integer() { return expression("-?(?:0|[1-9][0-9]*)"); }
    NodeId number() {
        return expression(R"re(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)re");
    }
    NodeId array(NodeId item, int64_t least, int64_t greatest) {
        return grammar_.sequence({grammar_.bytes("["),
                                  grammar_.repeat(item, least, greatest, grammar_.bytes(", ")),
                                  grammar_.bytes("]")});
    }
    Members::Element member(const std::string &name, NodeId value, bool required) {
        return {grammar_.sequence({grammar_.bytes("\"" + name + "\": "), value}), required};
    }
    NodeId object(std::vector<Members::Element> elements, Members::Order order) {
        Members members;
        members.elements = std::move(elements);
        members.separator = grammar_.bytes(", ");
        members.order = order;
        return grammar_.sequence(
            {grammar_.bytes("{"), grammar_.members(std::move(members)), grammar_.bytes("}")});
    }
    NodeId choice(const std::vector<std::string> &values) {
        std::vector<NodeId> nodes;
        for (const std::string &value : values)
            nodes.push_back(grammar_.bytes("\"" + value + "\""));
        return grammar_.choice(std::move(nodes));
    }

  private:
    Grammar &grammar_;
    NodeId character_;
};

Grammar record(Members::Order order) {
    Grammar grammar;
    JsonParts json(&grammar);
    const NodeId address = json.object(
        {json.member("street", json.string(), true), json.member("city", json.string(1, 40), true),
         json.member("postcode", json.expression("\"[0-9]{5}\""), false)},
        order);
    const NodeId tags =
        json.array(json.choice({"urgent", "billing", "technical", "other", "praise"}), 0, 5);
    grammar.set_root(json.object(
        {json.member("name", json.string(), true), json.member("age", json.integer(), true),
         json.member("email", json.expression("\"[a-z0-9._]+@[a-z0-9]+\\.[a-z]{2,6}\""), false),
         json.member("address", address, true), json.member("tags", tags, true),
         json.member("score", json.number(), false),
         json.member("summary", json.string(10, 400), true),
         json.member("sentiment", json.choice({"positive", "negative", "neutral"}), true)},
        order));
    return grammar;
}

Grammar any_json() {
    Grammar grammar;
    JsonParts json(&grammar);
    const NodeId value = grammar.declare("value");
    const NodeId space = json.expression("[ \\n\\t]{0,4}");
    const NodeId comma = grammar.sequence({grammar.bytes(","), space});
    const NodeId member = grammar.sequence({json.string(), grammar.bytes(":"), space, value});
    const auto block = [&](const char *open, NodeId item, const char *close) {
        return grammar.sequence({grammar.bytes(open), space,
                                 grammar.repeat(item, 0, Automaton::kUnbounded, comma), space,
                                 grammar.bytes(close)});
    };
    grammar.define(value, grammar.choice({json.string(), json.number(), grammar.bytes("true"),
                                          grammar.bytes("false"), grammar.bytes("null"),
                                          block("{", member, "}"), block("[", value, "]")}));
    grammar.set_root(value);
    return grammar;
}

Grammar identifier() {
    Grammar grammar;
    JsonParts json(&grammar);
    grammar.set_root(json.expression("[A-Z]{2,4}-[0-9]{4,8}(?: \\([a-z ]+\\))?"));
    return grammar;
}

std::vector<double> sorted(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values;
}

void print(const char *what, const std::vector<double> &seconds) {
    const std::vector<double> values = sorted(seconds);
    if (values.empty()) return;
    double sum = 0;
    for (const double value : values) sum += value;
    const auto at = [&](double share) {
        return 1e6 * values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
    };
    std::printf("    %-8s %8zu  mean %8.2f  median %8.2f  99th %8.2f  worst %8.2f us\n", what,
                values.size(), 1e6 * sum / static_cast<double>(values.size()), at(0.5), at(0.99),
                at(1));
}

// Empty, with a message, if there is no such file.
std::vector<std::string> read_tiktoken(const char *path) {
    std::vector<std::string> tokens;
    std::ifstream file(path);
    std::string base64;
    for (size_t rank; file >> base64 >> rank && rank < 1'000'000;) {
        std::string bytes;
        uint32_t bits = 0;
        int32_t held = 0;
        for (const char c : base64) {
            constexpr std::string_view digits =
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            if (digits.find(c) == std::string_view::npos) break;
            bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
            held += 6;
            if (held < 8) continue;
            held -= 8;
            bytes += static_cast<char>(bits >> held);
        }
        if (rank >= tokens.size()) tokens.resize(rank + 1);
        tokens[rank] = bytes;
    }
    if (tokens.empty()) std::fprintf(stderr, "%s: no tokens\n", path);
    return tokens;
}

using TokenIds = std::unordered_map<std::string, int32_t>;

std::vector<int32_t> longest_first(const std::string &text, const TokenIds &ids) {
    std::vector<int32_t> tokens;
    for (size_t place = 0; place < text.size();) {
        size_t length = std::min<size_t>(24, text.size() - place);
        while (!ids.contains(text.substr(place, length))) --length;
        tokens.push_back(ids.at(text.substr(place, length)));
        place += length;
    }
    return tokens;
}

struct Times {
    std::vector<double> all, made, first, advanced;
};

bool measure(const Case &wanted, int32_t documents, const TokenIds &ids,
             const std::shared_ptr<const TokenVocabulary> &vocabulary, Times *total) {
    const double start = processor_seconds();
    const auto constraint = Constraint::make(wanted.grammar, vocabulary, {});
    const double making = processor_seconds() - start;
    if (!constraint.ok()) {
        std::fprintf(stderr, "%s: %s\n", wanted.name, constraint.status().message().c_str());
        return false;
    }
    Times times;
    Writer writer;
    int64_t made = 0;
    for (int32_t i = 0; i < documents; ++i) {
        const std::string text = wanted.text(&writer);
        ConstraintState state(*constraint);
        for (const int32_t token : longest_first(text, ids)) {
            const double asked = processor_seconds();
            const auto allowed = state.allowed();
            const double seconds = processor_seconds() - asked;
            if (!allowed.ok()) return false;
            times.all.push_back(seconds);
            if (i == 0) times.first.push_back(seconds);
            if ((*constraint)->masks_made() > made) times.made.push_back(seconds);
            made = (*constraint)->masks_made();
            const double advancing = processor_seconds();
            if (!state.advance(token).ok()) {
                std::fprintf(stderr, "%s: refused: %s\n", wanted.name, text.c_str());
                return false;
            }
            times.advanced.push_back(processor_seconds() - advancing);
        }
    }
    std::printf("%s: made in %.0f us\n", wanted.name, 1e6 * making);
    print("all", times.all);
    print("first", times.first);
    print("new", times.made);
    print("advance", times.advanced);
    const auto append = [](std::vector<double> *to, const std::vector<double> &from) {
        to->insert(to->end(), from.begin(), from.end());
    };
    append(&total->all, times.all);
    append(&total->made, times.made);
    append(&total->first, times.first);
    append(&total->advanced, times.advanced);
    return true;
}

} // namespace

int main(int argc, char **argv) {
    const int32_t documents = argc > 1 ? std::atoi(argv[1]) : 50;
    std::vector<std::string> tokens =
        argc > 2 ? read_tiktoken(argv[2]) : VocabularyMaker::make(128'000);
    if (tokens.empty()) return 1;
    TokenIds ids;
    for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<int32_t>(i));
    const auto eos = static_cast<int32_t>(tokens.size());
    tokens.emplace_back("</s>");
    std::vector<uint8_t> special(tokens.size(), 0);
    special.back() = 1;
    const double start = processor_seconds();
    const auto vocabulary = TokenVocabulary::make(std::move(tokens), special, {&eos, 1});
    if (!vocabulary.ok()) return 1;
    std::printf("vocabulary of %d tokens, tries made in %.0f ms\n", (*vocabulary)->size(),
                1e3 * (processor_seconds() - start));
    const auto record_text = [](Writer *writer) { return writer->record(); };
    const Case cases[] = {
        {"record", record(Members::Order::declared), record_text},
        {"record in any order", record(Members::Order::any), record_text},
        {"any JSON", any_json(), [](Writer *writer) { return writer->value(3); }},
        {"identifier", identifier(), [](Writer *writer) { return writer->identifier(); }}};
    Times total;
    for (const Case &wanted : cases)
        if (!measure(wanted, documents, ids, *vocabulary, &total)) return 1;
    std::printf("together\n");
    print("all", total.all);
    print("first", total.first);
    print("new", total.made);
    print("advance", total.advanced);
    return 0;
}
