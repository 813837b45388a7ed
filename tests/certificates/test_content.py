"""Reading a certificate: an untrusted file, whose shape is checked strictly."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diglot.certificates.content import MAX_BYTES, Certificate, as_bytes, read_certificate
from diglot.errors import UserError
from support.certificates import certificate


def changed(change: Callable[[Any], Any]) -> bytes:
    """Return the bytes of a certificate after a change."""
    content: Any = copy.deepcopy(certificate())
    change(content)
    return json.dumps(content).encode()


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_bytes(as_bytes(certificate()))
    assert read_certificate(tmp_path / "certificate.json") == read_certificate(tmp_path) == certificate()


def test_a_certificate_of_an_earlier_version_does_not_say_what_was_trained(tmp_path: Path) -> None:
    content = changed(lambda c: c["runs"][0].pop("training"))
    (tmp_path / "certificate.json").write_bytes(content)
    assert "training" not in read_certificate(tmp_path)["runs"][0]


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "format": (lambda c: c.update(diglot_certificate=2), "diglot_certificate must be 1"),
    "no runs": (lambda c: c.update(runs=[]), "it has no runs"),
    "missing key": (lambda c: c["runs"][0].pop("seed"), "runs[0] has no seed"),
    "unknown key": (lambda c: c["runs"][0].update(run_me="x"), "runs[0] has an unknown key 'run_me'"),
    "seed as text": (lambda c: c["runs"][0].update(seed="1"), "runs[0].seed must be a count"),
    "seed as truth": (lambda c: c["runs"][0].update(seed=True), "runs[0].seed must be a count"),
    "negative count": (lambda c: c["runs"][0].update(updates=-1), "runs[0].updates must be a count"),
    "huge count": (lambda c: c["runs"][0].update(updates=2**60), "runs[0].updates must be a count"),
    "huge loss": (lambda c: c["runs"][0]["first_updates"].update(losses=[1e308]), "losses[0] must be a number"),
    "short hash": (lambda c: c["runs"][0]["text"].update(train="abc"), "runs[0].text[train] is 'abc'"),
    "path upwards": (lambda c: c["runs"][0]["files"].update({"../x": "0" * 64}), "a key of runs[0].files is '../x'"),
    "path through": (lambda c: c["runs"][0]["files"].update({"a/../x": "0" * 64}), "is 'a/../x'"),
    "absolute path": (lambda c: c["runs"][0]["files"].update({"/etc/x": "0" * 64}), "is '/etc/x'"),
    "backslash": (lambda c: c["runs"][0]["files"].update({"a\\x": "0" * 64}), "a key of runs[0].files"),
    "folder upwards": (lambda c: c["runs"][0].update(name=".."), "runs[0].name is '..'"),
    "folder below": (lambda c: c["runs"][0].update(name="a/b"), "runs[0].name is 'a/b'"),
    "language as path": (lambda c: c["runs"][0].update(languages=["de", "../../x"]), "tgt_lang='../../x'"),
    "one language": (lambda c: c["runs"][0].update(languages=["de"]), "languages must be two codes"),
    "two runs of a seed": (lambda c: c["runs"].append(c["runs"][0]), "two runs have the same seed"),
    "long text": (lambda c: c["runs"][0].update(command="x" * 20_000), "runs[0].command must be a text of at most"),
    "many items": (lambda c: c.update(dev=[1] * 20_000), "dev must be a list of at most 10,000 items"),
    "trained weights": (
        lambda c: c["runs"][0]["training"].update(trained_parameters=1.5),
        "runs[0].training.trained_parameters must be a count",
    ),
    "adapters": (lambda c: c["runs"][0]["training"]["lora"].pop("on"), "runs[0].training.lora has no on"),
    "device": (
        lambda c: c["runs"][0]["first_updates"].update(device="tpu"),
        "first_updates.device must be cpu or cuda",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_part_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    change, message = BROKEN[name]
    (tmp_path / "certificate.json").write_bytes(changed(change))
    with pytest.raises(UserError) as caught:
        read_certificate(tmp_path)
    assert str(caught.value).startswith(f"certificate={tmp_path}: not a certificate of this version of diglot: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "the certificate must be a mapping"),
        (b'{"diglot_certificate": 1', "Expecting"),
        (b'{"diglot_certificate": 1, "diglot_certificate": 1}', "an object has a key twice"),
        (b'{"diglot_certificate": NaN}', "NaN is not a number"),
        (b"\xff\xfe\x00", "not a certificate"),
        (b'{"x": ' + b"1" * 10_000 + b"}", "not a certificate"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES:,} bytes"),
    ],
    ids=["empty", "deep", "list", "truncated", "repeated key", "NaN", "no text", "long number", "too large"],
)
def test_a_damaged_file_is_answered_by_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_certificate(tmp_path / "certificate.json")
    assert "\n" not in str(caught.value)


def test_every_truncation_is_rejected(tmp_path: Path) -> None:
    content = as_bytes(certificate()).rstrip()
    for length in range(0, len(content), 97):
        (tmp_path / "certificate.json").write_bytes(content[:length])
        with pytest.raises(UserError):
            read_certificate(tmp_path)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "certificate.json")
    for path in (tmp_path / "certificate.json", tmp_path / "missing"):
        with pytest.raises(UserError, match="no such file; make certify checkpoint=FOLDER writes one"):
            read_certificate(path)
    with pytest.raises(UserError, match="a local file is needed"):
        read_certificate("https://example.org/certificate.json")


def test_control_characters_of_a_certificate_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_bytes(changed(lambda c: c.update({"\x1b[2J\n": 1})))
    with pytest.raises(UserError) as caught:
        read_certificate(tmp_path)
    assert "\x1b" not in str(caught.value)


def test_all_keys_are_described() -> None:
    assert Certificate.__doc__ is not None
    assert all(f"        {key}: " in Certificate.__doc__ for key in Certificate.__annotations__)
