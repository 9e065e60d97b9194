"""Notebooks: their code cells as a script, and a notebook that writes and starts its script.

nbformat reads and writes the files; what IPython adds to Python is taken out here. Nothing of a notebook is run.
"""
