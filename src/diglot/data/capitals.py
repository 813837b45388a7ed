"""Sources in capitals, which are encoded in lower case after a mark.

A tokenizer splits words in capitals into letters, because its training text has few of them. In lower case, such a
source has the pieces of normal text. This is inline casing for whole lines (Berard et al., 2019, "Naver Labs Europe's
Systems for the WMT19 Machine Translation Robustness Task").
"""

CAPITALS = "<capitals>"  # control piece before a source that was in capitals
_MIN_CAPITALS = 2
_MIN_RATIO = 3  # least number of capitals per lower-case letter


def is_in_capitals(text: str) -> bool:
    """Return whether a text is in capitals: it has at least two, and three times as many as lower-case letters."""
    if text.islower() or (not text.isupper() and text[1:].islower()):
        return False  # the most frequent cases, and fast: no capital, or only the first letter
    n_capitals = sum(map(str.isupper, text))
    return n_capitals >= _MIN_CAPITALS and n_capitals >= _MIN_RATIO * sum(map(str.islower, text))
