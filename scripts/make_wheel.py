"""Build the wheel: the package, and the C programs and libraries of a build folder.

usage: make_wheel.py BUILD_FOLDER [OUTPUT_FOLDER]

Strips the binaries as they were built and tested, and bundles every library that
they link to and that not every system has, under unique names. The tag names the
C library that is needed: the newest version that any symbol in the wheel requires.
Prints the wheel's path.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "towpath"
SIZE_MAX = 8 << 20

BUNDLE = "lib/bundled"
ADAPTER = "towpath/libtow_xla_cpu.so"  # built only with XLA's headers
# Present on every Linux system that runs Python and JAX; `tow setup` installs XLA.
SYSTEM = re.compile(
    r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|"
    r"libtensorflow_\w+)\.so\.\d+")
# UCX would load the modules of an installed UCX, of any version.
UCX_MODULES = b"/usr/lib/x86_64-linux-gnu/ucx\0"
# A fixed time stamp, so that equal binaries give equal wheels.
EPOCH = (2020, 1, 1, 0, 0, 0)


def fail(message: str) -> None:
    sys.exit(f"towpath: {message}")


def call(*arguments: str | Path) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, arguments))} failed: {done.stderr.strip()}")
    return done.stdout


# ---- bundled libraries ----


def needed(binary: Path) -> list[str]:
    return [name for name in call("patchelf", "--print-needed", binary).split()
            if not SYSTEM.fullmatch(name)]


def resolved(binary: Path) -> dict[str, Path]:
    """The libraries that the loader finds for a binary, by name."""
    lines = re.findall(r"^\s*(\S+) => (/\S+)", call("ldd", binary), re.M)
    return {name: Path(path) for name, path in lines}


def bundled_name(library: Path) -> str:
    """libucp.so.0 becomes libucp-1a2b3c4d.so.0."""
    stem, dot, rest = library.name.partition(".so")
    digest = hashlib.sha256(library.read_bytes()).hexdigest()[:8]
    return f"{stem}-{digest}{dot}{rest}"


def collect(binaries: list[Path], folder: Path) -> dict[str, Path]:
    """Copies the libraries to bundle into `folder`; returns them by name."""
    found: dict[str, Path] = {}
    wanted = [(name, binary) for binary in binaries for name in needed(binary)]
    while wanted:
        name, binary = wanted.pop()
        if name in found:
            continue
        source = resolved(binary).get(name)
        if source is None:
            fail(f"{binary} needs {name}, which is not on this system")
        found[name] = folder / bundled_name(source.parent / name)
        shutil.copy(source.resolve(), found[name])
        wanted += [(more, source) for more in needed(source)]
    return found


def disable_ucx_modules(library: Path) -> None:
    """Replaces UCX's folder of modules by one that does not exist."""
    data = library.read_bytes()
    if data.count(UCX_MODULES) != 1:
        fail(f"{library.name}: its folder of modules is not {UCX_MODULES.decode()}")
    nowhere = b"/nonexistent".ljust(len(UCX_MODULES), b"\0")
    library.write_bytes(data.replace(UCX_MODULES, nowhere))


def redirect(binary: Path, bundle: Path, names: dict[str, Path]) -> None:
    """Makes a binary load the bundled libraries only. One change per call, because
    patchelf 0.14 confuses the arguments of several."""
    wanted = needed(binary)
    for name in wanted:
        call("patchelf", "--replace-needed", name, names[name].name, binary)
    if binary in names.values():
        call("patchelf", "--set-soname", binary.name, binary)
    up = "../" * len(binary.parent.relative_to(bundle.parents[1]).parts)
    path = "$ORIGIN" if binary.parent == bundle else f"$ORIGIN/{up}{BUNDLE}"
    call("patchelf", *(["--set-rpath", path] if wanted else ["--remove-rpath"]), binary)


def notices(libraries: list[Path], folder: Path) -> None:
    """Copies the licence of every bundled library, as Debian ships it."""
    folder.mkdir()
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    for library in libraries:
        owner = call("dpkg", "-S", library.resolve()).split(":")[0]
        shutil.copy(f"/usr/share/doc/{owner}/copyright", folder / f"{owner}.txt")


# ---- required glibc ----


def floor(binaries: list[Path]) -> tuple[int, int]:
    """The oldest glibc that has every required symbol."""
    versions = {tuple(map(int, version.split(".")[:2]))
                for binary in binaries
                for version in re.findall(r"\(GLIBC_([\d.]+)\)|GLIBC_([\d.]+)",
                                          call("objdump", "-T", binary))
                for version in version if version}
    return max(versions)


# ---- the wheel ----


def metadata(project: dict) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}",
             f"Version: {project['version']}", f"Summary: {project['description']}",
             f"License: {project['license']['text']}",
             f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    return "\n".join(lines) + "\n"


def entry_points(project: dict) -> str:
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return "\n".join(f"[{group}]\n" + "".join(f"{a} = {b}\n" for a, b in names.items())
                     for group, names in groups.items())


def describe(stage: Path, project: dict, tag: str) -> None:
    info = stage / f"towpath-{project['version']}.dist-info"
    (info / "METADATA").write_text(metadata(project))
    (info / "entry_points.txt").write_text(entry_points(project))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: towpath\n"
                                f"Root-Is-Purelib: false\nTag: {tag}\n")


def pack(stage: Path, wheel: Path, record: str) -> None:
    """Writes the zip with a list of hashes as its last file: pip removes the listed files."""
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(p for p in stage.rglob("*") if p.is_file()):
            name, data = path.relative_to(stage).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            lines.append(f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}")
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
        member = zipfile.ZipInfo(record, EPOCH)
        member.external_attr = 0o100644 << 16
        archive.writestr(member, "\n".join([*lines, f"{record},,", ""]))


def installed(build: Path) -> dict[Path, str]:
    """Programs and libraries that `make install` installs, with their paths in the
    package: the same layout, so that they find each other in the same way."""
    listed = json.loads(call("meson", "introspect", "--installed", build))
    found = {}
    for source, target in listed.items():
        place = re.search(r"/(?:lib/(?:[^/]*-linux-gnu/)?(?P<library>.*\.so[.\d]*)|"
                          r"(?P<program>(?:bin|libexec)/.*))$", target)
        if place is None or not Path(source).is_absolute():
            continue
        if not Path(source).exists():
            fail(f"{source} is not built; run make first")
        path = place["program"] or f"lib/{place['library']}"
        name = call("patchelf", "--print-soname", source).strip() if place["library"] else ""
        found[Path(source)] = str(Path(path).with_name(name)) if name else path
    if f"lib/{ADAPTER}" not in found.values():
        fail(f"{build} has no {ADAPTER}; run make first")
    return found


def stage_binaries(binaries: dict[Path, str], package: Path) -> list[Path]:
    staged = []
    for source, target in binaries.items():
        path = package / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.resolve(), path)
        call("strip", "--strip-unneeded", path)
        staged.append(path)
    return staged


def stage_all(build: Path, stage: Path, project: dict) -> str:
    """Collects the files of the wheel; returns its tag."""
    package = stage / "towpath"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "include" / "towpath", package / "include" / "towpath",
                    ignore=shutil.ignore_patterns("meson.build"))
    binaries = installed(build)
    own = stage_binaries(binaries, package)
    bundle = package / BUNDLE
    bundle.mkdir()
    sources = {name: path for binary in binaries for name, path in resolved(binary).items()}
    names = collect([*binaries], bundle)
    info = stage / f"towpath-{project['version']}.dist-info"
    info.mkdir()
    notices([sources[name] for name in names], info / "licenses")
    for binary in [*own, *names.values()]:
        redirect(binary, bundle, names)
        if binary.name.startswith("libucs-"):
            disable_ucx_modules(binary)
        binary.chmod(0o755)
    glibc = floor([*own, *names.values()])
    return f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_x86_64"


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    build = Path(sys.argv[1]).resolve()
    output = Path(sys.argv[2] if len(sys.argv) == 3 else build / "wheel")
    output.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=output) as folder:
        stage = Path(folder) / "stage"
        stage.mkdir()
        tag = stage_all(build, stage, project)
        describe(stage, project, tag)
        wheel = output / f"towpath-{project['version']}-{tag}.whl"
        pack(stage, wheel, f"towpath-{project['version']}.dist-info/RECORD")
    if wheel.stat().st_size > SIZE_MAX:
        fail(f"{wheel} has {wheel.stat().st_size} bytes, and at most {SIZE_MAX} are allowed")
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
