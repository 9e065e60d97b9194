"""Edits into text: expressions by libcst, statements by lines; what isn't edited stays byte for byte."""
