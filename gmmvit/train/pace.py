"""When the loop looks at the losses: about once a second, and all processes at the same step."""

from __future__ import annotations

from .processes import World

LOOK_EVERY = 1.0  # seconds between two looks; on a GPU each waits for all the work that was asked of it


class Pace:
    """Counts the steps to the next look.

    Their number is the first process's, by its clock: it says so with every step, in the flags that are exchanged
    anyway, and all read at one look how far off the next one is. On a CPU, where nothing waits, it is one step.
    """

    def __init__(self, world: World):
        self.world, self.wanted, self.left = world, 1, 1

    @property
    def flag(self) -> float:
        """What this process says with a step; the flags of all are averaged."""
        return float(self.wanted) if self.world.first else 0.0

    def due(self) -> bool:
        """Whether to look after this step; to be asked once after each."""
        self.left -= 1
        return self.left <= 0

    def looked(self, flag: float, steps: int, seconds: float) -> None:
        """Takes the mean flag of the step that was looked at, and how long the steps up to it took."""
        self.left = max(1, round(flag * self.world.size))
        if self.world.device.type != "cpu":  # at most twice as far as before: the first steps say little
            self.wanted = max(1, min(2 * self.wanted, int(steps * LOOK_EVERY / max(seconds, 1e-9))))
