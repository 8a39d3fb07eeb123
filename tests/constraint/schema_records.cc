// Compiles JSON schemas and runs texts through them, for check_json_schemas.py.
//
// A line in:  {"schema": "its text", "texts": ["..", ..], "spacing": "compact|flexible",
//              "order": "declared|any", "formats": true, "loose": false}
// A line out: {"verdicts": [true, ..], "microseconds": 12.5, "warnings": [".."]}
//         or  {"error": "..", "unsatisfiable": false, "microseconds": 12.5}
#include <ctime>
#include <iostream>
#include <memory>
#include <string>

#include "base/json.h"
#include "constraint/grammar_code.h"
#include "constraint/json_schema/json_schema.h"
#include "constraint/state_graph.h"

using namespace batchllm;

namespace {

// Processor time of this thread, which other programs on the machine do not affect.
double processor_microseconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::string json_quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + '"';
}

Result<JsonSchemaOptions> options_of(const JsonValue &line) {
    JsonSchemaOptions options;
    if (line.find("spacing")) {
        ASSIGN_OR_RETURN(const std::string spacing, line.string("spacing"));
        if (spacing == "flexible") options.spacing = JsonSchemaOptions::Spacing::flexible;
    }
    if (line.find("order")) {
        ASSIGN_OR_RETURN(const std::string order, line.string("order"));
        if (order == "any") options.order = Members::Order::any;
    }
    ASSIGN_OR_RETURN(options.formats, line.boolean_or("formats", true));
    ASSIGN_OR_RETURN(options.loose, line.boolean_or("loose", false));
    return options;
}

// The error of the compilation, or the graph to run texts through.
struct Compiled {
    Status status;
    std::vector<std::string> warnings;
    std::unique_ptr<StateGraph> graph;
};

Compiled compile(const std::string &schema, const JsonSchemaOptions &options) {
    Compiled out;
    Budget budget;
    auto grammar = compile_json_schema(schema, options, &budget);
    if (!grammar.ok()) {
        out.status = grammar.status();
        return out;
    }
    out.warnings = grammar->warnings;
    bool usable[256];
    std::fill(std::begin(usable), std::end(usable), true);
    auto code = GrammarCode::compile(grammar->grammar, usable, &budget);
    if (!code.ok()) {
        out.status = code.status();
        return out;
    }
    out.graph =
        std::make_unique<StateGraph>(std::make_shared<const GrammarCode>(std::move(*code)), 64, 64);
    return out;
}

bool accepts(StateGraph *graph, std::string_view text) {
    GraphState *state = graph->start();
    for (const char byte : text) {
        state = graph->next(state, static_cast<uint8_t>(byte));
        if (state == nullptr) return false;
    }
    return state->complete;
}

Status answer(const std::string &text) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse(text, "line", BATCHLLM_ERROR_INVALID_ARGUMENT));
    const JsonValue line = document.root();
    ASSIGN_OR_RETURN(const std::string schema, line.string("schema"));
    ASSIGN_OR_RETURN(const JsonSchemaOptions options, options_of(line));
    const double start = processor_microseconds();
    const Compiled compiled = compile(schema, options);
    const double microseconds = processor_microseconds() - start;
    std::string out = "{";
    if (!compiled.status.ok()) {
        const std::string &message = compiled.status.message();
        const bool unsatisfiable = message.find("no value satisfies") != std::string::npos;
        out += "\"error\": " + json_quoted(message) +
               ", \"unsatisfiable\": " + (unsatisfiable ? "true" : "false");
    } else {
        out += "\"verdicts\": [";
        ASSIGN_OR_RETURN(const JsonValue texts, line.at("texts"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> elements, texts.elements());
        for (size_t i = 0; i < elements.size(); ++i) {
            ASSIGN_OR_RETURN(const std::string instance, elements[i].string());
            out += (i > 0 ? ", " : "");
            out += accepts(compiled.graph.get(), instance) ? "true" : "false";
        }
        out += "], \"warnings\": [";
        for (size_t i = 0; i < compiled.warnings.size(); ++i) {
            out += (i > 0 ? ", " : "") + json_quoted(compiled.warnings[i]);
        }
        out += "]";
    }
    std::cout << out << ", \"microseconds\": " << microseconds << "}" << std::endl;
    return Status();
}

} // namespace

int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        const Status status = answer(line);
        if (!status.ok()) {
            std::cerr << status.message() << std::endl;
            return 1;
        }
    }
    return 0;
}
