#include "text/decoder_stages.h"

#include "base/printable.h"
#include "text/byte_alphabet.h"
#include "text/lossy_utf8.h"
#include "text/token_bytes.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

class Stage : public TokenSink {
  public:
    explicit Stage(TokenSink *next) : next_(next) {}
    void end_token() override { next_->end_token(); }
    void finish() override { next_->finish(); }

  protected:
    TokenSink *next_;
};

// A stage that looks at whole tokens.
class WholeTokenStage : public Stage {
  public:
    using Stage::Stage;
    void fragment(std::string_view text) override { token_.append(text); }
    void end_token() override {
        take(token_);
        token_.clear();
    }

  protected:
    virtual void take(const std::string &token) = 0;

  private:
    std::string token_;
};

class ByteLevelStage : public WholeTokenStage {
  public:
    using WholeTokenStage::WholeTokenStage;
    void finish() override {
        std::string text;
        utf8_.finish(&text);
        if (!text.empty()) next_->fragment(text);
        next_->end_token();
        next_->finish();
    }

  private:
    void take(const std::string &token) override {
        const auto bytes = bytes_of_token(token);
        std::string text;
        utf8_.push(bytes.has_value() ? *bytes : token, &text);
        if (!text.empty()) next_->fragment(text);
    }
    LossyUtf8 utf8_;
};

class ByteFallbackStage : public WholeTokenStage {
  public:
    using WholeTokenStage::WholeTokenStage;
    void finish() override {
        release();
        next_->finish();
    }

  private:
    void take(const std::string &token) override {
        const int32_t byte = fallback_byte(token);
        if (byte >= 0) {
            bytes_.push_back(static_cast<char>(byte));
            return;
        }
        release();
        give(token);
    }
    void give(std::string_view token) {
        if (!token.empty()) next_->fragment(token);
        next_->end_token();
    }
    // A run of bytes is one token if it is valid UTF-8 as a whole, else one token for each byte.
    void release() {
        if (bytes_.empty()) return;
        if (is_utf8(bytes_)) {
            give(bytes_);
        } else {
            for (size_t i = 0; i < bytes_.size(); ++i) give(kReplacementCharacter);
        }
        bytes_.clear();
    }
    std::string bytes_;
};

class FuseStage : public Stage {
  public:
    using Stage::Stage;
    void fragment(std::string_view text) override { next_->fragment(text); }
    void end_token() override {}
    void finish() override {
        next_->end_token();
        next_->finish();
    }
};

class ReplaceStage : public Stage {
  public:
    ReplaceStage(TokenSink *next, const DecoderStep &step)
        : Stage(next), pattern_(step.pattern), content_(step.content) {}
    void fragment(std::string_view text) override {
        held_.append(text);
        size_t done = 0;
        for (size_t found; (found = held_.find(pattern_, done)) != std::string::npos;) {
            give(std::string_view(held_).substr(done, found - done));
            give(content_);
            done = found + pattern_.size();
        }
        const size_t start = start_of_match(done);
        give(std::string_view(held_).substr(done, start - done));
        held_.erase(0, start);
    }
    void end_token() override {
        give(held_);
        held_.clear();
        next_->end_token();
    }

  private:
    // Where the longest suffix of the text begins, from `from` on, that is a prefix of the pattern.
    size_t start_of_match(size_t from) const {
        const size_t longest = pattern_.size() - 1;
        if (held_.size() - from > longest) from = held_.size() - longest;
        while (from < held_.size() && !pattern_.starts_with(std::string_view(held_).substr(from))) {
            ++from;
        }
        return from;
    }
    void give(std::string_view text) {
        if (!text.empty()) next_->fragment(text);
    }
    std::string pattern_;
    std::string content_;
    std::string held_; // what may be the start of a match
};

class StripStage : public Stage {
  public:
    StripStage(TokenSink *next, const DecoderStep &step)
        : Stage(next), content_(step.content), start_(step.start), stop_(step.stop) {}
    void fragment(std::string_view text) override {
        std::string kept;
        for (size_t i = 0; i < text.size();) {
            const auto length = static_cast<size_t>(utf8_length(text[i]));
            take(text.substr(i, length), &kept);
            i += length;
        }
        if (!kept.empty()) next_->fragment(kept);
    }
    void end_token() override {
        stripped_ = 0;
        at_start_ = true;
        held_ = 0;
        next_->end_token();
    }

  private:
    void take(std::string_view character, std::string *kept) {
        const bool is_content = character == content_;
        if (at_start_ && is_content && stripped_ < start_) {
            ++stripped_;
            return;
        }
        at_start_ = false;
        if (is_content && held_ < stop_) {
            ++held_;
            return;
        }
        if (!is_content) {
            for (; held_ > 0; --held_) kept->append(content_);
        }
        kept->append(character);
    }
    std::string content_;
    int64_t start_;
    int64_t stop_;
    int64_t stripped_ = 0; // from the start of this token
    bool at_start_ = true;
    int64_t held_ = 0; // contents at the end of the token so far, dropped if the token ends here
};

class MetaspaceStage : public Stage {
  public:
    MetaspaceStage(TokenSink *next, const DecoderStep &step)
        : Stage(next), pattern_(step.pattern), drop_(step.drop_first) {}
    void fragment(std::string_view text) override {
        std::string kept;
        for (size_t i = 0; i < text.size();) {
            const auto length = static_cast<size_t>(utf8_length(text[i]));
            const std::string_view character = text.substr(i, length);
            if (character != pattern_) {
                kept.append(character);
            } else if (!drop_) {
                kept.push_back(' ');
            }
            i += length;
        }
        if (!kept.empty()) next_->fragment(kept);
    }
    void end_token() override {
        drop_ = false;
        next_->end_token();
    }

  private:
    std::string pattern_;
    bool drop_; // in the first token
};

class JoinStage : public Stage {
  public:
    using Stage::Stage;
    void fragment(std::string_view text) override {
        begin();
        next_->fragment(text);
    }
    void end_token() override {
        begin();
        begun_ = false;
        next_->end_token();
    }

  private:
    void begin() {
        if (begun_) return;
        if (!first_) next_->fragment(" ");
        begun_ = true;
        first_ = false;
    }
    bool first_ = true;
    bool begun_ = false;
};

} // namespace

std::unique_ptr<TokenSink> make_decoder_stage(const DecoderStep &step, TokenSink *next) {
    switch (step.kind) {
    case DecoderStep::Kind::byte_level:
        return std::make_unique<ByteLevelStage>(next);
    case DecoderStep::Kind::byte_fallback:
        return std::make_unique<ByteFallbackStage>(next);
    case DecoderStep::Kind::fuse:
        return std::make_unique<FuseStage>(next);
    case DecoderStep::Kind::replace:
        return std::make_unique<ReplaceStage>(next, step);
    case DecoderStep::Kind::strip:
        return std::make_unique<StripStage>(next, step);
    case DecoderStep::Kind::metaspace:
        return std::make_unique<MetaspaceStage>(next, step);
    case DecoderStep::Kind::join:
        return std::make_unique<JoinStage>(next);
    }
    return nullptr;
}

} // namespace batchllm
