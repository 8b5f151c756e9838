"""One pure function History -> Verdict per guarantee; its docstring is the guarantee's definition."""

from .registry import Check, all_checks, check, judge_history, violated_for_good

__all__ = ["Check", "all_checks", "check", "judge_history", "violated_for_good"]
