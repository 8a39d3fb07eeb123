#!/usr/bin/env python3
"""The steps of the Java build that Meson has no rules for. Every output is the same for the same input.

build.py swig FOLDER WRAP.c SWIG [FLAG...] INTERFACE.i    Java sources into FOLDER, C into WRAP.c
build.py classes OUT.jar JAVAC FOLDER FLAG... -- SOURCE...  compiles sources and those in FOLDER into a JAR
build.py jar OUT.jar CLASSES.jar VERSION PLATFORM LIBRARY...  the classes, the libraries and their dependencies
build.py cuda OUT.jar VERSION PLATFORM LIBRARY                the CUDA library alone, for a class path with the JAR above
build.py javadoc OUT.jar JAVADOC FLAG... -- SOURCE...         pages of the public API
build.py sources OUT.jar FOLDER -- SOURCE...                  sources and those in FOLDER
build.py install FOLDER FILE... [NAME:TARGET]                 copies files as they are, when Meson installs; NAME is a link
"""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "release"))
import contents  # noqa: E402

# Libraries that every host with a JVM has, or that only a host with a GPU needs.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|"
                    r"libcuda|libcudart|libcublas|libcublasLt|libnvidia.*)\.so")
# Is in the JAR for libbatchllm.so, which opens it when a GPU is used.
OPENED_LATER = "libbatchllm_cuda.so"


def run(*command):
    """Runs a tool, which prints its own errors."""
    code = subprocess.run(command).returncode
    if code:
        sys.exit(code)


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    pathlib.Path(folder).mkdir(parents=True)
    return pathlib.Path(folder)


def swig(folder, wrap, *command):
    folder = fresh(folder)
    run(*command[:-1], "-outdir", folder, "-o", wrap, command[-1])
    # SWIG has no option for the visibility of this class.
    constants = folder / "NativeConstants.java"
    constants.write_text(constants.read_text().replace("public interface", "interface"))


def write_jar(path, files):
    """files: name in the JAR -> bytes. The licence is added."""
    files = {"META-INF/LICENSE": (ROOT / "LICENSE").read_bytes(), **files}
    with zipfile.ZipFile(path, "w") as jar:
        for name in sorted(files, key=lambda name: (not name.startswith("META-INF/"), name)):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, files[name])


def split(arguments):
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1:]


def classes(out, javac, folder, *arguments):
    flags, sources = split(arguments)
    if folder != "-":
        sources = [*sources, *sorted(str(path) for path in pathlib.Path(folder).glob("*.java"))]
    with tempfile.TemporaryDirectory() as made:
        run(javac, "-d", made, *flags, *sources)
        root = pathlib.Path(made)
        write_jar(out, {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.class")})


def dependencies(library):
    """Names and paths of the libraries that a library needs and a host may lack, each after those that it needs itself."""
    listed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    paths = {name: path for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE) if not SYSTEM.match(name)}
    found = {}

    def visit(path):
        dynamic = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
            if name in paths and name not in found:
                visit(paths[name])
                found[name] = paths[name]

    visit(library)
    return list(found.items())


def stripped(library):
    """Its bytes without paths of the build folder and debug information."""
    with tempfile.NamedTemporaryFile() as made:
        run("strip", "--strip-unneeded", "-o", made.name, library)
        return pathlib.Path(made.name).read_bytes()


def notices(names, library):
    """What others made of these files and of the library, which libstdc++ may be linked into."""
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    compiled_in = set() if "libstdc++.so" in dynamic else {contents.LIBSTDCXX}
    return {f"META-INF/licenses/{name}": text for name, text in contents.notices(contents.components_of(names, compiled_in)).items()}


def manifest(version):
    return ("Manifest-Version: 1.0\r\n"
            "Automatic-Module-Name: org.batchllm\r\n"
            "Implementation-Title: libbatchllm\r\n"
            f"Implementation-Version: {version}\r\n\r\n").encode()


def cuda(out, version, platform, library):
    folder = f"org/batchllm/native/{platform}/"
    code = stripped(library)
    write_jar(out, {folder + OPENED_LATER: code, folder + "index-cuda": f"{hashlib.sha256(code).hexdigest()} open {OPENED_LATER}\n".encode(),
                    **notices([], library), "META-INF/MANIFEST.MF": manifest(version).replace(b"org.batchllm", b"org.batchllm.cuda")})


def jar(out, class_jar, version, platform, *libraries):
    folder = f"org/batchllm/native/{platform}/"
    files, index = {}, []

    def add(name, path, how):
        if folder + name in files:
            return
        files[folder + name] = stripped(path)
        index.append(f"{hashlib.sha256(files[folder + name]).hexdigest()} {how} {name}\n")

    own = {pathlib.Path(library).name.split(".so")[0]: library for library in libraries}
    for library in libraries:
        if OPENED_LATER in library:
            continue
        for name, path in dependencies(library):
            if name.split(".so")[0] not in own:
                add(name, path, "load")
    for library in libraries:
        name = pathlib.Path(library).name.split(".so")[0] + ".so"
        add(name, library, "open" if name == OPENED_LATER else "load")
    files[folder + "index"] = "".join(index).encode()
    files.update(notices(files, libraries[0]))
    with zipfile.ZipFile(class_jar) as source:
        for name in source.namelist():
            files[name] = source.read(name)
    files["META-INF/MANIFEST.MF"] = manifest(version)
    write_jar(out, files)


def javadoc(out, tool, *arguments):
    flags, sources = split(arguments)
    with tempfile.TemporaryDirectory() as made:
        run(tool, "-quiet", "-notimestamp", "-public", "-d", made, *flags, *sources)
        root = pathlib.Path(made)
        write_jar(out, {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()})


def sources(out, folder, *arguments):
    files = {}
    for path in map(pathlib.Path, split(arguments)[1]):
        package = re.search(r"^package (.*);", path.read_text(), re.MULTILINE)[1].replace(".", "/")
        files[f"{package}/{path.name}"] = path.read_bytes()
    if folder != "-":
        files.update({f"org/batchllm/{path.name}": path.read_bytes() for path in pathlib.Path(folder).glob("*.java")})
    write_jar(out, files)


def install(folder, *files):
    """Meson's own install would rewrite the JAR's manifest and so change its bytes."""
    into = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"], folder)
    into.mkdir(parents=True, exist_ok=True)
    for given in files:
        name, _, target = given.partition(":")
        if target:
            (into / name).unlink(missing_ok=True)
            (into / name).symlink_to(target)
            continue
        path = pathlib.Path(given)
        if "MESON_INSTALL_QUIET" not in os.environ:
            print(f"Installing {path} to {into}")
        if "MESON_INSTALL_DRY_RUN" not in os.environ:
            shutil.copyfile(path, into / path.name)
            (into / path.name).chmod(0o644)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    {"swig": swig, "classes": classes, "jar": jar, "cuda": cuda, "javadoc": javadoc, "sources": sources, "install": install}[sys.argv[1]](*sys.argv[2:])
