"""Prints two reports of a model beside each other: losses of each step, and speed.

usage: beside.py OURS.json THEIRS.json

The exit status is 1 if the losses of a step differ by more than a thousandth.
"""

import json
import pathlib
import sys

TOLERANCE = 1e-3


def print_beside(ours: dict, theirs: dict) -> float:
    """The largest relative difference between the losses of a step that both have made."""
    first = ours["first"]
    pairs = list(zip(ours["losses"], theirs["losses"][first:]))
    apart = max(abs(a - b) / abs(b) for a, b in pairs)
    names = [f"Towpath, {ours['parallel']}", f"plain JAX, {theirs['platform']}"]
    print(f"{'':26}{names[0]:>20}{names[1]:>20}")
    for name, i in (("loss of the first step", 0), ("loss of the last step", -1)):
        print(f"{name:26}{pairs[i][0]:20.4f}{pairs[i][1]:20.4f}")
    ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
    print(f"{'tokens/s':26}{ours['tokens_per_s']:20,.0f}{theirs['tokens_per_s']:20,.0f}   {ratio:.2f} times as fast")
    print(f"largest relative difference of a loss: {apart:.1e} (limit {TOLERANCE:.0e})")
    return apart


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    ours, theirs = (json.loads(pathlib.Path(path).read_text()) for path in sys.argv[1:])
    return int(print_beside(ours, theirs) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
