"""`python -IS warm_client.py SOCKET PROGRAM ARGUMENTS`: what an executable of warm.py is.

It runs for each program that a test starts, so it imports no module that is not built in: `socket` and `json` would
take twice the time of the interpreter's start.
"""

import _signal as signal
import _socket as socket
import array
import marshal
import os
import sys

STREAMS = (0, 1, 2)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def call(address: str, program: str, *arguments: str) -> None:
    """Have the server run a program, and end as it does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(address)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
    leads = os.getpgrp() == os.getpid()
    request = marshal.dumps((program, arguments, os.getcwd(), dict(os.environ), leads))  # noqa: PTH109
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", STREAMS))
    server.sendmsg([len(request).to_bytes(8, "big")], [streams])
    server.sendall(request)
    answer = server.recv(8)
    code = int(answer or 1)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


call(*sys.argv[1:])
