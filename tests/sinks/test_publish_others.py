"""Files of a report: those of earlier runs go, those of others stay."""

from __future__ import annotations

from pathlib import Path

from headrace.sinks._publish import forget_others, safe_name


def test_only_earlier_files_of_the_same_flow_and_sink_go(tmp_path: Path) -> None:
    def name(flow: str, generation: str, batch: int) -> str:
        return f"{safe_name(flow, 'files', generation)}-{batch:08d}-0000.csv"

    kept = [name("report", "g2-b", 1), name("reports", "g1-a", 0), "notes.csv", "report-files-mine.csv"]
    gone = [name("report", "g2-b", 0), name("report", "g1-a", 1)]
    for one in (*kept, *gone):
        (tmp_path / one).write_text("x")
    forget_others(tmp_path, "report", "files", "g2-b", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
