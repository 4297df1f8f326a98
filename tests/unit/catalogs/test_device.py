"""The probe of this machine's identity."""

from __future__ import annotations

import json
import subprocess
import sys

from catalogs import DeviceIdentity, this_device


def test_this_device_is_stable_across_processes() -> None:
    code = "import catalogs; print(catalogs.this_device().digest)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == this_device().digest


def test_identity_is_json_and_names_the_architecture() -> None:
    device = this_device()
    assert device.kind == "cpu"
    assert json.loads(json.dumps(device.identity)) == device.identity
    assert device.identity["architecture"]


def test_any_field_changes_the_digest() -> None:
    device = this_device()
    for name in device.identity:
        other = DeviceIdentity(kind="cpu", identity={**device.identity, name: "changed"})
        assert other.digest != device.digest, name


def test_importing_catalogs_brings_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import catalogs; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(n for n in new if n != 'catalogs' and n not in sys.stdlib_module_names))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
