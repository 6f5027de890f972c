"""The compile cache on disk: a local cluster finds programs that an earlier one compiled."""

import pathlib
import stat

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

# Prints a result and how many programs were compiled for it.
SCRIPT = """
mesh = Mesh(np.array(devices[:4]), ("a",))
x = jax.device_put(np.arange(16, dtype=np.float32).reshape(4, 4), NamedSharding(mesh, P("a")))
print(float(jax.jit(lambda x: jnp.tanh(x @ x.T).sum() + jax.lax.cumsum(x).sum())(x)))
up = cluster_process()
print(sum("tow_compile_child" in command_line(p)[0] for p in children(up)))
"""


def run(folder: str) -> tuple[str, int]:
    value, compilers = lines(SCRIPT, TOW_LOCAL="workers=2,devices=2", TOW_COMPILE_CACHE=folder)
    return value, int(compilers)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.iterdir())


def test_the_next_cluster_compiles_nothing_again(tmp_path):
    folder = tmp_path / "below" / "compiled"
    value, compilers = run(str(folder))
    assert compilers == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = files(folder)
    assert kept and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)
    assert run(str(folder)) == (value, 0)
    assert files(folder) == kept


def test_programs_of_damaged_files_are_compiled_again(tmp_path):
    value, _ = run(str(tmp_path))
    kept = files(tmp_path)
    before = [path.stat().st_size for path in kept]
    for i, path in enumerate(kept):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if i % 2 else whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run(str(tmp_path)) == (value, 1)
    assert [path.stat().st_size for path in files(tmp_path)] == before


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    assert run(str(tmp_path))[1] == 1
    assert files(tmp_path) == []


def test_the_cache_can_be_turned_off(tmp_path):
    assert run("off")[1] == 1
    assert files(tmp_path) == []
