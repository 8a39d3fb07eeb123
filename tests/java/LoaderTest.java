import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;
import org.batchllm.BatchLlm;

/**
 * How the native libraries are found, each time by a new JVM. Started with the JAR in the property test.jar; the tests
 * run in an empty folder outside the source tree.
 */
final class LoaderTest {
    private static final Path JAR = Path.of(System.getProperty("test.jar"));

    /** A JVM that this test starts: prints the version and waits for its input's end. */
    static final class Child {
        public static void main(String[] args) throws Exception {
            System.out.println("version " + BatchLlm.version());
            try (org.batchllm.Engine engine = org.batchllm.Engine.create(
                    org.batchllm.EngineOptions.builder().backend("sim").build())) {
                System.out.println("rows " + engine.stats().rows());
            }
            while (System.in.read() >= 0) {}
        }
    }

    private static Process start(Path jar, Path folder, String... options) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(System.getProperty("java.home") + "/bin/java");
        command.addAll(List.of(options));
        command.addAll(List.of("-cp", jar + File.pathSeparator + System.getProperty("java.class.path"), "LoaderTest$Child"));
        return new ProcessBuilder(command).redirectErrorStream(true).directory(folder.toFile()).start();
    }

    /** Ends the input, and returns the output. */
    private static String end(Process process) throws Exception {
        process.getOutputStream().close();
        String output = new String(process.getInputStream().readAllBytes());
        Check.that(process.waitFor(60, TimeUnit.SECONDS), "the JVM hangs");
        return process.exitValue() + " " + output;
    }

    private static List<Path> list(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.collect(Collectors.toList());
        }
    }

    private static void delete(Path folder) throws IOException {
        if (Files.isDirectory(folder)) for (Path file : list(folder)) delete(file);
        Files.delete(folder);
    }

    private interface InFolder {
        void run(Path folder) throws Exception;
    }

    private static void inFolder(InFolder body) throws Exception {
        Path folder = Files.createTempDirectory("batchllm-loader");
        try {
            body.run(folder);
        } finally {
            delete(folder);
        }
    }

    private static void untilReady(Process process) throws IOException {
        // "version ..." comes when everything is loaded.
        StringBuilder line = new StringBuilder();
        for (int c = process.getInputStream().read(); c != '\n'; c = process.getInputStream().read()) {
            Check.that(c >= 0, "the JVM ended: " + line);
            line.append((char) c);
        }
        Check.that(line.toString().startsWith("version 0."), line.toString());
    }

    public static void the_jar_alone_is_enough_and_leaves_nothing_behind() throws Exception {
        inFolder(folder -> {
            Path copy = folder.resolve("elsewhere.jar");
            Files.copy(JAR, copy);
            Path unpacked = folder.resolve("made/by/the/loader");
            Process process = start(copy, folder, "-Dbatchllm.unpack.dir=" + unpacked);
            untilReady(process);
            List<Path> made = list(unpacked);
            Check.equal(1, made.size());
            Check.equal("rwx------", PosixFilePermissions.toString(Files.getPosixFilePermissions(made.get(0))));
            Check.that(list(made.get(0)).stream().anyMatch(file -> file.endsWith("libbatchllm.so")), "" + made);
            String output = end(process);
            Check.that(output.startsWith("0 rows 0") || output.contains("rows 0"), output);
            Check.equal(List.of(), list(unpacked));
        });
    }

    public static void two_processes_unpack_at_once_and_keep_out_of_each_others_way() throws Exception {
        inFolder(folder -> {
            List<Process> all = new ArrayList<>();
            for (int i = 0; i < 3; i++) all.add(start(JAR, folder, "-Dbatchllm.unpack.dir=" + folder));
            for (Process process : all) untilReady(process);
            Check.equal(3, list(folder).size());
            Check.that(end(all.get(0)).startsWith("0 "), "the first");
            Check.equal(2, list(folder).size());
            for (Process process : all.subList(1, 3)) Check.that(end(process).startsWith("0 "), "another");
            Check.equal(List.of(), list(folder));
        });
    }

    public static void what_a_killed_process_left_is_deleted_by_the_next() throws Exception {
        inFolder(folder -> {
            Process killed = start(JAR, folder, "-Dbatchllm.unpack.dir=" + folder);
            untilReady(killed);
            killed.destroyForcibly().waitFor();
            Check.equal(1, list(folder).size());
            Path stale = list(folder).get(0);
            Path mine = Files.createDirectory(folder.resolve("somebody-elses"));
            Process next = start(JAR, folder, "-Dbatchllm.unpack.dir=" + folder);
            untilReady(next);
            Check.that(!Files.exists(stale), "it is still there");
            end(next);
            Check.equal(List.of(mine), list(folder));
        });
    }

    public static void what_another_user_has_put_there_is_left_alone() throws Exception {
        inFolder(folder -> {
            Path theirs = Files.createDirectory(folder.resolve("batchllm-java-1-theirs"));
            try {
                Files.setAttribute(theirs, "unix:uid", 65534);
            } catch (IOException notRoot) {
                System.out.println("      needs root: not tested");
                return;
            }
            // Opening a pipe for writing waits for a reader, and there is none.
            Check.equal(0, new ProcessBuilder("mkfifo", theirs.resolve("lock").toString()).start().waitFor());
            Path abandoned = Files.createDirectory(folder.resolve("batchllm-java-1-abandoned"));
            Files.createFile(abandoned.resolve("lock"));
            Files.setAttribute(abandoned, "unix:uid", 65534);
            String output = end(start(JAR, folder, "-Dbatchllm.unpack.dir=" + folder));
            Check.that(output.startsWith("0 version 0."), output);
            Check.that(Files.exists(theirs.resolve("lock")) && Files.exists(abandoned.resolve("lock")), "deleted");
        });
    }

    public static void a_directory_that_cannot_be_written_is_named_with_the_way_out() throws Exception {
        inFolder(folder -> {
            Path file = Files.createFile(folder.resolve("file"));
            for (String directory : new String[] {"/proc/batchllm", file.toString(), file + "/below"}) {
                String output = end(start(JAR, folder, "-Dbatchllm.unpack.dir=" + directory));
                Check.that(output.startsWith("1 ") && output.contains("UnsatisfiedLinkError"), output);
                Check.that(output.contains(directory) && output.contains("-Dbatchllm.unpack.dir"), output);
            }
        });
    }

    /** Unpacks the libraries of the JAR by hand; the system has their dependencies. */
    private static void takeLibraries(Path libraries) throws IOException {
        try (ZipFile jar = new ZipFile(JAR.toFile())) {
            for (ZipEntry entry : (Iterable<ZipEntry>) jar.stream().map(e -> (ZipEntry) e)::iterator) {
                if (!entry.getName().matches(".*/libbatchllm(_java)?\\.so")) continue;
                Files.copy(jar.getInputStream(entry), libraries.resolve(Path.of(entry.getName()).getFileName()));
            }
        }
    }

    private static String withOther(String other, String place) throws Exception {
        String[] output = new String[1];
        inFolder(folder -> {
            takeLibraries(folder);
            Files.copy(Path.of(System.getProperty("test.others"), "lib" + other + ".so"), folder.resolve(place),
                    StandardCopyOption.REPLACE_EXISTING);
            output[0] = end(start(JAR, folder, "-Dbatchllm.library.path=" + folder)).replace(folder.toString(), "DIR");
        });
        return output[0];
    }

    public static void libraries_of_a_version_that_does_not_fit_are_refused_with_both_versions() throws Exception {
        String version;
        try (JarFile jar = new JarFile(JAR.toFile())) {
            version = jar.getManifest().getMainAttributes().getValue("Implementation-Version");
        }
        for (String[] other : new String[][] {
            {"older_library", "libbatchllm.so is of version 0.0.9, and this JAR of " + version},
            {"other_abi_library", "libbatchllm.so is of version 1.1.0, and this JAR of " + version},
            {"later_layer", "libbatchllm_java.so is of version 0.255.0, and this JAR of " + version},
            {"mute_layer", "libbatchllm_java.so does not tell its version, and this JAR's is " + version},
        }) {
            String output = withOther(other[0], other[0].endsWith("layer") ? "libbatchllm_java.so" : "libbatchllm.so");
            Check.that(output.startsWith("1 ") && output.contains("UnsatisfiedLinkError"), output);
            Check.that(output.contains("-Dbatchllm.library.path=DIR: " + other[1]), output);
        }
        // A later library has everything that this JAR asks for. (This one only has a version.)
        String output = withOther("later_library", "libbatchllm.so");
        Check.that(output.contains("version 0.255.0"), output);
    }

    public static void the_library_path_goes_before_the_jar() throws Exception {
        inFolder(folder -> {
            Path libraries = Files.createDirectory(folder.resolve("libraries"));
            String output = end(start(JAR, folder, "-Dbatchllm.library.path=" + libraries));
            Check.that(output.startsWith("1 ") && output.contains("there is no " + libraries), output);
            takeLibraries(libraries);
            output = end(start(JAR, folder, "-Dbatchllm.library.path=" + libraries, "-Dbatchllm.unpack.dir=/proc/none"));
            Check.that(output.startsWith("0 version 0."), output);
        });
    }

    public static void a_damaged_library_is_not_loaded() throws Exception {
        inFolder(folder -> {
            Path damaged = folder.resolve("damaged.jar");
            try (ZipFile jar = new ZipFile(JAR.toFile());
                    ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(damaged))) {
                out.setLevel(1);
                for (ZipEntry entry : (Iterable<ZipEntry>) jar.stream().map(e -> (ZipEntry) e)::iterator) {
                    byte[] bytes = jar.getInputStream(entry).readAllBytes();
                    if (entry.getName().endsWith("/libbatchllm.so")) bytes[bytes.length / 2] ^= 1;
                    out.putNextEntry(new ZipEntry(entry.getName()));
                    out.write(bytes);
                }
            }
            Path unpacked = Files.createDirectory(folder.resolve("unpacked"));
            String output = end(start(damaged, folder, "-Dbatchllm.unpack.dir=" + unpacked));
            Check.that(output.startsWith("1 ") && output.contains("libbatchllm.so is damaged"), output);
            Check.equal(List.of(), list(unpacked));
        });
    }

    public static void a_machine_that_the_jar_is_not_for_is_named() throws Exception {
        inFolder(folder -> {
            String output = end(start(JAR, folder, "-Dos.arch=pdp11"));
            Check.that(output.startsWith("1 ") && output.contains("linux-pdp11"), output);
        });
    }

    public static void main(String[] args) throws Exception {
        Check.run(LoaderTest.class);
    }
}
