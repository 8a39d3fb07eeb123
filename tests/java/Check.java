import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Objects;

/** Runs a class's tests: its public static methods without parameters. Also has the checks that they use. */
final class Check {
    private Check() {}

    interface Body {
        void run() throws Exception;
    }

    /** Ends the process with 1 if a test fails. */
    static void run(Class<?> tests) throws Exception {
        int failed = 0;
        Method[] methods = tests.getDeclaredMethods();
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method method : methods) {
            if (!Modifier.isPublic(method.getModifiers()) || method.getParameterCount() > 0) continue;
            long start = System.nanoTime();
            try {
                method.invoke(null);
                System.out.printf("ok    %s (%d ms)%n", method.getName(), (System.nanoTime() - start) / 1000000);
            } catch (InvocationTargetException thrown) {
                failed++;
                System.out.println("FAILED " + method.getName());
                thrown.getCause().printStackTrace(System.out);
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    static void that(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void equal(Object expected, Object found) {
        if (!Objects.deepEquals(expected, found)) {
            throw new AssertionError(
                    "expected " + Arrays.deepToString(new Object[] {expected}) + ", found "
                            + Arrays.deepToString(new Object[] {found}));
        }
    }

    /** The thrown exception, which must be of the class and have the part in its message. */
    static <T extends Throwable> T throwing(Class<T> type, String part, Body body) {
        try {
            body.run();
        } catch (Throwable thrown) {
            if (!type.isInstance(thrown)) throw new AssertionError("another exception: " + thrown, thrown);
            if (!String.valueOf(thrown.getMessage()).contains(part)) {
                throw new AssertionError("another text: " + thrown.getMessage(), thrown);
            }
            return type.cast(thrown);
        }
        throw new AssertionError("nothing was thrown");
    }

    /** A figure of this process, in KiB: VmRSS, VmHWM. */
    static long memory(String name) throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith(name + ":")) return Long.parseLong(line.replaceAll("\\D", ""));
        }
        throw new AssertionError("no " + name);
    }

    /** Collects garbage until the condition holds, for at most ten seconds. */
    static void eventually(String what, java.util.function.BooleanSupplier condition) throws Exception {
        for (int i = 0; i < 200; i++) {
            if (condition.getAsBoolean()) return;
            System.gc();
            Thread.sleep(50);
        }
        throw new AssertionError("not within ten seconds: " + what);
    }
}
