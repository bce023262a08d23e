"""A load like TPC-C for pgbench: the tables of one warehouse, and its five transactions.

The mix and the statements follow the standard, but keys are uniform, an order has ten lines, and no
terminal thinks. The figures are therefore no TPC-C results.
"""

from __future__ import annotations

from pathlib import Path

DISTRICTS, CUSTOMERS, ITEMS, LINES = 10, 3000, 100_000, 10

SCHEMA = f"""
CREATE TABLE warehouse(w_id int PRIMARY KEY, w_ytd numeric, w_name text);
CREATE TABLE district(d_id int PRIMARY KEY, d_ytd numeric, d_next_o_id int, d_name text);
CREATE TABLE customer(c_d_id int, c_id int, c_balance numeric, c_ytd numeric, c_payments int,
    c_data text, PRIMARY KEY (c_d_id, c_id));
CREATE TABLE history(h_c_id int, h_d_id int, h_date timestamp, h_amount numeric, h_data text);
CREATE TABLE item(i_id int PRIMARY KEY, i_price numeric, i_name text, i_data text);
CREATE TABLE stock(s_i_id int PRIMARY KEY, s_quantity int, s_ytd int, s_orders int, s_data text);
CREATE TABLE orders(o_d_id int, o_id int, o_c_id int, o_entry timestamp, o_carrier int,
    o_lines int, PRIMARY KEY (o_d_id, o_id));
CREATE INDEX orders_customer ON orders(o_d_id, o_c_id, o_id);
CREATE TABLE new_order(no_d_id int, no_o_id int, PRIMARY KEY (no_d_id, no_o_id));
CREATE TABLE order_line(ol_d_id int, ol_o_id int, ol_number int, ol_i_id int,
    ol_delivered timestamp, ol_quantity int, ol_amount numeric, ol_data text,
    PRIMARY KEY (ol_d_id, ol_o_id, ol_number));
INSERT INTO warehouse VALUES (1, 0, 'warehouse');
INSERT INTO district SELECT d, 0, {CUSTOMERS + 1}, 'district'
    FROM generate_series(1, {DISTRICTS}) d;
INSERT INTO customer SELECT d, c, 0, 0, 0, repeat('x', 400)
    FROM generate_series(1, {DISTRICTS}) d, generate_series(1, {CUSTOMERS}) c;
INSERT INTO item SELECT i, i % 100 + 1, 'item', repeat('x', 40) FROM generate_series(1, {ITEMS}) i;
INSERT INTO stock SELECT i, 50, 0, 0, repeat('x', 240) FROM generate_series(1, {ITEMS}) i;
INSERT INTO orders SELECT d, c, c, now(), 1, {LINES}
    FROM generate_series(1, {DISTRICTS}) d, generate_series(1, {CUSTOMERS}) c;
INSERT INTO new_order SELECT d, c
    FROM generate_series(1, {DISTRICTS}) d, generate_series({CUSTOMERS * 7 // 10}, {CUSTOMERS}) c;
INSERT INTO order_line SELECT d, c, l, (c * {LINES} + l) % {ITEMS} + 1, now(), 5, 10, 'dist'
    FROM generate_series(1, {DISTRICTS}) d, generate_series(1, {CUSTOMERS}) c,
        generate_series(1, {LINES}) l;
VACUUM ANALYZE;
"""

NEW_ORDER_LINE = """\
\\set i random(1, {items})
\\set q random(1, 10)
SELECT i_price, i_name FROM item WHERE i_id = :i;
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q + 10 THEN s_quantity - :q
    ELSE s_quantity - :q + 91 END, s_ytd = s_ytd + :q, s_orders = s_orders + 1 WHERE s_i_id = :i;
INSERT INTO order_line VALUES (:d, :o, {line}, :i, NULL, :q, :q * 10, repeat('x', 24));
"""

CUSTOMER = f"\\set d random(1, {DISTRICTS})\n\\set c random(1, {CUSTOMERS})\n"

NEW_ORDER = (
    CUSTOMER
    + f"""\
BEGIN;
SELECT w_name FROM warehouse WHERE w_id = 1;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = :d
    RETURNING d_next_o_id - 1 AS o \\gset
SELECT c_balance FROM customer WHERE c_d_id = :d AND c_id = :c;
INSERT INTO orders VALUES (:d, :o, :c, now(), NULL, {LINES});
INSERT INTO new_order VALUES (:d, :o);
"""
    + "".join(NEW_ORDER_LINE.format(items=ITEMS, line=line) for line in range(1, LINES + 1))
    + "COMMIT;\n"
)

PAYMENT = (
    CUSTOMER
    + """\
\\set a random(1, 5000)
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :a WHERE w_id = 1;
UPDATE district SET d_ytd = d_ytd + :a WHERE d_id = :d;
UPDATE customer SET c_balance = c_balance - :a, c_ytd = c_ytd + :a, c_payments = c_payments + 1
    WHERE c_d_id = :d AND c_id = :c;
INSERT INTO history VALUES (:c, :d, now(), :a, repeat('x', 24));
COMMIT;
"""
)

ORDER_STATUS = (
    CUSTOMER
    + """\
BEGIN;
SELECT c_balance FROM customer WHERE c_d_id = :d AND c_id = :c;
SELECT * FROM order_line WHERE ol_d_id = :d AND ol_o_id =
    (SELECT max(o_id) FROM orders WHERE o_d_id = :d AND o_c_id = :c);
COMMIT;
"""
)

DELIVERY = """\
\\set d random(1, 10)
BEGIN;
WITH first AS (DELETE FROM new_order WHERE no_d_id = :d AND no_o_id =
        (SELECT min(no_o_id) FROM new_order WHERE no_d_id = :d) RETURNING no_o_id),
    carried AS (UPDATE orders SET o_carrier = 3 FROM first
        WHERE o_d_id = :d AND o_id = no_o_id RETURNING o_c_id)
    UPDATE order_line SET ol_delivered = now() FROM first WHERE ol_d_id = :d AND ol_o_id = no_o_id;
COMMIT;
"""

STOCK_LEVEL = """\
\\set d random(1, 10)
SELECT count(DISTINCT s_i_id) FROM district, order_line, stock
    WHERE d_id = :d AND ol_d_id = :d AND ol_o_id >= d_next_o_id - 20 AND s_i_id = ol_i_id
    AND s_quantity < 15;
"""

# Shares of the mix, in per cent.
MIX = {
    "new_order": (NEW_ORDER, 45),
    "payment": (PAYMENT, 43),
    "order_status": (ORDER_STATUS, 4),
    "delivery": (DELIVERY, 4),
    "stock_level": (STOCK_LEVEL, 4),
}


def write(folder: Path) -> list[str]:
    """Writes the scripts, and returns the options of pgbench that run them."""
    options = []
    for name, (script, share) in MIX.items():
        file = folder / f"{name}.sql"
        file.write_text(script)
        options += ["-f", f"{file}@{share}"]
    return options
