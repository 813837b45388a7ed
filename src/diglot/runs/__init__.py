"""The folder of a run: how it begins, what it has read, how it goes on, and its report."""
