"""Readers of data as people have them: one small module per format, one shape of answer (`raw.Raw`).

`opening.load` is the entrance; `finding.find` tells which reader fits a file or folder; `known` holds what is
published about the sets with a name. Readers never write: decoding into arrays and keeping them is the cache's work.
"""
