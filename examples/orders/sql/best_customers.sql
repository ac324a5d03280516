SELECT region, place, customer_id, name, revenue
FROM (
  SELECT *, row_number() OVER (PARTITION BY region ORDER BY revenue DESC, customer_id) AS place
  FROM customer_revenue
) AS ranked
WHERE place <= 3
