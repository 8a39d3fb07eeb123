package org.batchllm;

import java.lang.System.Logger;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Passes the library's log lines, from any thread, to each engine's logger. */
final class NativeLog {
    private static final Map<Long, Logger> LOGGERS = new ConcurrentHashMap<>();
    private static final AtomicLong NUMBERS = new AtomicLong();
    private static final ThreadLocal<Boolean> LOGGING = new ThreadLocal<>();

    private NativeLog() {}

    /** Returns a number for an engine; its lines go to the logger until the number is removed. */
    static long add(Logger logger) {
        long number = NUMBERS.incrementAndGet();
        LOGGERS.put(number, logger);
        return number;
    }

    static void remove(long number) {
        LOGGERS.remove(number);
    }

    /** The least important of the library's levels that the logger accepts. */
    static int level(Logger logger) {
        for (int level = Native.BATCHLLM_LOG_DEBUG; level > Native.BATCHLLM_LOG_ERROR; level--) {
            if (logger.isLoggable(levelOf(level))) return level;
        }
        return Native.BATCHLLM_LOG_ERROR;
    }

    /** One below the library's, apart from its errors and warnings: loggers print INFO if nobody has configured them. */
    private static Logger.Level levelOf(int level) {
        switch (level) {
            case Native.BATCHLLM_LOG_ERROR:
                return Logger.Level.ERROR;
            case Native.BATCHLLM_LOG_WARNING:
                return Logger.Level.WARNING;
            case Native.BATCHLLM_LOG_INFO:
                return Logger.Level.DEBUG;
            default:
                return Logger.Level.TRACE;
        }
    }

    /** Called by native code, on any thread. Exceptions of a logger are dropped. */
    static void line(long number, int level, byte[] message) {
        Logger logger = LOGGERS.get(number);
        if (logger == null) return;
        LOGGING.set(true);
        try {
            logger.log(levelOf(level), new String(message, StandardCharsets.UTF_8));
        } catch (Throwable thrown) {
            Thread.UncaughtExceptionHandler handler = Thread.getDefaultUncaughtExceptionHandler();
            if (handler != null) handler.uncaughtException(Thread.currentThread(), thrown);
        } finally {
            LOGGING.remove();
        }
    }

    /** A logger runs inside a call of the library, so it must not call the library again. */
    static void refuseCallsWhileLogging() {
        if (LOGGING.get() != null) throw new IllegalStateException("a logger cannot call the library");
    }
}
