"""Engines that answer in one piece or in events."""

import asyncio

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":3,"total_tokens":23}}\n\n'
DONE = b"data: [DONE]\n\n"
#: What vLLM sends of a response before its engine has taken the request.
CREATED = (
    b'event: response.created\ndata: {"response":{"id":"r","status":"in_progress"},"type":"response.created"}\n\n'
    b'event: response.in_progress\ndata: {"response":{"status":"in_progress"},"type":"response.in_progress"}\n\n'
)
DELTA = b'event: response.output_text.delta\ndata: {"delta":"x","type":"response.output_text.delta"}\n\n'
COMPLETED = b'event: response.completed\ndata: {"response":{"status":"completed"},"type":"response.completed"}\n\n'
ANSWER = b'{"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":20,"completion_tokens":3}}'


#: What vLLM answers with status 500 while it shuts down.
SHUTS_DOWN = (
    b'{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,'
    b'"code":500}}'
)


def plain(body: bytes = ANSWER, **more: str):
    """An engine that answers in one piece."""
    return lambda peer, _: peer.answer(body, **more)


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
