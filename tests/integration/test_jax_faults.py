"""Failures under JAX: each is an error that names its cause; nothing hangs or aborts."""

import contextlib
import shutil
import signal
import socket
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jax_script import NEEDS_THE_PLUGIN, await_end, finish, lines, run, start

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

MESH = """
mesh = Mesh(np.array(devices), ("d",))
step = jax.jit(lambda v: v + jax.lax.with_sharding_constraint(
    0 * v.mean(0, keepdims=True) + 1, NamedSharding(mesh, P())))
def fresh():
    return jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P("d")))
"""

# A computation that never ends.
FOREVER = """
forever = jax.jit(lambda v: jax.lax.while_loop(lambda s: s >= 0, lambda s: (s + 1) % 1000, v))
"""


def after(first: str, script: str) -> str:
    return first + textwrap.dedent(script)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))  # Socket paths must be short.
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def cluster(tow, folder: Path, *arguments: str) -> Iterator[str]:
    done = tow("up", "--folder", str(folder), *arguments)
    assert done.returncode == 0, done.stderr
    try:
        yield f"unix:{folder}/cluster.sock"
    finally:
        done = tow("down", "--folder", str(folder))
    assert done.returncode == 0, done.stderr


def refused(**environment: str) -> str:
    """The last line of JAX's error, when JAX gets no backend."""
    done = run("pass", **environment)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


# ---- connecting ----

@pytest.fixture
def token(folder) -> str:
    path = folder / "token"
    path.write_text("5a" * 32 + "\n")
    path.chmod(0o600)
    return str(path)


class Impostor:
    """Listens at the address of a cluster, and sends one line to each connection."""

    def __init__(self, path: Path, line: bytes) -> None:
        self.line = line
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            peer, _ = self.listener.accept()
            with peer, contextlib.suppress(OSError):
                if not peer.recv(8):
                    return  # Woken by close().
                peer.sendall(self.line)
                while peer.recv(4096):
                    pass

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.listener.getsockname())
        self.thread.join()
        self.listener.close()


def test_an_address_without_a_cluster_is_named(token):
    error = refused(TOW_ADDRESS="unix:/nonexistent/socket", TOW_TOKEN_FILE=token)
    assert "unix:/nonexistent/socket" in error
    assert "UNAVAILABLE" in error


def test_a_port_without_a_listener_is_named(token):
    with socket.socket() as bound:  # Bound but not listening, so no other process can listen.
        bound.bind(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{bound.getsockname()[1]}"
        error = refused(TOW_ADDRESS=address, TOW_TOKEN_FILE=token)
    assert address in error
    assert "nothing listens there" in error


def test_without_a_token_the_next_step_is_named():
    error = refused(TOW_ADDRESS="unix:/nonexistent/socket")
    assert "no token for the cluster at unix:/nonexistent/socket" in error
    assert "TOW_TOKEN_FILE" in error


@pytest.mark.parametrize("line, fragments", [
    (b"TOWPATH\x09", ["FAILED_PRECONDITION", "version 9", "we speak 1", "same release"]),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["HTTP", "is the address right"]),
])
def test_another_protocol_version_and_another_protocol_are_distinguished(folder, token, line, fragments):
    impostor = Impostor(folder / "other.sock", line)
    try:
        error = refused(TOW_ADDRESS=f"unix:{folder}/other.sock", TOW_TOKEN_FILE=token)
    finally:
        impostor.close()
    assert [fragment for fragment in fragments if fragment not in error] == [], error


def test_another_token_is_refused(tow, folder):
    with cluster(tow, folder, "--devices", "1") as address:
        other = folder / "other"
        other.write_text("5a" * 32 + "\n")
        other.chmod(0o600)
        error = refused(TOW_ADDRESS=address, TOW_TOKEN_FILE=str(other))
    assert "UNAUTHENTICATED" in error
    assert "does not have our token" in error


# ---- programs ----

def test_a_program_that_xla_rejects_is_an_error_and_the_session_continues():
    assert lines("""
        from jax import ffi
        try:
            jax.jit(lambda v: ffi.ffi_call("no_such_thing", jax.ShapeDtypeStruct((3,), np.float32))(v))(jnp.ones(3))
        except jax.errors.JaxRuntimeError as error:
            print("no_such_thing" in str(error))
        print(float(jnp.ones(3).sum()))
        """) == ["True", "3.0"]


# An op that StableHLO has since 1.14, as JAX 0.10 serialises it.
NEWER = '''
from jax._src.lib import xla_client
text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.composite"(%a) ({ ^bb0(%x: tensor<4xf32>):
    "stablehlo.return"(%x) : (tensor<4xf32>) -> () }) {name = "my.op",
    composite_attributes = {}, decomposition = @d} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32> }
func.func @d(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"""
try:
    devices[0].client.compile_and_load(
        text, xla_client.DeviceList(tuple(devices[:1])), xla_client.CompileOptions())
except jax.errors.JaxRuntimeError as error:
    print(" ".join(str(error).split()))
print(float(jnp.ones(3).sum()))
'''


def test_an_op_newer_than_the_cluster_is_named_with_the_version():
    message, after_it = lines(NEWER)
    assert "vhlo.composite_v2" in message
    assert "plugin version 1.13." in message
    assert after_it == "3.0"


def test_a_cluster_that_receives_a_newer_op_names_it_and_both_versions():
    message, after_it = lines(NEWER, TOW_STABLEHLO="1.17.0")
    assert "vhlo.composite_v2" in message
    assert "StableHLO_v1.17.0" in message and "StableHLO v1.13.7" in message
    assert after_it == "3.0"


# ---- memory ----

def test_out_of_memory_is_an_error_and_the_session_continues(tow, folder):
    no_room = ["--memory", "600000000", "--host-memory", "0"]  # Idle arrays cannot be spilled.
    with cluster(tow, folder, "--devices", "2", *no_room) as address:
        assert lines("""
            kept = []
            try:
                for i in range(9):
                    kept.append(jnp.ones(1 << 26))
                    kept[-1].block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                print(i, "RESOURCE_EXHAUSTED" in str(error))
            kept.clear()
            print(float(jnp.ones(1 << 20).sum()))
            """, TOW_ADDRESS=address) == ["2 True", "1048576.0"]


def test_uploads_results_and_temporaries_too_large_for_the_device_are_errors(tow, folder):
    with cluster(tow, folder, "--devices", "1", "--memory", "64000000") as address:
        assert lines("""
            def tell(make):
                try:
                    jax.block_until_ready(make())
                except jax.errors.JaxRuntimeError as error:
                    print("RESOURCE_EXHAUSTED" in str(error))
            small = jnp.ones(1 << 20)
            tell(lambda: jax.device_put(np.ones(1 << 25, np.float32)))            # an upload
            tell(lambda: jax.jit(lambda v: jnp.tile(v, 32))(small))               # a result
            tell(lambda: jax.jit(lambda v: jnp.sort(jnp.tile(v, 32))[0])(small))  # a temporary
            print(float(small.sum()))
            """, TOW_ADDRESS=address) == ["True", "True", "True", "1048576.0"]


# ---- workers ----

@pytest.mark.parametrize("local, victim", [
    ("workers=2,devices=4", "worker-1"), ("workers=1,devices=8,apart", "worker-0")])
def test_a_worker_killed_in_a_step_fails_it_and_its_devices_return(local, victim):
    assert lines(after(MESH, f"""
        x = fresh()
        for _ in range(100):
            x = step(x)
        kept = x
        os.kill(worker_process("{victim}"), signal.SIGKILL)
        try:
            for _ in range(1000):
                x = step(x)
            print(np.asarray(x))
        except jax.errors.JaxRuntimeError as error:
            print("UNAVAILABLE" in str(error) and "{victim}" in str(error))
        while True:  # The watchdog of the test ends it.
            try:
                x = step(fresh())
                print(float(np.asarray(x).mean()))
                break
            except jax.errors.JaxRuntimeError as error:
                assert "UNAVAILABLE" in str(error), error
        for use in (step, jax.jit(lambda v: v * 2), lambda v: v):
            try:
                np.asarray(use(kept))
            except jax.errors.JaxRuntimeError as error:
                print("UNAVAILABLE" in str(error))
        print(float(jax.jit(lambda v: v + 1)(jax.device_put(1.0, devices[-1]))))
        """), TOW_LOCAL=local) == ["True", "2.0", "True", "True", "True", "2.0"]


def test_devices_of_a_disconnected_worker_are_an_error_at_once():
    assert lines(after(MESH, """
        def tell(use):
            try:
                jax.block_until_ready(use())
            except jax.errors.JaxRuntimeError as error:
                return "UNAVAILABLE" in str(error) and "worker-1" in str(error)
        far = jax.jit(lambda v: v + 1)
        x = step(fresh())
        y = far(jax.device_put(1.0, devices[7]))
        jax.block_until_ready((x, y))
        os.kill(cluster_process(), signal.SIGSTOP)  # It restarts no process.
        os.kill(worker_process("worker-1"), signal.SIGKILL)
        print(tell(lambda: step(x)))
        print([tell(use) for use in (lambda: step(x), lambda: far(y), fresh,
                                     lambda: jax.device_put(np.ones(1 << 20), devices[5]),
                                     lambda: jax.jit(lambda v: v - 1)(x),
                                     lambda: jax.device_put(jnp.ones(3), devices[6]))])
        print(float(far(jax.device_put(1.0, devices[0]))))
        os.kill(cluster_process(), signal.SIGCONT)
        while tell(lambda: step(fresh())):
            pass
        print(float(np.asarray(step(fresh())).mean()), float(far(jax.device_put(1.0, devices[7]))))
        """), TOW_LOCAL="workers=2,devices=4") == [
            "True", str([True] * 6), "2.0", "2.0 2.0"]


def test_a_killed_worker_does_not_affect_the_others():
    assert lines(after(MESH, """
        here = jax.device_put(np.float32(20), devices[0])
        double = jax.jit(lambda v: v * 2)
        double(here)
        os.kill(worker_process("worker-1"), signal.SIGKILL)
        try:
            np.asarray(step(fresh()))
        except jax.errors.JaxRuntimeError:
            pass
        print(float(double(here)), float(jax.device_put(1.0, devices[0]) + 1))
        """), TOW_LOCAL="workers=2,devices=4") == ["40.0 2.0"]


def test_a_worker_killed_repeatedly_returns_each_time():
    assert lines(after(MESH, """
        for _ in range(3):
            while True:
                try:
                    x = step(fresh())
                    print(float(np.asarray(x).mean()))
                    break
                except jax.errors.JaxRuntimeError as error:
                    assert "UNAVAILABLE" in str(error), error
            os.kill(worker_process("worker-1"), signal.SIGKILL)
            try:
                for _ in range(1000):
                    x = step(x)
                np.asarray(x)
            except jax.errors.JaxRuntimeError as error:
                print("worker-1" in str(error))
        """), TOW_LOCAL="workers=2,devices=4") == ["2.0", "True"] * 3


# ---- the controller ----

# Processes of the cluster: the controller, or all but compilers; and the retry loop of docs/jax.md.
KILLING = """
def controllers():
    return [p for p in children(cluster_process())
            if {"controller", "--with-controller"} & set(command_line(p))]
def all_processes():
    return [p for p in children(cluster_process()) if command_line(p)[0] == "tow"]
def kill(processes):
    for process in processes:
        os.kill(process, signal.SIGKILL)
def tell(use):
    try:
        np.asarray(use())
    except jax.errors.JaxRuntimeError as error:
        return str(error)
def persist(use):
    while True:  # The watchdog of the test ends it.
        try:
            return float(np.asarray(use()).mean())
        except jax.errors.JaxRuntimeError as error:
            assert "UNAVAILABLE" in str(error), error
"""


@pytest.mark.parametrize("local, victims", [
    ("devices=8", "controllers()"), ("devices=8,apart", "controllers()"), ("devices=8,apart", "all_processes()"),
    ("workers=2,devices=4", "controllers()"), ("workers=2,devices=4", "all_processes()")])
def test_a_killed_controller_fails_everything_and_returns(local, victims):
    assert lines(after(MESH + KILLING, f"""
        x = kept = step(fresh())
        idle = jax.device_put(np.ones((8, 128), np.float32), x.sharding)  # Too large to be a cached value.
        jax.block_until_ready((x, idle))
        kill({victims})
        def on():
            global x
            while True:
                x = step(x)
                jax.block_until_ready(x)
        error = tell(on)
        print("UNAVAILABLE" in error and "the cluster is gone" in error)
        print(persist(lambda: step(fresh())))
        for use in (step, jax.jit(lambda v: v * 2), lambda v: v, lambda v: jax.device_put(v, devices[3])):
            print([("UNAVAILABLE" in tell(lambda: use(old)), "again" in tell(lambda: use(old))) for old in (kept, idle)])
        print(jax.devices() == devices, float(jax.jit(lambda v: v + 1)(jax.device_put(1.0, devices[-1]))))
        """), TOW_LOCAL=local) == ["True", "2.0"] + [str([(True, True)] * 2)] * 4 + ["True 2.0"]


def test_a_controller_killed_repeatedly_returns_each_time():
    assert lines(after(MESH + KILLING, """
        for _ in range(3):
            print(persist(lambda: step(fresh())))
            kill(controllers())
        print(persist(lambda: step(fresh())))
        """)) == ["2.0"] * 4


def test_all_kinds_of_functions_work_after_the_controller_returns():
    assert lines(after(MESH + KILLING, """
        def double(v):
            return np.asarray(v) * 2
        calling = jax.jit(lambda v: jax.pure_callback(double, jax.ShapeDtypeStruct((), np.float32), v))
        giving = jax.jit(lambda v: v + 1, donate_argnums=0)
        ahead = step.lower(fresh()).compile()
        one = lambda device=0: jax.device_put(np.float32(1), devices[device])
        print(persist(lambda: calling(one())), persist(lambda: giving(one())), persist(lambda: ahead(fresh())))
        kill(controllers())
        print(persist(lambda: calling(one())), persist(lambda: giving(one())), persist(lambda: giving(one(5))),
              persist(lambda: ahead(fresh())))
        print("HloModule" in ahead.as_text(), devices[7].memory_stats()["bytes_in_use"] >= 0)
        """)) == ["2.0 2.0 2.0", "2.0 2.0 2.0 2.0", "True True"]


def test_without_a_controller_every_use_is_an_error_at_once():
    assert lines(after(MESH + KILLING, """
        x = step(fresh())
        jax.block_until_ready(x)
        os.kill(cluster_process(), signal.SIGSTOP)  # It restarts no process.
        kill(controllers())
        while tell(lambda: step(x)) is None:
            pass
        print(["UNAVAILABLE" in tell(use) and "the cluster is gone" in tell(use) for use in (
            lambda: step(x), fresh, lambda: jax.jit(lambda v: v - 1)(x), lambda: jax.device_put(x, devices[1]),
            lambda: jax.device_put(np.ones(1 << 20), devices[5]))])
        os.kill(cluster_process(), signal.SIGCONT)
        print(persist(lambda: step(fresh())))
        """)) == [str([True] * 5), "2.0"]


def test_a_local_cluster_that_ended_for_good_is_reported():
    assert lines(after(MESH + KILLING, """
        jax.block_until_ready(fresh())
        kill([cluster_process()])
        while (error := tell(fresh)) is None or "ended for good" not in error:
            pass
        print("UNAVAILABLE" in error and "start the program again" in error)
        """)) == ["True"]


# ---- processes ----

def test_a_forked_child_gets_an_error_and_the_parent_continues():
    assert lines("""
        f = jax.jit(lambda v: v + 1)
        x = f(jnp.ones(()))
        def tell(use):
            try:
                jax.block_until_ready(use())
            except jax.errors.JaxRuntimeError as error:
                return "forked" in str(error)
            except Exception:
                return False
        child = os.fork()
        if child == 0:
            failed = [tell(use) for use in (lambda: f(x), lambda: np.asarray(x), lambda: jnp.ones(7) + 1,
                                          lambda: jax.device_put(np.ones(1 << 20)))]
            os._exit(7 if failed == [True] * 4 else 8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(float(f(x)))
        """) == ["7", "3.0"]


@pytest.mark.parametrize("wait", [
    "x.block_until_ready()", "np.asarray(x)", "float(x)", "jax.effects_barrier() or jax.device_get(x)"])
def test_ctrl_c_ends_a_wait_and_the_cluster(wait):
    process = start(after(FOREVER, f"""
        x = forever(jnp.int32(3))
        try:
            print(cluster_process(), flush=True)
            {wait}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """))
    cluster_pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.stdout.split() == ["interrupted"], done.stderr
    assert done.returncode == 0, done.stderr
    await_end(cluster_pid)


@pytest.mark.parametrize("first", ["jnp.zeros((), jnp.int32)", "forever(jnp.int32(3))"])
def test_a_script_exits_cleanly_with_a_thousand_steps_in_flight(first):
    done = run(after(FOREVER, f"""
        f = jax.jit(lambda v: v + 1)
        x = {first}
        for _ in range(1000):
            x = f(x)
        print(cluster_process())
        """))
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    await_end(int(done.stdout))


def test_a_local_cluster_ends_when_its_script_is_killed():
    process = start("""
        x = jnp.zeros(()) + 1
        print(cluster_process(), flush=True)
        signal.pause()
        """)
    cluster_pid = int(process.stdout.readline())
    process.kill()
    finish(process)
    await_end(cluster_pid)
