"""A trial that breaks its promise, in a file that a process of the campaign imports in no time."""


def broken(number, shared):
    assert number != 3, "three is too many"
    return "even" if number % 2 == 0 else "odd"
