"""Runs one script twice, unmodified: on Towpath, then on JAX's own backend.

usage: beside_jax.py train_lm.py [ARGUMENTS...]

Towpath is the cluster that TOW_ADDRESS names, or a local one.

The script gets the option --report FILE, and writes its `losses` and `tokens_per_s` there
as JSON. The exit status is 1 if the losses differ by more than a thousandth.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOLERANCE = 1e-3
WHERE = ({"TOW_ADDRESS": os.environ["TOW_ADDRESS"]} if os.environ.get("TOW_ADDRESS")
         else {"TOW_LOCAL": "workers=2,devices=4"})
BACKENDS = {
    "On Towpath:": {"JAX_PLATFORMS": "towpath", **WHERE},
    # NPROC: with its default thread pool JAX's own backend deadlocks when several
    # asynchronous steps of 8 devices are in flight.
    "On JAX's own CPU backend, 8 devices in the script's process:": {
        "JAX_PLATFORMS": "cpu", "NPROC": "16",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
}


def run(command: list[str], settings: dict[str, str]) -> dict:
    shown = " ".join(f"{name}={value}" for name, value in settings.items())
    print(f"$ {shown} python {' '.join(command)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tow-") as folder:
        report = pathlib.Path(folder) / "report.json"
        subprocess.run([sys.executable, *command, "--report", str(report)],
                       env=os.environ | settings, check=True)
        return json.loads(report.read_text())


def print_beside(ours: dict, theirs: dict) -> float:
    """Prints both results; returns the largest relative difference between losses of a step."""
    pairs = list(zip(ours["losses"], theirs["losses"], strict=True))
    apart = max(abs(a - b) / abs(b) for a, b in pairs)
    ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
    print(f"{'':22}{'Towpath':>12}{'JAX itself':>12}")
    for name, i in (("loss at the beginning", 0), ("loss at the end", -1)):
        print(f"{name:22}{ours['losses'][i]:12.4f}{theirs['losses'][i]:12.4f}")
    print(f"{'tokens/s':22}{ours['tokens_per_s']:12,.0f}{theirs['tokens_per_s']:12,.0f}"
          f"   {ratio:.2f} times as fast")
    print(f"largest relative difference of a loss: {apart:.1e} (limit {TOLERANCE:.0e})")
    return apart


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    results = []
    for title, settings in BACKENDS.items():
        print(title, flush=True)
        try:
            results.append(run(sys.argv[1:], settings))
        except subprocess.CalledProcessError as failed:
            print(f"beside_jax: {sys.argv[1]} exited with status {failed.returncode}; "
                  "its message is above", file=sys.stderr)
            return 1
        print()
    return 0 if print_beside(*results) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
