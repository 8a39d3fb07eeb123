#include "text/jinja/template.h"

#include <limits>

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
                ASSIGN_OR_RETURN(const Value value, convert(member, depth + 1));
                dict->set(Value::string(key), value);
            }
            return heap_->dict(std::move(dict));
        }
        case JsonView::Kind::string:
            return Value::string(*view.string());
        case JsonView::Kind::number:
            if (view.is_integer() && view.integer()) return Value::integer(*view.integer());
            return number(*view.number_text(), view.number());
        case JsonView::Kind::boolean:
            return Value::boolean(*view.boolean());
        case JsonView::Kind::null:
            break;
        }
        return Value::none();
    }

  private:
    static Result<Value> number(std::string_view text, std::optional<double> value) {
        if (text.find_first_of(".eE") == std::string_view::npos) {
            constexpr size_t most_digits = 4300; // as in Python
            if (text.size() - (text.front() == '-' ? 1 : 0) <= most_digits) {
                return Value::large_integer(text);
            }
            return template_error("a number has more than %zu digits", most_digits);
        }
        const double infinity = std::numeric_limits<double>::infinity();
        return Value::real(value.value_or(text.front() == '-' ? -infinity : infinity));
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
