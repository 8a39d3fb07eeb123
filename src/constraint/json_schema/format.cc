#include "constraint/json_schema/format.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "constraint/json_schema/string.h"
#include "constraint/regex.h"

namespace batchllm {

namespace {

// Expressions are ECMAScript's and match whole texts: language() adds ^(?: and )$.

// RFC 3339, 5.6, with the days that a month has. A leap second is written in UTC alone.
constexpr const char *kDate =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
constexpr const char *kTime = "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?"
                              "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|"
                              "23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))";

// RFC 3339, appendix A.
constexpr const char *kDuration =
    "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
    "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))";

constexpr const char *kUuid = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";

constexpr const char *kPointer = "(?:/(?:[^~/]|~[01])*)*";

std::string ipv4() {
    const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    return byte + "(?:\\." + byte + "){3}";
}

// RFC 4291, 2.2: eight groups, or fewer around one "::"; the last two may be an IPv4 address.
std::string ipv6() {
    const std::string group = "[0-9a-fA-F]{1,4}";
    const std::string last = "(?:" + group + ":" + group + "|" + ipv4() + ")";
    const auto times = [](int count) { return "{" + std::to_string(count) + "}"; };
    std::string out = "(?:" + group + ":)" + times(6) + last;
    for (int left = 0; left <= 7; ++left) {
        const std::string before = left == 0 ? "" : group + "(?::" + group + ")" + times(left - 1);
        // After the "::", at most 7 - left groups.
        const int right = 7 - left;
        std::string after = "(?:" + group + "(?::" + group + "){0," +
                            std::to_string(std::max(right - 1, 0)) + "})?";
        if (right == 0) after = "";
        if (right >= 2) {
            after = "(?:" + after + "|(?:" + group + ":){0," + std::to_string(right - 2) + "}" +
                    ipv4() + ")";
        }
        out += "|" + before + "::" + after;
    }
    return "(?:" + out + ")";
}

// RFC 3986, appendix A. `more`: the further characters that IRIs allow (RFC 3987), as part of a
// character class.
struct UriParts {
    std::string unreserved, path_character, query, host, authority, scheme;
};

UriParts uri_parts(const std::string &more, const std::string &private_use) {
    UriParts parts;
    const std::string percent = "%[0-9a-fA-F]{2}";
    const std::string class_ = "a-zA-Z0-9._~" + more;
    const std::string sub = "!$&'()*+,;=";
    parts.unreserved = class_;
    parts.path_character = "(?:[" + class_ + sub + ":@-]|" + percent + ")";
    parts.query = "(?:[" + class_ + sub + ":@/?" + private_use + "-]|" + percent + ")*";
    parts.scheme = "[a-zA-Z][a-zA-Z0-9+.-]*";
    const std::string future = "[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~" + sub + ":-]+";
    parts.host =
        "(?:\\[(?:" + ipv6() + "|" + future + ")\\]|(?:[" + class_ + sub + "-]|" + percent + ")*)";
    parts.authority =
        "(?:(?:[" + class_ + sub + ":-]|" + percent + ")*@)?" + parts.host + "(?::[0-9]*)?";
    return parts;
}

std::string uri(const std::string &more, const std::string &private_use, bool relative) {
    const UriParts parts = uri_parts(more, private_use);
    const std::string &character = parts.path_character;
    const std::string segments = "(?:/" + character + "*)*";
    const std::string with_authority = "//" + parts.authority + segments;
    const std::string absolute = "/(?:" + character + "+" + segments + ")?";
    const std::string fragment_character =
        "(?:[" + parts.unreserved + "!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*";
    const std::string tail = "(?:\\?" + parts.query + ")?(?:#" + fragment_character + ")?";
    const std::string whole = parts.scheme + ":(?:" + with_authority + "|" + absolute + "|" +
                              character + "+" + segments + ")?" + tail;
    if (!relative) return whole;
    const std::string no_colon = "(?:[" + parts.unreserved + "!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+";
    return whole + "|(?:" + with_authority + "|" + absolute + "|" + no_colon + segments + ")?" +
           tail;
}

constexpr const char *kIri =
    "\\u{a0}-\\u{d7ff}\\u{f900}-\\u{fdcf}\\u{fdf0}-\\u{ffef}\\u{10000}-\\u{1fffd}"
    "\\u{20000}-\\u{2fffd}\\u{30000}-\\u{3fffd}\\u{40000}-\\u{4fffd}"
    "\\u{50000}-\\u{5fffd}\\u{60000}-\\u{6fffd}\\u{70000}-\\u{7fffd}"
    "\\u{80000}-\\u{8fffd}\\u{90000}-\\u{9fffd}\\u{a0000}-\\u{afffd}"
    "\\u{b0000}-\\u{bfffd}\\u{c0000}-\\u{cfffd}\\u{d0000}-\\u{dfffd}"
    "\\u{e1000}-\\u{efffd}";
constexpr const char *kIriPrivate =
    "\\u{e000}-\\u{f8ff}\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}";

// RFC 1123: labels of up to 63 characters, and up to 253 characters in all. Labels of
// internationalised names (xn--..) are left out: an automaton cannot decide which of them decode to
// a name.
std::string hostname() {
    const std::string any = "[a-zA-Z0-9]", inner = "[a-zA-Z0-9-]";
    const std::string third = "(?:-[a-zA-Z0-9]|[a-zA-Z0-9]" + inner + ")"; // and fourth
    const std::string label = "(?:" + any + "(?:" + any + "|-" + any + "|" + any + any +
                              "|(?:" + inner + third + "(?:" + inner + "{0,58}" + any + ")?)" +
                              ")?)";
    return label + "(?:\\." + label + ")*";
}

// RFC 5321: a dot-atom or a quoted string before the @, a domain or an address literal after it.
std::string email() {
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
    const std::string quoted = "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\"";
    const std::string label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?";
    return "(?:" + atom + "(?:\\." + atom + ")*|" + quoted + ")@(?:" + label + "(?:\\." + label +
           ")*|\\[(?:" + ipv4() + "|IPv6:" + ipv6() + ")\\])";
}

// RFC 6570.
std::string uri_template() {
    const std::string percent = "%[0-9a-fA-F]{2}";
    const std::string literal =
        "(?:[!#$&-;=?-\\[\\]_a-z~" + std::string(kIri) + kIriPrivate + "]|" + percent + ")";
    const std::string character = "(?:[a-zA-Z0-9_]|" + percent + ")";
    const std::string name = character + "(?:\\.?" + character + ")*";
    const std::string variable = name + "(?::[1-9][0-9]{0,3}|\\*)?";
    return "(?:" + literal + "|\\{[+#./;?&=,!@|]?" + variable + "(?:," + variable + ")*\\})*";
}

constexpr std::array<std::string_view, 16> kFormats = {
    "date",          "time",         "date-time",    "duration",
    "uuid",          "email",        "hostname",     "ipv4",
    "ipv6",          "uri",          "iri",          "uri-reference",
    "iri-reference", "uri-template", "json-pointer", "relative-json-pointer"};

std::string expression(std::string_view name) {
    if (name == "date") return kDate;
    if (name == "time") return kTime;
    if (name == "date-time") return std::string(kDate) + "[tT]" + kTime;
    if (name == "duration") return kDuration;
    if (name == "uuid") return kUuid;
    if (name == "email") return email();
    if (name == "hostname") return hostname();
    if (name == "ipv4") return ipv4();
    if (name == "ipv6") return ipv6();
    if (name == "uri") return uri("", "", false);
    if (name == "uri-reference") return uri("", "", true);
    if (name == "iri") return uri(kIri, kIriPrivate, false);
    if (name == "iri-reference") return uri(kIri, kIriPrivate, true);
    if (name == "uri-template") return uri_template();
    if (name == "json-pointer") return kPointer;
    return "(?:0|[1-9][0-9]*)(?:#|" + std::string(kPointer) + ")"; // relative-json-pointer
}

Result<FormatAutomata> make(std::string_view name) {
    Budget budget; // the size is fixed, whatever the schema
    const RegexOptions options{.dialect = RegexDialect::ecma};
    FormatAutomata out;
    ASSIGN_OR_RETURN(out.language,
                     compile_regex("^(?:" + expression(name) + ")$", options, &budget));
    if (name == "hostname") {
        const StringSet length{std::nullopt, 1, 253};
        ASSIGN_OR_RETURN(const StringSet both,
                         intersect({out.language, 0, Automaton::kUnbounded}, length, &budget));
        out.language = *both.language;
    }
    ASSIGN_OR_RETURN(out.text, json_quoted(out.language, "", {}, &budget));
    return out;
}

template <size_t index> const FormatAutomata &kept() {
    static const FormatAutomata automata = [] {
        auto made = make(kFormats[index]);
        return made.ok() ? std::move(*made) : FormatAutomata(); // never fails: tests cover each
                                                                // format
    }();
    return automata;
}

template <size_t... indices> constexpr auto makers(std::index_sequence<indices...>) {
    return std::array<const FormatAutomata &(*)(), sizeof...(indices)>{&kept<indices>...};
}

} // namespace

FormatKind format_kind(std::string_view name) {
    if (name == "regex" || name == "idn-email" || name == "idn-hostname") {
        return FormatKind::undecided;
    }
    const bool known = std::find(kFormats.begin(), kFormats.end(), name) != kFormats.end();
    return known ? FormatKind::language : FormatKind::unknown;
}

bool format_is_whole(std::string_view name) {
    return name != "time" && name != "date-time" && name != "hostname";
}

const FormatAutomata &format_automata(std::string_view name) {
    static constexpr auto all = makers(std::make_index_sequence<kFormats.size()>());
    const auto found = std::find(kFormats.begin(), kFormats.end(), name);
    return all[static_cast<size_t>(found - kFormats.begin())]();
}

} // namespace batchllm
