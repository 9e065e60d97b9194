"""Distributed training that a script sets up itself, and scripts that were converted before."""
