"""The ZeroMQ transport: Storm's first plug-in, with backpressure.

`ZMQConnection.send` in Storm 0.8 contains the comment: "how to do backpressure if doing noblock?... need to
only unblock if the target disappears". This transport uses the session's credit. For each task, a sender may
send a number of messages, and the receiver grants more as it releases messages. So the socket never blocks:
`send` waits only for the session's window. If the target disappears, no message is lost: the session retains
unacknowledged messages and resumes. Acknowledgements need a DEALER and ROUTER pair instead of PUSH and PULL.
"""

import importlib.util

from tuplewire.errors import TuplewireError

if importlib.util.find_spec("zmq") is None:
    raise TuplewireError("pyzmq is not installed: run pip install 'tuplewire[zmq]'")

from tuplewire_service.messaging.zmq.zmq_transport import ZmqContext

__all__ = ["ZmqContext"]
