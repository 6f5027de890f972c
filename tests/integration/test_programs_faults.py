"""Bad input and failures: an exception at the user's line, and nothing stays behind in the cluster."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS
from program_script import check

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_that_fail_leave_nothing_and_the_next_one_runs(tmp_path, version):
    check(tmp_path, """
        def place(s):
            return jax.device_put(v, s.sharding())
        p = tow.program(lambda x, y: (a(x), b(y)))
        x, y = place(s0), place(s1)
        good = (v * 2, v + 1)
        same(p(x, y), good)
        # An argument of the second port, then of the first, was deleted.
        for x, y, bad in ((place(s0), place(s1), 1), (place(s0), place(s1), 0)):
            (x, y)[bad].delete()
            error(Exception, lambda: p(x, y), "deleted")
            same(p(place(s0), place(s1)), good)
        # An exception, or Ctrl-C, between two ports.
        [[plan]] = p.plans.values()
        ports, begun = plan.ports, []
        def begin(*arguments):
            begun.extend(ports[0][0](*arguments))
            return list(begun)
        for kind in (KeyboardInterrupt, MemoryError):
            def stop(*_):
                raise kind("stop")
            del begun[:]
            plan.ports = [(begin, ports[0][1]), (stop, ports[1][1])]
            error(kind, lambda: p(v, v), "stop")
            error(Exception, lambda: begun[0], "abandoned")
        plan.ports = ports
        same(p(v, v), good)
        # Arrays of JAX's CPU backend are brought.
        cpu = jax.device_put(v, jax.devices("cpu")[0])
        same(p(cpu, cpu), good)
        same((a(cpu), b(cpu)), good)
        # A program that nobody finished, and one whose making failed.
        from towpath.programs import library
        unfinished = library.Builder("unfinished")
        del unfinished
        error(TypeError, lambda: tow.program(lambda x: a(x) @ jnp.ones((7, 7)))(v))
        with jax.disable_jit():
            same(p(v, v), good)
        del x, y, begun, plan, ports
        nothing_is_left()
        same(p(v, v), good)
    """, python_path=version, JAX_PLATFORMS="towpath,cpu")


@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_are_checked_when_jax_says_so(tmp_path, version):
    check(tmp_path, """
        p = tow.program(lambda x: (a(x), b(jnp.log(b(x))), 3, jax.random.key(1)))
        for name, bad in (("jax_debug_nans", v - 5), ("jax_debug_infs", v - 1)):
            jax.config.update(name, True)
            same(p(v)[0], v * 2)
            error(FloatingPointError, lambda: p(bad), "undecorated")
            same(p(v)[0], v * 2)
            jax.config.update(name, False)
            jax.block_until_ready(p(bad)[0])
        del p  # It holds a constant.
        nothing_is_left()
    """, python_path=version)


def test_threads_call_one_program_at_once(tmp_path):
    check(tmp_path, """
        traces, bad = [], []
        def f(x, y):
            traces.append(1)
            return b(a(x)), c(y)
        p = tow.program(f)
        def work(k):
            try:
                for i in range(40):
                    x = np.full((2, 4), k * 1000 + i, np.float32)
                    same(p(x, x), (x * 2 + 1, x / 2))
            except BaseException as e:
                bad.append(e)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not bad, bad[0]
        assert len(traces) == 1, traces
        nothing_is_left()
    """)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_at_run_time_comes_with_the_values(tmp_path, version):
    check(tmp_path, """
        def raises(x):
            if x.sum() > 28:
                raise ValueError("no good value")
            return np.asarray(x)
        q = tow.on(s1, lambda x: jax.pure_callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        def f(x):
            return c(q(x))  # the call
        p = tow.program(f)
        same(p(v), v / 2)
        node = f"@{s1.name} {os.path.basename(line('# the call'))}"
        z = p(v + 1)  # Returns at once.
        error(Exception, lambda: z, "no good value", node, "on device ")
        error(Exception, lambda: c(z), "no good value")
        error(Exception, lambda: p(z), "no good value")
        same(p(v), v / 2)
        del z
        nothing_is_left()
    """, python_path=version)


def test_ports_stay_out_of_the_persistent_cache(tmp_path):
    script = f"""
        import os
        jax.config.update("jax_compilation_cache_dir", "{tmp_path}/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        p = tow.program(lambda x: (b(a(x)), c(x)))
        same(p(v), (v * 2 + 1, v / 2))
        same(jax.jit(lambda q: q * 17)(v), v * 17)  # The cache works for the rest.
        entries = os.listdir("{tmp_path}/cache")
        assert entries and not any("towpath_port" in name for name in entries), entries
        print(len(entries))
    """
    assert check(tmp_path, script) == check(tmp_path, script)


def test_a_lost_slice_and_a_slice_too_small(tmp_path):
    check(tmp_path, """
        error(tow.TowpathError, lambda: tow.slice(100), "100 devices")
        p = tow.program(lambda x: b(a(x)))
        same(p(v), v * 2 + 1)
        assert all("worker-1" in repr(d) for d in s1.devices), s1
        os.kill(worker_process("worker-1"), signal.SIGKILL)
        try:
            while True:  # Until the loss is known.
                np.asarray(p(v))
        except Exception as e:
            assert "worker-1" in str(e) or "lost" in str(e), e
        # What is on the other workers goes on.
        left = tow.program(lambda x: a(x) + 1)
        same(left(v), v * 2 + 1)
    """, TOW_LOCAL="workers=3,devices=2")


def test_a_fork_of_the_process_gets_an_error(tmp_path):
    check(tmp_path, """
        p = tow.program(lambda x: b(a(x)))
        x = jax.block_until_ready(p(v))
        child = os.fork()
        if child == 0:
            try:
                np.asarray(p(x))
            except BaseException as e:
                os._exit(7 if "fork" in str(e) else 8)
            os._exit(9)
        _, code = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(code) == 7, os.waitstatus_to_exitcode(code)
        same(p(x), v * 4 + 3)
    """)
