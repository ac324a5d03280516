-- Seconds that each user spent on content.
SELECT uid, sum(total_time_spent) AS seconds
FROM summary_events
WHERE dimensions_type <> 'app' AND lower(object_type) IN ('content', 'course', 'textbook', 'resource', 'collection')
GROUP BY uid
ORDER BY uid
