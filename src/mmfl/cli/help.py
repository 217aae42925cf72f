"""Commands whose help ends with examples."""

from typing import TYPE_CHECKING, Any, get_type_hints

from typer.core import TyperCommand, TyperGroup

from mmfl.errors import nearest

if TYPE_CHECKING:
    from click import Command as ClickCommand
    from click import Context, HelpFormatter


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n  ".join(["Examples:", *lines])


class Command(TyperCommand):
    """A command with an end of its help as it was written.

    Typer 0.20 loses what it was told of arguments where click is 8.5 or newer, and escapes brackets although there is
    no markup; both are set right here.
    """

    def format_arguments(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Leaves them to `format_options`, as typer does; click 8.5 would list them once more."""

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes arguments and options."""
        told = get_type_hints(self.callback, include_extras=True)
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            for about in getattr(told.get(parameter.name or ""), "__metadata__", ()):
                parameter.help = about.help
            record = parameter.get_help_record(ctx)
            if record:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                rows[title].append((record[0], record[1].replace(r"\[", "[")))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes the end."""
        _write(self, formatter)


class Group(TyperGroup):
    """A group of commands with an end of its help as it was written, that knows what a wrong name may have meant."""

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, ClickCommand | None, list[str]]":
        """The command that the first argument names."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}': {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Writes the end."""
        _write(self, formatter)


def _write(command: Any, formatter: "HelpFormatter") -> None:
    if command.epilog:
        formatter.write(f"\n{command.epilog}\n")
