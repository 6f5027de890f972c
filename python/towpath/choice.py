"""Which backend JAX uses: this one only if the user asks for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PLATFORM = "towpath"


def _config() -> object | None:
    """JAX's configuration; None if JAX has not been imported."""
    jax = sys.modules.get("jax")
    return getattr(jax, "config", None)


def _platforms() -> list[str]:
    """The platforms that JAX was told to use, from its configuration or the environment."""
    config = _config()
    told = getattr(config, "jax_platforms", None) if config is not None else None
    return (told or os.environ.get("JAX_PLATFORMS", "")).split(",")


def _initialized_platforms() -> list[str]:
    """The backends that JAX has started, which it never exchanges."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return list(getattr(bridge, "_backends", None) or {})


def use() -> None:
    """Makes JAX use the cluster that TOW_ADDRESS names, or `tow up` started, or a local one."""
    started = _initialized_platforms()
    if PLATFORM in started:
        return
    if started:
        raise RuntimeError(
            f"JAX already uses the backend {', '.join(started)}, and cannot change it: call "
            "this before the first use of JAX (in a notebook: restart the kernel)"
        )
    os.environ["JAX_PLATFORMS"] = PLATFORM
    config = _config()
    if config is not None:
        config.update("jax_platforms", PLATFORM)


def start(workers: int = 1, devices: int = 8, islands: int = 1) -> None:
    """Makes JAX use a local cluster of this size, started at JAX's first use and ended
    with this process. ``devices`` are those of each worker."""
    for name, count in (("workers", workers), ("devices", devices), ("islands", islands)):
        if count < 1:
            raise ValueError(f"{name} is {count}: a cluster has at least one")
    if islands > workers:
        raise ValueError(f"{islands} islands of {workers} workers: every island has a worker")
    use()
    os.environ.pop("TOW_ADDRESS", None)
    os.environ["TOW_LOCAL"] = f"workers={workers},devices={devices},islands={islands}"


def connect(address: str, token_file: str | os.PathLike[str] | None = None) -> None:
    """Makes JAX use the cluster at ``address``, such as ``tls:head-node:4000``."""
    if token_file is not None and not Path(token_file).is_file():
        raise FileNotFoundError(f"there is no token file {token_file}")
    use()
    os.environ["TOW_ADDRESS"] = address
    if token_file is not None:
        os.environ["TOW_TOKEN_FILE"] = os.fspath(token_file)


def is_named() -> bool:
    """True if JAX was told to use this platform by name."""
    return PLATFORM in _platforms()


def _has_other_accelerator() -> bool:
    """As JAX itself looks for GPUs and TPUs, without starting them."""
    devices = Path("/dev")
    if any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists():
        return True
    return any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*"))


def is_chosen() -> bool:
    """True if JAX is to use this platform: it is named, or JAX was told no platform and
    the environment names a cluster, or makes this the default of a host without others."""
    told = [platform for platform in _platforms() if platform]
    if told:
        return PLATFORM in told
    if os.environ.get("TOW_ADDRESS"):
        return True
    return os.environ.get("TOW_DEFAULT") == "1" and not _has_other_accelerator()
