"""An HTTP server with OpenAI's interface for one model on one machine.

`create_app` makes an ASGI application, `serve` runs it; needs the extra: pip install
'ptd-engine[serve]'.
"""

from ptd_engine.server.app import create_app
from ptd_engine.server.config import ServerConfig
from ptd_engine.server.run import bind, serve

__all__ = ["ServerConfig", "bind", "create_app", "serve"]
