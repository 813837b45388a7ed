"""A record is read back as it was written, and each wrong value in it is refused in one line."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diglot.errors import UserError
from diglot.training.records import Machine, Record

RECORD = Record(
    reason="loss",
    update=12,
    start=10,
    loss=7.123456789,
    gradient_norm=0.1,
    bound=3.5,
    seed=1,
    positions=[11],
    pairs=[4, 7],
    data="cache/prepared/0",
    data_key=2**64 - 1,
    machine=Machine("0.1.0", "2.0", "cpu", "x86_64 AVX2", 1, 1),
)


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, loss=math.inf, gradient_norm=-math.inf, bound=None)])
def test_a_record_is_read_as_it_was_written(record: Record, tmp_path: Path) -> None:
    record.write(tmp_path / "record.json")
    assert Record.read(tmp_path / "record.json") == record
    json.loads((tmp_path / "record.json").read_text(), parse_constant=pytest.fail)  # valid JSON has no NaN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "its format is 2, and this diglot reads 1"),
        ({"update": True}, "update=True is not possible"),
        ({"update": 0}, "update=0 is not possible"),
        ({"start": 12}, "start=12 must be below update=12"),
        ({"reason": "none"}, "reason='none' is not possible"),
        ({"loss": 7}, "loss=7 is not possible"),
        ({"loss": "nan(1)"}, "loss='nan.1.' is not possible"),
        ({"bound": []}, "bound=.. is not possible"),
        ({"pairs": []}, "pairs=.. is not possible"),
        ({"pairs": [1, -1]}, "pairs=.1, -1. is not possible"),
        ({"positions": [1.5]}, "positions=.1.5. is not possible"),
        ({"seed": 2**31}, "seed=2147483648 is not possible"),
        ({"data": "a\x1b[2J"}, "data='a.*' is not possible"),
        ({"data_key": 2**64}, "data_key=.* is not possible"),
        ({"more": 1}, "there is no value 'more'"),
        ({"machine": {}}, "machine.diglot is missing"),
        ({"machine": 3}, "machine=3 is not possible"),
        ({"machine": {**vars(RECORD.machine), "threads": 0}}, "machine.threads=0 is not possible"),
        ({"machine": {**vars(RECORD.machine), "device": "cpu; rm"}}, "machine.device='cpu; rm' is not possible"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    RECORD.write(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=message) as error:
        Record.read(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": 1}'])
def test_other_files_are_no_records(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(UserError, match=r"not a record|is missing"):
        Record.read(tmp_path / "record.json")
    with pytest.raises(UserError, match="no such file"):
        Record.read(tmp_path)
