"""Django's tasks on our backend: the contract that Django documents, test by test, and what goes beyond it.

The same on Django 6.1, on 6.0, and on 5.2 with its backport, whose names partly differ (`support.py`).
"""
