"""Commands and groups whose help ends with examples."""

from collections.abc import Callable
from typing import TYPE_CHECKING, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from mmfl.errors import nearest

if TYPE_CHECKING:
    from click import Command as ClickCommand
    from click import Context, HelpFormatter


def examples(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\n  ".join(["Examples:", *lines])


def command(app: typer.Typer, *lines: str) -> Callable[[CommandFunctionType], CommandFunctionType]:
    """Adds a function to an app, as a command whose help ends with these examples."""
    return app.command(cls=Command, epilog=examples(*lines))


class _PlainEpilog:
    epilog: str | None

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes the epilog as it is, without wrapping its lines."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


class Command(_PlainEpilog, TyperCommand):
    """A command whose help ends with its epilog as it was written.

    With click 8.5 or newer, typer 0.20 loses the help of arguments, and escapes brackets although there is no markup;
    this class corrects both.
    """

    def format_arguments(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Does nothing: `format_options` lists arguments, too, and click 8.5 would list them a second time."""

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes arguments and options."""
        hints = get_type_hints(self.callback, include_extras=True)
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            for info in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                parameter.help = info.help
            record = parameter.get_help_record(ctx)
            if record:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                rows[title].append((record[0], record[1].replace(r"\[", "[")))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(_PlainEpilog, TyperGroup):
    """A group of commands whose help ends with its epilog as it was written; it suggests the nearest command."""

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, ClickCommand | None, list[str]]":
        """The command that the first argument names."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}': {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)
