"""`mmfl dashboard` as a command."""

import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

from prompt import PROGRAM, mmfl


def test_it_says_where_the_page_is_and_ends_with_ctrl_c(tmp_path):
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-c", PROGRAM, "dashboard", "--no-open"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        address = said.split()[3]
        assert address.startswith("http://127.0.0.1:"), said
        with urlopen(address, timeout=600) as reply:
            assert b"<title>mmfl runs</title>" in reply.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "dashboard ended\n", "")


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = mmfl("dashboard", ".", "--port", port, "--no-open", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"error: dashboard: port {port} cannot be used: Address already in use.\n"


def test_without_plotly_it_says_how_to_install_it(tmp_path):
    refused = mmfl("dashboard", ".", program=f"import sys; sys.modules['plotly'] = None\n{PROGRAM}", cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'mmfl[report]'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
