"""Functions as other schedulers call them: no tasks of Django's."""


def add(a, b=1):
    return a + b
