"""Checks that any method can be put to: a method that passes them runs on every engine.

>>> from pmfl.core.method import Method
>>> from pmfl.testing import check_method
>>> report = check_method(lambda: Method(name="plain averaging"))
>>> report.passed
True
"""

from pmfl.testing.battery import CHECKS, Check, check_method
from pmfl.testing.report import Finding, Report
from pmfl.testing.tiny import Tiny

__all__ = ["CHECKS", "Check", "Finding", "Report", "Tiny", "check_method"]
