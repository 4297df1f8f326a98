"""The GPU that a kernel is to run on: torch's, since its tensors are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from search.device.gpu import code_architecture
from search.errors import DeviceUnavailable, InvalidInput, Problem
from search.lowering.builder import Builder


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One of torch's GPUs."""

    index: int
    architecture: str
    """``sm_90``."""

    @property
    def code(self) -> str:
        """The architecture that code is generated for."""
        return code_architecture(*divmod(int(self.architecture.removeprefix("sm_")), 10))

    def builder(self, folder: Path) -> Builder:
        """What compiles for it, into an artifact store."""
        return Builder(folder, target="cuda", architecture=self.code)


def named_gpu(device: str) -> Gpu | None:
    """The GPU that ``cuda`` or ``cuda:1`` names; None for ``cpu``. InvalidInput, DeviceUnavailable."""
    if device == "cpu":
        return None
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", device) if isinstance(device, str) else None
    if found is None:
        allowed = ["cpu", "cuda", "cuda:0"]
        raise InvalidInput(
            [Problem(field="/device", value=str(device)[:80], message="not a device of torch's", allowed=allowed)]
        )
    return torch_gpu(None if found[1] is None else int(found[1]))


def torch_gpu(index: int | None = None) -> Gpu:
    """Torch's current GPU, or one by its index. DeviceUnavailable, saying why, where there is none."""
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable(f"GPU kernels take torch tensors, and torch cannot be imported: {error}") from None
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise DeviceUnavailable(f"no GPU is present: torch {torch.__version__} ({built}) sees none")
    count = torch.cuda.device_count()
    chosen = torch.cuda.current_device() if index is None else index
    if not 0 <= chosen < count:
        raise DeviceUnavailable(f"no GPU has the index {chosen}: torch sees {count}")
    major, minor = torch.cuda.get_device_capability(chosen)
    return Gpu(index=chosen, architecture=f"sm_{major}{minor}")
