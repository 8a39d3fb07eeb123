// Machines that read a number's text from the left. A state contains how the digits so far compare
// with each bound of a NumberSet, and their remainder for each divisor. One machine reads plain
// texts, the other exponential ones.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "constraint/json_schema/number.h"

namespace batchllm {

inline constexpr int64_t kMostRemainders = 5000;
inline constexpr int kMostPlaces = 64;         // in a divisor
inline constexpr int kLeastExponent = 16;      // in the exponential text of an integer
inline constexpr int kMostMantissaPlaces = 16; // in its mantissa
inline constexpr int kMostExponentSeen = 99;   // larger exponents count as this

// The digits of a bound's magnitude, in plain and in exponential notation.
struct BoundDigits {
    bool given = false;
    bool inclusive = true;
    int sign = 0;         // of the bound
    std::string whole;    // before the point
    std::string places;   // after it, without trailing zeros
    std::string mantissa; // without trailing zeros
    bool down = false;    // the exponent is negative
    std::string power;    // magnitude of the exponent
};

inline BoundDigits digits_of(const std::optional<NumberSet::Bound> &bound, bool mirrored) {
    BoundDigits out;
    if (!bound) return out;
    const Decimal &value = bound->value;
    out.given = true;
    out.inclusive = bound->inclusive;
    out.sign = value.zero() ? 0 : (value.negative != mirrored ? -1 : 1);
    out.mantissa = value.digits;
    const int64_t power = value.exponent - 1;
    out.down = power < 0;
    out.power = std::to_string(power < 0 ? -power : power);
    if (value.exponent <= 0) {
        out.whole = "0";
        if (!value.zero()) {
            out.places = std::string(static_cast<size_t>(-value.exponent), '0') + value.digits;
        }
    } else {
        const size_t length = static_cast<size_t>(value.exponent);
        out.whole = value.digits.substr(0, length);
        out.whole.resize(length, '0');
        if (value.digits.size() > length) out.places = value.digits.substr(length);
    }
    return out;
}

// How the digits read so far compare with those of a bound.
struct DigitsCompared {
    int8_t order = 0;
    int16_t count = 0; // digits read, up to one more than the bound has
    auto operator<=>(const DigitsCompared &) const = default;

    void digit(char digit, const std::string &digits) {
        const size_t at = static_cast<size_t>(count);
        const char other = at < digits.size() ? digits[at] : '0';
        if (order == 0) order = static_cast<int8_t>(digit < other ? -1 : (digit > other ? 1 : 0));
        if (at <= digits.size()) ++count;
    }
    // Compares as integers: more digits make a larger number, and no digits are zero.
    int as_integers(const std::string &digits) const {
        const size_t met = static_cast<size_t>(count);
        if (met == 0) return digits == "0" ? 0 : -1;
        if (met != digits.size()) return met < digits.size() ? -1 : 1;
        return order;
    }
    // Compares as places after a point.
    int as_places(const std::string &digits) const {
        return order == 0 && static_cast<size_t>(count) < digits.size() ? -1 : order;
    }
};

enum class NumberPhase : uint8_t { start, zero, whole, point, places, exponent, sign, power };

struct NumberState {
    NumberPhase phase = NumberPhase::start;
    bool negative = false;
    bool down = false;       // the exponent is negative
    uint8_t place_count = 0; // digits after the point, as far as they matter
    uint8_t exponent = 0;    // value so far, up to kMostExponentSeen
    std::array<DigitsCompared, 2> bounds = {};
    std::array<DigitsCompared, 2> powers = {};
    std::vector<int32_t> remainders; // -1: not a multiple, whatever follows
    auto operator<=>(const NumberState &) const = default;
};

class NumberMachine {
  public:
    NumberMachine(const NumberSet &set, NumberStyle style) : style_(style) {
        // [1]: for the magnitudes of negative numbers.
        bounds_[0] = {digits_of(set.least, false), digits_of(set.greatest, false)};
        bounds_[1] = {digits_of(set.greatest, true), digits_of(set.least, true)};
        wanted_ = set.multiple_of.has_value();
        if (wanted_) divisors_.push_back(*set.multiple_of);
        divisors_.insert(divisors_.end(), set.not_multiple_of.begin(), set.not_multiple_of.end());
        for (const Divisor &by : divisors_) most_places_ = std::max(most_places_, by.places);
        integer_ = wanted_ && divisors_[0].places == 0;
    }
    virtual ~NumberMachine() = default;

    Status check() const {
        int64_t product = 1;
        for (const Divisor &by : divisors_) {
            if (by.units > kMostRemainders || by.places > kMostPlaces ||
                (product *= by.units) > kMostRemainders) {
                return error(BATCHLLM_ERROR_UNSUPPORTED, "more than %lld remainders to tell apart",
                             static_cast<long long>(kMostRemainders));
            }
        }
        return Status();
    }
    NumberState start(bool negative) const {
        NumberState state;
        state.negative = negative;
        state.remainders.assign(divisors_.size(), 0);
        return state;
    }
    virtual std::optional<NumberState> step(const NumberState &from, char byte) const = 0;
    virtual bool accepts(const NumberState &state) const = 0;

  protected:
    const BoundDigits &bound(const NumberState &state, size_t which) const {
        return bounds_[state.negative ? 1 : 0][which];
    }
    // order: how the magnitude of the number compares with that of the bound.
    bool within(const NumberState &state, size_t which, int order) const {
        const BoundDigits &other = bound(state, which);
        if (!other.given) return true;
        if (other.sign < 0) order = 1;
        if (order == 0) return other.inclusive;
        return which == 0 ? order > 0 : order < 0;
    }

    NumberStyle style_;
    std::array<std::array<BoundDigits, 2>, 2> bounds_;
    std::vector<Divisor> divisors_; // the wanted divisor comes first
    bool wanted_ = false;
    bool integer_ = false;
    int most_places_ = 0;
};

class PlainMachine final : public NumberMachine {
  public:
    using NumberMachine::NumberMachine;

    std::optional<NumberState> step(const NumberState &from, char byte) const override {
        NumberState to = from;
        if (byte == '.') {
            if (from.phase != NumberPhase::zero && from.phase != NumberPhase::whole)
                return std::nullopt;
            if (integer_ && style_ == NumberStyle::plain) return std::nullopt;
            to.phase = NumberPhase::point;
            end_whole(&to);
            return to;
        }
        if (byte < '0' || byte > '9') return std::nullopt;
        if (from.phase == NumberPhase::point || from.phase == NumberPhase::places)
            return place(to, byte);
        if (from.phase == NumberPhase::zero) return std::nullopt;
        if (from.phase == NumberPhase::start)
            to.phase = byte == '0' ? NumberPhase::zero : NumberPhase::whole;
        for (size_t i = 0; i < 2; ++i) {
            if (bound(to, i).given) to.bounds[i].digit(byte, bound(to, i).whole);
        }
        add_to_remainders(&to, byte);
        return to;
    }

    bool accepts(const NumberState &end) const override {
        NumberState state = end;
        if (end.phase == NumberPhase::zero || end.phase == NumberPhase::whole) {
            end_whole(&state);
        } else if (end.phase != NumberPhase::places) {
            return false;
        }
        for (size_t i = 0; i < 2; ++i) {
            if (!within(state, i, state.bounds[i].as_places(bound(state, i).places))) return false;
        }
        for (size_t i = 0; i < divisors_.size(); ++i) {
            if (multiple(state, i) != (wanted_ && i == 0)) return false;
        }
        return true;
    }

  private:
    void end_whole(NumberState *state) const {
        for (size_t i = 0; i < 2; ++i) {
            if (!bound(*state, i).given) continue;
            const int order = state->bounds[i].as_integers(bound(*state, i).whole);
            state->bounds[i] = {static_cast<int8_t>(order), 0};
        }
    }
    std::optional<NumberState> place(NumberState state, char byte) const {
        // A multiple has no more places than its divisor, except for the 0 in 5.0.
        if (wanted_ && state.place_count >= std::max(divisors_[0].places, 1)) return std::nullopt;
        if (integer_ && byte != '0') return std::nullopt;
        state.phase = NumberPhase::places;
        for (size_t i = 0; i < 2; ++i) {
            if (bound(state, i).given) state.bounds[i].digit(byte, bound(state, i).places);
        }
        add_to_remainders(&state, byte);
        const int limit = std::max(most_places_ + 1, 1);
        state.place_count = static_cast<uint8_t>(std::min(state.place_count + 1, limit));
        return state;
    }
    void add_to_remainders(NumberState *state, char byte) const {
        for (size_t i = 0; i < divisors_.size(); ++i) {
            int32_t &remainder = state->remainders[i];
            if (remainder < 0) continue;
            if (state->phase == NumberPhase::places && state->place_count >= divisors_[i].places) {
                if (byte != '0') remainder = -1;
            } else {
                remainder = static_cast<int32_t>((int64_t{remainder} * 10 + (byte - '0')) %
                                                 divisors_[i].units);
            }
        }
    }
    bool multiple(const NumberState &state, size_t divisor) const {
        int64_t remainder = state.remainders[divisor];
        if (remainder < 0) return false;
        for (int i = state.place_count; i < divisors_[divisor].places; ++i) {
            remainder = remainder * 10 % divisors_[divisor].units;
        }
        return remainder == 0;
    }
};

class ExponentialMachine final : public NumberMachine {
  public:
    ExponentialMachine(const NumberSet &set, NumberStyle style) : NumberMachine(set, style) {
        for (const Divisor &by : divisors_) {
            Factors factors;
            factors.coprime = by.units;
            int twos = 0, fives = 0;
            for (; factors.coprime % 2 == 0; factors.coprime /= 2) ++twos;
            for (; factors.coprime % 5 == 0; factors.coprime /= 5) ++fives;
            factors.zeros = std::max(0, std::max(twos, fives) - by.places);
            // The divisor is at least 10^(digits - 1 - places), so smaller numbers are not
            // multiples.
            const int digits = static_cast<int>(std::to_string(by.units).size());
            factors.least_down = std::max(1, by.places + 2 - digits);
            most_told_ =
                std::max({most_told_, kMostMantissaPlaces + factors.zeros, factors.least_down});
            counts_places_ = counts_places_ || factors.zeros > 0;
            factors_.push_back(factors);
        }
    }

    // Whether there are any such texts.
    bool useful() const { return style_ != NumberStyle::plain && most_told_ <= kMostExponentSeen; }

    std::optional<NumberState> step(const NumberState &from, char byte) const override {
        NumberState to = from;
        if (byte == '.') {
            if (from.phase != NumberPhase::whole) return std::nullopt;
            to.phase = NumberPhase::point;
            return to;
        }
        if (byte == 'e' || byte == 'E') {
            if (from.phase != NumberPhase::whole && from.phase != NumberPhase::places)
                return std::nullopt;
            to.phase = NumberPhase::exponent;
            if (!counts_places_) to.place_count = 0; // no longer relevant
            for (size_t i = 0; i < 2; ++i) {
                const int order = to.bounds[i].as_places(bound(to, i).mantissa);
                to.bounds[i] = {static_cast<int8_t>(order), 0};
            }
            return to;
        }
        if (byte == '+' || byte == '-') {
            if (from.phase != NumberPhase::exponent) return std::nullopt;
            to.phase = NumberPhase::sign;
            to.down = byte == '-';
            return to;
        }
        if (byte < '0' || byte > '9') return std::nullopt;
        if (from.phase >= NumberPhase::exponent) return power_digit(to, byte);
        return mantissa_digit(to, byte);
    }

    bool accepts(const NumberState &state) const override {
        if (state.phase != NumberPhase::power) return false;
        for (size_t i = 0; i < divisors_.size(); ++i) {
            const std::optional<bool> divides = multiple(state, i);
            if (!divides || *divides != (wanted_ && i == 0)) return false;
        }
        for (size_t i = 0; i < 2; ++i) {
            if (bound(state, i).given && !within(state, i, order(state, i))) return false;
        }
        return true;
    }

  private:
    // A divisor's factors, for integers with trailing zeros.
    struct Factors {
        int64_t coprime = 1; // the part coprime to ten
        int zeros = 0;       // this many trailing zeros make a multiple of the rest
        int least_down = 1;  // numbers with an exponent of -least_down or less are smaller than it
    };

    // Whether the number is a multiple; empty optional if the exponent does not decide it.
    std::optional<bool> multiple(const NumberState &state, size_t divisor) const {
        const Factors &factors = factors_[divisor];
        if (state.down && state.exponent > 0) {
            if (state.exponent >= factors.least_down) return false;
            return std::nullopt;
        }
        if (state.exponent < std::max(kLeastExponent, state.place_count + factors.zeros)) {
            return std::nullopt;
        }
        return state.remainders[divisor] == 0;
    }
    int order(const NumberState &state, size_t which) const {
        const BoundDigits &other = bound(state, which);
        if (other.sign == 0) return 1;
        const bool down = state.down && state.exponent > 0;
        if (down != other.down) return down ? -1 : 1;
        const int power = state.powers[which].as_integers(other.power);
        if (power != 0) return down ? -power : power;
        return state.bounds[which].order;
    }
    std::optional<NumberState> mantissa_digit(NumberState state, char byte) const {
        if (state.phase == NumberPhase::whole ||
            (state.phase == NumberPhase::start && byte == '0')) {
            return std::nullopt;
        }
        if (state.phase == NumberPhase::start) {
            state.phase = NumberPhase::whole;
        } else {
            // With divisors, the exponent must add a zero for every place.
            if (!divisors_.empty() && state.place_count >= kMostMantissaPlaces) return std::nullopt;
            if (!divisors_.empty()) ++state.place_count;
            state.phase = NumberPhase::places;
        }
        for (size_t i = 0; i < 2; ++i) {
            if (bound(state, i).given) state.bounds[i].digit(byte, bound(state, i).mantissa);
        }
        for (size_t i = 0; i < divisors_.size(); ++i) {
            state.remainders[i] = static_cast<int32_t>(
                (int64_t{state.remainders[i]} * 10 + (byte - '0')) % factors_[i].coprime);
        }
        return state;
    }
    std::optional<NumberState> power_digit(NumberState state, char byte) const {
        state.phase = NumberPhase::power;
        if (byte == '0' && state.exponent == 0) return state; // leading zeros
        state.exponent =
            static_cast<uint8_t>(std::min(state.exponent * 10 + (byte - '0'), kMostExponentSeen));
        for (size_t i = 0; i < 2; ++i) {
            if (bound(state, i).given) state.powers[i].digit(byte, bound(state, i).power);
        }
        // Larger exponents need not be distinguished.
        if (state.exponent >= std::max(most_told_, 1)) {
            state.exponent = kMostExponentSeen;
        }
        return state;
    }

    std::vector<Factors> factors_; // [divisors]
    int most_told_ = 0;            // larger exponents are treated alike
    bool counts_places_ = false;
};

} // namespace batchllm
