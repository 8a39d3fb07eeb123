package org.batchllm;

import java.nio.file.Path;

/**
 * What a job did, as one HTML page that needs no other file and no network: what was shared, token batches and KV pages
 * over time, lengths, finish reasons, errors and the slowest groups.
 *
 * <pre>{@code
 * try (Report report = Report.create("Tonight's job")) {
 *     engine.setReport(report);
 *     ... generate ...
 *     report.save(Path.of("job.html"));
 * }
 * }</pre>
 *
 * <p>It contains words of the prompts, so it is as confidential as they are. Only one thread may use a report at a
 * time; an engine writes to it only during calls of that engine.
 */
public final class Report implements AutoCloseable {
    final batchllm_report report;
    final Handle handle;
    private final String title;

    private Report(batchllm_report report, String title) {
        this.report = report;
        this.title = title;
        handle = new Handle("report", report::delete);
    }

    /**
     * An empty report.
     *
     * @param title the title of the page
     * @return a report, which must be closed, before or after the engine that writes to it
     */
    public static Report create(String title) {
        NativeLog.refuseCallsWhileLogging();
        return new Report(Native.batchllm_report_create_empty(), title);
    }

    /**
     * Adds a line to the page's list of facts.
     *
     * @param name using a name again replaces its value; at most 64 names
     * @param value the fact
     */
    public void addFact(String name, String value) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_report_add_fact(report, name, value);
        }
    }

    /**
     * Adds a prediction, which is shown beside the achieved figures. If several are added, the page shows their sums.
     *
     * @param prediction a result of {@link Plan#predict}
     */
    public void addPrediction(Prediction prediction) {
        try (Handle.Use use = handle.use(); Handle.Use other = prediction.handle.share()) {
            Native.batchllm_report_add_prediction(report, prediction.prediction);
        }
    }

    /**
     * Adds what a plan shares, for a plan that is not run.
     *
     * @param plan must be made with {@link PlanOptions.Builder#selfContained} if prefixes are to be shown as words
     * @param tokenizer for words; null: token ids
     */
    public void addPlan(Plan plan, Tokenizer tokenizer) {
        try (Handle.Use use = handle.use(); Handle.Use other = plan.handle.use()) {
            if (tokenizer == null) {
                Native.batchllm_report_add_plan_of(report, plan.plan, null);
            } else {
                tokenizer.add(report, plan.plan);
            }
        }
    }

    /**
     * The page.
     *
     * @return HTML, less than 1 MB
     */
    public String html() {
        try (Handle.Use use = handle.use()) {
            return Native.batchllm_report_html_of(report, title, 0);
        }
    }

    /**
     * Writes the page atomically: an existing file is replaced or, on any error, left as it was.
     *
     * @param file the file to write
     */
    public void save(Path file) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_report_save_to(report, title, 0, file.toString());
        }
    }

    /** Frees the report. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }
}
