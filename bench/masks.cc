// masks TOKENIZER_JSON EOS SECONDS: times to make constraints and token masks for JSON schemas, for
// bench/masks.py.
//
// A line in:  {"schema": "its text", "spacing": "compact|flexible", "order": "declared|any",
//             "instances": [[token, ..], ..]}
// A line out: {"compile": ns, "accepted": [true, ..], "masks": [[ns, ..], ..], "advances": [[ns, ..], ..]}
//         or  {"compile": ns, "error": "..", "unsatisfiable": false}
//
// An instance's tokens are followed as long as the mask allows them; one more mask, after the last
// token, says whether the text may end there. The time of a mask is that of allowed() plus copying
// the bits to the caller's buffer, which is what the peers' calls do; the time of an advance is
// that of advance(). Both are processor time of this thread, so that other programs have little
// effect. A line that takes more than SECONDS of it ends the process (SIGPROF).
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "constraint/specification.h"

using namespace batchllm;

namespace {

int64_t processor_nanoseconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

std::string json_quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + '"';
}

void append(const std::vector<int64_t> &values, std::string *out) {
    *out += out->back() == '[' ? "[" : ", [";
    for (size_t i = 0; i < values.size(); ++i)
        *out += (i > 0 ? "," : "") + std::to_string(values[i]);
    *out += ']';
}

struct Followed {
    bool accepted = false;
    std::vector<int64_t> masks, advances;
};

// `bits`: [words of the vocabulary], the buffer for masks.
Result<Followed> follow(const std::shared_ptr<const Constraint> &constraint,
                        const std::vector<JsonValue> &tokens, int32_t eos,
                        std::vector<uint32_t> *bits) {
    Followed found;
    ConstraintState state(constraint);
    for (size_t i = 0; i <= tokens.size(); ++i) {
        const int64_t asked = processor_nanoseconds();
        ASSIGN_OR_RETURN(const AllowedTokens allowed, state.allowed());
        std::memcpy(bits->data(), allowed.words, bits->size() * sizeof(uint32_t));
        found.masks.push_back(processor_nanoseconds() - asked);
        int64_t token = eos;
        if (i < tokens.size()) {
            ASSIGN_OR_RETURN(token, tokens[i].integer(0, constraint->vocabulary().size() - 1));
        }
        if (((*bits)[static_cast<size_t>(token / 32)] >> (token % 32) & 1) == 0) return found;
        if (i == tokens.size()) break;
        const int64_t start = processor_nanoseconds();
        RETURN_IF_ERROR(state.advance(static_cast<int32_t>(token)));
        found.advances.push_back(processor_nanoseconds() - start);
    }
    found.accepted = true;
    return found;
}

Result<ConstraintSpecification> specification_of(const JsonValue &line) {
    ConstraintSpecification wanted;
    wanted.kind = ConstraintSpecification::Kind::json_schema;
    ASSIGN_OR_RETURN(wanted.text, line.string("schema"));
    ASSIGN_OR_RETURN(const std::string spacing, line.string("spacing"));
    ASSIGN_OR_RETURN(const std::string order, line.string("order"));
    if (spacing == "flexible") wanted.json.spacing = JsonSchemaOptions::Spacing::flexible;
    if (order == "any") wanted.json.order = Members::Order::any;
    return wanted;
}

Result<std::string> answer(const std::string &text,
                           const std::shared_ptr<const TokenVocabulary> &vocabulary, int32_t eos) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse(text, "line", BATCHLLM_ERROR_INVALID_ARGUMENT));
    ASSIGN_OR_RETURN(const ConstraintSpecification wanted, specification_of(document.root()));
    const int64_t start = processor_nanoseconds();
    const auto made = make_constraint(wanted, vocabulary);
    std::string out = "{\"compile\": " + std::to_string(processor_nanoseconds() - start);
    if (!made.ok()) {
        const std::string &message = made.status().message();
        const bool unsatisfiable = message.find("no value satisfies") != std::string::npos;
        return out + ", \"error\": " + json_quoted(message) +
               ", \"unsatisfiable\": " + (unsatisfiable ? "true}" : "false}");
    }
    ASSIGN_OR_RETURN(const JsonValue list, document.root().at("instances"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> instances, list.elements());
    std::vector<uint32_t> bits(static_cast<size_t>(vocabulary->words()));
    std::string accepted = "[", masks = "[", advances = "[";
    for (const JsonValue &instance : instances) {
        ASSIGN_OR_RETURN(const std::vector<JsonValue> tokens, instance.elements());
        ASSIGN_OR_RETURN(const Followed found, follow(made->constraint, tokens, eos, &bits));
        accepted += accepted.size() > 1 ? ", " : "";
        accepted += found.accepted ? "true" : "false";
        append(found.masks, &masks);
        append(found.advances, &advances);
    }
    return out + ", \"accepted\": " + accepted + "], \"masks\": " + masks +
           "], \"advances\": " + advances + "]}";
}

Status run(const char *path, int32_t eos, int32_t seconds) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::load(path));
    ASSIGN_OR_RETURN(const auto vocabulary, TokenVocabulary::make(*tokenizer, {&eos, 1}));
    std::vector<int64_t> nothing;
    for (int32_t i = 0; i < 1000; ++i) {
        const int64_t start = processor_nanoseconds();
        nothing.push_back(processor_nanoseconds() - start);
    }
    std::nth_element(nothing.begin(), nothing.begin() + 500, nothing.end());
    std::cout << "{\"ready\": " << vocabulary->size() << ", \"call\": " << nothing[500] << "}"
              << std::endl;
    const itimerval limit = {{0, 0}, {seconds, 0}};
    for (std::string line; std::getline(std::cin, line);) {
        setitimer(ITIMER_PROF, &limit, nullptr);
        ASSIGN_OR_RETURN(const std::string out, answer(line, vocabulary, eos));
        std::cout << out << std::endl;
    }
    return {};
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        std::cerr << "usage: masks TOKENIZER_JSON EOS SECONDS\n";
        return 2;
    }
    const Status status = run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
    if (!status.ok()) std::cerr << status.message() << std::endl;
    return status.ok() ? 0 : 1;
}
