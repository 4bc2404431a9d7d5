"""Settings of pytest for the whole repository."""

import os
import signal

import pytest

REQUIRE_ALL = os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1"

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
for interruption in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(interruption) is signal.SIG_IGN:
        signal.signal(interruption, signal.default_int_handler if interruption == signal.SIGINT else signal.SIG_DFL)


def _refuse_skip(report):
    """Turns a skip into a failure where everything must run: there, a missing part is a broken set-up."""
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"LOCKSTEP_REQUIRE_ALL=1 allows no skipped test. {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return _refuse_skip((yield))
