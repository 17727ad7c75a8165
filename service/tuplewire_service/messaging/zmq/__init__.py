"""The ZeroMQ transport: Storm's first plug-in, with an answer to the question that its source asks.

`ZMQConnection.send` in Storm 0.8 reads: "how to do backpressure if doing noblock?... need to only unblock if
the target disappears". Here: with the credits of the session. A sender has for each task a count of messages
that it may send; the receiver grants more as messages leave its hands. So the socket itself never has to
block, `send` waits on the session's window alone, and a target that disappears takes no message with it: the
session keeps what is not acknowledged, and resumes. The socket pair that can carry acknowledgements is DEALER
and ROUTER in place of PUSH and PULL.
"""

import importlib.util

from tuplewire.errors import ConfigError

if importlib.util.find_spec("zmq") is None:
    raise ConfigError("pyzmq is not installed: run pip install 'tuplewire[zmq]'")

from tuplewire_service.messaging.zmq.zmq_transport import ZmqContext

__all__ = ["ZmqContext"]
