#!/usr/bin/env python3
"""Compare the speed of two builds: alternating runs of `tow bench --quick`.

    scripts/compare_builds.py BASE [--bench dispatch pipeline jax] [--rounds 12]

BASE is another clone of the repository, built, at the commit to compare with. In each
round both builds run every benchmark, in alternating order. A row's ratio is this
tree's result to BASE's in the same round (above 1: this tree is better): the median of
the rounds, and the interval that contains the true median with a confidence of 95%.
The exit status is 1 if the upper end of an interval is below --limit.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

Rows = dict[str, dict[str, object]]
ROOT = pathlib.Path(__file__).resolve().parent.parent


def run_bench(tree: pathlib.Path, bench: str, case: str | None) -> Rows:
    command = [str(tree / "build" / "tow"), "bench", bench, "--quick", "--json"]
    if case:
        command += ["--case", case]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {result.stderr.strip()}")
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {f"{row['bench']} {row['case']}": row for row in rows}


def more_is_better(row: dict[str, object]) -> bool:
    """Whether `value` grows with `ratio`, which is above 1 where ours is better."""
    if row["unit"] in ("1/s", "stages/s"):
        return True
    return (row["ratio"] > 1) == (row["value"] > row["peer_value"])


def paired_ratio(ours: dict[str, object], base: dict[str, object]) -> float:
    ratio = ours["value"] / base["value"]
    return ratio if more_is_better(ours) else 1 / ratio


def median_interval(ratios: list[float]) -> tuple[float, float]:
    """The sign test's interval: with few rounds the whole range."""
    ordered = sorted(ratios)
    count, tail, cut = len(ordered), 0.0, 0
    while True:
        tail += math.comb(count, cut) / 2**count
        if tail > 0.025 or cut >= (count - 1) // 2:
            return ordered[cut], ordered[count - 1 - cut]
        cut += 1


def compare(options: argparse.Namespace) -> dict[str, list[float]]:
    ratios: dict[str, list[float]] = {}
    for index in range(options.rounds):
        for bench in options.bench:
            trees = [ROOT, options.base] if index % 2 == 0 else [options.base, ROOT]
            rows = {tree: run_bench(tree, bench, options.case) for tree in trees}
            for name, ours in rows[ROOT].items():
                if name in rows[options.base]:
                    ratio = paired_ratio(ours, rows[options.base][name])
                    ratios.setdefault(name, []).append(ratio)
        print(f"# round {index + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--bench", nargs="+", default=["dispatch", "pipeline", "jax"])
    parser.add_argument("--case", help="only cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--limit", type=float, default=0.97)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    below = []
    for name, values in compare(options).items():
        low, high = median_interval(values)
        median = statistics.median(values)
        if high < options.limit:
            below.append(name)
        if options.json:
            print(json.dumps({"row": name, "ratio": median, "low": low, "high": high, "rounds": len(values)}))
        else:
            print(f"{name:32} {median:5.2f} [{low:.2f}-{high:.2f}]{'  below ' + str(options.limit) if high < options.limit else ''}")
    if below:
        sys.exit(f"{len(below)} rows are slower than {options.base}: {', '.join(below)}")


if __name__ == "__main__":
    main()
