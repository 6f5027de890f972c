"""The PJRT table of the plugin, as any framework sees it."""

import ctypes

import pytest

from jax_script import LIBRARY, NEEDS_THE_PLUGIN, finish, start_python

pytestmark = NEEDS_THE_PLUGIN

# size_t struct_size; extension_start; {size_t; pointer; int major, minor}
FIRST_ENTRY = 2 * 8 + 3 * 8


def test_no_entry_is_null():
    library = ctypes.CDLL(str(LIBRARY))
    library.GetPjrtApi.restype = ctypes.c_void_p
    table = library.GetPjrtApi()
    size = ctypes.c_size_t.from_address(table).value
    entries = [ctypes.c_void_p.from_address(table + at).value
               for at in range(FIRST_ENTRY, size, 8)]
    assert len(entries) > 100
    assert [index for index, entry in enumerate(entries) if entry is None] == []


# jax.distributed.initialize must come before every other use of JAX.
DISTRIBUTED = """
import socket
import jax, numpy as np
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
x = jax.device_put(np.arange(8.0), jax.devices()[0])
print(float((x + 1).sum()), jax.process_count(), jax.process_index())
"""


def test_a_script_may_start_with_jax_distributed():
    done = finish(start_python(["-c", DISTRIBUTED], TOW_LOCAL="devices=2"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "36.0 1 0\n"
