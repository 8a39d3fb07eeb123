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
// What takes less than 0.1 ms is too short to tell.
template <class Work> bool takes_linear_time(int size, const Work &work) {
    const double once = processor_seconds(3, [&] { work(size); });
    return processor_seconds(2, [&] { work(16 * size); }) < 64 * std::max(once, 1e-4);
}
