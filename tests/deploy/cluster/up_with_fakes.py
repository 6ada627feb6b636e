"""`forebay up` with stand-ins for all parts but the bus: the real supervisor, in a process of its own."""

import sys
from pathlib import Path

from deploy.cli import status_of
from deploy.cluster import run

run.program = lambda: (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_forebay.py")))
sys.exit(status_of(["up", *sys.argv[1:]]))
