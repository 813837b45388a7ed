"""The training curve does not change unnoticed, and long runs do not leak resources."""

import json
from pathlib import Path

import lives
import pytest
from lives import SMALL

pytestmark = pytest.mark.reliability

CURVE = Path(__file__).parent / "golden" / "curve.json"
WORDS = ["seed=1", "trainer.precision=64-true", "run.passes=null", "run.updates=50", "run.validate_every=25"]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / f"{lives.RECORD}.0").read_text().splitlines()]
    return [float.fromhex(line[3]) for line in lines if line[0] != "began"]


@pytest.mark.promise("The losses of a run are the same in each version of diglot, unless a change of them is intended")
def test_the_curve_is_the_one_that_was_written_down(tmp_path: Path) -> None:
    """Compare with the recorded curve.

    After an intended change, `python tests/reliability/test_long_runs.py` rewrites it.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    life = lives.run([*lives.write_text(tmp_path), *SMALL, *WORDS, "run.folder=run"], folder)
    assert life.status == 0, life.said
    # Machines sum in different orders; a real change of the computation has a far greater effect.
    assert losses(folder) == pytest.approx(json.loads(CURVE.read_text()), rel=1e-5)


@pytest.mark.exhaustive
@pytest.mark.promise("A long run takes no more memory and has no more open files than a short one")
def test_twenty_thousand_updates_take_what_two_thousand_do(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    words = [*lives.write_text(tmp_path), *SMALL, "+callbacks.held._target_=lives.Held"]
    words = [word for word in words if word != SMALL[0]]
    words += ["run.passes=null", "run.updates=20000", "run.validate_every=500", "run.folder=run"]
    life = lives.run(words, folder, limit=1800)
    assert life.status == 0, life.said
    held = {update: rest for update, *rest in map(json.loads, (folder / f"{lives.RECORD}.0").read_text().splitlines())}
    (early, files, temporary), (late, files_then, temporary_then) = held[2000], held[20_000]
    assert late < 1.05 * early
    assert (files_then, temporary_then) == (files, temporary)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        it = Path(place) / "run"
        it.mkdir()
        assert lives.run([*lives.write_text(Path(place)), *SMALL, *WORDS, "run.folder=run"], it).status == 0
        CURVE.write_text(json.dumps(losses(it), indent=0) + "\n")
