"""Redaction: what in a record is personal or secret, and the record without it. No I/O, no framework.

`detect` finds spans in one text, `redact` walks a whole record, `pseudonyms` names what was found.
"""
