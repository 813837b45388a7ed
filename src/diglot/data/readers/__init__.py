"""Readers of the formats of translators and of test sets: TMX, XLIFF, gettext PO, and WMT's SGML and XML."""
