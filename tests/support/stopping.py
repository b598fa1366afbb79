"""Runs that are interrupted on the way."""


class Stop:
    """Interrupts a function at its n-th call."""

    def __init__(self, function, calls: int) -> None:
        self.function, self.left = function, calls

    def __call__(self, *arguments):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.function(*arguments)
