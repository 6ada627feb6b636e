"""`forebay why`: why a past request went where it went."""

import asyncio

import aiohttp
import click
import msgspec
from rich.console import Console

from deploy import why_view
from deploy.admin import admin_headers, admin_key_option, admin_session


@click.command(
    epilog="""\b
The id is the x-request-id of the answer, or request_id in the access log.
Example: forebay why 3e91b1880f07455b --target http://10.0.0.3:9000 --target http://10.0.0.4:9000"""
)
@click.argument("request_id")
@click.option(
    "--target",
    multiple=True,
    default=("http://127.0.0.1:9000", "http://127.0.0.1:9001"),
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Admin listener of a replica, repeatable: whichever remembers the request answers.",
)
@admin_key_option
@click.pass_context
def why(ctx: click.Context, request_id: str, target: tuple[str, ...], admin_key_file: str) -> None:
    """Show for a past request every candidate's terms, what was unknown, and how close it was.

    A replica remembers its last 256 choices.
    """
    for url in target:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"{url}: must be http://HOST:PORT", ctx=ctx, param_hint="--target")
    pages, problems = asyncio.run(_ask(request_id, target, admin_headers(admin_key_file)))
    console = Console(width=None if Console().is_terminal else 200)
    found = [choice for page in pages for choice in reversed(page.selections)]
    for attempt, choice in enumerate(found, start=1):
        console.print(why_view.render(choice, attempt=attempt))
    if not found:
        for problem in problems:
            click.echo(problem, err=True)
        raise click.ClickException(f"no replica that answered remembers a request {request_id!r}")


async def _ask(
    request_id: str, targets: tuple[str, ...], headers: dict[str, str]
) -> tuple[list[why_view.Page], list[str]]:
    """Pages of the replicas that answer, and what was wrong with the others."""
    pages, problems = [], []
    async with admin_session(headers) as session:
        for target in targets:
            try:
                url = f"{target.rstrip('/')}/debug/selections"
                async with session.get(url, params={"request_id": request_id}) as response:
                    response.raise_for_status()
                    pages.append(why_view.decode(await response.read()))
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as fault:
                problems.append(f"{target}: {str(fault) or 'no answer'}")
    return pages, problems
