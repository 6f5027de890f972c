"""Mistakes of an operator: one clear line with the next step, in bounded time, and nothing left."""

import datetime
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from faults import HELLO, assert_names
from hosts import ERROR_S, PORT, ROOT, TOW, Cluster, Host, Net, Process, copy_credential, make_keys, only_line, wait_until

WORK = ROOT / "tests" / "hosts" / "jax_work.py"
SMALL = str(1 << 20)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net("head", "host-1", "laptop")
    yield net
    net.close()


def start_controller(net: Net, keys: pathlib.Path, port: int) -> Process:
    return net["head"].start(TOW, "controller", "--listen", f"tls:head:{port}", "--keys", keys)


def refusal_of_a_client(host: Host, port: int, credential: pathlib.Path) -> str:
    done = host.run(TOW, "status", "--address", f"tls:head:{port}", "--token", credential / "token",
                    limit_s=3 * ERROR_S)
    assert done.returncode == 1, done.stdout
    assert len(done.stderr.splitlines()) == 1
    return only_line(done.stderr)


def refusal_of_a_worker(host: Host, port: int, credential: pathlib.Path) -> str:
    """A worker waits for its controller; if it does not end, its log says soon why."""
    worker = host.start(TOW, "worker", "--controller", f"tls:head:{port}", "--keys", credential)
    try:
        return only_line(wait_until("a message of the worker", lambda: worker.error, ERROR_S))
    finally:
        assert worker.stop()


def refusals(net: Net, port: int, credential: pathlib.Path) -> list[str]:
    return [refusal(net["laptop"], port, credential) for refusal in (refusal_of_a_client, refusal_of_a_worker)]


def test_a_port_in_use(net, tmp_path):
    make_keys(tmp_path / "keys", "head")
    start_controller(net, tmp_path / "keys", PORT).await_line()
    done = start_controller(net, tmp_path / "keys", PORT).wait(ERROR_S)
    assert done.returncode == 1
    line = only_line(done.stderr)
    assert f"tls:head:{PORT}" in line and "in use" in line and "choose another" in line, line


def test_a_certificate_for_another_name(net, tmp_path):
    keys, credential = tmp_path / "keys", tmp_path / "credential"
    make_keys(keys, "elsewhere")
    copy_credential(keys, credential)
    controller = start_controller(net, keys, PORT + 1)
    controller.await_line()
    for line in refusals(net, PORT + 1, credential):
        assert f"tls:head:{PORT + 1}" in line and "hostname mismatch" in line and "tow keys" in line, line


DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.timezone.utc)


def make_certificate(folder: pathlib.Path, begin: datetime.datetime, end: datetime.datetime) -> None:
    """Replaces the certificate with one for the same key that is valid at another time."""
    dates = [moment.strftime("%Y%m%d%H%M%SZ") for moment in (begin, end)]
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/index\nnew_certs_dir = {folder}\nrand_serial = yes\n"
        "default_md = sha256\npolicy = any\nx509_extensions = names\n[any]\ncommonName = supplied\n"
        "[names]\nsubjectAltName = DNS:head\n")
    (folder / "index").write_text("")
    request = ["req", "-new", "-key", folder / "key.pem", "-subj", "/CN=head", "-out", folder / "request"]
    sign = ["ca", "-batch", "-selfsign", "-notext", "-config", folder / "ca.cnf", "-keyfile", folder / "key.pem",
            "-in", folder / "request", "-startdate", dates[0], "-enddate", dates[1], "-out", folder / "cert.pem"]
    for arguments in (request, sign):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


# The clock of the host that made the certificate is a day ahead, or that of the client is long behind or ahead.
@pytest.mark.parametrize(("begin", "end", "wanted"), [
    (NOW + DAY, NOW + 30 * DAY, "not yet valid"),
    (NOW - 30 * DAY, NOW - DAY, "expired"),
], ids=["not yet valid", "expired"])
def test_a_certificate_of_another_time(net, tmp_path, begin, end, wanted):
    keys, credential = tmp_path / "keys", tmp_path / "credential"
    make_keys(keys, "head")
    make_certificate(keys, begin, end)
    copy_credential(keys, credential)
    port = PORT + 2 + (wanted == "expired")
    controller = start_controller(net, keys, port)
    try:
        controller.await_line()
    except AssertionError:
        # The controller may refuse its own certificate.
        assert wanted in only_line(controller.error) and "clock" in only_line(controller.error)
        return
    for line in refusals(net, port, credential):
        assert wanted in line and "clock" in line, line


def test_a_credential_of_another_cluster(net, tmp_path):
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name, "head")
    copy_credential(tmp_path / "theirs", tmp_path / "credential")
    start_controller(net, tmp_path / "ours", PORT + 4).await_line()
    for line in refusals(net, PORT + 4, tmp_path / "credential"):
        assert "not trusted" in line and "copy token and cert.pem" in line, line


def test_no_controller_at_the_address(net, tmp_path):
    make_keys(tmp_path / "keys", "head")
    copy_credential(tmp_path / "keys", tmp_path / "credential")
    line = refusal_of_a_client(net["laptop"], PORT + 5, tmp_path / "credential")
    assert f"tls:head:{PORT + 5}" in line
    assert_names(line, net["head"])


# ---- hosts where shared memory is forbidden ----


@pytest.mark.parametrize("shm", ["ro", "4k"], ids=["read-only", "full"])
@pytest.mark.usefixtures("plugin")
def test_a_host_without_shared_memory(shm):
    """A worker alone on its host needs none; whatever does need some says so."""
    net = Net("head", "host-1", "host-2", "laptop", options=["--shm", shm])
    try:
        cluster = Cluster(net)
        done = cluster.start_python("laptop", WORK, SMALL).wait()
        if done.returncode == 0:
            assert done.stdout.splitlines()[-1] == "4 devices, 2 workers, 2 hosts"
        else:
            assert "/dev/shm" in only_line(done.stderr), done.stderr[-2000:]
        assert cluster.run("laptop", HELLO).stdout == "11 22 33 44\n"
    finally:
        net.close()
