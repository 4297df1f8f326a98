"""The GPU that a kernel is to run on: torch's, since its tensors are. Who it is, its driver says, by its uuid."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

from catalogs import DeviceIdentity
from search.device.gpu import code_architecture
from search.errors import DeviceUnavailable, InvalidInput, Problem
from search.lowering.builder import Builder
from search.measuring.gpu.attached import attached_gpus

_identities: dict[str, DeviceIdentity] = {}
"""By uuid: the driver is asked once a process."""
_asking = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One of torch's GPUs."""

    index: int
    architecture: str
    """``sm_90``."""
    uuid: str
    """As the driver has it: torch's indices follow CUDA's order, the driver's that of the bus."""

    @property
    def code(self) -> str:
        """The architecture that code is generated for."""
        return code_architecture(*divmod(int(self.architecture.removeprefix("sm_")), 10))

    def builder(self, folder: Path) -> Builder:
        """What compiles for it, into an artifact store."""
        return Builder(folder, target="cuda", architecture=self.code)


def this_gpu(device: str = "cuda") -> DeviceIdentity:
    """Who torch's GPU is (``cuda``: the current one; ``cuda:1``): what lookups of its winners, opening a store for it
    and pulling are given as ``device``. DeviceUnavailable, saying why, where there is none; InvalidInput."""
    gpu = named_gpu(device)
    if gpu is None:
        message = "not a GPU; a CPU is catalogs.this_device()"
        raise InvalidInput([Problem(field="/device", value=device, message=message, allowed=["cuda", "cuda:0"])])
    return identity_of(gpu)


def identity_of(gpu: Gpu) -> DeviceIdentity:
    """The identity under which a GPU's winners are keyed. DeviceUnavailable when its driver does not know it."""
    with _asking:
        if gpu.uuid not in _identities:
            found = attached_gpus()
            card = next((one for one in found if _bare(one.uuid) == _bare(gpu.uuid)), None)
            if card is None or not card.available:
                said = "; ".join(str(one.reason) for one in ([card] if card else found) if one.reason) or "others"
                raise DeviceUnavailable(f"cuda:{gpu.index} ({gpu.uuid}) is no GPU of the driver's: {said}")
            _identities[gpu.uuid] = DeviceIdentity(kind=card.kind, identity=card.identity)
        return _identities[gpu.uuid]


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
    uuid = str(torch.cuda.get_device_properties(chosen).uuid)
    return Gpu(index=chosen, architecture=f"sm_{major}{minor}", uuid=f"GPU-{_bare(uuid, dashes=True)}")


def _bare(uuid: str | None, *, dashes: bool = False) -> str:
    found = str(uuid).lower().removeprefix("gpu-")
    return found if dashes else found.replace("-", "")
