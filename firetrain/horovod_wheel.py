"""Build Horovod from its source distribution against the installed torch.

Horovod's last release, 0.28.1 of June 2023, compiles as C++14, but torch has needed C++17 since 2.1; the build changes that.
Run `make horovod`, or without a checkout `python -m firetrain.horovod_wheel`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from firetrain.errors import FiretrainError, UserError
from firetrain.provenance import usable_cores

VERSION = "0.28.1"
# needed by its setup.py and CMake files; setuptools 81 removed a module that setup.py imports
_BUILD_NEEDS = ("setuptools<81", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "pyyaml")
# without debugging information, which would take a quarter of the build time
_CXX17 = 'set(CMAKE_CXX_STANDARD 17)\nset(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")'
_STANDARD = re.compile(r"set\(CMAKE_CXX_STANDARD 14\)")


def install(without_mpi: bool = False) -> None:
    """Install the wheel for this torch, Python and machine. It is built first if it is not in the cache (minutes).

    FiretrainError if a compiler or torch is missing, or if the build fails; it then contains the end of the log.
    """
    parts = _parts(without_mpi)
    folder = _cache(parts)
    wheels = sorted(folder.glob("horovod-*.whl"))
    if not wheels:
        _refuse_without_means()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"building horovod {VERSION} ({', '.join(parts)}); this takes some minutes", flush=True)
        _build(folder, parts)
        wheels = sorted(folder.glob("horovod-*.whl"))
    _pip("install", "--force-reinstall", "--no-deps", str(wheels[-1]))
    _pip("install", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi")
    print(f"installed {wheels[-1]}")


def _parts(without_mpi: bool) -> tuple[str, ...]:
    """The parts that can be built here: always Gloo; MPI if mpicxx is installed; NCCL if nvcc or CUDA_HOME is found."""
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError("building horovod needs torch, which is not installed: install torch first") from None
    mpi = not without_mpi and _compiles("mpicxx", "#include <mpi.h>")
    nccl = torch.version.cuda is not None and (shutil.which("nvcc") is not None or "CUDA_HOME" in os.environ)
    return tuple(name for name, there in (("gloo", True), ("mpi", mpi), ("nccl", nccl)) if there)


def _compiles(compiler: str, text: str) -> bool:
    """Whether `compiler` compiles `text`; Debian's mpicxx may be installed without its headers."""
    command = [compiler, "-x", "c++", "-fsyntax-only", "-"]
    return (
        shutil.which(compiler) is not None
        and not subprocess.run(command, input=text.encode(), capture_output=True).returncode
    )


def _cache(parts: tuple[str, ...]) -> Path:
    """A folder for each combination of torch, Python and parts."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = "".join(platform.python_version_tuple()[:2])
    return (
        home
        / "firetrain"
        / f"horovod-{VERSION}-torch{version('torch')}-py{python}-{platform.machine()}-{'-'.join(parts)}"
    )


def _refuse_without_means() -> None:
    absent = [tool for tool in ("make", "g++") if shutil.which(tool) is None]
    if absent:
        raise UserError(f"building horovod needs {' and '.join(absent)}, not found (Debian: make g++)")


def _build(folder: Path, parts: tuple[str, ...]) -> None:
    """Build a wheel in `folder`. Build tools are installed in a temporary folder, not in the user's environment."""
    with tempfile.TemporaryDirectory() as scratch:
        build = Path(scratch)
        _pip(
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "-d",
            scratch,
            f"horovod=={VERSION}",
        )
        cmake = () if shutil.which("cmake") else ("cmake<4",)
        _pip("install", "--target", str(build / "tools"), *_BUILD_NEEDS, *cmake)
        with tarfile.open(next(build.glob("horovod-*.tar.gz"))) as archive:
            archive.extractall(build, filter="data")
        source = build / f"horovod-{VERSION}"
        for path in (source / "CMakeLists.txt", source / "horovod" / "torch" / "CMakeLists.txt"):
            path.write_text(_STANDARD.sub(_CXX17, path.read_text()))
        environment = {**os.environ, **_variables(build / "tools", parts)}
        log = folder / "build.log"
        with log.open("w") as file:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder), str(source)],
                env=environment, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        if done.returncode:
            tail = "\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-20:])
            raise FiretrainError(f"horovod could not be built; the end of {log}:\n{tail}")


def _variables(tools: Path, parts: tuple[str, ...]) -> dict[str, str]:
    """Environment variables of Horovod's build."""
    variables = {
        "PYTHONPATH": str(tools),
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "MAKEFLAGS": f"-j{usable_cores()}",
        # CMake 4 refuses the old projects that Horovod includes
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if "mpi" in parts else "HOROVOD_WITHOUT_MPI": "1",
    }
    if "nccl" in parts:
        # use torch's NCCL instead of a second one
        variables |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
    return variables


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise FiretrainError(f"pip {' '.join(arguments)}:\n{done.stderr.strip()}")


def main() -> None:
    """Build and install Horovod."""
    parser = argparse.ArgumentParser(prog="python -m firetrain.horovod_wheel", description=__doc__)
    parser.add_argument("--without-mpi", action="store_true", help="build without MPI, even if mpicxx is installed")
    try:
        install(parser.parse_args().without_mpi)
    except FiretrainError as error:
        sys.exit(f"firetrain: {error}")


if __name__ == "__main__":
    main()
