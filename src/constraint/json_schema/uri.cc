#include "constraint/json_schema/uri.h"

#include <cctype>

namespace batchllm {

namespace {

// scheme ":" "//" authority path "?" query "#" fragment; each part with its mark, or empty.
struct Parts {
    std::string_view scheme, authority, path, query, fragment;
};

std::string_view take(std::string_view *rest, size_t count) {
    const std::string_view taken = rest->substr(0, count);
    rest->remove_prefix(taken.size());
    return taken;
}

Parts split(std::string_view uri) {
    Parts parts;
    const size_t mark = uri.find_first_of(":/?#");
    if (mark != std::string_view::npos && mark > 0 && uri[mark] == ':' &&
        std::isalpha(static_cast<unsigned char>(uri[0])) != 0) {
        parts.scheme = take(&uri, mark + 1);
    }
    if (uri.substr(0, 2) == "//") {
        parts.authority = take(&uri, uri.find_first_of("/?#", 2));
    }
    parts.path = take(&uri, uri.find_first_of("?#"));
    parts.query = take(&uri, uri.find('#'));
    parts.fragment = uri;
    return parts;
}

std::string without_dots(std::string_view path) {
    std::string out;
    while (!path.empty()) {
        if (path.substr(0, 3) == "../") {
            path.remove_prefix(3);
        } else if (path.substr(0, 2) == "./") {
            path.remove_prefix(2);
        } else if (path.substr(0, 3) == "/./") {
            path.remove_prefix(2);
        } else if (path == "/.") {
            path = "/";
        } else if (path.substr(0, 4) == "/../" || path == "/..") {
            path = path == "/.." ? std::string_view("/") : path.substr(3);
            const size_t slash = out.rfind('/');
            out.erase(slash == std::string::npos ? 0 : slash);
        } else if (path == "." || path == "..") {
            path = "";
        } else {
            const size_t slash = path.find('/', 1);
            out += take(&path, slash);
        }
    }
    return out;
}

std::string merged(const Parts &base, std::string_view path) {
    if (!base.authority.empty() && base.path.empty()) return "/" + std::string(path);
    const size_t slash = base.path.rfind('/');
    if (slash == std::string_view::npos) return std::string(path);
    return std::string(base.path.substr(0, slash + 1)) + std::string(path);
}

int hex_digit(char byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
    return -1;
}

} // namespace

std::string resolve_uri(std::string_view base_uri, std::string_view reference) {
    const Parts base = split(base_uri);
    const Parts given = split(reference);
    std::string scheme(base.scheme);
    std::string authority(base.authority);
    std::string path;
    std::string query(given.query);
    if (!given.scheme.empty()) {
        // urn:..: the rest has no path to merge or normalise.
        if (given.authority.empty() && given.path.substr(0, 1) != "/")
            return std::string(reference);
        scheme = given.scheme;
        authority = given.authority;
        path = without_dots(given.path);
    } else if (!given.authority.empty()) {
        authority = given.authority;
        path = without_dots(given.path);
    } else if (given.path.empty()) {
        path = base.path;
        if (given.query.empty()) query = base.query;
    } else if (given.path[0] == '/') {
        path = without_dots(given.path);
    } else {
        path = without_dots(merged(base, given.path));
    }
    return scheme + authority + path + query + std::string(given.fragment);
}

std::pair<std::string_view, std::string_view> split_fragment(std::string_view uri) {
    const size_t mark = uri.find('#');
    if (mark == std::string_view::npos) return {uri, {}};
    return {uri.substr(0, mark), uri.substr(mark + 1)};
}

std::string percent_decoded(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '%' && at + 2 < text.size() && hex_digit(text[at + 1]) >= 0 &&
            hex_digit(text[at + 2]) >= 0) {
            out += static_cast<char>(hex_digit(text[at + 1]) * 16 + hex_digit(text[at + 2]));
            at += 2;
        } else {
            out += text[at];
        }
    }
    return out;
}

} // namespace batchllm
