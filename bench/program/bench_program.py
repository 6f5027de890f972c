"""`tow bench program`: programs in Python, against the same in C and in plain JAX."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1]
sys.path.insert(0, str(BUILD / "bench" / "jax"))

from bench_jax import ANSWER_TIMEOUT_S, Failed, Result, jax_environment, our_environment, whole_environment  # noqa: E402

CHAIN = 128
STAGES = 8
BURST = 16  # As in cases.py.
BURSTS = 8
IMPORT_MS_MAX = 20.0
TRAIN_RUNS = 1000
LOSS_BYTES = 4

HELP = """
Each round of a case runs once on each side, in long-running processes. The ratio is ours to
the peer's, above 1 is better for us: median [lowest-highest round]. `spread` is the 95 %
confidence interval of the median by ranks (all rounds if there are fewer than 6).

case              what                                               target
chain_1_c         a program of 128 calls, each a scalar add and an   0.9
                  all-reduce, 1 device: calls per second, against
                  the same program from C
chain_1_jax       the same against 128 calls in a loop on JAX's own  1.8
                  CPU backend
chain_8_c         the same program on the 8 devices of one worker,   0.9
                  against C
chain_8_jax       against JAX's own backend with 8 devices           6
chain_2x4_c       on 8 devices of 2 workers, against C
chain_2x4_jax     against JAX's own backend with 8 devices
call_1000_nodes   time of Python in a call of a program of 1,000     1/1.1
                  nodes, against one of 10 with the same arrays
call_2_slices     the same with an argument and a result on each of  1/2.5
                  2 slices, against a jax.jit call on one device
                  with as many
call_8_slices     on each of 8 slices                                1/10
pipeline_8        8 stages on 8 devices, 256 runs in flight: stages  8
                  per second, against device_put from device to
                  device on JAX's own backend
array_bytes_last  bytes of arrays between client and cluster in      1
                  1,000 runs of a program that trains on 2 slices,
                  as the worker counts them, against those at which
                  the script looks: the last loss
array_bytes_each  the same for a script that looks at each loss      1
import_towpath    import of the package; limit 20 ms                 1
trace_1000        tracing of a function of 1,000 placed calls until  1/2
                  its nodes are known, against jax.make_jaxpr of it

--quick leaves out cases without a target, unless --case names them.
JAX's own backend runs with NPROC=16: its default thread pool deadlocks on 8 devices.
"""


# ---- processes ----


class Responder:
    """A process that answers lines with seconds, on the socket that is its last argument."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_TIMEOUT_S)
        self.name, self.socket = name, ours
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())], env=whole_environment(environment),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self.lines = ours.makefile("rw", buffering=1)
        self.hear()  # It is ready.

    def hear(self) -> str:
        try:
            line = self.lines.readline()
        except (TimeoutError, ConnectionError):
            raise Failed(f"{self.name}: no answer in {ANSWER_TIMEOUT_S} s") from None
        if not line:
            raise Failed(f"{self.name}: the process ended; its own words are above")
        return line

    def ask(self, line: str) -> float:
        try:
            print(line, file=self.lines)
        except ConnectionError:
            raise Failed(f"{self.name}: the process ended; its own words are above") from None
        return float(self.hear())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.lines.close()
        self.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ours(workers: int, devices: int) -> Responder:
    return Responder(f"ours, {workers} x {devices} devices", [sys.executable, str(HERE / "child.py")],
                     our_environment(workers, devices))


def in_c(workers: int, devices: int) -> Responder:
    command = [str(BUILD / "tow"), "bench", "program_chain", str(workers), str(devices)]
    return Responder(f"C, {workers} x {devices} devices", command, {"TOW_COMPILE_CACHE": "off"})


def peer_script(script: str, devices: int) -> Responder:
    command = [sys.executable, str(BUILD / "bench" / "peers" / script), str(devices)]
    return Responder(f"JAX, {devices} devices", command, jax_environment(devices))


PROCESSES: dict[str, Callable[[], Responder]] = {
    "ours 1x1": lambda: ours(1, 1),
    "ours 1x8": lambda: ours(1, 8),
    "ours 2x4": lambda: ours(2, 4),
    "C 1x1": lambda: in_c(1, 1),
    "C 1x8": lambda: in_c(1, 8),
    "C 2x4": lambda: in_c(2, 4),
    "JAX 1": lambda: peer_script("jax_dispatch.py", 1),
    "JAX 8": lambda: peer_script("jax_dispatch.py", 8),
    "JAX stages": lambda: peer_script("jax_pipeline.py", STAGES),
}


# ---- cases ----


@dataclasses.dataclass(frozen=True)
class Side:
    """Who performs a round, with which line; `{}` is the number of units."""

    process: str
    line: str
    step: int = 1  # Units are asked for in multiples of it.
    each: int = 1  # Counted things in a unit.


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    ours: Side
    theirs: Side
    peer: str
    unit: str = "us"
    bar: float | None = None
    count: int | None = None  # Units of a round; else as many as take a set time.

    @property
    def is_rate(self) -> bool:
        return self.unit == "1/s"


SCALES = {"us": 1e6, "ms": 1e3}
JAX_1 = Side("JAX 1", "chained {}", step=CHAIN)
JAX_8 = Side("JAX 8", "chained {}", step=CHAIN)
JAX_LOOP = "JAX's own CPU backend, calls in a loop"


def chain_side(process: str, case: str) -> Side:
    return Side(process, f"{case} {{}}".strip(), each=CHAIN)


def here(line: str, each: int = 1) -> Side:
    return Side("ours 1x8", line, each=each)


def calls(name: str, ours: str, theirs: str, peer: str, bar: float) -> Case:
    """Time of Python in a call; a unit is a burst of them."""
    return Case(name, here(f"{ours} {{}}", BURST), here(f"{theirs} {{}}", BURST), peer, "us", bar, BURSTS)


CASES = [
    Case("chain_1_c", chain_side("ours 1x1", "chain_1"), chain_side("C 1x1", ""), "the same program from C", "1/s", 0.9),
    Case("chain_1_jax", chain_side("ours 1x1", "chain_1"), JAX_1, JAX_LOOP, "1/s", 1.8),
    Case("chain_8_c", chain_side("ours 1x8", "chain_8"), chain_side("C 1x8", ""), "the same program from C", "1/s", 0.9),
    Case("chain_8_jax", chain_side("ours 1x8", "chain_8"), JAX_8, JAX_LOOP, "1/s", 6.0),
    Case("chain_2x4_c", chain_side("ours 2x4", "chain_8"), chain_side("C 2x4", ""), "the same program from C", "1/s"),
    Case("chain_2x4_jax", chain_side("ours 2x4", "chain_8"), JAX_8, JAX_LOOP, "1/s"),
    calls("call_1000_nodes", "call_1000", "call_10", "a program of 10 nodes", 1 / 1.1),
    calls("call_2_slices", "call_2", "jit_2", "jax.jit on one device", 1 / 2.5),
    calls("call_8_slices", "call_8", "jit_8", "jax.jit on one device", 1 / 10),
    Case("pipeline_8", Side("ours 1x8", "pipeline {}", step=256, each=STAGES),
         Side("JAX stages", f"{STAGES} {{}}", step=32, each=STAGES), "JAX's own CPU backend, device_put", "1/s", 8.0),
    Case("trace_1000", here("trace {}"), here("make_jaxpr {}"), "jax.make_jaxpr", "ms", 1 / 2),
]


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.processes: dict[str, Responder] = {}
        self.round_s = 0.15 if options.quick else 0.5
        self.round_count = 5 if options.quick else 15

    def note(self, text: str) -> None:
        print(f"# {text}", file=sys.stderr, flush=True)

    def show(self, result: Result) -> None:
        if self.options.json:
            print(json.dumps(result.as_json()), flush=True)
        print(result.as_text(), file=sys.stderr if self.options.json else sys.stdout, flush=True)

    def is_chosen(self, name: str) -> bool:
        return self.options.case is None or self.options.case in name

    def is_left_out(self, case: Case) -> bool:
        return self.options.quick and self.options.case is None and case.bar is None

    # -- paired rounds --

    def seconds(self, side: Side, count: int) -> float:
        """Of one counted thing."""
        if side.process not in self.processes:
            self.processes[side.process] = PROCESSES[side.process]()
        return self.processes[side.process].ask(side.line.format(count)) / (count * side.each)

    def warm(self, case: Case, side: Side) -> int:
        """Compiles, and returns how many units make a round."""
        self.seconds(side, side.step)
        if case.count is not None:
            return case.count
        each = self.seconds(side, side.step) * side.each
        return max(1, int(self.round_s / each / side.step)) * side.step

    def run_case(self, case: Case) -> None:
        self.note(f"{case.name}: compiling")
        counts = {side: self.warm(case, side) for side in (case.ours, case.theirs)}
        rounds = []
        for i in range(self.round_count):
            order = [case.ours, case.theirs][:: 1 if i % 2 == 0 else -1]
            rounds.append({side: self.seconds(side, counts[side]) for side in order})
        values = [[self.value(case, r[side]) for r in rounds] for side in (case.ours, case.theirs)]
        self.show(Result(case.name, case.unit, case.peer, *values, case.is_rate, case.bar, bench="program"))

    def value(self, case: Case, seconds: float) -> float:
        return 1 / seconds if case.is_rate else seconds * SCALES[case.unit]

    # -- others --

    def run_import(self) -> None:
        """In new processes: nothing else has been imported."""
        if not self.is_chosen("import_towpath"):
            return
        script = ("import time; start = time.perf_counter(); import towpath; end = time.perf_counter();"
                  "import sys; assert 'jax' not in sys.modules; print((end - start) * 1e3)")
        command = [sys.executable, "-c", script]
        times = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                 for _ in range(self.round_count + 1)][1:]
        self.show(Result("import_towpath", "ms", "limit", times, [IMPORT_MS_MAX] * len(times), bar=1.0,
                         bench="program"))

    def run_bytes(self) -> None:
        looks = {name: count for name, count in (("last", 1), ("each", TRAIN_RUNS))
                 if self.is_chosen(f"array_bytes_{name}")}
        if not looks:
            return
        with tempfile.TemporaryDirectory(prefix="tow-", dir="/tmp") as folder, cluster_in(folder) as address:
            child = Responder("ours, a cluster of 2 devices", [sys.executable, str(HERE / "child.py")],
                              {"JAX_PLATFORMS": "towpath", "TOW_ADDRESS": address})
            with contextlib.closing(child):
                for name, count in looks.items():
                    self.show_bytes(name, child, folder, count * LOSS_BYTES)

    def show_bytes(self, name: str, child: Responder, folder: str, looked: int) -> None:
        self.note(f"array_bytes_{name}: compiling")
        child.ask(f"train_{name} 0")
        before = array_bytes(folder)
        child.ask(f"train_{name} {TRAIN_RUNS}")
        passed = array_bytes(folder) - before
        self.show(Result(f"array_bytes_{name}", "bytes", "bytes that the script looks at", [float(passed)],
                         [float(looked)], bar=1.0, bench="program",
                         more={"beside_bytes": passed - looked, "runs": TRAIN_RUNS}))

    def run(self) -> None:
        for case in CASES:
            if self.is_chosen(case.name) and not self.is_left_out(case):
                self.run_case(case)
        self.close()
        self.run_bytes()
        self.run_import()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.processes.clear()


# ---- a cluster that can be asked ----


def tow(*arguments: str) -> str:
    done = subprocess.run([str(BUILD / "tow"), *arguments], capture_output=True, text=True,
                          env=whole_environment({}), stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failed(f"tow {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def cluster_in(folder: str):
    """One worker with two devices; gives its address."""
    tow("up", "--workers", "1", "--devices", "2", "--folder", folder)
    try:
        yield f"unix:{os.path.join(folder, 'cluster.sock')}"
    finally:
        tow("down", "--folder", folder)


def array_bytes(folder: str) -> int:
    """Bytes of arrays that workers have received from clients and sent to them, so far."""
    report = json.loads(tow("status", "--json", "--folder", folder))
    works = [worker["report"]["work"] for worker in report["workers"]]
    return sum(work["put_bytes_total"] + work["get_bytes_total"] for work in works)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tow bench program", description=__doc__, epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", "--json", action="store_true",
                        help="one JSON object a line; the text goes to standard error")
    parser.add_argument("-q", "--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("-c", "--case", metavar="TEXT", help="only cases whose name contains TEXT")
    bench = Bench(parser.parse_args())
    with contextlib.closing(bench):
        try:
            bench.run()
        except Failed as failed:
            print(f"tow bench program: {failed}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
