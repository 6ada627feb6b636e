"""What a worker sees of an engine's settings and its own that its operator should know: nothing else would tell.

Each is said once. Time is an argument; no I/O, no log.
"""

from typing import Final

from workers.engines import EngineLoad

#: Answers that say nothing of cached tokens, after the prefix cache had hits, before that is worth a word: those that
#: had the hits are among them.
UNTOLD_ANSWERS: Final = 20

#: Time that requests wait here while the engine could take more before that is worth a word, s.
IDLE_BEHIND_QUEUE_S: Final = 60.0

#: With a KV cache as full as this an engine may have reason to take no more.
_KV_USAGE: Final = 0.5

CACHE_UNTOLD: Final = (
    "the engine's prefix cache has hits, but its answers do not tell cached tokens, so that prefill looks faster than "
    "it is: start vLLM with --enable-prompt-tokens-details"
)
SLOTS_TOO_FEW: Final = (
    "requests wait here for a slot while the engine could take more: if it runs more than {slots} at once (vLLM: "
    "--max-num-seqs), --slots is too low"
)


class Advice:
    """Looks at the loads and answers of one engine; what is to be said comes back."""

    def __init__(self, *, slots: int) -> None:
        self._slots = slots
        self._cache_hits: float | None = None
        self._has_cache_hits = self._is_cache_told = False
        self._untold = 0
        self._idle_since_s: float | None = None
        self._is_slots_said = False

    def saw_load(self, now_s: float, load: EngineLoad, *, queued: int) -> str | None:
        """The engine has told its load while `queued` requests wait here for a slot.

        >>> advice, load = Advice(slots=16), EngineLoad(waiting=0, kv_usage=0.1)
        >>> [advice.saw_load(now_s, load, queued=3) is not None for now_s in (0.0, 59.0, 60.0, 61.0)]
        [False, False, True, False]
        """
        hits = load.prefix_cache_hits
        if hits is not None and self._cache_hits is not None and hits > self._cache_hits:
            self._has_cache_hits = True  # those before the first reading were another's
        self._cache_hits = hits
        has_room = load.waiting == 0 and load.kv_usage is not None and load.kv_usage < _KV_USAGE
        if not queued or not has_room:
            self._idle_since_s = None
            return None
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if self._is_slots_said or now_s - self._idle_since_s < IDLE_BEHIND_QUEUE_S:
            return None
        self._is_slots_said = True
        return SLOTS_TOO_FEW.format(slots=self._slots)

    def saw_completion(self, cached_tokens: int | None) -> str | None:
        """A completion told its usage, with so many cached tokens; None: it did not say, as some do where none was."""
        self._is_cache_told = self._is_cache_told or cached_tokens is not None
        if self._is_cache_told or not self._has_cache_hits:
            return None
        self._untold += 1
        return CACHE_UNTOLD if self._untold == UNTOLD_ANSWERS else None
