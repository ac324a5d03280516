-- Typical changes of a shop; views see each transaction as a whole.
BEGIN;
INSERT INTO shop.customers VALUES (201, 'Asha', 'north');
INSERT INTO shop.orders VALUES (5001, 201, 120000.00, 'paid', timestamptz '2026-03-05 08:00:00+00');
COMMIT;

-- open orders are paid
UPDATE shop.orders SET status = 'paid' WHERE status = 'open' AND order_id <= 300;

-- a customer moves to another region, together with its revenue
UPDATE shop.customers SET region = 'south' WHERE customer_id = 201;

-- an order is assigned to another customer
UPDATE shop.orders SET customer_id = 10 WHERE order_id = 1;

-- orders are deleted
DELETE FROM shop.orders WHERE order_id BETWEEN 1000 AND 1100;
