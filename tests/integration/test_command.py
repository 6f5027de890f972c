"""Command lines: help, usage errors, version, keys."""

import pytest


def test_help_lists_every_command(tow):
    done = tow("help")
    assert done.returncode == 0
    for name in ("devices", "run", "lower", "schedule", "sim", "bench", "keys", "version"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("command", ["devices", "run", "lower", "schedule", "sim", "bench", "keys", "version"])
def test_every_command_has_a_help(tow, command):
    done = tow(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: tow {command}")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["sim", "--sede", "3"], "--sede"),
        (["sim", "--seed", "three"], "three"),
        (["sim", "--seeds", "-1"], "-1"),
        (["sim", "--nodes", "1"], "3 to 512"),
        (["bench"], "calibrate, device, dispatch, hosts, jax, net"),
        (["bench", "nte"], "nte"),
        (["exchange"], "exchange"),
        (["keys"], "folder"),
        (["lower"], "file"),
        (["lower", "--after", "lunch", "x"], "lunch"),
    ],
)
def test_usage_errors_name_the_argument_and_the_help(tow, arguments, named):
    done = tow(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first = done.stderr.splitlines()[0]
    assert named in first
    assert "help" in done.stderr


def test_no_command_prints_the_help(tow):
    done = tow()
    assert done.returncode == 2
    assert "Usage: tow COMMAND" in done.stderr


def test_version_as_json_names_the_libraries(tow):
    (version,) = tow.json("version")
    assert set(version) == {"towpath", "commit", "protocol", "ucx", "openssl", "compiler"}


def test_keys_are_private_and_never_overwritten(tow, tmp_path):
    folder = tmp_path / "keys"
    assert tow("keys", str(folder)).returncode == 0
    for name in ("token", "key.pem"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    token = (folder / "token").read_text()
    again = tow("keys", str(folder))
    assert again.returncode == 1
    assert str(folder / "token") in again.stderr
    assert (folder / "token").read_text() == token
