"""`forebay worker`: the queue worker of one engine or several."""

from pathlib import Path

import click

from deploy.addresses import parsed_engine, repeated
from deploy.allowed import LOG_LEVELS
from deploy.options import Spelling, configured, one_of
from workers.config import WorkerConfig
from workers.engines import ADAPTERS

EXAMPLE = """\b
Example: two engines of one machine, 64 requests at once on each
  forebay worker --redis redis://10.0.0.2:6379/0 --slots 64 \\
      --instance gpu0=http://127.0.0.1:8000 --instance gpu1=http://127.0.0.1:8001"""

INSTANCES = Spelling(flags=("--instance", "--engine"), metavar="[ID=]URL", parse=parsed_engine)


@click.command(epilog=EXAMPLE)
@configured(WorkerConfig, instances=INSTANCES, engine_kind=one_of(["auto", *ADAPTERS]), log_level=one_of(LOG_LEVELS))
def worker(config: WorkerConfig) -> None:
    """Own the queues of the given engines: everything sent to them passes through here.

    Its pressure records tell every replica what waits and what is predicted.
    """
    twice = repeated(config.instances)
    if twice:
        raise click.UsageError(f"--instance: two engines are called {twice!r}; give each an id of its own, as ID=URL")
    if config.engine_key_file:
        try:
            Path(config.engine_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--engine-key-file: {config.engine_key_file!r} cannot be read: {error}") from error
    from workers.process import run  # the server's libraries are loaded only where a server is started

    run(config)
