// constraint [DOCUMENTS]: how long constraints take to make, and token masks to fill, over a made-up
// vocabulary of 128,000 tokens. One thread.
//
// Each grammar is made anew; then documents derived from it at random, cut into tokens longest first,
// are followed token by token, and each call of allowed() is timed. "all": every token of every
// document; a state that was met before has its mask already, as in a job. "new": only the calls that
// made a mask, which is what a cold cache costs; transitions made on the way are in it. The states that
// advance() makes are timed apart, per token.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../tests/constraint_reference.h"
#include "clock.h"
#include "constraint/constraint.h"
#include "constraint/regex.h"
#include "constraint_vocabulary.h"

using namespace batchllm;

namespace {

struct Case {
    const char *name;
    Grammar grammar;
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
    std::vector<double> all, made, advanced;
};

bool measure(const Case &wanted, int32_t documents, const TokenIds &ids,
             const std::shared_ptr<const TokenVocabulary> &vocabulary, Times *total) {
    const auto start = Clock::now();
    const auto constraint = Constraint::make(wanted.grammar, vocabulary, {});
    const double making = seconds_since(start);
    if (!constraint.ok()) {
        std::fprintf(stderr, "%s: %s\n", wanted.name, constraint.status().message().c_str());
        return false;
    }
    Times times;
    std::mt19937_64 random(1);
    std::unordered_set<const uint32_t *> met;
    for (int32_t i = 0; i < documents; ++i) {
        const auto text = Derivation(wanted.grammar, &random).make();
        if (!text) continue;
        ConstraintState state(*constraint);
        for (const int32_t token : longest_first(*text, ids)) {
            const auto asked = Clock::now();
            const auto allowed = state.allowed();
            const double seconds = seconds_since(asked);
            if (!allowed.ok()) return false;
            times.all.push_back(seconds);
            if (met.insert(allowed->words).second) times.made.push_back(seconds);
            const auto advancing = Clock::now();
            if (!state.advance(token).ok()) {
                std::fprintf(stderr, "%s: a derived text is refused\n", wanted.name);
                return false;
            }
            times.advanced.push_back(seconds_since(advancing));
        }
    }
    std::printf("%s: made in %.0f us\n", wanted.name, 1e6 * making);
    print("all", times.all);
    print("new", times.made);
    print("advance", times.advanced);
    const auto append = [](std::vector<double> *to, const std::vector<double> &from) {
        to->insert(to->end(), from.begin(), from.end());
    };
    append(&total->all, times.all);
    append(&total->made, times.made);
    append(&total->advanced, times.advanced);
    return true;
}

} // namespace

int main(int argc, char **argv) {
    const int32_t documents = argc > 1 ? std::atoi(argv[1]) : 50;
    std::vector<std::string> tokens = VocabularyMaker::make(128'000);
    TokenIds ids;
    for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<int32_t>(i));
    const auto eos = static_cast<int32_t>(tokens.size());
    tokens.emplace_back("</s>");
    std::vector<uint8_t> special(tokens.size(), 0);
    special.back() = 1;
    const auto start = Clock::now();
    const auto vocabulary = TokenVocabulary::make(std::move(tokens), special, {&eos, 1});
    if (!vocabulary.ok()) return 1;
    std::printf("vocabulary of %d tokens, tries made in %.0f ms\n", (*vocabulary)->size(),
                1e3 * seconds_since(start));
    const Case cases[] = {{"record", record(Members::Order::declared)},
                          {"record in any order", record(Members::Order::any)},
                          {"any JSON", any_json()},
                          {"identifier", identifier()}};
    Times total;
    for (const Case &wanted : cases)
        if (!measure(wanted, documents, ids, *vocabulary, &total)) return 1;
    std::printf("together\n");
    print("all", total.all);
    print("new", total.made);
    print("advance", total.advanced);
    return 0;
}
