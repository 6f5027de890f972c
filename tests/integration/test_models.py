"""The models: every way of running gives the losses of plain JAX, and a run goes on where it was interrupted."""

import json
import pathlib

import pytest

from jax_script import NEEDS_THE_PLUGIN, ROOT, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_PLUGIN
LM = ROOT / "examples" / "models" / "lm.py"
SMALL = ["--layers", "4", "--width", "16", "--heads", "2", "--length", "8", "--batch", "8", "--microbatches", "4"]


def losses(tmp_path: pathlib.Path, *arguments: str, steps: int = 6, platform: str = "towpath") -> list[float]:
    report = tmp_path / "report.json"
    done = finish(start_python([str(LM), *SMALL, "--steps", str(steps), "--report", str(report), *arguments],
                               JAX_PLATFORMS=platform))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(report.read_text())["losses"]


@pytest.mark.parametrize("parallel", ["pipeline", "islands", "spmd"])
def test_losses_are_those_of_plain_jax(parallel, tmp_path):
    plain = losses(tmp_path, "--parallel", "none", platform="cpu")
    assert losses(tmp_path, "--parallel", parallel) == pytest.approx(plain, rel=1e-4)
    assert plain[-1] < plain[0]


def test_a_run_goes_on_in_another_way_of_running(tmp_path):
    file = ["--checkpoint", str(tmp_path / "lm.npz"), "--save-every", "2"]
    whole = losses(tmp_path, "--parallel", "none", platform="cpu", steps=8)
    losses(tmp_path, "--parallel", "pipeline", *file, steps=4)
    rest = losses(tmp_path, "--parallel", "pipeline", "--schedule", "zb-h1", "--resume", *file, steps=8)
    assert rest == pytest.approx(whole[4:], rel=1e-4)


def test_resuming_without_a_checkpoint_says_what_is_missing(tmp_path):
    done = finish(start_python([str(LM), "--resume"]))
    assert done.returncode == 2
    assert "--resume needs a --checkpoint that exists" in done.stderr


def test_the_block_of_the_page_about_pipelines_runs(tmp_path):
    text = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    script = tmp_path / "block.py"
    script.write_text(text.split("```python\n")[1].split("```\n")[0])
    done = finish(start_python([str(script)]))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "True\n"
