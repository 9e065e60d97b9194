"""The files that a program asks for, lists, fetches, reads and writes."""
