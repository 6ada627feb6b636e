"""The door of an instance: who knows the secret of the proxies comes in, with everything; others see /health only.

Without it a client could pass the proxies by, with their keys and limits, and its work would be in no reservation.
"""

import logging
import time

from aiohttp import web

from bus.hop.headers import REFUSED, SECRET, VERDICT
from bus.hop.openai_error import error_body
from bus.hop.secrets import Secret
from bus.hop.server import Handler
from bus.seldom import Seldom
from workers.metrics import WorkerMetrics

log = logging.getLogger("forebay.worker")


class Door:
    """Stands before the handler of one instance; without a secret it is open."""

    def __init__(self, handler: Handler, secret: Secret | None, instance: str, metrics: WorkerMetrics) -> None:
        self._handler = handler
        self._secret = secret
        self._instance = instance
        self._metrics = metrics
        self._said = Seldom()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if self._secret is None or self._secret.is_known_to(request.headers.get(SECRET)) or _is_health(request):
            return await self._handler(request)
        self._metrics.refused_caller(self._instance)
        count = self._said.due(time.monotonic())
        if count:
            log.warning(
                "instance %s: refused a request from %s without the proxies' secret (%d since this was last said)",
                self._instance,
                request.remote,
                count,
            )
        body = error_body("only proxies may call a worker", kind="invalid_request_error", code="invalid_secret")
        headers = {VERDICT: REFUSED}  # a proxy of ours with another secret: not its client's fault, others may serve it
        return web.Response(status=403, body=body, content_type="application/json", headers=headers)


def _is_health(request: web.BaseRequest) -> bool:
    return request.method == "GET" and request.raw_path == "/health"
