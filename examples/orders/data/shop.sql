-- The shop's tables, with 200 customers and 5,000 orders.
BEGIN;
CREATE SCHEMA shop;

CREATE TABLE shop.customers (
  customer_id bigint PRIMARY KEY,
  name text NOT NULL,
  region text NOT NULL
);

CREATE TABLE shop.orders (
  order_id bigint PRIMARY KEY,
  customer_id bigint NOT NULL REFERENCES shop.customers,
  amount numeric(12, 2) NOT NULL,
  status text NOT NULL DEFAULT 'open',
  ordered_at timestamptz NOT NULL
);

INSERT INTO shop.customers
SELECT n, 'customer ' || n, (ARRAY['north', 'east', 'south', 'west'])[1 + n % 4]
FROM generate_series(1, 200) AS n;

-- every tenth customer has not ordered; two of three orders are paid
INSERT INTO shop.orders
SELECT n, customer, (n * 37 % 9000 + 100) / 100.0, CASE WHEN n % 3 = 0 THEN 'open' ELSE 'paid' END,
  timestamptz '2026-03-01 08:00:00+00' + n * interval '1 minute'
FROM (SELECT n, 1 + n * 7 % 200 AS customer FROM generate_series(1, 5000) AS n) AS made
WHERE customer % 10 > 0;
COMMIT;
