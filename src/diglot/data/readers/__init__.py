"""Readers of files that hold both sides of a text, such as TSV, JSON, TMX, XLIFF, gettext PO and WMT test sets."""
