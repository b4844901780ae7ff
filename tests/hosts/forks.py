"""Owns forks: a release as it is, but for hooks that its makers have left out."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from .install import Host


def fork(host: Host, folder: Path, *missing: str) -> Host:
    """A copy of this release in `folder` that knows none of these hooks."""
    modules = folder / "node_modules"
    ours = modules / "openclaw"
    modules.mkdir(parents=True)
    for package in host.package.parent.iterdir():
        if package.name != ours.name:
            (modules / package.name).symlink_to(package)
    inside = shutil.ignore_patterns("node_modules")
    shutil.copytree(host.package, ours, copy_function=os.link, symlinks=True, ignore=inside)
    if (nested := host.package / "node_modules").is_dir():
        (ours / "node_modules").symlink_to(nested)
    for hook in missing:
        _leave_out(ours / "dist", hook)
    return replace(host, entry=ours / host.entry.name)


def _leave_out(dist: Path, hook: str) -> None:
    """From the list of those that a plugin may register."""
    listed = re.compile(rf'^\s*"{hook}",?\n', re.MULTILINE)
    found = [file for file in dist.glob("*.[jm]*s") if listed.search(file.read_text("utf-8"))]
    assert found, f"this release has no list with {hook}"
    for file in found:
        text = file.read_text("utf-8")
        file.unlink()  # it is the release's own file, by another name
        file.write_text(listed.sub("", text), "utf-8")
