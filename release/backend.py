"""What pip calls to build the package: meson-python, and a hook that it lacks. Without the hook, pip compiles the library to learn the package's name, while it says
"Preparing metadata"; with it, pip says "Building wheel" while it compiles."""
import json
import pathlib
import subprocess

from mesonpy import build_editable, build_sdist, build_wheel, get_requires_for_build_sdist, get_requires_for_build_wheel  # noqa: F401


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    from mesonpy import tomllib  # Python's own, or the package that stands for it before 3.11
    from pyproject_metadata import StandardMetadata

    described = subprocess.run(["meson", "introspect", "--projectinfo", "meson.build"], capture_output=True, text=True, check=True)
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
    metadata = StandardMetadata.from_pyproject(project, pathlib.Path.cwd())
    metadata.version = json.loads(described.stdout)["version"]
    metadata.dynamic.remove("version")
    folder = pathlib.Path(metadata_directory, f"{metadata.name}-{metadata.version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_bytes(bytes(metadata.as_rfc822()))
    return folder.name
