// A record -> the page: one HTML file without external references.
#pragma once

#include <string>

#include "report/job_record.h"

namespace batchllm {

struct PageOptions {
    std::string title = "batchllm";
    double seconds = 0;                            // of the whole job; 0: the seconds in steps
    double tokenize_seconds = 0, plan_seconds = 0; // outside the engine
};

// Of bounded size, whatever the record contains.
std::string make_page(JobRecord *record, const PageOptions &options);

// page_tables.cc: sections, each "" if there is nothing to show.
std::string time_section(const JobRecord &record, const PageOptions &options);
std::string outcome_section(const JobRecord &record);
std::string groups_section(const JobRecord &record);
std::string figures_section(const JobRecord &record, const PageOptions &options);

// prediction_section.cc: "" if nothing was predicted.
std::string prediction_section(const JobRecord &record);

// style.cc
extern const char page_style[];

} // namespace batchllm
