package org.batchllm;

/** Told between steps, on the thread that runs the engine, how far it is. */
@FunctionalInterface
public interface ProgressListener {
    /**
     * May call whatever the engine has but step, run, generate and close. What it throws comes out of
     * the run, which can be called again.
     *
     * @param progress after the last step
     * @return whether to continue
     */
    boolean onProgress(Progress progress);
}
