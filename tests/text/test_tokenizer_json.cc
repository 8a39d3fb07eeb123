// Damaged, hostile and unsupported tokenizer.json files: each refused with the file and the key.
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "seed.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

using namespace batchllm;

namespace {

const std::string kModel =
    R"({"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,"byte_fallback":false,)"
    R"("vocab":{"a":0,"b":1,"ab":2,"c":3},"merges":[["a","b"]]})";

// A file with this model and other keys.
std::string file_of(const std::string &model, const std::string &rest = "") {
    return R"({"version":"1.0",)" + rest + (rest.empty() ? "" : ",") + R"("model":)" + model + "}";
}

std::string added(const std::string &id, const std::string &content,
                  const std::string &more = R"(,"special":true)") {
    return R"("added_tokens":[{"id":)" + id + R"(,"content":")" + content +
           R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false)" + more +
           "}]";
}

std::string pre(const std::string &part) { return R"("pre_tokenizer":)" + part; }

// Whether the file is rejected with this code and an error that starts with the file's name and
// contains this text.
bool refused(const std::string &json, int32_t code, const std::string &text) {
    const auto result = Tokenizer::parse("FILE", json);
    if (result.ok()) {
        print_error("taken: %s\n", json.c_str());
        return false;
    }
    const std::string &message = result.status().message();
    const bool good = result.status().code() == code && message.starts_with("FILE: ") &&
                      message.find(text) != std::string::npos;
    if (!good)
        print_error("%d \"%s\" for %s\n", result.status().code(), message.c_str(), json.c_str());
    return good;
}

bool malformed(const std::string &json, const std::string &text) {
    return refused(json, BATCHLLM_ERROR_TOKENIZER_FORMAT, text);
}

bool unsupported(const std::string &json, const std::string &text) {
    return refused(json, BATCHLLM_ERROR_UNSUPPORTED, text);
}

void the_smallest_file_loads(void **) {
    const auto tokenizer = Tokenizer::parse("FILE", file_of(kModel));
    assert_true(tokenizer.ok());
    std::vector<int32_t> ids;
    const Status status = (*tokenizer)->encode("abcxa", {}, &ids);
    assert_true(status.ok());
    const std::vector<int32_t> wanted = {2, 3, 0};
    assert_true(ids == wanted);
    assert_int_equal((*tokenizer)->vocabulary(), 4);
}

void what_is_no_json_object_is_refused(void **) {
    assert_true(malformed("", "not JSON"));
    assert_true(malformed("{", "not JSON"));
    assert_true(malformed("[]", "must be an object"));
    assert_true(malformed("{}", "\"model\" is missing"));
    assert_true(malformed(std::string(100000, '['), "not JSON"));
    assert_true(malformed("{\"model\": \"\xFF\"}", "not JSON"));
}

void a_key_given_twice_is_refused(void **) {
    assert_true(malformed(file_of(kModel, R"("decoder":null,"decoder":null)"),
                          "the key \"decoder\" is given twice"));
    assert_true(malformed(file_of(R"({"vocab":{"a":0},"vocab":{"a":0},"merges":[]})"),
                          "the key \"model.vocab\" is given twice"));
    assert_true(
        malformed(file_of(R"({"vocab":{"a":0,"a":1},"merges":[]})"), "token \"a\" is given twice"));
    assert_true(malformed(file_of(kModel, added("4", "x", R"(,"special":true,"special":false)")),
                          "the key \"added_tokens[0].special\" is given twice"));
}

void ids_that_cannot_be_are_refused(void **) {
    for (const char *id : {"-1", "4194304", "1.5", "\"1\"", "null", "true"}) {
        const std::string model = std::string(R"({"vocab":{"a":)") + id + R"(},"merges":[]})";
        assert_true(malformed(file_of(model), "model.vocab"));
        assert_true(malformed(file_of(kModel, added(id, "x")), "added_tokens[0].id"));
    }
    assert_true(
        malformed(file_of(R"({"vocab":{"a":0,"b":0},"merges":[]})"), "another one has its id"));
    assert_true(malformed(file_of(kModel, added("9", "x")), "its place gives it 4"));
    assert_true(malformed(file_of(kModel, added("4", "a")), "its place gives it 0"));
    assert_true(
        unsupported(file_of(R"({"vocab":{"a":0,"b":2},"merges":[]})", added("2", "x")), "gaps"));
}

void merges_that_cannot_be_are_refused(void **) {
    for (const char *merges : {R"([["a","x"]])", R"([["x","a"]])", R"([["b","a"]])", R"(["a x"])",
                               R"(["a"])", R"(["a b c"])", R"([["a"]])", R"([["a","b","c"]])",
                               R"([["a",1]])", R"(["a b",["a","b"]])", R"([["a","b"],"a b"])",
                               R"([1])", R"({"a":"b"})", R"("a b")", "null"}) {
        const std::string model =
            std::string(R"({"vocab":{"a":0,"b":1,"ab":2},"merges":)") + merges + "}";
        assert_true(malformed(file_of(model), "model.merges"));
    }
}

void wrong_types_are_refused(void **) {
    assert_true(malformed(file_of("3"), "\"model\" is 3: must be an object"));
    assert_true(malformed(file_of(R"({"vocab":[],"merges":[]})"),
                          "\"model.vocab\" is []: must be an object"));
    assert_true(malformed(file_of(R"({"vocab":{"a":0}})"), "\"model.merges\" is missing"));
    assert_true(malformed(file_of(R"({"vocab":{"a":0},"merges":[],"fuse_unk":1})"), "fuse_unk"));
    assert_true(
        malformed(file_of(R"({"vocab":{"a":0},"merges":[],"unk_token":"u"})"), "unk_token"));
    assert_true(malformed(file_of(kModel, R"("added_tokens":{})"),
                          "\"added_tokens\" is an object: must be a list"));
    assert_true(
        malformed(file_of(kModel, added("4", "x", "")), "\"added_tokens[0].special\" is missing"));
    assert_true(malformed(file_of(kModel, added("4", "\\udc00")), "not JSON"));
    assert_true(malformed(file_of(kModel, R"("normalizer":"NFC")"), "normalizer"));
    assert_true(malformed(file_of(kModel, pre(R"({"type":"Metaspace","replacement":"ab"})")),
                          "pre_tokenizer.replacement"));
    assert_true(malformed(
        file_of(kModel, pre(R"({"type":"Metaspace","replacement":"_","add_prefix_space":false})")),
        "add_prefix_space"));
    assert_true(malformed(
        file_of(
            kModel,
            pre(R"({"type":"Split","pattern":{"String":" "},"behavior":"Merged","invert":false})")),
        "pre_tokenizer"));
    assert_true(malformed(
        file_of(kModel, R"("decoder":{"type":"Strip","content":" ","start":-1,"stop":0})"),
        "decoder.start"));
}

// A byte-level vocabulary that spells the first `bytes` bytes, and an unknown token that it lacks.
std::string byte_level_file(int32_t bytes) {
    std::string vocabulary;
    for (int32_t byte = 0; byte < bytes; ++byte) {
        vocabulary += byte > 0 ? ",\"" : "\"";
        if (byte == '"' || byte == '\\') vocabulary += '\\';
        utf8_append(byte_character(static_cast<uint8_t>(byte)), &vocabulary);
        vocabulary += "\":";
        vocabulary += std::to_string(byte);
    }
    return file_of(
        R"({"vocab":{)" + vocabulary + R"(},"merges":[],"unk_token":"<absent>"})",
        pre(R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})"));
}

void an_unknown_token_may_be_absent_when_no_text_can_need_it(void **) {
    const auto tokenizer = Tokenizer::parse("FILE", byte_level_file(256));
    assert_true(tokenizer.ok());
    std::vector<int32_t> ids;
    const Status status = (*tokenizer)->encode("\xC3\xA9!", {}, &ids);
    assert_true(status.ok());
    const std::vector<int32_t> wanted = {0xC3, 0xA9, '!'};
    assert_true(ids == wanted);
    assert_true(malformed(byte_level_file(255), "model.unk_token"));
}

// Like transformers' encode, which switches both off unless the call requests them.
void truncation_and_padding_are_left_aside(void **) {
    const std::string both =
        R"("truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},)"
        R"("padding":{"strategy":{"Fixed":8},"direction":"Right","pad_to_multiple_of":null,)"
        R"("pad_id":0,"pad_type_id":0,"pad_token":"a"})";
    const auto plain = Tokenizer::parse("FILE", file_of(kModel));
    const auto given = Tokenizer::parse("FILE", file_of(kModel, both));
    assert_true(plain.ok() && given.ok());
    assert_string_equal((*plain)->note().c_str(), "");
    assert_string_equal(
        (*given)->note().c_str(),
        "FILE: \"truncation\", \"padding\" left aside: rows are neither cut nor padded");
    for (const char *text : {"", "a", "abcabcabcabc"}) {
        std::vector<int32_t> wanted, got;
        assert_true((*plain)->encode(text, {}, &wanted).ok());
        assert_true((*given)->encode(text, {}, &got).ok());
        assert_true(got == wanted);
    }
    // A plan made with one works with the other.
    assert_true((*plain)->fingerprint() == (*given)->fingerprint());
    assert_true(malformed(file_of(kModel, R"("truncation":5)"), "\"truncation\" is 5"));
}

void what_is_not_supported_is_refused_by_name(void **) {
    assert_true(unsupported(file_of(R"({"type":"Unigram","vocab":[]})"), "Unigram"));
    // Without its kind, and with parts that only such a tokenizer has.
    assert_true(unsupported(file_of(R"({"unk_id":2,"vocab":[["<pad>",0.0]]})",
                                    R"("normalizer":{"type":"Precompiled"},"later":1)"),
                            "this is a model of kind Unigram"));
    assert_true(
        unsupported(file_of(R"({"vocab":{"a":0},"unk_token":"a","max_input_chars_per_word":100})"),
                    "this is a model of kind WordPiece"));
    assert_true(unsupported(file_of(R"({"vocab":{"a":0},"unk_token":"a"})"),
                            "this is a model of kind WordLevel"));
    assert_true(unsupported(file_of(kModel, R"("extra":1)"), "extra"));
    assert_true(unsupported(R"({"version":"2.0","model":)" + kModel + "}", "version"));
    assert_true(unsupported(file_of(kModel, R"("normalizer":{"type":"NFKC"})"), "NFKC"));
    assert_true(unsupported(
        file_of(kModel, R"("normalizer":{"type":"Replace","pattern":{"Regex":"a"},"content":""})"),
        "normalizer.pattern"));
    assert_true(unsupported(file_of(kModel, pre(R"({"type":"Whitespace"})")), "Whitespace"));
    assert_true(unsupported(
        file_of(
            kModel,
            pre(R"({"type":"Split","pattern":{"Regex":"(?<=a)b"},"behavior":"Isolated","invert":false})")),
        "pre_tokenizer.pattern"));
    assert_true(unsupported(
        file_of(
            kModel,
            pre(R"({"type":"Split","pattern":{"Regex":"(?<=a)b"},"behavior":"Isolated","invert":false})")),
        "regular expression (?<=a)b: character 1: lookbehind"));
    assert_true(unsupported(
        file_of(
            kModel,
            pre(R"({"type":"Split","pattern":{"Regex":"b*"},"behavior":"Contiguous","invert":false})")),
        "it may match the empty text"));
    assert_true(unsupported(
        file_of(
            kModel,
            pre(R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},{"type":"Digits"}]})")),
        "pretokenizers[1]"));
    assert_true(unsupported(file_of(kModel, R"("decoder":{"type":"WordPiece"})"), "WordPiece"));
    assert_true(unsupported(file_of(kModel, R"("post_processor":{"type":"Other"})"), "Other"));
    for (const char *key : {R"("dropout":0.1)", R"("continuing_subword_prefix":"##")",
                            R"("end_of_word_suffix":"</w>")", R"("new_flag":true)"}) {
        assert_true(unsupported(
            file_of(std::string(R"({"vocab":{"a":0},"merges":[],)") + key + "}"), "model"));
    }
    assert_true(unsupported(
        file_of(kModel,
                R"("normalizer":{"type":"Prepend","prepend":"_"},)" +
                    pre(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})")),
        "prepend_scheme first"));
}

void a_template_that_cannot_be_is_refused(void **) {
    const auto with = [](const std::string &single, const std::string &special) {
        return file_of(kModel, R"("post_processor":{"type":"TemplateProcessing","single":[)" +
                                   single + R"(],"pair":[],"special_tokens":{)" + special + "}}");
    };
    const std::string text = R"({"Sequence":{"id":"A","type_id":0}})";
    const std::string bos = R"({"SpecialToken":{"id":"c","type_id":0}})";
    assert_true(Tokenizer::parse(
                    "FILE", with(bos + "," + text, R"("c":{"id":"c","ids":[3],"tokens":["c"]})"))
                    .ok());
    assert_true(
        malformed(with(bos + "," + text, ""), "\"post_processor.special_tokens.c\" is missing"));
    assert_true(malformed(with(bos, R"("c":{"id":"c","ids":[4],"tokens":["c"]})"),
                          "no token has the id 4"));
    assert_true(malformed(with(bos, R"("c":{"id":"c","ids":[-4],"tokens":["c"]})"), "ids[0]"));
    assert_true(unsupported(with(R"({"Sequence":{"id":"B","type_id":0}})", ""), "sequence \"B\""));
    assert_true(malformed(with("{}", ""), "single[0]"));
}

// A list of this many, with commas between.
std::string list_of(size_t count, const std::string &item) {
    std::string list = item;
    for (size_t i = 1; i < count; ++i) list += "," + item;
    return list;
}

std::string replace_by(const std::string &content) {
    return R"({"type":"Replace","pattern":{"String":"a"},"content":")" + content + R"("})";
}

void a_file_that_blows_texts_up_is_refused_by_its_key(void **) {
    const auto normalizer = [](const std::string &steps) {
        return file_of(kModel, R"("normalizer":{"type":"Sequence","normalizers":[)" + steps + "]}");
    };
    const auto decoder = [](const std::string &steps) {
        return file_of(kModel, R"("decoder":{"type":"Sequence","decoders":[)" + steps + "]}");
    };
    // Twice, each byte becomes 16, and by a third step 32.
    const std::string by_16 = replace_by(std::string(16, 'a'));
    for (const auto &with : {std::function(normalizer), std::function(decoder)}) {
        assert_true(Tokenizer::parse("FILE", with(list_of(2, by_16))).ok());
        assert_true(unsupported(with(list_of(2, by_16) + "," + replace_by("aa")), "[2]"));
        assert_true(unsupported(with(replace_by(std::string(257, 'a'))), "256 times as long"));
        // Immediately, not after checking all steps again for each of them.
        assert_true(unsupported(with(list_of(1 << 18, replace_by("b"))), " steps"));
    }
    assert_true(unsupported(
        normalizer(R"({"type":"Prepend","prepend":")" + std::string(4097, 'b') + R"("})"), "[0]"));
    assert_true(unsupported(normalizer(R"({"type":"Replace","pattern":{"String":")" +
                                       std::string(4097, 'b') + R"("},"content":""})"),
                            "[0].pattern"));
    std::string long_added = added("4", "x" + std::string(16, 'a'));
    long_added.replace(long_added.find(R"("normalized":false)"), 18, R"("normalized":true)");
    const std::string by_256 = R"("normalizer":)" + replace_by(std::string(256, 'b')) + ",";
    assert_true(unsupported(file_of(kModel, by_256 + long_added), "added_tokens[0]"));
}

void a_template_that_adds_too_much_to_each_row_is_refused(void **) {
    const auto with = [](const std::string &single, size_t ids) {
        return file_of(kModel, R"("post_processor":{"type":"TemplateProcessing","single":[)" +
                                   single +
                                   R"(],"pair":[],"special_tokens":{"c":{"id":"c","ids":[)" +
                                   list_of(ids, "3") + R"(],"tokens":["c"]}}})");
    };
    const std::string text = R"({"Sequence":{"id":"A","type_id":0}})";
    const std::string bos = R"({"SpecialToken":{"id":"c","type_id":0}})";
    assert_true(Tokenizer::parse("FILE", with(list_of(4, bos) + "," + text, 256)).ok());
    assert_true(unsupported(with(list_of(5, bos) + "," + text, 256), "more than 1024 ids in all"));
    assert_true(Tokenizer::parse("FILE", with(list_of(8, text), 1)).ok());
    assert_true(unsupported(with(list_of(9, text), 1), "\"post_processor.single\""));
}

void files_with_random_damage_load_or_are_refused(void **) {
    std::mt19937 random(static_cast<uint32_t>(seed_of_run()));
    for (const char *name : {"gpt2", "llama2", "metaspace"}) {
        auto bytes = read_file(std::string("text/") + name + "/tokenizer.json", 1 << 20);
        assert_true(bytes.ok());
        for (int round = 0; round < 150; ++round) {
            std::string damaged = *bytes;
            const char *const replacements[] = {"0", "-",    "\"", "{", "}",
                                                "[", "null", "\\", "9", ","};
            for (uint32_t i = 0; i <= random() % 3; ++i) {
                damaged.replace(random() % damaged.size(), random() % 4,
                                replacements[random() % 10]);
            }
            const auto tokenizer = Tokenizer::parse("FILE", damaged);
            if (!tokenizer.ok()) {
                assert_true(tokenizer.status().message().starts_with("FILE: "));
                continue;
            }
            std::vector<int32_t> ids;
            const Status status = (*tokenizer)->encode("the people's <mask> 123 [INST]", {}, &ids);
            assert_true(status.ok());
            assert_true((*tokenizer)->decode(ids, false).ok());
        }
    }
}

void a_directory_without_the_file_names_it(void **) {
    const auto result = Tokenizer::load("text");
    assert_false(result.ok());
    assert_true(result.status().message().find("text/tokenizer.json") != std::string::npos);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_file_loads),
        cmocka_unit_test(what_is_no_json_object_is_refused),
        cmocka_unit_test(a_key_given_twice_is_refused),
        cmocka_unit_test(ids_that_cannot_be_are_refused),
        cmocka_unit_test(merges_that_cannot_be_are_refused),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(an_unknown_token_may_be_absent_when_no_text_can_need_it),
        cmocka_unit_test(truncation_and_padding_are_left_aside),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(a_template_that_cannot_be_is_refused),
        cmocka_unit_test(a_file_that_blows_texts_up_is_refused_by_its_key),
        cmocka_unit_test(a_template_that_adds_too_much_to_each_row_is_refused),
        cmocka_unit_test(files_with_random_damage_load_or_are_refused),
        cmocka_unit_test(a_directory_without_the_file_names_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
