// How time grows with the size of the work. It is the processor's time, and a ratio: a slow or busy machine does not change it.
#pragma once

#include <algorithm>
#include <ctime>
#include <limits>

// The least processor time of `runs` calls of work(), in seconds.
template <class Work> double processor_seconds(int runs, const Work &work) {
    std::clock_t least = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < runs; ++i) {
        const std::clock_t start = std::clock();
        work();
        least = std::min(least, std::clock() - start);
    }
    return static_cast<double>(least) / CLOCKS_PER_SEC;
}

// Whether work(16 * size) takes about as long as 16 of work(size), and not as long as 256, which quadratic time would be.
// Short work is repeated until it is long enough to measure, and the larger one a sixteenth as often.
template <class Work> bool takes_linear_time(int size, const Work &work) {
    constexpr double enough = 2e-3; // seconds; a page fault or a timer's interrupt takes some 1e-6
    const auto repeated = [&work](int times, int of) {
        return [&work, times, of] {
            for (int i = 0; i < times; ++i) work(of);
        };
    };
    int times = 1;
    while (times < 1 << 20 && processor_seconds(1, repeated(times, size)) < enough) times *= 2;
    const int larger = (times + 15) / 16;
    const double once = processor_seconds(3, repeated(times, size)) / times;
    return processor_seconds(2, repeated(larger, 16 * size)) / larger < 64 * once;
}
