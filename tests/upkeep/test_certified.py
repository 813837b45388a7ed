"""The table of certificates for docs/measured.md."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from diglot.certificates.content import as_bytes
from support.certificates import certificate

SCRIPT = Path(__file__).parents[2] / "docs/certified.py"


@pytest.fixture(scope="module")
def certified() -> ModuleType:
    specification = importlib.util.spec_from_file_location("certified", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_table_has_a_row_per_certificate(
    certified: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several, one = certificate(30.0, 31.0, 35.0), certificate(12.0)
    several["runs"][1]["environment"]["commit"] = "ba9876543210"
    one["runs"][0]["command"] = "make train 'note=a|b'"
    one["runs"][0]["environment"]["machine"] = None
    (tmp_path / "b").mkdir()
    (tmp_path / "a.json").write_bytes(as_bytes(several))
    (tmp_path / "b/certificate.json").write_bytes(as_bytes(one))
    (tmp_path / "b/results.json").write_text("{}")
    assert certified.main(str(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| runs | BLEU | seeds | commit | machine | command |",
        "| --- | --- | --- | --- | --- | --- |",
        "| run-1, run-2, run-3 | 32.00 ± 2.65 | 3 | `0123456789ab`, `ba9876543210` | Abacus 9 (AVX2), 2 threads | "
        "`make train data=sample seed=1` |",
        "| run-1 | 12.00 | 1 | `0123456789ab` | not recorded | `make train 'note=a\\|b'` |",
    ]


def test_a_damaged_certificate_is_named(
    certified: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certified.main(str(tmp_path)) == 2
    (tmp_path / "a.json").write_text('{"diglot_certificate": 7}')
    assert certified.main(str(tmp_path)) == 2
    assert "a.json: not a certificate" in capsys.readouterr().err


def test_the_script_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "usage: python docs/certified.py FOLDER [dev|test]\n"
