"""Counts the tokens of one answer as its engine counts them, for a key that is limited in them."""

from bus.hop.answer import Sink
from bus.hop.sse import EventTap, Usage, asking_for_usage, read_usage
from proxy.facts import Facts
from proxy.keys import LARGEST_LIMIT


class Meter:
    """Looks for the usage in an answer; `strips_usage` keeps an event out that the client has not asked for."""

    def __init__(self, *, strips_usage: bool) -> None:
        self.events = 0
        """Events of a stream so far: about its tokens, where its engine does not say how many they were."""
        self._tap = EventTap(strips_usage=strips_usage)
        self._usage: Usage | None = None

    @property
    def tokens(self) -> int | None:
        """Prompt and answer together; None: the engine did not say."""
        usage = self._usage or self._tap.usage()
        if usage is None or (usage.prompt_tokens is None and usage.completion_tokens is None):
            return None
        return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)

    def through(self, write: Sink) -> Sink:
        """Sink that stands before `write`."""

        def take(data: bytes) -> None:
            self.events += data.count(b"data:")
            passed = self._tap.feed(data)
            if passed:
                write(passed)

        return take

    def rest(self) -> bytes:
        """What was held back of an unfinished last event; the stream has ended."""
        return self._tap.end()

    def saw_whole(self, body: bytes) -> None:
        """An answer has come in one piece."""
        self._usage = read_usage(body)


def asks_for_usage(facts: Facts, body: bytes) -> bytes | None:
    """The body with the usage of its stream asked for; None where the client has said what it wants, or cannot be."""
    if facts.wants_usage or body[:1] != b"{":
        return None
    return asking_for_usage(body)


def expected_tokens(facts: Facts, prompt_tokens: int) -> int:
    """What a request may spend: its prompt, and the most that its answers may have."""
    return min(prompt_tokens + facts.sequences * (facts.output_cap or 0), LARGEST_LIMIT)
