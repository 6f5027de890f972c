"""ssh and scp between hosts of a Net, without a server on the machine: the test runs the command on the other host.

Installed as `ssh` and `scp`, this file is the client. It passes its three standard streams to the test over a Unix
socket in the folder that all hosts share, and exits with the status of the command."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading

REQUEST_BYTES = 1 << 20
# Options that have a value.
OF_SSH, OF_SCP = "BbcDEeFIiJLlmOopQRSWw", "cDFiJloPSX"


class Server:
    """Runs what clients ask for; `run` starts a command of one host on another, with given streams."""

    def __init__(self, path: pathlib.Path, run) -> None:
        self.run = run
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with client:
            request, streams, _, _ = socket.recv_fds(client, REQUEST_BYTES, 3)
            source, host, command = json.loads(request)
            try:
                process: subprocess.Popen = self.run(source, host, command, streams)
            except KeyError:
                os.write(streams[2], f"ssh: Could not resolve hostname {host}: Name or service not known\n".encode())
                process = None
            finally:
                for stream in streams:
                    os.close(stream)
            client.send(str(255 if process is None else process.wait()).encode())

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def operands(arguments: list[str], with_value: str) -> list[str]:
    """Arguments without the options before them."""
    while arguments and arguments[0].startswith("-") and arguments[0] != "--":
        has_value = arguments[0][-1] in with_value and len(arguments[0]) == 2
        arguments = arguments[2 if has_value else 1:]
    return arguments[1:] if arguments[:1] == ["--"] else arguments


def ssh(shared: pathlib.Path, arguments: list[str]) -> int:
    host, *command = operands(arguments, OF_SSH)
    command = operands(command, OF_SSH)  # Options may follow the host.
    words = [os.environ["TOW_TEST_HOST"], host.rpartition("@")[2], " ".join(command)]
    request = json.dumps(words).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(shared / "ssh.sock"))
        socket.send_fds(server, [request], [0, 1, 2])
        return int(server.recv(16) or b"255")


def scp(shared: pathlib.Path, arguments: list[str]) -> int:
    *sources, target = operands(arguments, OF_SCP)
    host, _, path = target.rpartition("@")[2].partition(":")
    folder = shared / host / path
    for source in sources:
        shutil.copy2(source, folder)
    return 0


if __name__ == "__main__":
    program = pathlib.Path(sys.argv[0])
    sys.exit({"ssh": ssh, "scp": scp}[program.name](pathlib.Path(os.environ["TOW_TEST_NET"]), sys.argv[1:]))
