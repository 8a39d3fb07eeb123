// Constraints in the engine: every text matches its constraint, whatever else is computed, with any
// number of batches in flight and however few pages; and no other row changes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include <regex.h>
#include <simdjson.h>

#include "constraint_job.h"

using namespace batchllm;

namespace {

// ---- Constraints, each checked without the constraint's own code ----

struct Rule {
    const char *name;
    ConstraintSpecification specification;
    bool (*holds)(const std::string &text);
};

bool is_choice(const std::string &text) {
    return text == "yes" || text == "no" || text == "yesterday";
}

// Whether the whole text matches the POSIX expression. (With <regex>, clang takes twice as long for
// this file.)
bool matches(const std::string &text, const char *expression) {
    regex_t compiled;
    assert_int_equal(regcomp(&compiled, expression, REG_EXTENDED), 0);
    regmatch_t found[1];
    const bool matched = regexec(&compiled, text.c_str(), 1, found, 0) == 0;
    regfree(&compiled);
    return matched && found[0].rm_so == 0 && found[0].rm_eo == static_cast<regoff_t>(text.size());
}

bool is_plate(const std::string &text) {
    return matches(text, "[A-Z]{2}-[0-9]{3}(red|green|blue)?");
}

bool is_person(const std::string &text) {
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    if (parser.parse(text).get(root) != simdjson::SUCCESS || !root.is_object()) return false;
    std::string_view name, colour;
    int64_t age = 0;
    bool member = false;
    return simdjson::dom::object(root).size() == 4 && root["name"].get(name) == simdjson::SUCCESS &&
           name.size() <= 4 * 4 && root["age"].get(age) == simdjson::SUCCESS && age >= 0 &&
           age <= 120 && root["member"].get(member) == simdjson::SUCCESS &&
           root["colour"].get(colour) == simdjson::SUCCESS &&
           (colour == "red" || colour == "green" || colour == "blue");
}

bool is_nested(const std::string &text) {
    size_t open = 0;
    while (open < text.size() && text[open] == '(') ++open;
    return open <= 3 && text == std::string(open, '(') + "x" + std::string(open, ')');
}

bool is_sum(const std::string &text) { return matches(text, "[0-9]{1,2}(\\+[0-9]{1,2}){1,3}"); }

// Checks the text after the marker; a row that is cut before it, or ends with an EOS, has none.
bool is_thought(const std::string &text) {
    const size_t at = text.find("=>");
    return at == std::string::npos || is_choice(text.substr(at + 2));
}

std::vector<Rule> rules() {
    using Kind = ConstraintSpecification::Kind;
    std::vector<Rule> all(6);
    all[0] = {"choices", {}, is_choice};
    all[0].specification.kind = Kind::choices;
    all[0].specification.choices = {"yes", "no", "yesterday"};
    all[1] = {"regex", {}, is_plate};
    all[1].specification.kind = Kind::regex;
    all[1].specification.text = "[A-Z]{2}-\\d{3}(red|green|blue)?";
    all[2] = {"json_schema", {}, is_person};
    all[2].specification.kind = Kind::json_schema;
    all[2].specification.text = R"({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "member": {"type": "boolean"},
        "colour": {"enum": ["red", "green", "blue"]}},
        "required": ["name", "age", "member", "colour"], "additionalProperties": false})";
    all[2].specification.json.numbers = NumberStyle::plain;
    all[3] = {"gbnf", {}, is_nested};
    all[3].specification.kind = Kind::gbnf;
    all[3].specification.text = "root ::= \"x\" | \"(\" a \")\"\n"
                                "a ::= \"x\" | \"(\" b \")\"\nb ::= \"x\" | \"(x)\"\n";
    all[4] = {"lark", {}, is_sum};
    all[4].specification.kind = Kind::lark;
    all[4].specification.text = "start: N (\"+\" N)~1..3\nN: /[0-9]{1,2}/\n";
    all[5] = {"start_after", {}, is_thought};
    all[5].specification.kind = Kind::choices;
    all[5].specification.choices = all[0].specification.choices;
    all[5].specification.options.start_after = "=>";
    return all;
}

// ---- Jobs ----

struct Way {
    const char *name;
    batchllm_params params;
};

std::vector<Way> ways() {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 90;
    params.logprobs = 2;
    std::vector<Way> all{{"greedy", params}};
    params.logprobs = -1; // so that forced tokens are not sampled
    all.push_back({"greedy, forced tokens", params});
    params.temperature = 1.5f;
    all.push_back({"drawn, forced tokens", params});
    params.logprobs = 2;
    params.temperature = 1.5f;
    params.samples = 3;
    params.seed = 7;
    all.push_back({"drawn", params});
    params.samples = 1;
    params.repetition_penalty = 1.4f;
    params.ignore_eos = 1;
    all.push_back({"drawn with penalties, EOS ignored", params});
    return all;
}

constexpr int32_t prompts_of_a_rule = 12;
constexpr int32_t rows_of_a_prompt = 7; // one per rule, and a free one

std::string prompt_of(int32_t i) {
    return "The rows have a head in common, then their own: " +
           std::string(size_t(i % 5) * 7, 'a') + std::to_string(i);
}

// Rows of every rule and free ones, of the same prompts, with handles destroyed before the job runs.
AnswersByRow run(const Shape &shape, const Way &way, batchllm_stats *stats = nullptr,
                 int64_t *fed_tokens = nullptr, DraftWork *drafts = nullptr) {
    const std::unique_ptr<Engine> engine = make_engine(shape, fed_tokens);
    {
        std::vector<batchllm_constraint> handles;
        for (const Rule &rule : rules())
            handles.push_back(handle_of(engine.get(), rule.specification));
        for (int32_t i = 0; i < prompts_of_a_rule; ++i) {
            uint64_t tag = static_cast<uint64_t>(i) * rows_of_a_prompt;
            for (const batchllm_constraint &handle : handles)
                add(engine.get(), prompt_of(i), tag++, way.params, &handle);
            add(engine.get(), prompt_of(i), tag, way.params, nullptr);
        }
    }
    const Status status = engine->run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s: %s", way.name, status.message().c_str());
    if (stats != nullptr) *stats = engine->stats();
    if (drafts != nullptr) {
        drafts->proposed += engine->draft_work().proposed;
        drafts->accepted += engine->draft_work().accepted;
    }
    return answers_of(*engine->poll(0));
}

struct Ends {
    int64_t stopped = 0, cut = 0;
};

// Checks that every row that stopped has a text of its rule.
void check(const AnswersByRow &answers, const Way &way, Ends *ends) {
    const std::vector<Rule> all = rules();
    assert_int_equal(answers.size(), prompts_of_a_rule * rows_of_a_prompt * way.params.samples);
    for (const auto &[row, answer] : answers) {
        assert_int_equal(answer.status, BATCHLLM_OK);
        const size_t rule = row.first % rows_of_a_prompt;
        if (rule == all.size()) continue; // a free one
        if (answer.finish == BATCHLLM_FINISH_LENGTH) {
            assert_int_equal(answer.tokens.size(), way.params.max_tokens);
            ++ends->cut;
            continue;
        }
        assert_int_equal(answer.finish, BATCHLLM_FINISH_STOP);
        if (!all[rule].holds(answer.text))
            fail_msg("%s, %s: %s", all[rule].name, way.name, answer.text.c_str());
        if (way.params.logprobs >= 0)
            assert_int_equal(answer.logprobs.size(), answer.tokens.size());
        for (const float logprob : answer.logprobs) assert_true(logprob <= 1e-6f);
        ++ends->stopped;
    }
}

// Checks that the tokens of `found` are those of the same rows in `expected`. An f32 sum may differ
// in its last bits with the rows beside it, so a token drawn at the very edge of its range may
// become its neighbour: at most one in fifty of the sampled rows. If rows got the wrong masks, many
// would differ.
void compare(const AnswersByRow &expected, const AnswersByRow &found, const Way &way,
             const char *what) {
    size_t differ = 0;
    for (const auto &[row, answer] : found) {
        const Answer &other = expected.at(row);
        if (other.tokens == answer.tokens) continue;
        if (way.params.temperature == 0 || ++differ > (found.size() + 49) / 50)
            fail_msg("%s, %s, row %d: \"%s\", expected \"%s\"", way.name, what, int(row.first),
                     answer.text.c_str(), other.text.c_str());
    }
}

void every_text_is_one_of_its_constraint_in_any_company(void **) {
    Ends ends, ends_in_company;
    int64_t fed_tokens = 0, preemptions = 0;
    DraftWork drafts;
    for (const Way &way : ways()) {
        const AnswersByRow alone = run({}, way);
        check(alone, way, &ends);
        std::vector<Shape> shapes(8);
        shapes[0].batches_in_flight = 2;
        shapes[1].batches_in_flight = 2;
        shapes[1].feeds_but_one_in = 3;
        shapes[2].batches_in_flight = 2;
        shapes[2].kv_memory_bytes = 400'000; // few pages
        shapes[3].batches_in_flight = 2;
        shapes[3].step_tokens = 24;
        shapes[4].kv_memory_bytes = 400'000;
        for (size_t i = 5; i < shapes.size(); ++i) shapes[i].drafts = Drafts::always;
        shapes[6].batches_in_flight = 2;
        shapes[7].batches_in_flight = 2;
        shapes[7].kv_memory_bytes = 400'000;
        for (size_t i = 0; i < shapes.size(); ++i) {
            batchllm_stats stats;
            const AnswersByRow found = run(shapes[i], way, &stats, &fed_tokens, &drafts);
            assert_int_equal(found.size(), alone.size());
            compare(alone, found, way, ("shape " + std::to_string(i)).c_str());
            check(found, way, &ends_in_company);
            preemptions += stats.preemptions;
        }
    }
    print_message(
        "%d stopped, %d cut; %d tokens fed, %d preemptions; %d tokens proposed, %d right\n",
        int(ends.stopped), int(ends.cut), int(fed_tokens), int(preemptions), int(drafts.proposed),
        int(drafts.accepted));
    assert_true(ends.stopped > 250 && ends.cut > 0);
    assert_true(fed_tokens > 1000 && preemptions > 0);
    assert_true(drafts.accepted > 100 && drafts.proposed > drafts.accepted);
}

// `sim` draws tokens without a model: only the masks shape the text.
void made_up_tokens_keep_to_their_constraints_too(void **) {
    for (const int32_t batches : {1, 2}) {
        Shape shape;
        shape.backend = "sim";
        shape.batches_in_flight = batches;
        Ends ends;
        for (const Way &way : ways()) check(run(shape, way), way, &ends);
        assert_true(ends.stopped > 200);
    }
}

void free_rows_are_what_they_are_without_constraints(void **) {
    for (const Way &way : ways()) {
        const AnswersByRow together = run({}, way);
        const std::unique_ptr<Engine> engine = make_engine({});
        for (int32_t i = 0; i < prompts_of_a_rule; ++i) {
            const uint64_t tag = static_cast<uint64_t>(i + 1) * rows_of_a_prompt - 1;
            add(engine.get(), prompt_of(i), tag, way.params, nullptr);
        }
        assert_true(engine->run(nullptr, nullptr).ok());
        compare(together, answers_of(*engine->poll(0)), way, "free rows alone");
    }
}

void equal_greedy_rows_of_one_constraint_are_computed_once(void **) {
    const Way greedy = ways()[0];
    const std::unique_ptr<Engine> engine = make_engine({});
    const ConstraintSpecification choices = rules()[0].specification;
    const batchllm_constraint one = handle_of(engine.get(), choices);
    const batchllm_constraint other = handle_of(engine.get(), rules()[1].specification);
    for (uint64_t tag = 0; tag < 5; ++tag) add(engine.get(), "Equal", tag, greedy.params, &one);
    for (uint64_t tag = 5; tag < 8; ++tag) add(engine.get(), "Equal", tag, greedy.params, &other);
    add(engine.get(), "Equal", 8, greedy.params, nullptr);
    assert_true(engine->run(nullptr, nullptr).ok());
    assert_int_equal(engine->stats().rows_deduplicated, 4 + 2);
    for (const auto &[row, answer] : answers_of(*engine->poll(0))) {
        if (row.first < 5) assert_true(is_choice(answer.text));
        if (row.first >= 5 && row.first < 8) assert_true(is_plate(answer.text));
    }
}

void a_row_ends_where_nothing_can_follow(void **) {
    const Way greedy = ways()[0];
    const std::unique_ptr<Engine> engine = make_engine({});
    ConstraintSpecification one_text = rules()[0].specification;
    one_text.choices = {"blue"};
    const batchllm_constraint handle = handle_of(engine.get(), one_text);
    add(engine.get(), "Any", 0, greedy.params, &handle);
    assert_true(engine->run(nullptr, nullptr).ok());
    const AnswersByRow answers = answers_of(*engine->poll(0));
    const Answer &answer = answers.at({0, 0});
    assert_string_equal(answer.text.c_str(), "blue");
    assert_int_equal(answer.finish, BATCHLLM_FINISH_STOP);
    assert_true(std::find(answer.tokens.begin(), answer.tokens.end(), model_eos) ==
                answer.tokens.end());
    // If only one token is allowed, its probability is 1.
    assert_true(std::abs(answer.logprobs.back()) < 1e-6f || answer.tokens.size() == 1);
}

// A text that is entirely forced is computed in a few steps, in the tokens of the tokenizer.
void forced_tokens_take_no_step_each(void **) {
    for (const int32_t batches : {1, 2}) {
        Shape shape;
        shape.batches_in_flight = batches;
        for (const int32_t logprobs : {0, -1}) {
            batchllm_params params = ways()[0].params;
            params.logprobs = logprobs;
            const std::unique_ptr<Engine> engine = make_engine(shape);
            ConstraintSpecification long_text = rules()[1].specification;
            long_text.text = "the names of the three green colours in the blue age are (red|blue)";
            const batchllm_constraint handle = handle_of(engine.get(), long_text);
            add(engine.get(), "Any", 0, params, &handle);
            const Status status = engine->run(nullptr, nullptr);
            if (!status.ok()) fail_msg("%s", status.message().c_str());
            const AnswersByRow answers = answers_of(*engine->poll(0));
            const Answer &answer = answers.at({0, 0});
            assert_true(answer.text.starts_with("the names of the three green colours"));
            assert_true(answer.text.ends_with("red") || answer.text.ends_with("blue"));
            const auto tokens = static_cast<int64_t>(answer.tokens.size());
            assert_int_equal(engine->stats().completion_tokens, tokens);
            assert_true(tokens > 30);
            if (logprobs >= 0) {
                assert_true(engine->stats().steps >= tokens);
            } else {
                assert_true(engine->stats().steps <= 8);
            }
        }
    }
}

void a_row_that_is_cut_says_so(void **) {
    batchllm_params params = ways()[0].params;
    params.max_tokens = 3;
    const std::unique_ptr<Engine> engine = make_engine({});
    const batchllm_constraint handle = handle_of(engine.get(), rules()[2].specification);
    add(engine.get(), "Any", 0, params, &handle);
    assert_true(engine->run(nullptr, nullptr).ok());
    const AnswersByRow answers = answers_of(*engine->poll(0));
    assert_int_equal(answers.at({0, 0}).finish, BATCHLLM_FINISH_LENGTH);
    assert_true(answers.at({0, 0}).text.starts_with("{\""));
}

void a_constraint_of_another_engine_is_the_rows_error(void **) {
    const std::unique_ptr<Engine> engine = make_engine({}), other = make_engine({});
    const batchllm_constraint handle = handle_of(other.get(), rules()[0].specification);
    add(engine.get(), "Any", 0, ways()[0].params, &handle);
    add(engine.get(), "Any", 1, ways()[0].params, nullptr);
    assert_true(engine->run(nullptr, nullptr).ok());
    const AnswersByRow answers = answers_of(*engine->poll(0));
    assert_int_equal(answers.at({0, 0}).status, BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    assert_int_equal(answers.at({1, 0}).status, BATCHLLM_OK);
}

// Only generated rows have a text that could be constrained.
void a_constraint_of_an_embedded_row_is_its_error(void **) {
    const std::unique_ptr<Engine> engine = make_engine({});
    const batchllm_constraint handle = handle_of(engine.get(), rules()[0].specification);
    batchllm_params params = ways()[0].params;
    params.task = BATCHLLM_TASK_EMBED;
    params.pooling = BATCHLLM_POOLING_LAST;
    add(engine.get(), "Any", 0, params, &handle);
    add(engine.get(), "Any", 1, params, nullptr);
    assert_true(engine->run(nullptr, nullptr).ok());
    const AnswersByRow answers = answers_of(*engine->poll(0));
    assert_int_equal(answers.at({0, 0}).status, BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    assert_int_equal(answers.at({1, 0}).status, BATCHLLM_OK);
}

// Everything that the constraint allows is banned: that row fails, its neighbour does not.
void a_row_without_a_token_left_fails_alone(void **) {
    const std::unique_ptr<Engine> engine = make_engine({});
    const batchllm_constraint handle = handle_of(engine.get(), rules()[0].specification);
    batchllm_params params = ways()[0].params;
    std::vector<int32_t> tokens(model_eos);
    for (int32_t i = 0; i < model_eos; ++i) tokens[size_t(i)] = i;
    const std::vector<float> banned(tokens.size(), -INFINITY);
    params.bias_tokens = tokens.data();
    params.bias_values = banned.data();
    params.bias_count = static_cast<int64_t>(tokens.size());
    add(engine.get(), "Any", 0, params, &handle);
    add(engine.get(), "Any", 1, ways()[0].params, &handle);
    const Status status = engine->run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    const AnswersByRow answers = answers_of(*engine->poll(0));
    assert_int_equal(answers.at({0, 0}).status, BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
    assert_true(is_choice(answers.at({1, 0}).text));
}

// Otherwise each of a million such rows would cost half a second.
void constraints_that_are_too_large_share_an_allowance(void **) {
    const std::unique_ptr<Engine> engine = make_engine({});
    const auto status_of = [&](const std::string &regex) {
        ConstraintSpecification wanted;
        wanted.kind = ConstraintSpecification::Kind::regex;
        wanted.text = regex;
        return engine->make_constraint(wanted).status();
    };
    const std::string large = ".{0,1500}a";
    assert_true(status_of(large).ok());
    for (int i = 0; i < 40; ++i) { // the same verdict: made once
        assert_int_equal(status_of("(a{1000}){1000}").code(), BATCHLLM_ERROR_UNSUPPORTED);
    }
    assert_true(status_of(large + "a").ok());
    for (int i = 1; i < 32; ++i) {
        assert_int_equal(status_of("(a{1000}){100" + std::to_string(i) + "}").code(),
                         BATCHLLM_ERROR_UNSUPPORTED);
    }
    const Status less = status_of(large + "b");
    assert_int_equal(less.code(), BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(std::strstr(less.message().c_str(), "more than 16384 automaton states"));
    assert_non_null(std::strstr(less.message().c_str(), "so each has less"));
    assert_true(status_of(".{0,99}a").ok());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_text_is_one_of_its_constraint_in_any_company),
        cmocka_unit_test(made_up_tokens_keep_to_their_constraints_too),
        cmocka_unit_test(free_rows_are_what_they_are_without_constraints),
        cmocka_unit_test(equal_greedy_rows_of_one_constraint_are_computed_once),
        cmocka_unit_test(a_row_ends_where_nothing_can_follow),
        cmocka_unit_test(forced_tokens_take_no_step_each),
        cmocka_unit_test(a_row_that_is_cut_says_so),
        cmocka_unit_test(a_constraint_of_another_engine_is_the_rows_error),
        cmocka_unit_test(a_constraint_of_an_embedded_row_is_its_error),
        cmocka_unit_test(a_row_without_a_token_left_fails_alone),
        cmocka_unit_test(constraints_that_are_too_large_share_an_allowance),
    };
    return cmocka_run_group_tests_name("engine_constraint", tests, nullptr, nullptr);
}
