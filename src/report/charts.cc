#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/display.h"
#include "report/markup.h"

namespace batchllm {
namespace {

// A chart's drawing area within its picture.
struct Frame {
    double width, height;
    double left = 52, top = 24, right = 14, bottom = 36;

    double inner_width() const { return width - left - right; }
    double inner_height() const { return height - top - bottom; }
    double base() const { return height - bottom; }
};

// 1, 2 or 5 times a power of ten, such that `range` has at most `most` steps.
double nice_step(double range, int most) {
    if (!(range > 0)) return 1;
    const double raw = range / most;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (power * factor >= raw * 0.999) return power * factor;
    }
    return power * 10;
}

// From 0 to the end of the axis.
struct Axis {
    double step, end;

    // Up to the first step that is at least `most`.
    static Axis to(double most, int steps) {
        const double step = nice_step(most, steps);
        return {step, std::max(step, std::ceil(most / step - 1e-9) * step)};
    }
    // With room for a line at `limit` and its label.
    static Axis with_limit(double limit, int steps) {
        return {nice_step(limit, steps), limit * 1.16};
    }
};

std::string text_at(double x, double y, const char *kind, const std::string &text) {
    return "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" class=\"" + kind + "\">" +
           text + "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const char *kind) {
    return "<path d=\"M" + coordinate(x1) + " " + coordinate(y1) + "L" + coordinate(x2) + " " +
           coordinate(y2) + "\" class=\"" + kind + "\"/>";
}

std::string open_chart(const Frame &frame, const std::string &name) {
    return "<svg class=\"chart\" viewBox=\"0 0 " + coordinate(frame.width) + " " +
           coordinate(frame.height) + "\" role=\"img\" aria-label=\"" + escaped(name) + "\">";
}

using Label = std::function<std::string(double)>;

std::string draw_y_axis(const Frame &frame, const Axis &axis, const std::string &name) {
    std::string out = text_at(4, 12, "axis", name);
    for (double value = 0; value <= axis.end * 1.0001; value += axis.step) {
        const double y = frame.base() - value / axis.end * frame.inner_height();
        out += line(frame.left, y, frame.width - frame.right, y, value == 0 ? "base" : "grid");
        out += text_at(frame.left - 7, y + 4, "tick end", short_count(value));
    }
    return out;
}

std::string draw_x_axis(const Frame &frame, double begin, double end, double step,
                        const Label &label, const std::string &name) {
    std::string out;
    const double first = std::ceil(begin / step - 1e-9) * step;
    for (double value = first; value <= end + step * 1e-6; value += step) {
        const double x = frame.left + (value - begin) / (end - begin) * frame.inner_width();
        out += line(x, frame.base(), x, frame.base() + 4, "base");
        out += text_at(x, frame.base() + 17, "tick middle", label(value));
    }
    return out +
           text_at(frame.left + frame.inner_width() / 2, frame.height - 3, "axis middle", name);
}

// Times are labelled in the unit that suits the last of them.
struct TimeUnit {
    double seconds;
    const char *name;

    static TimeUnit of(double most) {
        if (most < 2) return {1e-3, "milliseconds"};
        if (most < 300) return {1, "seconds"};
        return most < 3 * 3600 ? TimeUnit{60, "minutes"} : TimeUnit{3600, "hours"};
    }
};

std::string draw_time_axis(const Frame &frame, double seconds) {
    const TimeUnit unit = TimeUnit::of(seconds);
    const double end = seconds / unit.seconds;
    return draw_x_axis(
        frame, 0, end, nice_step(end, 9), [](double value) { return coordinate(value); },
        std::string("time in ") + unit.name);
}

struct Mapped {
    const Frame &frame;
    double seconds, top;

    double x(double at) const { return frame.left + at / seconds * frame.inner_width(); }
    double y(double value) const {
        return frame.base() - std::min(1.0, value / top) * frame.inner_height();
    }
};

using ValueOf = std::function<double(const CurvePoint &)>;

// A line at the highest possible value.
std::string draw_limit(const Mapped &map, int64_t value, const std::string &name) {
    const double y = map.y(static_cast<double>(value)), right = map.frame.width - map.frame.right;
    return line(map.frame.left, y, right, y, "limit") +
           text_at(right, y - 6, "note end", name + ": " + format_count(value));
}

// The area between two values, drawn in steps, because a mean applies to its whole slot.
std::string draw_area(const Mapped &map, std::span<const CurvePoint> points, const ValueOf &lower,
                      const ValueOf &upper, const char *kind) {
    std::string out = "<path class=\"" + std::string(kind) + "\" d=\"";
    for (size_t i = 0; i < points.size(); ++i) {
        out += (i == 0 ? "M" : "L") + coordinate(map.x(points[i].begin)) + " " +
               coordinate(map.y(upper(points[i]))) + "H" + coordinate(map.x(points[i].end));
    }
    for (size_t i = points.size(); i-- > 0;) {
        out += "L" + coordinate(map.x(points[i].end)) + " " + coordinate(map.y(lower(points[i]))) +
               "H" + coordinate(map.x(points[i].begin));
    }
    return out + "Z\"/>";
}

} // namespace

std::string draw_batches(std::span<const CurvePoint> points, int64_t most) {
    if (points.empty()) return "";
    const Frame frame{1000, 270};
    double top = 0;
    for (const CurvePoint &point : points) {
        top = std::max(top, point.decode + point.own + point.prefix);
    }
    // The limit is drawn unless it is so far above the batches that it would flatten them.
    const bool limited = most > 0 && top * 4 >= static_cast<double>(most);
    const Axis axis = limited ? Axis::with_limit(static_cast<double>(most), 5) : Axis::to(top, 5);
    const Mapped map{frame, points.back().end, axis.end};
    const auto none = [](const CurvePoint &) { return 0.0; };
    const auto decode = [](const CurvePoint &p) { return p.decode; };
    const auto own = [](const CurvePoint &p) { return p.decode + p.own; };
    const auto all = [](const CurvePoint &p) { return p.decode + p.own + p.prefix; };
    std::string out = open_chart(frame, "Tokens of batches over time");
    out += draw_y_axis(frame, axis, "tokens of a batch");
    out += draw_area(map, points, none, decode, "decode");
    out += draw_area(map, points, decode, own, "own");
    out += draw_area(map, points, own, all, "prefix");
    if (limited) out += draw_limit(map, most, "most");
    out += draw_time_axis(frame, points.back().end) + "</svg>";
    return out +
           "<p class=\"legend\">Tokens of a batch: <span><i class=\"decode\"></i>decode</span> "
           "<span><i class=\"own\"></i>prompts, rows' own</span> "
           "<span><i class=\"prefix\"></i>prompts, shared prefixes</span></p>";
}

std::string draw_pages(std::span<const CurvePoint> points, int64_t total) {
    if (points.empty() || total <= 0) return "";
    const Frame frame{1000, 190};
    double top = 0;
    for (const CurvePoint &point : points) {
        top = std::max(top, static_cast<double>(point.pages_peak));
    }
    const bool limited = top * 4 >= static_cast<double>(total);
    const Axis axis =
        limited ? Axis::with_limit(static_cast<double>(total), 4) : Axis::to(std::max(1.0, top), 4);
    const Mapped map{frame, points.back().end, axis.end};
    std::string out = open_chart(frame, "KV pages in use over time");
    out += draw_y_axis(frame, axis, "KV pages");
    const auto none = [](const CurvePoint &) { return 0.0; };
    const auto mean = [](const CurvePoint &p) { return p.pages; };
    const auto peak = [](const CurvePoint &p) { return static_cast<double>(p.pages_peak); };
    out += draw_area(map, points, none, mean, "pages");
    out += draw_area(map, points, mean, peak, "peak");
    if (limited) out += draw_limit(map, total, "all");
    out += draw_time_axis(frame, points.back().end) + "</svg>";
    return out + "<p class=\"legend\">KV pages in use: <span><i class=\"pages\"></i>mean</span> "
                 "<span><i class=\"peak\"></i>peak</span></p>";
}

std::string draw_lengths(const LengthCounts &lengths, const std::string &name) {
    if (lengths.count() == 0) return "";
    constexpr int bars = 36;
    const Frame frame{480, 200, 48};
    // The last hundredth may be far away, so it becomes one bar at the end.
    const auto least = static_cast<double>(lengths.least());
    const auto most = static_cast<double>(lengths.most());
    const auto usual = static_cast<double>(lengths.quantile(0.99));
    const bool cut = most > least + 2 * (usual - least) + bars;
    const double range = std::max(1.0, (cut ? usual : most) - least + 1);
    const double step = std::max(1.0, nice_step(range, bars));
    double begin = std::floor(least / step) * step;
    auto count = static_cast<size_t>(std::ceil((least + range - begin) / step - 1e-9));
    // If there are only a few lengths, their bars do not fill the whole width.
    constexpr size_t least_bars = 16;
    if (count < least_bars) {
        begin = std::max(0.0, begin - step * static_cast<double>((least_bars - count) / 2));
        count = least_bars;
    }
    std::vector<double> heights;
    for (size_t i = 0; i < count; ++i) {
        const double from = begin + step * static_cast<double>(i);
        heights.push_back(lengths.within(from, from + step));
    }
    const double end = begin + step * static_cast<double>(count);
    if (cut) heights.push_back(lengths.within(end, most + 1));
    const Axis axis = Axis::to(*std::max_element(heights.begin(), heights.end()), 4);
    const double wide = frame.inner_width() / static_cast<double>(heights.size());
    std::string out = open_chart(frame, "Histogram of " + name);
    out += draw_y_axis(frame, axis, "rows");
    for (size_t i = 0; i < heights.size(); ++i) {
        if (heights[i] <= 0) continue;
        const double high = std::max(1.0, heights[i] / axis.end * frame.inner_height());
        const double from = begin + step * static_cast<double>(i);
        const bool last = cut && i + 1 == heights.size();
        const std::string range_text =
            last        ? format_count(std::llround(end)) + " tokens and more"
            : step == 1 ? format_count(std::llround(from)) + " tokens"
                        : format_count(std::llround(from)) + " to " +
                              format_count(std::llround(from + step) - 1) + " tokens";
        out += "<rect class=\"bar\" x=\"" + coordinate(frame.left + wide * static_cast<double>(i)) +
               "\" y=\"" + coordinate(frame.base() - high) + "\" width=\"" +
               coordinate(std::max(0.5, wide - 1)) + "\" height=\"" + coordinate(high) +
               "\"><title>" + range_text + ": " + format_count(std::llround(heights[i])) +
               "</title></rect>";
    }
    const double shown = end + (cut ? step : 0);
    double tick = nice_step(shown - begin, 6);
    if (tick < 1) tick = 1;
    const auto label = [](double value) {
        return value < 100000 ? format_count(std::llround(value)) : short_count(value);
    };
    out += draw_x_axis(frame, begin, shown, tick, label, "tokens");
    return out + "</svg>";
}

} // namespace batchllm
