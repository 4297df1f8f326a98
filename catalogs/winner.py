"""What a frozen winner carries at the least: enough to explain and to rebuild it.

Asked of catalogs, and not of every Entry: a service also answers winners of jobs that were never frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogs import fields as check

_COUNTED_KNOBS = ("width", "vector", "unroll", "partials")
_NAMED_KNOBS = ("input", "fusion", "materialize")
_CODE_DIGESTS = ("source_sha256", "artifact_sha256")


def a_complete_winner(document: Mapping[str, Any], path: str) -> None:
    """An entry's document, its objects checked to be objects. Raises FormatError naming the part that is missing.

    Members beyond these may vary by device.
    """
    candidate, knobs = document["candidate"], check.under(path, "candidate")
    check.all_present(candidate, (*_COUNTED_KNOBS, *_NAMED_KNOBS, "mapping"), knobs)
    for name in _COUNTED_KNOBS:
        check.an_integer(candidate[name], f"{knobs}.{name}", least=1)
    for name in _NAMED_KNOBS:
        if name == "input" and isinstance(candidate[name], Mapping) and candidate[name]:
            check.texts(candidate[name], f"{knobs}.{name}")
        else:
            check.a_text(candidate[name], f"{knobs}.{name}")
    if "algorithm" in candidate:
        check.a_text(candidate["algorithm"], f"{knobs}.algorithm")
    check.an_object(candidate["mapping"], f"{knobs}.mapping")
    check.all_present(document["plan"], ("private_scalars",), check.under(path, "plan"))
    check.an_integer(document["plan"]["private_scalars"], check.under(path, "plan.private_scalars"), least=0)
    code = document["code"]
    check.all_present(code, _CODE_DIGESTS, check.under(path, "code"))
    for name in _CODE_DIGESTS:
        check.a_sha256(code[name], check.under(path, f"code.{name}"))
    check.all_present(document["protocol"], ("name",), check.under(path, "protocol"))
    check.a_text(document["protocol"]["name"], check.under(path, "protocol.name"))
    if not document["numerics"] and code.get("numerics"):
        check.refuse(check.under(path, "numerics"), document["numerics"], "what code.numerics says")
    if not document["tie_set"]:
        check.refuse(check.under(path, "tie_set"), document["tie_set"], "at least one trial")
