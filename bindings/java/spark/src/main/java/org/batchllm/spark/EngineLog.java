package org.batchllm.spark;

import java.util.ResourceBundle;
import java.util.function.Consumer;

/** An engine's log: forwards everything to the usual logger, and also hands warnings on. */
record EngineLog(System.Logger log, Consumer<String> warnings) implements System.Logger {
    @Override
    public String getName() {
        return log.getName();
    }

    @Override
    public boolean isLoggable(Level level) {
        return isWarning(level) || log.isLoggable(level);
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String text, Throwable thrown) {
        if (isWarning(level)) warnings.accept(text);
        log.log(level, bundle, text, thrown);
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String text, Object... parameters) {
        if (isWarning(level)) warnings.accept(text);
        log.log(level, bundle, text, parameters);
    }

    private static boolean isWarning(Level level) {
        return level == Level.WARNING || level == Level.ERROR;
    }
}
