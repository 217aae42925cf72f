"""Files of public data sets: where they are looked for, what is refused, and how they arrive over a bad line."""

import gzip
import hashlib
import socket
import threading
import zipfile
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from conftest import refusals, refused
from mmfl.data import files, remote
from mmfl.data.remote import RemoteFile
from mmfl.errors import UserError

BODY = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("MMFL_DATA", "MMFL_CACHE", "XDG_CACHE_HOME", "MMFL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0, 0.0))


# --- where files lie -----------------------------------------------------------------


def test_a_given_folder_comes_before_mmfl_data_and_that_before_the_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.folder_of("mnist") == tmp_path / ".cache/mmfl/data/mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert files.folder_of("mnist") == Path("/xdg/mmfl/data/mnist")
    monkeypatch.setenv("MMFL_CACHE", "/cache")
    assert files.folder_of("mnist") == Path("/cache/data/mnist")
    monkeypatch.setenv("MMFL_DATA", "/data")
    assert files.folder_of("mnist") == Path("/data/mnist")
    assert files.folder_of("mnist", "~/mine") == tmp_path / "mine"
    assert files.folder_of("mnist", Path("here")) == Path("here")


def test_the_first_name_that_is_there_is_found_and_mmfl_data_is_searched_after_its_sub_folder(monkeypatch, tmp_path):
    own = tmp_path / "mnist"
    own.mkdir()
    (tmp_path / "a").touch()
    (own / "b").touch()
    assert files.find(own, "a", "b") == own / "b"
    assert files.find(own, "a") is None
    monkeypatch.setenv("MMFL_DATA", str(tmp_path))
    assert files.find(files.folder_of("mnist"), "a", "b") == own / "b"
    assert files.find(files.folder_of("mnist"), "a", "c") == tmp_path / "a"
    assert files.find(files.folder_of("other"), "b") is None
    assert files.find_all(own, [("x", "b"), ("a",)]) == [own / "b", tmp_path / "a"]
    assert files.find_all(own, [("x", "b"), ("c",)]) is None


# --- what files hold -----------------------------------------------------------------


def npz(folder, change=lambda content: content, **arrays):
    """An `.npz` file whose bytes went through `change`."""
    path = folder / "it.npz"
    np.savez_compressed(path, **arrays)
    path.write_bytes(change(path.read_bytes()))
    return path


def no_array(folder):
    with zipfile.ZipFile(folder / "it.npz", "w") as archive:
        archive.writestr("a.npy", "text")
    return folder / "it.npz"


@refusals(
    (lambda folder: npz(folder, b=np.arange(3)), "it.npz", "has no array a", "holds b"),
    (lambda folder: npz(folder, lambda content: content[:60], a=np.arange(1000)), "it.npz", "damaged"),
    (lambda folder: npz(folder, lambda c: c[:100] + bytes(20) + c[120:], a=np.arange(1000)), "it.npz", "damaged"),
    (lambda folder: npz(folder, lambda content: b"text"), "it.npz", "not an .npz file of plain arrays"),
    (no_array, "it.npz", "has no array a"),
    (lambda folder: npz(folder, a=np.array([{}])), "it.npz", "plain arrays"),
    (lambda folder: folder / "none.npz", "none.npz", "No such file"),
)
def test_a_damaged_or_different_npz_file_is_refused_with_the_reason(make, words, tmp_path):
    with refused("'own'", *words):
        files.arrays("own", make(tmp_path), "a")


def published(url="http://nowhere", name="file.bin", body=BODY, **facts):
    facts = facts or {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
    return RemoteFile(name, f"{url}/{name}", **facts)


@refusals(
    (lambda: (BODY[:-1], published()), "299,999 bytes", "300,000"),
    (lambda: (BODY[:-1] + b"x", published()), "sha256", hashlib.sha256(BODY).hexdigest()),
    (lambda: (BODY, published(content="0123")), "content", "0123"),
    (lambda: (gzip.compress(BODY)[:-9], published(content="0123")), "unpacked"),
)
def test_a_file_that_is_not_the_published_one_is_refused_and_left_alone(make, words, tmp_path):
    content, file = make()
    (tmp_path / "file.bin").write_bytes(content)
    with pytest.raises(UserError) as caught:
        files.fetch("own", tmp_path, [file])
    first, second = str(caught.value).splitlines()
    assert all(word in first for word in (str(tmp_path / "file.bin"), *words))
    assert f"{file.url} into {tmp_path}" in second
    assert (tmp_path / "file.bin").read_bytes() == content


@pytest.mark.parametrize("content", [BODY, gzip.compress(BODY, 1)], ids=["raw", "packed"])
def test_a_file_known_by_its_content_may_be_packed_in_any_way_and_have_another_name(tmp_path, content):
    file = RemoteFile("file.gz", "http://nowhere", content=hashlib.sha256(BODY).hexdigest(), also=("file.dat",))
    (tmp_path / "file.dat").write_bytes(content)
    assert files.fetch("own", tmp_path, [file]) == [tmp_path / "file.dat"]


def test_an_unreadable_file_is_refused_by_name(tmp_path):
    (tmp_path / "file.bin").mkdir()
    with refused("file.bin", "directory"):
        files.fetch("own", tmp_path, [published(sha256="0123")])


# --- how files arrive ----------------------------------------------------------------


class Line:
    """A server on loopback that serves `body` at every address; `faults` spoil its next answers, one each.

    A fault is a number of bytes to send before hanging up, a status to refuse with (negative), or "stall".
    """

    def __init__(self, body=BODY, ranges=True, length=True):
        self.body, self.ranges, self.length = body, ranges, length
        self.shift = 0  # how far the part it sends is from the one it was asked for, by its own account
        self.faults, self.asked = [], []
        line = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                line.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, request):
        span = request.headers.get("Range")
        self.asked.append(span)
        fault = self.faults.pop(0) if self.faults else None
        if fault == "stall":
            threading.Event().wait(0.5)
            return
        if fault is not None and fault < 0:
            request.send_error(-fault)
            return
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span and self.ranges else 0
        if start >= len(self.body):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.body)}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            stated = start + self.shift
            request.send_header("Content-Range", f"bytes {stated}-{len(self.body) - 1}/{len(self.body)}")
        if self.length:
            request.send_header("Content-Length", str(len(self.body) - start))
        request.end_headers()
        request.wfile.write(self.body[start:] if fault is None else self.body[start : start + fault])

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def line():
    line = Line()
    yield line
    line.stop()


def fetched(line, folder) -> bytes:
    (path,) = files.fetch("own", folder, [published(line.url)])
    return path.read_bytes()


def failure(folder, *remote_files) -> tuple[str, str]:
    """The two lines of the error when these files are fetched, and a folder without any of them."""
    with pytest.raises(UserError) as caught:
        files.fetch("own", folder, remote_files)
    assert not any((folder / file.name).exists() for file in remote_files)
    first, second = str(caught.value).splitlines()
    assert first.startswith("data 'own': ")
    assert str(folder) in second
    assert all(file.name in second for file in remote_files)
    return first, second


def test_missing_files_are_downloaded_into_a_new_folder_and_not_a_second_time(line, tmp_path, capsys):
    folder = tmp_path / "new/folder"
    wanted = [published(line.url, "a"), published(line.url, "b")]
    assert files.fetch("own", folder, wanted) == [folder / "a", folder / "b"]
    assert files.fetch("own", folder, wanted) == [folder / "a", folder / "b"]
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == BODY
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    assert line.asked == [None, None]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_how_far_the_download_is(line, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    files.fetch("own", tmp_path, [published(line.url, "shown.bin")])
    out, err = capsys.readouterr()
    assert (out, "shown.bin" in err) == ("", True)


@pytest.mark.parametrize("length", [True, False])
def test_a_file_without_a_known_checksum_is_taken_as_it_comes(line, tmp_path, length):
    line.length = length
    (path,) = files.fetch("own", tmp_path, [RemoteFile("a", f"{line.url}/a")])
    assert path.read_bytes() == BODY


DOWNLOADS = {
    "partial": (BODY[:100_000], {}, ["bytes=100000-"]),
    "server sends whole files": (BODY[:100_000], {"ranges": False}, ["bytes=100000-"]),
    "server sends another part": (BODY[:100_000], {"shift": 1}, ["bytes=100000-", None]),
    "complete": (BODY, {}, ["bytes=300000-"]),
    "too long": (BODY + b"more", {}, ["bytes=300004-", None]),
    "another version": (b"old" * 9, {}, ["bytes=27-", None]),
    "line breaks": (b"", {"faults": [70_000, 9, -503]}, [None, "bytes=70000-", "bytes=70009-", "bytes=70009-"]),
}


@pytest.mark.parametrize(("part", "server", "asked"), DOWNLOADS.values(), ids=DOWNLOADS)
def test_a_download_goes_on_where_it_stopped_or_begins_again_if_that_does_not_fit(line, tmp_path, part, server, asked):
    vars(line).update(deepcopy(server))
    (tmp_path / "file.bin.part").write_bytes(part)
    assert fetched(line, tmp_path) == BODY
    assert line.asked == asked
    assert not (tmp_path / "file.bin.part").exists()


def test_a_line_that_falls_silent_counts_as_broken(line, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    line.faults.extend([70_000, "stall"])
    assert fetched(line, tmp_path) == BODY


@pytest.mark.parametrize("length", [True, False], ids=["stated length", "known size alone"])
def test_a_line_that_keeps_breaking_is_given_up_and_the_next_call_goes_on(line, tmp_path, length):
    line.length = length
    line.faults.extend([10_000] * 4)
    first, _ = failure(tmp_path, published(line.url))
    assert "broke off after 40,000 of 300,000 bytes" in first
    assert fetched(line, tmp_path) == BODY
    assert line.asked[-1] == "bytes=40000-"


@pytest.mark.parametrize(
    ("facts", "words"),
    [({"sha256": "0123"}, "sha256"), ({"content": "0123"}, "content"), ({"size": 7}, "7")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_download_with_the_wrong_checksum_leaves_nothing_behind(line, tmp_path, facts, words):
    first, second = failure(tmp_path, published(line.url, **facts))
    assert "did not send the published file" in first
    assert words in first
    assert line.url in second
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_refused_is_not_asked_again(line, tmp_path):
    line.faults.append(-403)
    first, second = failure(tmp_path, published(line.url, "a"), published(line.url, "b"))
    assert f"{line.url}/a answered 403" in first
    assert f"a, b from {line.url}" in second
    assert len(line.asked) == 1


def test_without_a_network_the_error_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES", (60.0,))
    with socket.create_server(("127.0.0.1", 0)) as closed_soon:
        url = f"http://127.0.0.1:{closed_soon.getsockname()[1]}"
    first, _ = failure(tmp_path, published(url))
    assert f"{url}/file.bin cannot be reached" in first
    assert list(tmp_path.iterdir()) == []


def test_offline_nothing_is_asked_for_and_files_that_are_there_still_work(line, tmp_path, monkeypatch):
    monkeypatch.setenv("MMFL_OFFLINE", "1")
    first, _ = failure(tmp_path / "none", published(line.url))
    assert "MMFL_OFFLINE" in first
    assert str(tmp_path) in first
    assert (line.asked, (tmp_path / "none").exists()) == ([], False)
    (tmp_path / "file.bin").write_bytes(BODY)
    assert files.fetch("own", tmp_path, [published(line.url)]) == [tmp_path / "file.bin"]
    monkeypatch.setenv("MMFL_OFFLINE", "0")
    assert files.fetch("own", tmp_path, [published(line.url, "b")]) == [tmp_path / "b"]


def test_a_folder_that_cannot_be_made_is_an_error_of_two_lines(line, tmp_path):
    (tmp_path / "taken").touch()
    first, _ = failure(tmp_path / "taken", published(line.url))
    assert "cannot write" in first


def test_two_who_want_the_same_file_download_it_once(line, tmp_path):
    line.faults.append(150_000)
    got = []
    both = [threading.Thread(target=lambda: got.append(fetched(line, tmp_path))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert got == [BODY] * 2
    assert line.asked == [None, "bytes=150000-"]
