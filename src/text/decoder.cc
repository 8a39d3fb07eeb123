#include "text/decoder.h"

#include "text/decoder_stages.h"

namespace batchllm {

class DecoderChain::Output : public TokenSink {
  public:
    void fragment(std::string_view text) override { out_->append(text); }
    void end_token() override {}
    void finish() override {}
    std::string *out_ = nullptr; // while a token is pushed
};

DecoderChain::DecoderChain(const std::vector<DecoderStep> &steps)
    : output_(std::make_unique<Output>()), head_(output_.get()) {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        stages_.push_back(make_decoder_stage(*step, head_));
        head_ = stages_.back().get();
    }
}

DecoderChain::DecoderChain(DecoderChain &&) noexcept = default;
DecoderChain &DecoderChain::operator=(DecoderChain &&) noexcept = default;
DecoderChain::~DecoderChain() = default;

void DecoderChain::push(std::string_view token, std::string *out) {
    output_->out_ = out;
    if (!token.empty()) head_->fragment(token);
    head_->end_token();
}

void DecoderChain::finish(std::string *out) {
    output_->out_ = out;
    head_->finish();
}

} // namespace batchllm
