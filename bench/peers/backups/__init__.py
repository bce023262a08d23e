"""The programs that back up files, by the name that the command line uses."""

from peers.backups.base import Backup
from peers.backups.programs import BACKUPS

__all__ = ["BACKUPS", "Backup"]
