"""Who is let in and who is not: addresses, keys, and a SuperLink with certificates that strangers try to join."""

import datetime
import json
import ssl
import stat
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import typer
from traces import clean, needs_flower
from typer.testing import CliRunner

from conftest import refusals, refused, wait_for
from mmfl.cli import app
from mmfl.cli.console import console
from mmfl.cli.deploy import show_outcome
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.loopback import assign_clients
from mmfl.deployment.machines import control_address, free_port, start_superlink
from mmfl.deployment.programs import ControlAPI
from mmfl.deployment.running_node import NodeSpec, RunningNode
from mmfl.deployment.security import Address, Keys, divide_clients, make_keys
from mmfl.errors import UserError
from mmfl.report.display import show_summary
from mmfl.runs.status import RunEnd

LIST_NODES = ["flwr", "supernode", "list", "mmfl", "--format", "json"]
ECHO = Path(__file__).with_name("echo.py")
__all__ = ["clean"]


@needs_flower
@pytest.mark.long
def test_only_nodes_with_a_registered_key_are_let_in_and_only_to_what_nodes_may_do(clean, tmp_path):
    keys = make_keys(tmp_path / "keys", ["localhost"], ["0"])
    strange, said = make_keys(tmp_path / "strange", ["localhost"], ["0"]), []
    with ChildProcesses(tmp_path / "logs") as processes:
        address = Address("127.0.0.1", free_port())
        link = start_superlink(processes, address, Address("127.0.0.1", free_port()), keys, max_bytes=10**6)

        def join(name, root, key):
            spec = NodeSpec(ECHO, [0], address, root, key, worker=(sys.executable, str(ECHO)))
            node = RunningNode(processes, spec, name, said.append)
            node.connect()
            return node

        good = join("good", keys.authority, keys.node_key(0))
        stranger = join("stranger", keys.authority, strange.node_key(0))
        keyless = join("keyless", keys.authority, None)
        with refused("node: the server at", "takes encrypted connections only", "--root-certificates"):
            join("plain", None, None)
        with refused("node: the certificate", "is not accepted", "ca.crt"):
            join("deceived", strange.authority, keys.node_key(0))
        wait_for(lambda: good.id and not any(node.supernode.alive for node in (stranger, keyless)))
        assert not stranger.id
        assert not keyless.id
        stranger.check()
        assert "its key is not registered there" in said[-1]
        with refused("keyless: the server lets in nodes with a key only", "--key"):
            keyless.check()
        known = link.control.ask(LIST_NODES, "listing nodes")["nodes"]
        assert [(node["node-id"], node["status"]) for node in known] == [(str(good.id), "online")]
        for path in ("control/list-nodes", "runtime/acquire-task", "fleet/../control/list-nodes", "fleet/"):
            assert knock(address, keys, f"/v1/{path}") == 403
        assert knock(address, keys, "/health") == 403
        assert knock(address, keys, "/v1/fleet/pull-messages") == 401
        assert knock(address, keys, "/v1/fleet/push-messages", bytes(2 * 10**6)) == 401
        late = keys.add("late", "1")
        keys.revoke("node-0")
        link.check()
        newcomer = join("newcomer", keys.authority, late)
        wait_for(lambda: newcomer.id and not good.supernode.alive)
        assert newcomer.id != good.id
        table = json.loads((processes.folder / "state" / "nodes.json").read_text())
        assert [(number, row["key"], row["clients"]) for number, row in table.items()] == [
            (str(newcomer.id), "late", "1")
        ]


def knock(address: Address, keys: Keys, path: str, data: bytes = b"") -> int:
    """The status of a request."""
    trust = ssl.create_default_context(cafile=str(keys.authority))
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    try:
        return int(direct.open(f"https://{address}{path}", data=data).status)
    except urllib.error.HTTPError as error:
        return error.code


@needs_flower
def test_keys_are_private_and_the_certificate_names_the_hosts_and_loopback(tmp_path):
    from cryptography import x509

    keys = make_keys(tmp_path / "keys", ["fed.example.org", "10.0.0.7", "::1"], ["0-3", "any"])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.folder.iterdir()}
    private = {name for name in modes if name.endswith(".key")}
    assert private == {"ca.key", "server.key", "node-0.key", "node-1.key"}
    assert {modes[name] for name in private} == {0o600}
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    assert [path.name for path in keys.public_keys] == ["node-0.pub", "node-1.pub"]
    authority = x509.load_pem_x509_certificate(keys.authority.read_bytes())
    certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert sorted(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.7", "127.0.0.1", "::1"]
    assert Keys.open(keys.folder).authority == keys.authority


@pytest.fixture
def keys(tmp_path) -> Keys:
    return make_keys(tmp_path / "keys", ["fed.example.org"], ["0-3", "4"])


@needs_flower
def test_keys_are_added_and_revoked_and_a_name_is_never_used_twice(keys):
    private = keys.add("clinic", "7, 9-12")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert keys.clients() == {"node-0": "0-3", "node-1": "4", "clinic": "7, 9-12"}
    keys.revoke("node-0")
    assert keys.clients() == {"node-1": "4", "clinic": "7, 9-12"}
    assert [path.stem for path in keys.public_keys] == ["clinic", "node-1"]
    with refused("'node-0' exists", "never written over"):
        keys.add("node-0", "0")


@needs_flower
def test_a_renewed_certificate_is_of_a_new_key_with_the_old_names_for_a_year(keys, tmp_path):
    from mmfl.deployment import certificates

    before = keys.certificate.read_bytes(), keys.server_key.read_bytes()
    (keys.folder / "ca.key").rename(tmp_path / "safe.key")
    with refused("ca.key' cannot be read", "--authority-key"):
        keys.renew()
    end = keys.renew(authority_key=tmp_path / "safe.key")
    assert 364 <= (end - datetime.datetime.now(datetime.UTC)).days <= 365
    after = keys.certificate.read_bytes(), keys.server_key.read_bytes()
    assert certificates.hosts_of(after[0]) == certificates.hosts_of(before[0])
    assert before[1] != after[1]
    assert stat.S_IMODE(keys.server_key.stat().st_mode) == 0o600
    ssl.create_default_context(cafile=str(keys.authority)).load_cert_chain(keys.certificate, keys.server_key)
    keys.renew(["other.example.org"], tmp_path / "safe.key")
    assert certificates.hosts_of(keys.certificate.read_bytes())[0] == "other.example.org"


@needs_flower
def test_changes_of_keys_that_make_no_sense_are_refused(keys, tmp_path):
    other = make_keys(tmp_path / "other", ["a"], ["0"])
    for name in ("", "../x", "a b", "ca", "x" * 65, "server"):
        with refused("expected a name of letters"):
            keys.add(name, "0")
    with refused("--clients '3-1'", "not a client"):
        keys.add("clinic", "3-1")
    with refused("no key 'node-7'", "did you mean"):
        keys.revoke("node-7")
    with refused("does not fit", "not the key of ca.crt"):
        keys.renew(authority_key=other.folder / "ca.key")
    with refused("does not fit"):
        keys.renew(authority_key=keys.authority)
    with refused("host:80", "without a port"):
        keys.renew(["host:80"])


@needs_flower
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "clients.toml is missing"),
        ("node-0 = 0-3", "clients.toml cannot be read"),
        ("node-0 = 3", "'node-0': '3' is not a client"),
        ('node-0 = "0-"', "'node-0': '0-' is not a client"),
    ],
)
def test_a_table_of_clients_that_cannot_be_read_names_its_mistake(keys, content, words):
    keys.table.unlink()
    if content is not None:
        keys.table.write_text(content)
    with refused(words):
        keys.clients()


@needs_flower
@refusals(
    (lambda at: make_keys(at / "keys", [], ["0"]), "--server names no host"),
    (lambda at: make_keys(at / "keys", ["host:80"], ["0"]), "host:80", "without a port"),
    (lambda at: make_keys(at / "keys", ["häuser"], ["0"]), "häuser", "expected a host name"),
    (lambda at: make_keys(at / "keys", ["a"], ["0", "4-1"]), "'4-1' is not a client", "or any"),
    (lambda at: divide_clients(None, 0), "--nodes is 0", "expected 1 to"),
    (lambda at: divide_clients(3, 4), "--clients is 3", "at least one for each of the 4 nodes"),
    (lambda at: make_keys(Path(__file__).parent, ["a"], ["0"]), "exists", "never written over"),
    (lambda at: Keys.open(at), "ca.crt is missing", "mmfl keys make"),
)
def test_keys_that_cannot_be_made_are_refused_and_nothing_is_written(make, words, tmp_path):
    with refused(*words):
        make(tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_loopback_may_be_plaintext_unless_insecure_is_given():
    keys = Keys(Path("keys"))
    for local in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000"):
        assert control_address(Address.parse(local), None, insecure=False) == Address.parse(local)
        NodeSpec(ECHO, [0], Address.parse(local)).check()
    for other in ("0.0.0.0:8000", "[::]:8000", "10.1.2.3:8000", "fed.example.org:8000", "127.0.0.1.example.org:1"):
        with refused(other, "certificates", "--insecure"):
            control_address(Address.parse(other), None, insecure=False)
        with refused(other, "encrypted", "--insecure"):
            NodeSpec(ECHO, [0], Address.parse(other)).check()
        control_address(Address.parse(other), None, insecure=True)
        assert control_address(Address.parse(other), keys, insecure=False).loopback
        NodeSpec(ECHO, [0], Address.parse(other), insecure=True).check()
        NodeSpec(ECHO, [0], Address.parse(other), Path("ca.crt"), Path("node.key")).check()
    with refused("either --keys DIR", "or --insecure"):
        control_address(Address.parse("0.0.0.0:1"), keys, insecure=True)


PORTS = ["", "8000", "host", "host:", ":80", "host:http", "::1:80", "host:0", "host:70000", f"host:{'9' * 5000}"]
HOSTS = [f"{host}:80" for host in ("a" * 300, "a..b", "a\0b", "two words", "a\nb")]


@pytest.mark.parametrize("text", [*PORTS, *HOSTS])
def test_addresses_without_a_valid_host_and_port_are_refused(text):
    with refused(f"address '{text[:80]}", "expected host:port"):
        Address.parse(text)


@pytest.mark.parametrize(("port", "control"), [(8000, 0), (8000, -4), (8000, 65536), (8000, 8000), (65535, None)])
def test_a_control_port_that_cannot_be_is_named(port, control):
    named = port + 1 if control is None else control
    with refused(f"link on 0.0.0.0:{port}: --control-port is {named}; expected 1 to 65535"):
        control_address(Address("0.0.0.0", port), None, insecure=True, control_port=control)


def test_logs_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").touch()
    with refused(f"logs '{tmp_path / 'file'}' cannot be written: File exists."), ChildProcesses(tmp_path / "file"):
        pass


@needs_flower
def test_a_run_where_no_superlink_answers_is_refused(clean, tmp_path):
    control = ControlAPI(Address("127.0.0.1", free_port()), None, tmp_path)
    with refused("listing nodes", f"no SuperLink answers at {control.address}", "mmfl link"):
        control.ask(LIST_NODES, "listing nodes")


@needs_flower
def test_brackets_in_addresses_and_paths_are_shown(capsys):
    show_summary(console, {"nodes": "at [::1]:8001"})
    with pytest.raises(typer.Exit):
        show_outcome(RunEnd("stopped"), Path("runs/[a]"), 1.0)
    assert capsys.readouterr().out == "nodes  at [::1]:8001\n\nstopped; go on with: mmfl resume runs/[a]\n"


@needs_flower
def test_a_port_in_use_is_named(clean, tmp_path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with ChildProcesses(tmp_path) as processes, refused("cannot listen at 127.0.0.1", "in use"):
            address = Address("127.0.0.1", other.getsockname()[1])
            start_superlink(processes, address, address)


@needs_flower
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("link 0.0.0.0:8000", "needs certificates and node keys"),
        ("link 0.0.0.0:8000 --keys nowhere", "ca.crt is missing"),
        ("link somewhere", "expected host:port"),
        ("link 127.0.0.1:8000 --control-port 9000", "--control-port and --most are for its proxy"),
        ("link --most 10", "which needs --keys DIR"),
        ("link --most 0", "--most is 0; expected at least 1"),
        ("node none.py --clients 0", "'none.py' does not exist"),
        ("node {echo}", "no clients"),
        ("node {echo} --clients 0,x", "'x' is not a client"),
        ("node {echo} --clients 0,0-3", "'0-3' is not a client, or repeats one"),
        ("node {echo} --clients 0 --capacity 0", "--capacity is 0"),
        ("node {echo} --clients 0 --server 10.0.0.1:8000", "must be encrypted"),
        ("node {echo} --clients 0 --key nowhere", "--key 'nowhere' does not exist"),
        ("node {echo} --clients 0 --key {echo}", "--key needs --root-certificates"),
        ("node {echo} --clients 0 --insecure --root-certificates {echo}", "expected either"),
        ("deploy {echo}", "either --local K"),
        ("deploy {echo} --local 2 --server 127.0.0.1:8000", "either --local K"),
        ("deploy {echo} --local 0", "--local is 0; expected at least 1"),
        ("deploy {echo} --local 4 --clients 3", "--clients is 3; expected at least 4"),
        ("deploy {echo} --local 1 --method mmfl-lrv", "did you mean 'mmfl-lvr'"),
        ("deploy {echo} --local 1 --rounds 0", "'rounds' is 0: input should be"),
        ("deploy {echo} --local 1 --rate 2", "'rate' is 2.0"),
        ("deploy {echo} --local 1 --timeout 0", "'timeout' is 0.0"),
        ("deploy {echo} --local 1 --set round=3", "did you mean 'rounds'"),
        ("deploy {echo} --local 1 --set rounds", "expected key=value"),
        ("deploy {echo} --server 127.0.0.1:8000 --clients 0", "'clients' is 0: input should be"),
        ("deploy {echo} --local 1 --set clients=many", "'clients' is 'many'"),
        ("deploy {echo} --local 1 --set gather=-1", "'gather' is -1"),
        ("deploy {echo} --local 6 --set least=7", "least is 7; expected at most the 6 clients"),
        ("deploy {echo} --local 1 --track tensorbord", "did you mean 'tensorboard'"),
        ("deploy {echo} --local 1 --out {here}", "exists; choose another"),
        ("deploy {echo} --server 127.0.0.1:8000", "'clients' is missing: Number of clients"),
        ("deploy {echo} --server 10.0.0.1:8000 --clients 4", "must be encrypted"),
        ("deploy {echo} --server 127.0.0.1:8000 --secure", "--secure goes with --local"),
        ("deploy {echo} --server 127.0.0.1:8000 --root-certificates nowhere", "'nowhere' does not exist"),
        ("keys make keys --server host:80", "without a port"),
        ("keys make keys --server host --nodes 2 --clients 1", "--clients is 1"),
        ("keys add nowhere node-4 --clients 0", "ca.crt is missing"),
        ("keys revoke nowhere node-4", "ca.crt is missing"),
        ("keys renew nowhere", "ca.crt is missing"),
    ],
)
def test_commands_refuse_what_cannot_work_before_anything_is_started(words, error, clean, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = words.format(echo=ECHO, here=ECHO.parent).split()
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UserError), result.output
    assert error in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_clients_are_dealt_out_in_turn():
    assert assign_clients(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
