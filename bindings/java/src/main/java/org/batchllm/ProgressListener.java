package org.batchllm;

/** Called between steps with the engine's progress, on the thread that runs the engine. */
@FunctionalInterface
public interface ProgressListener {
    /**
     * May call any method of the engine except step, run, generate and close. An exception ends the run, which throws
     * it and can be called again.
     *
     * @param progress after the last step
     * @return whether to continue
     */
    boolean onProgress(Progress progress);
}
