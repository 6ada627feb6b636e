"""Any OpenAI-compatible server: it reports no load, so all engine signals stay unknown."""

from workers.engines.base import EngineLoad


class OpenAIAdapter:
    """The worker's own counts are all there is."""

    kind = "openai"
    owner = ""
    pages: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    tells_usage = False

    def speaks(self, page: bytes) -> bool:
        """Never: it is what remains when no other adapter knows the page."""
        return False

    def read_load(self, page: bytes) -> EngineLoad:
        """Nothing is known."""
        return EngineLoad()
