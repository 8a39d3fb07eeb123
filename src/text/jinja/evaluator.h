// A parsed template and its variables -> text. An evaluator is used by one thread, once.
//
// Every error is ROW_TEMPLATE and begins with the line where it happened. Work, memory, output and
// the depth of evaluation are bounded, whatever the template.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/parser.h"
#include "text/jinja/value.h"

namespace batchllm::jinja {

struct Limits {
    int64_t steps;       // each node evaluated counts 1, as do 64 bytes or 8 items read
    size_t heap_bytes;   // text and lists created by the rendering
    size_t output_bytes; // text printed, including captured text
    int32_t depth = 400; // nested evaluations, which use stack
};

// The text of an error caused by a template or its values, without its line.
Status template_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The error of an operation on a value that is not defined.
Status undefined_error(const Value &value);

struct CallArguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string_view, Value>> named;
};

// Arguments, by the parameter names of a function.
class Parameters {
  public:
    // Fails if an argument is unknown or given twice.
    static Result<Parameters> bind(std::string_view function, const CallArguments &arguments,
                                   std::initializer_list<std::string_view> names);

    bool has(size_t i) const { return values_[i].has_value(); }
    Value get(size_t i, const Value &otherwise) const { return values_[i].value_or(otherwise); }
    // These fail if the argument has another type.
    Result<Value> required(size_t i) const;
    Result<int64_t> integer(size_t i, int64_t otherwise) const;
    Result<std::string_view> text(size_t i, std::string_view otherwise) const;
    bool flag(size_t i, bool otherwise) const { return has(i) ? values_[i]->truth() : otherwise; }

  private:
    std::string_view function_;
    std::vector<std::string_view> names_;
    std::vector<std::optional<Value>> values_;
};

class Evaluator {
  public:
    // now: local time, for strftime_now.
    Evaluator(const Limits &limits, const std::tm &now)
        : heap_(limits.heap_bytes), limits_(limits), steps_left_(limits.steps), now_(now) {}

    // Sets a variable of the template. Call before run.
    void set(std::string_view name, const Value &value) { globals_.set(name, value); }
    Status run(const Program &program, std::string *out);

    // ---- for filters, tests, methods and functions ----

    Heap &heap() { return heap_; }
    const std::tm &now() const { return now_; }

    Status charge(size_t work); // counts steps
    Status charge_text(std::string_view text) { return charge(text.size() / 64); }
    // For work that grows with the product of the two texts' lengths.
    Status charge_product(std::string_view a, std::string_view b) {
        return charge((1 + a.size() / 64) * (1 + b.size() / 64));
    }
    Status charge_lookup(const Dict &dict, const Value &key);

    Result<Value> attribute(const Value &object, std::string_view name);
    Result<Value> item(const Value &object, const Value &key);
    Result<Value> slice(const Value &object, const Value &from, const Value &to, const Value &step);
    Result<Value> call(const Value &function, const CallArguments &arguments);

    // A filter applied by another filter: one more level of evaluation.
    Result<Value> filter(int32_t filter, const Value &value, const CallArguments &arguments);

    // The items that `for` iterates over; a generator is exhausted.
    Result<std::vector<Value>> iterate(const Value &value);
    // len().
    Result<int64_t> length(const Value &value);
    // str(). Fails for values that Python prints with an address.
    Status append_string(const Value &value, std::string *out);
    Result<std::string> to_string(const Value &value);
    // The same without a copy if the value is a string; otherwise allocated on the heap.
    Result<std::string_view> to_text(const Value &value);
    Status append_repr(const Value &value, std::string *out);

    Result<Value> binary(Operation operation, const Value &left, const Value &right);
    Result<bool> compare(Comparison comparison, const Value &left, const Value &right);
    // Replaces `part` in the text, the first `most` times; < 0: always.
    Result<Value> replace(std::string_view text, std::string_view part, std::string_view by,
                          int64_t most);
    Result<bool> contains(const Value &container, const Value &item);
    Status charge_comparison(const Value &left, const Value &right);

  private:
    enum class Flow : uint8_t { next, break_, continue_ };
    class Deeper;

    Result<Value> evaluate(const Expression &expression);
    Result<Value> evaluate_here(const Expression &expression);
    Result<Value> evaluate_name(const Expression &expression);
    Result<Value> evaluate_list(const Expression &expression);
    Result<Value> evaluate_dict(const Expression &expression);
    Result<Value> evaluate_logic(const Expression &expression);
    Result<Value> evaluate_concatenation(const Expression &expression);
    Result<Value> evaluate_comparison(const Expression &expression);
    Result<Value> evaluate_binary(const Expression &expression);
    Result<Value> evaluate_sign(const Expression &expression);
    Result<Value> evaluate_attribute(const Expression &expression);
    Result<Value> evaluate_item(const Expression &expression);
    Result<Value> evaluate_slice(const Expression &expression);
    // caller: null, or the argument that a call block adds.
    Result<Value> evaluate_call(const Expression &expression, const Value *caller = nullptr);
    Result<Value> evaluate_filter(const Expression &expression);
    Result<Value> evaluate_test(const Expression &expression);
    Status evaluate_arguments(const Arguments &arguments, CallArguments *out);
    Result<Value> call_macro(const Callable &macro, const CallArguments &arguments);
    // Sets the parameters that the macro was called with, and caller, varargs and kwargs.
    Status bind_macro(const MacroNode &macro, const CallArguments &arguments,
                      std::vector<bool> *given, Scope *scope);
    Result<Value> make_macro(const MacroNode &macro);
    Result<Value> filter_text(const Expression *filters, Value text);

    Result<Flow> execute(const Body &body);
    Result<Flow> execute(const Statement &statement);
    Result<Flow> execute_for(const Statement &statement);
    Result<Flow> execute_if(const Statement &statement);
    Result<Flow> execute_with(const Statement &statement);
    Status execute_call(const Statement &statement);
    Status start(Loop *loop, const Value &iterated);
    Result<bool> fetch(Loop *loop, size_t index);
    Result<bool> passes(Loop *loop, Value *item);
    Result<Value> held_by(const Target &target);
    Result<Flow> execute_loop(const Statement &statement, Loop *loop);
    Result<Value> loop_attribute(Loop *loop, std::string_view name);
    Status assign(const Target &target, const Value &value);
    Status print(std::string_view text);
    // The text of the body, evaluated in a new scope inside `scope`.
    Result<Value> capture(const Body &body, Scope *scope);
    // A new scope. Release it unless an error ends the rendering.
    Result<Scope *> inner_scope(Scope *parent);
    void give_back(Scope *scope);

    Heap heap_;
    const Limits limits_;
    int64_t steps_left_;
    int32_t depth_ = 0;
    size_t printed_ = 0;
    const std::tm now_;
    std::vector<Scope *> unused_scopes_;
    Scope globals_;
    Scope *scope_ = nullptr;
    std::string *out_ = nullptr;
    Value block_text_; // input of the innermost filter block
};

} // namespace batchllm::jinja
