"""Notebooks: their code cells as a script.

nbformat reads the files; what IPython adds to Python is taken out here. Nothing of a notebook is run.
"""
