"""Numbers to pictures: one self-contained HTML page from one or several run folders."""

from autodual.report.page import write_report as write_report

__all__ = ["write_report"]
