"""Shakespeare: predict the next character in the lines of a role; each role is an owner."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check_share, check_whole
from mmfl.data import files, leaf
from mmfl.data.dataset import Dataset
from mmfl.data.remote import open_unpacked
from mmfl.errors import UserError

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's vocabulary of 80 characters; a character's number is its index."""

_NUMBER = np.full(128, CHARACTERS.index(" "), dtype=np.int32)
_NUMBER[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))


def encode(text: str) -> NDArray[np.int32]:
    """The numbers of a text's characters; characters outside the vocabulary become spaces, as in LEAF.

    >>> encode("To be")
    array([44, 67,  1, 54, 57], dtype=int32)
    """
    code = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    return _NUMBER[np.where(code < len(_NUMBER), code, ord(" "))]


def decode(numbers: ArrayLike) -> str:
    """The text of these numbers: `decode(encode(text)) == text` for characters of the vocabulary."""
    return "".join(CHARACTERS[number] for number in np.asarray(numbers).ravel())


def shakespeare(
    folder: str | Path | None = None,
    window: int = 80,
    stride: int | None = None,
    most: int | None = None,
    least: int | None = None,
    test_share: float = 0.2,
) -> Dataset:
    """Windows of a role's lines: x [rows, window] character numbers, y [rows, window] the characters that follow.

    For `CharacterLSTM` and the loss `next_token`. The folder has `shakespeare.jsonl.gz`, with one object with `user`
    and `text` per line, or LEAF's `train` and `test`. Windows start every `stride` characters (default: `window`, so
    that they do not overlap). The last `test_share` of a role's text, at least one window, is for testing and shares no
    character with the training windows; a text too short for two windows is used for training only. LEAF's division is
    respected: of its rows, which are one character apart, every `stride`-th is used.

    `most` limits the windows of a role, for training and for testing; roles with fewer than `least` are left out.
    """
    stride = window if stride is None else stride
    for name, value in (("window", window), ("stride", stride), ("most", 1 if most is None else most)):
        check_whole("data 'shakespeare'", name, value)
    check_share("data 'shakespeare'", "test_share", test_share)
    place = files.folder_of("shakespeare", folder)
    train: dict[str, leaf.Rows] = {}
    test: dict[str, leaf.Rows] = {}
    if path := files.find(place, "shakespeare.jsonl.gz", "shakespeare.jsonl"):
        for user, text in _roles(path).items():
            tokens = encode(text)
            test_start = _test_start(len(tokens), window + 1, test_share)
            train[user] = _inputs_and_targets(_windows(tokens[:test_start], window, stride)[:most])
            test[user] = _inputs_and_targets(_windows(tokens[test_start:], window, stride)[:most])
    elif found := leaf.split_files(place):

        def rows(x: list[Any], y: list[Any], where: str) -> leaf.Rows:
            return _inputs_and_targets(_leaf_windows(x, y, where, window)[::stride][:most])

        train, test = (leaf.rows_by_user("shakespeare", part, rows) for part in found)
    else:
        raise files.not_found_error(
            "shakespeare",
            place,
            "shakespeare.jsonl.gz, or the folders train and test of LEAF's Shakespeare (https://leaf.cmu.edu)",
        )
    return leaf.to_dataset("shakespeare", train, test, least)


def _roles(path: Path) -> dict[str, str]:
    """Each role's text."""
    roles: dict[str, str] = {}
    with files.reading("shakespeare", path), open_unpacked(path) as lines:
        for number, line in enumerate(lines, 1):
            where = f"data 'shakespeare': {path}, line {number}"
            try:
                role = json.loads(line)
                user, text = role["user"], role["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{where} is not an object with 'user' and 'text' ({error}).") from None
            if not isinstance(user, str) or not isinstance(text, str):
                raise UserError(f"{where}: 'user' and 'text' are not both strings.")
            if user in roles:
                raise UserError(f"{where}: role '{user}' again.")
            roles[user] = text
    return roles


def _test_start(length: int, minimum: int, share: float) -> int:
    """Where the test part of a text begins; both parts have at least one window, or the test part is empty."""
    if length < 2 * minimum:
        return length
    return max(minimum, length - max(round(share * length), minimum))


def _windows(tokens: NDArray[np.int32], window: int, stride: int) -> NDArray[np.int32]:
    """Windows [rows, window + 1]: the inputs and the character after each."""
    if len(tokens) <= window:
        return np.empty((0, window + 1), dtype=np.int32)
    return sliding_window_view(tokens, window + 1)[::stride]


def _leaf_windows(x: list[Any], y: list[Any], where: str, window: int) -> NDArray[np.int32]:
    if not all(isinstance(text, str) for text in (*x, *y)) or any(len(character) != 1 for character in y):
        raise UserError(f"{where}: expected strings as x and single characters as y.")
    lengths = {len(text) for text in x}
    if len(lengths) > 1 or min(lengths, default=window) < window:
        raise UserError(f"{where}: x has strings of {min(lengths)} characters; expected {window} (window).")
    tokens = encode("".join(text[-window:] + character for text, character in zip(x, y, strict=True)))
    return tokens.reshape(-1, window + 1)


def _inputs_and_targets(windows: NDArray[np.int32]) -> leaf.Rows:
    return windows[:, :-1], windows[:, 1:].astype(np.int64)
