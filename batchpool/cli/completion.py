"""`batchpool completion` and `batchpool help`, which know every command from its parser."""

from __future__ import annotations

import argparse

COMPLETION_EPILOG = """\
examples:
  batchpool completion bash > ~/.local/share/bash-completion/completions/batchpool
  batchpool completion zsh > ~/.zfunc/_batchpool      (a folder that is in fpath)
  batchpool completion fish > ~/.config/fish/completions/batchpool.fish

Open a new shell after that.

"""
SHELLS = ("bash", "zsh", "fish")
_FILES = ("config", "socket")  # arguments that are paths of files


def print_completion(args: argparse.Namespace) -> int:
    """Print the script that lets a shell complete batchpool's commands, flags and files."""
    import shtab

    for command in args.commands.values():
        for action in command._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE
    print(shtab.complete(args.parser, args.shell))
    return 0


def print_help(args: argparse.Namespace) -> int:
    """Print the help of one command, or of the program."""
    parser = args.parser if args.about is None else args.commands[args.about]
    print(parser.format_help(), end="")
    return 0
