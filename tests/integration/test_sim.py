"""The seed search: deterministic, and able to fail."""

import pathlib

import pytest

SEEDS = pathlib.Path(__file__).resolve().parents[1] / "sim" / "seeds"


def past_failures() -> list[str]:
    """Command lines, one a line; `#` begins a comment that says what failed."""
    lines = [line.split("#")[0].strip() for file in sorted(SEEDS.glob("*.txt")) for line in file.read_text().splitlines()]
    return [line for line in lines if line]


def test_same_seed_same_digest(tow):
    first, second = (tow.json("sim", "--seed", "7")[0] for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["simulated"] is True
    assert tow.json("sim", "--seed", "8")[0]["digest"] != first["digest"]


def test_the_event_log_explains_a_digest(tow, tmp_path):
    logs = [tmp_path / "a", tmp_path / "b"]
    for log in logs:
        assert tow("sim", "--seed", "3", "--events", str(log)).returncode == 0
    assert logs[0].read_text() == logs[1].read_text() != ""


def test_a_hundred_seeds_hold_every_promise(tow):
    done = tow("sim", "--seeds", "100")
    assert done.returncode == 0, done.stderr
    assert "100 passed, 0 failed (simulated)" in done.stdout


def test_a_thousand_clusters_hold_every_promise(tow):
    done = tow("sim", "--scenario", "cluster", "--seeds", "1000")
    assert done.returncode == 0, done.stderr
    assert "1000 passed, 0 failed (simulated)" in done.stdout


def test_a_cluster_of_512_hosts(tow):
    first, second = (tow.json("sim", "--scenario", "cluster", "--nodes", "512", "--seed", "5")[0] for _ in range(2))
    assert first["ok"] and first["workers"] >= 500 and first["runs_done"] > 0
    assert first["digest"] == second["digest"]


def test_an_unknown_scenario_is_refused(tow):
    done = tow("sim", "--scenario", "picnic")
    assert done.returncode == 2
    assert "picnic" in done.stderr


@pytest.mark.parametrize("words", past_failures())
def test_seeds_that_once_failed_pass(tow, words):
    done = tow("sim", *words.split())
    assert done.returncode == 0, done.stderr


def test_an_unwritable_event_log_is_one_clear_line(tow, tmp_path):
    done = tow("sim", "--events", str(tmp_path / "no" / "such" / "file"))
    assert done.returncode == 1
    assert "no/such/file" in done.stderr
