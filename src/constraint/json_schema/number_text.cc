// NumberSet -> automaton of its texts, by walking the machines of json_schema_number_machine.h.
#include <map>

#include "constraint/json_schema/number_machine.h"
#include "constraint/nfa.h"

namespace batchllm {

namespace {

constexpr size_t kMostStates = 60000;
constexpr int64_t kLargestPlain = 16; // up to this exponent, numbers are written without one

// Adds the machine's states to the automaton: from `start`, it reads the texts that the machine
// accepts.
Status add_machine(const NumberMachine &machine, bool negative, Nfa *nfa, int32_t start,
                   std::vector<int32_t> *accepting, Budget *budget) {
    std::map<NumberState, int32_t> seen;
    std::vector<const NumberState *> waiting;
    const auto enter = [&](NumberState state, int32_t as) {
        const auto [place, fresh] = seen.try_emplace(std::move(state), as);
        if (fresh) {
            if (as < 0) place->second = nfa->add_state();
            if (machine.accepts(place->first)) accepting->push_back(place->second);
            waiting.push_back(&place->first);
        }
        return place->second;
    };
    enter(machine.start(negative), start);
    while (!waiting.empty()) {
        const NumberState &state = *waiting.back();
        waiting.pop_back();
        const int32_t from = seen.find(state)->second;
        RETURN_IF_ERROR(budget->spend_states(1));
        if (seen.size() > kMostStates) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "too many digits and remainders together");
        }
        for (const char byte : std::string_view("0123456789.eE+-")) {
            if (auto to = machine.step(state, byte)) {
                const auto read = static_cast<uint8_t>(byte);
                nfa->add_bytes(from, read, read, enter(std::move(*to), -1));
            }
        }
    }
    return Status();
}

// All numbers in JSON's syntax.
Automaton all_numbers(NumberStyle style) {
    Nfa nfa;
    const int32_t start = nfa.add_state(), minus = nfa.add_state(), zero = nfa.add_state(),
                  whole = nfa.add_state(), point = nfa.add_state(), places = nfa.add_state(),
                  exponent = nfa.add_state(), sign = nfa.add_state(), power = nfa.add_state();
    nfa.add_bytes(start, '-', '-', minus);
    nfa.add_empty(start, minus);
    nfa.add_bytes(minus, '0', '0', zero);
    nfa.add_bytes(minus, '1', '9', whole);
    nfa.add_bytes(whole, '0', '9', whole);
    nfa.add_bytes(zero, '.', '.', point);
    nfa.add_bytes(whole, '.', '.', point);
    nfa.add_bytes(point, '0', '9', places);
    nfa.add_bytes(places, '0', '9', places);
    if (style == NumberStyle::any) {
        for (const int32_t from : {zero, whole, places}) {
            nfa.add_bytes(from, 'e', 'e', exponent);
            nfa.add_bytes(from, 'E', 'E', exponent);
        }
    }
    nfa.add_bytes(exponent, '+', '+', sign);
    nfa.add_bytes(exponent, '-', '-', sign);
    nfa.add_empty(exponent, sign);
    nfa.add_bytes(sign, '0', '9', power);
    nfa.add_bytes(power, '0', '9', power);
    Budget budget; // of a fixed size, far below any budget
    const auto made = nfa.determinize(start, {zero, whole, places, power}, &budget);
    return made.ok() ? made.value() : Automaton();
}

// The texts of one number.
std::vector<std::string> texts_of(const Decimal &number, NumberStyle style) {
    std::vector<std::string> out;
    const BoundDigits digits = digits_of(NumberSet::Bound{number, true}, false);
    const std::string plain = digits.whole + (digits.places.empty() ? "" : "." + digits.places);
    for (const std::string sign : {"", "-"}) {
        if (!number.zero() && number.negative == sign.empty()) continue;
        if (number.zero() && !sign.empty() && style == NumberStyle::plain) continue;
        out.push_back(sign + plain);
        if (style == NumberStyle::plain) continue;
        if (digits.places.empty()) out.push_back(sign + plain + ".0");
        if (number.zero() || (number.exponent > -4 && number.exponent <= kLargestPlain)) continue;
        std::string mantissa = number.digits.substr(0, 1);
        if (number.digits.size() > 1) mantissa += "." + number.digits.substr(1);
        for (const std::string e : {"e", "E"}) {
            const std::string zero = digits.power.size() == 1 ? "0" : "";
            if (!digits.down) {
                out.push_back(sign + mantissa + e + digits.power);
                out.push_back(sign + mantissa + e + "+" + zero + digits.power);
            } else {
                out.push_back(sign + mantissa + e + "-" + digits.power);
                out.push_back(sign + mantissa + e + "-" + zero + digits.power);
            }
        }
    }
    return out;
}

Result<Automaton> bounded_numbers(const NumberSet &set, NumberStyle style, Budget *budget) {
    const PlainMachine plain(set, style);
    const ExponentialMachine exponential(set, style);
    RETURN_IF_ERROR(plain.check());
    Nfa nfa;
    const int32_t start = nfa.add_state();
    std::vector<int32_t> accepting;
    for (const bool negative : {false, true}) {
        int32_t digits = start;
        if (negative) {
            digits = nfa.add_state();
            nfa.add_bytes(start, '-', '-', digits);
        }
        RETURN_IF_ERROR(add_machine(plain, negative, &nfa, digits, &accepting, budget));
        if (!exponential.useful()) continue;
        const int32_t mantissa = nfa.add_state();
        nfa.add_empty(digits, mantissa);
        RETURN_IF_ERROR(add_machine(exponential, negative, &nfa, mantissa, &accepting, budget));
    }
    return nfa.determinize(start, std::move(accepting), budget);
}

// The two sets that nearly every schema has, made once.
struct CommonNumbers {
    explicit CommonNumbers(NumberStyle style) : all(all_numbers(style)) {
        Budget budget; // of a fixed size, far below any budget
        NumberSet set;
        set.multiple_of = Divisor{1, 0};
        const auto made = bounded_numbers(set, style, &budget);
        if (made.ok()) integers = *made;
    }
    Automaton all;
    Automaton integers;
};

} // namespace

Result<Automaton> number_texts(const NumberSet &set, NumberStyle style, Budget *budget) {
    static const CommonNumbers any(NumberStyle::any), plain(NumberStyle::plain);
    const CommonNumbers &common = style == NumberStyle::plain ? plain : any;
    if (set.all()) return common.all;
    if (set.seen_empty()) return Automaton();
    if (set.one()) return Automaton::strings(texts_of(set.least->value, style), budget);
    if (!set.least && !set.greatest && set.not_multiple_of.empty() &&
        set.multiple_of == Divisor{1, 0}) {
        return common.integers;
    }
    return bounded_numbers(set, style, budget);
}

} // namespace batchllm
