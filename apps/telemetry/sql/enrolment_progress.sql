-- The progress is 0 for a course that was not started or has no resources, and 100 for a completed one.
SELECT user_id, course_id, course, org, batch_id, percent, enrolled_on,
       CASE WHEN percent = 0 THEN 'enrolled' WHEN percent < 10 THEN 'started' WHEN percent < 100 THEN 'in-progress'
            ELSE 'completed' END AS status
FROM (
  SELECT e.user_id, e.course_id, c.name AS course, c.org, e.batch_id, e.enrolled_on,
         CASE WHEN coalesce(c.resources, 0) = 0 OR coalesce(e.progress, 0) = 0 OR coalesce(e.status, 0) = 0 THEN 0D
              WHEN e.status = 2 THEN 100D
              ELSE round(least(100, greatest(0, 100 * e.progress / c.resources)), 2) END AS percent
  FROM enrolments e LEFT JOIN courses c ON c.course_id = e.course_id)
