"""What a new user meets first: which cluster a script lands on, and what it is told."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from jax_script import NEEDS_THE_PLUGIN, finish, start_python
from test_cluster import Cluster, is_alive, tree, wait_until

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SHOW = """
import jax, subprocess, sys
print(jax.device_count())
"""


@pytest.fixture
def runtime(tow):
    """The environment of a user with a cluster of four devices, in the default folder."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    environment = {"XDG_RUNTIME_DIR": str(folder), "TOW_LOG": "off"}
    done = tow("up", "--workers", "2", "--devices", "2", **environment)
    assert done.returncode == 0, done.stderr
    yield environment
    done = tow("down", **environment)
    shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finish(start_python(["-c", script], JAX_PLATFORMS="towpath", **environment))


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stderr.splitlines() if line.startswith("towpath: ")]


def test_a_script_uses_the_cluster_of_tow_up_and_says_so_once(tow, runtime):
    done = run(SHOW, **runtime)
    address = f"unix:{runtime['XDG_RUNTIME_DIR']}/towpath/cluster.sock"
    assert told(done) == [f"towpath: 4 device(s) (cpu) of the cluster at {address}"]
    assert done.stdout == "4\n"
    gang = subprocess.run([tow.program.parent / "examples" / "c" / "gang", "1"], env=os.environ | runtime,
                          capture_output=True, text=True, check=False)
    assert "a gang of 4" in gang.stdout, gang.stderr


def test_a_script_that_asks_for_a_local_cluster_gets_one(runtime):
    for own in ({"TOW_LOCAL": "devices=3"}, {"TOW_ADDRESS": "", "TOW_LOCAL": "devices=3"}):
        done = run(SHOW, **runtime, **own)
        assert told(done) == ["towpath: 3 device(s) (cpu) of a local cluster, which ends with this process"]
        assert done.stdout == "3\n"


def test_a_cluster_that_was_killed_is_not_found(tow):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    environment = {"XDG_RUNTIME_DIR": str(folder)}
    try:
        assert tow("up", "--devices", "2", **environment).returncode == 0
        state = json.loads((folder / "towpath" / "cluster.json").read_text())
        os.kill(state["pid"], 9)
        done = run(SHOW, **environment)
        assert "local cluster" in told(done)[0], done.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("more", [(), ("--joint",)], ids=["apart", "joint"])
def test_a_cluster_without_clients_ends_after_its_idle_timeout(tow, more):
    cluster = Cluster(tow, "--devices", "1", "--idle-timeout", "1", *more)
    pids = tree(cluster.pid)
    try:
        wait_until("the cluster has ended", lambda: not any(map(is_alive, pids)))
        assert "no client for 1 s" in (cluster.folder / "up.log").read_text()
        assert not (cluster.folder / "cluster.json").exists()
    finally:
        shutil.rmtree(cluster.folder, ignore_errors=True)


def test_tow_env_prints_what_a_client_exports(tow, runtime):
    exports = tow("env", **runtime)
    assert exports.returncode == 0, exports.stderr
    shown = subprocess.run(["bash", "-c", exports.stdout + "env"], capture_output=True, text=True, check=True)
    [values] = [json.loads(tow("env", "--json", **runtime).stdout)]
    assert set(values) == {"TOW_ADDRESS", "TOW_TOKEN_FILE", "JAX_PLATFORMS"}
    assert all(f"{name}={value}" in shown.stdout.splitlines() for name, value in values.items())


def test_tow_env_without_a_cluster_says_how_to_start_one(tow, tmp_path):
    done = tow("env", "--folder", str(tmp_path))
    assert done.returncode == 1
    assert "`tow up` starts one" in done.stderr


def test_a_client_is_named_by_user_host_process_and_script(tow, runtime, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import jax, os, subprocess\njax.devices()\n"
                      f"print(os.getpid(), subprocess.check_output(['{tow.program}', 'status', '--json'], text=True))\n")
    done = finish(start_python([str(script)], JAX_PLATFORMS="towpath", USER="ada", **runtime))
    assert done.returncode == 0, done.stderr[-3000:]
    process, status = done.stdout.split(" ", 1)
    names = [client["name"] for client in json.loads(status)["clients"]]
    host = os.uname().nodename[:16]
    assert names[0] == f"ada@{host}:{process}:train.py"
    assert names[1].startswith(f"ada@{host}:") and names[1].endswith(":tow")


def test_a_client_without_a_token_is_told_to_copy_one(tmp_path):
    done = run(SHOW, TOW_ADDRESS="tls:127.0.0.1:1", HOME=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode != 0
    assert "copy the token file of that cluster" in done.stderr and "TOW_TOKEN_FILE" in done.stderr
    assert "tow keys" not in done.stderr


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])
def test_several_tasks_are_told_that_one_process_drives_all_devices(name):
    lines = told(run(SHOW, TOW_LOCAL="devices=1", **{name: "4"}))
    assert any(f"{name}=4" in line and "one process drives all devices" in line for line in lines), lines


def test_one_task_and_a_quiet_user_are_told_nothing_of_it():
    [line] = told(run(SHOW, TOW_LOCAL="devices=1", SLURM_NTASKS="1"))
    assert "device(s)" in line
    assert told(run(SHOW, TOW_LOCAL="devices=1", SLURM_NTASKS="4", TOW_QUIET="1")) == []


def test_an_untested_jax_says_so_once():
    script = "import jax\njax.__version__ = '0.99.1'\njax.devices()\njax.devices()\n"
    lines = told(run(script, TOW_LOCAL="devices=1"))
    assert [line for line in lines if "JAX 0.99.1 is newer" in line] == [lines[0]], lines
