"""Linear algebra and Fourier transforms of plain JAX: LAPACK runs on the workers."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, ROOT, lines, same_as_jax_cpu

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN
OLDER = ROOT / ".venv" / "jax-2025"  # scripts/extra_packages.sh
VERSIONS = [
    pytest.param("", id="installed"),
    pytest.param(str(OLDER), id="2025", marks=pytest.mark.skipif(
        not (OLDER / "towpath-stamp").exists(),
        reason="skipped: scripts/extra_packages.sh has not fetched JAX 0.6.2")),
]

# Factors are unique only up to signs and phases: the script checks their products,
# and prints what is unique.
TOOLS = """
import jax.scipy.linalg as sl
L = jax.lax.linalg
jax.config.update("jax_enable_x64", True)
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
def matrix(dtype, *shape, seed=0):
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * r.standard_normal(shape)
    return x.astype(dtype)
def turned(x):
    return np.conj(np.swapaxes(np.asarray(x), -1, -2))
def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    loose = a.dtype in (np.float32, np.complex64)
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    np.testing.assert_allclose(a, b, rtol=2e-3 if loose else 1e-8, atol=2e-4 if loose else 1e-9)
def shows(*values):
    for v in values:
        v = np.asarray(v)
        show(np.abs(v), v.real, v.imag)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_factors_multiply_to_their_matrices(version):
    same_as_jax_cpu(TOOLS + """
def check(dtype):
    a, b = matrix(dtype, 2, 5, 5), matrix(dtype, 2, 5, 5, seed=1)
    tall, h = matrix(dtype, 2, 6, 4), np.asarray(a + turned(a)) / 2
    definite = a @ turned(a) + 5 * np.eye(5, dtype=dtype)
    def factors(a, tall, h, definite):
        return (jnp.linalg.cholesky(definite), jnp.linalg.eigh(h), jnp.linalg.eig(a),
                jnp.linalg.svd(tall), L.svd(tall, full_matrices=False, algorithm=L.SvdAlgorithm.QR),
                L.schur(a), L.hessenberg(a), L.tridiagonal(h), jnp.linalg.qr(tall),
                jax.vmap(lambda m: sl.qr(m, pivoting=True))(tall), L.lu(a))
    c, (w, v), (ew, ev), (u, s, vt), (u2, s2, vt2), (t, z), (hs, taus), tri, (q, r), piv, lu = (
        jax.jit(factors)(a, tall, h, definite))
    c, w, v, u, s, vt, ew, ev, t, z, q, r = map(np.asarray, (c, w, v, u, s, vt, ew, ev, t, z, q, r))
    same(c @ turned(c), definite)
    same(v * w[..., None, :].astype(dtype) @ turned(v), h)
    same(a @ ev, ev * ew[..., None, :])
    same(u[..., :4] * s[..., None, :].astype(dtype) @ vt, tall)
    same(np.asarray(u2) * np.asarray(s2)[..., None, :].astype(dtype) @ np.asarray(vt2), tall)
    same(z @ t @ turned(z), a)
    same(q @ r, tall)
    pq, pr, pp = map(np.asarray, piv)
    same(pq @ pr, np.take_along_axis(tall, pp[:, None, :], axis=2))
    rows = np.asarray(lu[2])
    l = np.tril(np.asarray(lu[0]), -1) + np.eye(5, dtype=dtype)
    same(l @ np.triu(np.asarray(lu[0])), np.take_along_axis(a, rows[..., None], axis=1))
    shows(c, w, np.sort(np.abs(ew)), s, s2, np.abs(np.asarray(tri[2])), np.abs(hs), *lu[1:])
for dtype in DTYPES:
    check(dtype)
""", python_path=version)


def test_functions_that_use_factors_agree():
    same_as_jax_cpu(TOOLS + """
def made(a, b, d, tall, below, diagonal, above):
    return (jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)[1],
            jnp.linalg.pinv(tall), jnp.linalg.lstsq(tall, b[:, :2])[0], jnp.linalg.matrix_rank(tall),
            jnp.linalg.cond(a), jnp.linalg.norm(a, 2), jnp.linalg.eigvals(d).real.sort(),
            jnp.linalg.eigvalsh(d), sl.sqrtm(d), sl.expm(a), sl.cho_solve(sl.cho_factor(d), b),
            sl.solve_triangular(d, b, trans="C", lower=True),
            L.triangular_solve(d, b.T, left_side=False, transpose_a=True, unit_diagonal=True),
            L.tridiagonal_solve(below, diagonal, above, b),
            jax.vmap(lambda m: sl.solve_triangular(d, m))(jnp.stack([b, 2 * b])))
for dtype in (np.float32, np.complex128):
    a, b, tall = matrix(dtype, 5, 5), matrix(dtype, 5, 3, seed=1), matrix(dtype, 5, 2, seed=2)
    d = a @ turned(a) + 5 * np.eye(5, dtype=dtype)
    shows(*jax.jit(made)(a, b, d, tall, b[:, 0], b[:, 1] + 5, b[:, 2]))
show(*sl.eigh_tridiagonal(jnp.arange(6.0), jnp.ones(5), eigvals_only=True)[None])
for beside in (jnp.ones(5), (1 + 0.5j) * jnp.ones(5)):  # Vectors by inverse iteration, up to their phases.
    values, vectors = sl.eigh_tridiagonal(jnp.arange(6.0).astype(beside.dtype), beside)
    show(values.sum(), *abs(vectors))
""")


def test_derivatives_and_vmap_agree():
    same_as_jax_cpu(TOOLS + """
def losses(a):
    d = a @ jnp.conj(a.T) + 3 * jnp.eye(4, dtype=a.dtype)
    return (jnp.linalg.cholesky(d).real.sum() + jnp.linalg.eigh(d)[0][0]
            + jnp.linalg.svd(a, full_matrices=False)[1].sum() + abs(jnp.linalg.qr(a)[1]).sum()
            + abs(jnp.linalg.solve(d, a)).sum() + abs(jnp.linalg.det(a))
            + abs(jnp.linalg.eigvals(a)).sum())
for dtype in (np.float64, np.complex128):
    a = matrix(dtype, 3, 4, 4)
    shows(jax.jit(jax.vmap(jax.grad(losses)))(a))
shows(jax.jit(jax.jacfwd(jnp.linalg.cholesky))(np.eye(3) * 2 + .1))
""")


def test_invalid_and_empty_matrices_behave_as_on_the_cpu_backend():
    same_as_jax_cpu(TOOLS + """
def holes(*values):
    for v in values:
        v = np.asarray(v)
        print(v.ndim, *v.shape, np.isnan(v).sum(), np.isinf(v).sum())
functions = [jnp.linalg.cholesky, jnp.linalg.eigh, jnp.linalg.eig, jnp.linalg.svd, jnp.linalg.qr, L.lu]
for dtype in (np.float32, np.complex128):
    one = np.eye(3, dtype=dtype)
    bad, none = np.stack([one, np.full((3, 3), np.nan, dtype)]), np.zeros((2, 0, 0), dtype)
    holes(*jax.tree.leaves(jax.jit(lambda *a: [[f(m) for f in functions] for m in a])(bad, bad[:0], none)))
    holes(*L.schur(bad[1]), jnp.linalg.eigvals(bad * np.inf))
    holes(jnp.linalg.inv(0 * one), jnp.linalg.cholesky(np.stack([one, -one])))
    shows(jnp.linalg.eigh(np.triu(one * np.nan, 1) + 2 * one, UPLO="L", symmetrize_input=False)[0])
for f in (jnp.linalg.cholesky, jnp.linalg.eigh, jnp.linalg.eig, L.schur, jnp.linalg.inv):
    try:
        f(jnp.ones((2, 3)))
        print(0)
    except (TypeError, ValueError):
        print(1)
""")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_is_sharded_over_devices(version):
    same_as_jax_cpu(TOOLS + """
mesh = Mesh(np.array(devices[:4]), ("d",))
split, everywhere = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def factors(a):
    h = a @ jnp.swapaxes(a, -1, -2) + 4 * jnp.eye(4)
    return jnp.linalg.eigh(h), jnp.linalg.svd(a), jnp.linalg.qr(a), L.lu(a)[:2], jnp.linalg.cholesky(h)
host = matrix(np.float64, 8, 4, 4)
x = jax.device_put(host, split)
(w, v), (u, s, vt), (q, r), (lu, pivots), c = jax.jit(factors)(x)
assert all(o.sharding.is_equivalent_to(split, o.ndim) for o in (w, u, s, q, lu, c)), w.sharding
assert all(o.addressable_shards[1].data.shape[0] == 2 for o in (w, u, s, q, lu, c))
same(np.asarray(q) @ np.asarray(r), host)
shows(w, s, c, pivots)
# Five matrices on four devices; a matrix that is itself sharded; and within shard_map.
show(jax.jit(lambda a: jnp.linalg.svd(jax.lax.with_sharding_constraint(a, split), compute_uv=False))(host[:5]))
y = jax.device_put(host, NamedSharding(mesh, P(None, "d", None)))
show(jax.jit(lambda a: jnp.linalg.eigvalsh(a @ jnp.swapaxes(a, -1, -2)))(y))
show(jax.jit(jax.shard_map(lambda a: jnp.linalg.inv(a), mesh=mesh, in_specs=P("d"),
                           out_specs=P("d"), check_vma=False))(x))
show(jax.jit(jnp.linalg.inv, in_shardings=split, out_shardings=everywhere)(x))
""", python_path=version, TOW_LOCAL="workers=2,devices=2")


def test_a_sharded_batch_is_not_gathered():
    assert lines(TOOLS + """
split = NamedSharding(Mesh(np.array(devices[:4]), ("d",)), P("d"))
x = jax.device_put(matrix(np.float32, 8, 4, 4), split)
text = jax.jit(lambda a: (jnp.linalg.eigh(a), jnp.linalg.svd(a), L.lu(a))).lower(x).compile().as_text()
print("lapack_ssyevd_ffi" in text, "all-gather" in text)
""", TOW_LOCAL="workers=1,devices=4") == ["True False"]


def test_only_known_calls_of_the_right_shape_run():
    got = lines(TOOLS + """
def call(target, a, *shapes, **attributes):
    try:
        out = jax.ffi.ffi_call(target, [jax.ShapeDtypeStruct(*s) for s in shapes])(a, **attributes)
        return jax.block_until_ready(out)
    except Exception as e:
        return str(e).splitlines()[0]
f, i = np.float32, np.int32
a = jnp.ones((4, 4), f)
print(call("lapack_sgetrf", a, ((4, 4), f), ((4,), i), ((), i)))
print(call("lapack_sgetrf_ffi", a, ((4, 4), f), ((3,), i), ((), i)))
print(call("lapack_sgetrf_ffi", a, ((4, 4), f), ((4,), f), ((), i)))
print(call("lapack_ssyevd_ffi", a, ((4, 4), f), ((4,), f), ((), i), mode=np.uint8(7), uplo=np.uint8(76)))
print(call("lapack_spotrf_ffi", a, ((4, 4), f), ((), i)))
print(float(jnp.linalg.det(2 * jnp.eye(3))))
""", TOW_LOCAL="workers=1,devices=1")
    for line, message in zip(got, [
            "PERMISSION_DENIED", "dimension k is 3, not 4", "elements of type",
            "attribute mode is 7", "no attribute uplo"], strict=False):
        assert message in line, line
    assert float(got[5]) == pytest.approx(8)


def test_a_host_without_lapack_reports_it():
    [line] = lines("""
try:
    jax.block_until_ready(jnp.linalg.inv(jnp.eye(3)))
except Exception as e:
    print(str(e).splitlines()[0])
""", TOW_LOCAL="workers=1,devices=1", TOW_LAPACK_LIBRARY="/nowhere/liblapack.so")
    assert "no LAPACK" in line and "/nowhere/liblapack.so" in line and "tow setup" in line, line


def test_fourier_transforms_agree():
    same_as_jax_cpu(TOOLS + """
F = jnp.fft
for real, dtype in ((np.float32, np.complex64), (np.float64, np.complex128)):
    x, r = matrix(dtype, 3, 6, 8), matrix(real, 3, 6, 8)
    shows(*jax.jit(lambda x, r: (
        F.fft(x), F.ifft(x), F.fft(x, n=5), F.fft(x, axis=0), F.fft2(x), F.ifft2(x), F.fftn(x),
        F.ifftn(x, norm="ortho"), F.rfft(r), F.irfft(x), F.irfft(x, n=7), F.rfft2(r), F.irfft2(x),
        F.rfftn(r), F.irfftn(x), F.hfft(x), F.ihfft(r), F.fftshift(x), F.ifftshift(x),
        F.fftfreq(8), F.rfftfreq(8)))(x, r))
    shows(jax.grad(lambda v: abs(F.rfft(v)).sum())(r), jax.vmap(F.fft)(x), F.fft(x[:, :, :1]))
mesh = Mesh(np.array(devices[:4]), ("d",))
x = jax.device_put(matrix(np.complex128, 4, 8), NamedSharding(mesh, P("d")))
shows(jax.jit(F.fft)(x), jax.jit(F.fft2)(x))
shows(jax.scipy.signal.fftconvolve(jnp.arange(9.), jnp.ones(3)), jax.scipy.fft.dct(jnp.arange(9.)))
""")
