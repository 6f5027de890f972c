"""Registers the plugin. JAX calls :func:`initialize` (entry point group ``jax_plugins``).

The rest makes JAX treat the platform ``towpath`` as it treats those that it knows by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from towpath import choice

LIBRARY = "libtowpath_pjrt.so"
# Above JAX's own CPU backend, like other accelerators.
PRIORITY = 500
# UCX reads these when it is loaded. In a user's process it must not handle signals or
# intercept malloc.
UCX_SETTINGS = {"UCX_ERROR_SIGNALS": "", "UCX_MEM_EVENTS": "n"}


def library_path() -> Path | None:
    """The first of: TOW_PJRT_LIBRARY, this package, the build folder of this clone, the
    system's library folders. None if there is no plugin."""
    given = os.environ.get("TOW_PJRT_LIBRARY")
    if given:
        return Path(given)
    here = Path(__file__).resolve().parent
    places = [
        here / "lib",
        here.parents[1] / "build" / "src" / "pjrt",
        Path("/usr/local/lib"),
        Path("/usr/local/lib/x86_64-linux-gnu"),
        Path("/usr/lib/x86_64-linux-gnu"),
    ]
    found = (place / LIBRARY for place in places)
    return next((path for path in found if path.is_file()), None)


@contextlib.contextmanager
def _ucx_settings() -> Iterator[None]:
    """Sets UCX_SETTINGS while the library is loaded; child processes do not inherit them."""
    unset = [name for name in UCX_SETTINGS if name not in os.environ]
    os.environ.update({name: UCX_SETTINGS[name] for name in unset})
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


def _needs_python(name: str) -> bool:
    """True for rules that put an address of this process into the program."""
    return "callback" in name or "debug" in name


class _Lowerings(dict):
    """Lowering rules of this platform: its own, and otherwise JAX's for the CPU, including
    those of modules that are imported later."""

    def __init__(self, own: dict, cpu: dict) -> None:
        super().__init__(own)
        self._cpu = cpu

    def __contains__(self, primitive: object) -> bool:
        if super().__contains__(primitive):
            return True
        if str(primitive) in REGISTER_ON_USE:
            return True
        return primitive in self._cpu and not _needs_python(str(primitive))

    def __missing__(self, primitive: object) -> object:
        if str(primitive) in REGISTER_ON_USE:
            REGISTER_ON_USE[str(primitive)](primitive)
            return self[primitive]
        return self._cpu[primitive]


class _Platforms(tuple):
    """Platforms of an artifact that was exported for the CPU only: it runs on this platform too."""

    def _known(self, platform: object) -> object:
        return "cpu" if platform == "towpath" else platform

    def __contains__(self, platform: object) -> bool:
        return super().__contains__(self._known(platform))

    def index(self, platform: object, *where: int) -> int:
        return super().index(self._known(platform), *where)


def _register_call_exported(primitive: object) -> None:
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    def lower(ctx: object, *args: object, exported: Any) -> object:
        if "cpu" in exported.platforms and "towpath" not in exported.platforms:
            exported = dataclasses.replace(exported, platforms=_Platforms(exported.platforms))
        return _export._call_exported_lowering(ctx, *args, exported=exported)

    mlir.register_lowering(primitive, lower, platform="towpath")


def _register_buffer_callback(primitive: object) -> None:
    from jax._src.interpreters import mlir

    from . import buffers

    buffers.register(primitive, mlir)


# Registers our lowering rules of primitives whose modules are imported on first use:
# calls of exported artifacts, and buffer_callback.
REGISTER_ON_USE = {
    "call_exported": _register_call_exported,
    "buffer_callback": _register_buffer_callback,
}


def _inherit_lowerings(mlir: types.ModuleType) -> None:
    """JAX has rules for linear algebra only by platform. Our workers run XLA on the CPU and
    implement the custom calls that JAX's rules for the CPU make, those of LAPACK."""
    rules = getattr(mlir, "_platform_specific_lowerings", None)
    if rules is None:
        return  # Another version of JAX: it reports primitives without a rule.
    rules["towpath"] = _Lowerings(rules["towpath"], rules["cpu"])


def _with_towpath(platforms: tuple) -> tuple:
    """Adds this platform to the branch for the CPU, if no branch names it or is the default."""
    if any(names is None or "towpath" in names for names in platforms):
        return platforms
    return tuple((*names, "towpath") if "cpu" in names else names for names in platforms)


def _resolve_platform_as_cpu(mlir: types.ModuleType) -> None:
    """``jax.lax.platform_dependent`` without a default takes the branch for the CPU."""
    try:
        from jax._src.lax.control_flow import conditionals

        choose, branch = conditionals._platform_index_lowering, conditionals._cond_lowering
        chosen, branched = conditionals.platform_index_p, conditionals.cond_p
    except (ImportError, AttributeError):
        return  # Another version of JAX: it reports that it has no rule.

    def lower_choice(ctx: object, *, platforms: tuple) -> object:
        return choose(ctx, platforms=_with_towpath(platforms))

    def lower_branches(ctx: object, *args: Any, **params: Any) -> object:
        if params.get("branches_platforms") is not None:
            params["branches_platforms"] = _with_towpath(params["branches_platforms"])
        return branch(ctx, *args, **params)

    mlir.register_lowering(chosen, lower_choice, platform="towpath")
    mlir.register_lowering(branched, lower_branches, platform="towpath")


class _Backends(dict):
    """JAX's backends by name; creates the CPU backend on demand."""

    def get(self, platform: str, default: object = None) -> object:
        from jax._src import xla_bridge

        if platform == "cpu":
            with xla_bridge._backend_lock:
                if platform not in self:
                    self[platform] = xla_bridge._init_backend(platform)
        return super().get(platform, default)


def _provide_cpu_backend(xla_bridge: types.ModuleType) -> None:
    """JAX uses its own CPU devices, for arguments of callbacks and for NumPy arrays in
    loops, even if JAX_PLATFORMS does not name them."""
    initialize_backend = xla_bridge._init_backend

    def initialize_beside(platform: str) -> object:
        made = initialize_backend(platform)
        if platform == "towpath":
            xla_bridge._backends = _Backends(xla_bridge._backends)
        return made

    xla_bridge._init_backend = initialize_beside


def _is_ours(backend: object) -> bool:
    return getattr(backend, "platform", None) == "towpath"


def _enable_cache() -> None:
    """JAX's compilation cache accepts platforms from a list inside a function. Our
    executables can be cached too, so we ask as a platform on that list."""
    try:
        from jax._src import compilation_cache, compiler, config

        asked = compilation_cache.is_cache_used
        options_of = compiler.get_compile_options
        caches_of_xla = config.persistent_cache_enable_xla_caches
    except (ImportError, AttributeError):
        return  # Another version of JAX: no cache.

    def is_cache_used(backend: object) -> bool:
        if _is_ours(backend):
            backend = types.SimpleNamespace(platform="cpu")
        return asked(backend)

    def get_compile_options(*args: Any, **named: Any) -> object:
        """With its cache JAX sets XLA options that write files for GPUs; the cluster
        refuses such options."""
        if not _is_ours(named.get("backend")):
            return options_of(*args, **named)
        with caches_of_xla("none"):
            return options_of(*args, **named)

    compilation_cache.is_cache_used = is_cache_used
    compiler.get_compile_options = get_compile_options


def _has_xla(path: Path) -> bool:
    """True if a local cluster would find XLA. Fetches XLA on first use, if JAX was told to
    use this platform. A build folder has its own XLA, and so has a running cluster."""
    if os.environ.get("TOW_ADDRESS") or path.parent.parent != Path(__file__).resolve().parent:
        return True
    from towpath import xla

    if xla.check()["state"] == "ready":
        return True
    if not choice.is_named():
        return False
    if os.environ.get("TOW_SETUP") == "off":
        raise xla.Failure(
            "missing",
            "XLA is not on this host, and TOW_SETUP=off forbids fetching it: run `tow setup`, "
            "or name a cluster in TOW_ADDRESS",
        )
    xla.setup(xla.Reporter(sys.stderr, "towpath: first use. "))
    return True


def _find() -> Path | None:
    """The plugin, with XLA available. None if XLA is not set up and this platform is not
    named: JAX then stays as it is."""
    path = library_path()
    if path is None:
        raise FileNotFoundError(
            f"{LIBRARY} is not there: run `make`, or name its path in TOW_PJRT_LIBRARY"
        )
    return path if _has_xla(path) else None


def _register_failure(xla_bridge: types.ModuleType, why: Exception) -> None:
    """JAX only logs an exception of a plugin, and later reports an unknown platform. A
    backend factory that raises makes the cause the last thing that the user reads."""

    def fail() -> None:
        raise RuntimeError(str(why)) from why

    xla_bridge.register_backend_factory("towpath", fail, priority=PRIORITY, fail_quietly=False)


def _install_optional() -> None:
    """Parts that depend on JAX's internals, and are left out if these differ."""
    from towpath import dlpack, shardings

    for part in (dlpack, shardings):
        with contextlib.suppress(ImportError, AttributeError):  # Another version of JAX.
            part.install()


def initialize() -> None:
    """Registers the plugin and the lowering rules of its platform, if JAX is to use it:
    JAX starts every registered backend, and prefers accelerators to its own CPU."""
    if not choice.is_chosen():
        return
    import jax
    from jax._src import xla_bridge
    from jax._src.interpreters import mlir

    from . import advice, callbacks, effects

    try:
        path = _find()
    except Exception as why:
        _register_failure(xla_bridge, why)
        return
    if path is None:
        return
    advice.give(jax.__version__)
    # JAX donates only on platforms in this list, and warns on others.
    if "towpath" not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append("towpath")
    _inherit_lowerings(mlir)
    _provide_cpu_backend(xla_bridge)
    _enable_cache()
    _install_optional()
    known = getattr(xla_bridge, "_nonexperimental_plugins", None)
    if isinstance(known, set):
        known.add("towpath")
    with _ucx_settings():
        xla_bridge.register_plugin(
            "towpath", priority=PRIORITY, library_path=str(path)
        )
        callbacks.install(path)
    _resolve_platform_as_cpu(mlir)
    with contextlib.suppress(ImportError, AttributeError):  # Another version of JAX.
        effects.install()
