"""The kernels table: what a lookup needs to know of a kernel, so that it needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogs import fields as check
from catalogs.errors import FormatError

_REQUIRED = ("name", "params", "program_digest", "dtypes", "dims")
_OMITTED_WHEN_EMPTY = ("like", "param_defaults", "program")


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel with its params: which program that is, and how dims and dtypes are completed."""

    name: str
    params: Mapping[str, float | int]
    """Every param of the program."""
    program_digest: str
    dtypes: Mapping[str, str]
    """Every tensor's default dtype."""
    dims: tuple[str, ...]
    """In declared order: the order of a bound lookup's arguments."""
    like: Mapping[str, str] = field(default_factory=dict)
    """Tensor → the tensor whose dtype it has unless told otherwise."""
    param_defaults: Mapping[str, float | int] = field(default_factory=dict)
    """What params that a lookup leaves out are."""
    program: Mapping[str, Any] | None = None
    """The program's document, where it is not one of the built-in kernels."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members that this version does not know: kept, so that the digest stays, and otherwise ignored."""

    @property
    def order(self) -> tuple[str, str]:
        """What rows are sorted by, and unique in: name and params."""
        return self.name, params_text(self.params)

    def document(self) -> dict[str, Any]:
        """JSON form."""
        members: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "extra"}
        members["dims"] = list(self.dims)
        for name in _OMITTED_WHEN_EMPTY:
            if not members[name]:
                del members[name]
        return {**self.extra, **members}

    @classmethod
    def from_document(cls, document: Any, *, path: str = "kernel") -> KernelRow:
        """Inverse of :meth:`document`. Raises FormatError naming the field that is missing or wrong."""
        check.an_object(document, path)
        check.all_present(document, _REQUIRED, path)
        check.a_text(document["name"], f"{path}.name")
        check.numbers(document["params"], f"{path}.params")
        check.a_sha256(document["program_digest"], f"{path}.program_digest")
        dtypes = check.texts(document["dtypes"], f"{path}.dtypes")
        dims = tuple(check.a_list(document["dims"], f"{path}.dims"))
        for position, name in enumerate(dims):
            check.a_text(name, f"{path}.dims[{position}]")
        if len(set(dims)) != len(dims):
            check.refuse(f"{path}.dims", list(dims), "every dim once")
        for tensor, model in check.texts(document.get("like", {}), f"{path}.like").items():
            if tensor not in dtypes or model not in dtypes:
                check.refuse(f"{path}.like.{tensor}", model, "two tensors of dtypes")
        for name in check.numbers(document.get("param_defaults", {}), f"{path}.param_defaults"):
            if name not in document["params"]:
                check.refuse(f"{path}.param_defaults.{name}", name, "a param of params")
        if "program" in document:
            check.an_object(document["program"], f"{path}.program")
        known = [name for name in cls.__dataclass_fields__ if name != "extra"]
        members = {name: document[name] for name in known if name in document}
        members["dims"] = dims
        row = cls(**members, extra={k: v for k, v in document.items() if k not in members})
        if row.document() != document:
            raise FormatError(f"{path}: empty members ({', '.join(_OMITTED_WHEN_EMPTY)}) are left out")
        return row

    def full_dtypes(self, asked: Mapping[str, str]) -> dict[str, str]:
        """Every tensor's dtype: the asked one, else that of the tensor it is like, else its default.

        An asked tensor that the kernel does not have stays in, so that a miss can name it.
        """
        out = dict(asked)
        for tensor, default in self.dtypes.items():
            if tensor not in out:
                model = self.like.get(tensor)
                out[tensor] = (asked.get(model) or self.dtypes[model]) if model is not None else default
        return out


def params_text(params: Mapping[str, float | int]) -> str:
    """One text per set of param values; 1 and 1.0 are one value, as they are for the program digest's reader."""
    return ",".join(f"{name}={_number(params[name])}" for name in sorted(params))


def _number(value: float | int) -> str:
    # numpy's float64 is a float with a repr of its own
    return str(int(value)) if value == int(value) else repr(float(value))
