"""``tow setup``: unpacks XLA, which workers compute with, into the user's cache.

XLA comes from one pinned wheel (xla-wheel.txt, beside this file), LAPACK from another
(lapack-wheel.txt). pip downloads a wheel, from the index that it is configured with, or the
user names a file. The wheel is unpacked, not installed: none of its Python code runs, and
none of its dependencies is downloaded.

This file uses the standard library only, so that `make`, the `tow` command and the first use
from JAX can all run it: ``python -I xla.py --help``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    import argparse
    import zipfile

# `import jax` imports this file, so functions import slow modules where they use them.

PIN = Path(__file__).resolve().parent / "xla-wheel.txt"
LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
MANIFEST = "towpath-manifest"
# Linear algebra, beside XLA. Everything else works without it, so set-up succeeds if
# only LAPACK is missing.
LAPACK_PIN = PIN.with_name("lapack-wheel.txt")
LAPACK_MEMBER = "scipy_openblas32/lib/libscipy_openblas.so"
LAPACK_LIBRARY = "libscipy_openblas.so"
LAPACK_MANIFEST = "lapack-manifest"
# Incomplete folders; the holder of the lock may remove them.
WORK_PREFIX = ".unpacking."
MB = 1 << 20


class Failure(Exception):
    """What failed and what to do, in one line. `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Pin(NamedTuple):
    version: str
    sha256: str
    requirement: str  # the line for pip
    download_mb: int
    unpacked_mb: int
    architecture: str


def read_pin(path: Path = PIN) -> Pin:
    import re

    text = path.read_text(encoding="utf-8")
    size = re.search(r"^# download (\d+) MB, unpacked (\d+) MB, architecture (\S+)$", text, re.M)
    pin = re.search(r"^([\w-]+==(\S+) --hash=sha256:([0-9a-f]{64}))$", text, re.M)
    if size is None or pin is None:
        raise Failure("pin", f"{path} does not name a wheel; install Towpath again")
    return Pin(pin[2], pin[3], pin[1], int(size[1]), int(size[2]), size[3])


# ---- the folder of XLA ----


def cache_folder() -> Path:
    cache, home = os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    if cache:
        return Path(cache) / "towpath"
    if home:
        return Path(home) / ".cache" / "towpath"
    raise Failure(
        "place", "no cache folder for XLA; set HOME, XDG_CACHE_HOME or TOW_XLA_DIR"
    )


def folder(pin: Pin) -> Path:
    """Where XLA is, or will be."""
    given = os.environ.get("TOW_XLA_DIR")
    return Path(given) if given else cache_folder() / f"xla-{pin.version}"


def manifest_of(place: Path, pin: Pin) -> str:
    """Describes a complete copy: the pin, and the size of each library."""
    lines = [pin.requirement]
    lines += [f"{(place / name).stat().st_size} {name}" for name in sorted(LIBRARIES)]
    return "\n".join(lines) + "\n"


def is_ready(place: Path, pin: Pin) -> bool:
    try:
        return (place / MANIFEST).read_text(encoding="utf-8") == manifest_of(place, pin)
    except FileNotFoundError:
        return not (place / MANIFEST).exists() and is_users_own(place)


def is_users_own(place: Path) -> bool:
    """An XLA in TOW_XLA_DIR that we did not unpack is used as it is."""
    return bool(os.environ.get("TOW_XLA_DIR")) and all(
        (place / name).is_file() for name in LIBRARIES
    )


# ---- progress ----


class Reporter:
    """Writes notes and progress to one stream: a bar on a terminal, else a line every
    LINE_EVERY_S. `label` begins the first line of each step."""

    BAR = 32
    LINE_EVERY_S = 10.0
    BAR_EVERY_S = 0.2

    def __init__(self, stream: TextIO | None, label: str = "") -> None:
        self.stream = stream
        self.label = label
        self.started = self.reported = time.monotonic()
        self.has_bar = False

    def note(self, text: str) -> None:
        self.end_bar()
        if self.stream is not None:
            print(text, file=self.stream, flush=True)

    def step(self, text: str) -> None:
        self.note(self.label + text)

    def progress(self, what: str, done: int, total: int) -> None:
        if self.stream is None:
            return
        now = time.monotonic()
        is_terminal = self.stream.isatty()
        if now - self.reported < (self.BAR_EVERY_S if is_terminal else self.LINE_EVERY_S):
            return
        self.reported = now
        mb = f"{min(done, total) // MB} of {total // MB} MB"
        if is_terminal:
            full = self.BAR * min(done, total) // max(total, 1)
            bar = "#" * full + "." * (self.BAR - full)
            self.stream.write(f"\r      {what:<9} [{bar}] {mb}\x1b[K")
            self.has_bar = True
        else:
            self.stream.write(f"      {what}: {now - self.started:.0f} s, {mb}\n")
        self.stream.flush()

    def end_bar(self) -> None:
        if self.has_bar and self.stream is not None:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        self.has_bar = False


# ---- download ----

# Pattern in pip's log, code, message. The first match counts.
PIP_CAUSES = (
    (r"no space left on device|disk quota exceeded", "disk",
     "the disk is full; free some space and run it again"),
    (r"DO NOT MATCH THE HASHES", "hash",
     "the download is not the file that is pinned (corrupted on the way?); run it again"),
    (r"No module named pip", "pip",
     "this Python has no pip; `python -m ensurepip` brings it, or fetch the wheel "
     "elsewhere and run `tow setup --from FILE.whl`"),
    (r"NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|Could not resolve|"
     r"Network is unreachable|ProxyError|SSLError|from versions: none", "network",
     "no package index could be reached, or none has it; check the network and pip's "
     "configuration, or fetch the wheel elsewhere and run `tow setup --from FILE.whl`"),
    (r"No matching distribution", "index",
     "no package index has it for this system; check pip's configuration, or run "
     "`tow setup --from FILE.whl`"),
)


def explain_pip(output: str) -> Failure:
    import re

    for pattern, code, message in PIP_CAUSES:
        if re.search(pattern, output, re.I if code == "disk" else 0):
            return Failure(code, message)
    lines = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()
    return Failure("pip", f"pip failed: {lines[-1] if lines else 'it printed nothing'}")


def bytes_in(place: Path) -> int:
    """The size of all files below; files may disappear meanwhile."""
    total = 0
    for parent, _, names in os.walk(place):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                pass
    return total


def fetch(pin: Pin, work: Path, reporter: Reporter, log: Path | None) -> Path:
    """Downloads the pinned wheel into `work`. We use only its libraries and headers, so one
    wheel serves every interpreter, and its tags are fixed here. pip's cache would store it
    a second time, and a small /tmp could not store it at all."""
    import subprocess
    import tempfile

    pin_file = work / "pin.txt"
    pin_file.write_text(pin.requirement + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir",
             "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp",
             "--abi", "cp311", "--progress-bar", "off", "--disable-pip-version-check",
             "--dest", str(work / "wheel"), "--requirement", str(pin_file)]
    output = open(log, "w+b") if log else tempfile.TemporaryFile(dir=work)
    with output:
        pip = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output,
                               stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(work)})
        try:
            while pip.poll() is None:
                reporter.progress("fetching", bytes_in(work), pin.download_mb * MB)
                try:
                    pip.wait(timeout=Reporter.BAR_EVERY_S)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            if pip.poll() is None:
                pip.kill()
            pip.wait()
        if pip.returncode != 0:
            output.seek(0)
            raise explain_pip(output.read().decode(errors="replace"))
    [wheel] = (work / "wheel").glob("*.whl")
    return wheel


def check_hash(wheel: Path, pin: Pin, reporter: Reporter) -> None:
    import hashlib

    digest, done, total = hashlib.sha256(), 0, wheel.stat().st_size
    with open(wheel, "rb") as source:
        while piece := source.read(MB):
            digest.update(piece)
            done += len(piece)
            reporter.progress("checking", done, total)
    if digest.hexdigest() != pin.sha256:
        raise Failure(
            "hash",
            f"{wheel} is not the wheel that is pinned: its SHA-256 is {digest.hexdigest()}, "
            f"and the pin, {pin.requirement.split('==')[0]} {pin.version} for CPython 3.11, has "
            f"{pin.sha256}",
        )


# ---- unpacking ----


def wanted(name: str) -> str | None:
    """The path of a member of the wheel in the folder of XLA; None for members that we do
    not need, about 180 MB of Python and TensorFlow."""
    if not name.startswith("tensorflow/") or name.endswith("/"):
        return None
    path = name.removeprefix("tensorflow/")
    if path in LIBRARIES or path == "THIRD_PARTY_NOTICES.txt":
        return path
    is_header = path.startswith("include/") and ".." not in path.split("/")
    return path if is_header else None


def unpack(wheel: Path, place: Path, reporter: Reporter) -> None:
    """Unpacks the members that we need; zipfile checks the CRC-32 of each."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {path: info for info in archive.infolist()
                       if (path := wanted(info.filename)) is not None}
            missing = [name for name in LIBRARIES if name not in members]
            if missing:
                raise Failure("wheel", f"{wheel} is corrupt or not a wheel with XLA: "
                                       f"it does not contain {missing[0]}")
            unpack_members(archive, members, place, reporter)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise Failure("wheel", f"{wheel} is corrupt: {error}") from error


def unpack_members(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], place: Path,
                   reporter: Reporter) -> None:
    done, total = 0, sum(info.file_size for info in members.values())
    for path, info in members.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, open(target, "xb") as sink:
            while piece := source.read(MB):
                sink.write(piece)
                done += len(piece)
                reporter.progress("unpacking", done, total)


# ---- set-up ----


@contextmanager
def locked(parent: Path, reporter: Reporter) -> Iterator[None]:
    """Allows one set-up at a time in a folder. The lock ends with its process."""
    import fcntl

    handle = os.open(parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporter.note("      waiting: another set-up is unpacking XLA")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_place(place: Path, pin: Pin) -> None:
    machine = os.uname().machine
    if machine != pin.architecture:
        raise Failure("system", f"the XLA wheel is pinned for {pin.architecture}, and this is "
                                f"{machine}; set TOW_XLA_DIR to an unpacked XLA")
    is_given = bool(os.environ.get("TOW_XLA_DIR"))
    if is_given and place.is_dir() and any(place.iterdir()) and not (place / MANIFEST).exists():
        raise Failure("place", f"TOW_XLA_DIR={place} holds other files and no XLA; name an "
                               f"empty or a new folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure("place", f"cannot create {place.parent} for XLA ({error.strerror}); set "
                               f"XDG_CACHE_HOME or TOW_XLA_DIR to a folder that you can write"
                      ) from error


def check_space(parent: Path, need_mb: int) -> None:
    disk = os.statvfs(parent)
    free_mb = disk.f_bavail * disk.f_frsize // MB
    if free_mb < need_mb:
        raise Failure("disk", f"the disk is full: XLA needs {need_mb} MB at {parent}, which has "
                              f"{free_mb} MB; free some space or set TOW_XLA_DIR to a larger disk")


def remove_leftovers(parent: Path) -> None:
    """Removes the folders of a killed set-up. The caller holds the lock."""
    import shutil

    for leftover in parent.glob(WORK_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)


def replace(place: Path, whole: Path) -> None:
    import shutil

    if place.exists():
        shutil.rmtree(place)
    whole.rename(place)


def fill(place: Path, pin: Pin, wheel: Path | None, reporter: Reporter, log: Path | None) -> None:
    """Works in a folder beside `place`, so that `place` appears completely or not at all."""
    import shutil
    import tempfile

    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=place.parent))
    try:
        wheel = wheel or fetch(pin, work, reporter, log)
        check_hash(wheel, pin, reporter)
        unpack(wheel, work / "xla", reporter)
        (work / "xla" / MANIFEST).write_text(manifest_of(work / "xla", pin), encoding="utf-8")
        replace(place, work / "xla")
    finally:
        reporter.end_bar()
        shutil.rmtree(work, ignore_errors=True)


def setup(reporter: Reporter, wheel: Path | None = None, log: Path | None = None,
          lapack: Path | None = None) -> dict[str, object]:
    """Unpacks XLA, and LAPACK if possible. Raises Failure if XLA cannot be unpacked, and then
    leaves no files. `wheel`, `lapack`: use this file, do not download."""
    report = setup_xla(reporter, wheel, log)
    place, beside = Path(str(report["folder"])), log and log.with_name("setup-lapack.log")
    return report | {"lapack": setup_lapack(place, lapack, reporter, beside)}


def setup_xla(reporter: Reporter, wheel: Path | None, log: Path | None) -> dict[str, object]:
    pin = read_pin()
    place = folder(pin)
    report: dict[str, object] = {"xla": pin.version, "folder": str(place), "state": "ready"}
    if is_ready(place, pin):
        return report | {"unpacked": False}
    if wheel is not None and not wheel.is_file():
        raise Failure("file", f"{wheel} does not exist, or is not a file")
    check_place(place, pin)
    with locked(place.parent, reporter):
        if is_ready(place, pin):
            return report | {"unpacked": False}
        remove_leftovers(place.parent)
        check_space(place.parent, pin.unpacked_mb + (0 if wheel else pin.download_mb))
        source = f"from {wheel}" if wheel else f"{pin.download_mb} MB to fetch"
        reporter.step(f"XLA: tensorflow-cpu {pin.version}, {source}, {pin.unpacked_mb} MB "
                    f"unpacked in {place}")
        make(place, pin, wheel, reporter, log)
    return report | {"unpacked": True}


# ---- LAPACK ----


def lapack_is_ready(place: Path) -> bool:
    """True also without a pin, and for a folder that the user made."""
    if not LAPACK_PIN.is_file() or not (place / MANIFEST).is_file():
        return True
    try:
        return (place / LAPACK_MANIFEST).read_text(encoding="utf-8") == lapack_manifest(place)
    except OSError:
        return False


def lapack_manifest(place: Path) -> str:
    size = (place / LAPACK_LIBRARY).stat().st_size
    return f"{read_pin(LAPACK_PIN).requirement}\n{size} {LAPACK_LIBRARY}\n"


def fill_lapack(place: Path, wheel: Path | None, reporter: Reporter, log: Path | None) -> None:
    import shutil
    import tempfile
    import zipfile

    pin = read_pin(LAPACK_PIN)
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=place.parent))
    try:
        wheel = wheel or fetch(pin, work, reporter, log)
        check_hash(wheel, pin, reporter)
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name == LAPACK_MEMBER or name.endswith("/LICENSE.txt"):
                    to = LAPACK_LIBRARY if name == LAPACK_MEMBER else "LICENSE-openblas.txt"
                    (work / to).write_bytes(archive.read(name))
                    (work / to).rename(place / to)
        (place / LAPACK_MANIFEST).write_text(lapack_manifest(place), encoding="utf-8")
    finally:
        reporter.end_bar()
        shutil.rmtree(work, ignore_errors=True)


def setup_lapack(place: Path, wheel: Path | None, reporter: Reporter, log: Path | None) -> bool:
    """True if LAPACK is available. Set-up continues without it, after a note with the reason."""
    import zipfile

    if lapack_is_ready(place):
        return True
    with locked(place.parent, reporter):
        if lapack_is_ready(place):
            return True
        pin = read_pin(LAPACK_PIN)
        reporter.step(f"LAPACK: scipy-openblas32 {pin.version}, {pin.download_mb} MB to fetch, "
                    f"{pin.unpacked_mb} MB unpacked in {place}")
        try:
            fill_lapack(place, wheel, reporter, log)
            return True
        except (Failure, OSError, zipfile.BadZipFile) as error:
            reporter.note(f"      no LAPACK: {error}. Programs with linear algebra will fail; "
                        f"run `tow setup` to try again")
            return False


def make(place: Path, pin: Pin, wheel: Path | None, reporter: Reporter, log: Path | None) -> None:
    what = f"unpacking XLA into {place}" if wheel else f"fetching XLA into {place}"
    where = f" (log: {log})" if log else ""
    try:
        fill(place, pin, wheel, reporter, log)
    except Failure as failure:
        raise Failure(failure.code, f"{what} failed: {failure}{where}") from failure
    except OSError as error:
        raise Failure(*explain_os(error, what, place, where)) from error


def explain_os(error: OSError, what: str, place: Path, where: str) -> tuple[str, str]:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk", f"{what} failed: the disk is full; free some space and run it again{where}"
    return "place", (f"{what} failed: {error}; make {place.parent} writable or set "
                     f"TOW_XLA_DIR to a folder that you can write{where}")


def remove(reporter: Reporter) -> dict[str, object]:
    """Removes every XLA that we unpacked, including other versions, and nothing else."""
    import shutil

    pin = read_pin()
    place = folder(pin)
    removed: list[str] = []
    if place.parent.is_dir():
        with locked(place.parent, reporter):
            remove_leftovers(place.parent)
            found = {place} if os.environ.get("TOW_XLA_DIR") else {*place.parent.glob("xla-*")}
            for old in sorted(found):
                if (old / MANIFEST).is_file():
                    shutil.rmtree(old)
                    removed.append(str(old))
        if not os.environ.get("TOW_XLA_DIR"):
            remove_if_empty(place.parent)
    return {"state": "removed", "removed": removed}


def remove_if_empty(place: Path) -> None:
    try:
        place.rmdir()
    except OSError:
        pass


# ---- the command ----

EPILOG = """\
Without a network: on a machine that has one, with the same Towpath, run
  tow setup --print-pin > pin.txt
  pip download --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 \\
      --python-version 3.11 --implementation cp --abi cp311 -r pin.txt
copy the file to this machine, and run `tow setup --from FILE.whl`. For linear algebra do
the same with scipy-openblas32 (lapack-wheel.txt) and --lapack-from. Or copy the unpacked
folder and name it in TOW_XLA_DIR.

TOW_XLA_DIR     the folder of XLA (default: towpath/xla-VERSION in XDG_CACHE_HOME or ~/.cache)
PIP_*, pip.conf pip's configuration applies, such as its package index
"""


def parse(words: list[str]) -> argparse.Namespace:
    import argparse

    parser = argparse.ArgumentParser(
        prog="tow setup", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Unpacks XLA, which workers compute with, into your cache folder. "
                    "Does nothing if it is there already.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--from", dest="wheel", type=Path, metavar="FILE.whl",
                      help="use this wheel; download nothing")
    parser.add_argument("--lapack-from", dest="lapack", type=Path, metavar="FILE.whl",
                        help="use LAPACK from this wheel of scipy-openblas32")
    what.add_argument("--check", action="store_true",
                      help="only print whether it is there; the exit status is 1 if not")
    what.add_argument("--remove", action="store_true",
                      help="remove everything that set-up unpacked")
    what.add_argument("--print-folder", action="store_true",
                      help="print the folder of XLA, which may not exist yet")
    what.add_argument("--print-pin", action="store_true",
                      help="print the pinned wheel, as a requirement for pip")
    parser.add_argument("--json", action="store_true",
                        help="print the result as one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    # For scripts: begins the line of each step, and omits the final line.
    parser.add_argument("--label", default="", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help="write pip's output to this file")
    return parser.parse_args(words)


def check() -> dict[str, object]:
    pin = read_pin()
    place = folder(pin)
    state = "ready" if is_ready(place, pin) else "missing"
    return {"xla": pin.version, "folder": str(place), "state": state}


def describe(report: dict[str, object]) -> str:
    if report["state"] == "removed":
        removed = report["removed"]
        return "removed " + ", ".join(removed) if removed else "there was nothing to remove"
    if report["state"] == "missing":
        return f"XLA {report['xla']} is not in {report['folder']}; `tow setup` fetches it"
    return f"XLA {report['xla']} is ready in {report['folder']}"


def run(options: argparse.Namespace) -> int:
    import json

    if options.print_folder or options.print_pin:
        pin = read_pin()
        print(folder(pin) if options.print_folder else pin.requirement)
        return 0
    notes = None if options.quiet else sys.stderr if options.json else sys.stdout
    reporter = Reporter(notes, options.label)
    if options.check:
        report = check()
    elif options.remove:
        report = remove(reporter)
    else:
        report = setup(reporter, options.wheel, options.log, options.lapack)
    if options.json:
        print(json.dumps(report))
    elif not options.quiet and not options.label:
        print(describe(report))
    return 1 if report["state"] == "missing" else 0


def main(words: list[str] | None = None) -> int:
    import json
    import signal

    options = parse(sys.argv[1:] if words is None else words)
    # Exit through `finally` clauses, which remove incomplete files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run(options)
    except Failure as failure:
        if options.json:
            print(json.dumps({"state": "failed", "code": failure.code, "error": str(failure)}))
        print(f"towpath: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("towpath: interrupted; no files are left, run it again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
