"""``tuner kernels``: the built-in kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from tuner_service.cli.connect import connected
from tuner_service.cli.options import DataDirOption, JsonOption, UrlOption
from tuner_service.cli.output import print_json, print_line, print_table


def kernels(
    name: Annotated[str | None, typer.Argument(help="Show this kernel alone, with its program.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the built-in kernels, or show one with its program."""
    with connected(url=url, data_dir=data_dir) as client:
        found = [client.kernel(name)] if name is not None else client.kernels()
    if as_json:
        print_json(found[0] if name is not None else {"items": found, "next": None, "total": len(found)})
        return
    rows = []
    for kernel in found:
        params = ", ".join(f"{param}={value}" for param, value in kernel["params"].items())
        rows.append([kernel["name"], "x".join(kernel["dims"]), params, ", ".join(kernel["tensors"]), kernel["summary"]])
    print_table(["kernel", "shape", "params", "tensors", "summary"], rows)
    if name is not None:
        print_line()
        print_json(found[0]["program"])
