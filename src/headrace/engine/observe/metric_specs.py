"""Every metric that the engine exposes. The names, labels and help texts are an interface: dashboards rely on them."""

from __future__ import annotations

from headrace.core.tallies.metrics import MetricSet

ENGINE = MetricSet("Engine", "The process that runs the flows.")
ENGINE_INFO = ENGINE.info("headrace_engine", "The engine.", "version", "project")
READY = ENGINE.gauge("headrace_ready", "1 when every required flow runs.")
MEMORY_BYTES = ENGINE.gauge("headrace_memory_bytes", "Resident memory of the engine.", "process")
SCHEMAS = ENGINE.counter(
    "headrace_schemas",
    "Newer schemas of streams: accepted, refused, or the registry was unreachable.",
    "stream",
    "outcome",
)

FLOWS = MetricSet("Flows", "The engine exposes them for each flow; a value that is not known is left out.")
FLOW_STATE = FLOWS.gauge("headrace_flow_state", "1 for the state a flow is in.", "flow", "state")
RESTARTS = FLOWS.counter("headrace_restarts", "Restarts of a flow after a failure.", "flow")
BATCHES = FLOWS.counter("headrace_batches", "Batches done.", "flow")
BATCH_DURATION = FLOWS.histogram(
    "headrace_batch_duration_seconds", "Time a batch took, by phase; 'total' is all of it.", "flow", "phase"
)
ROWS_IN = FLOWS.counter("headrace_rows_in", "Rows read from the inputs.", "flow")
ROWS_OUT = FLOWS.counter("headrace_rows_out", "Rows given to the sinks, where that is counted.", "flow")
SINK_ROWS = FLOWS.counter(
    "headrace_sink_rows", "What became of rows, for sinks that count them.", "flow", "sink", "outcome"
)
BYTES_IN = FLOWS.counter("headrace_bytes_in", "Bytes of the records given to a stream's decoder.", "flow", "stream")
BYTES_OUT = FLOWS.counter("headrace_bytes_out", "Bytes written, for sinks that count them.", "flow", "sink")
LATE_ROWS = FLOWS.counter("headrace_late_rows", "Rows too late for their window.", "flow")
DEAD_LETTERS = FLOWS.counter("headrace_dead_letters", "Records kept as dead letters.", "flow", "reason")
LAG_RECORDS = FLOWS.gauge("headrace_lag_records", "Records not read yet.", "flow")
LAG_SECONDS = FLOWS.gauge(
    "headrace_lag_seconds", "How long the oldest record that is not read yet has been waiting.", "flow"
)
WATERMARK_GAP = FLOWS.gauge("headrace_watermark_gap_seconds", "How far the watermark is behind now.", "flow")
WATERMARK = FLOWS.gauge("headrace_watermark_timestamp_seconds", "The watermark, in seconds since 1970.", "flow")
STATE_ROWS = FLOWS.gauge("headrace_state_rows", "Rows of state.", "flow")
STATE_BYTES = FLOWS.gauge("headrace_state_bytes", "Memory used by state.", "flow")
LOAD_RATIO = FLOWS.gauge("headrace_load_ratio", "Duration of the last batch / time between triggers.", "flow")
LATENCY = FLOWS.gauge(
    "headrace_end_to_end_latency_seconds", "From the newest event of the last batch to the end of that batch.", "flow"
)
LAST_BATCH = FLOWS.gauge(
    "headrace_last_batch_timestamp_seconds", "When the last batch ended, in seconds since 1970.", "flow"
)

STEPS = MetricSet("Processors that call other services", "The engine exposes them for each flow and step.")
STEP_CALLS = STEPS.counter("headrace_step_calls", "Requests made by a step.", "flow", "step")
STEP_SUCCESSES = STEPS.counter("headrace_step_successes", "Questions of a step that were answered.", "flow", "step")
STEP_TIMEOUTS = STEPS.counter(
    "headrace_step_timeouts", "Questions of a step that were not answered in time.", "flow", "step"
)
STEP_RETRIES = STEPS.counter("headrace_step_retries", "Questions of a step that were asked again.", "flow", "step")
STEP_CACHE_HITS = STEPS.counter(
    "headrace_step_cache_hits", "Questions of a step that were answered before.", "flow", "step"
)
STEP_ROWS_REFUSED = STEPS.counter(
    "headrace_step_rows_refused", "Rows of a step that got no answer: dead letters or nulls.", "flow", "step"
)
STEP_FAILURES = STEPS.counter(
    "headrace_step_failures", "Questions of a step that were refused, by class.", "flow", "step", "class"
)
STEP_LATENCY = STEPS.histogram("headrace_step_latency_seconds", "How long requests of a step took.", "flow", "step")

TABLES = MetricSet("Tables", "The engine exposes what the capture of each table group reports.")
TABLE_STATE = TABLES.gauge("headrace_table_state", "1 for the state of a group.", "group", "state")
TABLE_ROWS = TABLES.gauge("headrace_table_rows", "Rows of a table.", "table")
TABLE_CHANGES = TABLES.counter("headrace_table_changes", "Weighted rows logged.", "group")
TABLE_RESTARTS = TABLES.counter("headrace_table_restarts", "Failures of a group's reader.", "group")
TABLE_LAG = TABLES.gauge(
    "headrace_table_lag", "How far a group of tables is behind, in its source's own unit.", "group"
)
TABLE_SEQUENCE = TABLES.gauge("headrace_table_sequence", "The newest commit of a group's log.", "group")
TABLE_NEWEST = TABLES.gauge(
    "headrace_table_newest_timestamp_seconds", "When the newest change of a group happened at its source.", "group"
)

METRIC_SETS = (ENGINE, FLOWS, STEPS, TABLES)
