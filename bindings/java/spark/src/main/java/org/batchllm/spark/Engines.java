package org.batchllm.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The engines of this process: one for each device and set of engine options. Tasks acquire and
 * release them; one that no task has used for a while, or that stands in the way of another on its
 * device, is closed.
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

    /** Its lock is held while an engine loads: whoever wants the same device waits. */
    private static final class Device { final Map<String, Held> engines = new HashMap<>(); }

    /** To be released by the same options and devices. */
    static SharedEngine acquire(BatchLlmOptions options, String devices) {
        Device device = DEVICES.computeIfAbsent(devices, name -> new Device());
        String key = NativeEngine.key(options);
        synchronized (device) {
            Held held = device.engines.get(key);
            if (held != null && held.engine.failed()) {
                device.engines.remove(key); // its tasks still hold the object, and fail
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

    /** Engines that are loaded. */
    static int open() {
        int open = 0;
        for (Device device : DEVICES.values()) {
            synchronized (device) {
                open += device.engines.size();
            }
        }
        return open;
    }

    /** Closes engines that no task uses: all, or those whose time is over. */
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
