"""Custom partitioning: compilers of the cluster query functions in the user's process."""

import textwrap

from jax_script import NEEDS_THE_PLUGIN, cluster, lines, run, same_as_jax_cpu

pytestmark = NEEDS_THE_PLUGIN

TWO_WORKERS = {"TOW_LOCAL": "workers=2,devices=2"}
# An operation with a partitioning of its own; `how` runs during each query.
SCALED = """
    from jax.experimental.custom_partitioning import custom_partitioning
    mesh = Mesh(np.array(devices[:4]), ("d",))
    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh, P("d")))
    def scaled(how=lambda: None, device=None, rule="i j -> i j"):
        @custom_partitioning
        def f(x):
            return x * x.sum()
        def partition(mesh, operands, result):
            how()
            each = device or (lambda x: x * jax.lax.psum(x.sum(), "d"))
            return mesh, each, operands[0].sharding, (operands[0].sharding,)
        f.def_partition(partition=partition, sharding_rule=rule)
        return f
    def compiled(f):
        with mesh:
            return jax.jit(f)(x)
"""


def with_scaled(script: str) -> str:
    return textwrap.dedent(SCALED) + textwrap.dedent(script)


def test_values_are_those_of_the_cpu_backend():
    same_as_jax_cpu(with_scaled("""
        y = compiled(scaled())
        print(y.sharding.is_equivalent_to(x.sharding, 2) + 0)
        show(y, *[shard.data for shard in y.addressable_shards])
        # In a loop, twice in one program, and inside a function with a gradient.
        f = scaled(device=lambda x: jnp.fft.fft(x).real)
        with mesh:
            show(jax.jit(lambda x: f(jax.lax.fori_loop(0, 3, lambda _, v: f(v) / 9, x)))(x))
            show(jax.jit(jax.grad(lambda s: (jax.lax.stop_gradient(f(x)) * s * s).sum()))(3.0))
    """), **TWO_WORKERS)


def test_without_shardy_shardings_are_queried():
    same_as_jax_cpu(with_scaled("""
        jax.config.update("jax_use_shardy_partitioner", False)
        seen = set()
        @custom_partitioning
        def f(x):
            return jnp.tanh(x)
        def note(what, value):
            seen.add(what)
            return value
        f.def_partition(
            partition=lambda mesh, operands, result: note("partition", (
                mesh, jnp.tanh, result.sharding, (result.sharding,))),
            infer_sharding_from_operands=lambda mesh, operands, result: note(
                "infer", operands[0].sharding),
            propagate_user_sharding=lambda mesh, user: note("user", user.sharding))
        sharded = NamedSharding(mesh, P(None, "d"))
        with mesh:
            show(jax.jit(f)(x))
            show(jax.jit(lambda x: jax.lax.with_sharding_constraint(f(x + 1), sharded))(np.asarray(x)))
        print(len(seen & {"partition", "infer", "user"}))
    """), **TWO_WORKERS)


def test_inspect_array_sharding_runs_during_compilation():
    assert lines(with_scaled("""
        def f(x):
            y = x @ x.T
            jax.debug.inspect_array_sharding(y, callback=lambda s: print(tuple(s.spec)))
            return y
        jax.jit(f)(x)
        print("compiled")
        jax.jit(f)(x)
        jax.jit(f)(x[:2, :2])
    """), **TWO_WORKERS)[:2] == ["('d',)", "compiled"]


def test_an_exception_in_a_query_is_the_error_of_the_compilation():
    printed = lines(with_scaled("""
        def refuse():
            raise ValueError("there is no way to divide this")
        def attempt(f):
            try:
                compiled(f)
            except jax.errors.JaxRuntimeError as error:
                print(str(error).replace(chr(10), " "))
        attempt(scaled(refuse))
        attempt(scaled(device=lambda x: jax.ffi.ffi_call(
            "of_the_user", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)))
        def look(x):
            jax.debug.inspect_array_sharding(x + 1, callback=lambda s: 1 / 0)
            return x
        attempt(look)
        print(compiled(scaled()).shape)
    """), **TWO_WORKERS)
    assert "there is no way to divide this" in printed[0] and "in refuse" in printed[0]
    assert "PERMISSION_DENIED" in printed[1] and "'of_the_user'" in printed[1]
    assert "division by zero" in printed[2]
    assert printed[3] == "(8, 4)"


def test_functions_may_compile_and_run_programs_during_a_query():
    """Nested, so that more compilations wait than there are compilers."""
    assert lines(with_scaled("""
        def deeper(depth):
            if depth > 0:
                compiled(scaled(lambda: deeper(depth - 1)))
            print(float(jax.jit(lambda v: v.sum() + depth)(jnp.arange(4.0))))
        compiled(scaled(lambda: deeper(3)))
        up = cluster_process()
        print(sum("tow_compile_child" in command_line(p)[0] for p in children(up)) <= 1)
    """), **TWO_WORKERS) == ["6.0", "7.0", "8.0", "9.0", "True"]


def test_threads_compile_at_once_and_each_is_queried():
    assert lines(with_scaled("""
        asked = []
        threads = [threading.Thread(target=lambda i=i: compiled(scaled(lambda: asked.append(i))))
                   for i in range(6)]
        for each in threads: each.start()
        for each in threads: each.join()
        print(sorted(asked))
    """), **TWO_WORKERS) == ["[0, 1, 2, 3, 4, 5]"]


def test_programs_with_queries_are_not_cached(tmp_path):
    """The program names the function by its address, which differs in another process."""
    script = with_scaled("""
        from jax.experimental import serialize_executable
        with mesh:
            made = jax.jit(scaled(lambda: print("asked"))).lower(x).compile()
        try:
            serialize_executable.serialize(made)
        except Exception as error:
            print("custom_partitioning" in str(error))
        f = scaled(lambda: print("asked"))
        compiled(f); jax.clear_caches(); compiled(f)
    """)
    for _ in range(2):
        printed = lines(script, TOW_COMPILE_CACHE=str(tmp_path), **TWO_WORKERS)
        assert printed == ["asked", "True", "asked", "asked"]


def test_a_client_that_dies_during_a_query_leaves_no_compiler_waiting(tow):
    with cluster(tow, "--workers", "1", "--devices", "4") as there:
        done = run(with_scaled("""
            compiled(scaled(lambda: os._exit(7)))
        """), **there)
        assert done.returncode == 7, done.stderr[-2000:]
        assert lines(with_scaled("""
            print(compiled(scaled()).shape)
        """), **there) == ["(8, 4)"]


def test_a_restarted_cluster_queries_again():
    assert lines(with_scaled("""
        asked = []
        f = jax.jit(scaled(how=lambda: asked.append(1)))
        def result():
            with mesh:
                return float(np.asarray(f(jax.device_put(np.ones((8, 4), np.float32), x.sharding))).sum())
        print(result(), len(asked))
        for process in [p for p in children(cluster_process()) if command_line(p)[0] == "tow"]:
            os.kill(process, signal.SIGKILL)
        while len(asked) < 2:  # The watchdog is the test's.
            try:
                print(result(), len(asked))
            except jax.errors.JaxRuntimeError as error:
                assert "UNAVAILABLE" in str(error), error
    """), **TWO_WORKERS) == ["1024.0 1", "1024.0 2"]
