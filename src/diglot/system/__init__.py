"""Interfaces to the operating system and the terminal: files, processes, signals, streams and the shell."""
