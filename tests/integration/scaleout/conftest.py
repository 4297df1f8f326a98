"""A deployment of its own for each test, on a database of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from deployment import Deployment


@pytest.fixture
def deployment(postgres_url: str, tmp_path: Path) -> Iterator[Deployment]:
    """Nothing runs yet."""
    made = Deployment(postgres_url, tmp_path)
    yield made
    made.close()
