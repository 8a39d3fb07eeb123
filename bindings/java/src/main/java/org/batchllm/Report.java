package org.batchllm;

import java.nio.file.Path;

/**
 * What a job did, as one HTML page that needs no other file and no network: what was shared, token batches and KV pages
 * over time, lengths, finish reasons, errors, the slowest groups.
 *
 * <pre>{@code
 * try (Report report = Report.create("Tonight's job")) {
 *     engine.setReport(report);
 *     ... generate ...
 *     report.save(Path.of("job.html"));
 * }
 * }</pre>
 *
 * <p>Words of prompts are in it, so it is as confidential as they are. One thread uses a report at a time, and the
 * engine that writes to it does so within its own calls.
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
     * @param title of the page
     * @return to be closed, before or after the engine that writes to it
     */
    public static Report create(String title) {
        NativeLog.refuseCallsWhileLogging();
        return new Report(Native.batchllm_report_create_empty(), title);
    }

    /**
     * A line of the page's list of facts.
     *
     * @param name at most 64 different ones; the same again replaces the value
     * @param value of the fact
     */
    public void addFact(String name, String value) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_report_add_fact(report, name, value);
        }
    }

    /**
     * What was predicted, to be shown beside what was achieved; of several the page shows the sums.
     *
     * @param prediction of {@link Plan#predict}
     */
    public void addPrediction(Prediction prediction) {
        try (Handle.Use use = handle.use(); Handle.Use other = prediction.handle.share()) {
            Native.batchllm_report_add_prediction(report, prediction.prediction);
        }
    }

    /**
     * What a plan shares, for one that is not run.
     *
     * @param plan made with {@link PlanOptions.Builder#selfContained} where prefixes are to have their words
     * @param tokenizer for words; null: token numbers
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
     * The page as it stands.
     *
     * @return HTML, less than 1 MB
     */
    public String html() {
        try (Handle.Use use = handle.use()) {
            return Native.batchllm_report_html_of(report, title, 0);
        }
    }

    /**
     * Writes the page in one piece: an existing file is replaced or, on any error, left as it was.
     *
     * @param file to be written
     */
    public void save(Path file) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_report_save_to(report, title, 0, file.toString());
        }
    }

    /** Frees the report. Throws during a use. */
    @Override
    public void close() {
        handle.close();
    }
}
