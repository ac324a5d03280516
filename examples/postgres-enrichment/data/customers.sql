CREATE TABLE example_customers (id bigint PRIMARY KEY, name text, tier text);
INSERT INTO example_customers VALUES (1, 'Asha', 'gold'), (2, 'Budi', 'basic');
