import io

import msgspec
from rich.console import Console

from deploy.cluster.gauge import Counter, Gauge, Progress, Totals, last_progress
from deploy.cluster.view import Snapshot, plain_line, screen, summary
from deploy.loads_view import InstanceLoad, Loads, Signal

LOADS = Loads(
    replica="replica-1",
    strategy="least_load",
    instances=(
        InstanceLoad(pool="default", id="sim-1", state="ready", signals={"inflight": Signal(value=3.0)}, selected=30),
        InstanceLoad(pool="default", id="sim-2", state="ready", selected=10),
    ),
)


def snapshot(**changes: object) -> Snapshot:
    """Return a cluster in the middle of its work."""
    whole = Snapshot(
        elapsed_s=10.0, totals=Totals(40, 1, 120.4, None), requests_per_s=4.0, loads=LOADS, restarts={"worker-sim-1": 2}
    )
    return msgspec.structs.replace(whole, **changes)


def drawn(renderable) -> str:
    """Return what a terminal would show."""
    console = Console(file=io.StringIO(), width=160)
    console.print(renderable)
    return console.file.getvalue()


def test_the_plain_line_holds_everything_in_one_line():
    """Time, requests, rate, errors, TTFT, every instance, what was restarted; unknown is a dash."""
    line = plain_line(snapshot())
    assert "\n" not in line
    for part in ("10.0 s", "done 40", "4.0/s", "errors 1", "p50 120 ms", "p99 –", "sim-1", "sim-2", "worker-sim-1 ×2"):
        assert part in line


def test_the_screen_shows_the_same_and_the_way_out():
    """A newcomer sees how to end it."""
    text = drawn(screen(snapshot()))
    for part in ("done 40", "sim-1", "restarted: worker-sim-1 ×2", "Ctrl-C"):
        assert part in text


def test_without_an_answer_both_say_so():
    """A fleet without a replica is not an empty fleet."""
    silent = snapshot(loads=None)
    assert "no replica answers" in plain_line(silent)
    assert "no replica answers" in drawn(screen(silent))


def test_the_summary_names_shares_and_restarts():
    """What stands at the end is what was done."""
    text = "\n".join(summary(snapshot(), {"sim-1": 30, "sim-2": 10}))
    for part in ("40 in 10.0 s (4.0/s)", "errors     1", "p50 120 ms", "sim-1 75 %, sim-2 25 %", "worker-sim-1 ×2"):
        assert part in text


def test_the_summary_of_nothing_divides_by_nothing():
    """A run that ends before it began has a summary too."""
    text = "\n".join(summary(snapshot(elapsed_s=0.0, totals=Totals(), restarts={}), {}))
    assert "requests   0" in text
    assert "restarts   none" in text


def test_a_counter_goes_on_where_a_restarted_process_began_anew():
    """A smaller reading is a new process, not work undone."""
    counter = Counter()
    assert [counter.read(value) for value in (3, 10, 0, 4)] == [3, 10, 10, 14]


def test_shares_are_summed_over_replicas_and_survive_their_restart(tmp_path):
    """What a replica sent before it was restarted, or while another did, counts."""
    gauge = Gauge(["one", "other"], None)
    for one, other in ((5, 1), (7, 2), (1, 3)):
        instance = LOADS.instances[0]
        gauge.loads = {
            "one": Loads(instances=(msgspec.structs.replace(instance, selected=one),)),
            "other": Loads(instances=(msgspec.structs.replace(instance, selected=other),)),
        }
        gauge.count()
    assert gauge.shares == {"sim-1": 7 + 1 + 3}
    fleet = gauge.fleet()
    assert fleet is not None
    assert fleet.instances[0].selected == 11


def test_without_traffic_of_its_own_the_answers_are_counted():
    """What replicas have answered is done, a 5xx is an error; a choice alone is neither."""
    gauge = Gauge(["one", "other"], None)
    gauge.loads = {"one": Loads(instances=(msgspec.structs.replace(LOADS.instances[0], selected=9),))}
    gauge.count()
    assert gauge.totals == Totals(requests=0, errors=0)
    gauge.hear("one", {"200": 5, "400": 1})
    gauge.hear("other", {"200": 2, "503": 3})
    gauge.hear("one", {"200": 2})  # it was restarted
    gauge.count()
    assert gauge.totals == Totals(requests=5 + 1 + 2 + 3 + 2, errors=3)


def test_progress_is_the_last_whole_line(tmp_path):
    """A line that is being written is left for the next look."""
    path = tmp_path / "progress"
    assert last_progress(path) is None
    path.write_text('{"done":1,"errors":0}\n{"done":2,"errors":1,"ttft_p50_ms":3.5}\n{"done":')
    assert last_progress(path) == Progress(2, 1, 3.5, None)
    gauge = Gauge([], path)
    gauge.count()
    assert gauge.totals == Totals(2, 1, 3.5, None)
