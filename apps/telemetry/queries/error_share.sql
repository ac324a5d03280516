-- Errors per hundred events, by kind of content and hour.
SELECT seen.content_mimetype, seen.hour, seen.events, coalesce(failed.errors, 0) AS errors,
       100.0 * coalesce(failed.errors, 0) / seen.events AS percent
FROM (
  SELECT content_mimetype, date_trunc('hour', __time) AS hour, count(*) AS events
  FROM telemetry_events_syncts
  WHERE content_mimetype IS NOT NULL
  GROUP BY content_mimetype, date_trunc('hour', __time)
) AS seen
LEFT JOIN (
  SELECT content_mimetype, date_trunc('hour', __time) AS hour, sum(total_count) AS errors
  FROM error_events
  GROUP BY content_mimetype, date_trunc('hour', __time)
) AS failed ON failed.content_mimetype = seen.content_mimetype AND failed.hour = seen.hour
ORDER BY seen.content_mimetype, seen.hour
