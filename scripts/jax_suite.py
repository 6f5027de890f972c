"""Run JAX's own tests on Towpath, and compare with the same tests on JAX's CPU backend.

    make jax-suite JAX_SOURCE=/path/to/jax          all but excluded files
    scripts/jax_suite.py --source /path/to/jax pjit_test.py lax_test.py

Each file runs in a process of its own with a cluster of its own. A test that fails
here and not on JAX's CPU backend is a difference: known (tests/jax_suite/known.toml
gives the reason) or unknown. Exit status: 0 without unknown differences, 1 with some,
2 if the suite could not run. See docs/jax_suite.md.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "jax_suite"
OURS, PEER = "towpath", "cpu"
# As JAX tests accelerators: the accelerator first, then the CPU backend.
PLATFORMS = {OURS: "towpath,cpu", PEER: "cpu"}
# How often a file is restarted after its process has died or hung.
RESTARTS_MAX = 40
OUTCOMES = ("passed", "failed", "skipped", "died", "hung")
BAD = ("failed", "died", "hung")


@dataclasses.dataclass
class Result:
    outcome: str
    text: str = ""
    seconds: float = 0.0


Results = dict[str, Result]


# ---------------------------------------------------------------- one file


def environment(options: argparse.Namespace, on: str, folder: Path) -> dict[str, str]:
    own = {
        "JAX_PLATFORMS": PLATFORMS[on],
        "JAX_NUM_GENERATED_CASES": str(options.cases),
        "JAX_SKIP_SLOW_TESTS": "1",
        "JAX_TRACEBACK_FILTERING": "off",
        "JAX_SUITE_RECORD": str(folder / "record"),
        "JAX_SUITE_DONE": str(folder / "done"),
        "JAX_SUITE_ONLY": str(folder / "only") if (folder / "only").exists() else "",
        "JAX_SUITE_EVERY": str(options.every),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "python"), str(SUITE), options.packages,
                          os.environ.get("PYTHONPATH")])),
    }
    if on == OURS:
        own["TOW_LOCAL"] = options.cluster
        # So that tests use the tolerances of a CPU.
        own["JAX_SUITE_DEVICE"] = options.device
    else:
        own["NPROC"] = "16"  # With fewer threads JAX's CPU backend deadlocks at 8 devices.
        own["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    return {k: v for k, v in (os.environ | own).items() if v}


def command(options: argparse.Namespace, path: Path) -> list[str]:
    return [options.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "record",
            "-c", str(options.source / "pyproject.toml"), "--rootdir", str(options.source),
            *(["-k", options.k] if options.k else []), str(path)]


class Reader:
    """Reads the events that the pytest plugin (record.py) has written so far."""

    def __init__(self, record: Path) -> None:
        self.record, self.offset = record, 0
        self.results: Results = {}
        self.running: str | None = None
        self.since = time.monotonic()
        self.count = 0

    def read(self) -> None:
        with open(self.record, "rb") as lines:
            lines.seek(self.offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                self._take(json.loads(line))

    def _take(self, event: dict) -> None:
        self.since = time.monotonic()
        if event["event"] == "collected":
            self.count = event["count"]
        elif event["event"] == "start":
            self.running = event["test"]
        else:
            self._finish(event)

    def _finish(self, event: dict) -> None:
        known = self.results.get(event["test"])
        if known is None or known.outcome not in BAD:
            self.results[event["test"]] = Result(
                event["event"], event.get("text", ""), event.get("seconds", 0.0))
        self.running = None

    def close(self, outcome: str, text: str) -> None:
        """Records the outcome of a process that has died or was ended."""
        name = self.running or f"{self.record.parent.name}::process"
        self.results[name] = Result(outcome, text, time.monotonic() - self.since)
        self.running = None


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and everything it has started, which is its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Interrupted(Exception):
    pass


interrupted = threading.Event()


def watch(process: subprocess.Popen[bytes], reader: Reader, limit_s: float) -> str | None:
    """Waits until the process ends or a test takes too long. Returns "died", "hung" or None."""
    while True:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            pass
        reader.read()
        if interrupted.is_set():
            raise Interrupted
        if process.returncode is not None:
            # 2: files that could not be collected, which are recorded as failures.
            return None if process.returncode in (0, 1, 2, 5) else "died"
        # Collecting a large file may take longer than any test.
        if time.monotonic() - reader.since > (limit_s if reader.count else 5 * limit_s):
            return "hung"


def run_once(options: argparse.Namespace, path: Path, on: str, reader: Reader,
             folder: Path) -> str | None:
    (folder / "done").write_text("\n".join(reader.results))
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            command(options, path), env=environment(options, on, folder), stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder,
            start_new_session=True)
        reader.since = time.monotonic()
        try:
            how = watch(process, reader, options.timeout)
        finally:
            end(process)
    if how is not None:
        tail = (folder / "output").read_bytes()[-6000:].decode(errors="replace")
        reader.close(how, f"exit status {process.returncode}\n{tail}")
    return how


def run_file(options: argparse.Namespace, path: Path, on: str,
             only: set[str] | None = None) -> Results:
    """Runs a file; restarts it after each test in which the process died or hung."""
    with tempfile.TemporaryDirectory(prefix="jax-suite-") as made:
        folder = Path(made) / path.name
        folder.mkdir()
        (folder / "record").touch()
        if only is not None:
            (folder / "only").write_text("\n".join(only))
        reader = Reader(folder / "record")
        for _ in range(RESTARTS_MAX):
            before = len(reader.results)
            if run_once(options, path, on, reader, folder) is None:
                break
            if len(reader.results) == before:
                break
        return reader.results


# ---------------------------------------------------------------- differences


@dataclasses.dataclass
class Known:
    why: str
    pattern: str
    used: bool = False


def load_known(path: Path) -> list[Known]:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Known(group["why"], pattern) for group in table.get("difference", [])
            for pattern in group["tests"]]


def reason_for(test: str, known: Iterable[Known]) -> str | None:
    """The reason for a failed test; marks all matching entries as used."""
    found = [entry for entry in known if fnmatch.fnmatchcase(test, entry.pattern)]
    for entry in found:
        entry.used = True
    return found[0].why if found else None


@dataclasses.dataclass
class FileReport:
    name: str
    ours: Results
    peer: Results | None
    known: dict[str, str] = dataclasses.field(default_factory=dict)
    unknown: dict[str, Result] = dataclasses.field(default_factory=dict)
    both: list[str] = dataclasses.field(default_factory=list)

    def counts(self, of: Results | None) -> dict[str, int]:
        found = collections.Counter(r.outcome for r in (of or {}).values())
        return {outcome: found[outcome] for outcome in OUTCOMES}

    def judge(self, known: list[Known]) -> None:
        for test, result in self.ours.items():
            if result.outcome not in BAD:
                continue
            why = reason_for(test, known)
            if self.peer and test in self.peer and self.peer[test].outcome in BAD:
                self.both.append(test)
            elif why is not None:
                self.known[test] = why
            else:
                self.unknown[test] = result

    def as_json(self) -> dict:
        return {
            "file": self.name,
            OURS: self.counts(self.ours),
            PEER: self.counts(self.peer) if self.peer is not None else None,
            "known": self.known,
            "failed_on_both": self.both,
            "unknown": {test: dataclasses.asdict(r) for test, r in self.unknown.items()},
        }


def unused(known: list[Known], reports: list[FileReport]) -> list[Known]:
    """Entries for files that ran completely, which matched no failed test."""
    ran = {report.name for report in reports}
    return [entry for entry in known if not entry.used
            and any(fnmatch.fnmatchcase(name, entry.pattern.split("::")[0]) for name in ran)]


# ---------------------------------------------------------------- output


def row(name: str, ours: dict[str, int], peer: dict[str, int] | None,
        known: int, unknown: int) -> str:
    def three(counts: dict[str, int] | None) -> str:
        if counts is None:
            return "| | | "
        bad = sum(counts[outcome] for outcome in BAD)
        return f"| {counts['passed']} | {bad} | {counts['skipped']} "
    return f"| {name} {three(ours)}{three(peer)}| {known} | {unknown} |"


def table(reports: list[FileReport]) -> Iterator[str]:
    yield "| file | passed | failed | skipped | cpu passed | failed | skipped | known | unknown |"
    yield "|---|---|---|---|---|---|---|---|---|"
    sums: list[collections.Counter[str]] = [collections.Counter(), collections.Counter()]
    for r in reports:
        ours, peer = r.counts(r.ours), r.counts(r.peer) if r.peer is not None else None
        sums[0].update(ours)
        sums[1].update(peer or {})
        yield row(r.name.removesuffix("_test.py"), ours, peer, len(r.known), len(r.unknown))
    yield row("all", sums[0], sums[1] if any(r.peer is not None for r in reports) else None,
              sum(len(r.known) for r in reports), sum(len(r.unknown) for r in reports))


def first_error(text: str) -> str:
    """The first line of the error in a traceback of pytest, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    messages = [line for line in errors if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)]
    return (messages or errors[-1:] or lines[-1:] or [""])[0][:300]


def summary(reports: list[FileReport], known: list[Known], whole: bool) -> Iterator[str]:
    yield from table(reports)
    for report in reports:
        for test, result in report.unknown.items():
            yield f"unknown: {test}: {result.outcome}: {first_error(result.text)}"
    if whole:
        for entry in unused(known, reports):
            yield f"matches nothing: {entry.pattern}"


def describe(options: argparse.Namespace) -> dict[str, object]:
    code = "from importlib.metadata import version as v; print(v('jax'), v('jaxlib'))"
    jax, jaxlib = subprocess.run([options.python, "-c", code], capture_output=True, text=True,
                                 check=True).stdout.split()
    return {"jax": jax, "jaxlib": jaxlib, "cores": os.cpu_count(),
            "machine": platform.machine(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "cluster": options.cluster, "cases": options.cases, "every": options.every}


# ---------------------------------------------------------------- the command


def chosen_files(options: argparse.Namespace) -> list[Path]:
    folder = options.source / "tests"
    if options.files:
        named = [folder / name for name in options.files]
        missing = [str(path) for path in named if not path.is_file()]
        if missing:
            raise SystemExit(f"no such files: {', '.join(missing)}")
        return named
    table = tomllib.loads(options.known.read_text(encoding="utf-8"))
    left_out = table.get("left_out", {})
    return [path for path in sorted(folder.glob("*_test.py")) if path.name not in left_out]


def run_both(options: argparse.Namespace, path: Path, known: list[Known]) -> FileReport:
    began = time.monotonic()
    ours = run_file(options, path, OURS)
    bad = {test for test, result in ours.items() if result.outcome in BAD}
    peer = None
    if options.peer == "all" or (options.peer == "failed" and bad):
        peer = run_file(options, path, PEER, bad if options.peer == "failed" else None)
    report = FileReport(path.name, ours, peer)
    report.judge(known)
    counts = report.counts(ours)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n)
    print(f"{path.name}: {outcomes or 'no tests'}; {len(report.known)} known differences, "
          f"{len(report.unknown)} unknown; {time.monotonic() - began:.0f} s",
          file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(report.as_json()), flush=True)
    return report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="jax_suite.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="file names in tests/ of the checkout; default: all"
                        " but those that known.toml excludes")
    parser.add_argument("--source", type=Path, required=True,
                        help="a checkout of JAX, of the installed version")
    parser.add_argument("-k", metavar="EXPRESSION", help="pytest's -k: only tests whose names match")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every Nth test")
    parser.add_argument("--cases", type=int, default=1,
                        help="generated cases of each parametrized test (1)")
    parser.add_argument("--peer", choices=("all", "failed", "none"), default="all",
                        help="which tests also run on JAX's CPU backend (all)")
    parser.add_argument("--jobs", type=int, default=1, help="files to run in parallel (1)")
    parser.add_argument("--timeout", type=float, default=180, metavar="SECONDS",
                        help="time limit of one test (180)")
    parser.add_argument("--cluster", default="workers=1,devices=8", help="TOW_LOCAL of each file")
    parser.add_argument("--device", default="cpu", help="device type reported to the tests"
                        " (cpu, because XLA's CPU compiler is used; empty: towpath)")
    parser.add_argument("--known", type=Path, default=SUITE / "known.toml",
                        help="file of known differences and excluded files")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with JAX")
    parser.add_argument("--packages", type=os.path.abspath,
                        help="a folder of additional packages")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file when it is done")
    options = parser.parse_args(arguments)
    options.source = options.source.resolve()
    if not (options.source / "tests" / "api_test.py").is_file():
        parser.error(f"{options.source} is not a checkout of JAX: it has no tests/api_test.py")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    known = load_known(options.known)
    files = chosen_files(options)
    about = describe(options)
    reports: list[FileReport] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for report in pool.map(lambda path: run_both(options, path, known), files):
                reports.append(report)
        except KeyboardInterrupt:
            interrupted.set()
            pool.shutdown(cancel_futures=True)
            print("interrupted: the results below are of completed files only", file=sys.stderr)
    whole = options.every == 1 and not options.k
    if options.json:
        print(json.dumps(about | {"matches_nothing": [e.pattern for e in unused(known, reports)]
                                  if whole else []}))
    else:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
        print("\n".join(summary(reports, known, whole)))
    if interrupted.is_set():
        return 2
    return 1 if any(report.unknown for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
