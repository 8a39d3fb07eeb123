// A hash of everything in a TokenizerSpec that changes how text becomes tokens.
#include <memory>
#include <new>
#include <string_view>

#include <xxhash.h>

#include "text/tokenizer_spec.h"

namespace batchllm {
namespace {

// Hashes values so that different lists cannot be confused: each text is hashed with its length.
class Hash {
  public:
    Hash() : state_(XXH3_createState(), XXH3_freeState) {
        if (state_ == nullptr) throw std::bad_alloc();
        XXH3_64bits_reset(state_.get());
    }
    void number(int64_t value) { XXH3_64bits_update(state_.get(), &value, sizeof value); }
    void text(std::string_view value) {
        number(static_cast<int64_t>(value.size()));
        XXH3_64bits_update(state_.get(), value.data(), value.size());
    }
    uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

  private:
    std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

void add_model(const BpeSettings &model, bool byte_level, Hash *hash) {
    hash->number(model.vocabulary.size());
    for (int32_t id = 0; id < model.vocabulary.id_end(); ++id) {
        if (!model.vocabulary.contains(id)) continue;
        hash->number(id);
        hash->text(model.vocabulary.token(id));
    }
    hash->number(static_cast<int64_t>(model.merges.size()));
    for (const MergePair &pair : model.merges) {
        hash->number(int64_t{pair.left} << 32 | pair.right);
    }
    hash->number(model.unknown_token);
    hash->number(byte_level << 3 | model.fuse_unknown << 2 | model.byte_fallback << 1 |
                 static_cast<int>(model.ignore_merges));
}

} // namespace

uint64_t tokenizer_fingerprint(const TokenizerSpec &spec) {
    Hash hash;
    hash.number(1); // version of this list
    add_model(spec.model, spec.byte_level, &hash);
    hash.number(static_cast<int64_t>(spec.added_tokens.size()));
    for (const AddedToken &token : spec.added_tokens) {
        hash.text(token.content);
        hash.number(token.id);
        hash.number(token.special << 4 | token.single_word << 3 | token.left_strip << 2 |
                    token.right_strip << 1 | static_cast<int>(token.normalized));
    }
    hash.number(static_cast<int64_t>(spec.normalizer.size()));
    for (const NormalizerStep &step : spec.normalizer) {
        hash.number(static_cast<int64_t>(step.kind));
        hash.text(step.pattern);
        hash.text(step.content);
    }
    hash.number(static_cast<int64_t>(spec.pre_tokenizer.size()));
    for (const PreTokenizerStep &step : spec.pre_tokenizer) {
        hash.number(static_cast<int64_t>(step.kind));
        hash.number(static_cast<int64_t>(step.pattern));
        hash.text(step.mark);
        hash.number(static_cast<int64_t>(step.prepend) << 1 | static_cast<int64_t>(step.cut));
        if (step.separator.empty()) continue;
        hash.text(step.separator);
        hash.number(static_cast<int64_t>(step.behavior) << 1 | static_cast<int64_t>(step.invert));
    }
    hash.number(static_cast<int64_t>(spec.special.size()));
    for (const TemplatePiece &piece : spec.special) {
        hash.number(piece.is_text ? -1 : static_cast<int64_t>(piece.tokens.size()));
        for (const int32_t token : piece.tokens) hash.number(token);
    }
    return hash.value() == 0 ? 1 : hash.value();
}

} // namespace batchllm
