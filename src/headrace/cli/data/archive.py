"""Show and check archives; replay their days into a topic."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer, usage_error
from headrace.cli.terminal.positions_output import DryRun, aligned, shown
from headrace.cli.terminal.project_args import Json, Names, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.systems.kafka.cluster import Cluster
from headrace.systems.kafka.connection import KafkaConnection

if TYPE_CHECKING:
    from headrace.core.files.state_files import StatePath
    from headrace.engine.replay import archive_replay
    from headrace.plan import planner
    from headrace.project.loader import Project
    from headrace.sinks import archive as sink_archive
    from headrace.sinks.archive import ArchiveSink, files
    from headrace.sinks.archive import read as archive_read
    from headrace.systems.kafka.connection import KafkaConnection
else:
    archive_replay, planner, sink_archive, files, archive_read = lazy_modules(
        "headrace.engine.replay.archive_replay",
        "headrace.plan.planner",
        "headrace.sinks.archive",
        "headrace.sinks.archive.files",
        "headrace.sinks.archive.read",
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="T", help="Only this topic; may be repeated.")]
_From = Annotated[str | None, typer.Option("--from", metavar="DAY", help="The first day, e.g. 2026-01-30.")]
_To = Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day, which is included.")]


@app.command("show")
@project_options(Names)
def show_(
    target: ProjectTarget,
    topic: _Topics = None,
    first: _From = None,
    last: _To = None,
    json: Json = False,
) -> None:
    """Show the folders of an archive: records, files, state, and how many records arrived late."""
    root = _Archive.from_target(target).root
    folders = [_folder(root, name) for name in archive_read.folders(root, topic or [], _day(first), _day(last))]
    if json:
        printer.document({"folders": folders, "records": sum(folder["records"] for folder in folders)})
        return
    columns = ("folder", "state", "records", "files", "bytes", "late")
    rows = [list(columns), *([shown(folder[name]) for name in columns] for folder in folders)]
    for line in aligned(rows):
        printer.data(line)


def _folder(root: StatePath, name: str) -> dict[str, Any]:
    parts = list(archive_read.located(root / name).values())
    late, mark = files.read_note(root / name, files.LATE), files.read_note(root / name, files.MARK)
    return {
        "folder": name,
        "state": "late" if late else "finished" if mark else "open",
        "records": sum(located.part.records for located in parts),
        "files": len({located.file for located in parts}),
        "bytes": sum(located.part.bytes for located in parts),
        "late": (late or mark or {"late": 0})["late"],
    }


@app.command("check")
@project_options(Names)
def check_(
    target: ProjectTarget,
    topic: _Topics = None,
    json: Json = False,
) -> None:
    """Check by partition that each record is in the archive once, and list missing offsets.

    Reads every line and compares the counts with those in the manifests. Exits with 1 when something is wrong.
    """
    root = _Archive.from_target(target).root
    by_topic: dict[str, list[Any]] = {}
    wrong = 0
    for name in archive_read.folders(root, topic or [], None, None):
        parts = [located.part for located in archive_read.located(root / name).values()]
        by_topic.setdefault(name.partition("/")[0], []).extend(parts)
        read = archive_read.read_parts(root / name, [part.name for part in parts])
        wrong += sum(len(lines) != part.records for part, lines in read)
    partitions = [
        {"topic": name, **vars(partition)}
        for name, parts in by_topic.items()
        for partition in archive_read.coverage(parts)
    ]
    ok = not wrong and not any(partition["repeated"] for partition in partitions)
    if json:
        printer.document({"partitions": partitions, "wrong_files": wrong, "ok": ok})
    else:
        columns = ("topic", "partition", "records", "first", "last", "repeated", "absent")
        for line in aligned(
            [list(columns), *([shown(partition[name]) for name in columns] for partition in partitions)]
        ):
            printer.data(line)
        printer.note(f"{wrong:,} files have too few or too many lines" if wrong else "all lines are present")
    if not ok:
        raise typer.Exit(Exit.FAILED)


@app.command("replay")
@project_options(Names)
def replay_(
    target: ProjectTarget,
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="The topic whose records are replayed.")],
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="The first day, e.g. 2026-01-30.")],
    last: Annotated[str, typer.Option("--to", metavar="DAY", help="The last day, which is included.")],
    into: Annotated[str, typer.Option("--into", metavar="T", help="The target topic in Kafka.")],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="A.B", help="The path of the key in a record's JSON; no key otherwise."),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="S", help="A stream of the target cluster; the flow's stream otherwise."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Replay records that were already replayed.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the records of some days into a topic, each once. Interrupted, it resumes; repeated, it does nothing.

    Consumers of the topic must use read_committed. Records keep the order they have in each file.
    """
    begin, end = _day(first), _day(last)
    if begin is None or end is None or end < begin:
        raise usage_error(f"--to {last} is before --from {first}", "the last day is included")
    archive = _Archive.from_target(target)
    context = archive.project.context
    cluster = archive.cluster(stream)
    properties = cluster.librdkafka_properties(context)
    _require_topic(properties, into)
    order = archive_replay.ReplayOrder(archive.sink.path, topic, str(begin), str(end), into, key)
    replayer = archive_replay.ArchiveReplayer(order, archive.root, context, properties)
    plan = replayer.plan(again=again)
    document = {
        "id": order.id,
        "run": plan.run,
        **_order_document(order),
        "records": plan.records,
        "already": plan.done,
    }
    if plan.done:
        printer.note(f"{plan.records:,} records were replayed already; --again replays them once more")
    sent = (
        0 if dry_run or plan.done else replayer.execute(plan, lambda seen, all_: printer.note(f"{seen:,} of {all_:,}"))
    )
    if json:
        printer.document({**document, "sent": sent, "done": plan.done or not dry_run})
    else:
        printer.data(f"{'would replay' if dry_run else 'replayed'} {plan.records if dry_run else sent:,} records")


def _order_document(order: Any) -> dict[str, str]:
    return {"topic": order.topic, "from": order.first, "to": order.last, "into": order.into}


def _require_topic(properties: dict[str, str], topic: str) -> None:
    Cluster(properties).partitions([topic])


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise usage_error(f"'{text}' is not a day", "write e.g. 2026-01-31") from None


class _Archive:
    """The archive of the named flow, or the only archive of the project."""

    def __init__(self, project: Project, flow: str, sink: ArchiveSink) -> None:
        self.project, self.flow, self.sink = project, flow, sink
        self.root = files.archive_root(project.context.path(sink.path), project.context.store)

    @staticmethod
    def from_target(target: ProjectTarget) -> _Archive:
        """Return the archive of the arguments. Raises ProjectError `no-such-archive` unless there is exactly one."""
        project, flows = target.load(), target.flows
        sinks = [
            (name, sink)
            for name, flow in project.spec.flows.items()
            for sink in flow.sinks
            if isinstance(sink, sink_archive.ArchiveSink) and (not flows or name in flows)
        ]
        if len(sinks) != 1:
            raise ProjectError(
                "no-such-archive",
                f"'{' '.join(flows) or project.spec.project}' has {len(sinks) or 'no'} archives, not one",
                hint="name the flow whose sink is of type archive",
                exit_code=Exit.NOT_FOUND,
            )
        return _Archive(project, *sinks[0])

    def cluster(self, stream: str | None) -> KafkaConnection:
        """Return the connection to the Kafka cluster: that of the flow's stream, or of the named stream."""
        streams = self.project.spec.streams
        if stream is not None and stream not in streams:
            hint = did_you_mean(stream, streams, "streams")
            raise ProjectError(
                "unknown-stream", f"stream '{stream}' does not exist", hint=hint, exit_code=Exit.NOT_FOUND
            )
        read = [step.name for step in planner.make_plan(self.project, (self.flow,)).flow(self.flow).streams()]
        for name in [stream] if stream is not None else read:
            source = streams[name].source
            if isinstance(source, KafkaConnection):
                return source
        raise ProjectError(
            "replay-needs-kafka",
            f"{f'stream {stream!r}' if stream else f'flow {self.flow!r}'} does not read Kafka, so there is no cluster",
            hint="name a stream of the cluster: --stream",
            exit_code=Exit.NOT_FOUND,
        )
