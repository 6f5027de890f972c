"""`make install`: the installed files, and a program outside the tree that uses them."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TOW_BUILD_DIR", REPOSITORY / "build"))
PROGRAM = """#include <stdio.h>
#include <towpath/towpath.h>

int main(void)
{
    puts(tow_version());
    return 0;
}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Path:
    if not (BUILD / "build.ninja").exists():
        pytest.skip(f"skipped: {BUILD} is not built; make builds it")
    folder = tmp_path_factory.mktemp("stage")
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet",
                    "--destdir", folder], check=True)
    return folder


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.rglob(pattern)
    return found


def test_program_builds_and_runs_against_the_installed_library(stage, tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    package = only(stage, "towpath.pc")
    environment = os.environ | {"PKG_CONFIG_PATH": str(package.parent),
                                "PKG_CONFIG_SYSROOT_DIR": str(stage)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "towpath"],
                           env=environment, capture_output=True, text=True,
                           check=True).stdout.split()
    # pkg-config omits system folders; the stage is not one.
    flags += [f"-I{only(stage, 'towpath.h').parents[1]}",
              f"-L{package.parents[1]}"]
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "program.c", "-o",
                    "program", *flags], cwd=tmp_path, check=True)
    library_path = str(package.parents[1])
    printed = subprocess.run(
        [tmp_path / "program"], env={"LD_LIBRARY_PATH": library_path},
        capture_output=True, text=True, check=True).stdout
    version = subprocess.run(["pkg-config", "--modversion", "towpath"],
                             env=environment, capture_output=True, text=True,
                             check=True).stdout
    assert printed == version


def test_library_exports_versioned_public_names_only(stage):
    library = only(stage, "libtowpath.so.*.*")
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library],
        capture_output=True, text=True, check=True).stdout
    functions = [line.split()[2] for line in listed.splitlines()
                 if line.split()[1] in "TtWDB"]
    assert functions
    for name in functions:
        assert name.startswith("tow_") and "@@TOWPATH_" in name, name


def test_installed_command_runs(stage):
    result = subprocess.run([only(stage, "bin/tow"), "version"],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
