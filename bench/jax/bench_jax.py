"""`tow bench jax`: unmodified JAX on a local cluster, against JAX's own CPU backend."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ANSWER_TIMEOUT_S = 180
CHAIN = 128
STARTUP_S = 0.5

HELP = """
Each round of a case runs once on each backend, in long-running processes. The ratio is
ours to the peer's, above 1 is better for us: median [lowest-highest round]. `spread` is
the 95 % confidence interval of the median by ranks (all rounds if there are fewer than 6).

case              what                                               target
fig5_chained_1    scalar add and all-reduce, 1 device; 128 calls     0.7
                  without waiting
fig5_chained_8    the same on the 8 devices of an embedded cluster,  5
                  in one process, as with JAX's own backend
fig5_opbyop_8     the same, each call waited for                     4
fig5_chained_2x4  chained, 8 devices in 2 processes
fig5_opbyop_2x4   op by op, 8 devices in 2 processes
train_10m_8       a training step, 10.9 M parameters, 8 devices,     1.0
                  batch 8 of 128 tokens, data and tensor parallel
train_10m_islands a training step on two islands of 4 devices,       0.97
                  against one island of 8 with the same mesh
execute_50x50_4   a call with 50 arguments and 50 results, 4         0.5
                  devices, against the same call with a plugin that
                  executes nothing: the cost of JAX
execute_500x500_4 the same with 500 of each
delete_5000       delete one of 5,000 16-byte arrays
delete_500x8      delete one of 500 arrays with a shard on each of 8
                  devices
threads_8         calls of 8 threads, each with its own function and
                  device; one_thread_per_s: of one thread alone
device_put_64MiB  against memcpy into memory written before          0.7
asarray_64MiB     the same; JAX allocates new memory each time       0.7
device_put_16B    128 at a time, against JAX's own backend           0.67
asarray_16B       one at a time, against JAX's own backend, which    0.67
                  shares its memory without a copy
startup           extra time of a one-line script over JAX's own     1
                  backend, with an empty compile cache; limit 0.5 s.
                  kept_s (not with --quick): with a warm cache
idle_memory       memory of an idle cluster of 8 devices without     1
                  XLA's files; limit 60 MiB
budget_*          where the time of a call goes: us on the user's thread in JAX and in the
                  plugin, by function; CPU us in each role (a separate run, under a meter
                  that costs about 20 ns per function)

--quick leaves out two islands and cases without a target, unless --case names them.
JAX's own backend runs with NPROC=16: its default thread pool deadlocks on 8 devices.
"""


# ---- processes ----


class Failed(Exception):
    pass


def our_environment(workers: int, devices: int, islands: int = 1) -> dict[str, str]:
    """An empty compile cache: neither an earlier run nor the user filled it."""
    size = f"workers={workers},devices={devices}"
    return {"JAX_PLATFORMS": "towpath", "TOW_COMPILE_CACHE": "off",
            "TOW_LOCAL": size if islands == 1 else f"{size},islands={islands}"}


def jax_environment(devices: int) -> dict[str, str]:
    return {"JAX_PLATFORMS": "cpu", "NPROC": "16",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


def plugin_library() -> pathlib.Path:
    """TOW_PJRT_LIBRARY, or the plugin of the build folder that holds this file."""
    given = os.environ.get("TOW_PJRT_LIBRARY")
    built = HERE.parents[1] / "src" / "pjrt" / "libtowpath_pjrt.so"
    path = pathlib.Path(given) if given else built
    if not path.is_file():
        raise Failed(f"{path} is not there: run `make`, and this as `tow bench jax`")
    return path


def metered_environment(workers: int, devices: int) -> dict[str, str]:
    meter = HERE / "pjrt_meter.so"
    if not meter.is_file():
        raise Failed(f"{meter} is not there: run `make`")
    return our_environment(workers, devices) | {
        "TOW_PJRT_LIBRARY": str(meter), "TOW_METER_LIBRARY": str(plugin_library())}


def whole_environment(own: dict[str, str]) -> dict[str, str]:
    """Without TOW_ADDRESS, which may name a cluster in use."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("TOW_ADDRESS", "XLA_FLAGS")}
    return inherited | {"TOW_PJRT_LIBRARY": str(plugin_library())} | own


class Child:
    """A backend in its own process."""

    def __init__(self, name: str, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_TIMEOUT_S)
        self.name, self.socket = name, ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "child.py"), str(theirs.fileno())],
                env=whole_environment(environment), pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self.lines = ours.makefile("rw", buffering=1)
        self.hear()

    def hear(self) -> dict:
        try:
            line = self.lines.readline()
        except TimeoutError:
            raise Failed(f"{self.name}: no answer in {ANSWER_TIMEOUT_S} s") from None
        if not line:
            raise Failed(f"{self.name}: the process ended; its own words are above")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, **request) -> dict:
        print(json.dumps(request), file=self.lines)
        return self.hear()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Children:
    """The processes started so far, by name."""

    ENVIRONMENTS = {
        "ours, 1 device": lambda: our_environment(1, 1),
        "JAX, 1 device": lambda: jax_environment(1),
        "metered, 1 device": lambda: metered_environment(1, 1),
        "ours, 8 devices": lambda: our_environment(1, 8),
        "ours in 2 processes, 8 devices": lambda: our_environment(2, 4),
        "JAX, 8 devices": lambda: jax_environment(8),
        "metered, 8 devices": lambda: metered_environment(1, 8),
        "ours on two islands, 8 devices": lambda: our_environment(2, 4, islands=2),
    }

    def __init__(self) -> None:
        self.started: dict[str, Child] = {}

    def get(self, who: str, devices: int) -> Child:
        name = f"{who}, {devices} device{'s' if devices > 1 else ''}"
        if name not in self.started:
            self.started[name] = Child(name, self.ENVIRONMENTS[name]())
        return self.started[name]

    def close(self) -> None:
        for child in self.started.values():
            child.close()
        self.started.clear()


# ---- results ----


@dataclasses.dataclass
class Result:
    """Rounds of one case, in its unit."""

    case: str
    unit: str
    peer: str
    ours: list[float]
    theirs: list[float]
    is_rate: bool = False
    bar: float | None = None
    more: dict = dataclasses.field(default_factory=dict)
    bench: str = "jax"

    def ratios(self) -> list[float]:
        pairs = zip(self.ours, self.theirs, strict=True)
        return sorted(a / b if self.is_rate else b / a for a, b in pairs)

    def as_json(self) -> dict:
        ratios = self.ratios()
        line = dict(
            bench=self.bench, case=self.case, value=statistics.median(self.ours), unit=self.unit,
            peer=self.peer, peer_value=statistics.median(self.theirs),
            ratio=statistics.median(ratios), spread=median_interval(ratios), simulated=False,
            value_low=min(self.ours), value_high=max(self.ours), ratio_low=ratios[0],
            ratio_high=ratios[-1], rounds=len(ratios))
        return line | ({} if self.bar is None else {"bar": self.bar}) | self.more

    def as_text(self) -> str:
        line = self.as_json()
        text = (f"{self.bench:6} {self.case:26} {line['value']:11.4g} {self.unit:6}  "
                f"peer {line['peer_value']:11.4g}  ratio {line['ratio']:6.2f} "
                f"[{line['ratio_low']:.2f}-{line['ratio_high']:.2f}]")
        if self.bar is not None:
            text += f"  bar {self.bar:.2f} {verdict(line, self.bar)}"
        return f"{text}  ({self.peer})"


def verdict(line: dict, bar: float) -> str:
    if line["ratio"] >= bar:
        return "met"
    return "within the spread" if line["ratio_high"] >= bar else "missed"


def median_interval(ordered: list[float]) -> list[float]:
    """The 95 % interval by ranks: it leaves out `cut` rounds at each end."""
    n, cut, below = len(ordered), 0, 0.0
    chance = 0.5**n
    while below + chance <= 0.025 and cut < n // 2:
        below += chance
        chance *= (n - cut) / (cut + 1)
        cut += 1
    cut = max(cut - 1, 0)
    return [ordered[cut], ordered[n - 1 - cut]]


# ---- cases ----


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    devices: int
    unit: str = "us"
    # "JAX", "nothing executed", "one island", or a time in our own reply
    peer: str = "JAX"
    step: int = 1  # counts are multiples of it
    who: str = "ours"
    bar: float | None = None
    count_max: int = 1 << 20
    rounds_quick: int = 3  # 0: --quick leaves it out

    @property
    def is_rate(self) -> bool:
        return self.unit == "1/s"


CASES = [
    Case("fig5_chained_1", 1, "1/s", step=CHAIN, bar=0.7),
    Case("fig5_chained_8", 8, "1/s", step=CHAIN, bar=5),
    Case("fig5_opbyop_8", 8, "1/s", bar=4),
    Case("fig5_chained_2x4", 8, "1/s", who="ours in 2 processes", step=CHAIN, rounds_quick=0),
    Case("fig5_opbyop_2x4", 8, "1/s", who="ours in 2 processes", rounds_quick=0),
    Case("train_10m_8", 8, "ms", bar=1.0, count_max=3, rounds_quick=2),
    Case("train_10m_islands", 8, "ms", who="ours on two islands", peer="one island", bar=0.97,
         count_max=3, rounds_quick=0),
    Case("execute_50x50_4", 8, peer="nothing executed", bar=0.5, count_max=512),
    Case("execute_500x500_4", 8, peer="nothing executed", count_max=64, rounds_quick=0),
    Case("delete_5000", 1, step=5000, count_max=5000, rounds_quick=0),
    Case("delete_500x8", 8, step=500, count_max=500, rounds_quick=0),
    Case("threads_8", 8, "1/s", step=CHAIN, rounds_quick=0),
    Case("device_put_64MiB", 1, "ms", peer="memcpy", bar=0.7, count_max=20),
    Case("asarray_64MiB", 1, "ms", peer="memcpy", bar=0.7, count_max=20),
    Case("device_put_16B", 1, step=CHAIN, bar=1 / 1.5),
    Case("asarray_16B", 1, bar=1 / 1.5, count_max=4096),
]
SCALES = {"us": 1e6, "ms": 1e3, "s": 1.0}
PEER_NAMES = {"JAX": "JAX's own CPU backend", "one island": "one island of 8 devices",
              "memcpy": "memcpy by numpy, same process",
              "nothing executed": "JAX alone: a plugin that executes nothing"}


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.children = Children()
        self.round_s = 0.1 if options.quick else 0.5

    def note(self, text: str) -> None:
        print(f"# {text}", file=sys.stderr, flush=True)

    def show(self, result: Result) -> None:
        if self.options.json:
            print(json.dumps(result.as_json()), flush=True)
        print(result.as_text(), file=sys.stderr if self.options.json else sys.stdout, flush=True)

    def is_chosen(self, name: str) -> bool:
        return self.options.case is None or self.options.case in name

    def is_left_out(self, case: Case) -> bool:
        return self.options.quick and self.options.case is None and case.rounds_quick == 0

    # -- paired rounds --

    def seconds(self, child: Child, case: Case, count: int) -> dict:
        return {k: v / count if k != "loss" else v
                for k, v in child.ask(do="run", case=case.name, count=count).items()}

    def warm(self, child: Child, case: Case) -> int:
        """Compiles, and returns how many calls make a round."""
        self.note(f"{case.name}: compiling on {child.name}")
        each = self.seconds(child, case, case.step)["value"]
        count = int(self.round_s / each / case.step) * case.step
        return max(case.step, min(count, case.count_max))

    def value(self, case: Case, seconds: float) -> float:
        return 1 / seconds if case.is_rate else seconds * SCALES[case.unit]

    def run_case(self, case: Case) -> None:
        ours = self.children.get(case.who, case.devices)
        counts = {ours: self.warm(ours, case)}
        beside = self.beside(case)
        if beside is not None:
            counts[beside] = self.warm(beside, case)
        round_count = case.rounds_quick or 3 if self.options.quick else 15
        rounds = [self.round(case, counts, ours, beside, i) for i in range(round_count)]
        result = Result(case.name, case.unit, PEER_NAMES[case.peer],
                        [self.value(case, r[0]) for r in rounds],
                        [self.value(case, r[1]) for r in rounds],
                        case.is_rate, case.bar)
        for name in rounds[0][2]:
            result.more[name] = statistics.median(r[2][name] for r in rounds)
        self.show(result)

    def beside(self, case: Case) -> Child | None:
        """The process of the peer; None: the peer runs in our process."""
        if case.peer == "JAX":
            return self.children.get("JAX", case.devices)
        if case.peer == "one island":
            return self.children.get("ours in 2 processes", case.devices)
        if case.peer != "nothing executed":
            return None
        child = self.children.get("metered", case.devices)
        child.ask(do="fake", on=False)  # The case is compiled with real executions.
        child.ask(do="run", case=case.name, count=case.step)
        child.ask(do="fake", on=True)
        return child

    def round(self, case: Case, counts: dict, ours: Child, beside: Child | None, i: int):
        """Seconds of ours and of the peer, and other values of the replies."""
        order = [ours] if beside is None else [ours, beside][:: 1 if i % 2 == 0 else -1]
        said = {child: self.seconds(child, case, counts[child]) for child in order}
        mine = said[ours]
        if beside is None:
            fresh = {"fresh_copy_" + case.unit: mine["fresh"] * SCALES[case.unit]}
            return mine["value"], mine[case.peer], fresh
        more = {}
        if "loss" in mine:
            more = {"loss": mine["loss"], "peer_loss": said[beside]["loss"]}
        if "finished" in mine:
            more = {"finished_us": mine["finished"] * 1e6}
        if "one" in mine:
            more = {"one_thread_per_s": 1 / mine["one"],
                    "peer_one_thread_per_s": 1 / said[beside]["one"]}
        return mine["value"], said[beside]["value"], more

    # -- where the time goes --

    def show_budget(self, case_name: str, devices: int) -> None:
        name = f"budget_{case_name}"
        if not self.is_chosen(name):
            return
        case = next(c for c in CASES if c.name == case_name)
        child = self.children.get("metered", devices)
        child.ask(do="fake", on=False)
        count = self.warm(child, case)
        plain = self.seconds(self.children.get("ours", devices), case, count)
        said = child.ask(do="budget", case=case_name, count=count)
        child.ask(do="fake", on=True)
        alone = self.seconds(child, case, count)
        child.ask(do="fake", on=False)
        us = 1e6 / count
        more = self.budget_fields(said, us) | {"jax_alone_us": alone.get("calling", alone["value"]) * 1e6}
        self.show(Result(name, "us", "the same without the meter", [said["times"]["value"] * us],
                         [plain["value"] * 1e6], more=more))
        self.note(budget_text(name, more))

    def budget_fields(self, said: dict, us: float) -> dict:
        times, functions = said["times"], said["functions"]
        calling = times.get("calling", times["value"])
        # Buffer_ReadyEvent waits, which happens after the loop of calls.
        inside = sum(s for name, (_, s) in functions.items() if name != "Buffer_ReadyEvent")
        top = sorted(functions.items(), key=lambda f: -f[1][1])[:8]
        return {
            "calling_us": calling * us, "waiting_us": (times["value"] - calling) * us,
            "plugin_us": inside * us, "jax_us": (calling - inside) * us,
            **{f"cpu_{role}_us": seconds * us for role, seconds in said["cpu"].items()},
            "functions": {name: {"calls": round(calls * us * 1e-6, 2), "us": round(s * us, 3)}
                          for name, (calls, s) in top}}

    # -- whole processes --

    def script_seconds(self, environment: dict[str, str]) -> float:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(HERE / "startup.py")], capture_output=True,
                              env=whole_environment(environment), text=True,
                              timeout=ANSWER_TIMEOUT_S)
        if done.stdout != "2.0\n":
            raise Failed(f"startup: {done.stderr.strip()}")
        return time.perf_counter() - start

    def run_startup(self) -> None:
        if not self.is_chosen("startup"):
            return
        backends = [our_environment(1, 8), jax_environment(8)]
        if not self.options.quick:
            for environment in backends:  # The file cache.
                self.script_seconds(environment)
        pairs = []
        for i in range(2 if self.options.quick else 7):
            order = backends[:: 1 if i % 2 == 0 else -1]
            taken = [self.script_seconds(environment) for environment in order]
            pairs.append(taken[:: 1 if i % 2 == 0 else -1])
        added = [max(ours - theirs, 1e-3) for ours, theirs in pairs]
        more = {"script_s": statistics.median(p[0] for p in pairs),
                "jax_script_s": statistics.median(p[1] for p in pairs)}
        if not self.options.quick:
            more["kept_s"] = self.kept_seconds()
        self.show(Result("startup", "s", "allowed", added, [STARTUP_S] * len(added), bar=1,
                         more=more))

    def kept_seconds(self) -> float:
        """Time of the script when its program is in the compile cache."""
        with tempfile.TemporaryDirectory() as folder:
            environment = our_environment(1, 8) | {"TOW_COMPILE_CACHE": folder}
            return min(self.script_seconds(environment) for _ in range(3))

    def run_idle_memory(self) -> None:
        if not self.is_chosen("idle_memory"):
            return
        child = Child("ours, idle", our_environment(1, 8))
        said = child.ask(do="memory")
        child.close()
        self.show(Result("idle_memory", "MiB", "allowed, of at most 4 processes", [said["mib"]],
                         [60.0], bar=1, more={"processes": said["processes"]}))

    def run(self) -> None:
        for case in CASES:
            if self.is_chosen(case.name) and not self.is_left_out(case):
                self.run_case(case)
        if not self.options.quick or self.options.case:
            # Each compiles in a new process.
            self.show_budget("fig5_chained_1", 1)
            self.show_budget("fig5_chained_8", 8)
            self.show_budget("execute_50x50_4", 8)
        self.children.close()
        self.run_startup()
        self.run_idle_memory()


def budget_text(name: str, more: dict) -> str:
    cpu = ", ".join(f"{key[4:-3].replace('_', ' ')} {value:.2f}" for key, value in more.items()
                    if key.startswith("cpu_"))
    functions = ", ".join(f"{function} {told['us']:.2f} ({told['calls']:g} calls)"
                          for function, told in more["functions"].items())
    return (f"{name}: us on the user's thread: JAX {more['jax_us']:.2f} (with nothing executed "
            f"{more['jax_alone_us']:.2f} in all), plugin {more['plugin_us']:.2f}, waiting "
            f"{more['waiting_us']:.2f}; us of CPU: {cpu}; by function: {functions}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tow bench jax", description=__doc__, epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", "--json", action="store_true",
                        help="one JSON object a line; the text goes to standard error")
    parser.add_argument("-q", "--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("-c", "--case", metavar="TEXT", help="only cases whose name contains TEXT")
    bench = Bench(parser.parse_args())
    with contextlib.closing(bench.children):
        try:
            bench.run()
        except Failed as failed:
            print(f"tow bench jax: {failed}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
