// Sets of numbers, exact in decimal: an interval, divisors, non-divisors -> the automaton of the texts
// that represent them.
//
// The texts of a set are in general:
//   plain        -?(0|[1-9][0-9]*)(\.[0-9]+)?
//   exponential  -?[1-9](\.[0-9]+)?[eE][+-]?[0-9]+
// Integers are written plainly, with or without `.0`, or exponentially, with at most 16 digits
// after the point and an exponent of at least 16, as other programs write large floats. With
// NumberStyle::plain, nothing is exponential and no integer has a `.0`. A set of one number has its
// plain form, its shortest exponential form if the exponent is at least 16 or less than -4, and,
// for integers, the plain form with `.0`. The set of all numbers has every form that JSON allows.
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

// 0.digits times ten to the power of `exponent`. digits has no zero at either end; it is empty for
// zero.
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

// A number in JSON notation. Empty optional if its exponent is beyond 1000.
std::optional<Decimal> decimal(std::string_view text);

// Empty optional if it is not an integer that fits.
std::optional<int64_t> small_integer(const Decimal &number);

// units / 10^places, units > 0: what a number must be a multiple of.
struct Divisor {
    int64_t units = 1;
    int places = 0;
    bool operator==(const Divisor &) const = default;
};
// Empty optional if it is not above zero or has too many digits.
std::optional<Divisor> divisor(const Decimal &number);
// The multiples of both are the multiples of this. Empty optional if it is too large.
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
    // Whether the set is obviously empty.
    bool seen_empty() const;
    bool contains(const Decimal &number) const;
    bool operator==(const NumberSet &) const = default;
};

// Empty optional if a common multiple is too large.
std::optional<NumberSet> intersect(const NumberSet &a, const NumberSet &b);

enum class NumberStyle : uint8_t { any, plain };

// The texts of the numbers in the set. Fails if a bound or a divisor is too large.
Result<Automaton> number_texts(const NumberSet &set, NumberStyle style, Budget *budget);

} // namespace batchllm
