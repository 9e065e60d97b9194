"""Edits into text: all edits of a file in one pass of libcst, where what isn't edited stays byte for byte."""
