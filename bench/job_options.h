// A job's shape from the command line.
#pragma once

#include <CLI/CLI.hpp>

#include "jobs.h"

namespace batchllm {

inline void add_shape_options(CLI::App *app, JobShape *shape) {
    app->add_option("--rows", shape->rows, "rows");
    app->add_option("--prefix", shape->prefix, "tokens of a prefix, on average");
    app->add_option("--common", shape->common, "of them, common to all rows");
    app->add_option("--own", shape->own, "own tokens of a row, on average");
    app->add_option("--sharing", shape->sharing, "rows a prefix, on average");
    app->add_flag("--uneven", shape->uneven, "rows a prefix: geometric");
    app->add_option("--seed", shape->seed, "of the rows");
}

} // namespace batchllm
