"""The description of a machine, and the number of threads of a block."""

import getpass
import os
import platform

import torch

from diglot.system import machine as described
from diglot.system.machine import machine, rounds_alike, using_threads


def test_a_machine_has_no_names_of_hosts_or_users() -> None:
    found = machine()
    assert found["processor"]
    assert found["threads"] == torch.get_num_threads()
    names = [platform.node(), os.environ.get("HOME", "")]
    assert not [name for name in names if len(name) > 4 and name in str(found)]
    assert f"/{getpass.getuser()}" not in str(found)


def test_machines_round_alike_whatever_their_number_of_cores() -> None:
    one = machine()
    assert rounds_alike(one, {**one, "cores": 1_000, "threads": 7})
    assert not rounds_alike(one, {**one, "capability": "other"})
    assert not rounds_alike(one, {**one, "processor": "other"})
    assert not rounds_alike(one, {**one, "gpu": "other"})


def test_the_number_of_threads_is_limited_and_restored(monkeypatch) -> None:
    monkeypatch.setattr(described, "n_cores", lambda: 2)
    before = torch.get_num_threads()
    for wanted, expected in ((1, 1), (2, 2), (10**9, 2), (0, 1)):
        with using_threads(wanted) as number:
            assert number == torch.get_num_threads() == expected
        assert torch.get_num_threads() == before
