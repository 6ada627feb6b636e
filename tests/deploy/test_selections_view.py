import io

import pytest
from rich.console import Console

from deploy.selections_view import Selection, decode, reason, render


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Selection(tier="measured", strategy="least_load", runner_up="e2", margin=0.0), "least_load: tied, its turn"),
        (Selection(tier="in_flight", strategy="least_load", runner_up="e2", margin=1.0), "own in-flight counts"),
        (Selection(tier="measured", strategy="least_load"), "only candidate"),
        (Selection(tier="measured", strategy="round_robin", runner_up="e2"), "round_robin: its turn"),
        (Selection(tier="round_robin", strategy="least_load", runner_up="e2"), "round_robin: its turn"),
        (Selection(tier="measured", strategy="s", runner_up="b", margin=1.0, imputed={"e3": {}}), "imputed for e3"),
    ],
)
def test_reason_is_said_in_words(choice, words):
    """Why an instance was chosen can be read without knowing the fields."""
    assert words in reason(choice)


def test_newest_choices_are_listed():
    """At most as many lines as asked for, newest first, with margin; unknown is a dash."""
    selections = decode(
        b'{"selections":[{"request_id":"r1","at":1.0,"chosen":"e1","score":1.25,"runner_up":"e2","runner_up_score":2.5,'
        b'"margin":1.25,"tier":"measured","strategy":"least_load","imputed":{}},{"request_id":"r2"},{"request_id":"r3"}]}'
    )
    out = io.StringIO()
    Console(file=out, width=160).print(render(selections, most=2))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:6] == ["r1", "e1", "1.250", "e2", "2.500", "1.250"]
    assert lines[2].split()[:2] == ["r2", "–"]
