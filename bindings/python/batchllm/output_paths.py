"""Checks that what a job writes replaces nothing that it reads, before any of it is touched: the rules of
src/cli/output_paths.cc, which has the same list of a model's files."""

from __future__ import annotations

import errno
import glob
import os
import stat
from typing import Iterable, Iterator, Mapping, Optional, Union

from .errors import InvalidArgumentError, file_error

Path = Union[str, "os.PathLike[str]"]

# How the names of models' files end; other files in the directory may be the user's own.
_MODEL_FILES = (
    ".safetensors", ".jinja", ".bin", ".model", "config.json", "tokenizer.json", "index.json", "_map.json", "tokens.json",
    "vocab.json", "modules.json", "template.json", "merges.txt",
)  # fmt: skip
_KEPT_BESIDE = (".state", ".blocks", ".new", ".pictures")
_KEPT_TO_RETRY = (".retry", ".retry.state", ".retry.blocks")


def files_of_output(output: str, retry_failed: bool = False) -> list[str]:
    """The output, and the files beside it that a job keeps until it is finished."""
    return [output] + [output + ending for ending in _KEPT_BESIDE + (_KEPT_TO_RETRY if retry_failed else ())]


def files_of_plan(plan: str) -> list[str]:
    """The file of a plan, and those of its chunks."""
    return [plan] + [one for one in glob.glob(glob.escape(plan) + ".*") if one[len(plan) + 1 :].isdigit()]


def check_outputs(
    outputs: Mapping[str, Union[Path, list[str], None]],
    reads: Mapping[str, Union[Path, list[str], None]],
    model: Optional[Path],
    adapters: Iterable[Path],
) -> None:
    """Raises if a file that is written is one that is read, another output, a file of the model, or in the directory of an
    adapter, or if it cannot be written. Links are followed; pipes and devices may be named several times.

    outputs, reads: files by the name that errors give them; of several, the first is the one that was named.
    adapters: directories of adapters, or of directories of these.
    """
    before = [(name, path) for name, paths in reads.items() for path in _paths(paths)]
    folders = [os.fspath(one) for one in adapters]
    own = [os.path.join(os.path.realpath(one), "") for one in _adapter_directories(folders)]
    model_files: Optional[set[tuple[int, int]]] = None
    adapter_files: set[tuple[int, int]] = set()
    for name, paths in outputs.items():
        if not isinstance(paths, (str, list, os.PathLike, type(None))):
            raise TypeError(f"{name} is {paths!r}: the path of a file is expected")
        for path in _paths(paths):
            local = _local(path)
            what = next((f"is {other}" for other, one in before if (one == path if local is None else _same(local, _local(one)))), None)
            if what is None and local is not None:
                identity = _identity(local)
                if identity is not None and model_files is None:  # not before: reading thousands of directories takes time
                    model_files = _identities([] if model is None else [os.fspath(model), *_model_files(os.fspath(model), levels=1)])
                    adapter_files = _identities(_model_files(*folders, levels=2)) | _identities(_below(*own, levels=0))
                if identity is not None and identity in (model_files or ()):
                    what = "is a file of the model"
                elif identity in adapter_files or os.path.realpath(local).startswith(tuple(own)):
                    what = "is in the directory of an adapter"
            if what is not None:
                raise InvalidArgumentError(f"{path}: {what}" if name == "the output" else f"{name}: {path} {what}")
            # The output may be a URL, and whoever opens it tells more.
            number = 0 if name == "the output" else _why_not_writable(path, replaced=name.endswith("report"))
            if number:
                raise file_error(number, path, f"{name}: {path}: cannot open")
        own_name = name if name == "the output" else f"the file of {name}"
        before += [(f"what {name} keeps meanwhile" if i else own_name, path) for i, path in enumerate(_paths(paths))]


def _paths(given: Union[Path, list[str], None]) -> list[str]:
    return [] if given is None else list(given) if isinstance(given, list) else [os.fspath(given)]


def _local(path: str) -> Optional[str]:
    """The path on this machine of a path or URL; None: it is elsewhere."""
    system, found, rest = path.rpartition("::")[2].partition("://")
    if not found:
        return path
    return rest if system in ("file", "local") else None


def _status(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _why_not_writable(path: str, replaced: bool) -> int:
    """The errno with which a local file could not be written; 0: it can be, as far as is known before. replaced: a file
    that is there is not written to, but another takes its place."""
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return errno.EISDIR
        if not replaced or not stat.S_ISREG(found.st_mode):
            return 0 if os.access(path, os.W_OK) else errno.EACCES
    except OSError as fault:
        if fault.errno != errno.ENOENT:
            return fault.errno or errno.EIO
    if not path or path.endswith("/"):
        return errno.EISDIR if path else errno.ENOENT
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        return errno.ENOENT
    return 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES


def _same(one: Optional[str], other: Optional[str]) -> bool:
    """Whether both are the same file, or would be once written."""
    if one is None or other is None:
        return False
    found, known = _status(one), _status(other)
    if found is None or known is None:
        return found is known and os.path.realpath(one) == os.path.realpath(other)
    return stat.S_ISREG(found.st_mode) and os.path.samestat(found, known)


def _identity(path: str) -> Optional[tuple[int, int]]:
    found = _status(path)
    return None if found is None else (found.st_dev, found.st_ino)


def _identities(paths: Iterable[str]) -> set[tuple[int, int]]:
    return {found for one in paths if (found := _identity(one)) is not None}


def _model_files(*directories: str, levels: int) -> Iterator[str]:
    return (one for one in _below(*directories, levels=levels) if one.endswith(_MODEL_FILES))


def _adapter_directories(folders: Iterable[str]) -> Iterator[str]:
    """The folders that are adapters, and the directories in the others that are."""
    for folder in folders:
        found = [one for one in _below(folder, levels=1) if os.path.basename(one) == "adapter_config.json"]
        own = os.path.join(folder, "adapter_config.json")
        yield from map(os.path.dirname, [own] if own in found else found)


def _below(*directories: str, levels: int) -> Iterator[str]:
    """The files of directories, and of those at most this many levels below them."""
    for directory in directories:
        try:
            entries = list(os.scandir(directory))
        except OSError:  # not a directory; one that cannot be read is reported elsewhere
            continue
        for entry in entries:
            if levels > 0 and entry.is_dir():
                yield from _below(entry.path, levels=levels - 1)
            else:
                yield entry.path
