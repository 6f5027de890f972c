"""Compiled programs that outlive their process: serialised, exported, in JAX's own cache."""

import json
import textwrap

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, cluster, finish, lines, start, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SMALL = {"TOW_LOCAL": "workers=1,devices=4"}

STEP = """
mesh = Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
x = jax.device_put(np.arange(16, dtype=np.float32).reshape(4, 4), NamedSharding(mesh, P("a", "b")))
step = jax.jit(lambda x: {"y": jnp.tanh(x @ x.T), "sum": x.sum()})
"""

# JAX caches every program, and an entry that cannot be read is an error.
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
         "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
         "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "true"}

COUNT_EVENTS = """
import collections
from jax._src import monitoring
events = collections.Counter()
monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
"""


def compile_count(tow, address: dict[str, str]) -> int:
    done = tow("status", "--json", **address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["totals"]["compiles"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_serialised_executable_runs_in_another_process(version, tmp_path, tow):
    saved = tmp_path / "step"
    with cluster(tow, "--workers", "1", "--devices", "4") as address:
        lines(STEP + f"""
from jax.experimental import serialize_executable
import pickle
compiled = step.lower(x).compile()
pickle.dump(serialize_executable.serialize(compiled), open({str(saved)!r}, "wb"))
""", python_path=version, **address)
        before = compile_count(tow, address)
        printed = lines(STEP + f"""
from jax.experimental import serialize_executable
import pickle
loaded = serialize_executable.deserialize_and_load(*pickle.load(open({str(saved)!r}, "rb")))
out = loaded(x)
assert out["y"].sharding.mesh.shape == mesh.shape, out["y"].sharding
np.testing.assert_allclose(out["y"], np.tanh(np.asarray(x) @ np.asarray(x).T), rtol=1e-5)
print(out["sum"])
""", python_path=version, **address)
        assert printed == ["120.0"]
        assert compile_count(tow, address) == before


def test_bytes_that_are_not_an_executable_are_refused():
    assert lines(STEP + """
executable = step.lower(x).compile().runtime_executable()
client = devices[0].client
good = client.serialize_executable(executable) if hasattr(client, "serialize_executable") else executable.serialize()
from jax._src.lib import xla_client as xc
of_all = xc.DeviceList(tuple(devices))
def refused(given, why):
    try:
        client.deserialize_executable(given, of_all)
    except jax.errors.JaxRuntimeError as error:
        assert "INVALID_ARGUMENT" in str(error) and why in str(error), error
    else:
        raise AssertionError(why)
# JAX checks its own wrapper first.
start = good.index(b"TOWSAVED")
def changed(offset):
    at = start + offset
    return good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1:]
refused(changed(0), "another platform")
refused(changed(8), "compile it again")
refused(changed(16), "not complete")
refused(changed(100), "damaged")
client.deserialize_executable(good, of_all)
print("refused")
""", **SMALL) == ["refused"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_next_process_hits_the_compilation_cache_of_jax(version, tmp_path, tow):
    script = COUNT_EVENTS + STEP + """
print(float(step(x)["sum"]), events["cache_hits"], events["cache_misses"])
"""
    caching = CACHE | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    with cluster(tow, "--workers", "1", "--devices", "4") as address:
        [first] = lines(script, python_path=version, **caching, **address)
        before = compile_count(tow, address)
        # Other line numbers: without JAX's cache the cluster would compile again.
        [second] = lines("\n\n" + script, python_path=version, **caching, **address)
        assert compile_count(tow, address) == before
    value, hits, misses = first.split()
    assert (value, hits) == ("120.0", "0") and int(misses) > 0, first
    assert second.split() == ["120.0", misses, "0"]


def test_clients_share_compiled_programs(tow):
    """Two clients at once, and one later: each program is compiled once."""
    script = STEP + """
print(float(step(x)["sum"]))
"""
    with cluster(tow, "--workers", "1", "--devices", "4") as address:
        both = [start(script, **address) for _ in range(2)]
        ended = [finish(process) for process in both]
        assert [done.stdout for done in ended] == ["120.0\n"] * 2, ended
        count = compile_count(tow, address)
        assert lines(script, **address) == ["120.0"]
        assert compile_count(tow, address) == count
        # As many as for one client.
    with cluster(tow, "--workers", "1", "--devices", "4") as address:
        assert lines(script, **address) == ["120.0"]
        assert compile_count(tow, address) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_an_exported_function_runs(version):
    assert lines(STEP + """
from jax import export
exported = export.export(jax.jit(lambda x: jnp.tanh(x @ x.T)), platforms=["towpath", "cpu"])(
    jax.ShapeDtypeStruct((4, 4), np.float32))
try:
    exported = export.deserialize(exported.serialize())
except ImportError:
    pass  # Serialising needs flatbuffers.
np.testing.assert_allclose(exported.call(np.asarray(x)), np.tanh(np.asarray(x) @ np.asarray(x).T), rtol=1e-5)
print(*exported.platforms)
""", python_path=version, **SMALL) == ["towpath cpu"]


TOPOLOGY = """
from jax.experimental import serialize_executable, topologies
topology = topologies.get_topology_desc(platform="towpath")
mesh_of = lambda topology: topologies.make_mesh(topology, (2, 2), ("a", "b"))
def compile_for(mesh):
    return step.lower(jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, P("a", "b")))).compile()
"""


def test_a_program_compiled_for_the_topology_of_a_cluster_loads_there():
    assert lines(STEP + TOPOLOGY + """
described, attached = topology.devices, topologies.get_attached_topology().devices
print([(d.id, d.device_kind, d.host, d.coords) for d in described]
      == [(d.id, d.device_kind, d.host, d.coords) for d in attached])
made = compile_for(mesh_of(topology))
print(made.cost_analysis()["flops"] > 0)
loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(made))
np.testing.assert_allclose(loaded(x)["y"], step(x)["y"])
try:
    topologies.get_topology_desc("two_by_two", platform="towpath")
except jax.errors.JaxRuntimeError as error:
    print("there is one, without a name" in str(error))
""", **SMALL) == ["True"] * 3


def test_a_topology_outlives_its_cluster():
    assert lines(STEP + TOPOLOGY + """
import jax.extend
mesh = mesh_of(topology)
kinds = [d.device_kind for d in topology.devices]
del x, devices
jax.extend.backend.clear_backends()
print([d.device_kind for d in topology.devices] == kinds)
x = np.ones((4, 4), np.float32)
try:
    compile_for(mesh)  # in the cluster that JAX connects to now
    print(len(jax.devices()))
except jax.errors.JaxRuntimeError as error:
    print(error)
""", **SMALL) == ["True", "4"]


def test_a_topology_without_a_cluster_is_refused_with_the_next_step():
    done = finish(start_python(["-c", textwrap.dedent("""
        from jax.experimental import topologies
        try:
            topologies.get_topology_desc(platform="towpath")
        except NotImplementedError as error:
            print("jax.devices() connects" in str(error))
    """)]))
    assert done.stdout.split() == ["True"], done.stderr


HLO = """
import ctypes
hlo = jax.jit(lambda x, y: (x * 2 + y, x.sum())).lower(
    jnp.ones(4), jnp.ones(4)).compiler_ir("hlo").as_serialized_hlo_module_proto()
# Offsets in PJRT_Api and in the structs of its calls.
CREATE, COMPILE, NUM_OUTPUTS, GET_EXECUTABLE, MESSAGE = 120, 200, 392, 448, 48
library = ctypes.CDLL(os.environ["TOW_PJRT_LIBRARY"])
library.GetPjrtApi.restype = ctypes.c_void_p
table = library.GetPjrtApi()
def call(offset, size, **words):
    block = (ctypes.c_uint64 * (size // 8))(size)
    for at, word in words.items():
        block[int(at[1:]) // 8] = word
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.c_void_p.from_address(table + offset).value)
    return function(ctypes.addressof(block)), block
def compile_as(name, code):
    format, code = ctypes.create_string_buffer(name), ctypes.create_string_buffer(code, len(code))
    program = (ctypes.c_uint64 * 6)(48, 0, ctypes.addressof(code), len(code),
                                    ctypes.addressof(format), len(name))
    error, made = call(COMPILE, 56, _16=client, _24=ctypes.addressof(program))
    if error:
        _, message = call(MESSAGE, 40, _16=error)
        return ctypes.string_at(message[3], message[4]).decode()
    _, executable = call(GET_EXECUTABLE, 32, _16=made[6])
    return call(NUM_OUTPUTS, 32, _16=executable[3])[1][3]
_, created = call(CREATE, 88)
client = created[8]
print(compile_as(b"hlo", hlo))
size = []
while not size or size[-1] > 127:
    size = [*size[:-1], size[-1] & 127 | 128, size[-1] >> 7] if size else [len(hlo)]
print(compile_as(b"hlo_with_config", bytes([10, *size]) + hlo))
print("HloModuleProto" in compile_as(b"hlo", b"nothing of the kind"))
print("towpath takes" in compile_as(b"csv", b"1,2"))
"""


def test_hlo_modules_are_accepted():
    """Passed as torch_xla passes them, directly through the PJRT function table."""
    assert lines(HLO, TOW_LOCAL="workers=1,devices=1") == ["2", "2", "True", "True"]
