"""Arrays for other frameworks (``np.from_dlpack``, ``torch.from_dlpack``).

Arrays of towpath are in other processes, so their memory cannot be shared. DLPack
lets a producer copy: what others get is a copy in this process's memory.
"""

from __future__ import annotations

import typing

# DLDeviceType.kDLCPU, and the first of those.
HOST = (1, 0)


def _is_ours(array: typing.Any) -> bool:
    return next(iter(array.sharding.device_set)).platform == "towpath"


def _check(array: typing.Any, dl_device: typing.Any, copy: bool | None) -> None:
    if len(array.sharding.device_set) > 1:
        raise BufferError(
            "the array is sharded over several devices; np.asarray(x) gathers it"
        )
    if copy is False:
        raise BufferError(
            "arrays of towpath are in other processes, and cannot be shared without"
            " a copy: leave out copy=False, or use np.asarray(x)"
        )
    if dl_device is not None and tuple(map(int, dl_device)) != HOST:
        raise BufferError(
            f"an array of towpath can be had in host memory {HOST}, not on the DLPack"
            f" device {tuple(map(int, dl_device))}"
        )


def lend_copies() -> None:
    """From now on, for arrays of this platform; those of others are as they were."""
    import numpy
    from jax._src.array import ArrayImpl

    share, share_device = ArrayImpl.__dlpack__, ArrayImpl.__dlpack_device__

    def __dlpack__(
        self: typing.Any,
        *,
        stream: typing.Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: typing.Any = None,
        copy: bool | None = None,
    ) -> typing.Any:
        if not _is_ours(self):
            return share(
                self,
                stream=stream,
                max_version=max_version,
                dl_device=dl_device,
                copy=copy,
            )
        _check(self, dl_device, copy)
        # Its own, so that whoever gets it may write to it.
        return numpy.array(self).__dlpack__()

    def __dlpack_device__(self: typing.Any) -> tuple[typing.Any, int]:
        return HOST if _is_ours(self) else share_device(self)

    ArrayImpl.__dlpack__ = __dlpack__
    ArrayImpl.__dlpack_device__ = __dlpack_device__
