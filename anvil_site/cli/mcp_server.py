"""``anvil mcp``: the tools of the Model Context Protocol, over stdio or HTTP."""

import sys

from .client import Target
from .outcome import Outcome, failed
from .spec import Arguments


def serve(arguments: Arguments) -> Outcome:
    """Serve until the client leaves (stdio) or the process is told to stop (HTTP)."""
    # A bad address or token is refused here, not in the answer to a call.
    target = Target.from_environment()
    try:
        from anvil_site.mcp import server
    except ImportError:
        return failed("mcp_missing")
    port = arguments.whole("port")
    if port is None:
        server.serve_stdio()
        return Outcome()
    print(f"tools at http://{server.HOST}:{port}{server.PATH}", file=sys.stderr, flush=True)
    try:
        server.serve_http(port, token=target.token)
    except OSError:
        return failed("mcp_port_taken")
    return Outcome()
