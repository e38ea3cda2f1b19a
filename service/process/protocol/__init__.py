"""uvicorn's HTTP protocol with what uvicorn lacks: limits, cheap refusals, answers that arrive.

- **Timeouts** (`connection`). uvicorn has none for a request's head, the rest of a body whose
  answer is sent, and clients that do not read their answers or read them slowly; here the
  connection is closed. The body of a request in progress has its own timeout in `requests/body.py`.
- **Limits** on the number of connections (`open_connections`), and on the number of headers, the
  bytes of a head, trailer or chunk extension, and the pipelined requests (`connection`). Trailers
  are dropped: uvicorn adds them to the headers (RFC 9110, 6.5.1).
- **Disconnects.** uvicorn notifies the last request only, even if an earlier one is in progress.
- **Whole answers** (`transport`). A proxy passes a head on at once: if the process is killed before
  it writes the body, no other replica can answer. Here one write has both.
- **Load shedding.** `refuse` answers before the app does: 0.06 ms of processor time, not 0.26.
- **Lingering close** (`transport`). A connection that is closed with bytes unread is reset, and the
  client loses the answer (RFC 9112, 9.6).
- **Upgrades** (`parser`). A server may treat `Upgrade` like any other header (RFC 9110, 7.8).

uvicorn documents none of the names that `connection` uses, and a minor version may change them. So
`pyproject.toml` limits the version, and `test_connection.py` lists each name and checks it.
"""
