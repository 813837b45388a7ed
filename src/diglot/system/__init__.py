"""What diglot asks of the operating system and the terminal: files, processes, signals, streams, the shell."""
