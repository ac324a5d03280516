-- Users per day, in the time zone of India, and their average.
SELECT avg(users) AS average, max(users) AS most, count(*) AS days
FROM (
  SELECT date_trunc('day', __time + INTERVAL '330' MINUTE) AS day_there, count(DISTINCT actor_id) AS users
  FROM telemetry_events_syncts
  WHERE eid = 'IMPRESSION'
  GROUP BY date_trunc('day', __time + INTERVAL '330' MINUTE)
) AS days
