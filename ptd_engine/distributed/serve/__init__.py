"""Many engines behind one address: replicas of the server as an application of Ray Serve.

An ingress takes the requests and hands each to a replica; a replica is one engine behind the same
application as that of `ptd-engine serve`. Needs the extra: pip install 'ptd-engine[ray]'. Ray is
imported by `deploy` and `build`, not before.
"""

from ptd_engine.distributed.serve.deploy import build, deploy
from ptd_engine.distributed.serve.scaling import Scaling

__all__ = ["Scaling", "build", "deploy"]
