"""What an artefact contains of others, its notices and its list of contents (SPDX 2.3), and archives whose bytes depend on their contents alone. Standard library only."""
import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile
import time
import uuid
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
# Part of a file's name, name, licence, Debian package. A part that is no file's name is compiled in.
COMPONENTS = [
    ("libdnnl", "oneDNN", "Apache-2.0", "libdnnl2"),
    ("libsimdjson", "simdjson", "Apache-2.0", "libsimdjson14"),
    ("libxxhash", "xxHash", "BSD-2-Clause", "libxxhash0"),
    ("libzstd", "Zstandard", "BSD-3-Clause", "libzstd1"),
    ("libjpeg", "libjpeg-turbo", "IJG AND BSD-3-Clause AND Zlib", "libjpeg62-turbo"),
    ("libpng", "libpng", "libpng-2.0", "libpng16-16"),
    ("libwebp.", "libwebp", "BSD-3-Clause", "libwebp7"),
    ("libwebp-", "libwebp", "BSD-3-Clause", "libwebp7"),
    ("libwebpdemux", "libwebpdemux", "BSD-3-Clause", "libwebpdemux2"),
    ("libz.", "zlib", "Zlib", "zlib1g"),
    ("libgomp", "GNU OpenMP runtime", GCC, "libgomp1"),
    ("libOpenCL", "OpenCL ICD loader", "BSD-2-Clause", "ocl-icd-libopencl1"),
    ("static libstdc++", "GNU C++ library", GCC, "libstdc++-12-dev"),
    ("static CLI11", "CLI11", "BSD-3-Clause", "libcli11-dev"),
]
LIBSTDCXX, CLI11 = "static libstdc++", "static CLI11"
NOTICE = """Parts of others that are distributed with libbatchllm, each under its own licence; the texts stand beside this file.

"""


def epoch():
    """The time that all files of all artefacts have: SOURCE_DATE_EPOCH, or that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
        given = done.stdout.strip() or "315532800"
    return int(given)


def components_of(names, compiled_in=()):
    """The components whose libraries are among these file names, and those compiled in."""
    return [one for one in COMPONENTS if one[0] in compiled_in or any(pathlib.PurePath(name).name.startswith(one[0]) for name in names)]


def version_of(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def notices(components):
    """{file name: bytes}: a list of the components, and the texts as Debian's packages have them."""
    listed, texts = NOTICE, {}
    for _, name, licence, package in components:
        listed += f"{name} ({licence}): {package}.txt\n"
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        texts[f"{package}.txt"] = path.read_bytes() if path.exists() else f"{name}: {licence}\n".encode()
        for text in ("GPL-3",) if licence == GCC else ():
            common = pathlib.Path("/usr/share/common-licenses") / text
            if common.exists():
                texts[f"{text}.txt"] = common.read_bytes()
    return {"NOTICE": listed.encode(), **texts} if components else {}


def spdx(name, version, files, components):
    """The list of contents of an artefact: {path: bytes} and the components in it."""
    def identifier(text):
        return "SPDXRef-" + "".join(c if c.isalnum() else "-" for c in text)

    sums = {path: (hashlib.sha1(data).hexdigest(), hashlib.sha256(data).hexdigest()) for path, data in sorted(files.items())}
    whole = hashlib.sha256(json.dumps([name, version, sums]).encode()).hexdigest()
    code = hashlib.sha1("".join(sorted(one for one, _ in sums.values())).encode()).hexdigest()
    packages = [{
        "SPDXID": "SPDXRef-Package", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
        "packageVerificationCode": {"packageVerificationCodeValue": code}, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION"}]
    relationships = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Package"}]
    for part, title, licence, package in components:
        packages.append({
            "SPDXID": identifier(package), "name": title, "versionInfo": version_of(package), "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            "comment": f"from Debian's package {package}"})
        relationships.append({"spdxElementId": "SPDXRef-Package", "relatedSpdxElement": identifier(package),
                              "relationshipType": "STATIC_LINK" if part.startswith("static") else "CONTAINS"})
    listed = []
    for number, (path, (sha1, sha256)) in enumerate(sums.items()):
        listed.append({"SPDXID": f"SPDXRef-File-{number}", "fileName": f"./{path}", "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
                       "checksums": [{"algorithm": "SHA1", "checksumValue": sha1}, {"algorithm": "SHA256", "checksumValue": sha256}]})
        relationships.append({"spdxElementId": "SPDXRef-Package", "relationshipType": "CONTAINS", "relatedSpdxElement": f"SPDXRef-File-{number}"})
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
        "documentNamespace": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, whole)}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch())), "creators": ["Tool: libbatchllm-scripts-release"]},
        "packages": packages, "files": listed, "relationships": relationships}
    return (json.dumps(document, indent=1) + "\n").encode()


class Wheel:
    """The files of a wheel; write() makes its record anew."""

    def __init__(self, path=None):
        self.files = {}  # path: (bytes, whether it is a program)
        if path is not None:
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir():
                        self.files[entry.filename] = archive.read(entry), bool(entry.external_attr >> 16 & 0o111)

    def add(self, path, data, program=False):
        self.files[path] = (data if isinstance(data, bytes) else data.encode()), program

    def names(self):
        return list(self.files)

    def write(self, path, info, name, version, components):
        """info: the name of its dist-info folder."""
        for text, data in notices(components).items():
            self.add(f"{info}/licenses/bundled/{text}", data)
        record = f"{info}/RECORD"
        self.files.pop(record, None)
        self.add(f"{info}/sboms/{name}.spdx.json", spdx(name, version, {name: data for name, (data, _) in self.files.items()}, components))
        lines = []
        for file, (data, _) in sorted(self.files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{file},sha256={digest},{len(data)}\n")
        self.add(record, "".join(lines) + f"{record},,\n")
        when = time.gmtime(max(epoch(), 315532800))[:6]
        with zipfile.ZipFile(path, "w", compresslevel=9) as archive:
            # The metadata last, as the standard advises.
            for file, (data, program) in sorted(self.files.items(), key=lambda one: (one[0].startswith(info), one[0])):
                entry = zipfile.ZipInfo(file, when)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o100755 if program else 0o100644) << 16
                archive.writestr(entry, data)


def write_tar(path, folder, root):
    """folder as `root` in a .tar.gz: names sorted, nobody's, at one time."""
    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch()
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted([folder, *folder.rglob("*")]):
            archive.add(file, arcname=str(root / file.relative_to(folder)), recursive=False, filter=plain)
    with open(path, "wb") as out, gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed:
        packed.write(memory.getvalue())


def checksums(folder):
    """SHA256SUMS of all files of a folder."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    (folder / "SHA256SUMS").write_text("".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names))
