"""What stands before and behind the kernel in an emitted text: imports, helpers, and how to print its CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable

from search.lowering.cuda.geometry import Geometry
from search.lowering.preamble import helper_source

PASS_CONFIG = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
"""Our accesses are guarded where they need it: a guard of TileLang's would read zeros past the end in silence."""

_DTYPES = {"F32": "float32", "I32": "int32", "F16": "float16", "BF16": "bfloat16"}

_COLLECTIVES = {
    "across": '''def across(operation, dtype, value):
    """The value combined over the row's {width} lanes: TileLang's collective with an operation of ours."""
    return T.call_extern(dtype, f"tuner::all_reduce<tuner::{{operation}}, {width}, {threads}>", value)''',
    "across_parts": '''def across_parts(function, *parts):
    """The same for a state of several values, in place."""
    return T.call_extern(I32, f"tuner::{{function}}<{width}, {threads}>", *parts)''',
}

MAIN = """

if __name__ == "__main__":
    import sys

    from tilelang import tvm
    from tilelang.engine import lower

    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    target = tvm.target.Target({{"kind": "cuda", "arch": architecture}})
    config = {config}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
"""


def imports(text: str) -> str:
    """Imports and dtypes that the text uses."""
    lines = [f'{name} = "{dtype}"' for name, dtype in _DTYPES.items() if re.search(rf"\b{name}\b", text)]
    modules = ["import struct"] if "struct." in text else []
    modules += ["from math import inf"] if re.search(r"\binf\b", text) else []
    head = "\n".join([*modules, ""]) + "\n" if modules else ""
    return f"{head}import tilelang\nimport tilelang.cuda.language as T\n\n" + "\n".join(lines) + "\n"


def definitions(used: Iterable[str], geometry: Geometry) -> str:
    """Definitions of the helpers that the text calls."""
    out = []
    for name in sorted(used):
        if name in _COLLECTIVES:
            out.append(_COLLECTIVES[name].format(width=geometry.width, threads=geometry.threads))
        else:
            out.append(helper_source(name))
    return "".join(f"\n\n{definition}\n" for definition in out)
