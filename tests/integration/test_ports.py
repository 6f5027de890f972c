"""Programs of several computations, called through ports: the functions of src/pjrt/python_api.h, by ctypes."""

import subprocess

import pytest

from jax_script import BUILD, NEEDS_THE_PLUGIN, VERSIONS, cluster, lines
from test_jax_memory import STATUS

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

TOW = BUILD / "tow"

PORTS = STATUS + '''
import ctypes, itertools
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
library = ctypes.CDLL(os.environ["TOW_PJRT_LIBRARY"])
library.towpath_text_free.argtypes = [c_void_p]
class Refused(Exception):
    pass
def api(name, *arguments):
    function = getattr(library, "towpath_" + name)
    function.restype = c_void_p
    text = function(*arguments)
    if text:
        message = ctypes.string_at(text).decode()
        library.towpath_text_free(text)
        raise Refused(message)
def refusal(use):
    try:
        use()
    except (Refused, ValueError, jax.errors.JaxRuntimeError) as error:
        return " ".join(str(error).split())
    return "accepted"
def open_slice(*dims, kind=None, island=None):
    number, count, ids = c_uint64(), c_size_t(), (c_int64 * 64)()
    api("slice_open", (c_uint32 * 3)(*dims), kind, island, byref(number), ids, c_size_t(64), byref(count))
    by_id = {device.id: device for device in devices}
    return number, [by_id[i] for i in ids[:count.value]]
def sharding(devices, *spec):
    return NamedSharding(Mesh(np.array(devices), ("d",)), P(*spec))
names = map("n{}".format, itertools.count())
addresses = {}
def compiled(function, inputs, outputs, shapes, **options):
    """`inputs` and `outputs` are shardings, `shapes` those of the arguments."""
    lowered = jax.jit(function, keep_unused=True, in_shardings=inputs, out_shardings=outputs, **options).lower(
        *[jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes])
    name = next(names)
    made = lowered.compile(compiler_options={"towpath_name": name})
    found = c_void_p()
    api("executable_named", name.encode(), byref(found))
    addresses[id(made)] = found
    return made
class Program:
    def __init__(self, name="test"):
        self.number = c_uint64()
        self.ports = []
        api("program_begin", name.encode(), byref(self.number))
    def port(self, stub):
        port = c_uint32()
        api("program_port", self.number, addresses[id(stub)], byref(port))
        self.ports.append(stub)
        return port.value
    def argument(self, port, index, donated=False):
        node = c_uint32()
        api("program_argument", self.number, c_uint32(port), c_uint32(index), c_int(donated), byref(node))
        return node.value, 0
    def call(self, function, *inputs, name="step"):
        node = c_uint32()
        pairs = ((c_uint32 * 2) * (len(inputs) + 1))(*[(c_uint32 * 2)(*value) for value in inputs])
        api("program_call", self.number, addresses[id(function)], name.encode(), pairs, c_size_t(len(inputs)), byref(node))
        return node.value, 0
    def host_call(self, symbol, devices, argument, result, value, name="host step"):
        """`argument` and `result` are pairs of a size and whether it is an upper bound, of f32 arrays of rank 1."""
        class Type(ctypes.Structure):
            _fields_ = [("type", c_uint32), ("rank", c_uint32), ("bounds", c_uint32), ("dims", c_int64 * 32)]
        class Call(ctypes.Structure):
            _fields_ = [("struct_size", c_size_t), ("path", c_char_p), ("symbol", c_char_p),
                        ("devices", ctypes.POINTER(c_int64)), ("device_count", c_size_t),
                        ("arguments", ctypes.POINTER(Type)), ("argument_count", c_size_t),
                        ("results", ctypes.POINTER(Type)), ("result_count", c_size_t),
                        ("time_limit_ms", c_uint32), ("name", c_char_p)]
        def type_of(size, is_bound):
            return (Type * 1)(Type(11, 1, is_bound, (c_int64 * 32)(size)))
        node, ids = c_uint32(), (c_int64 * len(devices))(*[d.id for d in devices])
        call = Call(ctypes.sizeof(Call), os.environ["FUNCTIONS"].encode(), symbol.encode(), ids, len(devices),
                    type_of(*argument), 1, type_of(*result), 1, 0, name.encode())
        api("program_host_call", self.number, byref(call), (c_uint32 * 2)(*value), c_size_t(1), byref(node))
        return node.value, 0
    def result(self, port, index, value):
        api("program_result", self.number, c_uint32(port), c_uint32(index), c_uint32(value[0]), c_uint32(value[1]))
    def finish(self):
        api("program_finish", self.number)
    def abandon(self):
        api("program_abandon", self.number)
    def release(self):
        api("program_release", self.number)
    def text(self):
        text = c_char_p()
        api("program_text", self.number, byref(text))
        return text.value.decode()
    def __call__(self, *arguments):
        """One tuple of arguments for each port. Returns all results."""
        return [y for port, given in zip(self.ports, arguments, strict=True) for y in jax.tree.leaves(port(*given))]
def await_nothing():
    while status()["totals"]["object_bytes"] != 0 or gc.collect() < 0:
        pass
    return status()["totals"]["objects"]
def chain(slices, donated=False, shape=(8, 4), fn=lambda v: v * 2 + 1):
    """A program that applies the function on each slice in turn: it has an argument on the first one and a result
    on each."""
    program = Program("chain")
    where = [sharding(devices, "d") for devices in slices]
    def stub(i):
        if i == 0:
            return compiled(lambda v: v + 0, (where[0],), where[0], [shape])
        return compiled(lambda: jnp.zeros(shape, np.float32), (), where[i], [])
    ports = [program.port(stub(i)) for i in range(len(slices))]
    value = program.argument(ports[0], 0, donated)
    for i, port in enumerate(ports):
        value = program.call(compiled(fn, (where[i],), where[i], [shape]), value, name=f"stage{i} train.py:{i}")
        program.result(port, 0, value)
    program.finish()
    def fresh(scale=1):
        return jax.device_put(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * scale, where[0])
    def run(x):
        return program((x,), *[()] * (len(slices) - 1))
    return program, fresh, run
'''


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("local, count", [("devices=2", 1), ("devices=4", 2), ("workers=2,devices=4", 8)])
def test_a_program_has_a_result_on_each_slice(version, local, count):
    assert lines(PORTS + f"""
slices = [open_slice(max(1, len(devices) // {count}))[1] for _ in range({count})]
print(len({{d for part in slices for d in part}}) == len(devices))
program, fresh, run = chain(slices)
for scale in range(3):
    expected = np.asarray(fresh(scale))
    for y, part in zip(run(fresh(scale)), slices):
        expected = expected * 2 + 1
        assert np.array_equal(np.asarray(y), expected) and set(y.devices()) == set(part), y
y = run(fresh())[-1]
print(float(jax.jit(lambda v: v.sum())(y)) == expected.sum() / 2 + y.size * (2 ** {count} - 1) / 2)
del y, fresh
program.release()
print(await_nothing())
""", TOW_LOCAL=local, python_path=version) == ["True", "True", "0"]


def test_ports_without_results_and_ports_without_arguments():
    assert lines(PORTS + """
left, right = sharding(devices[:2], "d"), sharding(devices[2:4])
add = compiled(lambda a, b: a + b, (right, right), right, [(4,), (4,)])
program = Program()
takes = program.port(compiled(lambda a, b: None, (left, left), None, [(4,), (4,)]))
gives = program.port(compiled(lambda: jnp.zeros(4), (), right, []))
takes_again = program.port(compiled(lambda a: None, (right,), None, [(4,)]))
a, b = program.argument(takes, 0), program.argument(takes, 1)
program.argument(takes_again, 0)
program.result(gives, 0, program.call(add, a, b))
program.finish()
x = jax.device_put(np.arange(4, dtype=np.float32), left)
y = jax.device_put(np.ones(4, np.float32), right)
[z] = program((x, x), (), (y,))
print(np.asarray(z))
del x, y, z
print(await_nothing())
""") == ["[0. 2. 4. 6.]", "0"]


def test_values_that_are_moved_resharded_returned_twice_or_just_passed_through():
    assert lines(PORTS + """
rows, whole, far = sharding(devices[:2], "d"), sharding(devices[:2]), sharding(devices[4:8], None, "d")
f = compiled(lambda a: a + 1, (rows,), rows, [(4, 8)])
program = Program()
port = program.port(compiled(lambda a: (a, a, a, a), (rows,), (rows, rows, whole, rows), [(4, 8)]))
other = program.port(compiled(lambda: (jnp.zeros((4, 8)),) * 2, (), (far, far), []))
a = program.argument(port, 0)
b = program.call(f, a)
for i in range(3):
    program.result(port, i, b)
program.result(port, 3, a)
program.result(other, 0, b)
program.result(other, 1, a)
program.finish()
x = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8), rows)
results = program((x,), ())
print([float(y.sum()) for y in results], [y.sharding.is_equivalent_to(s, 2) for y, s in
      zip(results, (rows, rows, whole, rows, far, far))])
x.delete()
print(float(results[3].sum()), float(results[5].sum()))
del x, results
print(await_nothing())
""") == [f"{[528.0] * 3 + [496.0, 528.0, 496.0]} {[True] * 6}", "496.0 496.0", "0"]


def test_donated_arguments_are_consumed_when_the_run_starts():
    done = lines(PORTS + """
slices = devices[:2], devices[2:4]
program, fresh, run = chain(slices, donated=True)
x = fresh()
first = program.ports[0](x)
print(x.is_deleted())
program.abandon()
print(x.is_deleted(), float(x.sum()))
y, z = run(x)
print(x.is_deleted(), float(z.sum()))
print(refusal(lambda: run(x)))
for _ in range(100):
    y, z = run(y)
print(y.is_deleted(), np.isfinite(np.asarray(z)).any())
del x, y, z, first
print(await_nothing())
""")
    assert done[:3] == ["False", "False 496.0", "True 2080.0"]
    assert "deleted" in done[3], done
    assert done[4:] == ["False True", "0"]


def test_an_array_that_is_donated_and_passed_twice_is_refused():
    done = lines(PORTS + """
where = sharding(devices[:2], "d")
add = compiled(lambda a, b: a + b, (where, where), where, [(4,), (4,)])
program = Program()
ports = [program.port(compiled(lambda a: a, (where,), where, [(4,)])) for _ in range(2)]
a, b = program.argument(ports[0], 0), program.argument(ports[1], 0, donated=True)
for port in ports:
    program.result(port, 0, program.call(add, a, b))
program.finish()
x, y = (jax.device_put(np.arange(4, dtype=np.float32), where) for _ in range(2))
first = program.ports[0](x)
print(refusal(lambda: program.ports[1](x)))
print(refusal(lambda: np.asarray(first)))
print(x.is_deleted(), [float(v.sum()) for v in program((x,), (y,))], x.is_deleted(), y.is_deleted())
del first, x, y
print(await_nothing())
""")
    assert "port 1" in done[0] and "argument 0" in done[0] and "donated" in done[0], done
    assert "port 1" in done[1] and "donated" in done[1], done
    assert done[2:] == ["False [12.0, 12.0] False True", "0"]


def test_calls_that_are_not_completed():
    done = lines(PORTS + """
program, fresh, run = chain([devices[:2], devices[2:4], devices[4:6]])
x = fresh()
first = program.ports[0](x)
second = program.ports[1]()
program.abandon()
program.abandon()  # There is none.
print(refusal(lambda: np.asarray(first)))
print(refusal(lambda: jax.jit(lambda v: v + 1)(second).block_until_ready()))
print(refusal(program.ports[1]))
first = program.ports[0](x)
again = program.ports[0](x)  # Abandons the other.
print("abandoned" in refusal(first.block_until_ready))
print(refusal(program.ports[2]))
program.ports[1](), program.ports[2]()
print(float(again.sum()))
first = program.ports[0](x)
second = program.ports[1]()
program.release()
print("abandoned" in refusal(first.block_until_ready), refusal(program.ports[2]))
print(refusal(program.finish), refusal(program.abandon))
del first, second, again, x
print(await_nothing())
""")
    assert "CANCELLED" in done[0] and "2 of 3" in done[0], done
    assert "CANCELLED" in done[1], done
    assert "expects port 0" in done[2] and "port 1" in done[2], done
    assert done[3] == "True"
    assert "expects port 1" in done[4]
    assert done[5] == "1024.0"
    assert done[6].startswith("True") and "has been released" in done[6]
    assert done[7].count("INVALID_ARGUMENT: there is no program") == 2
    assert done[8] == "0"


def test_an_argument_that_was_deleted_ends_the_call():
    done = lines(PORTS + """
program = Program("two")
where = [sharding(devices[2 * i:2 * i + 2], "d") for i in range(2)]
add = compiled(lambda a, b: a + b, (where[1], where[1]), where[1], [(4,), (4,)])
ports = [program.port(compiled(lambda a: a, (w,), w, [(4,)])) for w in where]
a, b = program.argument(ports[0], 0), program.argument(ports[1], 0)
program.result(ports[0], 0, program.call(compiled(lambda a: a * 3, (where[0],), where[0], [(4,)]), a))
program.result(ports[1], 0, program.call(add, a, b))
program.finish()
x, y = (jax.device_put(np.arange(4, dtype=np.float32), w) for w in where)
first = program.ports[0](x)
shard = y.addressable_data(1)
shard.delete()
print(refusal(lambda: program.ports[1](y)))
print(refusal(lambda: np.asarray(first)))
y = jax.device_put(np.arange(4, dtype=np.float32), where[1])
first = program.ports[0](x)
x.delete()  # The call holds it.
second = program.ports[1](y)
print(np.asarray(first), np.asarray(second))
del first, second, x, y, shard
print(await_nothing())
""")
    for text in done[:2]:
        assert "port 1" in text and "argument 0" in text and "deleted" in text, done
    assert done[2:] == ["[0. 3. 6. 9.] [0. 2. 4. 6.]", "0"]


def test_threads_call_one_program_at_once():
    assert lines(PORTS + """
program, fresh, run = chain([devices[:2], devices[2:4]])
totals = {}
def work(k):
    x = fresh(k)
    for i in range(100):
        if i % 10 == k:
            program.ports[0](x)  # Abandoned by the next one.
        y, z = run(x)
    totals[k] = float(z.sum())
threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([totals[k] == 4 * 496.0 * k + 96 for k in range(8)])
print(await_nothing())
""") == [str([True] * 8), "0"]


def test_the_error_of_a_node_reaches_all_results_and_names_the_node():
    done = lines(PORTS + """
def fail(v):
    if v.sum() > 1000:
        raise RuntimeError("too much")
    return v
program, fresh, run = chain([devices[:2], devices[2:4]], fn=lambda v: jax.pure_callback(
    fail, jax.ShapeDtypeStruct((8, 4), np.float32), v * 2 + 1))
y, z = run(fresh())
print(refusal(lambda: np.asarray(z)))
print(refusal(lambda: np.asarray(y)))
print(refusal(lambda: np.asarray(jax.jit(lambda v: v + 1)(z))))
y, z = run(fresh(0))
print(float(z.sum()))
del y, z
print(await_nothing())
""")
    for text in done[:3]:
        assert "too much" in text and "stage0 train.py:0" in text and "device" in text, done
    assert done[3:] == ["96.0", "0"], done


def test_a_killed_worker_fails_the_calls_and_programs_work_when_it_returns():
    done = lines(PORTS + """
program, fresh, run = chain([devices[:4], devices[4:]])
kept = fresh()
print(float(run(kept)[1].sum()))
first = program.ports[0](kept)
os.kill(worker_process("worker-1"), signal.SIGKILL)
def use():
    while True:
        np.asarray(run(kept)[1])
print(refusal(use))
print(refusal(lambda: np.asarray(first)) != "accepted")
while True:
    told = refusal(lambda: print(float(run(fresh())[1].sum())))
    if told == "accepted":
        break
    assert "UNAVAILABLE" in told, told
del kept, first
print(await_nothing())
""", TOW_LOCAL="workers=2,devices=4")
    assert done[0] == "2080.0"
    assert "UNAVAILABLE" in done[1] and "worker-1" in done[1], done
    assert done[2:] == ["True", "2080.0", "0"]


def test_a_killed_controller_fails_the_calls_and_programs_are_made_again():
    assert lines(PORTS + """
program, fresh, run = chain([devices[:4], devices[4:]])
print(float(run(fresh())[1].sum()))
x = fresh()
first = program.ports[0](x)
for process in children(cluster_process()):
    if {"controller", "--with-controller"} & set(command_line(process)):
        os.kill(process, signal.SIGKILL)
while True:
    told = refusal(lambda: print(float(run(fresh())[1].sum())))
    if told == "accepted":
        break
    assert "UNAVAILABLE" in told, told
print(refusal(lambda: np.asarray(first)) != "accepted")
del x, first
print(await_nothing())
""", TOW_LOCAL="workers=2,devices=4") == ["2080.0", "2080.0", "True", "0"]


HOST = PORTS + """
where = sharding(devices[:2], "d")
def filtering(*symbols):
    program = Program("filtering")
    port = program.port(compiled(lambda a: a, (where,), where, [(8,)]))
    value = program.call(compiled(lambda a: a * 2, (where,), where, [(8,)]), program.argument(port, 0))
    kept = program.host_call(symbols[0], devices[:2], (4, False), (4, True), value, name="filter train.py:7")
    if symbols[1:]:
        kept = program.host_call(symbols[1], devices[:2], (4, True), (4, False), kept)
    program.result(port, 0, kept)
    program.finish()
    return program
x = jax.device_put(np.array([1, 2, 3, 4, 0.5, 2, 3, 4], np.float32), where)
"""


def test_host_functions_in_programs(tow):
    with cluster(tow, "--devices", "2", "--host-functions") as address:
        done = lines(HOST + """
program = filtering("keep", "widen")
[y] = program((x,))
print(np.asarray(y))
print(program.text().replace("\\n", ";"))
print(refusal(lambda: filtering("keep")))
program = filtering("fail_one", "widen")
print(refusal(lambda: np.asarray(program((x,))[0])))
print(refusal(lambda: Program().host_call("keep", devices[:2], (4, False), (4, True), (0, 0))))
os.environ["FUNCTIONS"] = "/nonexistent"
print(refusal(lambda: Program().host_call("keep", devices[:2], (4, False), (4, True), (0, 0))))
""", FUNCTIONS=str(BUILD / "tests/host/functions.so"), **address)
    assert done[0] == "[2. 4. 0. 0. 1. 0. 0. 0.]"
    assert "for 2 host (f32[4]) -> (f32[<=4])" in done[1] and "filter train.py:7" in done[1]
    for text, wanted in zip(done[2:], [["known only at run time"], ["filter train.py:7", "out of sorts"],
                                       ["no node 0"], ["/nonexistent"]], strict=True):
        assert [fragment for fragment in wanted if fragment not in text] == [], (text, wanted)
    lowered = subprocess.run([TOW, "lower", "--after", "split", "/dev/stdin"], input=done[1].replace(";", "\n"),
                             capture_output=True, text=True, check=False)
    assert lowered.returncode == 0, (done[1], lowered.stderr)


def test_host_functions_that_workers_do_not_allow_are_refused(tow):
    with cluster(tow, "--devices", "2") as address:
        [told] = lines(HOST + """
print(refusal(lambda: np.asarray(filtering("keep", "widen")((x,))[0])))
""", FUNCTIONS=str(BUILD / "tests/host/functions.so"), **address)
    assert "PERMISSION_DENIED" in told and "--host-functions" in told


def test_mistakes_in_a_program_are_errors_that_name_them():
    done = lines(PORTS + """
where, other = sharding(devices[:2], "d"), sharding(devices[2:4], "d")
def identity(where=where, shape=(4,)):
    return compiled(lambda a: a + 0, (where,), where, [shape])
program = Program("wrong")
stub = identity()
port = program.port(stub)
print(refusal(lambda: program.port(stub)))
print(refusal(lambda: program.argument(1, 0)))
a = program.argument(port, 0)
print(refusal(lambda: program.argument(port, 0)))
print(refusal(lambda: program.argument(port, 1)))
print(refusal(lambda: program.call(identity())))
print(refusal(lambda: program.call(identity(), (7, 0))))
print(refusal(lambda: program.call(identity(), (0, 1))))
print(refusal(lambda: program.call(stub, a)))
print(refusal(lambda: program.result(port, 0, program.call(identity(shape=(8,)), a))))
print(refusal(program.finish))
print(refusal(lambda: api("program_call", program.number, c_void_p(4096), None, None, c_size_t(0), None)))
print(refusal(lambda: api("slice_close", c_uint64(77))))
print(refusal(lambda: open_slice(100)))
print(refusal(lambda: open_slice(1, kind=b"gpu")))
print(refusal(lambda: stub(jnp.zeros(4))))
wrong = Program("shapes")
port = wrong.port(identity(shape=(8,)))
wrong.result(port, 0, wrong.call(identity(shape=(8,)), wrong.call(identity(), wrong.argument(port, 0), name="here"), name="there"))
print(refusal(wrong.finish))
print(refusal(lambda: wrong.port(identity())))
""")
    fragments = [["a port of a program already"], ["no port 1"], ["given twice"], ["not one of them"],
                 ["takes 1 arguments, but 0"], ["no node 7"], ["node 0", "no output 1"], ["a port of a program"],
                 ["port 0, result 0", "f32[8]", "f32[4]"], ["port 0: result 0 of 1 is not given"],
                 ["no executable at 0x1000"], ["no slice 77"], ["RESOURCE_EXHAUSTED", "100 devices"],
                 ["NOT_FOUND", "gpu"], ["is not finished"], ["here", "INVALID_ARGUMENT"], ["is finished"]]
    for text, wanted in zip(done, fragments, strict=True):
        assert [fragment for fragment in wanted if fragment not in text] == [], (text, wanted)


def test_slices_are_disjoint_while_devices_suffice():
    assert lines(PORTS + """
jax.device_put(1.0, devices[0]), jax.device_put(1.0, devices[3])  # Slices of one device.
taken = [open_slice(2) for _ in range(4)]
print(len({d for _, part in taken for d in part}))
shared = open_slice(4)[1]
print(len(shared), len(set(shared)))
api("slice_close", taken[1][0])
print(open_slice(1)[1][0] in taken[1][1])
""") == ["8", "4 4", "True"]


def test_the_text_is_read_by_tow_lower():
    text = "\n".join(lines(PORTS + """
program, fresh, run = chain([devices[:2], devices[2:4]], donated=True)
print(program.text())
""", TOW_LOCAL="workers=2,devices=2"))
    assert "stage1 train.py:1" in text and "donated" in text
    done = subprocess.run([TOW, "lower", "--after", "split", "/dev/stdin"], input=text,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, (text, done.stderr)
    assert "transfer" in done.stdout


def test_a_forked_child_gets_errors():
    assert lines(PORTS + """
program, fresh, run = chain([devices[:2], devices[2:4]])
x = fresh()
program.ports[0](x)
child = os.fork()
if child == 0:
    told = [refusal(program.abandon), refusal(lambda: open_slice(1)), refusal(lambda: run(x))]
    os._exit(0 if all("fork" in text for text in told) else 1)
print(os.waitpid(child, 0)[1])
program.ports[1]()
print(float(run(x)[1].sum()))
""") == ["0", "2080.0"]
