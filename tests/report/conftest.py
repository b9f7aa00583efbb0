"""Run folders to report on."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `import synthetic_run`, `import pages`

from synthetic_run import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "digits-0")


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Grey and colour, one stage and three."""
    return [write_run(tmp_path / "digits-0"), write_run(tmp_path / "colour-1", 1, colour=True, stages=3)]
