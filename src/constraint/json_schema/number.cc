#include "constraint/json_schema/number.h"

#include <algorithm>
#include <numeric>

namespace batchllm {

namespace {

constexpr int64_t kMostExponent = 1000;
constexpr int64_t kMostUnits = 1'000'000'000'000'000;

bool multiple(const Decimal &number, const Divisor &by) {
    if (number.zero()) return true;
    // number = digits * 10^shift / 10^places; the remainder is that of its digits and zeros.
    const int64_t shift = number.exponent - static_cast<int64_t>(number.digits.size()) + by.places;
    if (shift < 0)
        return false; // digits do not end in a zero, so it has more decimal places than
                      // any multiple
    __int128 remainder = 0;
    for (const char digit : number.digits) remainder = (remainder * 10 + (digit - '0')) % by.units;
    for (int64_t i = 0; i < shift && remainder != 0; ++i) remainder = remainder * 10 % by.units;
    return remainder == 0;
}

// The tighter of two bounds; `sign` is 1 for least, -1 for greatest.
std::optional<NumberSet::Bound> tighter(const std::optional<NumberSet::Bound> &a,
                                        const std::optional<NumberSet::Bound> &b, int sign) {
    if (!a) return b;
    if (!b) return a;
    const auto order = a->value <=> b->value;
    if (order == 0) return a->inclusive ? b : a;
    return (order > 0) == (sign > 0) ? a : b;
}

// The least multiple that is not below the bound (not above, for down), if numbers stay small.
std::optional<__int128> nearest_multiple(const NumberSet::Bound &bound, const Divisor &by,
                                         bool up) {
    const Decimal &value = bound.value;
    if (value.zero()) return bound.inclusive ? 0 : (up ? 1 : -1);
    const int64_t shift = value.exponent - static_cast<int64_t>(value.digits.size()) + by.places;
    if (value.digits.size() > 15 || shift > 15 || shift < -15) return std::nullopt;
    __int128 units = 0;
    for (const char digit : value.digits) units = units * 10 + (digit - '0');
    __int128 scale = by.units;
    for (int64_t i = 0; i < shift; ++i) units *= 10;
    for (int64_t i = shift; i < 0; ++i) scale *= 10;
    if (value.negative) units = -units;
    __int128 quotient = units / scale;
    if (units % scale != 0) {
        if (up == (units > 0)) quotient += up ? 1 : -1;
    } else if (!bound.inclusive) {
        quotient += up ? 1 : -1;
    }
    return quotient;
}

} // namespace

std::strong_ordering Decimal::operator<=>(const Decimal &other) const {
    const int sign = zero() ? 0 : (negative ? -1 : 1);
    const int other_sign = other.zero() ? 0 : (other.negative ? -1 : 1);
    if (sign != other_sign || sign == 0) return sign <=> other_sign;
    auto magnitude = exponent <=> other.exponent;
    if (magnitude == 0) magnitude = digits.compare(other.digits) <=> 0;
    return sign > 0 ? magnitude : 0 <=> magnitude;
}

std::optional<Decimal> decimal(std::string_view text) {
    Decimal out;
    size_t at = 0;
    if (at < text.size() && text[at] == '-') {
        out.negative = true;
        ++at;
    }
    bool fraction = false;
    for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
        if (text[at] == '.') {
            fraction = true;
        } else {
            out.digits += text[at];
            if (!fraction) ++out.exponent;
        }
    }
    if (at < text.size()) {
        ++at;
        const bool down = at < text.size() && text[at] == '-';
        if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
        int64_t power = 0;
        for (; at < text.size(); ++at) {
            power = std::min<int64_t>(power * 10 + (text[at] - '0'), int64_t{1} << 40);
        }
        out.exponent += down ? -power : power;
    }
    const size_t first = out.digits.find_first_not_of('0');
    if (first == std::string::npos) return Decimal{};
    out.digits.erase(0, first);
    out.exponent -= static_cast<int64_t>(first);
    out.digits.erase(out.digits.find_last_not_of('0') + 1);
    if (std::abs(out.exponent) > kMostExponent || out.digits.size() > 1000) return std::nullopt;
    return out;
}

std::optional<int64_t> small_integer(const Decimal &number) {
    if (!number.integer() || number.exponent > 18) return std::nullopt;
    int64_t value = 0;
    for (int64_t i = 0; i < number.exponent; ++i) {
        const size_t at = static_cast<size_t>(i);
        value = value * 10 + (at < number.digits.size() ? number.digits[at] - '0' : 0);
    }
    return number.negative ? -value : value;
}

std::optional<Divisor> divisor(const Decimal &number) {
    if (number.zero() || number.negative || number.digits.size() > 15) return std::nullopt;
    const int64_t places = static_cast<int64_t>(number.digits.size()) - number.exponent;
    Decimal units = number;
    if (places > 0) units.exponent += places;
    const auto value = small_integer(units);
    if (!value || *value > kMostUnits || places > 400) return std::nullopt;
    return Divisor{*value, static_cast<int>(std::max<int64_t>(places, 0))};
}

std::optional<Divisor> common_multiple(const Divisor &a, const Divisor &b) {
    const int places = std::max(a.places, b.places);
    const auto scaled = [&](const Divisor &value) -> __int128 {
        __int128 units = value.units;
        for (int i = value.places; i < places; ++i) {
            units *= 10;
            if (units > kMostUnits) return 0;
        }
        return units;
    };
    const __int128 x = scaled(a), y = scaled(b);
    if (x == 0 || y == 0) return std::nullopt;
    const int64_t common = std::gcd(static_cast<int64_t>(x), static_cast<int64_t>(y));
    __int128 units = x / common * y;
    int left = places;
    while (left > 0 && units % 10 == 0) {
        units /= 10;
        --left;
    }
    if (units > kMostUnits) return std::nullopt;
    return Divisor{static_cast<int64_t>(units), left};
}

bool NumberSet::seen_empty() const {
    if (least && greatest) {
        const auto order = least->value <=> greatest->value;
        if (order > 0) return true;
        if (order == 0) {
            return !least->inclusive || !greatest->inclusive || !contains(least->value);
        }
        if (multiple_of) {
            const auto first = nearest_multiple(*least, *multiple_of, true);
            const auto last = nearest_multiple(*greatest, *multiple_of, false);
            if (first && last && *first > *last) return true;
        }
    }
    // Empty if all are multiples of a number that they must not be multiples of.
    for (const Divisor &by : not_multiple_of) {
        if (multiple_of && common_multiple(*multiple_of, by) == multiple_of) return true;
    }
    return false;
}

bool NumberSet::contains(const Decimal &number) const {
    if (least) {
        const auto order = number <=> least->value;
        if (order < 0 || (order == 0 && !least->inclusive)) return false;
    }
    if (greatest) {
        const auto order = number <=> greatest->value;
        if (order > 0 || (order == 0 && !greatest->inclusive)) return false;
    }
    if (multiple_of && !multiple(number, *multiple_of)) return false;
    return std::none_of(not_multiple_of.begin(), not_multiple_of.end(),
                        [&](const Divisor &by) { return multiple(number, by); });
}

std::optional<NumberSet> intersect(const NumberSet &a, const NumberSet &b) {
    NumberSet out;
    out.least = tighter(a.least, b.least, 1);
    out.greatest = tighter(a.greatest, b.greatest, -1);
    out.multiple_of = a.multiple_of ? a.multiple_of : b.multiple_of;
    if (a.multiple_of && b.multiple_of) {
        out.multiple_of = common_multiple(*a.multiple_of, *b.multiple_of);
        if (!out.multiple_of && !out.one()) return std::nullopt;
        if (!out.multiple_of && !(a.contains(out.least->value) && b.contains(out.least->value))) {
            out.least->inclusive = false; // a single number that is not in both: none
        }
    }
    out.not_multiple_of = a.not_multiple_of;
    for (const Divisor &by : b.not_multiple_of) {
        if (std::find(out.not_multiple_of.begin(), out.not_multiple_of.end(), by) ==
            out.not_multiple_of.end()) {
            out.not_multiple_of.push_back(by);
        }
    }
    return out;
}

} // namespace batchllm
