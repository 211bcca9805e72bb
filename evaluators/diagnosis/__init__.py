"""Why an agent fails: its failures in named clusters, each with how common it is, what may help, and why that.

A failure is explained by what somebody said or showed about it, and by what its tools answered. Failures nobody
commented on stay unexplained; they are counted, and no surface is suggested for them.
"""

from evaluators.diagnosis.diagnose import Cluster, Diagnosis, Regression, diagnose
from evaluators.diagnosis.page import page
from evaluators.diagnosis.surfaces import Surface

__all__ = ["Cluster", "Diagnosis", "Regression", "Surface", "diagnose", "page"]
