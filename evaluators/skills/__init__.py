"""Skills: procedures read off what went well, and whether those in use are of any."""

from evaluators.skills.procedures import Procedure, mine
from evaluators.skills.utility import Utility, utility

__all__ = ["Procedure", "Utility", "mine", "utility"]
