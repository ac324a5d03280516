-- Streams and other flows are the tables of a flow's SQL.
SELECT
  window.start AS window_start,
  shop,
  count(*) AS orders,
  round(sum(amount), 2) AS turnover
FROM orders
GROUP BY window(placed_at, '10 seconds'), shop
