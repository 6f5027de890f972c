"""Runs scripts over slices and programs in processes of their own; they check what they compute themselves."""

import json
import pathlib
import subprocess
import textwrap

from jax_script import BUILD, PREAMBLE, finish, start_python

# Three slices of two devices, a function on each, and an argument.
SLICES = f"""
import gc, json, subprocess, warnings
import towpath as tow

warnings.simplefilter("ignore")
s0, s1, s2 = tow.slice(2), tow.slice(2), tow.slice(2)
a = tow.on(s0, lambda x: x * 2.0)
b = tow.on(s1, lambda x: x + 1.0)
c = tow.on(s2, lambda x: x / 2.0)
v = np.arange(8, dtype=np.float32).reshape(2, 4)

def same(got, want):
    \"\"\"Arrays of JAX with these values, types and structure.\"\"\"
    assert jax.tree.structure(got) == jax.tree.structure(want), (got, want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        # Call by call, an argument that is returned is what it was.
        x, y = x if jax.default_backend() == "towpath" else jnp.asarray(x), jnp.asarray(y)
        assert isinstance(x, jax.Array) and x.dtype == y.dtype and x.shape == y.shape, (x, y)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-5), (x, y)

def both(fn, *args, want=None, **named):
    \"\"\"Decorated and not, a function gives the same; and what is wanted.\"\"\"
    got = tow.program(fn)(*args, **named)
    same(got, fn(*args, **named))
    if want is not None:
        same(got, want)
    return got

def error(kind, fn, *parts):
    try:
        jax.block_until_ready(fn())
    except kind as e:
        for part in parts:
            assert str(part) in str(e), (part, str(e))
        return str(e)
    raise AssertionError(f"no {{kind}}")

def line(text):
    \"\"\"Where this script has a line with this text, as errors name it.\"\"\"
    [number] = [i for i, row in enumerate(open(__file__), 1) if row.rstrip().endswith(text)]
    return f"{{__file__}}:{{number}}"

def where(x):
    return sorted(device.id for device in x.devices())

def ids(place):
    return sorted(device.id for device in place.devices)

def status():
    arguments = command_line(cluster_process())
    folder = arguments[arguments.index("--folder") + 1]
    done = subprocess.run([{json.dumps(str(BUILD / "tow"))}, "status", "--folder", folder, "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)

def nothing_is_left():
    \"\"\"Waits until the cluster holds no array; the watchdog of the test bounds that.\"\"\"
    gc.collect()
    while status()["totals"]["object_bytes"] != 0:
        gc.collect()
"""

CPU = {"JAX_PLATFORMS": "cpu", "NPROC": "16", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def start(folder: pathlib.Path, script: str, **environment: str) -> subprocess.Popen[str]:
    """In a file, so that errors name its lines."""
    path = folder / "script.py"
    path.write_text(PREAMBLE + SLICES + textwrap.dedent(script))
    return start_python([str(path)], **environment)


def check(folder: pathlib.Path, script: str, **environment: str) -> list[str]:
    """Asserts that the script ends well; gives what it printed."""
    done = finish(start(folder, script, **environment))
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    return done.stdout.splitlines()


def check_everywhere(folder: pathlib.Path, script: str, version: str = "") -> None:
    """On Towpath, and with the installed version of JAX on its CPU backend, call by call."""
    check(folder, script, python_path=version)
    if not version:
        check(folder, script, **CPU)
