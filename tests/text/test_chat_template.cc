// Chat templates: the golden data of tests/text/chat, the files of a model directory, and the
// limits for hostile templates.
#include "text/chat_template.h"

#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <map>
#include <setjmp.h>

extern "C" {
#include <cmocka.h>
}

#include "base/file.h"
#include "text/jinja/template.h"

using namespace batchllm;

namespace {

const char one_message[] = R"([{"role": "user", "content": "Hi"}])";

struct Rendered {
    Status status;
    std::string text;
};

Rendered render(const ChatTemplate &made, const std::string &conversation) {
    Rendered out;
    out.text = "kept";
    out.status = made.render(conversation, {}, &out.text);
    if (out.text.substr(0, 4) != "kept") out.text = "lost";
    out.text.erase(0, 4);
    return out;
}

Rendered render(const std::string &source, const std::string &conversation = one_message) {
    return render(*ChatTemplate::from_source("file", source, {{"bos_token", "<s>"}}), conversation);
}

// Whether rendering fails with ROW_TEMPLATE and a message that contains these words.
bool fails_with(const std::string &source, const std::string &words,
                const std::string &conversation = one_message) {
    const Rendered rendered = render(source, conversation);
    const bool named = rendered.status.message().find(words) != std::string::npos;
    if (!named)
        print_message("%s\n%s\n", source.substr(0, 200).c_str(), rendered.status.message().c_str());
    return rendered.status.code() == BATCHLLM_ERROR_ROW_TEMPLATE && named && rendered.text.empty();
}

std::string repeated(const std::string &part, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += part;
    return out;
}

// "before 0 after before 1 after ...", `count` of them.
std::string numbered(const std::string &before, const std::string &after, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += before + std::to_string(i) + after;
    return out;
}

// ---- Against transformers ----

int check_golden() {
    int failures = 0, texts = 0, refusals = 0;
    std::map<std::string, std::unique_ptr<const ChatTemplate>> templates;
    std::ifstream lines("text/chat/golden.jsonl");
    for (std::string line; std::getline(lines, line);) {
        const auto document = JsonDocument::parse(line, "golden.jsonl", BATCHLLM_ERROR_IO);
        if (!document.ok()) return 1;
        const JsonValue root = document->root();
        const std::string name = root.at("template")->string().value();
        auto &made = templates[name];
        if (made == nullptr) {
            made = ChatTemplate::from_source(
                name, read_file("text/chat/" + name + ".jinja", 1 << 20).value(),
                {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}});
        }
        std::string text;
        const Status status =
            made->render(root.at("conversation")->string().value(),
                         {.add_generation_prompt = root.at("prompt")->boolean().value()}, &text);
        const auto wanted = root.find("text");
        const bool good = wanted.has_value()
                              ? status.ok() && text == wanted->string().value()
                              : status.code() == BATCHLLM_ERROR_ROW_TEMPLATE && text.empty();
        (wanted.has_value() ? texts : refusals) += 1;
        if (good) continue;
        ++failures;
        print_message("%s\n%s\n%s\n", line.substr(0, 500).c_str(), status.message().c_str(),
                      text.c_str());
    }
    if (texts < 150 || refusals < 20) return 1; // the file exists and is complete
    return failures;
}

void templates_render_as_transformers_renders_them(void **) { assert_int_equal(check_golden(), 0); }

// ---- Bounds ----

int check_bounds() {
    int failures = 0;
    const auto check = [&](const std::string &source, const char *words) {
        if (!fails_with(source, words)) ++failures;
    };
    // Work.
    check("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
          "steps");
    check("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "nest too deeply");
    check("{% set s = 'ab' * 1000000 %}{% for a in range(99999) %}{{ 'x' in s }}{% endfor %}",
          "steps");
    // Memory.
    check("{{ 'a' * 100000000000 }}", "more text");
    check("{{ [1] * 100000000000 }}", "more text");
    check("{% set ns = namespace(s='ab') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
          "endfor %}",
          "more text");
    check("{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
          "endfor %}",
          "");
    check("{{ ('a' * 999999) | replace('a', 'b' * 9999) }}", "more text");
    check("{{ ('a\n' * 999999) | indent(9999) }}", "more text");
    check("{{ range(100001) }}", "range has more than");
    // Lists of a text's parts are rejected before they are created.
    check("{{ ('a,' * 15000000).split(',') }}", "more text");
    check("{{ ('a ' * 15000000).split() }}", "more text");
    check("{{ ('\\n' * 30000000).splitlines() }}", "more text");
    check("{{ ('\\n' * 30000000) | indent(0) }}", "more text");
    check("{{ ('\\u0001' * 60000000) | tojson }}", "more text");
    // Work that grows with more than one operand.
    const std::string many = "{% for a in range(99999) %}", end = "{% endfor %}";
    check("{% set p = '0.' * 2000000 %}{{ (['a'] * 30000) | map(attribute=p) | list }}", "steps");
    check("{{ ('a' * 4000000).rfind('b' ~ 'a' * 2000000) }}", "steps");
    check("{% set c = 'b' * 9999999 ~ 'a' %}" + many + "{{ 'aaaaaaaa'.strip(c) }}" + end, "steps");
    check("{% set s = 'a' * 9999999 %}" + many + "{{ s.startswith(s) }}" + end, "steps");
    check("{% set t = ('a',) * 500000 %}" + many + "{{ 'b'.startswith(t) }}" + end, "steps");
    check("{% set s = 'a' * 9999999 %}{% set d = {'a': 1" + numbered(", 'k", "': 1", 20) + "} %}" +
              many + "{{ s in d }}" + end,
          "steps");
    check("{% set d = {0: 1" + numbered(", ", ": 1", 30000) + "} %}", "steps");
    check("{% set d = {'a': 1" + numbered(", 'k", "': 1", 9999) + "} %}{{ d.keys() == d.keys() }}",
          "steps");
    check("{% set ns = namespace(s=[1], t=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, "
          "ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
          "{{ {'a': ns.s, 'b': 1}.items() == {'b': 1, 'a': ns.t}.items() }}",
          "steps");
    check("{% macro m(p" + numbered(", p", "", 9999) + ") %}{% endmacro %}" + many + "{{ m() }}" +
              end,
          "steps");
    // Filters that apply filters.
    check("{{ 'a' | map('map'" + repeated(", 'map'", 20000) + ", 'upper') | map('list') | list }}",
          "");
    check("{{ 'x' | center(100000000000) }}", "more text");
    check("{{ [1] | batch(100000000000, 0) | list }}", "more text");
    check("{{ [1] | slice(100000000000) | list }}", "more text");
    check("{{ ('<' * 30000000) | e }}", "more text");
    check("{{ ('[' * 30000000) | from_json }}", "more text");
    // Depth of values, which would make printing or comparing them take exponential time.
    check("{% set ns = namespace(s=[1]) %}{% for a in range(999) %}{% set ns.s = [ns.s, ns.s] %}{% "
          "endfor %}",
          "nested deeper");
    check("{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% "
          "endfor %}{{ ns.s | tojson }}",
          "steps");
    check("{% set ns = namespace(s=[1], t=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, "
          "ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
          "{{ ns.s == ns.t }}",
          "steps");
    // Output.
    check("{% set s = 'ab' * 1000000 %}{% for a in range(999) %}{{ s }}{% endfor %}",
          "prints more than");
    // Nesting of the template itself.
    check("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}", "nested too deeply");
    check("{{ " + repeated("not ", 5000) + "1 }}", "nested too deeply");
    check("{{ " + repeated("-", 5000) + "1 }}", "nested too deeply");
    check("{{ 1" + repeated(" + 1", 5000) + " }}", "nested too deeply");
    check("{{ x" + repeated(".a", 5000) + " }}", "nested too deeply");
    check(repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000), "nested too deeply");
    check("{% set " + repeated("(", 5000) + "a" + repeated(")", 5000) + " = 1 %}",
          "nested too deeply");
    // Searches take time linear in the text, and names are found by hash.
    const auto check_quick = [&](const std::string &source, const std::string &wanted,
                                 const std::string &conversation) {
        const Rendered rendered = render(source, conversation);
        if (rendered.status.ok() && rendered.text == wanted) return;
        print_message("%s\n%s\n", source.substr(0, 200).c_str(), rendered.status.message().c_str());
        ++failures;
    };
    check_quick("{{ ('a' * 9000000).find('a' * 4000000 ~ 'b') }}", "-1", one_message);
    check_quick("{{ ('a' * 9000000).count('a' * 4000000 ~ 'b') }}", "0", one_message);
    check_quick(numbered("{% set a", " = 1 %}", 100000) + "{{ a99999 }}", "1", one_message);
    check_quick("{% set ns = namespace() %}" + numbered("{% set ns.a", " = 1 %}", 100000) +
                    "{{ ns.a99999 }}",
                "1", one_message);
    check_quick(
        "{{ k199999 }}", "0",
        R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"k": 1)" +
            numbered(", \"k", "\": 0", 200000) + "}}");
    const std::string long_text(2000000, 'a');
    check_quick("{{ messages[0].content ~ messages[1].content }}",
                long_text + std::string(1000000, 'a') + "b",
                R"({"continue_final_message": true, "messages": [{"role": "user", "content": ")" +
                    long_text + R"("}, {"role": "user", "content": ")" + std::string(1000000, 'a') +
                    R"(b"}]})");
    // Errors are short, and UTF-8.
    const Rendered refused = render("{{ raise_exception('\xC3\xA9' * 200000) }}");
    if (refused.status.message().size() > 5000 || !refused.status.message().ends_with("\xC3\xA9"))
        ++failures;
    const Rendered undefined =
        render("{{ x['\xC3\xA9' * 300].y }}{{ ({})['a' ~ '\xC3\xA9' * 300].y }}");
    if (!is_utf8(undefined.status.message())) ++failures;
    // Depth of the input.
    const std::string deep = repeated("[", 300) + repeated("]", 300);
    if (!fails_with("x", "nested deeper",
                    R"([{"role": "user", "content": "x", "extra": )" + deep + "}]"))
        ++failures;
    return failures;
}

void a_hostile_template_meets_a_bound(void **) { assert_int_equal(check_bounds(), 0); }

// ---- Refusals ----

int check_refusals() {
    int failures = 0;
    const auto check = [&](const std::string &source, const char *words) {
        if (!fails_with(source, words)) ++failures;
    };
    check("a\nb {{ x | pprint }}", "chat template: line 2: not supported: filter 'pprint'");
    check("a\nb {{ x | unheard }}", "chat template: line 2: there is no filter 'unheard'");
    check("\n\n{{ x is lower }}", "line 3: not supported: test 'lower'");
    check("\n\n{{ x is unheard(y) }}", "line 3: there is no test 'unheard'");
    check("{{ x is sameas y }}", "sameas is supported for true, false and none");
    check("{% include 'x' %}", "line 1: not supported: tag 'include'");
    check("{{ 'x'.encode('utf8') }}", "attribute 'encode' of a str is not supported");
    check("{{ cycler(1) }}", "not supported: function 'cycler'");
    check("{{ ['x'] | map('pprint') | list }}", "not supported: filter 'pprint'");
    check("{{ messages | selectattr('role', 'unheard') | list }}", "there is no test 'unheard'");
    check("{{ [messages] | map('selectattr', 'role', 'unheard') | map('list') | list }}",
          "there is no test 'unheard'");
    check("{{ [[1]] | map('select', 5) | map('list') | list }}", "named by text, not by a int");
    check("{{ [[1]] | map('map', 'unheard') | map('list') | list }}",
          "there is no filter 'unheard'");
    check("{{ unheard(1) }}", "'unheard' is undefined");
    check("{{ '{\"a\": }' | from_json }}", "line 1: from_json");
    check("{{ unheard | from_json }}", "'unheard' is undefined");
    check("{% for a in b recursive %}{% endfor %}", "recursive");
    check("{{ f(*x, y) }}", "behind '*'");
    check("{{ f(**x, y=1) }}", "behind '**'");
    check("{{ dict(**messages) }}", "is a list, not a dict");
    check("{% set caller = 1 %}", "assigning 'caller'");
    check("{% call x %}{% endcall %}", "expected a call");
    check("{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "no argument 'caller'");
    check("{{ '%s' % 1 }}", "line 1: formatting");
    check("{{ x", "a tag has no end");
    check("{% if x %}", "the template ends without 'endif'");
    check("{% break %}", "outside of a loop");
    check("{# x", "comment");
    check("{{ ] }}", "unexpected ']'");
    check("\n{{ raise_exception('Roles: ' ~ messages[0].role) }}",
          "chat template: line 2: the template refuses: Roles: user");
    check("{{ x.y }}", "'x' is undefined");
    check("{{ messages.append(1) }}", "'append' is undefined");
    return failures;
}

void what_is_not_supported_is_refused_by_name_and_line(void **) {
    assert_int_equal(check_refusals(), 0);
}

// What is not known does no harm where the rendering never comes.
int check_not_reached() {
    int failures = 0;
    for (const char *use :
         {"{{ x | unheard }}", "{{ x | pprint(1) }}", "{{ x is unheard }}",
          "{{ x is not unheard(2) }}", "{{ x | map('unheard') }}", "{{ x.encode('utf8') }}",
          "{{ cycler(1) }}", "{{ self.x }}", "{{ unheard(1) }}", "{% set y = x | unheard %}",
          "{% filter unheard %}x{% endfilter %}", "{% for a in x | unheard %}{% endfor %}"}) {
        for (const std::string &source :
             {"{% if messages | length > 9 %}" + std::string(use) + "{% endif %}ok",
              "{% for a in [] %}" + std::string(use) + "{% endfor %}ok",
              "{% macro m() %}" + std::string(use) + "{% endmacro %}ok"}) {
            const Rendered rendered = render(source);
            if (rendered.status.ok() && rendered.text == "ok") continue;
            ++failures;
            print_message("%s\n%s\n", source.c_str(), rendered.status.message().c_str());
        }
    }
    const auto check = [&](const std::string &source, const char *wanted) {
        const Rendered rendered = render(source);
        if (rendered.status.ok() && rendered.text == wanted) return;
        ++failures;
        print_message("%s\n%s %s\n", source.c_str(), rendered.text.c_str(),
                      rendered.status.message().c_str());
    };
    check("{{ (x | unheard) if x is defined else 'ok' }}", "ok");
    check("{{ x is defined and x is unheard }}", "False");
    check("{{ [] | map('unheard') | list }}{{ [] | select('unheard') | list }}", "[][]");
    check("{% set joiner = 'ok' %}{{ joiner }}{{ super is defined }}", "okFalse");
    return failures;
}

void what_is_not_known_is_an_error_where_it_is_reached(void **) {
    assert_int_equal(check_not_reached(), 0);
}

int check_parsed_json() {
    int failures = 0;
    const auto check = [&](const std::string &source, const char *wanted) {
        const Rendered rendered = render(
            source,
            R"j([{"role": "user", "content": "Hi", "s": "{\"b\": [1, 2.5, null, \"\\u00e9\"], \"a\": {}}",
                 "d": {"k": 1}}])j");
        if (rendered.status.ok() && rendered.text == wanted) return;
        ++failures;
        print_message("%s\n%s %s\n", source.c_str(), rendered.text.c_str(),
                      rendered.status.message().c_str());
    };
    check("{{ messages[0].s | from_json }}", "{'b': [1, 2.5, None, '\u00e9'], 'a': {}}");
    check("{% for k, v in (messages[0].s | from_json).items() %}{{ k }}={{ v | tojson }};"
          "{% endfor %}",
          "b=[1, 2.5, null, \"\u00e9\"];a={};");
    // Its text outlives the text that it was made from.
    check("{% set ns = namespace() %}{% for i in range(3) %}{% if i == 0 %}"
          "{% set ns.x = ('\"' ~ 'ab' * 9 ~ '\"') | from_json %}{% endif %}{% endfor %}{{ ns.x }}",
          "ababababababababab");
    check("{{ messages[0].d | from_json }}{{ ' 3 ' | from_json + 1 }}{{ none | from_json }}",
          "{'k': 1}4None");
    return failures;
}

void arguments_written_as_json_are_parsed(void **) { assert_int_equal(check_parsed_json(), 0); }

// ---- Conversations ----

int check_conversations() {
    int failures = 0;
    const std::string source =
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ tools is none }}";
    const auto bad = [&](const std::string &conversation, const char *words) {
        if (!fails_with(source, words, conversation)) ++failures;
    };
    bad("[", "not JSON");
    bad("3", "must be a list of messages");
    bad("[]", "at least one message");
    bad("{}", "\"messages\" is missing");
    bad(R"([{"content": "x"}])", "role");
    bad(R"([{"role": "user", "content": 1}])", "\"[0].content\" is 1");
    bad(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
        "parts of this type are not supported");
    // Qwen-VL's template treats these as images, whatever their type.
    bad(R"([{"role": "user", "content": [{"image": "cat.png"}]}])",
        "parts with such a member are not supported");
    bad(R"([{"role": "user", "content": [{"type": "text", "text": "a", "image_url": {}}]}])",
        "parts with such a member are not supported");
    bad(R"([{"role": "user", "content": {"type": "image"}}])",
        "parts of this type are not supported");
    bad(R"([{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}])",
        "this template takes parts of type \"text\" alone");
    bad(R"({"messages": [{"role": "user", "content": null}], "continue_final_message": true})",
        "has no \"content\"");
    bad(R"({"messages": [{"role": "assistant", "content": "", "thinking": "hm"}], "continue_final_message": "thinking"})",
        "does not read \"thinking\"");
    bad(R"({"messages": [{"role": "user", "x": "y"}], "continue_final_message": "x"})",
        "does not read \"x\"");
    bad(R"([{"role": "user", "role": "user", "content": "x"}])", "given twice");
    bad(R"({"messages": [{"role": "user", "content": "x"}], "tool": 1})", "\"tool\"");
    bad(R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"tools": []}})",
        "beside");
    bad(R"({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": true, "continue_final_message": true})",
        "exclude each other");
    bad(R"({"messages": [{"role": "user", "content": 18446744073709551615}]})", "content");
    const auto good = [&](const std::string &conversation, const std::string &text) {
        const Rendered rendered = render(source, conversation);
        if (rendered.status.ok() && rendered.text == text) return;
        ++failures;
        print_message("%s\n%s %s\n", conversation.c_str(), rendered.text.c_str(),
                      rendered.status.message().c_str());
    };
    good(R"([{"role": "user", "content": "a\u00e9"}])", "user:a\u00e9;True");
    good(
        R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])",
        "user:a\nb;True");
    good(R"([{"role": "user", "content": [{"type": "text", "text": "a", "image": null}]}])",
         "user:a;True");
    good(R"({"tools": [], "messages": [{"role": "assistant", "content": null}]})",
         "assistant:;False"); // as if it were missing
    good(
        R"({"messages": [{"role": "assistant", "content": "Once "}], "continue_final_message": true})",
        "assistant:Once ");
    if (render(source, "[{\"role\": \"user\", \"content\": \"\xff\"}]").status.code() !=
        BATCHLLM_ERROR_ROW_INVALID_UTF8)
        ++failures;
    if (render(source, R"([{"role": "user", "content": "\ud800"}])").status.ok()) ++failures;
    // Reasoning is found under the name that a template reads, whichever it was given.
    const std::string reasoning =
        "{{ messages[0].keys() | list }}{{ messages[0].reasoning_content }}";
    const auto named = [&](const std::string &members, const std::string &text,
                           const std::string &more = "") {
        const Rendered rendered = render(reasoning, R"({"messages": [{"role": "assistant", )" +
                                                        members + "}]" + more + "}");
        if (rendered.status.ok() && rendered.text == text) return;
        ++failures;
        print_message("%s\n%s %s\n", members.c_str(), rendered.text.c_str(),
                      rendered.status.message().c_str());
    };
    named(R"("reasoning": "hm")", "['thinking', 'role', 'reasoning', 'reasoning_content']hm");
    named(R"("thinking": "hm", "reasoning_content": null)",
          "['thinking', 'role', 'reasoning_content']hm");
    named(R"("reasoning_content": "a", "thinking": "b")",
          "['thinking', 'role', 'reasoning_content']a");
    named(R"("thinking": "hm")", "['thinking', 'role', 'reasoning_content']hm",
          R"(, "continue_final_message": "thinking")");
    // Numbers of any size: those that nobody reads do no harm, and those that are printed are printed as Python does.
    const auto numbers = [&](const std::string &template_text, const std::string &text) {
        const Rendered rendered = render(
            template_text,
            R"([{"role": "user", "content": "x", "a": 1000000000000000019884624838656, "b": -9223372036854775809,)"
            R"( "c": 1e400, "d": -0, "e": 0.1e-9999, "f": 18446744073709551615, "g": 1.0E+2}])");
        if (rendered.status.ok() && rendered.text == text) return;
        ++failures;
        print_message("%s\n%s %s\n", template_text.c_str(), rendered.text.c_str(),
                      rendered.status.message().c_str());
    };
    const std::string m = "{% set m = messages[0] %}";
    numbers("{{ messages[0].content }}", "x");
    numbers(m + "{{ m.a }} {{ [m.b] }} {{ {'f': m.f} | tojson }} {{ m.a ~ '' }}",
            "1000000000000000019884624838656 [-9223372036854775809] {\"f\": 18446744073709551615} "
            "1000000000000000019884624838656");
    numbers(m + "{{ m.c }} {{ m.d }} {{ m.e }} {{ m.g }} {{ m.c | tojson }}",
            "inf 0 0.0 100.0 Infinity");
    numbers(m + "{{ m.a is integer }}{{ m.b is number }}{{ m.f is string }}{{ m.a == m.a }}"
                "{{ m.a == m.f }}{{ m.f | int }} {{ m.f | float }}",
            "TrueTrueFalseTrueFalse18446744073709551615 1.8446744073709552e+19");
    numbers("{{ '[1e999, 10000000000000000000000]' | from_json }}",
            "[inf, 10000000000000000000000]");
    if (!fails_with("{{ messages[0].n + 1 }}", "beyond 64 bits",
                    R"([{"role": "user", "content": "x", "n": 18446744073709551615}])"))
        ++failures;
    if (!fails_with("x", "more than 4300 digits",
                    R"([{"role": "user", "content": "x", "n": 1)" + repeated("0", 4300) + "}]"))
        ++failures;
    // A template that uses the parts receives them.
    const Rendered parts = render(
        "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}",
        R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
    if (parts.text != "<a><b>") ++failures;
    const Rendered tools = render(
        "{% if messages[0].content[0].type == 'tool_reference' %}{{ messages[0].content[0].name }}"
        "{% endif %}",
        R"([{"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]}])");
    if (tools.text != "f") ++failures;
    return failures;
}

void conversations_are_checked(void **) { assert_int_equal(check_conversations(), 0); }

void dates_are_those_of_the_call(void **) {
    std::tm day{};
    day.tm_year = 126;
    day.tm_mon = 10;
    day.tm_mday = 9;
    const auto made = ChatTemplate::from_source("file", "{{ strftime_now('%d %b %Y') }}", {});
    std::string text;
    assert_true(made->render(one_message, {true, nullptr, day}, &text).ok());
    assert_string_equal(text.c_str(), "09 Nov 2026");
    assert_true(fails_with("{{ strftime_now('%Q') }}", "format"));
}

// ---- Files ----

struct Directory {
    Directory() {
        char name[] = "/tmp/batchllm-chat-XXXXXX";
        path = mkdtemp(name);
    }
    ~Directory() { (void)!std::system(("rm -r " + path).c_str()); }
    void write(const std::string &name, const std::string &text) const {
        (void)write_file(path + "/" + name, text).ok();
    }
    Rendered render(const std::string &conversation = one_message) const {
        const auto loaded = ChatTemplate::load(path);
        if (!loaded.ok()) return {loaded.status(), ""};
        return ::render(**loaded, conversation);
    }
    std::string path;
};

int check_files() {
    const Directory model;
    if (model.render().status.message().find("tokenizer_config.json") == std::string::npos)
        return 1;
    model.write("chat_template.json", R"({"chat_template": "json"})");
    if (model.render().text != "json") return 2;
    model.write("special_tokens_map.json",
                R"({"bos_token": "<map>", "eos_token": {"content": "</map>"}})");
    model.write(
        "tokenizer_config.json",
        R"({"bos_token": "<config>", "pad_token": {"content": "<pad>"}, "add_bos_token": true,)"
        R"( "chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ add_bos_token }}"})");
    if (model.render().text != "<map></map><pad>") return 3;
    // With its added tokens, the configuration is complete, and the map is not read.
    model.write(
        "tokenizer_config.json",
        R"({"bos_token": "<config>", "added_tokens_decoder": {}, "chat_template": [)"
        R"({"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},)"
        R"({"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{% bad"}]})");
    if (model.render().text != "<config>") return 4;
    if (model.render(R"({"messages": [{"role": "user", "content": "x"}], "tools": []})").text !=
        "tools")
        return 5;
    // Names beyond the usual ones, as processors save them.
    model.write("tokenizer_config.json",
                R"({"extra_special_tokens": {"image_token": "<i>", "note": {"content": "<n>"}},)"
                R"( "boi_token": "<b>", "additional_special_tokens": ["<x>"], "chat_template":)"
                R"( "{{ image_token }}{{ note }}{{ boi_token }}{{ additional_special_tokens }}"})");
    if (model.render().text != "<i><n><b>") return 8;
    model.write("tokenizer_config.json",
                R"({"bos_token": "<config>", "extra_special_tokens": ["<x>"],)"
                R"( "added_tokens_decoder": {}})");
    model.write("chat_template.jinja", "jinja {{ bos_token }}\n");
    if (model.render().text != "jinja <config>") return 6;
    model.write("tokenizer_config.json", "{");
    if (model.render().status.message().find("not JSON") == std::string::npos) return 7;
    // transformers writes int(1e30) for a tokenizer without a limit.
    model.write("tokenizer_config.json",
                R"({"model_max_length": 1000000000000000019884624838656, "bos_token": "<big>",)"
                R"( "added_tokens_decoder": {}})");
    if (model.render().text != "jinja <big>") return 8;
    return 0;
}

void the_template_is_found_as_transformers_finds_it(void **) { assert_int_equal(check_files(), 0); }

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_transformers_renders_them),
        cmocka_unit_test(a_hostile_template_meets_a_bound),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name_and_line),
        cmocka_unit_test(what_is_not_known_is_an_error_where_it_is_reached),
        cmocka_unit_test(arguments_written_as_json_are_parsed),
        cmocka_unit_test(conversations_are_checked),
        cmocka_unit_test(dates_are_those_of_the_call),
        cmocka_unit_test(the_template_is_found_as_transformers_finds_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
