"""A scratch clone to run set-up in: the real scripts with tiny pinned packages
from a local folder, so that no test needs the network."""

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
XLA_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


def write_wheel(folder: Path, name: str, version: str, tag: str,
                members: dict[str, bytes]) -> Path:
    """Writes a wheel that pip accepts, with the given files."""
    info = f"{name}-{version}.dist-info"
    pure = "true" if tag.endswith("none-any") else "false"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
                            f"Version: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: {pure}\n"
                         f"Tag: {tag}\n".encode()}
    lines = []
    for path, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        lines.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(data)}")
    members[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return wheel


def xla_members(library_bytes: int) -> dict[str, bytes]:
    members = {f"tensorflow/{name}": os.urandom(library_bytes)
               for name in XLA_LIBRARIES}
    members["tensorflow/include/xla/shape.h"] = b"/* header */\n"
    members["tensorflow/python/left_out.py"] = b"raise SystemExit\n"
    return members


class Clone:
    """A scratch clone, and the environment variables of its set-up."""

    ready_venv: Path | None = None  # set by the fixture

    def __init__(self, folder: Path):
        self.root = folder / "clone"
        self.wheels = folder / "wheels"
        self.cache = folder / "cache"
        self.fakes = folder / "fakes"
        for made in (self.root, self.wheels, self.cache, self.fakes):
            made.mkdir()
        shutil.copytree(REPOSITORY / "scripts", self.root / "scripts",
                        ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "python/towpath").mkdir(parents=True)
        shutil.copy(REPOSITORY / "python/towpath/xla.py", self.root / "python/towpath")
        (self.root / "meson.build").write_text("project('scratch')\n")
        (self.root / "meson_options.txt").write_text(
            "option('xla_dir', type: 'string')\n")
        write_wheel(self.wheels, "tinypkg", "1.0", "py3-none-any",
                    {"tinypkg.py": b"value = 1\n"})
        self.pin_requirements("tinypkg==1.0")
        self.xla_wheel = self.make_xla_wheel(library_bytes=1000)
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PIP_", "TOW_", "XDG_", "MAKE", "MFLAGS"))
            and name != "PYTHON"}
        self.environment |= {
            "PATH": f"{self.fakes}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.cache),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    @property
    def xla(self) -> Path:
        return self.cache / "towpath" / "xla-2.21.0"

    def copy_ready_venv(self) -> None:
        """Skips step 2 with a copy of a .venv, because creating one takes seconds."""
        subprocess.run(["cp", "-a", self.ready_venv, self.root / ".venv"], check=True)

    def pin_requirements(self, *pins: str) -> None:
        (self.root / "scripts/requirements.txt").write_text("\n".join(pins) + "\n")

    def make_xla_wheel(self, library_bytes: int,
                       members: dict[str, bytes] | None = None) -> Path:
        """Creates a substitute for the wheel of XLA, pinned by its hash."""
        wheel = write_wheel(self.wheels, "tensorflow_cpu", "2.21.0",
                            "cp311-cp311-linux_x86_64",
                            members or xla_members(library_bytes))
        self.pin_xla(hashlib.sha256(wheel.read_bytes()).hexdigest())
        return wheel

    def pin_xla(self, digest: str, unpacked_mb: int = 1) -> None:
        (self.root / "python/towpath/xla-wheel.txt").write_text(
            f"# download 1 MB, unpacked {unpacked_mb} MB, architecture x86_64\n"
            f"tensorflow-cpu==2.21.0 --hash=sha256:{digest}\n")

    def fake(self, program: str, script: str) -> None:
        """Puts a program in PATH before the real one of that name."""
        path = self.fakes / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def setup(self, *arguments: str, **environment: str):
        return subprocess.run(
            [self.root / "scripts/setup.sh", *arguments], cwd=self.root,
            env=self.environment | environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False)


def last_line(result) -> str:
    """The last line of the error output of a failed set-up."""
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else ""
