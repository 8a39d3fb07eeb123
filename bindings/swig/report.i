/* Reports: what a job did, as a page. */
%ignore batchllm_report_options;
%ignore batchllm_report_options_init;
%ignore batchllm_report_create;
%ignore batchllm_report_destroy;
%ignore batchllm_report_add_plan;
%ignore batchllm_report_html;
%ignore batchllm_report_save;

%nodefaultctor batchllm_report;
struct batchllm_report {};
%extend batchllm_report {
    ~batchllm_report() { batchllm_report_destroy($self); }
}

%apply batchllm_status {
    int32_t batchllm_engine_set_report, int32_t batchllm_report_add_failure, int32_t batchllm_report_add_fact,
    int32_t batchllm_report_add_prediction
}
%batchllm_blocking(batchllm_report_html_of)
%batchllm_blocking(batchllm_report_save_to)
%batchllm_blocking(batchllm_report_add_plan_of)

%{
static batchllm_report_options batchllm_report_options_of(const char *title, double seconds) {
    batchllm_report_options options;
    batchllm_report_options_init(&options, sizeof options);
    options.title = title;
    options.seconds = seconds;
    return options;
}
%}
%newobject batchllm_report_create_empty;
%inline %{
static batchllm_report *batchllm_report_create_empty(batchllm_status *FAILURE) {
    batchllm_report *report = NULL;
    *FAILURE = batchllm_report_create(&report);
    return report;
}

/* Prefixes are shown as words if the plan contains its rows' tokens and there is a tokenizer. */
static batchllm_status batchllm_report_add_plan_of(batchllm_report *report, const batchllm_plan *plan,
                                                   const batchllm_tokenizer *tokenizer) {
    return batchllm_report_add_plan(report, plan, NULL, NULL, tokenizer);
}

/* seconds: how long the job took; 0: the time spent in steps. */
static const char *batchllm_report_html_of(batchllm_report *report, const char *title, double seconds,
                                           batchllm_status *FAILURE) {
    const batchllm_report_options options = batchllm_report_options_of(title, seconds);
    const char *html = NULL;
    int64_t bytes = 0;
    *FAILURE = batchllm_report_html(report, &options, &html, &bytes);
    return html;
}

static batchllm_status batchllm_report_save_to(batchllm_report *report, const char *title, double seconds,
                                               const char *path) {
    const batchllm_report_options options = batchllm_report_options_of(title, seconds);
    return batchllm_report_save(report, &options, path);
}
%}
