#include "text/jinja/template.h"

#include <cinttypes>

namespace batchllm::jinja {
namespace {

// JSON -> values of the heap. Text stays where the document has it.
class Converter {
  public:
    explicit Converter(Heap *heap) : heap_(heap) {}

    Result<Value> convert(simdjson::dom::element element, int32_t depth) {
        if (depth > Heap::most_depth) {
            return template_error("JSON is nested deeper than %d levels", Heap::most_depth);
        }
        switch (element.type()) {
        case simdjson::dom::element_type::ARRAY: {
            simdjson::dom::array array;
            if (element.get(array) != simdjson::SUCCESS) break;
            std::vector<Value> items;
            for (const simdjson::dom::element item : array) {
                ASSIGN_OR_RETURN(const Value value, convert(item, depth + 1));
                items.push_back(value);
            }
            return heap_->sequence(SequenceType::list, std::move(items));
        }
        case simdjson::dom::element_type::OBJECT: {
            simdjson::dom::object object;
            if (element.get(object) != simdjson::SUCCESS) break;
            auto dict = std::make_unique<Dict>();
            for (const auto member : object) {
                RETURN_IF_ERROR(check(member.key));
                ASSIGN_OR_RETURN(const Value value, convert(member.value, depth + 1));
                dict->set(Value::string(member.key), value);
            }
            return heap_->dict(std::move(dict));
        }
        case simdjson::dom::element_type::STRING:
            RETURN_IF_ERROR(check(std::string_view(element)));
            return Value::string(std::string_view(element));
        case simdjson::dom::element_type::INT64:
            return Value::integer(int64_t(element));
        case simdjson::dom::element_type::UINT64:
            return template_error("number %" PRIu64 " is beyond 64 bits with a sign",
                                  uint64_t(element));
        case simdjson::dom::element_type::DOUBLE:
            return Value::real(double(element));
        case simdjson::dom::element_type::BOOL:
            return Value::boolean(bool(element));
        default:
            break;
        }
        return Value::none();
    }

  private:
    // The escape of half a character gets through the parser.
    static Status check(std::string_view text) {
        if (simdjson::validate_utf8(text.data(), text.size())) return {};
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

Result<Value> to_value(Heap *heap, simdjson::dom::element element) {
    return Converter(heap).convert(element, 1);
}

} // namespace batchllm::jinja
