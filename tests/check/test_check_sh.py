"""scripts/check.sh: every check can fail, reports it, and names its log."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD_C = "int main(void)\n{\n    return 0;\n}\n"
RACE_C = """#include <pthread.h>

static int shared;

static void *add(void *unused)
{
    (void)unused;
    for (int i = 0; i < 100000; i++)
        shared++;
    return NULL;
}

int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, add, NULL);
    add(NULL);
    pthread_join(thread, NULL);
    return 0;
}
"""
OVERFLOW_C = """#include <stdlib.h>

int main(int argc, char **argv)
{
    (void)argv;
    char *bytes = malloc(4);
    bytes[3 + argc] = 1;
    int result = bytes[3 + argc] - 1;
    free(bytes);
    return result;
}
"""
UNDEFINED_C = """int main(int argc, char **argv)
{
    (void)argv;
    int big = 2147483647;
    return big + argc == 0;
}
"""
NULL_C = """int main(void)
{
    int *pointer = 0;
    return *pointer;
}
"""
UNUSED_C = "int main(void)\n{\n    int unused;\n    return 0;\n}\n"
MESON = """project('sample', 'c', default_options: ['werror=true', 'warning_level=2'])
test('sample', executable('sample', 'src/tool/sample.c',
     dependencies: dependency('threads')))
custom_target('tow', input: 'tow.sh', output: 'tow', command: ['cp', '@INPUT@', '@OUTPUT@'],
              build_by_default: true)
"""
TOOLS = {"format": "clang-format", "shell": "shellcheck", "cppcheck": "cppcheck",
         "clang": "clang", "tidy": "clang-tidy", "sim": "clang"}


def tow_with_digest(digest: str) -> str:
    """A substitute for `tow` whose simulations have this digest."""
    return f"""#!/bin/sh\necho '{{"seed": 1, "digest": "{digest}"}}'\n"""


class Sample:
    """A tree with one program, checked by the real script."""

    def __init__(self, root: Path):
        self.root = root
        shutil.copytree(REPOSITORY / "scripts", root / "scripts",
                        ignore=shutil.ignore_patterns("__pycache__"))
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(REPOSITORY / name, root)
        (root / "meson.build").write_text(MESON)
        (root / ".venv/bin").mkdir(parents=True)
        (root / ".venv/bin/python").symlink_to(sys.executable)
        for folder in ("include", "bench", "tests"):
            (root / folder).mkdir()
        self.write(".ci/run", "#!/bin/sh\n", 0o755)
        self.write("build/tow", tow_with_digest("1f"), 0o755)
        self.write("tow.sh", tow_with_digest("1f"), 0o755)
        self.write(".gitignore", "/build*/\n/.venv/\n__pycache__/\n")
        self.program(GOOD_C)
        subprocess.run(["git", "init", "-q", root], check=True)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def program(self, source: str) -> None:
        self.write("src/tool/sample.c", source)

    def check(self, *names: str):
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("CC", "MAKEFLAGS", "MAKELEVEL")}
        return subprocess.run(
            [self.root / "scripts/check.sh", *names], cwd=self.root, text=True,
            env=environment, capture_output=True, check=False)


@pytest.fixture
def sample(tmp_path) -> Sample:
    return Sample(tmp_path)


def need_tool(check: str) -> None:
    tool = TOOLS.get(check)
    if tool and shutil.which(tool) is None:
        pytest.skip(f"skipped: {tool} is not installed; make check installs it")


BAD = {
    "format": lambda s: s.program("int main(void) { return  0; }\n"),
    "shell": lambda s: s.write("scripts/bad.sh", "#!/bin/bash\nrm $1/*\n"),
    "layers": lambda s: s.write("src/base/a.c", '#include "tool/b.h"\n'),
    "symbols": lambda s: [s.write(f"src/{module}/a.h", "#define TOW_MAX 1\n") for module in ("base", "wire")],
    "todo": lambda s: s.program("/* TO" + "DO */\n" + GOOD_C),
    "purity": lambda s: s.write("src/sched/a.c", "#include <time.h>\n"),
    "paths": lambda s: s.write("README.md", "see /" + "root/notes\n"),
    "cppcheck": lambda s: s.program(NULL_C),
    "clang": lambda s: s.program(UNUSED_C),
    "asan": lambda s: s.program(OVERFLOW_C),
    "asan_fast": lambda s: s.program(OVERFLOW_C),
    "tsan": lambda s: s.program(RACE_C),
    "sim": lambda s: s.write("build/tow", "#!/bin/sh\nexit 3\n", 0o755),
}


def test_good_tree_passes(sample):
    names = [name for name in BAD
             if name not in TOOLS or shutil.which(TOOLS[name])]
    result = sample.check(*names)
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == f"all {len(names)} checks passed"


@pytest.mark.parametrize("name", BAD)
def test_check_can_fail(sample, name):
    need_tool(name)
    BAD[name](sample)
    result = sample.check(name)
    assert result.returncode != 0
    assert result.stdout.startswith(f"{name:9} FAIL")
    assert f"build-logs/check-{name}.log" in result.stdout
    assert f"1 of 1 checks failed: {name}" in result.stderr


def test_undefined_behaviour_fails(sample):
    sample.program(UNDEFINED_C)
    assert sample.check("asan").returncode != 0


def test_different_digests_of_two_compilers_fail(sample):
    need_tool("sim")
    assert sample.check("sim").returncode == 0
    sample.write("tow.sh", tow_with_digest("2f"), 0o755)
    assert sample.check("sim").returncode != 0


def test_tidy_can_fail(sample):
    need_tool("clang")
    need_tool("tidy")
    assert sample.check("tidy").returncode == 0  # It does not depend on earlier checks.
    sample.program(NULL_C)
    result = sample.check("tidy")
    assert result.returncode != 0 and "clang-analyzer" in result.stdout


def test_one_failure_does_not_hide_the_others(sample):
    BAD["paths"](sample)
    BAD["todo"](sample)
    result = sample.check("todo", "layers", "paths")
    verdicts = [line.split()[:2] for line in result.stdout.splitlines()
                if line and not line.startswith(" ")]
    assert verdicts == [["todo", "FAIL"], ["layers", "pass"], ["paths", "FAIL"]]


def test_unknown_check_is_named(sample):
    result = sample.check("speling")
    assert result.returncode != 0
    assert "no check is called 'speling'" in result.stderr
