-- Active users of the last 24 hours, by channel.
SELECT dimension_channel, count(DISTINCT uid) AS users
FROM summary_events
WHERE dimensions_type = 'app' AND __time > current_timestamp - INTERVAL '24' HOUR
GROUP BY dimension_channel
ORDER BY dimension_channel
