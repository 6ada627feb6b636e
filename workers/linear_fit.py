"""A straight line learned one sample at a time: forgets slowly, bears outliers, follows what lasts.

No I/O, no clock.
"""

import math
from statistics import median
from typing import Final

import msgspec

#: Weight left to a sample after each newer one: a memory of about 50 samples.
FORGETTING: Final = 0.98

#: The prior counts as this many samples, each at two places of the line.
PRIOR_SAMPLES: Final = 1.0

#: A sample further from the prediction than this many usual deviations is pulled in to there.
CLIP_DEVIATIONS: Final = 3.0

#: Usual deviation, as |ln(real / predicted)|: at the start (a prior may be wrong by a factor of three and more) and the
#: least that is assumed later.
FIRST_DEVIATION: Final = 0.7
LEAST_DEVIATION: Final = 0.1

#: So many samples in a row beyond the clip, all on one side, are no outliers: the pace has changed.
LASTING_SAMPLES: Final = 5

#: Weight left to everything older once the pace has changed: what was seen says only what shape the line has.
KEPT_OF_ANOTHER_PACE: Final = 0.2

#: A pace changes at most by this factor at a time.
LARGEST_CHANGE: Final = 1000.0

#: No time is shorter; s.
SHORTEST: Final = 1e-9

#: No amount and no time of a request is larger; beyond it squares leave the range of floats.
LARGEST: Final = 1e12


class Shape(msgspec.Struct, frozen=True):
    """What is thought of a line's shape before any sample: how much of its value one more x adds, and give or take."""

    slope_share: float
    deviation: float


class Surprises:
    """Tells outliers from a lasting change by how many come in a row.

    >>> surprises = Surprises()
    >>> [surprises.lasting(surprise, limit=0.3) for surprise in (1.0, 1.2, 0.9, 0.1, 1.0, 1.2, 0.9, 1.1, 1.0)]
    [None, None, None, None, None, None, None, None, 1.0]
    """

    def __init__(self) -> None:
        self._run: list[float] = []
        self._is_doubtful = False

    def doubt(self) -> None:
        """Nothing was seen for long: a next sample that is faster by too much is no outlier.

        One that is slower may well be: whoever is thought fast is asked again soon, and whoever is thought slow is not.
        """
        self._is_doubtful = True

    def ends_doubt(self) -> bool:
        """Whether the sample that now comes is the first after a doubt."""
        is_first, self._is_doubtful = self._is_doubtful, False
        return is_first

    def lasting(self, surprise: float, *, limit: float, is_first: bool = False) -> float | None:
        """Note ln(real / predicted) of a sample; the typical one once `LASTING_SAMPLES` in a row were too large.

        `is_first`: it is the first after a doubt.
        """
        if is_first and surprise < -limit:
            self._run.clear()
            return max(surprise, -math.log(LARGEST_CHANGE))
        if abs(surprise) <= limit or (self._run and self._run[0] * surprise < 0):
            self._run.clear()
        if abs(surprise) > limit:
            self._run.append(surprise)
        if len(self._run) < LASTING_SAMPLES:
            return None
        largest = math.log(LARGEST_CHANGE)
        typical = min(max(median(self._run), -largest), largest)
        self._run.clear()
        return typical


class LinearFit:
    """y = fixed + slope * x, both never negative, learned from samples (x, y).

    Weighted least squares with exponential forgetting. A sample's weight is 1 / prediction², so that the *relative*
    error is minimised. Its y is first clipped to prediction * exp(±3 deviations): one outlier moves the line a little.
    After five in a row beyond that on one side the whole line takes their pace, and goes on learning from there; after
    a doubt after the first, if that is faster, and in any case what was known counts for less. A prior that proves too
    slow was only a shape; one that proves too fast may have met an engine that was still warming up.

    With a `shape` the slope is drawn to its share of the line's value, as strongly as its deviation compares with that
    of the samples: where all x are alike they say nothing of the slope, and equals must not learn different ones.

    >>> line = LinearFit(fixed=0.0, slope=1.0, at=(1.0, 2.0))
    >>> for x in range(1, 1000):
    ...     line.learn(x % 10, 3.0 + 2.0 * (x % 10))
    >>> round(line.fixed, 3), round(line.slope, 3)
    (3.0, 2.0)
    """

    def __init__(self, *, fixed: float, slope: float, at: tuple[float, float], shape: Shape | None = None) -> None:
        self.fixed = fixed
        self.slope = slope
        self.samples = 0
        self._shape = shape
        self._surprises = Surprises()
        self._deviation = FIRST_DEVIATION
        self._n = self._x = self._xx = self._y = self._xy = 0.0
        for x in at:
            self._add(x, self.at(x), PRIOR_SAMPLES / 2)

    def at(self, x: float) -> float:
        """Value of the line at `x`."""
        return self.fixed + self.slope * x

    def doubt(self) -> None:
        """Nothing has confirmed the line for long: the next sample counts for more."""
        self._surprises.doubt()

    def learn(self, x: float, y: float) -> None:
        """Take one sample; anything but x in [0, 1e12] and y in (0, 1e12] is ignored: NaN and infinities too."""
        if not (0 <= x <= LARGEST and 0 < y <= LARGEST):
            return
        y = max(y, SHORTEST)
        limit = CLIP_DEVIATIONS * self._deviation
        surprise, is_first = self._surprise(x, y), self._surprises.ends_doubt()
        change = self._surprises.lasting(surprise, limit=limit, is_first=is_first)
        if not self.samples and surprise < 0:
            change = max(surprise, -math.log(LARGEST_CHANGE))
        if change is not None or is_first:
            self._change_pace(math.exp(change or 0.0))
        clipped = min(max(self._surprise(x, y), -limit), limit)
        self._deviation = max(LEAST_DEVIATION, 0.95 * self._deviation + 0.05 * abs(clipped))
        self.samples += 1
        self._scale_memory(FORGETTING, 1.0)
        self._add(x, max(self.at(x), SHORTEST) * math.exp(clipped), 1.0)
        self._solve()

    def _surprise(self, x: float, y: float) -> float:
        return math.log(y / max(self.at(x), SHORTEST))

    def _change_pace(self, factor: float) -> None:
        """All that is known happened `factor` times as slowly, and counts for less."""
        self.fixed, self.slope = self.fixed * factor, self.slope * factor
        self._scale_memory(KEPT_OF_ANOTHER_PACE, factor)

    def _scale_memory(self, kept: float, pace: float) -> None:
        self._n *= kept / pace**2
        self._x *= kept / pace**2
        self._xx *= kept / pace**2
        self._y *= kept / pace
        self._xy *= kept / pace

    def _add(self, x: float, y: float, weight: float) -> None:
        w = weight / max(self.at(x), SHORTEST) ** 2
        self._n += w
        self._x += w * x
        self._xx += w * x * x
        self._y += w * y
        self._xy += w * x * y

    def _solve(self) -> None:
        """The least-squares line through what is remembered, kept to fixed >= 0 and slope >= 0."""
        spread = self._n * self._xx - self._x * self._x
        pull, drawn_to = self._drawn()
        if spread + pull > 1e-9 * self._n * self._xx:
            slope = (self._n * self._xy - self._x * self._y + pull * drawn_to) / (spread + pull)
            fixed = (self._y - slope * self._x) / self._n
            if fixed < 0:
                fixed, slope = 0.0, self._xy / self._xx
            elif slope < 0:
                fixed, slope = self._y / self._n, 0.0
            self.fixed, self.slope = fixed, slope
        else:  # all samples at one place: scale the line to go through it
            predicted = self.fixed * self._n + self.slope * self._x
            if predicted > 0:
                factor = self._y / predicted
                self.fixed, self.slope = self.fixed * factor, self.slope * factor

    def _drawn(self) -> tuple[float, float]:
        """Weight with which the slope is drawn, in the unit of `spread`, and to what."""
        if self._shape is None:
            return 0.0, 0.0
        level = self._y / self._n
        weight = (LEAST_DEVIATION / (self._shape.deviation * level)) ** 2
        return weight * self._n, self._shape.slope_share * level
