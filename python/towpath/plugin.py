"""What JAX calls when it looks for plugins (entry point group ``jax_plugins``)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIBRARY = "libtowpath_pjrt.so"
# Above JAX's own CPU backend, as other accelerators are.
PRIORITY = 500
# UCX reads these when it is loaded: in a user's process it is to take no signals
# and to leave malloc alone.
UCX_MANNERS = {"UCX_ERROR_SIGNALS": "", "UCX_MEM_EVENTS": "n"}


def library_path() -> Path | None:
    """TOW_PJRT_LIBRARY; in this package; in a build folder of this clone; or
    where libraries are installed. None if it is nowhere."""
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
def _manners() -> Iterator[None]:
    """Only while the library is loaded: children of ours decide for themselves."""
    ours = [name for name in UCX_MANNERS if name not in os.environ]
    os.environ.update({name: UCX_MANNERS[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _is_asked_for() -> bool:
    return "towpath" in os.environ.get("JAX_PLATFORMS", "").split(",")


def _talks_to_python(name: str) -> bool:
    """Rules that leave an address of this process in the program."""
    return "callback" in name or "debug" in name


class _Lowerings(dict):
    """Rules for this platform: its own, and for all else JAX's for the CPU, also
    those of modules that are imported later."""

    def __init__(self, own: dict, lender: dict) -> None:
        super().__init__(own)
        self._lender = lender

    def __contains__(self, primitive: object) -> bool:
        if super().__contains__(primitive):
            return True
        if str(primitive) in TAUGHT_LATE:
            return True
        return primitive in self._lender and not _talks_to_python(str(primitive))

    def __missing__(self, primitive: object) -> object:
        if str(primitive) in TAUGHT_LATE:
            TAUGHT_LATE[str(primitive)](primitive)
            return self[primitive]
        return self._lender[primitive]


class _Platforms(tuple):
    """Of something exported for the CPU, and not for us: it runs here as there."""

    def _known(self, platform: object) -> object:
        return "cpu" if platform == "towpath" else platform

    def __contains__(self, platform: object) -> bool:
        return super().__contains__(self._known(platform))

    def index(self, platform: object, *where: int) -> int:
        return super().index(self._known(platform), *where)


def _call_as_cpu(primitive: object) -> None:
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    def lower(ctx: object, *args: object, exported: Any) -> object:
        if "cpu" in exported.platforms and "towpath" not in exported.platforms:
            exported = dataclasses.replace(exported, platforms=_Platforms(exported.platforms))
        return _export._call_exported_lowering(ctx, *args, exported=exported)

    mlir.register_lowering(primitive, lower, platform="towpath")


def _call_with_buffers(primitive: object) -> None:
    from jax._src.interpreters import mlir

    from . import buffers

    buffers.teach(primitive, mlir)


# Primitives with rules of ours whose modules are imported only by those who use them:
# the one that calls what jax.export made, and buffer_callback.
TAUGHT_LATE = {"call_exported": _call_as_cpu, "buffer_callback": _call_with_buffers}


def _lend_lowerings(mlir: types.ModuleType) -> None:
    """JAX knows linear algebra only by platform. Our workers run XLA on the CPU
    and have the custom calls that its rules for the CPU make, LAPACK's."""
    rules = getattr(mlir, "_platform_specific_lowerings", None)
    if rules is None:
        return  # Another JAX: it says itself what it has no rule for.
    rules["towpath"] = _Lowerings(rules["towpath"], rules["cpu"])


def _with_ours(platforms: tuple) -> tuple:
    """A choice by platform that knows neither ours nor a default: as on the CPU."""
    if any(names is None or "towpath" in names for names in platforms):
        return platforms
    return tuple((*names, "towpath") if "cpu" in names else names for names in platforms)


def _choose_as_cpu(mlir: types.ModuleType) -> None:
    """``jax.lax.platform_dependent`` without a default."""
    try:
        from jax._src.lax.control_flow import conditionals

        choose, branch = conditionals._platform_index_lowering, conditionals._cond_lowering
        chosen, branched = conditionals.platform_index_p, conditionals.cond_p
    except (ImportError, AttributeError):
        return  # Another JAX: it says that it has no rule.

    def lower_choice(ctx: object, *, platforms: tuple) -> object:
        return choose(ctx, platforms=_with_ours(platforms))

    def lower_branches(ctx: object, *args: Any, **params: Any) -> object:
        if params.get("branches_platforms") is not None:
            params["branches_platforms"] = _with_ours(params["branches_platforms"])
        return branch(ctx, *args, **params)

    mlir.register_lowering(chosen, lower_choice, platform="towpath")
    mlir.register_lowering(branched, lower_branches, platform="towpath")


class _Backends(dict):
    """JAX's backends by name, and its CPU's as soon as somebody asks for it."""

    def get(self, platform: str, default: object = None) -> object:
        from jax._src import xla_bridge

        if platform == "cpu":
            with xla_bridge._backend_lock:
                if platform not in self:
                    self[platform] = xla_bridge._init_backend(platform)
        return super().get(platform, default)


def _keep_cpu_at_hand(xla_bridge: types.ModuleType) -> None:
    """JAX asks for its own CPU devices, for arguments of callbacks and for NumPy
    arrays that a loop passes on, also where JAX_PLATFORMS names none."""
    initialize_backend = xla_bridge._init_backend

    def initialize_beside(platform: str) -> object:
        made = initialize_backend(platform)
        if platform == "towpath":
            xla_bridge._backends = _Backends(xla_bridge._backends)
        return made

    xla_bridge._init_backend = initialize_beside


def _is_ours(backend: object) -> bool:
    return getattr(backend, "platform", None) == "towpath"


def _let_cache() -> None:
    """JAX keeps compiled programs on disk for platforms on a list in the middle of
    a function. Ours can be kept too: ask as one of those."""
    try:
        from jax._src import compilation_cache, compiler, config

        asked = compilation_cache.is_cache_used
        options_of = compiler.get_compile_options
        caches_of_xla = config.persistent_cache_enable_xla_caches
    except (ImportError, AttributeError):
        return  # Another JAX: then without.

    def is_cache_used(backend: object) -> bool:
        if _is_ours(backend):
            backend = types.SimpleNamespace(platform="cpu")
        return asked(backend)

    def get_compile_options(*args: Any, **named: Any) -> object:
        """With its cache JAX tells XLA to keep files for GPUs beside: on hosts of
        others, who refuse that."""
        if not _is_ours(named.get("backend")):
            return options_of(*args, **named)
        with caches_of_xla("none"):
            return options_of(*args, **named)

    compilation_cache.is_cache_used = is_cache_used
    compiler.get_compile_options = get_compile_options


def _has_xla(path: Path) -> bool:
    """Is there an XLA for the cluster that would be started? On first use, if this
    platform was asked for, it is fetched. A build folder knows its own, and a
    cluster that is there already has one."""
    if os.environ.get("TOW_ADDRESS") or path.parent.parent != Path(__file__).resolve().parent:
        return True
    from towpath import xla

    if xla.check()["state"] == "ready":
        return True
    if not _is_asked_for():
        return False
    if os.environ.get("TOW_SETUP") == "off":
        raise xla.Failure(
            "missing",
            "XLA is not on this host, and TOW_SETUP=off: run `tow setup`, or name a "
            "cluster in TOW_ADDRESS",
        )
    xla.setup(xla.Teller(sys.stderr, "towpath: first use. "))
    return True


def _find() -> Path | None:
    """The library, with all that it needs. None where this package is installed and
    neither set up nor asked for: JAX then stays as it was."""
    path = library_path()
    if path is None and _is_asked_for():
        raise FileNotFoundError(
            f"{LIBRARY} is not there: run `make`, or name it in TOW_PJRT_LIBRARY"
        )
    return path if path is not None and _has_xla(path) else None


def _register_failure(xla_bridge: types.ModuleType, why: Exception) -> None:
    """JAX logs what a plugin raises, and later knows no such platform. As a platform
    that cannot be made, the cause is what the user reads last."""

    def fail() -> None:
        raise RuntimeError(str(why)) from why

    xla_bridge.register_backend_factory("towpath", fail, priority=PRIORITY, fail_quietly=False)


def _lend_copies() -> None:
    from towpath import dlpack

    with contextlib.suppress(ImportError, AttributeError):  # Another JAX.
        dlpack.lend_copies()


def _name_shardings() -> None:
    from towpath import shardings

    with contextlib.suppress(ImportError, AttributeError):  # Another JAX.
        shardings.install()


def initialize() -> None:
    """Registers the plugin, and lets JAX donate buffers to it."""
    from jax._src import xla_bridge
    from jax._src.interpreters import mlir

    from . import callbacks, witness

    try:
        path = _find()
    except Exception as why:
        if _is_asked_for():
            _register_failure(xla_bridge, why)
        return
    if path is None:
        return
    # Under names that it does not know JAX donates nothing, and warns.
    if "towpath" not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append("towpath")
    _lend_lowerings(mlir)
    _keep_cpu_at_hand(xla_bridge)
    _let_cache()
    _lend_copies()
    _name_shardings()
    known = getattr(xla_bridge, "_nonexperimental_plugins", None)
    if isinstance(known, set):
        known.add("towpath")
    with _manners():
        xla_bridge.register_plugin(
            "towpath", priority=PRIORITY, library_path=str(path)
        )
        callbacks.install(path)
    _choose_as_cpu(mlir)
    with contextlib.suppress(ImportError, AttributeError):  # Another JAX.
        witness.install()
