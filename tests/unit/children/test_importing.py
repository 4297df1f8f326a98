"""What is imported is looked through by no collection."""

from __future__ import annotations

import gc

import pytest

from search.children.importing import uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_importing_and_all_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(gc, "disable", lambda: said.append("disable"))
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    monkeypatch.setattr(gc, "freeze", lambda: said.append("freeze"))
    monkeypatch.setattr(gc, "enable", lambda: said.append("enable"))
    with pytest.raises(ModuleNotFoundError), uncollected():
        import no_such_module  # noqa: F401
    assert said == ["disable", "freeze", *["enable"] * enabled]
