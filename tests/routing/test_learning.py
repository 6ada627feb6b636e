"""What becomes of an engine that was thought slow, in virtual time: it is asked again, and that costs little."""

from collections import Counter
from random import Random

import pytest

from tests.routing.figures import percentile
from tests.routing.load import Arrival, arrivals
from tests.routing.simulation import Spell, play
from tests.routing.site import Job

#: Until what was learned in a slow minute has been doubted, at the latest: half a minute, and one more.
FORGIVEN_S = 90.0


def share_of(site: int, jobs: list[Job]) -> float:
    """Share of the requests that went to an instance."""
    return sum(job.site == site for job in jobs) / len(jobs)


@pytest.mark.parametrize("load", [0.2, 0.4, 0.6])
def test_an_engine_that_was_slow_for_a_minute_is_back_soon_after(load):
    """At a fifth of its speed; a minute and a half later it has its share again, and not after nine."""
    speeds, spell = (1.0,) * 4, Spell(0, 0.2, 100.0, 160.0)
    coming = arrivals("conv", seed=1, limit=3000, load=load, speeds=speeds, replicas=2)
    jobs = play(coming, speeds, "predicted_ttft", replicas=2, spell=spell).jobs
    during = [job for job in jobs if spell.begin_s + 20 <= job.at_s < spell.end_s]
    after = [job for job in jobs if 0 <= job.at_s - spell.end_s - FORGIVEN_S < 120]
    assert share_of(0, during) <= 0.1
    assert share_of(0, after) >= 0.15


@pytest.mark.parametrize("load", [0.1, 0.3])
def test_a_slow_engine_is_asked_seldom_and_first_tokens_come_as_soon_as_without_it(load):
    """A tenth of the speed beside three: less than a request a minute, and p99 TTFT is that of the fast."""
    speeds = (1.0, 1.0, 1.0, 0.1)
    coming = arrivals("conv", seed=0, limit=2000, load=load, speeds=speeds, replicas=2)
    jobs = play(coming, speeds, "predicted_ttft", replicas=2).jobs[200:]
    to_the_slow = [job for job in jobs if job.site == 3]
    assert len(to_the_slow) <= (jobs[-1].at_s - jobs[0].at_s) / 60
    first_s = {site: [job.first_s - job.at_s for job in jobs if (job.site == 3) is site] for site in (False, True)}
    assert percentile([*first_s[False], *first_s[True]], 0.99) <= 1.05 * percentile(first_s[False], 0.99)


def test_at_low_load_no_one_of_four_equals_has_all_the_requests():
    """Ten short requests a second: one had every one of them, since the others could not show that they are as fast."""
    most = []
    for seed in range(3):
        rng, at_s, coming = Random(seed), 0.0, []
        for _ in range(2000):
            at_s += rng.expovariate(10.0)
            prompt, output = max(4, int(rng.lognormvariate(4, 1))), max(2, int(256 * rng.lognormvariate(0, 0.5)))
            coming.append(Arrival(at_s, prompt, output, rng.randrange(2)))
        jobs = play(coming, (20.0,) * 4, "predicted_ttft", replicas=2, seed=seed).jobs
        most += [max(Counter(job.site for job in jobs[at : at + 100]).values()) for at in range(500, 2000, 100)]
    assert sum(most) / len(most) <= 75
