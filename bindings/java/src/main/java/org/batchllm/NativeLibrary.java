package org.batchllm;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.nio.file.attribute.UserPrincipal;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/**
 * Loads the native libraries: from the directory that the system property batchllm.library.path names,
 * else from the JAR. The CUDA library may be in a JAR of its own beside it.
 *
 * <p>Those in the JAR are unpacked into a directory for this process alone, below batchllm.unpack.dir or
 * java.io.tmpdir, which only its user can enter; each file is checked against the JAR's list of hashes. The directory
 * gets its name once it contains a locked file, which shows other processes that it is in use. It is deleted when the
 * process ends, or, after a crash, by the next process of the same user that unpacks there. Anything that another user
 * has put there under such a name, such as a link or a pipe without a writer, is left alone.
 */
final class NativeLibrary {
    private static final String LIBRARY_PATH = "batchllm.library.path";
    private static final String UNPACK_DIR = "batchllm.unpack.dir";
    private static final String NAME = "batchllm_java";
    private static final String PREFIX = "batchllm-java-";
    private static final String NEW_PREFIX = ".batchllm-java-new-";
    /** A process that opens and closes a file that it has locked loses the lock, so it skips its own. */
    private static final String OWN_PREFIX = PREFIX + ProcessHandle.current().pid() + "-";
    private static final String LOCK = "lock";
    private static boolean loaded;

    private NativeLibrary() {}

    /** Loads once per class loader. Throws UnsatisfiedLinkError. */
    static synchronized void load() {
        if (loaded) return;
        String path = System.getProperty(LIBRARY_PATH);
        if (path != null) {
            loadFrom(Paths.get(path).toAbsolutePath());
        } else {
            loadUnpacked();
        }
        check(path);
        loaded = true;
    }

    /** The native layer must match the classes' version; the library may be newer, since its interface only grows. */
    private static void check(String path) {
        int jar = Native.BATCHLLM_VERSION_MAJOR << 16 | Native.BATCHLLM_VERSION_MINOR << 8 | Native.BATCHLLM_VERSION_PATCH;
        String where = path == null ? "the loaded " : "-D" + LIBRARY_PATH + "=" + path + ": ";
        String layer = where + System.mapLibraryName(NAME);
        int made;
        try {
            made = Native.batchllm_java_version();
        } catch (UnsatisfiedLinkError thrown) {
            throw failure(layer + " does not tell its version, and this JAR's is " + BatchLlm.version(jar), thrown);
        }
        if (made != jar) {
            throw failure(layer + " is of version " + BatchLlm.version(made) + ", and this JAR of " + BatchLlm.version(jar)
                    + ": the two must be the same", null);
        }
        int library = Native.batchllm_version();
        if (library >> 16 != jar >> 16 || library < jar) {
            throw failure(where + System.mapLibraryName("batchllm") + " is of version " + BatchLlm.version(library)
                    + ", and this JAR of " + BatchLlm.version(jar) + ": the same version or a later " + (jar >> 16)
                    + ".x is needed", null);
        }
    }

    /** libbatchllm.so may also be in a place where the system finds it. */
    private static void loadFrom(Path directory) {
        Path library = directory.resolve(System.mapLibraryName("batchllm"));
        if (Files.exists(library)) System.load(library.toString());
        library = directory.resolve(System.mapLibraryName(NAME));
        if (!Files.exists(library)) throw failure("-D" + LIBRARY_PATH + ": there is no " + library, null);
        System.load(library.toString());
    }

    private static UnsatisfiedLinkError failure(String message, Throwable cause) {
        UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
        error.initCause(cause);
        return error;
    }

    /** The platform, as in the names of the JAR's folders: "linux-x86_64". */
    static String platform() {
        String os = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String arch = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        return (os.startsWith("linux") ? "linux" : os.replaceAll("\\W", ""))
                + "-"
                + (arch.equals("amd64") ? "x86_64" : arch.equals("arm64") ? "aarch64" : arch);
    }

    /** A library in the JAR. */
    private static final class Entry {
        final String hash;
        final String name;
        final boolean loaded; // else another library opens it when needed

        Entry(String line) {
            String[] words = line.split(" ");
            hash = words[0];
            loaded = words[1].equals("load");
            name = words[2];
        }
    }

    private static void loadUnpacked() {
        String folder = "/org/batchllm/native/" + platform() + "/";
        List<Entry> entries = new ArrayList<>();
        try {
            if (!readIndex(folder + "index", entries)) {
                throw failure("this JAR has no native libraries for " + platform() + "; build them, and name"
                        + " their directory by -D" + LIBRARY_PATH, null);
            }
            readIndex(folder + "index-cuda", entries);
        } catch (IOException thrown) {
            throw failure("the JAR's list of native libraries cannot be read", thrown);
        }
        Path base = Paths.get(System.getProperty(UNPACK_DIR, System.getProperty("java.io.tmpdir"))).toAbsolutePath();
        Path directory;
        try {
            Files.createDirectories(base);
            directory = unpack(base, folder, entries);
        } catch (IOException thrown) {
            throw failure("the native libraries cannot be unpacked into " + base + " (" + thrown + "); name a"
                    + " directory that can be written by -D" + UNPACK_DIR + ", or one that holds the libraries by -D"
                    + LIBRARY_PATH, thrown);
        }
        // In the order of the list: a library that is already loaded is found by name when the next one needs it.
        for (Entry entry : entries) {
            if (!entry.loaded) continue;
            try {
                System.load(directory.resolve(entry.name).toString());
            } catch (UnsatisfiedLinkError thrown) {
                throw failure(thrown.getMessage() + " (unpacked into " + directory + ", which -D" + UNPACK_DIR
                        + " changes; a directory mounted noexec cannot be used)", thrown);
            }
        }
    }

    /** False if no JAR has it. */
    private static boolean readIndex(String name, List<Entry> entries) throws IOException {
        try (InputStream list = NativeLibrary.class.getResourceAsStream(name)) {
            if (list == null) return false;
            BufferedReader lines = new BufferedReader(new InputStreamReader(list, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) entries.add(new Entry(line));
            return true;
        }
    }

    private static Path unpack(Path base, String folder, List<Entry> entries) throws IOException {
        Path made = Files.createTempDirectory(base, NEW_PREFIX); // only its owner can enter it
        FileChannel channel = null;
        try {
            deleteAbandoned(base, Files.getOwner(made));
            for (Entry entry : entries) {
                try (InputStream in = NativeLibrary.class.getResourceAsStream(folder + entry.name)) {
                    if (in == null) throw new IOException("the JAR has no " + folder + entry.name);
                    copy(in, made.resolve(entry.name), entry.hash);
                }
            }
            channel = FileChannel.open(
                    made.resolve(LOCK), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
            channel.lock(); // until the process ends
            Path directory =
                    base.resolve(OWN_PREFIX + made.getFileName().toString().substring(NEW_PREFIX.length()));
            Files.move(made, directory, StandardCopyOption.ATOMIC_MOVE);
            FileChannel held = channel;
            Runtime.getRuntime()
                    .addShutdownHook(
                            new Thread(
                                    () -> {
                                        delete(directory);
                                        release(held);
                                    },
                                    "batchllm unpacked"));
            return directory;
        } catch (IOException | RuntimeException thrown) {
            delete(made);
            release(channel);
            throw thrown;
        }
    }

    private static void copy(InputStream in, Path file, String hash) throws IOException {
        MessageDigest digest;
        try {
            digest = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible);
        }
        try (OutputStream out =
                Files.newOutputStream(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            byte[] block = new byte[1 << 16];
            for (int size = in.read(block); size >= 0; size = in.read(block)) {
                digest.update(block, 0, size);
                out.write(block, 0, size);
            }
        }
        StringBuilder found = new StringBuilder();
        for (byte b : digest.digest()) found.append(String.format("%02x", b));
        if (!found.toString().equals(hash)) throw new IOException(file.getFileName() + " is damaged in the JAR");
    }

    /** Deletes directories of this user's processes that ended without deleting them. */
    private static void deleteAbandoned(Path base, UserPrincipal user) {
        try (DirectoryStream<Path> directories = Files.newDirectoryStream(base, "{" + PREFIX + "," + NEW_PREFIX + "}*")) {
            for (Path directory : directories) {
                String name = directory.getFileName().toString();
                try {
                    if (!Files.isDirectory(directory, LinkOption.NOFOLLOW_LINKS)) continue;
                    if (name.startsWith(OWN_PREFIX)) continue;
                    // If the user owns it and the sticky bit is set, nobody else can replace it with a link.
                    if (!Files.getOwner(directory, LinkOption.NOFOLLOW_LINKS).equals(user)) continue;
                    if (name.startsWith(PREFIX) ? abandoned(directory.resolve(LOCK)) : old(directory)) {
                        delete(directory);
                    }
                } catch (IOException thrown) {
                    // Another process has just deleted it.
                }
            }
        } catch (IOException | DirectoryIteratorException thrown) {
            // A directory may be writable but not listable.
        }
    }

    private static boolean abandoned(Path lockFile) throws IOException {
        try (FileChannel channel = FileChannel.open(lockFile, StandardOpenOption.WRITE, LinkOption.NOFOLLOW_LINKS);
                FileLock lock = channel.tryLock()) {
            return lock != null;
        }
    }

    /** Whether a directory is too old to be still unpacking, which takes seconds. */
    private static boolean old(Path directory) throws IOException {
        FileTime modified = Files.getLastModifiedTime(directory, LinkOption.NOFOLLOW_LINKS);
        return System.currentTimeMillis() - modified.toMillis() > TimeUnit.HOURS.toMillis(1);
    }

    private static void delete(Path directory) {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(directory)) {
            for (Path file : files) Files.deleteIfExists(file);
            Files.deleteIfExists(directory);
        } catch (IOException thrown) {
            // The next process that unpacks here tries again.
        }
    }

    private static void release(FileChannel channel) {
        try {
            if (channel != null) channel.close();
        } catch (IOException thrown) {
            // The process is ending.
        }
    }
}
