"""Command-line options made from a frozen configuration struct.

Owns the translation of a struct's fields into options, variables and table keys, and the one sentence that says why
a value was refused. Names, defaults, ranges and help texts stand only in the struct; nothing here knows what they mean.
"""

import functools
import math
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click
import msgspec
from click.types import OptionHelpExtra
from msgspec import inspect as introspect

from deploy.allowed import allowed_values, bare, range_text, shown_value

R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

METAVARS: dict[type[introspect.Type], str] = {
    introspect.IntType: "N",
    introspect.FloatType: "X",
    introspect.StrType: "TEXT",
}


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How a field is spelled where the field's own name will not do; an empty value keeps what the struct says.

    `is_inline` lifts the fields of a nested struct among those around it: no prefix, no table of their own.
    `parse` turns one text into one value and raises ValueError with what is allowed.
    """

    flags: tuple[str, ...] = ()
    metavar: str = ""
    envvar: tuple[str, ...] = ()
    parse: Callable[[str], object] | None = None
    is_inline: bool = False


def one_of(names: Iterable[str]) -> Spelling:
    """Return the spelling of a field that takes one of some names, for fields whose names stand in a registry.

    >>> one_of(["auto", "vllm"]).metavar
    'auto|vllm'
    """
    known = [name for name in names if name]

    def parse(text: str) -> str:
        if text and text not in known:
            raise ValueError("one of " + ", ".join(known))
        return text

    return Spelling(metavar="|".join(known), parse=parse)


class FieldOption(click.Option):
    """One field of a configuration struct as an option, a variable and a key of the command's table.

    `field_path` is where the field stands in the struct.
    `toml_path` is where the field stands in the table: ("weight", "inflight") is `inflight` in `[proxy.weight]`.
    """

    def __init__(
        self,
        field_path: tuple[str, ...],
        toml_path: tuple[str, ...],
        annotation: object,
        field: introspect.Field,
        spelling: Spelling,
    ) -> None:
        kind = bare(field.type)
        self.field_path = field_path
        self.toml_path = toml_path
        self.annotation = annotation
        self.kind = kind
        self.parse = spelling.parse
        default = default_of(field)
        flag = "--" + "-".join(toml_path).replace("_", "-")
        flags = list(spelling.flags) or [flag]
        is_bool = isinstance(kind, introspect.BoolType)
        if is_bool:
            flags = [f"{name}/--no-{name.removeprefix('--')}" for name in flags]
        is_multiple = isinstance(kind, introspect.VarTupleType)
        shown = default not in ("", (), None) or (is_bool and default is not None)
        super().__init__(
            [flags[0].split("/")[0].removeprefix("--").replace("-", "_"), *flags],
            type=click.BOOL if is_bool else click.STRING,
            required=default is None,
            multiple=is_multiple,
            metavar=None if is_bool else spelling.metavar or metavar_of(kind),
            envvar=list(spelling.envvar) or None,
            help=description_of(field.type),
            show_envvar=True,
            show_default=shown,
            **typing.cast("dict[str, Any]", {} if default is None else {"default": default}),
        )

    def type_cast_value(self, ctx: click.Context, value: object) -> object:
        """Return the value as the struct wants it, or refuse it in one sentence."""
        if value is None:
            return () if self.multiple else None
        try:
            return self.converted(value)
        except (msgspec.ValidationError, ValueError) as error:
            if self.parse:
                allowed = f"text, {self.metavar}" if isinstance(error, msgspec.ValidationError) else str(error)
            else:
                allowed = allowed_values(self.kind)
            raise click.BadParameter(f"{shown_value(value)} is not allowed: {allowed}", ctx=ctx, param=self) from error

    def converted(self, value: object) -> object:
        """Return the value in the field's own type; raises ValueError or ValidationError."""
        if isinstance(self.kind, introspect.BoolType) and isinstance(value, str):
            value = click.types.BoolParamType.str_to_bool(value)
        if self.multiple:
            if self.parse:
                return tuple(map(self.parse, msgspec.convert(value, tuple[str, ...])))
        elif self.parse:
            return self.parse(msgspec.convert(value, str))
        result = msgspec.convert(value, self.annotation, strict=False)
        if isinstance(result, float) and not math.isfinite(result):
            raise ValueError("not a finite number")
        return result

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Add the allowed range to what `--help` shows behind the description."""
        extra = super().get_help_extra(ctx)
        allowed = range_text(self.kind)
        if allowed:
            extra["range"] = allowed
        return extra


def configured(struct: type[msgspec.Struct], **spellings: Spelling) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command one option for each field of a struct, and call it with `config`, the struct filled in.

    A keyword names a field that is spelled otherwise than its name says.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        made = list(field_options(struct, spellings))

        @functools.wraps(command)
        def call(**values: object) -> R:
            filled = {option.field_path: values.pop(option.name) for option in made}
            return command(config=built(struct, filled), **values)

        declared = list(getattr(command, "__click_params__", []))
        call.__click_params__ = declared + made[::-1]  # type: ignore[attr-defined] # click reads them last first
        return call

    return decorate


def field_options(
    struct: type[msgspec.Struct],
    spellings: dict[str, Spelling],
    field_path: tuple[str, ...] = (),
    toml_path: tuple[str, ...] = (),
) -> Iterator[FieldOption]:
    """Yield the options of a struct in the order of its fields, those of nested structs in their place."""
    annotations = typing.get_type_hints(struct, include_extras=True)
    for field in fields_of(struct):
        spelling = spellings.get(field.name, Spelling())
        kind, here = bare(field.type), (*field_path, field.name)
        if isinstance(kind, introspect.StructType):
            yield from field_options(kind.cls, {}, here, toml_path if spelling.is_inline else (*toml_path, field.name))
        else:
            key = (*toml_path, toml_key(field.name, spelling))
            yield FieldOption(here, key, annotations[field.name], field, spelling)


def built(struct: type[S], filled: dict[tuple[str, ...], object]) -> S:
    """Return the struct made of values by field path; raises UsageError if the whole does not hold together."""
    values: dict[str, object] = {}
    for field in fields_of(struct):
        kind = bare(field.type)
        if isinstance(kind, introspect.StructType):
            inner = {path[1:]: value for path, value in filled.items() if path[0] == field.name}
            values[field.name] = built(kind.cls, inner)
        else:
            values[field.name] = filled[field.name,]
    try:
        return struct(**values)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def config_in(ctx: click.Context, struct: type[S]) -> S:
    """Return the struct that a command's parsed context holds; raises UsageError as the command would."""
    options = [param for param in ctx.command.params if isinstance(param, FieldOption)]
    return built(struct, {option.field_path: ctx.params[option.name] for option in options})


def config_of(ctx: click.Context, name: str, struct: type[S]) -> S:
    """Return what another command of the group would run with if it were started without flags.

    Raises UsageError as that command would.
    """
    group = ctx.parent
    command = group.command.get_command(group, name) if group and isinstance(group.command, click.Group) else None
    if command is None:
        raise click.UsageError(f"there is no command {name}")
    with command.make_context(name, [], parent=group) as inner:
        return config_in(inner, struct)


def fields_of(struct: type[msgspec.Struct]) -> tuple[introspect.Field, ...]:
    """Return a struct's fields in their order."""
    return typing.cast("introspect.StructType", introspect.type_info(struct)).fields


def toml_key(field_name: str, spelling: Spelling) -> str:
    """Return the name of a field in the command's table: its first flag, else its own name.

    >>> toml_key("instances", Spelling(flags=("--instance", "--engine")))
    'instance'
    """
    return spelling.flags[0].removeprefix("--").replace("-", "_") if spelling.flags else field_name


def description_of(kind: introspect.Type) -> str:
    """Return the help text that stands in a field's metadata."""
    while isinstance(kind, introspect.Metadata):
        if kind.extra_json_schema and "description" in kind.extra_json_schema:
            return str(kind.extra_json_schema["description"])
        kind = kind.type
    return ""


def default_of(field: introspect.Field) -> object:
    """Return a field's default, or None where the struct demands a value."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return None if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def metavar_of(kind: introspect.Type) -> str:
    """Return the word that stands for a value of this type in `--help`."""
    if isinstance(kind, introspect.LiteralType):
        return "|".join(str(value) for value in kind.values)
    if isinstance(kind, introspect.VarTupleType):
        return metavar_of(bare(kind.item_type))
    return METAVARS.get(type(kind), "VALUE")
