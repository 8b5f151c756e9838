"""One pure function History -> Verdict per guarantee; its docstring is the guarantee's definition."""

from .registry import CHECKS, Check, judge_history

__all__ = ["CHECKS", "Check", "judge_history"]
