package org.batchllm.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The engines of this process: one for each device and set of engine options. Tasks acquire and release them. An engine
 * is closed if no task has used it for a while, or if another one needs its device.
 */
final class Engines {
    private static final Map<String, Device> DEVICES = new ConcurrentHashMap<>();
    private static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task, "batchllm idle engines");
        thread.setDaemon(true);
        return thread;
    });

    private Engines() {}

    private static final class Held {
        SharedEngine engine;
        int tasks;
        long idleSince;
        double idleSeconds;
    }

    /** Its lock is held while an engine loads, so that tasks that need the same device wait. */
    private static final class Device { final Map<String, Held> engines = new HashMap<>(); }

    /** Must be released with the same options and devices. */
    static SharedEngine acquire(BatchLlmOptions options, String devices) {
        Device device = DEVICES.computeIfAbsent(devices, name -> new Device());
        String key = NativeEngine.key(options);
        synchronized (device) {
            Held held = device.engines.get(key);
            if (held != null && held.engine.failed()) {
                device.engines.remove(key); // its tasks still refer to it, and fail
                held.engine.close();
                held = null;
            }
            if (held == null) {
                closeIdle(device, true);
                held = new Held();
                held.engine = new SharedEngine(options, devices);
                device.engines.put(key, held);
            }
            held.tasks++;
            held.idleSeconds = options.idleSeconds;
            return held.engine;
        }
    }

    static void release(SharedEngine engine, String devices) {
        Device device = DEVICES.get(devices);
        synchronized (device) {
            for (Held held : device.engines.values()) {
                if (held.engine != engine || --held.tasks > 0) continue;
                held.idleSince = System.nanoTime();
                long wait = (long) (held.idleSeconds * 1e9);
                TIMER.schedule(() -> closeIdle(device, false), wait, TimeUnit.NANOSECONDS);
            }
        }
    }

    /** The number of loaded engines. */
    static int open() {
        int open = 0;
        for (Device device : DEVICES.values()) {
            synchronized (device) {
                open += device.engines.size();
            }
        }
        return open;
    }

    /** Closes engines that no task uses: all of them, or those that have been idle too long. */
    private static void closeIdle(Device device, boolean all) {
        synchronized (device) {
            Iterator<Held> engines = device.engines.values().iterator();
            while (engines.hasNext()) {
                Held held = engines.next();
                if (held.tasks > 0) continue;
                if (!all && System.nanoTime() - held.idleSince < held.idleSeconds * 1e9) continue;
                engines.remove();
                held.engine.close();
            }
        }
    }
}
