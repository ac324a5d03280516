-- The newest events in the table.
SELECT eid, count(*) AS events
FROM telemetry_events_syncts
WHERE __time = (SELECT max(__time) FROM telemetry_events_syncts)
GROUP BY eid
ORDER BY eid
