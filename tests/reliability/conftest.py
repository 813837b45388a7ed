"""Report which promises to users held, in a table at the end."""

from collections import Counter
from typing import Any

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("promise"):
        item.user_properties.append(("promise", mark.args[0].rstrip(".")))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, promise in getattr(report, "user_properties", ()):  # missing if a file cannot be imported
                if name == "promise" and (report.when == "call" or outcome != "passed"):
                    found.setdefault(promise, Counter())[outcome] += 1
    if not found:
        return
    terminalreporter.write_line("\n| promise | held | failed | not tried |\n|---|---|---|---|")
    for promise, counts in sorted(found.items()):
        failed = counts["failed"] + counts["error"]
        terminalreporter.write_line(f"| {promise} | {counts['passed']} | {failed} | {counts['skipped']} |")
