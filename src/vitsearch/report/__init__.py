"""Pages to look at: studies and benchmark tables as HTML that needs nothing else. No torch."""

from vitsearch.report.correlation import write_correlation_page
from vitsearch.report.page import check_page
from vitsearch.report.studies import write_report

__all__ = ["check_page", "write_correlation_page", "write_report"]
