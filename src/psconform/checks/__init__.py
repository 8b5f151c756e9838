"""One pure function History -> Verdict per guarantee; its docstring is the guarantee's definition."""

from .registry import Check, all_checks, check, judge_history

__all__ = ["Check", "all_checks", "check", "judge_history"]
