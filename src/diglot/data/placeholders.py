"""Which regular expressions stand for placeholders: those whose search takes a time that is known beforehand.

Python tries the ways in which a pattern can fit one after the other, and a pattern of ten characters may have more of
them than can be tried. A checkpoint brings its pattern along, so a stranger may have chosen it.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

LONGEST = 1_000  # characters of a pattern
MOST_WAYS = 100  # to fit a text, apart from where an unlimited repeat ends
FEW = 16  # a repeat of more is taken for one without limit

# All that single characters are told apart by here: what patterns name beside it is added.
_SOME = "".join(map(chr, range(0x3000))) + "一あア가\ufeff\ue000\U0001d7ce\U0001f600"


def check_placeholder(pattern: str | None) -> None:
    """Refuse a pattern that is no regular expression, finds nothing, or could take any time.

    Raises:
        ValueError: saying why.
    """
    if pattern is None:
        return
    shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
    if len(pattern) > LONGEST:
        raise ValueError(f"placeholder ({shown}) has {len(pattern):,} characters; it may have {LONGEST:,}")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
            tree = _parser.parse(pattern)
            problem = _Pattern(tree).problem()
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"placeholder ({shown}) is no regular expression: {error}") from None
    if problem:
        raise ValueError(f"placeholder ({shown}) {problem}")
    if re.search(pattern, ""):
        raise ValueError(f"placeholder ({shown}) must not match where there is nothing")


class _SlowError(Exception):
    """A pattern may take any time; says why."""


class _Pattern:
    """A parsed pattern, gone through in order.

    Args:
        tree: as Python's own parser makes it.
    """

    def __init__(self, tree: Any) -> None:
        self.tree, self.flags = tree, 0
        near = {n + step for n in _numbers(tree.data) for step in (-1, 0, 1) if 0 <= n + step < 0x110000}
        self.alphabet = _SOME + "".join(map(chr, sorted(near)))
        self.start: set[str] = set()  # what the pattern begins with
        self.free: list[set[str]] = []  # what the repeats so far are of, of those that may end in several places
        self.known: dict[tuple[str, int], set[str]] = {}

    def problem(self) -> str | None:
        """Why its search could take any time; None: it does not."""
        if self.tree.state.flags & re.VERBOSE:
            return "is written with (?x), which would hide what is put behind it"
        data = self.tree.data
        is_choice = len(data) == 1 and str(data[0][0]) == "BRANCH"
        try:
            for top in data[0][1][1] if is_choice else [self.tree]:
                self.free = []
                self.start = self._first(top.data, set()) or set()
                self._ways(top.data, None)
        except _SlowError as slow:
            return f"could take any time: {slow}"
        return None

    def _ways(self, items: Sequence[Any], after: set[str] | None) -> int:
        """How many ways there are to fit a text, apart from where unlimited repeats end.

        Args:
            items: of a sequence.
            after: the characters that may come behind it; None: the pattern may end there.

        Raises:
            _SlowError: too many, or without limit.
        """
        ways = 1
        for i, (kind, value) in enumerate(items):
            name, follows = str(kind), self._first(items[i + 1 :], after)
            if name in _REPEATS:
                ways *= self._repeat(value[0], value[1], value[2], follows)
            elif name == "SUBPATTERN":
                _, added, removed, body = value
                before, self.flags = self.flags, self.flags | added
                if removed:
                    raise _SlowError("it takes back a flag")
                ways *= self._ways(body.data, follows)
                self.flags = before
            elif name == "ATOMIC_GROUP":
                ways *= self._ways(value.data, follows)
            elif name == "BRANCH":
                ways *= self._branches([branch.data for branch in value[1]], follows)
            elif name in ("ASSERT", "ASSERT_NOT"):
                if _is_unlimited(value[1].data):
                    raise _SlowError("it looks ahead without limit")
                ways *= self._ways(value[1].data, None)
            elif name.startswith("GROUPREF"):
                raise _SlowError("it refers back to a group")
            if ways > MOST_WAYS:
                raise _SlowError(f"it can fit in more than {MOST_WAYS} ways")
        return ways

    def _repeat(self, least: int, most: int, body: Any, follows: set[str] | None) -> int:
        if most == 1:
            return self._ways(body.data, follows) + (least == 0)
        begins = self._first(body.data, set()) or set()
        if body.getwidth()[0] == 0:
            raise _SlowError("it repeats what may be empty")
        if _is_unlimited(body.data) or self._ways(body.data, begins | (follows or set())) > 1:
            raise _SlowError("it repeats what contains a repeat or a choice, such as (a+)+")
        if most == least:
            return 1
        if most <= FEW:
            return most - least + 1
        # A last repeat is never tried again: with it all has been found.
        n_alike = sum(1 for each in self.free if each & begins) if follows is not None else 0
        if n_alike > 1 or (n_alike and self.start & begins):
            raise _SlowError("repeats of the same characters without limit follow each other, such as a*a*")
        if follows is not None and follows & begins:
            self.free.append(begins)
        return 1

    def _branches(self, branches: list[Sequence[Any]], follows: set[str] | None) -> int:
        ways, before, after = 0, self.free, list(self.free)
        for branch in branches:
            self.free = list(before)
            ways += self._ways(branch, follows)
            after += self.free[len(before) :]
        self.free = after
        return ways

    def _first(self, items: Sequence[Any], after: set[str] | None) -> set[str] | None:
        """The characters that a sequence may begin with, and what comes behind it where it may be empty; None: the
        pattern may end there."""
        found: set[str] = set()
        for kind, value in items:
            name = str(kind)
            if name in _REPEATS:
                found |= self._first(value[2].data, set()) or set()
                if value[0] == 0 or value[2].getwidth()[0] == 0:
                    continue
                return found
            if name in ("SUBPATTERN", "ATOMIC_GROUP"):
                body = value[3] if name == "SUBPATTERN" else value
                found |= self._first(body.data, set()) or set()
                if body.getwidth()[0] == 0:
                    continue
                return found
            if name == "BRANCH":
                for branch in value[1]:
                    found |= self._first(branch.data, set()) or set()
                if any(branch.getwidth()[0] == 0 for branch in value[1]):
                    continue
                return found
            if name in _SINGLE:
                return found | self._characters((kind, value))
            return set(self.alphabet)  # it depends on what stands around
        return None if after is None else found | after

    def _characters(self, item: Any) -> set[str]:
        """The characters that a part of one character fits."""
        key = (repr(item), self.flags)
        if key not in self.known:
            one = _compiler.compile(_parser.SubPattern(self.tree.state, [item]), self.flags)
            self.known[key] = set(one.findall(self.alphabet))
        return self.known[key]


_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_SINGLE = ("LITERAL", "NOT_LITERAL", "IN", "ANY", "CATEGORY")


def _is_unlimited(node: Any) -> bool:
    """Whether there is a repeat without limit in a part of a parsed pattern."""
    if isinstance(node, tuple) and len(node) == 2 and str(node[0]) in _REPEATS:
        least, most, body = node[1]
        return (least != most and most > FEW) or _is_unlimited(body.data)
    if isinstance(node, _parser.SubPattern):
        return _is_unlimited(node.data)
    return isinstance(node, (tuple, list)) and any(map(_is_unlimited, node))


def _numbers(node: Any) -> Iterator[int]:
    """All numbers in a parsed pattern, the characters that it names among them."""
    if isinstance(node, _parser.SubPattern):
        yield from _numbers(node.data)
    elif isinstance(node, (tuple, list)):
        for each in node:
            yield from _numbers(each)
    elif type(node) is int:
        yield node
