#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/file.h"
#include "base/printable.h"
#include "text/encoder_scratch.h"
#include "text/token_bytes.h"
#include "text/tokenizer_spec.h"

namespace batchllm {
namespace {

// Places in a word are 32 bits wide.
constexpr size_t kMostTextBytes = size_t{1} << 31;
// If a long text has made a scratch grow beyond this, its memory is released.
constexpr size_t kMostKept = size_t{16} << 20;

} // namespace

struct Tokenizer::Impl {
    explicit Impl(TokenizerSpec spec);

    // How an id is decoded.
    struct Spelling {
        std::string_view text; // from the vocabulary or of an added token
        bool known = false;
        bool skipped = false; // left out with skip_special
        bool special = false; // an added token that is special
    };
    void load_spellings();
    const Spelling *spelling(int32_t token) const {
        if (token < 0 || static_cast<size_t>(token) >= spellings.size()) return nullptr;
        const Spelling &found = spellings[static_cast<size_t>(token)];
        return found.known ? &found : nullptr;
    }
    void encode_text(std::string_view text, bool parse_special, EncoderScratch *scratch,
                     std::vector<int32_t> *tokens) const;

    uint64_t fingerprint;
    std::string note;
    std::vector<AddedToken> added_tokens;
    std::vector<TemplatePiece> special;
    std::vector<DecoderStep> decoder;
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    BpeModel model;
    AddedTokenFinder raw_finder;
    AddedTokenFinder normalized_finder;
    std::unordered_map<std::string_view, int32_t> added_ids;
    std::vector<Spelling> spellings; // [vocabulary()]
    mutable ScratchPool scratches;
};

Tokenizer::Impl::Impl(TokenizerSpec spec)
    : fingerprint(tokenizer_fingerprint(spec)), note(std::move(spec.note)),
      added_tokens(std::move(spec.added_tokens)), special(std::move(spec.special)),
      decoder(std::move(spec.decoder)), normalizer(std::move(spec.normalizer)),
      pre_tokenizer(std::move(spec.pre_tokenizer)), model(std::move(spec.model), spec.byte_level),
      raw_finder(added_tokens, false), normalized_finder(added_tokens, true) {
    for (const AddedToken &token : added_tokens) added_ids.emplace(token.content, token.id);
    load_spellings();
}

// As in the reference, an added token that is searched for in normalized text is decoded in its
// normalized spelling, and is left out as special only if that is the spelling of a special token.
void Tokenizer::Impl::load_spellings() {
    const TokenTable &vocabulary = model.settings().vocabulary;
    int32_t end = vocabulary.id_end();
    std::unordered_set<std::string_view> special_texts;
    for (const AddedToken &token : added_tokens) {
        end = std::max(end, token.id + 1);
        if (token.special) special_texts.insert(token.content);
    }
    spellings.resize(static_cast<size_t>(end));
    for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
        if (!vocabulary.contains(id)) continue;
        spellings[static_cast<size_t>(id)] = {vocabulary.token(id), true, false, false};
    }
    for (const AddedToken &token : added_tokens) {
        spellings[static_cast<size_t>(token.id)] = {token.pattern, true, false, token.special};
    }
    for (Spelling &entry : spellings) entry.skipped = special_texts.contains(entry.text);
}

void Tokenizer::Impl::encode_text(std::string_view text, bool parse_special,
                                  EncoderScratch *scratch, std::vector<int32_t> *tokens) const {
    if (text.empty()) return;
    raw_finder.find(text, parse_special, &scratch->raw_pieces);
    for (const AddedPiece &raw : scratch->raw_pieces) {
        if (raw.id >= 0) {
            tokens->push_back(raw.id);
            continue;
        }
        const std::string_view piece = text.substr(raw.begin, raw.end - raw.begin);
        const std::string_view normalized = normalizer.apply(piece, &scratch->normalized);
        if (normalized.empty()) continue;
        // The normalized text may be the raw text itself, and then more of it may be read.
        const char *readable_end = normalized.data() == piece.data()
                                       ? text.data() + text.size()
                                       : normalized.data() + normalized.size();
        normalized_finder.find(normalized, parse_special, &scratch->normalized_pieces);
        for (const AddedPiece &part : scratch->normalized_pieces) {
            if (part.id >= 0) {
                tokens->push_back(part.id);
                continue;
            }
            const std::string_view rest = normalized.substr(part.begin, part.end - part.begin);
            pre_tokenizer.apply(rest, static_cast<size_t>(readable_end - rest.data()),
                                raw.begin == 0 && part.begin == 0,
                                [&](std::string_view word, size_t readable) {
                                    model.encode(word, readable, &scratch->bpe, tokens);
                                });
        }
    }
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string &path) {
    ASSIGN_OR_RETURN(const bool of_directory, is_directory(path));
    const std::string file = of_directory ? path + "/tokenizer.json" : path;
    ASSIGN_OR_RETURN(TokenizerSpec spec, read_tokenizer_json(file));
    std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
    tokenizer->impl_ = std::make_unique<Impl>(std::move(spec));
    return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(const std::string &name,
                                                    const std::string &json) {
    ASSIGN_OR_RETURN(TokenizerSpec spec, parse_tokenizer_json(name, json));
    std::unique_ptr<Tokenizer> tokenizer(new Tokenizer);
    tokenizer->impl_ = std::make_unique<Impl>(std::move(spec));
    return tokenizer;
}

Status Tokenizer::encode(std::string_view text, const EncodeOptions &options,
                         std::vector<int32_t> *tokens) const {
    if (text.size() > kMostTextBytes) {
        return error(BATCHLLM_ERROR_ROW_TOO_LONG, "text of %zu bytes; 2 GiB is the most",
                     text.size());
    }
    if (!is_utf8(text)) {
        return error(BATCHLLM_ERROR_ROW_INVALID_UTF8, "text is not valid UTF-8");
    }
    auto scratch = impl_->scratches.take();
    if (options.add_special) {
        for (const TemplatePiece &piece : impl_->special) {
            if (piece.is_text) {
                impl_->encode_text(text, options.parse_special, scratch.get(), tokens);
            } else {
                tokens->insert(tokens->end(), piece.tokens.begin(), piece.tokens.end());
            }
        }
    } else {
        for (const TemplatePiece &piece : impl_->special) {
            if (!piece.is_text) continue;
            impl_->encode_text(text, options.parse_special, scratch.get(), tokens);
        }
    }
    if (text.size() < kMostKept) impl_->scratches.give_back(std::move(scratch));
    return {};
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
    DecoderChain chain(impl_->decoder);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const Impl::Spelling *spelling = impl_->spelling(tokens[i]);
        if (spelling == nullptr) {
            return error(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN, "token %zu: no token has the id %d", i,
                         static_cast<int>(tokens[i]));
        }
        if (!(skip_special && spelling->skipped)) chain.push(spelling->text, &text);
    }
    chain.finish(&text);
    return text;
}

std::optional<std::string> Tokenizer::token_bytes(int32_t token) const {
    const Impl::Spelling *spelling = impl_->spelling(token);
    if (spelling == nullptr) return std::string();
    return batchllm::token_bytes(impl_->decoder, spelling->text);
}

std::optional<std::string> Tokenizer::first_token_bytes(int32_t token) const {
    const Impl::Spelling *spelling = impl_->spelling(token);
    if (spelling == nullptr) return std::string();
    return batchllm::token_bytes(impl_->decoder, spelling->text, TokenPlace::first);
}

int32_t Tokenizer::vocabulary() const { return static_cast<int32_t>(impl_->spellings.size()); }

bool Tokenizer::is_special(int32_t token) const {
    const Impl::Spelling *spelling = impl_->spelling(token);
    return spelling != nullptr && spelling->special;
}

int32_t Tokenizer::token_id(std::string_view token) const {
    if (const auto added = impl_->added_ids.find(token); added != impl_->added_ids.end()) {
        return added->second;
    }
    return impl_->model.settings().vocabulary.find(token);
}

int32_t Tokenizer::find_special(std::string_view text) const {
    for (const AddedToken &token : impl_->added_tokens) {
        if (token.special && text.find(token.content) != std::string_view::npos) return token.id;
    }
    return -1;
}

const std::string &Tokenizer::note() const { return impl_->note; }

uint64_t Tokenizer::fingerprint() const { return impl_->fingerprint; }

struct StreamDecoder::Impl {
    const Tokenizer::Impl *tokenizer;
    bool skip_special;
    DecoderChain chain;
};

StreamDecoder::StreamDecoder(const Tokenizer &tokenizer, bool skip_special)
    : impl_(new Impl{tokenizer.impl_.get(), skip_special, DecoderChain(tokenizer.impl_->decoder)}) {
}
StreamDecoder::StreamDecoder(StreamDecoder &&) noexcept = default;
StreamDecoder &StreamDecoder::operator=(StreamDecoder &&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(int32_t token) {
    std::string text;
    const Tokenizer::Impl::Spelling *spelling = impl_->tokenizer->spelling(token);
    if (spelling != nullptr && !(impl_->skip_special && spelling->skipped)) {
        impl_->chain.push(spelling->text, &text);
    }
    return text;
}

std::string StreamDecoder::finish() {
    std::string text;
    impl_->chain.finish(&text);
    return text;
}

} // namespace batchllm
