"""PyTorch on all devices of a cluster, through torch_xla and the same plugin as JAX.

    pip install torch==2.8.0 torch_xla==2.8.0
    PJRT_DEVICE=LIBRARY PJRT_LIBRARY_PATH=build/src/pjrt/libtowpath_pjrt.so \\
        XLA_STABLEHLO_COMPILE=1 UCX_ERROR_SIGNALS= UCX_MEM_EVENTS=n \\
        python examples/torch_xla/train.py

Nothing in this file knows Towpath. The batch is sharded over all devices. For JAX,
python/towpath/plugin.py sets the UCX variables: no signal handlers, no malloc hooks.
"""

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

STEPS, BATCH, WIDTH = 30, 64, 16


def main() -> None:
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(count), (count,), ("data",))
    device = torch_xla.device()
    torch.manual_seed(0)
    x = torch.randn(BATCH, WIDTH)
    y = x @ torch.randn(WIDTH, 1)
    x, y = x.to(device), y.to(device)
    for array in (x, y):
        xs.mark_sharding(array, mesh, ("data", None))
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    print(f"{count} devices loss {losses[0].item():.4f} {losses[-1].item():.4f}")


if __name__ == "__main__":
    main()
