"""Figures as files: pictures, and the numbers behind them as tables."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mmfl.errors import UserError, nearest
from mmfl.report.figure import Figure


def _picture(figure: Figure, path: Path) -> None:
    from mmfl.report.plots import draw, save

    save(draw(figure), path)


def _parquet(figure: Figure, path: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError("Parquet needs pyarrow; install it with: pip install 'mmfl[report]'") from None
    figure.table.to_parquet(path, index=False, engine="pyarrow")


FORMATS: dict[str, Callable[[Figure, Path], None]] = {
    "png": _picture,
    "csv": lambda figure, path: figure.table.to_csv(path, index=False),
    "parquet": _parquet,
}


def formats_of(text: str) -> list[str]:
    """The formats in a list separated by commas.

    >>> formats_of("png, csv")
    ['png', 'csv']
    """
    formats = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not formats:
        raise UserError(f"--export: no format given; expected some of: {', '.join(FORMATS)}.")
    for name in formats:
        if name not in FORMATS:
            raise UserError(f"--export: unknown format '{name}': {nearest(name, FORMATS)}")
    return formats


def export(figures: Iterable[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes every figure into a folder, in every format, under the figure's name."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            for name in formats:
                path = folder / f"{figure.name}.{name}"
                FORMATS[name](figure, path)
                written.append(path)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror}.") from None
    return written
