-- Seconds spent, by channel, user and week.
SELECT dimension_channel, uid, date_trunc('week', __time) AS week, sum(total_time_spent) AS seconds
FROM summary_events
GROUP BY dimension_channel, uid, date_trunc('week', __time)
ORDER BY dimension_channel, uid, week
