#include "text/jinja/template.h"

#include <cinttypes>

#include "base/printable.h"

namespace batchllm::jinja {
namespace {

// JSON -> values on the heap. Text stays in the document.
class Converter {
  public:
    explicit Converter(Heap *heap) : heap_(heap) {}

    Result<Value> convert(JsonView view, int32_t depth) {
        if (depth > Heap::most_depth) {
            return template_error("JSON is nested deeper than %d levels", Heap::most_depth);
        }
        switch (view.kind()) {
        case JsonView::Kind::array: {
            std::vector<Value> items;
            const JsonItems list = *view.items();
            for (const JsonView item : list) {
                ASSIGN_OR_RETURN(const Value value, convert(item, depth + 1));
                items.push_back(value);
            }
            return heap_->sequence(SequenceType::list, std::move(items));
        }
        case JsonView::Kind::object: {
            auto dict = std::make_unique<Dict>();
            const JsonMembers members = *view.members();
            for (const auto [key, member] : members) {
                RETURN_IF_ERROR(check(key));
                ASSIGN_OR_RETURN(const Value value, convert(member, depth + 1));
                dict->set(Value::string(key), value);
            }
            return heap_->dict(std::move(dict));
        }
        case JsonView::Kind::string:
            RETURN_IF_ERROR(check(*view.string()));
            return Value::string(*view.string());
        case JsonView::Kind::number:
            if (const auto integer = view.integer()) return Value::integer(*integer);
            if (const auto beyond = view.unsigned_integer()) {
                return template_error("number %" PRIu64 " is beyond 64 bits with a sign", *beyond);
            }
            return Value::real(*view.number());
        case JsonView::Kind::boolean:
            return Value::boolean(*view.boolean());
        case JsonView::Kind::null:
            break;
        }
        return Value::none();
    }

  private:
    // The parser accepts escapes of unpaired surrogates.
    static Status check(std::string_view text) {
        if (is_utf8(text)) return {};
        return Status(BATCHLLM_ERROR_ROW_INVALID_UTF8, "a string is not valid Unicode");
    }

    Heap *heap_;
};

} // namespace

Result<Template> Template::parse(std::string_view source) {
    Template made;
    ASSIGN_OR_RETURN(made.program_, jinja::parse(source));
    return made;
}

Status Template::render(Evaluator *evaluator, std::string *out) const {
    const size_t before = out->size();
    Status status = evaluator->run(program_, out);
    if (!status.ok()) out->resize(before);
    return status;
}

Limits limits_for(size_t input_bytes) {
    Limits limits;
    limits.steps = 4'000'000 + 256 * static_cast<int64_t>(input_bytes);
    limits.heap_bytes = (size_t{64} << 20) + 64 * input_bytes;
    limits.output_bytes = (size_t{16} << 20) + 16 * input_bytes;
    return limits;
}

Result<Value> to_value(Heap *heap, JsonView view) { return Converter(heap).convert(view, 1); }

} // namespace batchllm::jinja
