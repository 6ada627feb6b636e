"""What counts as growth: a leak does, a rush does not."""

import pytest

from tests.chaos import soak
from tests.chaos.campaign import Campaign
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import Ledger
from tests.chaos.soak import SPARED, Files, Growth, Sample, growth, misses

TIMES = {"began_s": 0.0, "calm_s": 55.0, "ended_s": 400.0}


def samples(memory_mb=lambda _: 50.0):
    """Looks of 400 s, one each two."""
    return [Sample(float(at_s), memory_mb(at_s)) for at_s in range(0, 400, 2)]


def found(looks):
    """Growth over the whole of them."""
    result = growth("worker", looks, **TIMES)
    assert result is not None
    return result


def test_memory_that_grows_steadily_is_growth():
    """Six per cent from the second to the last quarter are too much, four are not."""
    assert not found(samples(lambda at_s: 50.0 + 3.0 * (at_s >= 300))).is_flat
    assert found(samples(lambda at_s: 50.0 + 2.0 * (at_s >= 300))).is_flat


def test_a_process_that_was_started_anew_is_not_compared():
    """Its first minute of work is no growth; who was there when the first eighth was over, is."""
    looks = samples()
    assert growth("worker", looks[40:], **TIMES) is None
    assert growth("worker", looks[28:], **TIMES) is not None


def test_a_process_that_is_gone_before_the_end_is_not_compared():
    """However much of the last quarter it lived."""
    assert growth("worker", samples()[:190], **TIMES) is None


BEFORE = {"bus": 20, "engines-0": 30, "worker-i1-1": 24, "worker-i2-2": 25, "replica-7": 28}
"""Files of each process at rest, and the names of those that must be measured."""


def measured(*names: str, memory_mb: tuple[float, float] = (50.0, 50.0)) -> list[Growth]:
    """Give processes that did not grow."""
    return [Growth(name, memory_mb) for name in names]


def counted(**after: int) -> Files:
    """Give the files of a run: as many as before, but for these."""
    files = Files()
    files.before, files.after = BEFORE, {**BEFORE, **{name.replace("_", "-"): count for name, count in after.items()}}
    return files


def test_a_soak_in_which_nobody_was_measured_has_failed():
    """Each of the bus, the engines, a replica and the two spared workers must be there, and the files counted."""
    assert misses(measured(*BEFORE), counted()) == []
    assert len(misses([], counted())) == 5
    assert len(misses(measured(*BEFORE), Files())) == 2
    for name in BEFORE:
        (line,) = misses(measured(*(other for other in BEFORE if other != name)), counted())
        assert line.endswith("was not measured")
        assert name.startswith(line.split()[0])


def test_what_has_grown_is_a_miss():
    """Named, beside those that are flat."""
    grown = [*measured(*BEFORE), *measured("replica-9", memory_mb=(50.0, 53.0))]
    assert misses(grown, counted()) == ["replica-9 has grown"]


def test_files_that_stay_when_all_is_over_are_a_leak():
    """A process that was started since is compared with its like; a few more are none."""
    assert misses(measured(*BEFORE), counted(worker_i1_9=31, replica_7=34)) == []
    (line,) = misses(measured(*BEFORE), counted(worker_i1_9=32))
    assert line == "worker-i1-9 holds 32 files at rest, its like held 25"


class Process:
    """One whose files come down from look to look."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def num_fds(self) -> int:
        """Give the next count, and the last one again and again."""
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]


@pytest.mark.parametrize(("counts", "left"), [([20, 60, 40, 24], 24), ([20, 60, 40], 40)])
async def test_kept_connections_are_given_time_to_end(counts, left, monkeypatch):
    """The count after the run is the one that they come down to, or the last when they do not."""

    class OneProcess:
        def processes(self):
            return {"bus": 1}

    process = Process(counts)
    monkeypatch.setattr(soak.psutil, "Process", lambda _: process)
    monkeypatch.setattr(soak, "SAMPLE_S", 0.001)
    monkeypatch.setattr(soak, "REST_S", 0.02)
    files = Files()
    await files.look(OneProcess())
    await files.look(OneProcess())
    assert (files.before, files.after) == ({"bus": 20}, {"bus": left})


def test_the_spared_are_never_started_anew():
    """Whoever's turn it is: what restarts processes hits the others, everything else hits all."""

    class Seats:
        engine_names = ("i1", "i2", "i3", "i4")
        replicas = ("r1", "r2", "r3")

    class Idle:
        ledger = Ledger()

    current = Campaign(Seats(), Idle(), seed=1, say=print)
    current.spare(SPARED)
    restarts = [fault for fault in FAULTS.values() if fault.is_restart]
    assert {current._victim(fault) for fault in restarts for _ in range(20)} == {"i3", "i4", "r2", "r3"}
    assert {current._victim(FAULTS["worker SIGSTOP"]) for _ in range(20)} == {"i1", "i2", "i3", "i4"}
