-- Tables and views of this project in PostgreSQL. Run it once, before the first start with --profile kafka:
-- psql "$POSTGRES_URL" -f sql/postgres.sql. Totals over rows are views, so they never differ from the rows.

-- enrolments, and courses with their number of resources; other services write them
CREATE TABLE IF NOT EXISTS user_enrolments (
  user_id text, course_id text, batch_id text, status int, progress int, enrolled_on timestamptz,
  PRIMARY KEY (user_id, course_id, batch_id)
);

CREATE TABLE IF NOT EXISTS courses (course_id text PRIMARY KEY, name text, org text, resources int);

CREATE TABLE IF NOT EXISTS assessment_aggregator (
  user_id text, course_id text, batch_id text, content_id text, attempt_id text,
  total_score double precision, total_max_score double precision, grand_total text, question jsonb,
  last_attempted_on timestamptz, created_on timestamptz, updated_on timestamptz,
  PRIMARY KEY (user_id, course_id, batch_id, content_id, attempt_id)
);

CREATE OR REPLACE VIEW user_activity_agg AS
WITH ranked AS (
  SELECT *, count(*) OVER content AS attempts,
    row_number() OVER (content ORDER BY total_score DESC, last_attempted_on DESC, attempt_id) AS place
  FROM assessment_aggregator WINDOW content AS (PARTITION BY user_id, course_id, batch_id, content_id)
), best AS (
  SELECT user_id, course_id, batch_id,
    jsonb_object_agg('score:' || content_id, total_score)
      || jsonb_object_agg('max_score:' || content_id, total_max_score)
      || jsonb_object_agg('attempts_count:' || content_id, attempts) AS aggregates
  FROM ranked WHERE place = 1 GROUP BY user_id, course_id, batch_id
), every AS (
  SELECT user_id, course_id, batch_id, max(updated_on) AS updated_on, jsonb_agg(jsonb_build_object(
    'attempt_id', attempt_id, 'last_attempted_on', last_attempted_on, 'score', total_score, 'content_id', content_id,
    'max_score', total_max_score, 'type', 'attempt_metrics') ORDER BY content_id, last_attempted_on) AS agg_details
  FROM assessment_aggregator GROUP BY user_id, course_id, batch_id
)
SELECT 'Course' AS activity_type, course_id AS activity_id, user_id, 'cb:' || batch_id AS context_id, aggregates,
  agg_details, updated_on AS agg_last_updated
FROM best JOIN every USING (user_id, course_id, batch_id);

CREATE TABLE IF NOT EXISTS ratings (
  activity_id text, activity_type text, user_id text, rating double precision, review text, updated_on_id text,
  updated_on timestamptz, PRIMARY KEY (activity_id, activity_type, user_id)
);

CREATE OR REPLACE VIEW ratings_lookup AS
SELECT activity_id, activity_type, rating, updated_on_id AS updatedon, user_id AS userid, review FROM ratings;

CREATE OR REPLACE VIEW ratings_summary AS
SELECT activity_id, activity_type, sum(rating) AS sum_of_total_ratings, count(*) AS total_number_of_ratings,
  count(*) FILTER (WHERE floor(rating) = 1) AS totalcount1stars,
  count(*) FILTER (WHERE floor(rating) = 2) AS totalcount2stars,
  count(*) FILTER (WHERE floor(rating) = 3) AS totalcount3stars,
  count(*) FILTER (WHERE floor(rating) = 4) AS totalcount4stars,
  count(*) FILTER (WHERE floor(rating) = 5) AS totalcount5stars,
  coalesce((
    SELECT jsonb_agg(jsonb_build_object('objectType', 'review', 'user_id', user_id, 'date', updated_on_id,
      'rating', rating, 'review', review) ORDER BY updated_on)
    FROM (
      SELECT * FROM ratings AS one
      WHERE one.activity_id = ratings.activity_id AND one.activity_type = ratings.activity_type AND length(review) > 100
      ORDER BY updated_on DESC LIMIT 50
    ) AS latest
  ), '[]') AS latest50reviews
FROM ratings GROUP BY activity_id, activity_type;
