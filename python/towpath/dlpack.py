"""Arrays for other frameworks (``np.from_dlpack``, ``torch.from_dlpack``).

Towpath's arrays are in other processes, so their memory cannot be shared. DLPack allows a
producer to copy: consumers get a copy in this process's memory.
"""

from __future__ import annotations

import typing

# The first device of type DLDeviceType.kDLCPU.
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
            "towpath arrays are in other processes and cannot be shared without a copy:"
            " leave out copy=False, or use np.asarray(x)"
        )
    if dl_device is not None and tuple(map(int, dl_device)) != HOST:
        raise BufferError(
            f"a towpath array can be exported to host memory, DLPack device {HOST}, not to"
            f" device {tuple(map(int, dl_device))}"
        )


def install() -> None:
    """Makes DLPack exports of this platform's arrays copy. Other arrays do not change."""
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
        # A new array, which the consumer may write to.
        return numpy.array(self).__dlpack__()

    def __dlpack_device__(self: typing.Any) -> tuple[typing.Any, int]:
        return HOST if _is_ours(self) else share_device(self)

    ArrayImpl.__dlpack__ = __dlpack__
    ArrayImpl.__dlpack_device__ = __dlpack_device__
