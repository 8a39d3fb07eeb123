// Sets of numbers, exact in decimal: an interval, divisors, non-divisors -> the automaton of the texts
// that represent them.
//
// The texts of a set are in general:
//   plain        -?(0|[1-9][0-9]*)(\.[0-9]+)?
//   exponential  -?[1-9](\.[0-9]+)?[eE][+-]?[0-9]+
// Integers are written plainly, with `.0` after them or not; exponential ones have at most 16 digits
// after the point and an exponent from 16 on, as other programs write large floats. With NumberStyle::plain
// nothing is exponential and no integer has a `.0`. A set of one number has its plain form, its
// shortest exponential form where the exponent is at least 16 or less than -4, and, for integers, the
// plain form with `.0`. The set of all numbers has every form that JSON allows.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constraint/automaton.h"

namespace batchllm {

// 0.digits times ten to the power of `exponent`; digits have no zero at either end, none for zero.
struct Decimal {
    bool negative = false;
    std::string digits;
    int64_t exponent = 0;

    bool zero() const { return digits.empty(); }
    bool integer() const { return exponent >= static_cast<int64_t>(digits.size()); }
    Decimal negated() const { return {!zero() && !negative, digits, exponent}; }
    std::strong_ordering operator<=>(const Decimal &other) const;
    bool operator==(const Decimal &) const = default;
};

// A number in JSON's notation. Nothing if its exponent is beyond 1000.
std::optional<Decimal> decimal(std::string_view text);

// Nothing if it is not an integer that fits.
std::optional<int64_t> small_integer(const Decimal &number);

// units / 10^places, units > 0: what numbers are multiples of.
struct Divisor {
    int64_t units = 1;
    int places = 0;
    bool operator==(const Divisor &) const = default;
};
// Nothing if it is not above zero or has too many digits.
std::optional<Divisor> divisor(const Decimal &number);
// A multiple of both is a multiple of this. Nothing if it is too large.
std::optional<Divisor> common_multiple(const Divisor &a, const Divisor &b);

struct NumberSet {
    struct Bound {
        Decimal value;
        bool inclusive = true;
        bool operator==(const Bound &) const = default;
    };
    std::optional<Bound> least;
    std::optional<Bound> greatest;
    std::optional<Divisor> multiple_of;
    std::vector<Divisor> not_multiple_of;

    bool all() const { return !least && !greatest && !multiple_of && not_multiple_of.empty(); }
    bool one() const {
        return least && greatest && least->inclusive && greatest->inclusive &&
               least->value == greatest->value;
    }
    // Whether it is obvious that the set holds no number.
    bool seen_empty() const;
    bool contains(const Decimal &number) const;
    bool operator==(const NumberSet &) const = default;
};

// Nothing if a common multiple is too large.
std::optional<NumberSet> intersect(const NumberSet &a, const NumberSet &b);

enum class NumberStyle : uint8_t { any, plain };

// The texts of the numbers in the set. An error if a bound or a divisor is too large.
Result<Automaton> number_texts(const NumberSet &set, NumberStyle style, Budget *budget);

} // namespace batchllm
