-- Active users of the last 30 days, by channel.
SELECT dimension_channel, count(DISTINCT uid) AS users
FROM summary_events
WHERE dimensions_type = 'app' AND __time > current_timestamp - INTERVAL '30' DAY
GROUP BY dimension_channel
ORDER BY dimension_channel
