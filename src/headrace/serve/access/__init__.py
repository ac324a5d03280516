"""What a caller may see. A token's row filter is applied in `access.py`: `EndpointAccess` adds it to every query.

`auth` turns tokens into grants, `grants` says what a grant allows, `access` applies it to the rows of `stores`,
`limits` counts requests. `subscription` and `feeds` apply the same filter to live events.
"""
