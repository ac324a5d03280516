SELECT c.customer_id, c.name, c.region, count(*) AS orders, sum(o.amount) AS revenue
FROM orders AS o
JOIN customers AS c ON c.customer_id = o.customer_id
WHERE o.status = 'paid'
GROUP BY c.customer_id, c.name, c.region
