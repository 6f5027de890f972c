"""`tow sim` is deterministic, and can fail."""

import pathlib

import pytest

SEEDS = pathlib.Path(__file__).resolve().parents[1] / "sim" / "seeds"


def past_failures() -> list[str]:
    """Arguments of `tow sim`, one run per line; a comment after `#` describes the failure."""
    lines = [line.split("#")[0].strip() for file in sorted(SEEDS.glob("*.txt")) for line in file.read_text().splitlines()]
    return [line for line in lines if line]


def test_the_same_seed_gives_the_same_digest(tow):
    first, second = (tow.json("sim", "--seed", "7")[0] for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["simulated"] is True
    assert tow.json("sim", "--seed", "8")[0]["digest"] != first["digest"]


def test_the_same_seed_gives_the_same_event_log(tow, tmp_path):
    logs = [tmp_path / "a", tmp_path / "b"]
    for log in logs:
        assert tow("sim", "--seed", "3", "--events", str(log)).returncode == 0
    assert logs[0].read_text() == logs[1].read_text() != ""


@pytest.mark.parametrize("first", [1, 101, 201, 301])
def test_every_invariant_holds_for_a_hundred_seeds(tow, first):
    done = tow("sim", "--seed", str(first), "--seeds", "100")
    assert done.returncode == 0, done.stderr
    assert "100 passed, 0 failed (simulated)" in done.stdout


def test_a_cluster_of_512_hosts_completes(tow):
    first, second = (tow.json("sim", "--nodes", "512", "--seed", "5")[0] for _ in range(2))
    assert first["ok"] and first["workers"] >= 500 and first["runs_done"] > 0
    assert first["digest"] == second["digest"]


def test_the_only_scenario_is_a_cluster(tow):
    assert tow("sim", "--scenario", "cluster", "--seed", "1").returncode == 0
    done = tow("sim", "--scenario", "exchange")
    assert done.returncode == 2
    assert "exchange" in done.stderr and "cluster" in done.stderr


@pytest.mark.parametrize("arguments", past_failures())
def test_seeds_that_once_failed_pass(tow, arguments):
    done = tow("sim", *arguments.split())
    assert done.returncode == 0, done.stderr


def test_an_unwritable_event_log_is_a_one_line_error(tow, tmp_path):
    done = tow("sim", "--events", str(tmp_path / "no" / "such" / "file"))
    assert done.returncode == 1
    assert "no/such/file" in done.stderr
